/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine - see engine.h. Main thread only.
 */
#include "daemon/host/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/agent_core.h"
#include "daemon/host/host.h"
#include "daemon/host/memory/host_pool.h"
#include "daemon/host/memory/reserve.h"
#include "daemon/host/orderly_end.h"
#include "daemon/host/server/source_attributes.h"
#include "daemon/host/worker/fd_channel.h"
#include "daemon/host/worker/loans.h"
#include "daemon/host/worker/ring_channel.h"
#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "ipc/base/failpoint.h"
#include "ipc/base/log.h"
#include "ipc/proto/manifest.h"

struct engine_entry {
	struct engine_entry *next;
	struct agent_event event;
	struct ctl_reply *reply;    /* owns; where event.u.reply.reply points */
	struct convert_arena arena; /* owns */
};

static struct engine_entry *
engine_append(struct engine *engine, const struct agent_event *event)
{
	struct engine_entry *entry = th_calloc(1, sizeof(*entry));
	entry->event = *event;
	if (engine->last)
		engine->last->next = entry;
	else
		engine->first = entry;
	engine->last = entry;
	return entry;
}

static void
entry_free(struct engine_entry *entry)
{
	convert_arena_free(&entry->arena);
	free(entry->reply);
	free(entry);
}

void
engine_post(struct host *host, const struct agent_event *event)
{
	engine_append(&host->engine, event);
}

void
engine_post_reply(
	struct host *host, uint64_t tag, const struct ctl_reply *reply, struct convert_arena *arena)
{
	struct agent_event event = {.kind = AGENT_EV_REPLY, .u.reply.tag = tag};
	struct engine_entry *entry = engine_append(&host->engine, &event);
	entry->reply = th_memdup(reply, sizeof(*reply));
	entry->event.u.reply.reply = entry->reply;
	entry->arena = *arena;
	*arena = (struct convert_arena){0};
}

struct host;

/* ---- EXPLAIN: which tensor does not fit ------------------------------------------------------ */

struct explanation {
	struct host *host;
	uint64_t session, op_seq;
};

static void
explained(struct host *host, uint64_t session, uint64_t op_seq, const char *text)
{
	struct agent_event event = {.kind = AGENT_EV_EXPLAINED, .session = session};
	event.u.explained.op_seq = op_seq;
	snprintf(event.u.explained.text, sizeof(event.u.explained.text), "%s", text);
	engine_post(host, &event);
}

static void
execute_manifest_got(void *arg, const struct th_err *result, const uint8_t *data, size_t bytes)
{
	struct explanation *explanation = arg;
	const struct host_session *session = session_find(explanation->host, explanation->session);
	const struct tensors *own = session ? session->registration.tensors : NULL;
	struct th_err err = *result;
	struct manifest source = {0};
	int rc = err.code;
	if (rc == 0)
		rc = manifest_decode(data, bytes, &err, &source);
	if (rc == 0 && own)
		rc = manifest_compare(&source, &own->manifest, &err);
	char text[TH_CTL_TEXT_BYTES];
	if (rc == TH_E_LAYOUT && own)
		snprintf(text, sizeof(text), "%s", err.text);
	else
		snprintf(text, sizeof(text),
			"the tensors of source and destination differ (which one is not known: "
			"%.300s)",
			rc != 0 ? err.text : "the registration is gone");
	manifest_free(&source);
	explained(explanation->host, explanation->session, explanation->op_seq, text);
	free(explanation);
}

static void
execute_explain(struct host *host, const struct agent_action *action)
{
	struct explanation *explanation = th_calloc(1, sizeof(*explanation));
	*explanation = (struct explanation){
		.host = host, .session = action->session, .op_seq = action->u.explain.op_seq};
	blob_get(host, action->u.explain.manifest, execute_manifest_got, explanation);
}

/* ---- the server ------------------------------------------------------------------------------ */

static void
execute_server_state(struct host *host, const struct agent_action *action)
{
	bool another = action->u.server.attached && action->u.server.server_inc != host->put_inc;
	if (host->attached && !action->u.server.attached)
		host->away_ns = th_now_ns();
	host->attached = action->u.server.attached;
	host->server_inc = action->u.server.server_inc;
	host->server_epoch = action->u.server.epoch;
	memcpy(host->server_text, action->u.server.text, sizeof(host->server_text));
	if (host->attached)
		link_attached(host);
	else
		link_detached(host, host->server_text, action->u.server.refused);
	listings_server(host->listings, host->attached, host->server_inc, host->server_text);
	if (another) {
		host->put_inc = host->server_inc;
		registration_put_again(host);
	}
	blob_puts_resume(host, th_now_ns());
}

static void
node_state(struct host *host, const struct agent_action *action)
{
	host->draining = action->u.node.draining;
	log_info("server", "%s by=\"%s\"",
		host->draining ? "this node is being drained" : "this node is not drained any more",
		action->u.node.text);
}

