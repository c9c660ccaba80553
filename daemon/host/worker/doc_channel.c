/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doc_channel - see doc_channel.h. Every request is answered exactly once, whatever becomes of its
 * asker. Main thread only.
 */
#include "daemon/host/worker/doc_channel.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/host/host.h"
#include "daemon/host/status/operators.h"
#include "daemon/host/status/status.h"
#include "daemon/host/worker/unpack.h"
#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "ipc/proto/convert.h"

#define ITEMS_A_WAKEUP 32
/* How long a question to the server may take when its asker does not say. */
#define QUESTION_NS INT64_C(5000000000)

struct forward {                     /* a question that waits for the server's answer */
	struct forward *prev, *next; /* borrows: of host->forwards */
	struct host *host;
	uint64_t token; /* 0: who asked has gone */
	uint64_t request_no;
	enum ctl_request_kind kind;
};

/* ---- answers -------------------------------------------------------------------------------- */

bool
documents_send(struct host *host, uint64_t token, const uint8_t *data, size_t bytes)
{
	if (token == 0 || !data)
		return false;
	int rc = net_server_reply(host->documents, token, data, bytes);
	/* -ESTALE: the asker has gone, which nobody needs to hear of. */
	if (rc < 0 && rc != -ESTALE)
		log_warn("document", "answer lost bytes=%zu reason=\"%s\"", bytes, th_strerror(rc));
	return rc == 0;
}

bool
documents_reply(struct host *host, uint64_t token, const Tensorhub__V1__Reply *reply,
	uint8_t **ret_data, size_t *ret_bytes)
{
	size_t bytes = tensorhub__v1__reply__get_packed_size(reply);
	uint8_t *data = th_calloc(bytes + 1, 1);
	tensorhub__v1__reply__pack(reply, data);
	bool sent = documents_send(host, token, data, bytes);
	if (ret_data) {
		*ret_data = data;
		*ret_bytes = bytes;
	} else {
		free(data);
	}
	return sent;
}

void
documents_refuse(struct host *host, uint64_t token, uint64_t request_no, int code, const char *text)
{
	Tensorhub__V1__Reply reply;
	char copy[TH_CTL_TEXT_BYTES];
	tensorhub__v1__reply__init(&reply);
	snprintf(copy, sizeof(copy), "%s", text);
	reply.request_no = request_no;
	reply.code = code;
	reply.text = copy;
	host->counters.documents_refused++;
	log_debug("document", "refused code=%s reason=\"%s\"", th_errname(code), text);
	documents_reply(host, token, &reply, NULL, NULL);
}

/* ---- questions that go on to the server ----------------------------------------------------- */

static void
forward_answered(void *arg, int rc, const struct ctl_reply *reply)
{
	struct forward *forward = arg;
	struct host *host = forward->host;
	uint8_t *data;
	size_t bytes;
	if (rc != 0) {
		char text[TH_CTL_TEXT_BYTES];
		snprintf(text, sizeof(text),
			"the reference server did not answer (%s); see 'thctl status'",
			th_strerror(rc));
		documents_refuse(host, forward->token, forward->request_no, TH_E_NO_SERVER, text);
	} else {
		struct ctl_reply copy = *reply;
		copy.request_no = forward->request_no;
		/* That the server forgot this agent is the agent's affair, and soon repaired. */
		copy.unknown_agent = false;
		rc = ctl_reply_pack(&copy, &data, &bytes);
		if (rc == 0) {
			documents_send(host, forward->token, data, bytes);
			free(data);
		} else {
			documents_refuse(host, forward->token, forward->request_no, rc,
				rc == TH_E_LIMIT ? "the answer is larger than one message"
						 : th_strerror(rc));
		}
	}
	DL_DELETE(host->forwards, forward);
	free(forward);
}

/* ---- listings: fetched once for all ---------------------------------------------------------- */

static void
listings_to_server(void *arg, const struct ctl_request *request, int64_t timeout_ns,
	listings_answered answered, void *ctx)
{
	link_ask(arg, request, timeout_ns, answered, ctx);
}

static void
listings_send(void *arg, uint64_t token, const uint8_t *data, size_t bytes)
{
	documents_send(arg, token, data, bytes);
}

static void
listings_refuse(void *arg, uint64_t token, uint64_t request_no, int code, const char *text)
{
	documents_refuse(arg, token, request_no, code, text);
}

void
documents_init(struct host *host)
{
	const struct listings_io io = {.arg = host,
		.ask = listings_to_server,
		.send = listings_send,
		.refuse = listings_refuse};
	host->listings = listings_new(&io);
}

/* The server's number of a session, which its worker does not know. */
static uint64_t
sid_of(const struct host *host, uint64_t session)
{
	struct agent_session_info info;
	for (uint32_t i = 0; agent_core_session_at(host->engine.core, i, &info); i++) {
		if (info.session == session)
			return info.sid;
	}
	return 0;
}

