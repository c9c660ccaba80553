/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish - thc_publish, thc_unpublish, thc_replicate, thc_update and their _submit forms: the
 * checks of their arguments around async_op.c. And thc_set_attribute: the set is kept here and sent
 * whole before a publish.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/name.h"
#include "ipc/proto/manifest.h"
#include "ipc/proto/tensorhub.pb-c.h"
#include "libthc/libthc_own.h"

/* ---- attributes ----------------------------------------------------------------------------- */

static void
free_attribute(struct thc_attribute *attribute)
{
	union {
		const void *constant;
		void *plain;
	} name = {.constant = attribute->name}, value = {.constant = attribute->value};

	free(name.plain);
	free(value.plain);
}

void
attributes_free(struct thc_shard *shard)
{
	for (size_t i = 0; i < shard->num_attributes; i++)
		free_attribute(&shard->attributes[i]);
	free(shard->attributes);
	shard->attributes = NULL;
	shard->num_attributes = 0;
}

static int
encode_attributes(
	const struct thc_attribute *attributes, size_t count, uint8_t **ret_data, size_t *ret_bytes)
{
	struct manifest_attribute *list = calloc(count > 0 ? count : 1, sizeof(*list));

	if (list == NULL)
		return shim_fail(-ENOMEM, "out of memory for the attributes");
	for (size_t i = 0; i < count; i++)
		list[i] = (struct manifest_attribute){.name = attributes[i].name,
			.value = attributes[i].value,
			.bytes = attributes[i].bytes};
	errors_last()->text[0] = '\0';
	int rc = manifest_attributes_encode(list, count, errors_last(), ret_data, ret_bytes);
	free(list);
	if (rc < 0 && errors_last()->text[0] == '\0')
		return shim_fail(rc, "value: %s", th_strerror(rc));
	return rc;
}

/* Where name is, or would be. */
static size_t
find_attribute(const struct thc_shard *shard, const char *name, bool *ret_found)
{
	size_t at = 0;

	while (at < shard->num_attributes && strcmp(shard->attributes[at].name, name) < 0)
		at++;
	*ret_found = at < shard->num_attributes && strcmp(shard->attributes[at].name, name) == 0;
	return at;
}

static void
remove_at(struct thc_shard *shard, size_t at)
{
	free_attribute(&shard->attributes[at]);
	shard->num_attributes--;
	memmove(&shard->attributes[at], &shard->attributes[at + 1],
		(shard->num_attributes - at) * sizeof(*shard->attributes));
}

static int
insert_at(struct thc_shard *shard, size_t at, const char *name, const void *value, size_t bytes)
{
	struct thc_attribute *more = reallocarray(
		shard->attributes, shard->num_attributes + 1, sizeof(*shard->attributes));

	if (more == NULL)
		return shim_fail(-ENOMEM, "out of memory for an attribute");
	shard->attributes = more;
	char *own_name = strdup(name);
	void *own_value = malloc(bytes > 0 ? bytes : 1);
	if (own_name == NULL || own_value == NULL) {
		free(own_name);
		free(own_value);
		return shim_fail(-ENOMEM, "out of memory for an attribute");
	}
	memcpy(own_value, value, bytes);
	memmove(&more[at + 1], &more[at], (shard->num_attributes - at) * sizeof(*more));
	more[at] = (struct thc_attribute){own_name, own_value, bytes};
	shard->num_attributes++;
	return 0;
}

/* The whole must stay within its limit: the set with this attribute, encoded. */
static int
publish_check_whole(
	struct thc_shard *shard, size_t at, bool found, const struct thc_attribute *added)
{
	size_t count = shard->num_attributes + (found ? 0 : 1), bytes = 0;
	struct thc_attribute *all = calloc(count, sizeof(*all));
	uint8_t *data = NULL;

	if (all == NULL)
		return shim_fail(-ENOMEM, "out of memory for an attribute");
	for (size_t i = 0, from = 0; i < count; i++) {
		all[i] = i == at ? *added : shard->attributes[from];
		from += i == at && !found ? 0 : 1;
	}
	int rc = encode_attributes(all, count, &data, &bytes);
	free(data);
	free(all);
	return rc;
}

int
thc_set_attribute(struct thc_shard *shard, const char *name, const void *value, size_t bytes)
{
	const struct thc_attribute added = {name, value, bytes};
	bool found = false;

	if (!th_name_valid(name, TH_NAME_MAX))
		return shim_fail(THC_E_INVALID,
			"name: must be 1 to %d bytes of UTF-8 without control characters",
			TH_NAME_MAX);
	if (value != NULL && bytes > MANIFEST_ATTRIBUTE_BYTES_MAX)
		return shim_fail(THC_E_LIMIT, "bytes: an attribute has at most %u, '%s' has %zu",
			MANIFEST_ATTRIBUTE_BYTES_MAX, name, bytes);
	int rc = shard_enter(shard, ENTER_MEMBER);
	if (rc < 0)
		return rc;
	size_t at = find_attribute(shard, name, &found);
	if (value != NULL)
		rc = publish_check_whole(shard, at, found, &added);
	if (rc == 0 && value != NULL)
		rc = insert_at(shard, at, name, value, bytes);
	/* An earlier one lies behind the new one, or is what is removed. */
	if (rc == 0 && found)
		remove_at(shard, at + (value != NULL ? 1 : 0));
	shard_leave(shard);
	return rc;
}

static int
send_attributes_part(struct thc_shard *shard, const uint8_t *data, size_t bytes, uint32_t part,
	uint32_t num_parts, int64_t deadline_ns)
{
	Tensorhub__V1__Request request = TENSORHUB__V1__REQUEST__INIT;
	Tensorhub__V1__SetAttributes set = TENSORHUB__V1__SET_ATTRIBUTES__INIT;
	Tensorhub__V1__Reply *reply = NULL;
	union {
		const uint8_t *constant;
		uint8_t *plain;
	} pointer = {.constant = data};

	set.part = part;
	set.num_parts = num_parts;
	set.data.data = pointer.plain;
	set.data.len = bytes;
	request.body_case = TENSORHUB__V1__REQUEST__BODY_SET_ATTRIBUTES;
	request.set_attributes = &set;
	int rc = documents_call(shard, &request, 0, deadline_ns, &reply);
	if (rc == 0)
		documents_free(reply);
	return rc;
}

/* Under the lock: sends the set when the agent does not have it. */
static int
attributes_send(struct thc_shard *shard, int64_t deadline_ns)
{
	uint8_t *data = NULL;
	size_t bytes = 0;

	/* The agent takes them for the next publish only, so they are sent before each. */
	if (shard->attributes == NULL)
		return 0;
	const bool none = shard->num_attributes == 0;
	int rc = encode_attributes(shard->attributes, shard->num_attributes, &data, &bytes);
	if (rc < 0)
		return rc;
	uint32_t num_parts = (uint32_t)((bytes + TH_PART_BYTES_MAX - 1) / TH_PART_BYTES_MAX);
	for (uint32_t part = 0; rc == 0 && part < num_parts; part++) {
		size_t at = (size_t)part * TH_PART_BYTES_MAX;
		rc = send_attributes_part(shard, data + at,
			th_min_size(bytes - at, TH_PART_BYTES_MAX), part, num_parts, deadline_ns);
	}
	free(data);
	/* What is set meanwhile by another thread is for the next time. */
	if (rc == 0 && none && shard->num_attributes == 0)
		attributes_free(shard);
	return rc;
}

/* ---- the calls ------------------------------------------------------------------------------ */

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
		rc = shard_enter(shard, ENTER_MEMBER);
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
