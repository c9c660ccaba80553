/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_server - requests come in on many contexts of one REP socket and are answered in any order.
 *
 * A context holds one request from its arrival to its answer:
 *
 *   RECEIVING -> QUEUED -> OPEN -> SENDING -> RECEIVING
 *                   |        `-> GONE ------------^     the asker's connection ended first
 *                   `-> DROPPED ------------------^     ... before anybody saw the request
 *
 * Callbacks of nng move RECEIVING to QUEUED, OPEN to GONE, QUEUED to DROPPED and SENDING to
 * RECEIVING; the owner does the rest. All fields below are guarded by the mutex; calls into nng
 * are made without it.
 */
#include <errno.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <nng/transport/ipc/ipc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "ipc/base/fd.h"
#include "ipc/net/net.h"
#include "ipc/net/net_internal.h"

#define LISTENERS_MAX 16
#define CONTEXTS_DEFAULT 64
#define CONTEXTS_MAX_DEFAULT 16384 /* one standing POLL for each of so many agents, and room */
#define SPARE_MIN 16               /* contexts that should be free to receive                */
#define INDEX_BITS 16              /* of a token: which context; the rest never repeats      */
#define SEND_MS 10000              /* an asker that does not read its answer loses it        */

enum state { RECEIVING, QUEUED, OPEN, SENDING, GONE, DROPPED, STOPPED };

struct context {
	struct net_server *server;
	struct context *next; /* in the queue */
	nng_ctx ctx;
	nng_aio *aio;
	nng_msg *message; /* QUEUED, DROPPED: owns */
	uint64_t token;   /* of the request that it holds or held last */
	uint32_t index;
	enum state state;
	struct net_peer peer;
};

struct net_server {
	struct net_link link;
	nng_socket socket;
	pthread_mutex_t mutex;
	int wake;
	bool stopping;
	bool quiet_wanted;         /* the owner waits for the last answer to be on its way */
	struct context **contexts; /* owns; by index, which is in the token */
	uint32_t num_contexts, contexts_max;
	uint32_t receiving, sending, open;
	uint32_t connections;
	uint64_t serial; /* of the last token */
	struct context *first, **last;
	uint32_t *closed; /* owns: pipes that ended, oldest first */
	uint32_t num_closed, closed_max;
	nng_msg *current; /* what the item that was handed out last points to */
	nng_listener listeners[LISTENERS_MAX];
	uint32_t num_listeners;
	struct net_server_counters counters;
};

void
net_server_options_default(struct net_server_options *ret_options)
{
	*ret_options = (struct net_server_options){
		.contexts = CONTEXTS_DEFAULT,
		.contexts_max = CONTEXTS_MAX_DEFAULT,
	};
}

/*
 * ---- called by threads of nng
 * -------------------------------------------------------------------
 */

static void
net_server_enqueue(struct net_server *server, struct context *context)
{
	context->next = NULL;
	*server->last = context;
	server->last = &context->next;
	net_wake(server->wake);
}

static void
fill_peer(struct net_peer *peer, nng_msg *message)
{
	nng_pipe pipe = nng_msg_get_pipe(message);
	uint64_t uid, gid, pid;

	*peer = (struct net_peer){.pipe = (uint32_t)nng_pipe_id(pipe)};
	if (nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_UID, &uid) == 0 &&
		nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_GID, &gid) == 0 &&
		nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_PID, &pid) == 0) {
		peer->local = true;
		peer->uid = (uint32_t)uid;
		peer->gid = (uint32_t)gid;
		peer->pid = (int32_t)pid;
	}
}

/* Under the mutex. */
static uint32_t
find_listener(const struct net_server *server, nng_listener listener)
{
	for (uint32_t i = 0; i < server->num_listeners; i++)
		if (nng_listener_id(server->listeners[i]) == nng_listener_id(listener))
			return i;
	return UINT32_MAX;
}

/* The owner will hear of it. Without memory it does not: it must not rely on this alone. */
static void
note_closed(struct net_server *server, uint32_t pipe)
{
	if (server->num_closed == server->closed_max) {
		uint32_t more = th_max_u32(16, server->closed_max * 2);
		uint32_t *closed = realloc(server->closed, more * sizeof(*closed));

		if (closed == NULL)
			return;
		server->closed = closed;
		server->closed_max = more;
	}
	server->closed[server->num_closed++] = pipe;
	net_wake(server->wake);
}

