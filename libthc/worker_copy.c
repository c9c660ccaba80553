/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_copy - see worker_copy.h.
 */
#include "libthc/worker_copy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/clock.h"
#include "libthc/given.h"
#include "libthc/libthc_own.h"
#include "libthc/register.h"

#define ALIGNMENT 256u

/* ---- places -------------------------------------------------------------------------------- */

static int
worker_copy_by_place(const void *a, const void *b)
{
	const struct checked_tensor *x = *(struct checked_tensor *const *)a,
				    *y = *(struct checked_tensor *const *)b;

	if (x->device != y->device)
		return x->device < y->device ? -1 : 1;
	return x->start < y->start ? -1 : x->start > y->start ? 1 : 0;
}

/* All of WAY_COPIED, by GPU and address. NULL: out of memory. */
static struct checked_tensor **
worker_copy_sort(struct checked_tensors *checked, size_t *ret_count)
{
	struct checked_tensor **sorted = calloc(checked->count, sizeof(struct checked_tensor *));
	size_t count = 0;

	if (sorted == NULL)
		return NULL;
	for (size_t i = 0; i < checked->count; i++)
		if (checked->tensors[i].way == WAY_COPIED)
			sorted[count++] = &checked->tensors[i];
	qsort(sorted, count, sizeof(struct checked_tensor *), worker_copy_by_place);
	*ret_count = count;
	return sorted;
}

/*
 * What lies behind each other in one range of the GPU is one span: a model has thousands of tensors
 * and few of those. What lies between tensors is somebody else's and is never written. Returns the
 * bytes of all.
 */
static uint64_t
find_spans(struct shadow *shadow, const struct checked_tensors *checked,
	struct checked_tensor **sorted, size_t count)
{
	const struct checked_tensor *last = NULL;
	uint64_t end = 0, last_range = 0, serial;

	for (size_t i = 0; i < count; i++) {
		struct checked_tensor *tensor = sorted[i];
		const struct cuda_piece *piece =
			gpu_find(&checked->gpus, tensor->device, tensor->start, &serial);
		if (last != NULL && last->device == tensor->device &&
			last->start == tensor->start) {
			tensor->copy_at = last->copy_at; /* tied */
			continue;
		}
		bool goes_on = last != NULL && last->device == tensor->device &&
			       last_range == piece->range &&
			       last->start + last->bytes == tensor->start;
		if (!goes_on) {
			end = (end + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
			shadow->spans[shadow->count++] = (struct copied_span){
				.gpu = tensor->start, .at = end, .device = tensor->device};
		}
		shadow->spans[shadow->count - 1].bytes += tensor->bytes;
		tensor->copy_at = end;
		end += tensor->bytes;
		last = tensor;
		last_range = piece->range;
	}
	return end;
}

static void
pin(struct shadow *shadow, int64_t until_ns)
{
	const struct copied_span *span = &shadow->spans[0];
	struct th_err err = {0};

	while (shadow->pinned < shadow->object.bytes) {
		uint64_t bytes = th_min_u64(shadow->object.bytes - shadow->pinned, GPU_PIN_BYTES);
		int rc = th_now_ns() >= until_ns
				 ? th_fail(&err, THC_E_TIMEOUT, "there was no time for more")
				 : gpu_pin(shadow->copy.cuda, span->device, span->gpu,
					   shadow->copy.host + shadow->pinned, bytes, &err);
		if (rc < 0) {
			(void)snprintf(
				shadow->not_pinned, sizeof(shadow->not_pinned), "%.150s", err.text);
			return;
		}
		shadow->pinned += bytes;
	}
}

static int
worker_copy_make(struct shadow *shadow, struct checked_tensors *checked,
	struct checked_tensor **sorted, size_t count, int64_t until_ns)
{
	struct th_err err = {0};

