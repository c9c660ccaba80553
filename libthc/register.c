/* SPDX-License-Identifier: Apache-2.0 */
/*
 * register - thc_register, thc_unregister, thc_memory_path.
 *
 * Each memory object is given to the agent once per session, with a descriptor, and gets an id; so
 * is /proc/self/mem, once a tensor needs it. Pieces of GPU memory are given for one registration:
 * the agent keeps them allocated, and a worker that sleeps wants them free. Then the rows go as a
 * document that names places by id and offset. A registration whose answer
 * did not come is REGISTRATION_UNKNOWN: its memory stays held, and the next call undoes it first.
 */
#include "libthc/register.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/failpoint.h"
#include "ipc/base/log.h"
#include "ipc/proto/tensorhub.pb-c.h"
#include "libthc/given.h"
#include "libthc/libthc_own.h"
#include "libthc/populate.h"

/* ---- memory objects ------------------------------------------------------------------------ */

static int
send_memory(struct thc_shard *shard, uint64_t serial, struct fdmsg_memory *message, int fd,
	int64_t until_ns)
{
	struct sender sender;

	sender_begin(&sender, shard, until_ns);
	int rc = sender_send(&sender, serial, FDMSG_MEMORY, message, sizeof(*message), &fd);
	return sender_end(&sender, rc);
}

static int
send_object(struct thc_shard *shard, const struct memory_object *object, int64_t until_ns)
{
	bool shadow = object->serial == shard->shadow.object.serial &&
		      (shard->features & FDMSG_FEATURE_GPU) != 0;
	struct fdmsg_memory message = {.kind = shadow                      ? FDMSG_SHADOW
					       : object->way == WAY_MAPPED ? FDMSG_MEMFD
									   : FDMSG_FILE,
		.base = object->start,
		.bytes = object->bytes,
		.offset = object->fd_offset};

	if (object->way == WAY_PROCESS || sent_find(shard, object->serial) != NULL)
		return 0;
	return send_memory(shard, object->serial, &message, object->fd, until_ns);
}

/* All addresses at once: what is private is many small allocations, and they come and go. */
static int
send_private(struct thc_shard *shard, int64_t until_ns)
{
	struct fdmsg_memory message = {.kind = FDMSG_PROCESS, .bytes = INT64_MAX};

	if (sent_find(shard, PRIVATE_SERIAL) != NULL)
		return 0;
	int rc = private_open(shard);
	if (rc == 0)
		rc = send_memory(shard, PRIVATE_SERIAL, &message, shard->giving, until_ns);
	sent_close(shard);
	return rc;
}

static int
by_serial(const void *a, const void *b)
{
	const struct memory_object *x = a, *y = b;

	return x->serial < y->serial ? -1 : x->serial > y->serial ? 1 : 0;
}

/* The objects of all tensors, each once. *ret_objects is the caller's. */
static int
list_objects(const struct checked_tensors *checked, struct memory_object **ret_objects,
	size_t *ret_count)
{
	struct memory_object *objects = calloc(checked->count, sizeof(*objects));
	size_t count = 0, kept = 0;

	if (objects == NULL)
		return shim_fail(-ENOMEM, "out of memory for %zu tensors", checked->count);
	for (size_t i = 0; i < checked->count; i++) {
		const struct memory_object *object = &checked->tensors[i].object;
		/* Neighbours mostly share one: the list to be sorted stays short. */
		if (object->serial != 0 &&
			(count == 0 || objects[count - 1].serial != object->serial))
			objects[count++] = *object;
	}
	qsort(objects, count, sizeof(*objects), by_serial);
	for (size_t i = 0; i < count; i++)
		if (kept == 0 || objects[kept - 1].serial != objects[i].serial)
			objects[kept++] = objects[i];
	*ret_objects = objects;
	*ret_count = kept;
	return 0;
}

/* From here to tensors_release nobody frees them. */
static int
hold(struct thc_shard *shard, const struct memory_object *objects, size_t count)
{
	shard->held = calloc(count > 0 ? count : 1, sizeof(*shard->held));
	if (shard->held == NULL)
		return shim_fail(-ENOMEM, "out of memory for %zu memory objects", count);
	for (size_t i = 0; i < count; i++) {
		if (memory_acquire(objects[i].start, objects[i].serial) < 0)
			return shim_fail(THC_E_INVALID,
				"tensors: memory at %p was freed while it was registered",
				(const void *)objects[i].start);
		shard->held[shard->num_held++] =
			(struct held_memory){objects[i].start, objects[i].serial};
	}
	return 0;
}

