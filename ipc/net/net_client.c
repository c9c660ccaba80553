/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_client - asks one server at a time, many questions at once.
 *
 * A slot is one context of one REQ socket: IDLE -> SENDING -> RECEIVING -> DONE -> IDLE.
 * Callbacks of nng move SENDING on and end in DONE; the owner collects. nng never asks twice by
 * itself: its resend time is infinite, so a lost connection ends the question, and the owner
 * decides. Fields are guarded by the mutex; calls into nng are made without it.
 */
#include <errno.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "ipc/base/clock.h"
#include "ipc/base/ctl.h"
#include "ipc/base/fd.h"
#include "ipc/net/net.h"
#include "ipc/net/net_internal.h"

#define OUTSTANDING_DEFAULT 1024
#define RECONNECT_MIN_MS 100
#define RECONNECT_MAX_MS 200 /* a server that is back is wanted at once */
/*
 * A dialer that nng 1.5.2 closes while it takes in the server's greeting leaves that connection's
 * descriptor behind (tcp.c, tcptran_pipe_nego_cb: nobody waits for the connection any more). So one
 * that is on its way to the same address is left to go on, for longer than nng waits for a
 * greeting: what takes still longer waits for a host that answers nothing. One to another address
 * is closed: that costs a descriptor when its greeting has been read and not yet been looked at,
 * some microseconds. To refuse it without that takes a dialer that lives on beside the new one.
 */
#define ON_ITS_WAY_NS INT64_C(12000000000)

enum state { IDLE, SENDING, RECEIVING, DONE };

struct slot {
	struct net_client *client;
	struct slot *next; /* in the list of idle or of done ones */
	nng_ctx ctx;
	nng_aio *aio;
	nng_msg *message; /* DONE: owns, the answer */
	uint64_t tag;
	uint64_t dial; /* number of the dial that the question belongs to */
	int64_t deadline_ns;
	enum state state;
	int rc;
};

struct net_client {
	struct net_link link;
	nng_socket socket;
	pthread_mutex_t mutex;
	int wake;
	struct slot **slots; /* owns */
	uint32_t num_slots, slots_max;
	struct slot *idle, *first, **last;
	nng_msg *current; /* what the item that was handed out last points to */
	nng_dialer dialer;
	char url[NET_URL_BYTES]; /* what it dials */
	int64_t trying_ns;       /* since when it has had no connection */
	bool dialing;
	bool stopping;
	uint64_t dial;
	uint32_t pipe, pipe_reported; /* 0: not connected */
};

/*
 * ---- called by threads of nng
 * -------------------------------------------------------------------
 */

/* Under the mutex. */
static void
net_client_done(struct slot *slot, int rc, nng_msg *message)
{
	struct net_client *client = slot->client;

	slot->state = DONE;
	slot->rc = slot->dial != client->dial && rc != 0 ? -ECANCELED : rc;
	slot->message = message;
	slot->next = NULL;
	*client->last = slot;
	client->last = &slot->next;
	net_wake(client->wake);
}

static void
net_client_aio_done(void *argument)
{
	struct slot *slot = argument;
	struct net_client *client = slot->client;
	int rv = nng_aio_result(slot->aio);
	int64_t left_ns =
		slot->deadline_ns == INT64_MAX ? TH_FOREVER : slot->deadline_ns - th_now_ns();
	bool receive = false;

	pthread_mutex_lock(&client->mutex);
	if (slot->state == SENDING && rv != 0) {
		nng_msg_free(nng_aio_get_msg(slot->aio)); /* it is ours again */
		nng_aio_set_msg(slot->aio, NULL);
		net_client_done(slot, net_code(rv), NULL);
	} else if (slot->state == SENDING && (client->stopping || slot->dial != client->dial)) {
		net_client_done(slot, -ECANCELED, NULL);
	} else if (slot->state == SENDING) {
		slot->state = RECEIVING;
		receive = true;
	} else {
		net_client_done(slot, net_code(rv), rv == 0 ? nng_aio_get_msg(slot->aio) : NULL);
	}
	pthread_mutex_unlock(&client->mutex);
	if (!receive)
		return;
	/* Also with no time left: an answer that is there already counts. */
	nng_aio_set_timeout(slot->aio, left_ns == TH_FOREVER
					       ? NNG_DURATION_INFINITE
					       : net_duration(th_max_i64(left_ns, 1)));
	nng_ctx_recv(slot->ctx, slot->aio);
}

