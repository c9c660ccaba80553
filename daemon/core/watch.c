/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch - "tell me when the listing of my model is newer than the one I know": many may ask.
 *
 * The server is asked once per model and attachment; it then says every change. A worker may know
 * of a change before this core does, because its listing came faster than the news: it waits for
 * the next. A restarted server goes on from above (refsrv.h).
 */
#include <inttypes.h>
#include <string.h>

#include "daemon/core/agent_state.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"

struct model *
ac_model_find(const struct agent_core *agent, const char *name)
{
	struct model *model = NULL;

	HASH_FIND_STR(agent->models, name, model);
	return model;
}

struct model *
ac_model_acquire(struct agent_core *agent, const char *name)
{
	struct model *model = ac_model_find(agent, name);

	if (model == NULL) {
		model = th_calloc(1, sizeof(*model));
		ac_copy(model->name, sizeof(model->name), name, TH_NAME_MAX);
		model->go.version = TH_NO_VERSION;
		HASH_ADD_STR(agent->models, name, model);
	}
	model->num_sessions++;
	return model;
}

void
ac_model_release(struct agent_core *agent, struct model *model)
{
	if (--model->num_sessions > 0)
		return;
	/* A server keeps only so many watches of one agent. */
	if (model->known || model->asked) {
		struct ctl_watch *watch = &ac_lane_add(agent, agent->misc, CTL_WATCH)->u.watch;
		AC_COPY(watch->model, model->name);
		watch->stop = true;
	}
	HASH_DELETE(hh, agent->models, model);
	free(model);
}

static void
watch_ask(struct agent_core *agent, struct model *model)
{
	if (model->known || model->asked)
		return;
	model->asked = true;
	model->early = 0;
	AC_COPY(ac_lane_add(agent, agent->misc, CTL_WATCH)->u.watch.model, model->name);
}

static void
watch_complete(struct agent_core *agent, struct session *session, struct watch *watch, int code,
	const char *text)
{
	struct agent_action *action = ac_action(agent, AGENT_COMPLETE, session->id);

	action->u.complete.slot = watch->slot;
	action->u.complete.code = code;
	ac_copy(action->u.complete.text, sizeof(action->u.complete.text), text, TH_CTL_TEXT_BYTES);
	action->u.complete.result.version = session->held;
	action->u.complete.generation = session->model->generation;
	DL_DELETE(session->watches, watch);
	free(watch);
}

static void
watch_check(struct agent_core *agent, struct session *session)
{
	struct watch *watch, *next;

	if (!session->model->known)
		return;
	DL_FOREACH_SAFE(session->watches, watch, next)
	{
		if (session->model->generation > watch->generation || TH_PLANT(wait_ends_at_once)) {
			ac_session_line(agent, session);
			watch_complete(agent, session, watch, 0, "");
		}
	}
}

void
ac_watch(struct agent_core *agent, struct session *session, const struct agent_submission *submit)
{
	struct watch *watch = th_calloc(1, sizeof(*watch));
	struct th_spec spec = {.relative = true};

	watch->slot = submit->slot;
	watch->deadline_ns = th_deadline_ns(agent->now_ns, submit->timeout_ns);
	DL_APPEND(session->watches, watch);
	if (ac_broken(session)) {
		watch_complete(agent, session, watch, session->broken_code, session->broken_text);
		return;
	}
	if (session->dirty) {
		watch_complete(agent, session, watch, TH_E_DIRTY,
			"watch: the tensors were partly overwritten by an operation that failed; "
			"only replicate and close are allowed");
		return;
	}
	if (memchr(submit->spec, '\0', sizeof(submit->spec)) == NULL ||
		th_spec_parse(submit->spec, &spec) != 0 || spec.relative) {
		watch_complete(agent, session, watch, TH_E_INVALID,
			"watch: the generation is not a decimal number");
		return;
	}
	watch->generation = spec.number;
	watch_ask(agent, session->model);
	watch_check(agent, session);
}

