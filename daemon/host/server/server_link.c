/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_link - see server_link.h. Main thread only.
 */
#include "daemon/host/server/server_link.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <uthash.h>

#include "daemon/host/host.h"
#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/failpoint.h"
#include "ipc/base/log.h"
#include "ipc/proto/convert.h"

#define ITEMS_A_WAKEUP 64
/*
 * The next of the list is tried when this one says nothing for so long, or there is no connection
 * to it: a server that stands still is waited for, one that is gone is not. That is for a while:
 * where none of them serves, each gets the time that a slow way to it may take.
 */
#define SWITCH_NS INT64_C(3000000000)
/*
 * A connection may be dead without an end: its packets vanish, and TCP waits for many minutes. One
 * that says nothing for so long is made anew, each time in a row after twice the time.
 */
#define DEAF_NS INT64_C(2000000000)
#define DEAF_MAX_NS INT64_C(32000000000)
#define UNREACHED_NS INT64_C(500000000)
#define SEARCH_NS INT64_C(10000000000)

/* Failpoints, by enum ctl_request_kind: before it is sent. */
static const enum failpoint points_sends[] = {
	[CTL_ATTACH] = FAILPOINT_agent_sends_attach,
	[CTL_REJOIN] = FAILPOINT_agent_sends_rejoin,
	[CTL_REJOINED] = FAILPOINT_agent_sends_rejoined,
	[CTL_BEAT] = FAILPOINT_agent_sends_beat,
	[CTL_OPEN] = FAILPOINT_agent_sends_open,
	[CTL_REGISTER] = FAILPOINT_agent_sends_register,
	[CTL_OP] = FAILPOINT_agent_sends_op,
	[CTL_PREPARED] = FAILPOINT_agent_sends_prepared,
	[CTL_LEG_END] = FAILPOINT_agent_sends_leg_end,
	[CTL_DRAIN_DONE] = FAILPOINT_agent_sends_drain_done,
	[CTL_CONTENT] = FAILPOINT_agent_sends_content,
	[CTL_CLOSE] = FAILPOINT_agent_sends_close,
	[CTL_ADMIN] = FAILPOINT_agent_sends_admin,
	[CTL_RESERVED] = FAILPOINT_agent_sends_reserved,
};

/* By enum ctl_event_kind: when it has come. */
static const enum failpoint points_told[] = {
	[CTL_EV_PLAN] = FAILPOINT_agent_told_plan,
	[CTL_EV_GO] = FAILPOINT_agent_told_go,
	[CTL_EV_GRANT] = FAILPOINT_agent_told_grant,
	[CTL_EV_DRAIN] = FAILPOINT_agent_told_drain,
	[CTL_EV_OUTCOME] = FAILPOINT_agent_told_outcome,
	[CTL_EV_RESERVE] = FAILPOINT_agent_told_reserve,
	[CTL_EV_RELEASE] = FAILPOINT_agent_told_release,
};

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

void
link_list(const struct host *host, char ret_text[OPTIONS_TEXT_BYTES])
{
	size_t at = 0;
	/* They came as a text of this size. */
	for (uint32_t i = 0; i < host->options.num_servers && at < OPTIONS_TEXT_BYTES; i++)
		at += (size_t)snprintf(ret_text + at, OPTIONS_TEXT_BYTES - at, "%s%s",
			i == 0 ? "" : ",", host->options.servers[i]);
}

/* ---- answers -------------------------------------------------------------------------------- */

static void
server_link_answer(struct host *host, struct link_request *request, int rc,
	const struct ctl_reply *reply, struct convert_arena *arena)
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
		server_link_answer(host, request, item->rc, NULL, NULL);
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
	server_link_answer(host, request, rc, rc == 0 ? &reply : NULL, &arena);
	convert_arena_free(&arena);
}

