/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_channel - see ring_channel.h. Main thread only.
 */
#include "daemon/host/worker/ring_channel.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/host/host.h"
#include "ipc/base/clock.h"
#include "ipc/base/failpoint.h"
#include "ipc/base/log.h"
#include "ipc/shm/doorbell.h"

#define SUBMISSIONS_A_WAKEUP 64 /* of all rings */
#define SUBMISSIONS_A_TURN 8    /* of one ring */

/* ---- the queue ------------------------------------------------------------------------------ */

void
operations_enqueue(struct host_session *session)
{
	struct host *host = session->host;
	if (session->busy)
		return;
	session->busy = true;
	session->next_busy = NULL;
	if (host->last_busy)
		host->last_busy->next_busy = session;
	else
		host->first_busy = session;
	host->last_busy = session;
}

void
operations_unqueue(struct host_session *session)
{
	struct host *host = session->host;
	if (!session->busy)
		return;
	session->busy = false;
	struct host_session *last = NULL;
	for (struct host_session **link = &host->first_busy; *link;) {
		if (*link == session) {
			*link = session->next_busy;
		} else {
			last = *link;
			link = &last->next_busy;
		}
	}
	host->last_busy = last;
}

void
operations_rung(void *arg, uint32_t events)
{
	struct host_session *session = arg;
	(void)events;
	if (doorbell_drain(session->bell_in) < 0)
		session_lose(session, true, "its doorbell cannot be read");
	else
		operations_enqueue(session);
}

/* ---- completions ---------------------------------------------------------------------------- */

static void
wake(struct host_session *session)
{
	if (session->bell_out < 0)
		return;
	int rc = doorbell_timer_ring(session->bell_out, &session->segment.w->sleeping);
	if (rc < 0)
		session_lose(session, true, "its doorbell cannot be written");
}

void
operations_complete(struct host_session *session, const struct agent_action *action)
{
	uint32_t slot = action->u.complete.slot;
	if (session->state >= HOST_SESSION_LOST || slot >= SHM_CAPACITY ||
		!session->slots[slot].busy)
		return;
	const struct agent_result *result = &action->u.complete.result;
	struct shm_slot content = {
		.state = SHM_SLOT_DONE,
		.op_seq = session->slots[slot].op_seq,
		.code = action->u.complete.code,
		.updated = result->updated,
		.lineage = result->version.lineage,
		.version = result->version.version,
		.bytes_moved = result->bytes_moved,
		.bytes_reused = result->bytes_reused,
		.wait_ns = result->wait_ns,
		.transfer_ns = result->transfer_ns,
		.verify_ns = result->verify_ns,
		.bytes_prefetched = result->bytes_prefetched,
		.group_op_seq = action->u.complete.op_seq,
	};
	snprintf(content.transport, sizeof(content.transport), "%s", result->transport);
	snprintf(content.source, sizeof(content.source), "%s", result->source);
	snprintf(content.sentence, sizeof(content.sentence), "%s",
		content.code == 0 ? result->reason : action->u.complete.text);
	ring_slot_write(&session->ring, slot, &content);
	session->slots[slot].busy = false;
	session_update_claim(session);
	TH_FP(agent_completes);

	struct shm_completion completion = {
		.op_seq = content.op_seq, .slot = (uint16_t)slot, .code = content.code};
	session->host->counters.completions++;
	if (ring_complete(&session->ring, &completion) < 0) {
		session_lose(session, true, "it submits without collecting completions");
		return;
	}
	wake(session);
}

/* An end that the shell finds itself, before the core hears of the submission. */
static void
complete_failed(struct host_session *session, uint32_t slot, const struct th_err *err)
{
	struct agent_action action = {.kind = AGENT_COMPLETE, .session = session->id};
	action.u.complete.slot = slot;
	action.u.complete.code = err->code;
	action.u.complete.result.version.version = TH_NO_VERSION;
	snprintf(action.u.complete.text, sizeof(action.u.complete.text), "%s", err->text);
	session->host->counters.submissions_refused++;
	operations_complete(session, &action);
}

void
operations_progress(struct host_session *session, uint64_t done_bytes, uint64_t total_bytes)
{
	if (session->state >= HOST_SESSION_LOST || session->offload)
		return;
	for (uint32_t i = 0; i < SHM_CAPACITY; i++) {
		uint32_t kind = session->slots[i].kind;
		if (session->slots[i].busy && (kind == SHM_REPLICATE || kind == SHM_UPDATE))
			ring_slot_progress(&session->ring, i, done_bytes, total_bytes);
	}
}

/* ---- submissions ---------------------------------------------------------------------------- */

/* It may have the registered tensors overwritten: by itself, or as long as the handle follows. */
static bool
writes(const struct shm_submission *submission)
{
	return submission->kind == SHM_REPLICATE || submission->kind == SHM_UPDATE ||
	       (submission->kind == SHM_FOLLOW && submission->version_spec[0] != '\0');
}

/*
 * Bytes that peers read from one session must not be overwritten through another. The core knows
 * no memory, so this is asked before it hears of the operation.
 */
