/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream - streams, events and copies.
 *
 * Each stream is a thread that does its work in order. The default stream has none: its work waits
 * for all streams of the context that are not non-blocking and is done by the caller. Copies from
 * or to memory that is not registered are done when the call returns, as the driver stages them.
 * Where work meets memory that has gone meanwhile, its context is lost: CUDA_ERROR_ILLEGAL_ADDRESS.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "tests/support/cuda/calls.h"
#include "tests/support/cuda/gpu.h"

#define BOUNCE_BYTES (1u << 20)
#define EVENTS_MAX 1024u
#define LEGACY_STREAM ((CUstream)(uintptr_t)1)
#define PER_THREAD_STREAM ((CUstream)(uintptr_t)2) /* does as the legacy one does */

enum work_kind { WORK_COPY, WORK_SET, WORK_RECORD, WORK_WAIT, WORK_FREE, WORK_CALL };

struct side { /* of a copy: an address of a GPU, or the host's */
	CUdeviceptr address;
	char *host; /* NULL: a GPU's */
	int device; /* who accesses */
};

struct work {
	struct work *next;
	enum work_kind kind;
	struct side to, from;
	size_t bytes;
	unsigned char value;
	CUevent event;
	uint64_t ticket; /* of the event */
	CUresult (*call)(const void *argument, int device);
	void *argument; /* owns */
};

struct CUstream_st {
	CUcontext context;
	bool alive, ending, threaded, non_blocking, urgent, busy; /* threaded: its thread lives */
	struct work *first, **last;
	uint64_t asked, done; /* works */
	CUresult result;
	pthread_t thread;
};

struct CUevent_st {
	CUcontext context;
	bool alive;
	uint64_t asked, done; /* records */
	CUresult result;      /* of the stream at the last one */
};

static struct CUstream_st streams[GPU_STREAMS_MAX];
static struct CUevent_st events[EVENTS_MAX];
static unsigned num_events;

/* ---- moving bytes --------------------------------------------------------------------------- */

static CUresult
side_spans(const struct side *side, size_t bytes, bool write, struct span **ret_spans,
	size_t *ret_count)
{
	if (!side->host)
		return gpu_spans(side->address, bytes, side->device, write, ret_spans, ret_count);
	*ret_spans = th_calloc(1, sizeof(**ret_spans));
	(*ret_spans)[0] = (struct span){.file = -1, .host = side->host, .bytes = bytes};
	*ret_count = 1;
	return CUDA_SUCCESS;
}

static bool
all_of(ssize_t moved, size_t bytes)
{
	return moved == (ssize_t)bytes;
}

static bool
move_part(
	const struct span *to, size_t to_at, const struct span *from, size_t from_at, size_t bytes)
{
	if (from->file < 0 && to->file < 0) {
		memmove(to->host + to_at, from->host + from_at, bytes);
		return true;
	}
	if (from->file < 0)
		return all_of(
			pwrite(to->file, from->host + from_at, bytes, (off_t)(to->offset + to_at)),
			bytes);
	if (to->file < 0)
		return all_of(
			pread(from->file, to->host + to_at, bytes, (off_t)(from->offset + from_at)),
			bytes);
	char *bounce = malloc(bytes);
	TH_ASSERT(bounce);
	bool moved =
		all_of(pread(from->file, bounce, bytes, (off_t)(from->offset + from_at)), bytes) &&
		all_of(pwrite(to->file, bounce, bytes, (off_t)(to->offset + to_at)), bytes);
	free(bounce);
	return moved;
}

static bool
move_spans(const struct span *to, const struct span *from, size_t bytes)
{
	size_t to_at = 0, from_at = 0;
	while (bytes > 0) {
		size_t part = to->bytes - to_at < from->bytes - from_at ? to->bytes - to_at
									: from->bytes - from_at;
		part = part < BOUNCE_BYTES ? part : BOUNCE_BYTES;
		if (!move_part(to, to_at, from, from_at, part))
			return false;
		bytes -= part;
		to_at += part;
		from_at += part;
		if (to_at == to->bytes) {
			to++;
			to_at = 0;
		}
		if (from_at == from->bytes) {
			from++;
			from_at = 0;
		}
	}
	return true;
}

