/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_link - see server_link.h. Main thread only.
 */
#include "daemon/host/server_link.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <uthash.h>

#include "daemon/host/host.h"
#include "daemon/host/points.h"
#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "ipc/proto/convert.h"

#define ITEMS_A_WAKEUP 64
/* No server for this long: the next of the list is tried. */
#define SWITCH_NS INT64_C(3000000000)

static const char *const channel_names[LINK_CHANNELS] = {"control", "poll", "beat"};

struct link_request {
	UT_hash_handle hh;
	uint64_t tag; /* of the net client */
	enum ctl_request_kind kind;
	uint64_t request_no;
	bool core;
	uint64_t core_tag;
	bool failed; /* could not even be sent: answered at the next tick of the loop */
	int rc;
	link_answered answered; /* NULL: nobody wants it any more */
	void *arg;
};

const char *
link_url(const struct host *host)
{
	return host->options.servers[host->link.server];
}

/* ---- answers -------------------------------------------------------------------------------- */

static void
answer(struct host *host, struct link_request *request, int rc, const struct ctl_reply *reply,
	struct convert_arena *arena)
{
	HASH_DEL(host->link.requests, request);
	if (rc != 0)
		host->counters.server_unanswered++;
	if (!request->core) {
		if (request->answered)
			request->answered(request->arg, rc, reply);
	} else if (rc == 0) {
		engine_post_reply(host, request->core_tag, reply, arena);
	} else {
		struct agent_event event = {
			.kind = AGENT_EV_NO_REPLY, .u.reply.tag = request->core_tag};
		event.u.reply.hung_up = rc == -ECONNRESET;
		engine_post(host, &event);
	}
	free(request);
}

static void
on_reply(struct host *host, const struct net_client_item *item)
{
	struct link_request *request;
	HASH_FIND(hh, host->link.requests, &item->tag, sizeof(item->tag), request);
	if (!request)
		return;
	if (item->rc != 0) {
		answer(host, request, item->rc, NULL, NULL);
		return;
	}
	struct convert_arena arena = {0};
	struct ctl_reply reply;
	struct th_err err = {0};
	int rc = ctl_reply_unpack(item->data, item->bytes, request->kind, &arena, &err, &reply);
	if (rc == 0 && reply.request_no != request->request_no)
		rc = th_fail(&err, -EPROTO, "a reply to another request");
	if (rc != 0)
		log_warn("server", "reply dropped kind=%d reason=\"%s\"", (int)request->kind,
			err.text);
	for (uint32_t i = 0; rc == 0 && reply.kind == CTL_POLL && i < reply.u.poll.num_events; i++)
		TH_FP_OF(points_told, reply.u.poll.events[i].kind);
	answer(host, request, rc, rc == 0 ? &reply : NULL, &arena);
	convert_arena_free(&arena);
}

static void
client_ready(void *arg, uint32_t events)
{
	struct link_channel *channel = arg;
	struct host *host = channel->host;
	struct net_client_item item;
	const char *name = channel_names[channel - host->link.channels];
	(void)events;
	for (int i = 0; i < ITEMS_A_WAKEUP && net_client_next(channel->client, &item); i++) {
		switch (item.kind) {
		case NET_REPLY:
			on_reply(host, &item);
			break;
		case NET_UP:
			channel->up = true;
			log_debug("server", "connected channel=%s url=%s", name, link_url(host));
			break;
		case NET_DOWN:
			channel->up = false;
			log_debug("server", "disconnected channel=%s url=%s", name, link_url(host));
			break;
		}
	}
}

/* ---- asking --------------------------------------------------------------------------------- */

static void
send_request(struct host *host, struct link_request *entry, enum agent_channel channel,
	const struct ctl_request *request, int64_t timeout_ns)
{
	struct server_link *link = &host->link;
	uint8_t *data;
	size_t bytes;
	entry->tag = ++link->last_tag;
	entry->kind = request->kind;
	entry->request_no = request->request_no;
	HASH_ADD(hh, link->requests, tag, sizeof(entry->tag), entry);
	host->counters.server_requests++;
	TH_FP_OF(points_sends, request->kind);
	int rc = ctl_request_pack(request, &data, &bytes);
	if (rc == 0) {
		rc = net_client_send(
			link->channels[channel].client, entry->tag, data, bytes, timeout_ns);
		free(data);
	}
	if (rc == 0)
		return;
	log_warn("server", "request not sent kind=%d reason=\"%s\"", (int)request->kind,
		th_strerror(rc));
	entry->failed = true;
	entry->rc = rc;
}

