/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_gpus - see fake_gpus.h.
 */
#include "tests/support/fake_gpus.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "transport/digest.h"

#define PIECES_MAX 16u
#define OPS (GPU_HASH + 1)

struct gpus {
	pthread_mutex_t lock;
	pthread_cond_t work;
	pthread_t thread;
	int wake_fd;
	/* Guarded by lock. */
	bool stopping, hold;
	struct gpu_request *first, **last;
	uint32_t running, spaces;
	uint32_t counts[OPS], after[OPS];
	int codes[OPS];
	uint32_t flip_after[OPS], flips[OPS];
	uint32_t blocks, blocks_max;
	uint64_t waits;
	struct gpus_waiter *waiters, **waiters_last;
};

struct gpu_space {
	struct gpus *gpus;
	uint8_t uuid[16];
	uint32_t references; /* atomic */
	struct {
		uint64_t base, bytes;
	} pieces[PIECES_MAX]; /* guarded by the lock */
	uint32_t num_pieces;
};

/* ---- work ---------------------------------------------------------------------------------- */

struct walk {
	const struct gpu_span *spans;
	uint32_t count, i;
	uint64_t at;
};

/* The next bytes of one side, at most as many. */
static uint8_t *
next(struct walk *walk, uint64_t bytes, uint64_t *ret_bytes)
{
	while (walk->at == walk->spans[walk->i].bytes) {
		walk->i++;
		walk->at = 0;
		TH_ASSERT(walk->i < walk->count);
	}
	const struct gpu_span *span = &walk->spans[walk->i];
	uint8_t *data = (uint8_t *)(uintptr_t)(span->address + walk->at);
	*ret_bytes = th_min_u64(bytes, span->bytes - walk->at);
	walk->at += *ret_bytes;
	return data;
}

static bool
all_there(const struct gpu_span *spans, uint32_t count)
{
	bool all = true;
	for (uint32_t i = 0; i < count; i++) {
		TH_ASSERT(memcmp(spans[i].space->uuid, spans[0].space->uuid, 16) == 0);
		all = all && gpu_space_has(spans[i].space, spans[i].address, spans[i].bytes);
	}
	return all;
}

static void
move(struct gpu_request *request)
{
	struct walk to = {.spans = request->to, .count = request->num_to};
	struct walk from = {.spans = request->from, .count = request->num_from};
	struct digest digest;
	uint8_t *data = request->data;
	digest_init(&digest);
	for (uint64_t left = request->bytes; left > 0;) {
		uint64_t bytes = left;
		uint8_t *source = data, *target = data;
		if (from.count > 0)
			source = next(&from, bytes, &bytes);
		if (to.count > 0) {
			struct walk before = from;
			uint64_t whole = bytes;
			target = next(&to, bytes, &bytes);
			/* What the other side has no room for comes again. */
			if (from.count > 0) {
				from = before;
				from.at -= whole - bytes;
			}
		}
		digest_update(&digest, source, bytes);
		if (request->op != GPU_HASH)
			memcpy(target, source, bytes);
		if (data)
			data += bytes;
		left -= bytes;
	}
	request->digest = digest_final(&digest);
}

/* Under the lock. */
static bool
flips(struct gpus *gpus, enum gpu_run_op op)
{
	if (gpus->flips[op] == 0)
		return false;
	if (gpus->flip_after[op] > 0) {
		gpus->flip_after[op]--;
		return false;
	}
	gpus->flips[op]--;
	return true;
}

static void
serve(struct gpus *gpus, struct gpu_request *request)
{
	int code = 0;
	pthread_mutex_lock(&gpus->lock);
	bool flip = flips(gpus, request->op);
	gpus->counts[request->op]++;
	if (gpus->codes[request->op] != 0 && gpus->after[request->op] == 0)
		code = gpus->codes[request->op];
	else if (gpus->codes[request->op] != 0)
		gpus->after[request->op]--;
	pthread_mutex_unlock(&gpus->lock);
	if (code == 0 && (!all_there(request->to, request->num_to) ||
				 !all_there(request->from, request->num_from)))
		code = TH_E_STALE_MEMORY;
	request->code = code;
	request->text[0] = '\0';
	if (code == 0)
		move(request);
	if (flip)
		request->digest.lo ^= 1;
	if (code < 0)
		snprintf(request->text, sizeof(request->text), "the test said so");
}