void
tensors_release(struct thc_shard *shard)
{
	/* Who copies has the spans, the pinned memory and the names, without the lock. */
	while (shard->shadow.copying)
		shard_sleep(shard, INT64_MAX);
	for (size_t i = 0; i < shard->num_held; i++)
		memory_release(shard->held[i].start, shard->held[i].serial);
	for (size_t i = 0; i < shard->num_placed; i++)
		free(shard->placed[i].name);
	free(shard->held);
	free(shard->placed);
	ranges_free(&shard->ranges);
	shadow_free(shard);
	gpu_forget(shard, &shard->gpus);
	gpu_free(&shard->gpus);
	shard->held = NULL;
	shard->placed = NULL;
	shard->num_held = 0;
	shard->num_placed = 0;
	shard->registration = REGISTRATION_NONE;
}

static uint64_t
sent_serial(const struct checked_tensor *tensor)
{
	return tensor->way == WAY_PROCESS ? PRIVATE_SERIAL : tensor->object.serial;
}

/* ---- the document -------------------------------------------------------------------------- */

struct rows { /* storage of a TensorRows message */
	char **name;
	uint32_t *dtype, *ndim, *memory_id;
	uint64_t *local_shape, *global_shape, *offset, *memory_offset, *bytes;
	size_t dims;
};

static void
rows_free(struct rows *rows)
{
	free(rows->name);
	free(rows->dtype);
	free(rows->ndim);
	free(rows->memory_id);
	free(rows->local_shape);
	free(rows->global_shape);
	free(rows->offset);
	free(rows->memory_offset);
	free(rows->bytes);
}

static bool
rows_new(const struct checked_tensors *checked, struct rows *ret_rows)
{
	size_t count = checked->count, dims = 0;

	for (size_t i = 0; i < count; i++)
		dims += checked->rows[i].ndim;
	size_t room = dims > 0 ? dims : 1;
	*ret_rows = (struct rows){
		.name = calloc(count, sizeof(*ret_rows->name)),
		.dtype = calloc(count, sizeof(*ret_rows->dtype)),
		.ndim = calloc(count, sizeof(*ret_rows->ndim)),
		.memory_id = calloc(count, sizeof(*ret_rows->memory_id)),
		.local_shape = calloc(room, sizeof(*ret_rows->local_shape)),
		.global_shape = calloc(room, sizeof(*ret_rows->global_shape)),
		.offset = calloc(room, sizeof(*ret_rows->offset)),
		.memory_offset = calloc(count, sizeof(*ret_rows->memory_offset)),
		.bytes = calloc(count, sizeof(*ret_rows->bytes)),
	};
	return ret_rows->name != NULL && ret_rows->dtype != NULL && ret_rows->ndim != NULL &&
	       ret_rows->memory_id != NULL && ret_rows->local_shape != NULL &&
	       ret_rows->global_shape != NULL && ret_rows->offset != NULL &&
	       ret_rows->memory_offset != NULL && ret_rows->bytes != NULL;
}

static void
rows_fill(const struct thc_shard *shard, const struct checked_tensors *checked, struct rows *rows)
{
	for (size_t i = 0; i < checked->count; i++) {
		const struct manifest_row *row = &checked->rows[i];
		const struct checked_tensor *tensor = &checked->tensors[i];
		union {
			const char *constant;
			char *plain;
		} name = {.constant = tensor->name};
		rows->name[i] = name.plain;
		rows->dtype[i] = row->dtype;
		rows->ndim[i] = row->ndim;
		rows->bytes[i] = tensor->bytes;
		for (uint32_t d = 0; d < row->ndim; d++, rows->dims++) {
			rows->local_shape[rows->dims] = row->local_shape[d];
			rows->global_shape[rows->dims] = row->global_shape[d];
			rows->offset[rows->dims] = row->offset[d];
		}
		const struct cuda_piece *piece = NULL;
		uint64_t serial = sent_serial(tensor);
		if (tensor->way == WAY_GPU)
			piece = gpu_find(&shard->gpus, tensor->device, tensor->start, &serial);
		const struct sent_memory *sent = sent_find(shard, serial);
		if (tensor->way == WAY_NONE || sent == NULL)
			continue; /* no bytes: no place */
		rows->memory_id[i] = sent->id;
		rows->memory_offset[i] = tensor->start;
		if (piece != NULL)
			rows->memory_offset[i] -= piece->base;
		else if (tensor->way == WAY_COPIED)
			rows->memory_offset[i] = tensor->copy_at;
		else if (tensor->way != WAY_PROCESS)
			rows->memory_offset[i] -= tensor->object.start;
	}
}