/* With the lock, which is given away while bytes move. */
static CUresult
do_copy(const struct work *work)
{
	struct span *to = NULL, *from = NULL;
	size_t count = 0;
	CUresult result = side_spans(&work->to, work->bytes, true, &to, &count);
	if (result == CUDA_SUCCESS)
		result = side_spans(&work->from, work->bytes, false, &from, &count);
	if (result == CUDA_SUCCESS) {
		pthread_mutex_unlock(&gpu.lock);
		bool moved = move_spans(to, from, work->bytes);
		pthread_mutex_lock(&gpu.lock);
		if (!moved)
			result = CUDA_ERROR_INVALID_VALUE;
	}
	free(to);
	free(from);
	return result;
}

static CUresult
do_set(const struct work *work)
{
	size_t part = work->bytes < BOUNCE_BYTES ? work->bytes : BOUNCE_BYTES;
	char *values = malloc(part ? part : 1);
	CUresult result = CUDA_SUCCESS;
	TH_ASSERT(values);
	memset(values, work->value, part);
	for (size_t at = 0; at < work->bytes && result == CUDA_SUCCESS; at += part) {
		struct work piece = *work;
		piece.to.address += at;
		piece.from = (struct side){.host = values};
		piece.bytes = work->bytes - at < part ? work->bytes - at : part;
		result = do_copy(&piece);
	}
	free(values);
	return result;
}

static CUresult
do_free(CUdeviceptr address)
{
	struct region *region = gpu_region_at(address);
	if (!region || region->base != address)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	size_t bytes = region->bytes;
	gpu_count(region->kind == REGION_IMPORT ? HELD_IMPORTS : HELD_ALLOCATIONS, -1);
	gpu_region_remove(region);
	gpu_unreserve(address, bytes);
	return CUDA_SUCCESS;
}

/* ---- streams -------------------------------------------------------------------------------- */

static CUresult
do_work(CUstream stream, struct work *work)
{
	pthread_mutex_unlock(&gpu.lock);
	CUresult result = gpu_plan_met(CALL_STREAM);
	pthread_mutex_lock(&gpu.lock);
	if (result == CUDA_SUCCESS)
		result = gpu_lost(stream->context->device);
	if (result != CUDA_SUCCESS)
		return result;
	switch (work->kind) {
	case WORK_COPY:
		result = do_copy(work);
		return result == CUDA_SUCCESS ? result : CUDA_ERROR_ILLEGAL_ADDRESS;
	case WORK_SET:
		result = do_set(work);
		return result == CUDA_SUCCESS ? result : CUDA_ERROR_ILLEGAL_ADDRESS;
	case WORK_RECORD:
		return CUDA_SUCCESS;
	case WORK_WAIT:
		while (work->event->done < work->ticket && !stream->ending)
			pthread_cond_wait(&gpu.changed, &gpu.lock);
		return CUDA_SUCCESS;
	case WORK_FREE:
		return do_free(work->to.address);
	case WORK_CALL:
		pthread_mutex_unlock(&gpu.lock);
		result = work->call(work->argument, stream->context->device);
		pthread_mutex_lock(&gpu.lock);
		return result;
	}
	return CUDA_ERROR_UNKNOWN;
}

static void
record(const struct work *work, CUresult result)
{
	if (work->kind != WORK_RECORD)
		return;
	work->event->result = result;
	if (work->event->done < work->ticket)
		work->event->done = work->ticket;
}

static void *
run(void *argument)
{
	CUstream stream = argument;
	pthread_mutex_lock(&gpu.lock);
	for (;;) {
		while (!stream->first && !stream->ending)
			pthread_cond_wait(&gpu.changed, &gpu.lock);
		struct work *work = stream->first;
		if (!work)
			break;
		stream->first = work->next;
		if (!stream->first)
			stream->last = &stream->first;
		stream->busy = true;
		if (stream->result == CUDA_SUCCESS)
			stream->result = do_work(stream, work);
		/* Behind a failure nothing is done, and nobody waits for ever. */
		record(work, stream->result);
		stream->busy = false;
		stream->done++;
		free(work->argument);
		free(work);
		pthread_cond_broadcast(&gpu.changed);
	}
	stream->threaded = false;
	pthread_mutex_unlock(&gpu.lock);
	return NULL;
}

static bool
is_default_stream(CUstream stream)
{
	return !stream || stream == LEGACY_STREAM || stream == PER_THREAD_STREAM;
}