static int
claim_fits(const struct host_session *session, const struct shm_submission *submission,
	struct th_err *err)
{
	enum claim_mode mode = submission->kind == SHM_PUBLISH ? CLAIM_READ
			       : writes(submission)            ? CLAIM_WRITE
							       : CLAIM_NONE;
	uint32_t own, other;
	const struct claim *conflict =
		claim_conflict(&session->host->claims, &session->claim, mode, &own, &other);
	if (!conflict)
		return 0;
	const struct host_session *holder = conflict->owner;
	const struct tensors *mine = session->registration.tensors;
	const struct tensors *theirs = holder->registration.tensors;
	char label[SESSION_LABEL_BYTES];
	return th_fail(err, TH_E_INVALID,
		"tensor '%.100s' lies on bytes of tensor '%.100s' of shard %.200s, which %s",
		mine->manifest.rows[mine->intervals[own].row].name,
		theirs->manifest.rows[theirs->intervals[other].row].name,
		session_label(holder, label),
		holder->follows
			? "follows, so that they may be replaced at any moment; end that first, or "
			  "use other memory"
		: conflict->mode == CLAIM_WRITE ? "are being replaced; wait until that has ended"
						: "are published or held there; unpublish there "
						  "first, or use other memory");
}

/* What can only be read can be published, and nothing can be written to it. */
static int
ring_channel_writable(const struct tensors *tensors, struct th_err *err)
{
	if (!tensors->read_only)
		return 0;
	return th_fail(err, TH_E_MEMORY_KIND,
		"tensor '%.200s' can not be a destination: %s; register memory that can be written",
		tensors->manifest.rows[tensors->read_only_row].name, tensors->read_only);
}

/*
 * What is reached through its process or its descriptor is looked at by libthc before each of its
 * calls, for other memory may lie there by then; and who follows calls nothing.
 */
static int
stays_the_same(struct host_session *session, struct th_err *err)
{
	const struct tensors *tensors = session->registration.tensors;
	for (uint32_t i = 0; i < tensors->manifest.num_rows; i++) {
		const struct memory *memory =
			memory_object(&session->memory, tensors->memory_ids[i]);
		if (memory && memory->access && !memory->space)
			return th_fail(err, TH_E_MEMORY_KIND,
				"follow: tensor '%.200s' lies in memory that the agent does not "
				"map, and that may be other memory when the next version comes; "
				"register memory of thc_alloc, or call update",
				tensors->manifest.rows[i].name);
	}
	return 0;
}

int
operations_has_pages(const struct tensors *tensors, bool destination, struct th_err *err)
{
	uint64_t missing;
	const struct holes_file *file =
		holes_find(tensors->files, tensors->num_files, destination, &missing);
	if (!file)
		return 0;
	return th_fail(err, TH_E_STALE_MEMORY,
		"the memory of tensor '%.200s', and of others in the same file, has no pages for "
		"%" PRIu64
		" bytes, which the agent would have to pay for; write to it, or unregister and "
		"register: that makes them",
		tensors->manifest.rows[file->row].name, missing);
}

/* What the shell finds itself, before the core hears of it. */
static int
ring_channel_check(
	struct host_session *session, const struct shm_submission *submission, struct th_err *err)
{
	const struct tensors *tensors = session->registration.tensors;
	bool destination = writes(submission);
	int rc = 0;
	if (tensors && destination)
		rc = ring_channel_writable(tensors, err);
	if (rc == 0 && tensors && submission->kind == SHM_FOLLOW && destination)
		rc = stays_the_same(session, err);
	if (rc == 0 && tensors && (destination || submission->kind == SHM_PUBLISH))
		rc = operations_has_pages(tensors, destination, err);
	return rc == 0 ? claim_fits(session, submission, err) : rc;
}

/* As the core knows it: the numbers of the two are the same for the first five alone. */
static uint32_t
ring_channel_kind(const struct shm_submission *submission)
{
	return submission->kind == SHM_WATCH    ? AGENT_SUBMIT_WATCH
	       : submission->kind == SHM_FOLLOW ? CTL_OP_FOLLOW
						: submission->kind;
}

static void
ring_channel_submit(struct host_session *session, const struct shm_submission *submission)
{
	struct host *host = session->host;
	uint32_t slot = submission->slot;
	if (submission->kind == SHM_CANCEL) {
		/* A late one finds the slot empty or in use by another operation. */
		if (!session->slots[slot].busy || session->slots[slot].op_seq != submission->op_seq)
			return;
		struct agent_event event = {
			.kind = AGENT_EV_CANCEL, .session = session->id, .u.cancel_slot = slot};
		engine_post(host, &event);
		return;
	}
	if (session->slots[slot].busy) {
		session_lose(session, true, "a submission to a slot that is in use");
		return;
	}
	host->counters.submissions++;
	TH_FP(agent_submitted);
	session->slots[slot] = (struct session_slot){.busy = true,
		.kind = submission->kind,
		.writes = writes(submission),
		.op_seq = submission->op_seq};
	struct shm_slot running = {.state = SHM_SLOT_RUNNING, .op_seq = submission->op_seq};
	/* In this order: who reads the number of this operation finds no progress of the last. */
	ring_slot_progress(&session->ring, slot, 0, 0);
	ring_slot_write(&session->ring, slot, &running);
	struct th_err err;
	if (ring_channel_check(session, submission, &err) < 0) {
		complete_failed(session, slot, &err);
		return;
	}
	session_update_claim(session);
	struct agent_event event = {.kind = AGENT_EV_SUBMIT, .session = session->id};
	event.u.submit = (struct agent_submission){
		.slot = slot,
		.kind = ring_channel_kind(submission),
		.flags = submission->flags,
		.timeout_ns = submission->deadline_ns,
	};
	_Static_assert(sizeof(submission->version_spec) == sizeof(event.u.submit.spec),
		"a spec of the ring fits");
	memcpy(event.u.submit.spec, submission->version_spec, sizeof(event.u.submit.spec));
	engine_post(host, &event);
}