void
link_send(struct host *host, const struct agent_action *action)
{
	struct ctl_request request = *action->u.send.request;
	struct ctl_leg_progress *progress = NULL;
	struct link_request *entry = th_calloc(1, sizeof(*entry));
	entry->core = true;
	entry->core_tag = action->u.send.tag;
	if (request.kind == CTL_BEAT) {
		request.u.beat.num_legs = legs_progress(host, &progress);
		request.u.beat.legs = progress;
	}
	/* The core repeats what stays unanswered; this only keeps dead requests from piling up. */
	send_request(host, entry, action->u.send.channel, &request, host->options.reply_ns);
	free(progress);
}

uint64_t
link_ask(struct host *host, const struct ctl_request *request, int64_t timeout_ns,
	link_answered answered, void *arg)
{
	struct ctl_request numbered = *request;
	struct link_request *entry = th_calloc(1, sizeof(*entry));
	numbered.agent_inc = host->agent_inc;
	numbered.request_no = agent_request_no(host->engine.core);
	numbered.attach_no = agent_attach_no(host->engine.core);
	entry->answered = answered;
	entry->arg = arg;
	send_request(host, entry, AGENT_CHANNEL_CONTROL, &numbered, timeout_ns);
	return entry->tag;
}

void
link_cancel(struct host *host, uint64_t number)
{
	struct link_request *request;
	HASH_FIND(hh, host->link.requests, &number, sizeof(number), request);
	if (request)
		request->answered = NULL;
}

/* ---- which server --------------------------------------------------------------------------- */

static int
dial(struct host *host, struct th_err *err)
{
	for (int i = 0; i < LINK_CHANNELS; i++) {
		int rc = net_client_dial(host->link.channels[i].client, link_url(host), false, err);
		if (rc < 0)
			return rc;
	}
	host->link.dialed_ns = th_now_ns();
	return 0;
}

void
link_tick(struct host *host, int64_t now_ns)
{
	struct server_link *link = &host->link;
	struct link_request *request, *next;
	HASH_ITER(hh, link->requests, request, next)
	{
		if (request->failed)
			answer(host, request, request->rc, NULL, NULL);
	}
	if (host->attached) {
		link->dialed_ns = now_ns;
		return;
	}
	if (host->options.num_servers < 2 || now_ns - link->dialed_ns < SWITCH_NS)
		return;
	const char *old = link_url(host);
	link->server = (link->server + 1) % host->options.num_servers;
	host->counters.server_switches++;
	log_warn("server", "trying the next one url=%s before=%s", link_url(host), old);
	struct th_err err;
	if (dial(host, &err) < 0)
		log_error("server", "cannot dial url=%s reason=\"%s\"", link_url(host), err.text);
}

int
link_open(struct host *host, struct th_err *err)
{
	for (int i = 0; i < LINK_CHANNELS; i++)
		host->link.channels[i] = (struct link_channel){.host = host, .source.fd = -1};
	for (int i = 0; i < LINK_CHANNELS; i++) {
		struct link_channel *channel = &host->link.channels[i];
		int rc = net_client_new(NULL, err, &channel->client);
		if (rc < 0)
			return rc;
		rc = loop_add(&host->loop, &channel->source, net_client_fd(channel->client),
			EPOLLIN, client_ready, channel);
		if (rc < 0)
			return th_fail(err, rc, "watching a connection: %s", th_strerror(rc));
	}
	/* A wrong address in the list is an error now, not when the servers before it are gone. */
	for (uint32_t i = host->options.num_servers; i-- > 0;) {
		host->link.server = i;
		int rc = dial(host, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

void
link_close(struct host *host)
{
	struct link_request *request, *next;
	for (int i = 0; i < LINK_CHANNELS; i++) {
		loop_remove(&host->loop, &host->link.channels[i].source);
		net_client_free(host->link.channels[i].client);
	}
	HASH_ITER(hh, host->link.requests, request, next)
	{
		HASH_DEL(host->link.requests, request);
		free(request);
	}
}