static void
forward(struct host *host, const struct net_server_item *item,
	const Tensorhub__V1__Request *request, const struct host_session *session)
{
	struct convert_arena arena = {0};
	struct ctl_request ctl;
	struct th_err err = {0};
	int64_t timeout_ns = request->deadline_ns > 0 ? request->deadline_ns : QUESTION_NS;
	int rc = ctl_request_unpack(item->data, item->bytes, &arena, &err, &ctl);
	if (rc == 0 && ctl.kind == CTL_LIST && ctl.u.list.op_seq == 0) {
		listings_ask(host->listings, th_now_ns(), item->token, request->request_no,
			&ctl.u.list, timeout_ns);
		convert_arena_free(&arena);
		return;
	}
	if (rc == 0 && ctl.kind == CTL_LIST && ctl.u.list.op_seq != 0) {
		ctl.u.list.sid = session ? sid_of(host, session->id) : 0;
		if (ctl.u.list.sid == 0)
			rc = th_fail(&err, TH_E_STATE, "a grouped list needs an open session");
	}
	if (rc == 0 && ctl.kind == CTL_WAITS) {
		ctl.u.waits_sid = session ? sid_of(host, session->id) : 0;
		if (ctl.u.waits_sid == 0)
			rc = th_fail(&err, TH_E_STATE, "only who has a handle open can wait");
	}
	if (rc == 0 && ctl.kind == CTL_ADMIN)
		operators_sign(&item->peer, host->options.node, &ctl.u.admin);
	if (rc == 0 && !host->attached)
		rc = th_fail(&err, TH_E_NO_SERVER,
			"the agent reaches no reference server: %.300s; see 'thctl status'",
			host->server_text);
	if (rc < 0) {
		documents_refuse(host, item->token, request->request_no, rc, err.text);
	} else {
		struct forward *entry = th_calloc(1, sizeof(*entry));
		entry->host = host;
		entry->token = item->token;
		entry->request_no = request->request_no;
		entry->kind = ctl.kind;
		DL_APPEND(host->forwards, entry);
		link_ask(host, &ctl, timeout_ns, forward_answered, entry);
	}
	convert_arena_free(&arena);
}

/* ---- dispatch ------------------------------------------------------------------------------- */

/* Takes as long for a wrong secret as for the right one. */
static bool
secret_fits(const struct host_session *session, const ProtobufCBinaryData *secret)
{
	uint8_t difference = 0;
	if (secret->len != sizeof(session->secret))
		return false;
	for (size_t i = 0; i < sizeof(session->secret); i++)
		difference |= (uint8_t)(session->secret[i] ^ secret->data[i]);
	return difference == 0;
}

/* False: refused. *ret_session is NULL when the request names none. */
static bool
authenticate(struct host *host, uint64_t token, const Tensorhub__V1__Request *request,
	struct host_session **ret_session)
{
	*ret_session = NULL;
	if (request->session == 0)
		return true;
	struct host_session *session = session_find(host, request->session);
	bool open = session &&
		    (session->state == HOST_SESSION_OPEN || session->state == HOST_SESSION_CLOSING);
	if (!open || !secret_fits(session, &request->secret)) {
		log_warn("document",
			"refused session=%" PRIu64 " reason=\"unknown, or wrong secret\"",
			request->session);
		documents_refuse(host, token, request->request_no, TH_E_DENIED,
			"the session is not known here, or its secret is wrong; open again");
		return false;
	}
	*ret_session = session;
	return true;
}

static void
deny(struct host *host, const struct net_server_item *item, uint64_t request_no, const char *what)
{
	char text[TH_CTL_TEXT_BYTES];
	int64_t now_ns = th_now_ns();
	snprintf(text, sizeof(text),
		"%s; operators ask at %.200s/" OPERATORS_FILE
		", which root, the agent's user and the group of the key admin.group may open",
		what, host->options.runtime_dir);
	host->counters.documents_denied++;
	/* He may come again at once, for ever: a line a second. */
	if (now_ns >= host->denied_told_ns + HOST_BEAT_NS) {
		host->denied_told_ns = now_ns;
		log_warn("document", "denied count=%" PRIu64 " pid=%d uid=%u reason=\"%s\"",
			host->counters.documents_denied, (int)item->peer.pid,
			(unsigned)item->peer.uid, what);
	}
	documents_refuse(host, item->token, request_no, TH_E_DENIED, text);
}

/* Who could publish to all who follow may also say that they may go on. */
static const char *
why_no_go(const struct host_session *session)
{
	if (!session)
		return "who has no handle open says go for nothing here";
	if (session_observes(session))
		return "an observer can publish nothing, so it says go for nothing";
	if (!session->registration.tensors)
		return "who has registered no tensors can publish nothing, so he says go for "
		       "nothing";
	return NULL;
}