static void
heard(struct link_channel *channel)
{
	channel->asked_ns = 0;
	channel->patience_ns = th_max_i64(DEAF_NS, channel->host->options.silent_ns);
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
			if (item.rc == 0)
				heard(channel);
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
server_link_send_request(struct host *host, struct link_request *entry, enum agent_channel channel,
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
	struct link_channel *channel = &host->link.channels[action->u.send.channel];
	if (channel->asked_ns == 0)
		channel->asked_ns = th_now_ns();
	/* The core repeats what stays unanswered; this only keeps dead requests from piling up. */
	server_link_send_request(
		host, entry, action->u.send.channel, &request, host->options.reply_ns);
	free(progress);
}

uint64_t
link_ask(struct host *host, const struct ctl_request *request, int64_t timeout_ns,
	link_answered answered, void *arg)
{
	struct ctl_request numbered = *request;
	struct link_request *entry = th_calloc(1, sizeof(*entry));
	numbered.agent_inc = host->agent_inc;
	numbered.secret = host->secret;
	numbered.request_no = agent_core_request_no(host->engine.core);
	numbered.attach_no = agent_core_attach_no(host->engine.core);
	entry->answered = answered;
	entry->arg = arg;
	server_link_send_request(host, entry, AGENT_CHANNEL_CONTROL, &numbered, timeout_ns);
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
server_link_dial(struct host *host, struct th_err *err)
{
	for (int i = 0; i < LINK_CHANNELS; i++) {
		struct link_channel *channel = &host->link.channels[i];
		int rc = net_client_dial(channel->client, link_url(host), false, err);
		if (rc < 0)
			return rc;
		channel->up = false; /* the end of the old connection is not reported */
		heard(channel);
	}
	host->link.dialed_ns = th_now_ns();
	return 0;
}

static void
next_server(struct host *host)
{
	struct server_link *link = &host->link;
	struct th_err err;
	link->server = (link->server + 1) % host->options.num_servers;
	host->counters.server_switches++;
	log_debug("server", "trying the next one url=%s", link_url(host));
	if (server_link_dial(host, &err) < 0)
		log_error("server", "cannot dial url=%s reason=\"%s\"", link_url(host), err.text);
}

void
link_attached(struct host *host)
{
	host->link.serves = true;
	memset(host->link.told, 0, sizeof(host->link.told));
	log_info("server", "attached url=%s server_inc=%016" PRIx64, link_url(host),
		host->server_inc);
}

void
link_detached(struct host *host, const char *reason, bool refused)
{
	struct server_link *link = &host->link;
	char *told = link->told[link->server];
	bool others = host->options.num_servers > 1;
	if (link->serves)
		link->dialed_ns = link->lost_ns = th_now_ns();
	link->serves = false;
	if (strcmp(told, reason) != 0) {
		snprintf(told, TH_CTL_TEXT_BYTES, "%s", reason);
		log_warn("server", "not attached url=%s reason=\"%s\"%s", link_url(host), reason,
			others ? " next=\"the other servers of the list\"" : "");
	}
	if (refused && others)
		next_server(host);
}

void
link_tick(struct host *host)
{
	struct link_request *request, *next;
	HASH_ITER(hh, host->link.requests, request, next)
	{
		if (request->failed)
			server_link_answer(host, request, request->rc, NULL, NULL);
	}
}

/* Until then this server is waited for. */
static int64_t
patience_ns(const struct server_link *link)
{
	bool soon = !link->channels[AGENT_CHANNEL_CONTROL].up &&
		    link->dialed_ns - link->lost_ns < SEARCH_NS;
	return link->dialed_ns + (soon ? UNREACHED_NS : SWITCH_NS);
}

/* When to look again. */
static int64_t
deaf_watch(struct link_channel *channel, int64_t now_ns)
{
	struct host *host = channel->host;
	struct th_err err;
	if (channel->asked_ns == 0)
		return INT64_MAX;
	int64_t at_ns = channel->asked_ns + channel->patience_ns;
	if (now_ns < at_ns)
		return at_ns;
	if (channel->up)
		log_info("server", "connects again channel=%s url=%s reason=\"it says nothing\"",
			channel_names[channel - host->link.channels], link_url(host));
	host->counters.server_redials++;
	channel->up = false;
	channel->asked_ns = now_ns;
	channel->patience_ns = th_min_i64(2 * channel->patience_ns, DEAF_MAX_NS);
	if (net_client_dial(channel->client, link_url(host), false, &err) < 0)
		log_error("server", "cannot dial url=%s reason=\"%s\"", link_url(host), err.text);
	return channel->asked_ns + channel->patience_ns;
}

int64_t
link_watch(struct host *host, int64_t now_ns)
{
	struct server_link *link = &host->link;
	int64_t next_ns = INT64_MAX;
	for (int i = 0; i < LINK_CHANNELS; i++)
		next_ns = th_min_i64(next_ns, deaf_watch(&link->channels[i], now_ns));
	if (link->serves || host->options.num_servers < 2)
		return next_ns;
	if (now_ns >= patience_ns(link))
		next_server(host);
	return th_min_i64(next_ns, patience_ns(link));
}

void
link_init(struct host *host)
{
	for (int i = 0; i < LINK_CHANNELS; i++)
		host->link.channels[i] = (struct link_channel){.host = host, .source.fd = -1};
}

int
link_open(struct host *host, struct th_err *err)
{
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
	host->link.lost_ns = th_now_ns();
	/* A wrong address in the list is an error now, not when the servers before it are gone. */
	for (uint32_t i = host->options.num_servers; i-- > 0;) {
		host->link.server = i;
		int rc = server_link_dial(host, err);
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
