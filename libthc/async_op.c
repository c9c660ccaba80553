/* SPDX-License-Identifier: Apache-2.0 */
/*
 * async_op - one operation from its submission to its end, and thc_op_*, thc_resolve.
 *
 * An operation leaves its slot when its completion has been taken. A blocking call owns its
 * operation and gives it up at the end; when the outcome is not known in time the operation
 * stays, as shard->unresolved, for thc_resolve. Locks: see libthc_own.h.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/clock.h"
#include "ipc/base/failpoint.h"
#include "ipc/base/name.h"
#include "ipc/base/state.h"
#include "ipc/proto/tensorhub.pb-c.h"
#include "ipc/shm/doorbell.h"
#include "libthc/libthc_own.h"
#include "libthc/list.h"

_Static_assert(sizeof(((struct thc_result *)0)->source) == sizeof(((struct shm_slot *)0)->source) &&
		       sizeof(((struct thc_result *)0)->transport) ==
			       sizeof(((struct shm_slot *)0)->transport) &&
		       sizeof(((struct thc_result *)0)->reason) <=
			       sizeof(((struct shm_slot *)0)->sentence),
	"texts of a result");

#define DONE_NS INT64_C(100000000) /* that thc_op_done may copy to GPU memory in a call */

/* Up to updated: what every result has. */
#define RESULT_BYTES_LEAST offsetof(struct thc_result, bytes_moved)

_Static_assert(SHM_PUBLISH == (int)CTL_OP_PUBLISH && SHM_LIST == (int)CTL_OP_LIST,
	"names of the first five");

/* As callers know them. */
static const char *
kind_name(uint16_t kind)
{
	if (kind == SHM_LIST)
		return "grouped list";
	if (kind == SHM_FOLLOW)
		return "follow";
	return kind == SHM_WATCH ? "wait" : kind == SHM_CANCEL ? "cancel" : ctl_op_name(kind);
}

static bool
kind_is_group(uint16_t kind)
{
	return kind <= SHM_LIST || kind == SHM_FOLLOW;
}

/* A group operation: its end may be unknown. A watch changes nothing. */
static bool
is_group(const struct thc_op *op)
{
	return kind_is_group(op->kind);
}

int
op_check_spec(const char *version, char ret_spec[32])
{
	struct th_spec spec;

	if (version == NULL)
		return shim_fail(THC_E_INVALID, "version: is NULL");
	if (th_spec_parse(version, &spec) < 0)
		return shim_fail(THC_E_INVALID,
			"version: '%.40s' is neither a decimal number nor latest nor latest-K (K "
			"from 1)",
			version);
	memset(ret_spec, 0, 32);
	memcpy(ret_spec, version, strlen(version));
	return 0;
}

int
op_check_result(const struct thc_result *result, const char *argument)
{
	char what[40];

	if (result == NULL)
		return 0;
	(void)snprintf(what, sizeof(what), "%s: struct_size", argument);
	return struct_size_check(what, result->struct_size, RESULT_BYTES_LEAST);
}

/* Where the fields end that a shorter header may lack, each with all before it. */
static const size_t result_ends[] = {offsetof(struct thc_result, bytes_moved),
	offsetof(struct thc_result, bytes_reused), offsetof(struct thc_result, wait_ns),
	offsetof(struct thc_result, transfer_ns), offsetof(struct thc_result, verify_ns),
	offsetof(struct thc_result, source), offsetof(struct thc_result, transport),
	offsetof(struct thc_result, bytes_prefetched), offsetof(struct thc_result, num_sources),
	offsetof(struct thc_result, derived), offsetof(struct thc_result, reason),
	sizeof(struct thc_result)};

static void
op_copy_result(const struct thc_result *from, struct thc_result *ret_result)
{
	if (ret_result == NULL)
		return;
	/* Whole fields that the caller's struct has; what it has more stays as it is. */
	size_t struct_size = ret_result->struct_size, bytes = 0;
	for (size_t i = 0; i < TH_ARRAY_LEN(result_ends); i++)
		if (result_ends[i] <= struct_size)
			bytes = result_ends[i];
	memcpy((uint8_t *)ret_result + sizeof(struct_size),
		(const uint8_t *)from + sizeof(struct_size), bytes - sizeof(struct_size));
}