static bool
is_stream(CUstream stream)
{
	return stream >= streams && stream < streams + GPU_STREAMS_MAX && stream->alive;
}

/* For what has been asked of it until now. */
static CUresult
wait_stream(CUstream stream)
{
	uint64_t asked = stream->asked;
	while (stream->done < asked)
		pthread_cond_wait(&gpu.changed, &gpu.lock);
	return stream->result;
}

CUresult
gpu_wait_device(int device)
{
	CUresult result = CUDA_SUCCESS;
	for (unsigned i = 0; i < GPU_STREAMS_MAX; i++) {
		if (!streams[i].alive || (device >= 0 && streams[i].context->device != device))
			continue;
		CUresult one = wait_stream(&streams[i]);
		result = result == CUDA_SUCCESS ? one : result;
	}
	return result;
}

static CUresult
wait_context(CUcontext context, bool blocking_only)
{
	CUresult result = CUDA_SUCCESS;
	for (unsigned i = 0; i < GPU_STREAMS_MAX; i++) {
		if (!streams[i].alive || streams[i].context != context ||
			(blocking_only && streams[i].non_blocking))
			continue;
		CUresult one = wait_stream(&streams[i]);
		result = result == CUDA_SUCCESS ? one : result;
	}
	return result;
}

static void
end_stream(CUstream stream)
{
	stream->ending = true; /* what is queued is still done */
	stream->alive = false;
	pthread_cond_broadcast(&gpu.changed);
	gpu_count(HELD_STREAMS, -1);
	if (stream->urgent)
		gpu_count(HELD_URGENT_STREAMS, -1);
}

void
gpu_streams_end(CUcontext context)
{
	wait_context(context, false);
	for (unsigned i = 0; i < GPU_STREAMS_MAX; i++)
		if (streams[i].alive && streams[i].context == context)
			end_stream(&streams[i]);
	for (unsigned i = 0; i < num_events; i++)
		if (events[i].alive && events[i].context == context) {
			events[i].alive = false;
			gpu_count(HELD_EVENTS, -1);
		}
}

static CUstream
free_stream(void)
{
	static unsigned turn; /* what was destroyed is refused for as long as can be */
	for (unsigned i = 0; i < GPU_STREAMS_MAX; i++) {
		CUstream stream = &streams[turn++ % GPU_STREAMS_MAX];
		if (!stream->threaded)
			return stream;
	}
	return NULL;
}

