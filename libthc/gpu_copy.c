/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_copy - see gpu_copy.h.
 */
#include "libthc/gpu_copy.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

#include "ipc/base/clock.h"
#include "ipc/cuda/context.h"
#include "libthc/libthc_own.h"

#define SLICE_BYTES ((uint64_t)16 << 20) /* of one copy, which lies in one pinned part */
#define PART_BYTES ((uint64_t)32 << 20)  /* on a stream before the other one's are waited for */
#define PART_COPIES 512u
/* What a copy that was begun may take: bounded, or it hangs. */
#define HANG_NS INT64_C(400000000)
#define SPINS 200u
#define NAP_NS 50000
_Static_assert(GPU_PIN_BYTES % SLICE_BYTES == 0, "no copy touches two pinned parts");

/* ---- copies -------------------------------------------------------------------------------- */

struct run {
	struct gpu_copy *copy;
	int64_t until_ns;
	gpu_copy_stop stop;
	void *arg;
	struct th_err *err;
	uint64_t *ret_at;
	CUstream streams[2];
	bool busy[2];
};

static int
gpu_copy_fail(const struct run *run, CUresult result, const char *what)
{
	const struct gpu_copy *copy = run->copy;
	size_t last = copy->index < copy->count ? copy->index : copy->count - 1;

	*run->ret_at = copy->spans[last].gpu;
	/* The driver knows no memory there. */
	if (result == CUDA_ERROR_INVALID_VALUE)
		return th_fail(run->err, THC_E_STALE_MEMORY, "%s says %s", what,
			cuda_result_name(copy->cuda, result));
	return th_fail(run->err, THC_E_MEMORY_KIND,
		"%s says %s; where the GPU or its context in this process has failed, only a new "
		"process can use it",
		what, cuda_result_name(copy->cuda, result));
}

/* As much as one part has, and moves on behind it. */
static int
gpu_copy_submit(const struct run *run, CUstream stream)
{
	struct gpu_copy *copy = run->copy;
	const int device = copy->spans[copy->index].device;
	uint64_t bytes = 0;

	for (unsigned i = 0; i < PART_COPIES && bytes < PART_BYTES && copy->index < copy->count;
		i++) {
		const struct copied_span *span = &copy->spans[copy->index];
		if (span->device != device)
			break;
		uint64_t gpu = span->gpu + copy->offset, at = span->at + copy->offset;
		uint64_t slice =
			th_min_u64(span->bytes - copy->offset, SLICE_BYTES - at % SLICE_BYTES);
		CUresult result = copy->to_gpu ? copy->cuda->cuMemcpyHtoDAsync(gpu, copy->host + at,
							 (size_t)slice, stream)
					       : copy->cuda->cuMemcpyDtoHAsync(copy->host + at, gpu,
							 (size_t)slice, stream);
		if (result != CUDA_SUCCESS)
			return gpu_copy_fail(run, result, "the copy");
		bytes += slice;
		copy->offset += slice;
		if (copy->offset == span->bytes) {
			copy->index++;
			copy->offset = 0;
		}
	}
	return 0;
}

static void
nap(unsigned turn)
{
	const struct timespec while_ = {.tv_nsec = NAP_NS};

	if (turn < SPINS)
		(void)sched_yield();
	else
		(void)nanosleep(&while_, NULL);
}

/* What was given to the stream is done: 0. However late: so much is not much. */
static int
await_stream(struct run *run, unsigned which)
{
	int64_t end_ns = th_deadline_ns(run->until_ns, HANG_NS);
	bool stopping = false;

	if (!run->busy[which])
		return 0;
	for (unsigned turn = 0;; turn++) {
		CUresult result = run->copy->cuda->cuStreamQuery(run->streams[which]);
		if (result == CUDA_SUCCESS)
			break;
		if (result != CUDA_ERROR_NOT_READY)
			return gpu_copy_fail(run, result, "the stream of the copy");
		int64_t now_ns = th_now_ns();
		if (!stopping && run->stop(run->arg)) {
			stopping = true;
			end_ns = th_min_i64(end_ns, now_ns + HANG_NS);
		}
		if (now_ns >= end_ns) {
			run->copy->stuck = true;
			return gpu_copy_fail(run, result, "a copy that does not end");
		}
		nap(turn);
	}
	run->busy[which] = false;
	return 0;
}