/* True: this context receives again. */
static bool
received(struct context *context, int rv)
{
	struct net_server *server = context->server;
	nng_msg *message = rv == 0 ? nng_aio_get_msg(context->aio) : NULL;
	nng_listener listener = NNG_LISTENER_INITIALIZER;
	struct net_peer peer = {0};
	bool again = false;

	if (message != NULL) {
		fill_peer(&peer, message);
		listener = nng_pipe_listener(nng_msg_get_pipe(message));
	}
	pthread_mutex_lock(&server->mutex);
	peer.listener = find_listener(server, listener);
	if (server->stopping || rv == NNG_ECLOSED || rv == NNG_ECANCELED) {
		context->state = STOPPED;
		server->receiving--;
		nng_msg_free(message);
	} else if (message == NULL || nng_msg_len(message) == 0) {
		server->counters.dropped++;
		nng_msg_free(message);
		again = true;
	} else {
		context->state = QUEUED;
		context->message = message;
		context->peer = peer;
		server->receiving--;
		net_server_enqueue(server, context);
	}
	pthread_mutex_unlock(&server->mutex);
	return again;
}

static bool
sent(struct context *context, int rv)
{
	struct net_server *server = context->server;
	bool again;

	if (rv != 0) /* the asker is gone; nobody is left to tell */
		nng_msg_free(nng_aio_get_msg(context->aio));
	nng_aio_set_msg(context->aio, NULL);
	pthread_mutex_lock(&server->mutex);
	server->sending--;
	again = !server->stopping;
	context->state = again ? RECEIVING : STOPPED;
	server->receiving += again;
	if (server->sending == 0 && server->quiet_wanted)
		net_wake(server->wake);
	pthread_mutex_unlock(&server->mutex);
	return again;
}

static void
start_receiving(struct context *context)
{
	nng_aio_set_timeout(context->aio, NNG_DURATION_INFINITE);
	nng_ctx_recv(context->ctx, context->aio);
}

static void
net_server_aio_done(void *argument)
{
	struct context *context = argument;
	int rv = nng_aio_result(context->aio);
	enum state state;

	pthread_mutex_lock(&context->server->mutex);
	state = context->state;
	pthread_mutex_unlock(&context->server->mutex);
	/* The two states in which nng has work; only this callback ends them. */
	if (state == SENDING ? sent(context, rv) : received(context, rv))
		start_receiving(context);
}

static void
net_server_connection(struct net_link *link, uint32_t pipe, bool up)
{
	struct net_server *server = (struct net_server *)link; /* its first member */

	pthread_mutex_lock(&server->mutex);
	server->connections += up ? 1u : UINT32_MAX;
	for (uint32_t i = 0; !up && i < server->num_contexts; i++) {
		struct context *context = server->contexts[i];

		if (context->peer.pipe != pipe)
			continue;
		if (context->state == QUEUED) {
			context->state = DROPPED;
		} else if (context->state == OPEN) {
			context->state = GONE;
			server->open--;
			net_server_enqueue(server, context);
		}
	}
	if (!up && !server->stopping)
		note_closed(server, pipe);
	pthread_mutex_unlock(&server->mutex);
}

/* ---- the owner's thread --------------------------------------------------------------------- */

/* The context is in no queue and nng does nothing with it. */
static void
net_server_receive(struct net_server *server, struct context *context)
{
	bool stopping;

	pthread_mutex_lock(&server->mutex);
	stopping = server->stopping;
	context->state = stopping ? STOPPED : RECEIVING;
	context->peer.pipe = 0;
	server->receiving += !stopping;
	pthread_mutex_unlock(&server->mutex);
	if (!stopping)
		start_receiving(context);
}

/* 0 or an error of nng. */
static int
add_context(struct net_server *server)
{
	struct context *context = calloc(1, sizeof(*context));
	int rv;

	if (context == NULL)
		return NNG_ENOMEM;
	context->server = server;
	context->index = server->num_contexts;
	rv = nng_aio_alloc(&context->aio, net_server_aio_done, context);
	if (rv != 0)
		goto out_context;
	rv = nng_ctx_open(&context->ctx, server->socket);
	if (rv != 0)
		goto out_aio;
	pthread_mutex_lock(&server->mutex);
	server->contexts[server->num_contexts++] = context;
	pthread_mutex_unlock(&server->mutex);
	net_server_receive(server, context);
	return 0;
out_aio:
	nng_aio_free(context->aio);
out_context:
	free(context);
	return rv;
}

/*
 * Requests that find no free context wait in their connections, so growing late costs time only:
 * a failure to grow is not one of the server.
 */
static void
keep_spare(struct net_server *server)
{
	uint32_t missing = 0;

	pthread_mutex_lock(&server->mutex);
	if (server->receiving < SPARE_MIN && !server->stopping)
		missing = th_min_u32(th_max_u32(server->num_contexts, SPARE_MIN),
			server->contexts_max - server->num_contexts);
	pthread_mutex_unlock(&server->mutex);
	while (missing-- > 0 && add_context(server) == 0)
		continue;
}