/* ---- states -------------------------------------------------------------------------------- */

static const struct th_states holders = {"holder of an operation",
	{
		[OP_OF_CALLER] = {"caller", TH_STATE(OP_COLLECTED) | TH_STATE(OP_OF_NOBODY)},
		[OP_COLLECTED] = {"collected", TH_STATE(OP_OF_NOBODY)},
		[OP_OF_CALL] = {"call", TH_STATE(OP_OF_NOBODY)},
		[OP_OF_NOBODY] = {"nobody", 0},
	}};

void
op_holder_enter(struct thc_op *op, enum op_holder holder, const char *why)
{
	th_state_check(&holders, op->holder, holder, why);
	if (op->holder == OP_OF_CALLER && op->done)
		op->shard->num_uncollected--;
	op->holder = holder;
}

/* What is due need not be sent when the operation ends before there is room. */
static const struct th_states cancels = {"cancel",
	{
		[CANCEL_NOT_ASKED] = {"not asked", TH_STATE(CANCEL_DUE) | TH_STATE(CANCEL_SENT)},
		[CANCEL_DUE] = {"due", TH_STATE(CANCEL_NOT_ASKED) | TH_STATE(CANCEL_SENT)},
		[CANCEL_SENT] = {"sent", 0},
	}};

void
op_cancel_enter(struct thc_op *op, enum op_cancel cancel, const char *why)
{
	th_state_check(&cancels, op->cancel, cancel, why);
	if (op->cancel == CANCEL_DUE)
		op->shard->cancels_due--;
	if (cancel == CANCEL_DUE)
		op->shard->cancels_due++;
	op->cancel = cancel;
}

/* ---- submission ---------------------------------------------------------------------------- */

static int
push(struct thc_shard *shard, const struct shm_submission *submission)
{
	TH_FP(worker_submits);
	int rc = ring_push(&shard->ring, submission);

	if (rc == -EAGAIN)
		return shim_fail(THC_E_TIMEOUT,
			"the agent takes no submissions; nothing was changed. Is it stopped?");
	if (rc == 0)
		rc = doorbell_ring(shard->bell_agent, &shard->files.a->sleeping);
	if (rc < 0) {
		shard_lose(shard, "the agent broke the rules of the ring");
		return shard_lost_error(shard);
	}
	TH_FP(worker_submitted);
	return 0;
}

static int
free_slot(struct thc_shard *shard, uint32_t *ret_slot)
{
	shard_collect(shard);
	if (shard_lost(shard))
		return shard_lost_error(shard);
	/* It may have begun while this thread exchanged a document. */
	if (shard->life != SHARD_OPEN)
		return shim_fail(THC_E_CANCELLED, "another thread closes this handle");
	for (uint32_t slot = 0; slot < SHM_CAPACITY; slot++) {
		if (shard->ops[slot] == NULL) {
			*ret_slot = slot;
			return 0;
		}
	}
	return shim_fail(
		THC_E_LIMIT, "%u operations of this handle are open already", SHM_CAPACITY);
}