/* ---- the answers to sessions ----------------------------------------------------------------- */

static void
session_action(struct host *host, struct host_session *session, const struct agent_action *action)
{
	struct th_err result = {.code = action->u.answer.code};
	switch ((int)action->kind) {
	case AGENT_OPENED:
		worker_opened(session, action->u.answer.code, action->u.answer.text);
		break;
	case AGENT_REGISTERED:
		snprintf(result.text, sizeof(result.text), "%s", action->u.answer.text);
		registration_registered(session, &result);
		break;
	case AGENT_UNREGISTERED:
		snprintf(result.text, sizeof(result.text), "%s", action->u.answer.text);
		registration_unregistered(session, &result);
		break;
	case AGENT_CLOSED:
		worker_closed(session, action->u.answer.code, action->u.answer.text);
		break;
	case AGENT_FREE:
		TH_FP(agent_frees);
		session_gone(session);
		break;
	case AGENT_GIVEN_UP:
		offload_give_up(session->offload);
		break;
	case AGENT_COMPLETE:
		operations_complete(session, action);
		break;
	case AGENT_LINE:
		operations_line(session, &action->u.line);
		break;
	default:
		break;
	}
	(void)host;
}

static void
execute(struct host *host, const struct agent_action *action)
{
	switch (action->kind) {
	case AGENT_SEND:
		link_send(host, action);
		break;
	case AGENT_OPENED:
	case AGENT_REGISTERED:
	case AGENT_UNREGISTERED:
	case AGENT_COMPLETE:
	case AGENT_LINE:
	case AGENT_CLOSED:
	case AGENT_GIVEN_UP:
	case AGENT_FREE: {
		struct host_session *session = session_find(host, action->session);
		if (session)
			session_action(host, session, action);
		break;
	}
	case AGENT_PART_NEW:
		legs_part_new(host, action);
		break;
	case AGENT_PART_END:
		legs_part_end(host, action);
		break;
	case AGENT_HASH_STOP:
		legs_hash_stop(host, action);
		break;
	case AGENT_HASH:
		legs_hash(host, action);
		break;
	case AGENT_PULL:
		legs_pull(host, action);
		break;
	case AGENT_COPY:
		legs_copy(host, action);
		break;
	case AGENT_DONOR_DROP:
		legs_donor_drop(host, action);
		break;
	case AGENT_STOP:
		legs_stop(host, action);
		break;
	case AGENT_EXPECT:
		legs_expect(host, action);
		break;
	case AGENT_REFUSE:
		transport_refuse(host->transport, &action->u.refuse.ticket, action->u.refuse.code,
			action->u.refuse.text);
		break;
	case AGENT_FENCE:
		legs_fence(host, action);
		break;
	case AGENT_EXPLAIN:
		execute_explain(host, action);
		break;
	case AGENT_ATTRIBUTES: {
		struct host_session *session = session_find(host, action->session);
		if (session)
			attributes_keep(session, action->u.attributes);
		break;
	}
	case AGENT_RESERVE:
		reserve_begin(host, action);
		break;
	case AGENT_UNRESERVE:
		reserve_cancel(host, action);
		break;
	case AGENT_LEND:
		loans_lend(host, action);
		break;
	case AGENT_LOAN_REFUSED:
		loans_refused(host, action);
		break;
	case AGENT_SERVER_STATE:
		execute_server_state(host, action);
		break;
	case AGENT_NODE:
		node_state(host, action);
		break;
	case AGENT_STAYS:
		stop_stays(action);
		break;
	case AGENT_LEFT:
		stop_left(host, action);
		break;
	}
}

static void
engine_step(struct host *host, const struct agent_event *event)
{
	struct agent_actions actions;

	agent_core_step(host->engine.core, th_now_ns(), event, &actions);
	host->engine.next_ns = actions.next_ns;
	for (uint32_t i = 0; i < actions.count; i++)
		execute(host, &actions.actions[i]);
}

void
engine_run(struct host *host)
{
	static const struct agent_event tick = {.kind = AGENT_EV_TICK};
	struct engine *engine = &host->engine;

	if (th_now_ns() >= engine->next_ns)
		engine_step(host, &tick);
	while (engine->first) {
		struct engine_entry *entry = engine->first;
		engine->first = entry->next;
		if (!engine->first)
			engine->last = NULL;
		engine_step(host, &entry->event);
		entry_free(entry);
	}
}

void
engine_free(struct host *host)
{
	struct engine *engine = &host->engine;
	while (engine->first) {
		struct engine_entry *entry = engine->first;
		engine->first = entry->next;
		entry_free(entry);
	}
	engine->last = NULL;
	agent_core_free(engine->core);
	engine->core = NULL;
}