static int
encode(const struct thc_shard *shard, const struct checked_tensors *checked, uint8_t **ret_data,
	size_t *ret_bytes)
{
	Tensorhub__V1__TensorRows message = TENSORHUB__V1__TENSOR_ROWS__INIT;
	struct rows rows;
	uint8_t *data = NULL;

	if (rows_new(checked, &rows)) {
		rows_fill(shard, checked, &rows);
		message.n_name = message.n_dtype = message.n_ndim = checked->count;
		message.n_memory_id = message.n_memory_offset = message.n_bytes = checked->count;
		message.n_local_shape = message.n_global_shape = message.n_offset = rows.dims;
		message.name = rows.name;
		message.dtype = rows.dtype;
		message.ndim = rows.ndim;
		message.local_shape = rows.local_shape;
		message.global_shape = rows.global_shape;
		message.offset = rows.offset;
		message.memory_id = rows.memory_id;
		message.memory_offset = rows.memory_offset;
		message.bytes = rows.bytes;
		*ret_bytes = tensorhub__v1__tensor_rows__get_packed_size(&message);
		data = malloc(*ret_bytes);
		if (data != NULL)
			(void)tensorhub__v1__tensor_rows__pack(&message, data);
	}
	rows_free(&rows);
	if (data == NULL)
		return shim_fail(-ENOMEM, "out of memory for %zu tensors", checked->count);
	*ret_data = data;
	return 0;
}

static int
send_rows(struct thc_shard *shard, uint8_t *data, size_t bytes, int64_t deadline_ns)
{
	size_t num_parts = (bytes + TH_PART_BYTES_MAX - 1) / TH_PART_BYTES_MAX;

	TH_FP(worker_registers);

	for (size_t part = 0; part < num_parts; part++) {
		Tensorhub__V1__Request request = TENSORHUB__V1__REQUEST__INIT;
		Tensorhub__V1__RegisterTensors body = TENSORHUB__V1__REGISTER_TENSORS__INIT;
		Tensorhub__V1__Reply *reply = NULL;
		size_t at = part * TH_PART_BYTES_MAX;

		body.part = (uint32_t)part;
		body.num_parts = (uint32_t)num_parts;
		body.data.data = data + at;
		body.data.len = th_min_size(bytes - at, TH_PART_BYTES_MAX);
		request.body_case = TENSORHUB__V1__REQUEST__BODY_REGISTER_TENSORS;
		request.register_tensors = &body;
		bool last = part + 1 == num_parts;
		int rc = documents_call(shard, &request,
			last ? TENSORHUB__V1__REPLY__BODY_REGISTER_TENSORS : 0, deadline_ns,
			&reply);
		if (rc < 0)
			return rc;
		documents_free(reply);
	}
	return 0;
}

/* Of a document: the agent may have done what it asks for. */
static bool
unanswered(int rc)
{
	return rc == THC_E_TIMEOUT || rc == THC_E_AGENT_LOST || rc == THC_E_PROTOCOL;
}

static int
send_unregister(struct thc_shard *shard, int64_t deadline_ns)
{
	Tensorhub__V1__Request request = TENSORHUB__V1__REQUEST__INIT;
	Tensorhub__V1__UnregisterTensors body = TENSORHUB__V1__UNREGISTER_TENSORS__INIT;
	Tensorhub__V1__Reply *reply = NULL;

	TH_FP(worker_unregisters);
	request.body_case = TENSORHUB__V1__REQUEST__BODY_UNREGISTER_TENSORS;
	request.unregister_tensors = &body;
	int rc = documents_call(shard, &request, 0, deadline_ns, &reply);
	if (rc == 0)
		documents_free(reply);
	return rc;
}