int
net_server_new(const struct net_server_options *options, struct th_err *err,
	struct net_server **ret_server)
{
	struct net_server_options defaults;
	struct net_server *server;
	int rv;

	net_server_options_default(&defaults);
	options = options == NULL ? &defaults : options;
	server = calloc(1, sizeof(*server));
	if (server == NULL)
		return th_fail(err, -ENOMEM, "out of memory");
	server->last = &server->first;
	server->contexts_max = th_min_u32(th_max_u32(options->contexts_max, 1), 1u << INDEX_BITS);
	server->contexts = calloc(server->contexts_max, sizeof(struct context *));
	server->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pthread_mutex_init(&server->mutex, NULL);
	rv = server->contexts == NULL ? NNG_ENOMEM : 0;
	if (server->wake < 0)
		rv = NNG_ESYSERR | errno;
	if (rv == 0)
		rv = nng_rep0_open(&server->socket);
	if (rv == 0)
		rv = nng_socket_set_size(server->socket, NNG_OPT_RECVMAXSZ, NET_MESSAGE_BYTES_MAX);
	if (rv == 0) {
		server->link.handler = net_server_connection;
		rv = net_link_add(&server->link, server->socket);
	}
	while (rv == 0 && server->num_contexts < th_min_u32(th_max_u32(options->contexts, 1),
							 server->contexts_max))
		rv = add_context(server);
	if (rv != 0) {
		net_server_free(server);
		return net_fail(err, rv, "opening", "a server socket");
	}
	*ret_server = server;
	return 0;
}

void
net_server_free(struct net_server *server)
{
	if (server == NULL)
		return;
	net_link_remove(&server->link);
	pthread_mutex_lock(&server->mutex);
	server->stopping = true;
	pthread_mutex_unlock(&server->mutex);
	for (uint32_t i = 0; i < server->num_listeners; i++)
		nng_listener_close(server->listeners[i]);
	for (uint32_t i = 0; i < server->num_contexts; i++)
		nng_aio_stop(server->contexts[i]->aio); /* its callback has returned */
	for (uint32_t i = 0; i < server->num_contexts; i++) {
		struct context *context = server->contexts[i];

		nng_ctx_close(context->ctx);
		nng_aio_free(context->aio);
		nng_msg_free(context->message);
		free(context);
	}
	nng_msg_free(server->current);
	th_fd_close(&server->wake);
	pthread_mutex_destroy(&server->mutex);
	free(server->contexts);
	free(server->closed);
	free(server);
}

/* Port 0 has become a real one. ret_url may be url itself. */
static void
real_url(nng_listener listener, const char *url, char ret_url[NET_URL_BYTES])
{
	char real[NET_URL_BYTES], address[NET_URL_BYTES];
	nng_sockaddr bound;

	snprintf(real, sizeof(real), "%s", url);
	if (strncmp(url, "tcp://", 6) == 0 &&
		nng_listener_get_addr(listener, NNG_OPT_LOCADDR, &bound) == 0 &&
		net_print_address(&bound, address))
		snprintf(real, sizeof(real), "%.*s%s", (int)(strrchr(url, ':') - url), url,
			strrchr(address, ':'));
	memcpy(ret_url, real, sizeof(real));
}

int
net_server_listen(struct net_server *server, const char *url, unsigned permissions,
	struct th_err *err, char ret_url[NET_URL_BYTES])
{
	nng_listener listener;
	int rv;

	rv = net_url_check(url, err);
	if (rv != 0)
		return rv;
	if (server->num_listeners == LISTENERS_MAX)
		return th_fail(err, TH_E_LIMIT, "%s: at most %d addresses to listen on", url,
			LISTENERS_MAX);
	rv = nng_listener_create(&listener, server->socket, url);
	if (rv != 0)
		return net_fail(err, rv, "listening on", url);
	if (permissions != 0 && strncmp(url, "ipc:", 4) == 0)
		rv = nng_listener_set_int(
			listener, NNG_OPT_IPC_PERMISSIONS, (int)(permissions & 0777u));
	/* Before the first connection, which is told by it. */
	pthread_mutex_lock(&server->mutex);
	server->listeners[server->num_listeners++] = listener;
	pthread_mutex_unlock(&server->mutex);
	if (rv == 0)
		rv = nng_listener_start(listener, 0);
	if (rv != 0) {
		pthread_mutex_lock(&server->mutex);
		server->num_listeners--;
		pthread_mutex_unlock(&server->mutex);
		nng_listener_close(listener);
		return net_fail(err, rv, "listening on", url);
	}
	real_url(listener, url, ret_url);
	return 0;
}