	shadow->spans = calloc(count, sizeof(*shadow->spans));
	if (shadow->spans == NULL)
		return shim_fail(-ENOMEM, "out of memory for %zu tensors", count);
	uint64_t bytes = find_spans(shadow, checked, sorted, count);
	int rc = memory_new(bytes, &shadow->object);
	if (rc < 0)
		return shim_fail(rc,
			"tensors: '%s' lies in GPU memory that the agent does not reach, and the "
			"copy in host memory that it needs, of %" PRIu64
			" bytes with its like, is not to be had: %s",
			sorted[0]->name, bytes, th_strerror(rc));
	/* The agent fills it, of a destination, and the pages are to be on this account. */
	rc = memory_populate(&shadow->object, until_ns);
	if (rc == -ETIMEDOUT)
		return shim_fail(THC_E_TIMEOUT,
			"tensors: there was no time to make the %" PRIu64
			" bytes of host memory for a copy of GPU memory; give the call more",
			bytes);
	if (rc < 0)
		return shim_fail(rc,
			"tensors: %" PRIu64
			" bytes of host memory for a copy of GPU memory are not to be had: %s",
			bytes, th_strerror(rc));
	rc = gpu_driver(&shadow->copy.cuda, &err);
	if (rc < 0)
		return shim_fail(rc, "tensors: %s", err.text);
	memcpy(shadow->why, checked->why, sizeof(shadow->why));
	shadow->copy.host = (uint8_t *)shadow->object.start;
	shadow->copy.spans = shadow->spans;
	shadow->copy.count = shadow->count;
	for (size_t i = 0; i < count; i++)
		sorted[i]->object = shadow->object;
	pin(shadow, until_ns);
	return 0;
}

int
shadow_new(struct shadow *shadow, struct checked_tensors *checked, int64_t until_ns)
{
	size_t count = 0;
	struct checked_tensor **sorted = worker_copy_sort(checked, &count);
	int rc = 0;

	if (sorted == NULL)
		return shim_fail(-ENOMEM, "out of memory for %zu tensors", checked->count);
	if (count > 0)
		rc = worker_copy_make(shadow, checked, sorted, count, until_ns);
	free(sorted);
	return rc;
}

void
shadow_free(struct thc_shard *shard)
{
	struct shadow *shadow = &shard->shadow;
	const struct copied_span *span = shadow->spans;

	/* The GPU may still write what it was told to, one day. */
	if (shadow->object.serial != 0 && !shadow->copy.stuck) {
		for (uint64_t at = 0; at < shadow->pinned; at += GPU_PIN_BYTES)
			gpu_unpin(
				shadow->copy.cuda, span->device, span->gpu, shadow->copy.host + at);
		sent_forget(shard, shadow->object.serial);
		memory_end(shadow->object.start, shadow->object.serial);
	}
	free(shadow->spans);
	*shadow = (struct shadow){0};
}

/* ---- moving -------------------------------------------------------------------------------- */

static bool
should_stop(void *arg)
{
	struct thc_shard *shard = arg;

	pthread_mutex_lock(&shard->lock);
	bool stop = shard->life != SHARD_OPEN;
	pthread_mutex_unlock(&shard->lock);
	return stop;
}

/* -ETIMEDOUT without a sentence. */
static int
worker_copy_move(struct thc_shard *shard, bool to_gpu, int64_t until_ns)
{
	struct shadow *shadow = &shard->shadow;
	struct th_err err = {0};
	uint64_t at = 0;

	if (shadow->copy.to_gpu != to_gpu || !to_gpu) {
		shadow->copy.to_gpu = to_gpu;
		shadow->copy.index = 0;
		shadow->copy.offset = 0;
	}
	shadow->copying = true;
	pthread_mutex_unlock(&shard->lock);
	int rc = gpu_copy_run(&shadow->copy, until_ns, should_stop, shard, &err, &at);
	pthread_mutex_lock(&shard->lock);
	shadow->copying = false;
	shard_wake(shard);
	if (rc == 0 || rc == -ETIMEDOUT)
		return rc;
	if (rc == -ECANCELED)
		return shim_fail(THC_E_CANCELLED, "another thread closes this handle");
	return shim_fail(rc,
		"tensor '%.80s' could not be copied %s GPU memory at 0x%" PRIx64 ": %s%s",
		private_tensor_at(shard, (uintptr_t)at), to_gpu ? "to" : "from", at, err.text,
		rc == THC_E_STALE_MEMORY ? "; thc_unregister, and register what is there now" : "");
}

/* The bytes that are held, or read, must not be written over, whatever the agent answers then. */
static int
check_free(struct thc_shard *shard)
{
	struct shm_line line;

	if (ring_line_read(&shard->ring, &line) == 0 && line.safe_to_mutate == 1)
		return 0;
	/* An agent that is gone has nothing to say, and what it said last stays. */
	shard_look(shard);
	if (shard_lost(shard))
		return shard_lost_error(shard);
	return shim_fail(THC_E_STATE,
		"publish: this handle holds a version already, or its memory is still read; "
		"thc_unpublish first");
}

int
shadow_out(struct thc_shard *shard, int64_t until_ns)
{
	if (shard->shadow.count == 0 || shard->running != NULL)
		return 0; /* the submission says what is wrong */
	if (shard->shadow.copying)
		return shim_fail(
			THC_E_STATE, "an operation of this handle runs; only one runs at a time");
	int rc = check_free(shard);
	if (rc == 0)
		rc = worker_copy_move(shard, false, until_ns);
	/* What the GPU has is what counts now. */
	if (rc == 0)
		shard->fill_due = 0;
	if (rc == -ETIMEDOUT)
		return shim_fail(THC_E_TIMEOUT,
			"publish: the GPU memory could not be copied before the deadline; nothing "
			"was changed, give it more time");
	return rc;
}

/* ---- debts --------------------------------------------------------------------------------- */

static bool
is_pull(const struct thc_op *op)
{
	return op->kind == SHM_REPLICATE || op->kind == SHM_UPDATE;
}

void
shadow_ended(struct thc_op *op)
{
	struct thc_shard *shard = op->shard;

	if (op->kind == SHM_UNPUBLISH)
		shard->fill_due = 0; /* nobody wants it any more */
	if (shard->shadow.count == 0 || !is_pull(op) || op->result.updated == 0)
		return;
	op->fills = true;
	shard->fill_due = op->op_seq;
	shard->shadow.copy.index = 0;
	shard->shadow.copy.offset = 0;
}

int
shadow_settle_all(struct thc_shard *shard, int64_t until_ns)
{
	/* Also when that was given up meanwhile: nothing is pulled over what is being copied. */
	while (shard->shadow.copying) {
		if (shard->life != SHARD_OPEN)
			return shim_fail(THC_E_CANCELLED, "another thread closes this handle");
		if (deadline_left(until_ns) == 0)
			return -ETIMEDOUT;
		shard_sleep(shard, until_ns);
	}
	uint64_t due = shard->fill_due;
	if (due == 0 || shard->shadow.count == 0)
		return 0;
	/* It may have been put to sleep since the operation was submitted. */
	int rc = private_look_at_gpus(shard, "replicate");
	if (rc == 0)
		rc = worker_copy_move(shard, true, until_ns);
	if (rc == 0) {
		shard->fill_due = 0;
		shard->filled = due;
	}
	return rc;
}

int
shadow_settle(struct thc_op *op, int64_t until_ns)
{
	struct thc_shard *shard = op->shard;

	if (!op->fills || op->outcome.code != 0 || shard->filled >= op->op_seq)
		return 0;
	int rc = 0;
	if (shard->fill_due == op->op_seq)
		rc = shadow_settle_all(shard, until_ns);
	if (rc < 0 || shard->filled >= op->op_seq)
		return rc;
	return shim_fail(THC_E_CANCELLED,
		"the version was given up before its bytes were copied to GPU memory");
}

void
shadow_path(
	const struct shadow *shadow, int device, bool unreached, char *ret_text, size_t text_bytes)
{
	const char *why = unreached ? "the agent does not reach it" : "no other process can map it";
	bool pinned = shadow->pinned >= shadow->object.bytes;

	(void)snprintf(ret_text, text_bytes,
		"worker-copy (on GPU %d, %s: libthc copies it through %s host memory%s%s%s%s)",
		device, why, pinned ? "pinned" : "pageable",
		pinned ? "" : ", not pinned: ", pinned ? "" : shadow->not_pinned,
		unreached ? "; " : "", unreached ? shadow->why : "");
}

bool
shadow_behind(struct thc_shard *shard, uint64_t lineage, uint64_t version)
{
	const struct shadow *shadow = &shard->shadow;

	if (shadow->count == 0)
		return false;
	shard_collect(shard);
	if (shard->fill_due != 0)
		return true;
	return shard->running != NULL && is_pull(shard->running) &&
	       (lineage != shadow->lineage_before || version != shadow->version_before);
}