int
op_submit(struct thc_shard *shard, const struct op_request *request, struct thc_op **ret_op)
{
	uint32_t slot = 0;
	int rc = free_slot(shard, &slot);

	if (rc < 0)
		return rc;
	if (kind_is_group(request->kind) && (shard->running != NULL || shard->listing))
		return shim_fail(THC_E_STATE,
			"a %s of this handle runs; one operation of a handle runs at a time",
			kind_name(shard->running != NULL ? shard->running->kind : SHM_LIST));
	struct thc_op *op = calloc(1, sizeof(*op));
	if (op == NULL)
		return shim_fail(-ENOMEM, "out of memory for an operation");
	struct shm_submission submission = {.op_seq = shard->next_op_seq,
		.kind = request->kind,
		.slot = (uint16_t)slot,
		.flags = request->flags,
		.deadline_ns = deadline_left(request->deadline_ns)};
	memcpy(submission.version_spec, request->spec, sizeof(submission.version_spec));
	rc = push(shard, &submission);
	if (rc < 0) {
		free(op);
		return rc;
	}
	op->shard = shard;
	op->op_seq = shard->next_op_seq++;
	op->slot = slot;
	op->kind = request->kind;
	op->holder = request->internal ? OP_OF_CALL : OP_OF_CALLER;
	op->unknown_ns = deadline_with_grace(request->deadline_ns);
	op->result.version = THC_NO_VERSION;
	struct shm_line line;
	if (shard->shadow.count > 0 && ring_line_read(&shard->ring, &line) == 0) {
		shard->shadow.lineage_before = line.held_lineage;
		shard->shadow.version_before = line.held_version;
	}
	shard->refs++;
	shard->ops[slot] = op;
	if (is_group(op))
		shard->running = op;
	*ret_op = op;
	return 0;
}

static void
async_op_cancel(struct thc_op *op)
{
	struct thc_shard *shard = op->shard;

	if (op->done || op->cancel == CANCEL_SENT || shard_lost(shard))
		return;
	const struct shm_submission submission = {.op_seq = op->op_seq,
		.kind = SHM_CANCEL,
		.slot = (uint16_t)op->slot,
		.deadline_ns = -1};
	/* Where it fails for good the agent is lost, and an op of nobody is gone with it. */
	if (push(shard, &submission) == 0)
		op_cancel_enter(op, CANCEL_SENT, "there is room in the ring");
}

void
op_send_cancels(struct thc_shard *shard)
{
	for (uint32_t slot = 0; slot < SHM_CAPACITY && shard->cancels_due > 0; slot++) {
		struct thc_op *op = shard->ops[slot];
		if (op == NULL || op->cancel != CANCEL_DUE)
			continue;
		async_op_cancel(op);
		if (shard_lost(shard) || op->cancel == CANCEL_DUE)
			return;
	}
}

/* ---- the end ------------------------------------------------------------------------------- */

/* Under the lock; the caller is inside, so this is not the last reference to the handle. */
static void
async_op_destroy(struct thc_op *op)
{
	op->shard->refs--;
	free(op);
}

static void
mark_collected(struct thc_op *op)
{
	struct thc_shard *shard = op->shard;

	if (op->holder == OP_COLLECTED)
		return;
	if (op->holder == OP_OF_CALLER)
		op_holder_enter(op, OP_COLLECTED, "the caller has seen its end");
	if (shard->unresolved == op && !shard->resolving)
		shard->unresolved = NULL;
	if (shard->life != SHARD_CLOSED)
		shard_update_fd(shard);
}

void
op_finish(struct thc_op *op, int code, const char *text)
{
	struct thc_shard *shard = op->shard;

	shard->ops[op->slot] = NULL;
	if (shard->running == op)
		shard->running = NULL;
	if (op->cancel == CANCEL_DUE)
		op_cancel_enter(op, CANCEL_NOT_ASKED, "the operation has ended");
	op->done = true;
	ring_progress(&shard->ring, op->slot, op->op_seq, &op->done_bytes, &op->total_bytes);
	(void)th_fail(&op->outcome, code, "%s", text);
	if (code == 0)
		shadow_ended(op);
	if (op->holder == OP_OF_CALLER)
		shard->num_uncollected++;
	else if (op->holder == OP_OF_NOBODY && shard->unresolved != op)
		async_op_destroy(op);
}

void
op_detach(struct thc_op *op)
{
	async_op_cancel(op); /* which may lose the agent, and that ends it */
	if (op->done)
		mark_collected(op);
	else if (op->cancel == CANCEL_NOT_ASKED)
		op_cancel_enter(op, CANCEL_DUE, "the ring is full");
	op_holder_enter(op, OP_OF_NOBODY, "given up");
	if (op->done && op->shard->unresolved != op)
		async_op_destroy(op);
}