int
net_server_fd(const struct net_server *server)
{
	return server->wake;
}

/*
 * Takes one context from the queue. True: *ret_item is filled. *ret_receive: it is free to
 * receive.
 */
static bool
net_server_take(
	struct net_server *server, struct net_server_item *ret_item, struct context **ret_receive)
{
	struct context *context = server->first;

	*ret_receive = NULL;
	server->first = context->next;
	if (server->first == NULL)
		server->last = &server->first;
	if (context->state == QUEUED) {
		context->state = OPEN;
		context->token = ++server->serial << INDEX_BITS | context->index;
		server->open++;
		server->counters.requests++;
		server->current = context->message;
		context->message = NULL;
		*ret_item = (struct net_server_item){
			.kind = NET_REQUEST,
			.token = context->token,
			.peer = context->peer,
			.data = nng_msg_body(server->current),
			.bytes = nng_msg_len(server->current),
		};
		return true;
	}
	*ret_receive = context;
	nng_msg_free(context->message);
	context->message = NULL;
	if (context->state != GONE)
		return false;
	server->counters.gone++;
	*ret_item = (struct net_server_item){
		.kind = NET_GONE, .token = context->token, .peer = context->peer};
	return true;
}

/* After what had come in by it. */
static void
take_closed(struct net_server *server, struct net_server_item *ret_item)
{
	*ret_item = (struct net_server_item){.kind = NET_CLOSED, .peer.pipe = server->closed[0]};
	memmove(server->closed, server->closed + 1, --server->num_closed * sizeof(*server->closed));
}

bool
net_server_next(struct net_server *server, struct net_server_item *ret_item)
{
	struct context *free_now;
	bool taken = false, empty = false;

	nng_msg_free(server->current);
	server->current = NULL;
	while (!taken && !empty) {
		free_now = NULL;
		pthread_mutex_lock(&server->mutex);
		empty = server->first == NULL && server->num_closed == 0;
		if (empty) {
			net_wake_clear(server->wake);
		} else if (server->first == NULL) {
			take_closed(server, ret_item);
			taken = true;
		} else {
			taken = net_server_take(server, ret_item, &free_now);
		}
		pthread_mutex_unlock(&server->mutex);
		if (free_now != NULL)
			net_server_receive(server, free_now);
	}
	keep_spare(server);
	return taken;
}

int
net_server_reply(struct net_server *server, uint64_t token, const uint8_t *data, size_t bytes)
{
	uint64_t index = token & ((1u << INDEX_BITS) - 1);
	struct context *context;
	nng_msg *message;
	bool open, gone;

	if (bytes > NET_MESSAGE_BYTES_MAX)
		return -EMSGSIZE;
	if (nng_msg_alloc(&message, 0) != 0)
		return -ENOMEM;
	if (nng_msg_append(message, data, bytes) != 0) {
		nng_msg_free(message);
		return -ENOMEM;
	}
	pthread_mutex_lock(&server->mutex);
	context = index < server->num_contexts ? server->contexts[index] : NULL;
	if (context != NULL && context->token != token)
		context = NULL;
	open = context != NULL && context->state == OPEN;
	gone = context != NULL && context->state == GONE; /* and not reported yet: need not be */
	if (open) {
		context->state = SENDING;
		server->open--;
		server->sending++;
		server->counters.replies++;
	} else if (gone) {
		context->state = DROPPED;
	}
	pthread_mutex_unlock(&server->mutex);
	if (!open) {
		nng_msg_free(message);
		return gone ? 0 : -ESTALE;
	}
	nng_aio_set_msg(context->aio, message);
	nng_aio_set_timeout(context->aio, SEND_MS);
	nng_ctx_send(context->ctx, context->aio);
	return 0;
}

bool
net_server_quiet(struct net_server *server)
{
	bool quiet;

	pthread_mutex_lock(&server->mutex);
	quiet = server->first == NULL && server->num_closed == 0 && server->sending == 0;
	server->quiet_wanted = !quiet;
	pthread_mutex_unlock(&server->mutex);
	return quiet;
}

void
net_server_counters(struct net_server *server, struct net_server_counters *ret_counters)
{
	pthread_mutex_lock(&server->mutex);
	*ret_counters = server->counters;
	ret_counters->connections = server->connections;
	ret_counters->contexts = server->num_contexts;
	ret_counters->contexts_open = server->open;
	pthread_mutex_unlock(&server->mutex);
}