static void
net_client_connection(struct net_link *link, uint32_t pipe, bool up)
{
	struct net_client *client = (struct net_client *)link; /* its first member */

	pthread_mutex_lock(&client->mutex);
	if (up)
		client->pipe = pipe;
	else if (client->pipe == pipe) {
		client->pipe = 0;
		client->trying_ns = th_now_ns();
	}
	net_wake(client->wake);
	pthread_mutex_unlock(&client->mutex);
}

/* ---- the owner's thread --------------------------------------------------------------------- */

int
net_client_new(const struct net_client_options *options, struct th_err *err,
	struct net_client **ret_client)
{
	struct net_client *client = calloc(1, sizeof(*client));
	int rv;

	if (client == NULL)
		return th_fail(err, -ENOMEM, "out of memory");
	client->last = &client->first;
	client->slots_max = options == NULL || options->outstanding_max == 0
				    ? OUTSTANDING_DEFAULT
				    : options->outstanding_max;
	client->slots = calloc(client->slots_max, sizeof(struct slot *));
	client->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pthread_mutex_init(&client->mutex, NULL);
	rv = client->slots == NULL ? NNG_ENOMEM : 0;
	if (client->wake < 0)
		rv = NNG_ESYSERR | errno;
	if (rv == 0)
		rv = nng_req0_open(&client->socket);
	if (rv == 0)
		rv = nng_socket_set_size(client->socket, NNG_OPT_RECVMAXSZ, NET_MESSAGE_BYTES_MAX);
	if (rv == 0)
		rv = nng_socket_set_ms(
			client->socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
	if (rv == 0)
		rv = nng_socket_set_ms(client->socket, NNG_OPT_RECONNMINT, RECONNECT_MIN_MS);
	if (rv == 0)
		rv = nng_socket_set_ms(client->socket, NNG_OPT_RECONNMAXT, RECONNECT_MAX_MS);
	if (rv == 0) {
		client->link.handler = net_client_connection;
		rv = net_link_add(&client->link, client->socket);
	}
	if (rv != 0) {
		net_client_free(client);
		return net_fail(err, rv, "opening", "a client socket");
	}
	*ret_client = client;
	return 0;
}

/* What is open ends with -ECANCELED. */
static void
cancel_all(struct net_client *client)
{
	pthread_mutex_lock(&client->mutex);
	client->dial++;
	pthread_mutex_unlock(&client->mutex);
	/*
	 * A question that is just being moved from SENDING to RECEIVING may miss this; it is with a
	 * connection then, and ends with it.
	 */
	for (uint32_t i = 0; i < client->num_slots; i++)
		nng_aio_cancel(client->slots[i]->aio);
}

/* And no connection is left. */
static void
net_client_cut(struct net_client *client)
{
	cancel_all(client);
	if (client->dialing)
		nng_dialer_close(client->dialer);
	client->dialing = false;
	pthread_mutex_lock(&client->mutex);
	client->pipe = client->pipe_reported = 0;
	pthread_mutex_unlock(&client->mutex);
}

void
net_client_free(struct net_client *client)
{
	if (client == NULL)
		return;
	net_link_remove(&client->link);
	pthread_mutex_lock(&client->mutex);
	client->stopping = true;
	pthread_mutex_unlock(&client->mutex);
	net_client_cut(client);
	/* All callbacks have returned before one slot is freed: their list links the slots. */
	for (uint32_t i = 0; i < client->num_slots; i++)
		nng_aio_stop(client->slots[i]->aio);
	for (uint32_t i = 0; i < client->num_slots; i++) {
		struct slot *slot = client->slots[i];

		nng_ctx_close(slot->ctx);
		nng_aio_free(slot->aio);
		nng_msg_free(slot->message);
		free(slot);
	}
	nng_msg_free(client->current);
	th_fd_close(&client->wake);
	pthread_mutex_destroy(&client->mutex);
	free(client->slots);
	free(client);
}

/* Nothing is connected, and what is being dialed is what is wanted. */
static bool
on_its_way(struct net_client *client, const char *url)
{
	bool trying;

	pthread_mutex_lock(&client->mutex);
	trying = client->dialing && client->pipe == 0 && strcmp(client->url, url) == 0 &&
		 th_now_ns() - client->trying_ns < ON_ITS_WAY_NS;
	if (trying)
		client->pipe_reported = 0;
	pthread_mutex_unlock(&client->mutex);
	return trying;
}

int
net_client_dial(struct net_client *client, const char *url, bool wait, struct th_err *err)
{
	int rv;

	rv = net_url_check(url, err);
	if (rv != 0)
		return rv;
	if (!wait && on_its_way(client, url)) {
		cancel_all(client);
		return 0;
	}
	net_client_cut(client);
	snprintf(client->url, sizeof(client->url), "%s", url);
	client->trying_ns = th_now_ns();
	rv = nng_dialer_create(&client->dialer, client->socket, url);
	if (rv != 0)
		return net_fail(err, rv, "connecting to", url);
	client->dialing = true;
	rv = nng_dialer_start(client->dialer, wait ? 0 : NNG_FLAG_NONBLOCK);
	if (rv != 0) {
		net_client_cut(client);
		return net_fail(err, rv, "connecting to", url);
	}
	return 0;
}

/* An idle slot, or a new one; NULL: *ret_code is -ENOMEM... or TH_E_LIMIT. */
static struct slot *
find_slot(struct net_client *client, int *ret_code)
{
	struct slot *slot = client->idle; /* only the owner touches this list */
	int rv;

	if (slot != NULL) {
		client->idle = slot->next;
		return slot;
	}
	if (client->num_slots == client->slots_max) {
		*ret_code = TH_E_LIMIT;
		return NULL;
	}
	slot = calloc(1, sizeof(*slot));
	if (slot == NULL) {
		*ret_code = -ENOMEM;
		return NULL;
	}
	slot->client = client;
	rv = nng_aio_alloc(&slot->aio, net_client_aio_done, slot);
	if (rv == 0) {
		rv = nng_ctx_open(&slot->ctx, client->socket);
		if (rv != 0)
			nng_aio_free(slot->aio);
	}
	if (rv != 0) {
		free(slot);
		*ret_code = net_code(rv);
		return NULL;
	}
	client->slots[client->num_slots++] = slot;
	return slot;
}

int
net_client_send(struct net_client *client, uint64_t tag, const uint8_t *data, size_t bytes,
	int64_t timeout_ns)
{
	struct slot *slot = NULL;
	nng_msg *message;
	int rc = -ENOMEM;

	if (bytes > NET_MESSAGE_BYTES_MAX)
		return -EMSGSIZE;
	if (nng_msg_alloc(&message, 0) != 0)
		return -ENOMEM;
	if (nng_msg_append(message, data, bytes) == 0)
		slot = find_slot(client, &rc);
	if (slot == NULL) {
		nng_msg_free(message);
		return rc;
	}
	pthread_mutex_lock(&client->mutex);
	slot->state = SENDING;
	slot->tag = tag;
	slot->dial = client->dial;
	slot->deadline_ns = th_deadline_ns(th_now_ns(), timeout_ns);
	pthread_mutex_unlock(&client->mutex);
	nng_aio_set_msg(slot->aio, message);
	nng_aio_set_timeout(slot->aio, net_duration(timeout_ns));
	nng_ctx_send(slot->ctx, slot->aio);
	return 0;
}

int
net_client_fd(const struct net_client *client)
{
	return client->wake;
}

bool
net_client_next(struct net_client *client, struct net_client_item *ret_item)
{
	struct slot *slot = NULL;
	bool taken = true;

	nng_msg_free(client->current);
	client->current = NULL;
	pthread_mutex_lock(&client->mutex);
	if (client->pipe != client->pipe_reported) {
		bool lost = client->pipe_reported != 0; /* and perhaps there is a new one: next */

		*ret_item = (struct net_client_item){.kind = lost ? NET_DOWN : NET_UP};
		client->pipe_reported = lost ? 0 : client->pipe;
	} else if (client->first != NULL) {
		slot = client->first;
		client->first = slot->next;
		if (client->first == NULL)
			client->last = &client->first;
		client->current = slot->message;
		slot->message = NULL;
		slot->state = IDLE;
		*ret_item = (struct net_client_item){
			.kind = NET_REPLY, .tag = slot->tag, .rc = slot->rc};
	} else {
		net_wake_clear(client->wake);
		taken = false;
	}
	pthread_mutex_unlock(&client->mutex);
	if (slot != NULL) {
		slot->next = client->idle;
		client->idle = slot;
		if (client->current != NULL) {
			ret_item->data = nng_msg_body(client->current);
			ret_item->bytes = nng_msg_len(client->current);
		}
	}
	return taken;
}