void
op_end_all(struct thc_shard *shard)
{
	for (uint32_t slot = 0; slot < SHM_CAPACITY; slot++)
		if (shard->ops[slot] != NULL)
			op_finish(shard->ops[slot], THC_E_CANCELLED, "the handle was closed");
	struct thc_op *op = shard->unresolved;
	if (shard->resolving)
		return; /* that thread gives it up when it leaves */
	shard->unresolved = NULL;
	if (op != NULL && op->holder == OP_OF_NOBODY)
		async_op_destroy(op);
}

int
op_outcome(const struct thc_op *op)
{
	if (op->outcome.code == 0)
		return 0;
	if (op->outcome.code == THC_E_AGENT_LOST && shard_lost(op->shard))
		return shard_lost_error(op->shard);
	return errors_from_agent(op->outcome.code, op->outcome.text);
}

static int
async_op_unknown(struct thc_op *op, const char *what)
{
	op->shard->unresolved = op;
	return shim_fail(THC_E_UNKNOWN, "the %s %s; call thc_resolve, or thc_close",
		kind_name(op->kind), what);
}

/* Ended, and what it brought is where it belongs: what it returns. Or -ETIMEDOUT. */
static int
settled_outcome(struct thc_op *op, int64_t until_ns)
{
	int rc = shadow_settle(op, until_ns);

	/* Who polls by edge is to come again, too. */
	if (rc == -ETIMEDOUT && op->shard->uncollected >= 0 && op->shard->uncollected_set)
		(void)doorbell_signal(op->shard->uncollected);
	return rc < 0 ? rc : op_outcome(op);
}

/*
 * Until wait_ns, but not past the moment from which on the outcome is unknown, unless that has
 * passed before: then the caller asks again and waits as long as it says.
 */
static int
wait_done(struct thc_op *op, int64_t wait_ns)
{
	int64_t until_ns = wait_ns;

	if (th_now_ns() < op->unknown_ns)
		until_ns = th_min_i64(wait_ns, op->unknown_ns);
	int rc = shard_await(op->shard, &op->done, until_ns);
	if (rc != -ETIMEDOUT)
		return rc;
	if (th_now_ns() < op->unknown_ns || !is_group(op))
		return shim_fail(
			THC_E_TIMEOUT, "the %s has not ended yet; it runs on", kind_name(op->kind));
	return async_op_unknown(op, "had no outcome by its deadline and may have begun");
}

int
op_complete(struct thc_op *op, int64_t deadline_ns, struct thc_result *ret_result,
	uint64_t *ret_group_op_seq)
{
	/* A watch changes nothing: nobody needs to hear how it ended. */
	int rc = wait_done(op, is_group(op) ? deadline_with_grace(deadline_ns) : deadline_ns);

	if (rc == THC_E_UNKNOWN) {
		op_holder_enter(op, OP_OF_NOBODY, "it has no outcome yet");
		return rc;
	}
	if (rc == 0) {
		rc = settled_outcome(op, deadline_with_grace(deadline_ns));
		if (rc == -ETIMEDOUT) {
			op_holder_enter(op, OP_OF_NOBODY, "not all is copied yet");
			return async_op_unknown(
				op, "has ended, and not all is copied to GPU memory yet");
		}
		if (rc == 0) {
			op_copy_result(&op->result, ret_result);
			if (ret_group_op_seq != NULL)
				*ret_group_op_seq = op->group_op_seq;
		}
	}
	op_detach(op);
	return rc;
}

/* ---- thc_op_*, thc_resolve ------------------------------------------------------------------ */

/* An operation outlives its handle: it keeps what it refers to. */
static int
async_op_enter(struct thc_op *op)
{
	if (op == NULL)
		return shim_fail(THC_E_INVALID, "op: is NULL");
	if (op->shard->fork_count != shard_fork_count())
		return shim_fail(THC_E_FORKED, "this operation belongs to the parent process");
	pthread_mutex_lock(&op->shard->lock);
	if (op->holder == OP_OF_NOBODY) {
		pthread_mutex_unlock(&op->shard->lock);
		return shim_fail(THC_E_INVALID, "op: was forgotten by thc_op_free");
	}
	op->shard->refs++;
	op->shard->inside++;
	return 0;
}