static void *
gpus_main(void *arg)
{
	struct gpus *gpus = arg;
	pthread_mutex_lock(&gpus->lock);
	while (!gpus->stopping || gpus->first) {
		struct gpu_request *request = gpus->first;
		if (!request || (gpus->hold && !gpus->stopping)) {
			pthread_cond_wait(&gpus->work, &gpus->lock);
			continue;
		}
		gpus->first = request->next;
		if (!gpus->first)
			gpus->last = &gpus->first;
		pthread_mutex_unlock(&gpus->lock);
		serve(gpus, request);
		pthread_mutex_lock(&gpus->lock);
		gpus->running--;
		pthread_mutex_unlock(&gpus->lock);
		request->done(request);
		pthread_mutex_lock(&gpus->lock);
	}
	pthread_mutex_unlock(&gpus->lock);
	return NULL;
}

static struct gpus *
gpus_of(const struct gpu_request *request)
{
	return (request->num_to > 0 ? request->to : request->from)[0].space->gpus;
}

void
gpu_submit(struct gpu_request *request)
{
	struct gpus *gpus = gpus_of(request);
	request->next = NULL;
	pthread_mutex_lock(&gpus->lock);
	TH_ASSERT(!gpus->stopping);
	*gpus->last = request;
	gpus->last = &request->next;
	gpus->running++;
	pthread_cond_signal(&gpus->work);
	pthread_mutex_unlock(&gpus->lock);
}

/* ---- life ---------------------------------------------------------------------------------- */

struct gpus *
fake_gpus_new(uint64_t staging_bytes)
{
	struct gpus *gpus = th_calloc(1, sizeof(*gpus));
	pthread_mutex_init(&gpus->lock, NULL);
	pthread_cond_init(&gpus->work, NULL);
	gpus->wake_fd = eventfd(0, EFD_CLOEXEC);
	gpus->last = &gpus->first;
	gpus->waiters_last = &gpus->waiters;
	gpus->blocks_max = (uint32_t)(staging_bytes / GPUS_BLOCK_BYTES);
	int rc = pthread_create(&gpus->thread, NULL, gpus_main, gpus);
	TH_ASSERT(rc == 0 && gpus->wake_fd >= 0);
	return gpus;
}

void
gpus_free(struct gpus *gpus)
{
	if (!gpus)
		return;
	pthread_mutex_lock(&gpus->lock);
	gpus->stopping = true;
	pthread_cond_signal(&gpus->work);
	pthread_mutex_unlock(&gpus->lock);
	pthread_join(gpus->thread, NULL);
	TH_ASSERT(gpus->spaces == 0 && gpus->blocks == 0 && !gpus->waiters);
	pthread_cond_destroy(&gpus->work);
	pthread_mutex_destroy(&gpus->lock);
	close(gpus->wake_fd);
	free(gpus);
}

void
fake_gpus_hold(struct gpus *gpus, bool hold)
{
	pthread_mutex_lock(&gpus->lock);
	gpus->hold = hold;
	pthread_cond_signal(&gpus->work);
	pthread_mutex_unlock(&gpus->lock);
}

void
fake_gpus_fail(struct gpus *gpus, enum gpu_run_op op, int code, uint32_t after)
{
	pthread_mutex_lock(&gpus->lock);
	gpus->codes[op] = code;
	gpus->after[op] = after;
	pthread_mutex_unlock(&gpus->lock);
}

void
fake_gpus_flip(struct gpus *gpus, enum gpu_run_op op, uint32_t after, uint32_t count)
{
	pthread_mutex_lock(&gpus->lock);
	gpus->flip_after[op] = after;
	gpus->flips[op] = count;
	pthread_mutex_unlock(&gpus->lock);
}

static uint32_t
look(struct gpus *gpus, const uint32_t *number)
{
	pthread_mutex_lock(&gpus->lock);
	uint32_t now = *number;
	pthread_mutex_unlock(&gpus->lock);
	return now;
}

uint32_t
fake_gpus_count(struct gpus *gpus, enum gpu_run_op op)
{
	return look(gpus, &gpus->counts[op]);
}

uint32_t
fake_gpus_running(struct gpus *gpus)
{
	return look(gpus, &gpus->running);
}

uint32_t
fake_gpus_blocks(struct gpus *gpus)
{
	return look(gpus, &gpus->blocks);
}

uint32_t
fake_gpus_spaces(struct gpus *gpus)
{
	return look(gpus, &gpus->spaces);
}

/* ---- spaces -------------------------------------------------------------------------------- */

struct gpu_space *
gpu_space_new(struct gpus *gpus, const uint8_t uuid[16], const char *label, struct th_err *err)
{
	struct gpu_space *space = th_calloc(1, sizeof(*space));
	(void)label;
	(void)err;
	space->gpus = gpus;
	space->references = 1;
	memcpy(space->uuid, uuid, 16);
	pthread_mutex_lock(&gpus->lock);
	gpus->spaces++;
	pthread_mutex_unlock(&gpus->lock);
	return space;
}

