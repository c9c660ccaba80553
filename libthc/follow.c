/* SPDX-License-Identifier: Apache-2.0 */
/*
 * follow - thc_follow, its _submit form and thc_go: what the agent brings by itself, and up to
 * which version it may.
 *
 * Before each of its own calls libthc looks whether the registered memory is still the same. Who
 * follows calls nothing, so only memory whose place cannot become another's is taken.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/proto/tensorhub.pb-c.h"
#include "libthc/libthc_own.h"

/* ---- which memory ---------------------------------------------------------------------------- */

static int
check_tensor(struct thc_shard *shard, const char *name)
{
	char path[256];
	int rc = memory_path_of(shard, name, path, sizeof(path));

	if (rc < 0 || strncmp(path, "direct", 6) == 0 || strncmp(path, "cuda-ipc", 8) == 0)
		return rc;
	return shim_fail(THC_E_MEMORY_KIND,
		"follow: tensor '%.80s' is reached by %.250s, which must be looked at before each "
		"transfer, and who follows does not call; register memory of thc_alloc, or call "
		"thc_update",
		name, path);
}

static int
check_memory(struct thc_shard *shard)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < shard->num_placed; i++)
		rc = check_tensor(shard, shard->placed[i].name);
	return rc == 0 ? private_look(shard, "follow", true) : rc;
}

/* ---- the calls ------------------------------------------------------------------------------- */

static int
follow_check(const char *version, uint32_t flags, struct op_request *request)
{
	if (version != NULL && strcmp(version, "latest") != 0)
		return shim_fail(THC_E_INVALID,
			"version: is '%.40s'; follow \"latest\", or NULL for nothing any more",
			version);
	if (flags != 0)
		return shim_fail(THC_E_INVALID, "flags: 0x%" PRIx32 " has unknown bits", flags);
	request->kind = SHM_FOLLOW;
	if (version != NULL)
		(void)snprintf(request->spec, sizeof(request->spec), "%s", version);
	return 0;
}

/* Ends with the lock held and the handle entered, or with a code. */
static int
follow_begin(struct thc_shard *shard, struct op_request *request, int64_t timeout_ms,
	struct thc_op **ret_op)
{
	int rc = deadline_of(timeout_ms, &request->deadline_ns);

	if (rc == 0)
		rc = shard_enter(shard, ENTER_MEMBER);
	if (rc < 0)
		return rc;
	if ((shard->features & FDMSG_FEATURE_FOLLOW) == 0)
		rc = shim_fail(THC_E_PROTOCOL,
			"the agent is of a release that follows nothing; upgrade thagentd");
	else if (request->spec[0] != '\0' && shard->registration != REGISTRATION_DONE)
		rc = shim_fail(THC_E_STATE, "follow needs tensors: call thc_register first");
	else if (request->spec[0] != '\0')
		rc = check_memory(shard);
	if (rc == 0)
		rc = op_submit(shard, request, ret_op);
	if (rc < 0)
		shard_leave(shard);
	return rc;
}

int
thc_follow(struct thc_shard *shard, const char *version, uint32_t flags, int64_t timeout_ms)
{
	struct op_request request = {.internal = true};
	struct thc_op *op = NULL;
	int rc = follow_check(version, flags, &request);

	if (rc == 0)
		rc = follow_begin(shard, &request, timeout_ms, &op);
	if (rc < 0)
		return rc;
	rc = op_complete(op, request.deadline_ns, NULL, NULL);
	shard_leave(shard);
	return rc;
}

int
thc_follow_submit(struct thc_shard *shard, const char *version, uint32_t flags, int64_t timeout_ms,
	struct thc_op **ret_op)
{
	struct op_request request = {.internal = false};
	struct thc_op *op = NULL;
	int rc = follow_check(version, flags, &request);

	if (rc == 0 && ret_op == NULL)
		rc = shim_fail(THC_E_INVALID, "ret_op: is NULL");
	if (rc == 0)
		rc = follow_begin(shard, &request, timeout_ms, &op);
	if (rc < 0)
		return rc;
	*ret_op = op;
	shard_leave(shard);
	return 0;
}

int
thc_go(struct thc_shard *shard, uint64_t version, int64_t timeout_ms)
{
	Tensorhub__V1__Request request = TENSORHUB__V1__REQUEST__INIT;
	Tensorhub__V1__Admin body;
	Tensorhub__V1__Reply *reply = NULL;
	char spec[32];
	int64_t deadline_ns = 0;

	if (version == THC_NO_VERSION)
		return shim_fail(THC_E_INVALID, "version: THC_NO_VERSION is no version");
	int rc = deadline_of(timeout_ms, &deadline_ns);
	if (rc == 0)
		rc = shard_enter(shard, ENTER_MEMBER);
	if (rc < 0)
		return rc;
	(void)snprintf(spec, sizeof(spec), "%" PRIu64, version);
	tensorhub__v1__admin__init(&body);
	body.verb = CTL_ADMIN_GO;
	body.model = shard->model;
	body.spec = spec;
	request.body_case = TENSORHUB__V1__REQUEST__BODY_ADMIN;
	request.admin = &body;
	rc = documents_call(shard, &request, TENSORHUB__V1__REPLY__BODY_ADMIN, deadline_ns, &reply);
	if (rc == 0)
		documents_free(reply);
	shard_leave(shard);
	return rc;
}