int
thc_op_done(struct thc_op *op)
{
	int rc = async_op_enter(op);

	if (rc < 0)
		return rc;
	struct thc_shard *shard = op->shard;
	if (shard->life != SHARD_CLOSED)
		shard_look(shard);
	if (op->done) {
		/* An event loop is not kept for long: thc_fd stays readable, and it comes again. */
		rc = settled_outcome(op, th_now_ns() + DONE_NS);
		if (rc != -ETIMEDOUT)
			mark_collected(op);
		rc = rc == 0 ? 1 : rc == -ETIMEDOUT ? 0 : rc;
	}
	shard_leave(shard);
	return rc;
}

int
thc_op_wait(struct thc_op *op, int64_t timeout_ms, struct thc_result *ret_result)
{
	int64_t deadline_ns = 0;
	int rc = op_check_result(ret_result, "ret_result");

	if (rc == 0)
		rc = deadline_of(timeout_ms, &deadline_ns);
	if (rc == 0)
		rc = async_op_enter(op);
	if (rc < 0)
		return rc;
	struct thc_shard *shard = op->shard;
	/* Also when it is done: who polls thc_fd and calls nothing else must see it settled. */
	if (shard->life != SHARD_CLOSED)
		shard_look(shard);
	if (!op->done)
		rc = wait_done(op, deadline_ns);
	if (op->done) {
		rc = settled_outcome(op, deadline_with_grace(deadline_ns));
		if (rc == -ETIMEDOUT)
			rc = shim_fail(THC_E_TIMEOUT,
				"the %s has ended, and not all is copied to GPU memory yet; wait "
				"again",
				kind_name(op->kind));
		else
			mark_collected(op);
		if (rc == 0)
			op_copy_result(&op->result, ret_result);
	}
	shard_leave(shard);
	return rc;
}

int
thc_op_progress(struct thc_op *op, uint64_t *ret_done_bytes, uint64_t *ret_total_bytes)
{
	int rc = async_op_enter(op);

	if (rc < 0)
		return rc;
	struct thc_shard *shard = op->shard;
	uint64_t done = op->done_bytes, total = op->total_bytes;
	if (!op->done && shard->life != SHARD_CLOSED)
		ring_progress(&shard->ring, op->slot, op->op_seq, &done, &total);
	if (ret_done_bytes != NULL)
		*ret_done_bytes = done;
	if (ret_total_bytes != NULL)
		*ret_total_bytes = total;
	shard_leave(shard);
	return 0;
}

int
thc_op_waits(struct thc_op *op, int64_t timeout_ms, char *ret_text, size_t text_bytes)
{
	Tensorhub__V1__Request request = TENSORHUB__V1__REQUEST__INIT;
	Tensorhub__V1__Waits body = TENSORHUB__V1__WAITS__INIT;
	Tensorhub__V1__Reply *reply = NULL;
	int64_t deadline_ns = 0;
	int rc = 0;

	if (ret_text == NULL || text_bytes == 0)
		rc = shim_fail(THC_E_INVALID, "ret_text: has no room for a sentence");
	if (rc == 0)
		rc = deadline_of(timeout_ms, &deadline_ns);
	if (rc == 0)
		rc = async_op_enter(op);
	if (rc < 0)
		return rc;
	struct thc_shard *shard = op->shard;
	request.body_case = TENSORHUB__V1__REQUEST__BODY_WAITS;
	request.waits = &body;
	if (shard->life != SHARD_CLOSED)
		shard_look(shard);
	if (shard_lost(shard))
		rc = shard_lost_error(shard);
	else if (op->done || !is_group(op))
		rc = shim_fail(THC_E_STATE, "this %s %s", kind_name(op->kind),
			op->done ? "has ended" : "waits for no member of the group");
	else if (shard->life != SHARD_OPEN)
		rc = shim_fail(THC_E_CANCELLED, "another thread closes this handle");
	else
		rc = documents_call(
			shard, &request, TENSORHUB__V1__REPLY__BODY_WAITS, deadline_ns, &reply);
	if (rc == 0)
		(void)snprintf(ret_text, text_bytes, "%s", reply->waits->text);
	documents_free(reply);
	shard_leave(shard);
	return rc;
}

