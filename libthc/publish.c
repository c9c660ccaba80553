/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish - thc_publish, thc_unpublish, thc_replicate, thc_update and their _submit forms: the
 * checks of their arguments around async_op.c.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "libthc/libthc_own.h"

/* One of the four calls, blocking or not; spec and flags are filled by the caller. */
struct call {
	struct op_request request;
	bool needs_tensors;
};

/* What lies in GPU memory that only this process reaches. */
static int
copy_before(struct thc_shard *shard, const struct call *call)
{
	int64_t until_ns = deadline_with_grace(call->request.deadline_ns);

	if (call->request.kind == SHM_PUBLISH)
		return shadow_out(shard, until_ns);
	int rc = shadow_settle_all(shard, until_ns);
	if (rc == -ETIMEDOUT)
		return shim_fail(THC_E_TIMEOUT,
			"%s: the version that is held was not wholly copied to GPU memory before "
			"the deadline; nothing was changed, give it more time",
			ctl_op_name(call->request.kind));
	return rc;
}

/* Ends with the lock held and the handle entered, or with a code. */
static int
publish_begin(
	struct thc_shard *shard, struct call *call, int64_t timeout_ms, struct thc_op **ret_op)
{
	int rc = deadline_of(timeout_ms, &call->request.deadline_ns);

	if (rc == 0)
		rc = shard_enter(shard, 0);
	if (rc < 0)
		return rc;
	if (call->needs_tensors && shard->registration != REGISTRATION_DONE)
		rc = shim_fail(THC_E_STATE, "%s needs tensors: call thc_register first",
			ctl_op_name(call->request.kind));
	/* Before the documents: what is refused should change nothing at the agent. */
	if (rc == 0 && shard->running != NULL) {
		shard_collect(shard);
		if (shard->running != NULL)
			rc = shim_fail(THC_E_STATE,
				"an operation of this handle runs; only one runs at a time");
	}
	if (rc == 0 && call->needs_tensors)
		rc = private_look(
			shard, ctl_op_name(call->request.kind), call->request.kind != SHM_PUBLISH);
	if (rc == 0 && call->request.kind == SHM_PUBLISH)
		rc = attributes_send(shard, call->request.deadline_ns);
	/* Last, for the lock is not given back between it and the submission. */
	if (rc == 0 && call->needs_tensors)
		rc = copy_before(shard, call);
	if (rc == 0)
		rc = op_submit(shard, &call->request, ret_op);
	if (rc < 0)
		shard_leave(shard);
	return rc;
}

static int
publish_run(struct thc_shard *shard, struct call *call, int64_t timeout_ms,
	struct thc_result *ret_result)
{
	struct thc_op *op = NULL;

	call->request.internal = true;
	int rc = publish_begin(shard, call, timeout_ms, &op);
	if (rc < 0)
		return rc;
	rc = op_complete(op, call->request.deadline_ns, ret_result, NULL);
	shard_leave(shard);
	return rc;
}

static int
publish_submit(
	struct thc_shard *shard, struct call *call, int64_t timeout_ms, struct thc_op **ret_op)
{
	struct thc_op *op = NULL;

	if (ret_op == NULL)
		return shim_fail(THC_E_INVALID, "ret_op: is NULL");
	int rc = publish_begin(shard, call, timeout_ms, &op);
	if (rc < 0)
		return rc;
	*ret_op = op;
	shard_leave(shard);
	return 0;
}

static int
prepare_publish(uint64_t version, struct call *ret_call)
{
	if (version == THC_NO_VERSION)
		return shim_fail(THC_E_INVALID, "version: THC_NO_VERSION is no version");
	*ret_call = (struct call){.request = {.kind = SHM_PUBLISH}, .needs_tensors = true};
	(void)snprintf(ret_call->request.spec, sizeof(ret_call->request.spec), "%" PRIu64, version);
	return 0;
}

static int
prepare_unpublish(uint32_t flags, struct call *ret_call)
{
	if ((flags & ~(uint32_t)THC_FORCE) != 0)
		return shim_fail(THC_E_INVALID, "flags: 0x%" PRIx32 " has unknown bits", flags);
	*ret_call = (struct call){.request = {.kind = SHM_UNPUBLISH, .flags = flags}};
	return 0;
}

static int
prepare_pull(uint16_t kind, const char *version, struct call *ret_call)
{
	*ret_call = (struct call){.request = {.kind = kind}, .needs_tensors = true};
	return op_check_spec(version, ret_call->request.spec);
}

int
thc_publish(struct thc_shard *shard, uint64_t version, int64_t timeout_ms)
{
	struct call call;
	int rc = prepare_publish(version, &call);

	return rc < 0 ? rc : publish_run(shard, &call, timeout_ms, NULL);
}

int
thc_publish_submit(
	struct thc_shard *shard, uint64_t version, int64_t timeout_ms, struct thc_op **ret_op)
{
	struct call call;
	int rc = prepare_publish(version, &call);

	return rc < 0 ? rc : publish_submit(shard, &call, timeout_ms, ret_op);
}

int
thc_unpublish(struct thc_shard *shard, uint32_t flags, int64_t timeout_ms)
{
	struct call call;
	int rc = prepare_unpublish(flags, &call);

	return rc < 0 ? rc : publish_run(shard, &call, timeout_ms, NULL);
}

int
thc_unpublish_submit(
	struct thc_shard *shard, uint32_t flags, int64_t timeout_ms, struct thc_op **ret_op)
{
	struct call call;
	int rc = prepare_unpublish(flags, &call);

	return rc < 0 ? rc : publish_submit(shard, &call, timeout_ms, ret_op);
}

static int
pull(struct thc_shard *shard, uint16_t kind, const char *version, int64_t timeout_ms,
	struct thc_result *ret_result)
{
	struct call call;
	int rc = prepare_pull(kind, version, &call);

	if (rc == 0)
		rc = op_check_result(ret_result, "ret_result");
	return rc < 0 ? rc : publish_run(shard, &call, timeout_ms, ret_result);
}

static int
pull_submit(struct thc_shard *shard, uint16_t kind, const char *version, int64_t timeout_ms,
	struct thc_op **ret_op)
{
	struct call call;
	int rc = prepare_pull(kind, version, &call);

	return rc < 0 ? rc : publish_submit(shard, &call, timeout_ms, ret_op);
}

int
thc_replicate(struct thc_shard *shard, const char *version, int64_t timeout_ms,
	struct thc_result *ret_result)
{
	return pull(shard, SHM_REPLICATE, version, timeout_ms, ret_result);
}

int
thc_update(struct thc_shard *shard, const char *version, int64_t timeout_ms,
	struct thc_result *ret_result)
{
	return pull(shard, SHM_UPDATE, version, timeout_ms, ret_result);
}

int
thc_replicate_submit(
	struct thc_shard *shard, const char *version, int64_t timeout_ms, struct thc_op **ret_op)
{
	return pull_submit(shard, SHM_REPLICATE, version, timeout_ms, ret_op);
}

int
thc_update_submit(
	struct thc_shard *shard, const char *version, int64_t timeout_ms, struct thc_op **ret_op)
{
	return pull_submit(shard, SHM_UPDATE, version, timeout_ms, ret_op);
}