/* Up to count submissions; how many were taken. Fewer than count: the ring is empty and armed. */
static uint32_t
ring_channel_take(struct host_session *session, uint32_t count)
{
	uint32_t taken = 0;
	bool armed = false;
	/* Awake: the worker need not ring for what is looked at anyway. */
	doorbell_disarm(&session->segment.a->sleeping);
	while (taken < count && session->state < HOST_SESSION_LOST) {
		struct shm_submission submission;
		int rc = ring_take(&session->ring, &submission);
		if (rc < 0) {
			session_lose(session, true, "an impossible index or record in its ring");
			return taken;
		}
		if (rc > 0) {
			taken++;
			ring_channel_submit(session, &submission);
		} else if (armed) {
			return taken;
		} else {
			/* Said first, looked at again after: doorbell.h. */
			doorbell_arm(&session->segment.a->sleeping);
			armed = true;
		}
	}
	return taken;
}

bool
operations_run(struct host *host)
{
	uint32_t left = SUBMISSIONS_A_WAKEUP;
	while (host->first_busy && left > 0) {
		struct host_session *session = host->first_busy;
		operations_unqueue(session);
		uint32_t count = left < SUBMISSIONS_A_TURN ? left : SUBMISSIONS_A_TURN;
		uint32_t taken = ring_channel_take(session, count);
		left -= taken > 0 ? taken : 1;
		if (taken == count && session->state < HOST_SESSION_LOST)
			operations_enqueue(session);
	}
	return host->first_busy != NULL;
}

/* ---- the line ------------------------------------------------------------------------------- */

void
operations_start_line(struct host_session *session)
{
	session->line.heartbeat_ns = (uint64_t)th_now_ns();
	ring_line_write(&session->ring, &session->line);
}

void
operations_line(struct host_session *session, const struct agent_line *line)
{
	if (session->state >= HOST_SESSION_LOST)
		return;
	bool news = session->line.events[SHM_EV_BROKEN] != line->broken ||
		    session->line.events[SHM_EV_CONTRACT] != line->contract ||
		    session->line.events[SHM_EV_CONFLICT] != line->conflict ||
		    session->line.events[SHM_EV_EVICTED] != line->evicted ||
		    session->line.events[SHM_EV_AT_RISK] != line->at_risk ||
		    session->line.events[SHM_EV_READY] != line->ready_told ||
		    session->line.events[SHM_EV_UPDATED] != line->updated ||
		    session->line.events[SHM_EV_FOLLOW_FAILED] != line->follow_failed;
	session->line.safe_to_mutate = line->safe_to_mutate;
	session->line.held_lineage = line->held.lineage;
	session->line.held_version = line->held.version;
	session->line.ready_lineage = line->ready.lineage;
	session->line.ready_version = line->ready.version;
	session->line.generation = line->generation;
	session->line.events[SHM_EV_BROKEN] = line->broken;
	session->line.events[SHM_EV_CONTRACT] = line->contract;
	session->line.events[SHM_EV_CONFLICT] = line->conflict;
	session->line.events[SHM_EV_EVICTED] = line->evicted;
	session->line.events[SHM_EV_AT_RISK] = line->at_risk;
	session->line.events[SHM_EV_READY] = line->ready_told;
	session->line.events[SHM_EV_UPDATED] = line->updated;
	session->line.events[SHM_EV_FOLLOW_FAILED] = line->follow_failed;
	session->follows = line->follows;
	session_update_claim(session);
	if (!session->segment.a)
		return; /* written with the first line */
	ring_line_write(&session->ring, &session->line);
	/* Whatever its flag says: thc_fd promises to become readable for an event. */
	if (news && doorbell_timer_signal(session->bell_out) < 0)
		session_lose(session, true, "its doorbell cannot be written");
}

void
operations_heartbeat(struct host *host, int64_t now_ns)
{
	for (struct host_session *session = host->sessions; session; session = session->hh.next) {
		if (session->offload || (session->state != HOST_SESSION_OPEN &&
						session->state != HOST_SESSION_CLOSING))
			continue;
		session->line.heartbeat_ns = (uint64_t)now_ns;
		ring_line_write(&session->ring, &session->line);
	}
}