int
thc_op_listing(struct thc_op *op, int64_t timeout_ms, struct thc_listing **ret_listing)
{
	int64_t deadline_ns = 0;
	int rc = 0;

	if (ret_listing == NULL)
		return shim_fail(THC_E_INVALID, "ret_listing: is NULL");
	rc = deadline_of(timeout_ms, &deadline_ns);
	if (rc == 0)
		rc = async_op_enter(op);
	if (rc < 0)
		return rc;
	struct thc_shard *shard = op->shard;
	if (shard->life != SHARD_CLOSED)
		shard_look(shard);
	if (shard_lost(shard))
		rc = shard_lost_error(shard);
	else if (op->kind != SHM_LIST || !op->done || op->outcome.code != 0)
		rc = shim_fail(THC_E_STATE, "this %s %s", kind_name(op->kind),
			op->kind != SHM_LIST ? "has no listing"
			: !op->done          ? "has not ended yet"
					     : "has failed: thc_op_wait says why");
	else if (shard->listing)
		rc = shim_fail(
			THC_E_STATE, "another thread takes the listing of a grouped list already");
	else if (shard->life != SHARD_OPEN)
		rc = shim_fail(THC_E_CANCELLED, "another thread closes this handle");
	if (rc == 0) {
		const struct listing_question question = {.group_op_seq = op->group_op_seq};
		shard->listing = true;
		rc = listing_get(shard, &question, deadline_ns, ret_listing);
		shard->listing = false;
	}
	shard_leave(shard);
	return rc;
}

int
thc_op_cancel(struct thc_op *op)
{
	int rc = async_op_enter(op);

	if (rc < 0)
		return rc;
	struct thc_shard *shard = op->shard;
	if (shard->life != SHARD_CLOSED) {
		shard_look(shard);
		async_op_cancel(op);
		if (!op->done && op->cancel != CANCEL_SENT)
			rc = THC_E_TIMEOUT; /* with the sentence of push */
	}
	shard_leave(shard);
	return rc;
}

void
thc_op_free(struct thc_op *op)
{
	if (op == NULL || async_op_enter(op) < 0)
		return;
	struct thc_shard *shard = op->shard;
	op_detach(op);
	if (shard->life != SHARD_CLOSED)
		shard_update_fd(shard);
	shard_leave(shard);
}

int
thc_resolve(struct thc_shard *shard, int64_t timeout_ms, struct thc_result *ret_result)
{
	int64_t deadline_ns = 0;
	int rc = op_check_result(ret_result, "ret_result");

	if (rc == 0)
		rc = deadline_of(timeout_ms, &deadline_ns);
	if (rc == 0)
		rc = shard_enter(shard, ENTER_BEGINS_NOTHING);
	if (rc < 0)
		return rc;
	struct thc_op *op = shard->unresolved;
	if (op == NULL || shard->resolving) {
		rc = shim_fail(THC_E_STATE,
			op == NULL ? "no operation of this handle has an unknown outcome"
				   : "another thread resolves this handle's operation");
		shard_leave(shard);
		return rc;
	}
	shard->resolving = true;
	rc = shard_await(shard, &op->done, deadline_ns);
	if (rc == -ETIMEDOUT)
		rc = shim_fail(THC_E_UNKNOWN, "the %s has no outcome yet; call thc_resolve again",
			kind_name(op->kind));
	if (op->done) {
		rc = settled_outcome(op, deadline_with_grace(deadline_ns));
		if (rc == -ETIMEDOUT) {
			shard->resolving = false;
			rc = async_op_unknown(
				op, "has ended, and not all is copied to GPU memory yet");
			shard_leave(shard);
			return rc;
		}
		if (rc == 0)
			op_copy_result(&op->result, ret_result);
		shard->unresolved = NULL;
		if (op->holder == OP_OF_NOBODY)
			async_op_destroy(op);
		else
			mark_collected(op);
	}
	shard->resolving = false;
	shard_leave(shard);
	return rc;
}