/* A worker's question about the cluster is one about the model of its handle. */
static bool
may_ask(struct host *host, const struct net_server_item *item,
	const Tensorhub__V1__Request *request, const struct host_session *session)
{
	const char *model = NULL, *what = NULL;
	if (operators_asks(&item->peer))
		return true;
	if (request->body_case == TENSORHUB__V1__REQUEST__BODY_LIST)
		model = request->list->model;
	else if (request->body_case == TENSORHUB__V1__REQUEST__BODY_RESOLVE)
		model = request->resolve->model;
	bool admin = request->body_case == TENSORHUB__V1__REQUEST__BODY_ADMIN;
	bool go = admin && request->admin->verb == CTL_ADMIN_GO;
	if (go)
		model = request->admin->model;
	if (go && why_no_go(session))
		what = why_no_go(session);
	else if (admin && !go)
		what = "only operators drain, evict and read the events";
	else if (request->body_case == TENSORHUB__V1__REQUEST__BODY_INSPECT)
		what = "only operators see all of the cluster";
	else if (!session)
		what = "who has no handle open is told nothing here";
	else if (model && strcmp(model, session->open.model) != 0)
		what = "a worker asks about the model of its handle alone";
	if (what)
		deny(host, item, request->request_no, what);
	return !what;
}

static void
doc_channel_change(struct host *host, uint64_t token, const Tensorhub__V1__Request *request,
	struct host_session *session)
{
	struct th_err err = {0};
	if (!session)
		th_fail(&err, TH_E_DENIED, "this document needs a session and its secret");
	else if (session_observes(session))
		th_fail(&err, TH_E_STATE, AGENT_OBSERVER_REFUSED, "tensors and attributes");
	else if (session->state != HOST_SESSION_OPEN)
		th_fail(&err, TH_E_STATE, "the handle is being closed");
	if (err.code != 0)
		documents_refuse(host, token, request->request_no, err.code, err.text);
	else
		registration_document(session, token, request);
}

static void
doc_channel_dispatch(struct host *host, const struct net_server_item *item,
	const Tensorhub__V1__Request *request)
{
	struct host_session *session;
	if (!authenticate(host, item->token, request, &session))
		return;
	switch ((int)request->body_case) {
	case TENSORHUB__V1__REQUEST__BODY_REGISTER_TENSORS:
	case TENSORHUB__V1__REQUEST__BODY_UNREGISTER_TENSORS:
	case TENSORHUB__V1__REQUEST__BODY_SET_ATTRIBUTES:
		doc_channel_change(host, item->token, request, session);
		return;
	case TENSORHUB__V1__REQUEST__BODY_LIST:
	case TENSORHUB__V1__REQUEST__BODY_RESOLVE:
	case TENSORHUB__V1__REQUEST__BODY_MANIFEST_GET:
	case TENSORHUB__V1__REQUEST__BODY_INSPECT:
	case TENSORHUB__V1__REQUEST__BODY_ADMIN:
	case TENSORHUB__V1__REQUEST__BODY_WAITS:
		if (may_ask(host, item, request, session))
			forward(host, item, request, session);
		return;
	case TENSORHUB__V1__REQUEST__BODY_STATUS:
		status_reply(host, item->token, request->request_no,
			operators_asks(&item->peer) ? NULL : &item->peer);
		return;
	default:
		documents_refuse(host, item->token, request->request_no, TH_E_INVALID,
			"an agent does not answer this kind of request; it may be newer than this "
			"agent, or meant for the reference server");
	}
}

static void
doc_channel_on_request(struct host *host, const struct net_server_item *item)
{
	host->counters.documents++;
	Tensorhub__V1__Request *request = unpack_request(item->data, item->bytes);
	if (request) {
		doc_channel_dispatch(host, item, request);
		unpack_request_free(request);
		return;
	}
	struct th_err err;
	uint8_t *data;
	size_t bytes;
	host->counters.documents_refused++;
	log_warn("document", "refused bytes=%zu pid=%d uid=%u reason=\"no request\"", item->bytes,
		(int)item->peer.pid, (unsigned)item->peer.uid);
	th_fail(&err, TH_E_INVALID, "these bytes are no request");
	if (ctl_refusal_pack(item->data, item->bytes, &err, &data, &bytes) == 0) {
		documents_send(host, item->token, data, bytes);
		free(data);
	}
}

static void
on_gone(struct host *host, uint64_t token)
{
	struct forward *forward;
	DL_FOREACH(host->forwards, forward)
	{
		if (forward->token == token)
			forward->token = 0;
	}
	listings_forget_token(host->listings, token);
	for (struct host_session *session = host->sessions; session; session = session->hh.next)
		registration_forget_token(session, token);
}

void
documents_ready(void *arg, uint32_t events)
{
	struct host *host = arg;
	struct net_server_item item;
	(void)events;
	for (int i = 0; i < ITEMS_A_WAKEUP && net_server_next(host->documents, &item); i++) {
		if (item.kind == NET_REQUEST)
			doc_channel_on_request(host, &item);
		else if (item.kind == NET_GONE)
			on_gone(host, item.token);
	}
}

char *
documents_text(const char *constant)
{
	union {
		const char *constant;
		char *plain;
	} pointer = {.constant = constant};
	return pointer.plain;
}

void
documents_close(struct host *host)
{
	struct forward *forward, *next;
	DL_FOREACH_SAFE(host->forwards, forward, next)
	{
		DL_DELETE(host->forwards, forward);
		free(forward);
	}
	loop_remove(&host->loop, &host->documents_source);
	net_server_free(host->documents);
	host->documents = NULL;
}