/* ---- register ------------------------------------------------------------------------------ */

static int
register_by_name(const void *a, const void *b)
{
	const struct placed_tensor *x = a, *y = b;

	return strcmp(x->name, y->name);
}

static int
remember_places(struct thc_shard *shard, const struct checked_tensors *checked)
{
	shard->placed = calloc(checked->count, sizeof(*shard->placed));
	if (shard->placed == NULL)
		return shim_fail(-ENOMEM, "out of memory for %zu tensors", checked->count);
	for (size_t i = 0; i < checked->count; i++) {
		const struct checked_tensor *tensor = &checked->tensors[i];
		char *name = strdup(tensor->name);
		if (name == NULL)
			return shim_fail(-ENOMEM, "out of memory for %zu tensors", checked->count);
		shard->placed[shard->num_placed++] = (struct placed_tensor){.name = name,
			.device = tensor->device,
			.serial = sent_serial(tensor),
			.reason = tensor->object.reason,
			.unreached = tensor->unreached,
			.start = tensor->start,
			.bytes = tensor->bytes};
	}
	qsort(shard->placed, shard->num_placed, sizeof(*shard->placed), register_by_name);
	return 0;
}

static bool
any_private(const struct checked_tensors *checked)
{
	for (size_t i = 0; i < checked->count; i++)
		if (checked->tensors[i].way == WAY_PROCESS)
			return true;
	return false;
}

/*
 * What no agent opens, whatever the reason is, this process can still copy: all of it, for the
 * agent does not say which piece it was. False: there is none, or it is copied already.
 */
static bool
copy_instead(struct thc_shard *shard, struct checked_tensors *checked)
{
	bool any = false;

	for (size_t i = 0; i < checked->count; i++) {
		struct checked_tensor *tensor = &checked->tensors[i];
		if (tensor->way != WAY_GPU)
			continue;
		tensor->way = WAY_COPIED;
		tensor->unreached = any = true;
	}
	if (!any)
		return false;
	memcpy(checked->why, errors_last()->text, sizeof(checked->why));
	gpu_forget(shard, &shard->gpus);
	checked->gpus = shard->gpus;
	shard->gpus = (struct gpu_set){0};
	return true;
}

/* 1: nothing is registered, and the tensors are to be registered once more. */
static int
register_once(struct thc_shard *shard, struct checked_tensors *checked, int64_t deadline_ns)
{
	struct memory_object *objects = NULL;
	size_t num_objects = 0, bytes = 0;
	int64_t until_ns = deadline_with_grace(deadline_ns);
	uint8_t *data = NULL;
	int rc = shadow_new(&shard->shadow, checked, until_ns);

	if (rc == 0)
		rc = list_objects(checked, &objects, &num_objects);
	shard->gpus = checked->gpus;
	checked->gpus = (struct gpu_set){0};
	if (rc == 0)
		rc = hold(shard, objects, num_objects);
	if (rc == 0)
		rc = ranges_new(checked, &shard->ranges);
	if (rc == 0)
		rc = remember_places(shard, checked);
	if (rc == 0)
		rc = populate_imported(shard, checked, deadline_ns);
	for (size_t i = 0; rc == 0 && i < num_objects; i++)
		rc = send_object(shard, &objects[i], until_ns);
	if (rc == 0 && any_private(checked))
		rc = send_private(shard, until_ns);
	/* What fails from here on is about GPU memory that the agent does not open. */
	const bool host_memory_is_sent = rc == 0;
	if (rc == 0)
		rc = gpu_send(shard, &shard->gpus, checked, until_ns);
	free(objects);
	if (rc == 0)
		rc = encode(shard, checked, &data, &bytes);
	const bool asked = rc == 0;
	if (asked)
		rc = send_rows(shard, data, bytes, deadline_ns);
	free(data);
	bool again = rc == THC_E_MEMORY_KIND && host_memory_is_sent && copy_instead(shard, checked);
	if (rc == 0)
		shard->registration = REGISTRATION_DONE;
	else if (asked && unanswered(rc))
		shard->registration = REGISTRATION_UNKNOWN;
	else
		tensors_release(shard);
	return again ? 1 : rc;
}