CUresult
cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
	ENTER(cuStreamCreateWithPriority);
	CUcontext context = gpu_context();
	if (!context)
		return gpu_no_context();
	if (!stream || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&gpu.lock);
	CUstream added = free_stream();
	if (!added)
		return gpu_leave(CUDA_ERROR_OUT_OF_MEMORY);
	*added = (struct CUstream_st){.context = context,
		.alive = true,
		.threaded = true,
		.non_blocking = (flags & CU_STREAM_NON_BLOCKING) != 0,
		.urgent = priority < 0 || !(flags & CU_STREAM_NON_BLOCKING)};
	added->last = &added->first;
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int rc = pthread_create(&added->thread, NULL, run, added);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc != 0) {
		added->alive = added->threaded = false;
		return gpu_leave(CUDA_ERROR_OUT_OF_MEMORY);
	}
	pthread_detach(added->thread);
	gpu_count(HELD_STREAMS, 1);
	if (added->urgent)
		gpu_count(HELD_URGENT_STREAMS, 1);
	*stream = added;
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuStreamDestroy(CUstream stream)
{
	ENTER(cuStreamDestroy);
	pthread_mutex_lock(&gpu.lock);
	if (!is_stream(stream))
		return gpu_leave(CUDA_ERROR_INVALID_HANDLE);
	end_stream(stream);
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuStreamQuery(CUstream stream)
{
	ENTER(cuStreamQuery);
	CUcontext context = gpu_context();
	pthread_mutex_lock(&gpu.lock);
	if (is_default_stream(stream))
		return gpu_leave(context ? CUDA_SUCCESS : gpu_no_context());
	if (!is_stream(stream))
		return gpu_leave(CUDA_ERROR_INVALID_HANDLE);
	return gpu_leave(stream->first || stream->busy ? CUDA_ERROR_NOT_READY : stream->result);
}

CUresult
cuStreamSynchronize(CUstream stream)
{
	ENTER(cuStreamSynchronize);
	CUcontext context = gpu_context();
	pthread_mutex_lock(&gpu.lock);
	if (is_default_stream(stream))
		return gpu_leave(context ? wait_context(context, true) : gpu_no_context());
	return gpu_leave(is_stream(stream) ? wait_stream(stream) : CUDA_ERROR_INVALID_HANDLE);
}

CUresult
cuCtxSynchronize(void)
{
	ENTER(cuCtxSynchronize);
	CUcontext context = gpu_context();
	if (!context)
		return gpu_no_context();
	pthread_mutex_lock(&gpu.lock);
	return gpu_leave(wait_context(context, false));
}

/* After all before it; done at once on the default stream. The lock is held. */
static CUresult
queue(const struct work *form, CUstream stream)
{
	CUcontext context = gpu_context();
	if (is_default_stream(stream)) {
		struct work work = *form;
		struct CUstream_st here = {.context = context};
		if (!context)
			return gpu_no_context();
		CUresult result = wait_context(context, true);
		result = result == CUDA_SUCCESS ? do_work(&here, &work) : result;
		record(&work, result);
		return result;
	}
	if (!is_stream(stream))
		return CUDA_ERROR_INVALID_HANDLE;
	if (stream->result != CUDA_SUCCESS)
		return stream->result;
	struct work *work = th_memdup(form, sizeof(*form));
	work->next = NULL;
	*stream->last = work;
	stream->last = &work->next;
	stream->asked++;
	pthread_cond_broadcast(&gpu.changed);
	return CUDA_SUCCESS;
}

CUresult
gpu_queue_free(CUdeviceptr address, CUstream stream)
{
	struct work work = {.kind = WORK_FREE, .to.address = address};
	return queue(&work, stream);
}

CUresult
gpu_queue_call(CUresult (*call)(const void *argument, int device), const void *argument,
	size_t bytes, CUstream stream)
{
	struct work work = {
		.kind = WORK_CALL, .call = call, .argument = th_memdup(argument, bytes)};
	CUresult result = queue(&work, stream);
	if (is_default_stream(stream) || result != CUDA_SUCCESS)
		free(work.argument);
	return result;
}

/* ---- events --------------------------------------------------------------------------------- */

static bool
is_event(CUevent event)
{
	return event >= events && event < events + num_events && event->alive;
}

CUresult
cuEventCreate(CUevent *event, unsigned flags)
{
	ENTER(cuEventCreate);
	CUcontext context = gpu_context();
	if (!context)
		return gpu_no_context();
	if (!event || (flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&gpu.lock);
	if (num_events == EVENTS_MAX)
		return gpu_leave(CUDA_ERROR_OUT_OF_MEMORY);
	events[num_events] = (struct CUevent_st){.context = context, .alive = true};
	*event = &events[num_events++];
	gpu_count(HELD_EVENTS, 1);
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuEventDestroy(CUevent event)
{
	ENTER(cuEventDestroy);
	pthread_mutex_lock(&gpu.lock);
	if (!is_event(event))
		return gpu_leave(CUDA_ERROR_INVALID_HANDLE);
	event->alive = false; /* who waits for it goes on waiting */
	gpu_count(HELD_EVENTS, -1);
	return gpu_leave(CUDA_SUCCESS);
}

CUresult
cuEventRecord(CUevent event, CUstream stream)
{
	ENTER(cuEventRecord);
	CUcontext context = gpu_context();
	pthread_mutex_lock(&gpu.lock);
	if (!is_event(event))
		return gpu_leave(CUDA_ERROR_INVALID_HANDLE);
	CUcontext of = is_stream(stream) ? stream->context : context;
	if (event->context != of)
		return gpu_leave(CUDA_ERROR_INVALID_HANDLE);
	struct work work = {.kind = WORK_RECORD, .event = event, .ticket = ++event->asked};
	return gpu_leave(queue(&work, stream));
}

CUresult
cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	ENTER(cuStreamWaitEvent);
	pthread_mutex_lock(&gpu.lock);
	if (!is_event(event))
		return gpu_leave(CUDA_ERROR_INVALID_HANDLE);
	if (flags != 0)
		return gpu_leave(CUDA_ERROR_INVALID_VALUE);
	struct work work = {.kind = WORK_WAIT, .event = event, .ticket = event->asked};
	return gpu_leave(queue(&work, stream));
}

CUresult
cuEventQuery(CUevent event)
{
	ENTER(cuEventQuery);
	pthread_mutex_lock(&gpu.lock);
	if (!is_event(event))
		return gpu_leave(CUDA_ERROR_INVALID_HANDLE);
	return gpu_leave(event->done < event->asked ? CUDA_ERROR_NOT_READY : event->result);
}

CUresult
cuEventSynchronize(CUevent event)
{
	ENTER(cuEventSynchronize);
	pthread_mutex_lock(&gpu.lock);
	if (!is_event(event))
		return gpu_leave(CUDA_ERROR_INVALID_HANDLE);
	while (event->done < event->asked)
		pthread_cond_wait(&gpu.changed, &gpu.lock);
	return gpu_leave(event->result);
}

/* ---- copies --------------------------------------------------------------------------------- */

/* Checked when it is asked for, as the driver does, and again when it is done. */
static CUresult
copy(const struct work *work, CUstream stream, bool wait)
{
	struct span *spans = NULL;
	size_t count = 0;
	CUcontext context = gpu_context();
	if (!context)
		return gpu_no_context();
	if (work->bytes == 0)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&gpu.lock);
	CUresult result = side_spans(&work->to, work->bytes, true, &spans, &count);
	free(spans);
	spans = NULL;
	if (result == CUDA_SUCCESS && work->kind == WORK_COPY)
		result = side_spans(&work->from, work->bytes, false, &spans, &count);
	free(spans);
	if (result == CUDA_SUCCESS)
		result = queue(work, stream);
	bool staged = (work->to.host && !gpu_is_pinned(work->to.host, work->bytes)) ||
		      (work->from.host && !gpu_is_pinned(work->from.host, work->bytes));
	if (result == CUDA_SUCCESS && (wait || staged) && is_stream(stream))
		result = wait_stream(stream);
	return gpu_leave(result);
}

static int
accessing(void)
{
	CUcontext context = gpu_context();
	return context ? context->device : 0;
}

static CUresult
copy_in(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	struct work work = {.kind = WORK_COPY,
		.to = {.address = to, .device = accessing()},
		.from = {.host = (char *)(uintptr_t)from},
		.bytes = bytes};
	return from || bytes == 0 ? copy(&work, stream, false) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult
copy_out(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	struct work work = {.kind = WORK_COPY,
		.to = {.host = to},
		.from = {.address = from, .device = accessing()},
		.bytes = bytes};
	return to || bytes == 0 ? copy(&work, stream, false) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult
copy_within(CUdeviceptr to, int to_device, CUdeviceptr from, int from_device, size_t bytes,
	CUstream stream)
{
	struct work work = {.kind = WORK_COPY,
		.to = {.address = to, .device = to_device},
		.from = {.address = from, .device = from_device},
		.bytes = bytes};
	return copy(&work, stream, false);
}

CUresult
cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes)
{
	ENTER(cuMemcpyHtoD);
	return copy_in(to, from, bytes, NULL);
}

CUresult
cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes)
{
	ENTER(cuMemcpyDtoH);
	return copy_out(to, from, bytes, NULL);
}

CUresult
cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	ENTER(cuMemcpyDtoD);
	return copy_within(to, accessing(), from, accessing(), bytes, NULL);
}

CUresult
cuMemsetD8(CUdeviceptr to, unsigned char value, size_t bytes)
{
	ENTER(cuMemsetD8);
	struct work work = {.kind = WORK_SET,
		.to = {.address = to, .device = accessing()},
		.bytes = bytes,
		.value = value};
	return copy(&work, NULL, true);
}

CUresult
cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	ENTER(cuMemcpyHtoDAsync);
	return copy_in(to, from, bytes, stream);
}

CUresult
cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	ENTER(cuMemcpyDtoHAsync);
	return copy_out(to, from, bytes, stream);
}

CUresult
cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	ENTER(cuMemcpyDtoDAsync);
	return copy_within(to, accessing(), from, accessing(), bytes, stream);
}

CUresult
cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
	size_t bytes, CUstream stream)
{
	ENTER(cuMemcpyPeerAsync);
	if (!gpu_is_context(to_context) || !gpu_is_context(from_context))
		return CUDA_ERROR_INVALID_CONTEXT;
	return copy_within(to, to_context->device, from, from_context->device, bytes, stream);
}