static int
copy_parts(struct run *run)
{
	struct gpu_copy *copy = run->copy;
	int device = copy->spans[copy->index].device;
	int rc = 0;

	for (unsigned which = 0;
		copy->index < copy->count && copy->spans[copy->index].device == device;
		which ^= 1) {
		rc = await_stream(run, which);
		if (rc < 0)
			return rc;
		if (th_now_ns() >= run->until_ns)
			return -ETIMEDOUT;
		if (run->stop(run->arg))
			return -ECANCELED;
		run->busy[which] = true;
		rc = gpu_copy_submit(run, run->streams[which]);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Those that are on the GPU of the next span. */
static int
copy_device(struct run *run)
{
	const struct cuda *cuda = run->copy->cuda;
	const struct copied_span *span = &run->copy->spans[run->copy->index];
	struct cuda_context context;
	CUresult result = CUDA_SUCCESS;

	*run->ret_at = span->gpu;
	int rc = cuda_context_enter(cuda, span->device, span->gpu, &context, run->err);
	if (rc < 0)
		return rc;
	for (unsigned i = 0; i < 2 && result == CUDA_SUCCESS; i++)
		result = cuda->cuStreamCreateWithPriority(
			&run->streams[i], CU_STREAM_NON_BLOCKING, 0);
	rc = result == CUDA_SUCCESS ? copy_parts(run)
				    : gpu_copy_fail(run, result, "making a stream");
	for (unsigned i = 0; i < 2 && !run->copy->stuck; i++) {
		int waited = await_stream(run, i);
		if (waited < 0 && (rc == 0 || rc == -ETIMEDOUT || rc == -ECANCELED))
			rc = waited;
	}
	/* A stream that hangs is never given back: that might wait for it. */
	for (unsigned i = 0; i < 2 && !run->copy->stuck; i++)
		if (run->streams[i] != NULL)
			(void)cuda->cuStreamDestroy(run->streams[i]);
	run->streams[0] = run->streams[1] = NULL;
	run->busy[0] = run->busy[1] = false;
	cuda_context_leave(&context);
	return rc;
}

int
gpu_copy_run(struct gpu_copy *copy, int64_t until_ns, gpu_copy_stop stop, void *arg,
	struct th_err *err, uint64_t *ret_at)
{
	struct run run = {.copy = copy,
		.until_ns = until_ns,
		.stop = stop,
		.arg = arg,
		.err = err,
		.ret_at = ret_at};
	int rc = 0;

	if (copy->stuck) {
		*ret_at = copy->spans[0].gpu;
		return th_fail(err, THC_E_MEMORY_KIND,
			"an earlier copy still hangs in the CUDA driver; only a new process can "
			"use this GPU");
	}
	while (rc == 0 && copy->index < copy->count)
		rc = copy_device(&run);
	/* What has failed is not known to be there as far as it was given to the driver. */
	if (rc < 0 && rc != -ETIMEDOUT && rc != -ECANCELED) {
		copy->index = 0;
		copy->offset = 0;
	}
	return rc;
}

/* ---- pinned memory ------------------------------------------------------------------------- */

int
gpu_pin(const struct cuda *cuda, int device, uint64_t address, void *host, uint64_t bytes,
	struct th_err *err)
{
	struct cuda_context context;
	int rc = cuda_context_enter(cuda, device, address, &context, err);

	if (rc < 0)
		return rc;
	CUresult result = cuda->cuMemHostRegister(host, (size_t)bytes, CU_MEMHOSTREGISTER_PORTABLE);
	if (result != CUDA_SUCCESS)
		rc = th_fail(err, THC_E_MEMORY_KIND, "cuMemHostRegister says %s",
			cuda_result_name(cuda, result));
	cuda_context_leave(&context);
	return rc;
}

/* Without a context there is nothing pinned any more. */
void
gpu_unpin(const struct cuda *cuda, int device, uint64_t address, void *host)
{
	struct cuda_context context;
	struct th_err err = {0};

	if (cuda_context_enter(cuda, device, address, &context, &err) < 0)
		return;
	(void)cuda->cuMemHostUnregister(host);
	cuda_context_leave(&context);
}