bool
ac_watch_cancel(struct agent_core *agent, struct session *session, uint32_t slot)
{
	struct watch *watch;

	DL_FOREACH(session->watches, watch)
	{
		if (watch->slot == slot) {
			watch_complete(agent, session, watch, TH_E_CANCELLED, "cancelled");
			return true;
		}
	}
	return false;
}

void
ac_watches_end(struct agent_core *agent, struct session *session, int code, const char *text)
{
	while (session->watches != NULL)
		watch_complete(agent, session, session->watches, code, text);
}

void
ac_watch_tick(struct agent_core *agent, struct session *session)
{
	struct watch *watch, *next;

	DL_FOREACH_SAFE(session->watches, watch, next)
	{
		if (agent->now_ns < watch->deadline_ns)
			continue;
		watch_complete(agent, session, watch, TH_E_TIMEOUT,
			"the listing did not change before the deadline");
	}
}

void
ac_watch_no_server(struct agent_core *agent)
{
	struct session *session, *next;

	HASH_ITER(hh, agent->sessions, session, next)
	{
		ac_watches_end(agent, session, TH_E_NO_SERVER,
			"wait: the reference server does not answer; see 'thctl status'");
	}
}

/* ---- the server ------------------------------------------------------------------------------ */

static void
watch_changed(struct agent_core *agent, struct model *model, uint64_t generation)
{
	struct session *session, *next;

	model->known = true;
	model->generation = generation;
	HASH_ITER(hh, agent->sessions, session, next)
	{
		if (session->model == model)
			watch_check(agent, session);
	}
}

/* The watch was ended, or ended and begun anew, since this was asked. */
static bool
overruled(const struct agent_core *agent, const char *model)
{
	const struct request *request;
	uint32_t count = 0;

	DL_FOREACH(agent->misc->queue, request)
	{
		count += request->ctl.kind == CTL_WATCH &&
			 strcmp(request->ctl.u.watch.model, model) == 0;
	}
	return count > 1 && !TH_PLANT(last_word_of_an_old_watch_believed);
}

void
ac_watch_reply(
	struct agent_core *agent, const struct ctl_request *request, const struct ctl_reply *reply)
{
	struct model *model = ac_model_find(agent, request->u.watch.model);
	struct session *session, *next;
	char text[TH_CTL_TEXT_BYTES];

	if (model == NULL || request->u.watch.stop || overruled(agent, model->name))
		return;
	model->asked = false;
	if (reply->code == 0) {
		/* A CHANGED may have come first and be newer. */
		watch_changed(agent, model, th_max_u64(reply->u.watch.generation, model->early));
		return;
	}
	AC_COPY(text, reply->text);
	HASH_ITER(hh, agent->sessions, session, next)
	{
		if (session->model == model)
			ac_watches_end(agent, session, ac_code(reply->code), text);
	}
}

void
ac_watch_changed(struct agent_core *agent, const struct ctl_ev_changed *event)
{
	struct model *model;
	char name[TH_NAME_MAX + 1];

	AC_COPY(name, event->model);
	model = ac_model_find(agent, name);
	if (model == NULL)
		return;
	/*
	 * Of a watch that was ended, or of one whose answer is still to come: that one goes on
	 * from there, but nothing says yet that more will be heard.
	 */
	if (!model->known && !TH_PLANT(last_word_of_an_old_watch_believed))
		model->early = event->generation;
	else
		watch_changed(agent, model, event->generation);
}

void
ac_watch_renew(struct agent_core *agent)
{
	struct session *session;
	struct model *model;

	for (model = agent->models; model != NULL; model = model->hh.next)
		model->known = model->asked = false;
	for (session = agent->sessions; session != NULL; session = session->hh.next) {
		if (session->watches != NULL)
			watch_ask(agent, session->model);
	}
}