struct gpu_space *
gpu_space_retain(struct gpu_space *space)
{
	__atomic_add_fetch(&space->references, 1, __ATOMIC_RELAXED);
	return space;
}

void
gpu_space_release(struct gpu_space *space)
{
	if (!space || __atomic_sub_fetch(&space->references, 1, __ATOMIC_ACQ_REL) != 0)
		return;
	struct gpus *gpus = space->gpus;
	pthread_mutex_lock(&gpus->lock);
	gpus->spaces--;
	pthread_mutex_unlock(&gpus->lock);
	free(space);
}

const uint8_t *
gpu_space_uuid(const struct gpu_space *space)
{
	return space->uuid;
}

int
gpu_space_wake_fd(const struct gpu_space *space)
{
	return space->gpus->wake_fd;
}

int
gpu_space_add(struct gpu_space *space, const struct cuda_handle *handle, uint64_t base, int fd,
	struct th_err *err, uint64_t *ret_piece)
{
	(void)err;
	TH_ASSERT(fd < 0 && space->num_pieces < PIECES_MAX);
	pthread_mutex_lock(&space->gpus->lock);
	space->pieces[space->num_pieces].base = base;
	space->pieces[space->num_pieces].bytes = handle->bytes;
	*ret_piece = space->num_pieces++;
	pthread_mutex_unlock(&space->gpus->lock);
	return 0;
}

void
gpu_space_forget(struct gpu_space *space, uint64_t piece)
{
	pthread_mutex_lock(&space->gpus->lock);
	space->pieces[piece].bytes = 0;
	pthread_mutex_unlock(&space->gpus->lock);
}

bool
gpu_space_has(struct gpu_space *space, uint64_t address, uint64_t bytes)
{
	bool has = false;
	pthread_mutex_lock(&space->gpus->lock);
	for (uint32_t i = 0; i < space->num_pieces; i++) {
		uint64_t base = space->pieces[i].base;
		has = has || (address >= base &&
				     th_range_fits(address - base, bytes, space->pieces[i].bytes));
	}
	pthread_mutex_unlock(&space->gpus->lock);
	return has;
}

void
gpu_space_settle(
	struct gpu_space *space, void (*settled)(void *arg, const struct th_err *result), void *arg)
{
	const struct th_err none = {0};
	(void)space;
	settled(arg, &none);
}

/* ---- blocks -------------------------------------------------------------------------------- */

static bool
may_have(const struct gpus *gpus, const struct gpus_waiter *waiter)
{
	uint32_t kept = th_max_u32(gpus->blocks_max / 4, 1);
	return gpus->blocks < (waiter ? gpus->blocks_max : gpus->blocks_max - kept);
}

static uint8_t *
make(struct gpus *gpus)
{
	gpus->blocks++;
	uint8_t *data = malloc(GPUS_BLOCK_BYTES);
	TH_ASSERT(data);
	return data;
}

uint8_t *
gpus_block_take(struct gpus *gpus, struct gpus_waiter *waiter)
{
	uint8_t *data = NULL;
	pthread_mutex_lock(&gpus->lock);
	if (may_have(gpus, waiter)) {
		data = make(gpus);
	} else if (waiter) {
		waiter->next = NULL;
		*gpus->waiters_last = waiter;
		gpus->waiters_last = &waiter->next;
		gpus->waits++;
	}
	pthread_mutex_unlock(&gpus->lock);
	return data;
}

/* Under the lock. NULL: nobody. */
static struct gpus_waiter *
take_waiter(struct gpus *gpus, const struct gpus_waiter *which)
{
	for (struct gpus_waiter **link = &gpus->waiters; *link; link = &(*link)->next) {
		struct gpus_waiter *waiter = *link;
		if (which ? waiter != which : !may_have(gpus, waiter))
			continue;
		*link = waiter->next;
		if (!*link)
			gpus->waiters_last = link;
		return waiter;
	}
	return NULL;
}

bool
gpus_block_cancel(struct gpus *gpus, struct gpus_waiter *waiter)
{
	pthread_mutex_lock(&gpus->lock);
	bool waited = take_waiter(gpus, waiter) != NULL;
	pthread_mutex_unlock(&gpus->lock);
	return waited;
}

void
gpus_block_give(struct gpus *gpus, uint8_t *data)
{
	struct gpus_waiter *waiter;
	if (!data)
		return;
	free(data);
	pthread_mutex_lock(&gpus->lock);
	gpus->blocks--;
	while ((waiter = take_waiter(gpus, NULL)) != NULL)
		waiter->granted(waiter, make(gpus));
	pthread_mutex_unlock(&gpus->lock);
}