static int
register_checked(struct thc_shard *shard, struct checked_tensors *checked, int64_t deadline_ns)
{
	int rc = register_once(shard, checked, deadline_ns);

	if (rc <= 0)
		return rc;
	rc = register_once(shard, checked, deadline_ns);
	if (th_is_errno(rc)) { /* of this host: no memory, no descriptors */
		const struct th_err second = *errors_last();
		rc = shim_fail(THC_E_MEMORY_KIND, "%s; %s", checked->why, second.text);
	}
	if (rc == 0)
		log_warn("libthc",
			"GPU memory is copied by its worker: the agent does not reach it, and each "
			"publish, replicate and update takes a copy over PCI Express "
			"session=%" PRIu64 " host_bytes=%" PRIu64 " reason=\"%s\"",
			shard->session, shard->shadow.object.bytes, checked->why);
	return rc;
}

/* Undoes what may have been registered by a call that had no answer. */
static int
register_settle(struct thc_shard *shard, int64_t deadline_ns)
{
	if (shard->registration != REGISTRATION_UNKNOWN)
		return 0;
	/* Memory and documents go two ways: what is on its way would come after its end. */
	int rc = sent_settle(shard, deadline_with_grace(deadline_ns));
	if (rc == 0)
		rc = send_unregister(shard, deadline_ns);
	/* 0 also when it had not come to be. THC_E_STATE: it has, and a version is held. */
	if (rc == 0) {
		tensors_release(shard);
	} else if (rc == THC_E_STATE && shard->num_placed > 0) {
		shard->registration = REGISTRATION_DONE;
	}
	return rc;
}

/*
 * After the failure of a registration: the caller frees its GPU memory next, so that the agent has
 * closed all of it when this returns. Where it has not said so, the next call sees to it.
 */
static int
register_take_back(struct thc_shard *shard, const struct checked_tensors *checked, int failed,
	int64_t deadline_ns)
{
	const struct th_err first = *errors_last();

	if (!checked->gpu_given || shard_lost(shard) ||
		(shard->registration == REGISTRATION_UNKNOWN && failed == THC_E_TIMEOUT))
		return failed;
	shard->registration = REGISTRATION_UNKNOWN;
	int rc = register_settle(shard, deadline_ns);
	if (shard->registration == REGISTRATION_NONE)
		return shim_fail(failed, "%s", first.text);
	if (rc == -EBUSY) { /* it has, and a device has not */
		const struct th_err stays = *errors_last();
		return shim_fail(failed, "%.250s; and %.250s", first.text, stays.text);
	}
	return shim_fail(rc == THC_E_TIMEOUT ? rc : failed,
		"%.300s; and the agent has not said that it let go of the GPU memory: free none "
		"of it before thc_unregister or thc_close has returned",
		first.text);
}

int
thc_register(struct thc_shard *shard, const struct thc_tensor *tensors, size_t count,
	size_t tensor_bytes, int64_t timeout_ms)
{
	struct checked_tensors checked = {0};
	int64_t deadline_ns = 0;
	int rc = deadline_of(timeout_ms, &deadline_ns);

	if (rc == 0)
		rc = shard_enter(shard, ENTER_MEMBER);
	if (rc < 0)
		return rc;
	rc = shard_exclusive_begin(shard);
	if (rc < 0) {
		shard_leave(shard);
		return rc;
	}
	rc = tensors_check(tensors, count, tensor_bytes, shard->open_flags, &checked);
	if (rc == 0 && count > shard->tensors_max)
		rc = shim_fail(THC_E_LIMIT, "count: %zu tensors; this agent takes at most %" PRIu32,
			count, shard->tensors_max);
	if (rc == 0)
		rc = register_settle(shard, deadline_ns);
	if (rc == 0 && shard->registration == REGISTRATION_DONE)
		rc = shim_fail(THC_E_STATE,
			"this handle has tensors registered already; thc_unregister them first");
	if (rc == 0) {
		rc = register_checked(shard, &checked, deadline_ns);
		if (rc < 0)
			rc = register_take_back(shard, &checked, rc, deadline_ns);
	}
	tensors_checked_free(&checked);
	shard_exclusive_end(shard);
	shard_leave(shard);
	return rc;
}

int
thc_unregister(struct thc_shard *shard, int64_t timeout_ms)
{
	int64_t deadline_ns = 0;
	int rc = deadline_of(timeout_ms, &deadline_ns);

	if (rc == 0)
		rc = shard_enter(shard, ENTER_MEMBER);
	if (rc < 0)
		return rc;
	rc = shard_exclusive_begin(shard);
	if (rc < 0) {
		shard_leave(shard);
		return rc;
	}
	/* Operations and documents go two ways: which came first is not known at the agent. */
	shard_collect(shard);
	if (shard->running != NULL || shard->shadow.copying)
		rc = shim_fail(THC_E_STATE,
			"an operation of this handle runs; wait for its end, or cancel it");
	else if (shard->registration == REGISTRATION_NONE)
		rc = shim_fail(THC_E_STATE, "this handle has no tensors registered");
	else if (shard->registration == REGISTRATION_UNKNOWN)
		rc = register_settle(shard, deadline_ns);
	else
		rc = send_unregister(shard, deadline_ns);
	if (rc == 0) {
		tensors_release(shard);
		/* What does not go now goes before anything else is registered. */
		(void)(sent_flush(shard, deadline_with_grace(deadline_ns)) == 0);
	} else if ((unanswered(rc) || th_is_errno(rc)) &&
		   shard->registration == REGISTRATION_DONE) {
		/* It may be gone at the agent, also where a device keeps the memory. */
		shard->registration = REGISTRATION_UNKNOWN;
	}
	shard_exclusive_end(shard);
	shard_leave(shard);
	return rc;
}

static void
write_path(const struct thc_shard *shard, const struct placed_tensor *placed, char *ret_text,
	size_t text_bytes)
{
	const struct sent_memory *sent = sent_find(shard, placed->serial);
	const char *path = sent != NULL ? sent->path : "copy";

	if (placed->serial == PRIVATE_SERIAL)
		(void)snprintf(ret_text, text_bytes,
			"%s (%s: reached by its address in this process)", path,
			placed->reason != NULL ? placed->reason : "private memory");
	else if (placed->reason != NULL)
		(void)snprintf(ret_text, text_bytes, "%s (%s: reached through its descriptor)",
			path, placed->reason);
	else
		(void)snprintf(ret_text, text_bytes, "%s (memfd, mapped by the agent)", path);
}

int
memory_path_of(struct thc_shard *shard, const char *tensor, char *ret_text, size_t text_bytes)
{
	union {
		const char *constant;
		char *plain;
	} name = {.constant = tensor};
	const struct placed_tensor key = {.name = name.plain};
	const struct placed_tensor *placed =
		shard->num_placed == 0 ? NULL
				       : bsearch(&key, shard->placed, shard->num_placed,
						 sizeof(key), register_by_name);

	if (shard->registration != REGISTRATION_DONE)
		return shim_fail(THC_E_STATE, "this handle has no tensors registered");
	if (placed == NULL)
		return shim_fail(THC_E_INVALID, "tensor: no tensor '%.80s' is registered", tensor);
	if (placed->bytes == 0)
		(void)snprintf(ret_text, text_bytes, "direct (the tensor has no bytes)");
	else if (placed->device != THC_HOST && placed->serial != 0)
		shadow_path(
			&shard->shadow, placed->device, placed->unreached, ret_text, text_bytes);
	else if (placed->device != THC_HOST)
		gpu_path(shard, placed->device, placed->start, ret_text, text_bytes);
	else
		write_path(shard, placed, ret_text, text_bytes);
	return 0;
}

int
thc_memory_path(struct thc_shard *shard, const char *tensor, char *ret_text, size_t text_bytes)
{
	if (tensor == NULL)
		return shim_fail(THC_E_INVALID, "tensor: is NULL");
	if (ret_text == NULL)
		return shim_fail(THC_E_INVALID, "ret_text: is NULL");
	if (text_bytes == 0)
		return shim_fail(THC_E_INVALID, "text_bytes: is 0");
	int rc = shard_enter(shard, ENTER_BEGINS_NOTHING);
	if (rc < 0)
		return rc;
	rc = memory_path_of(shard, tensor, ret_text, text_bytes);
	shard_leave(shard);
	return rc;
}
