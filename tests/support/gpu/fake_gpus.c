/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_gpus - see fake_gpus.h.
 */
#include "tests/support/gpu/fake_gpus.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/fd.h"
#include "transport/hash/digest.h"

#define PIECES_MAX 16u
#define OPS (GPU_HASH + 1)

struct gpus {
	pthread_mutex_t lock;
	pthread_cond_t work;
	pthread_t thread;
	int wake_fd;
	/* Guarded by lock. */
	bool stopping, hold, no_own, refuse_own, hold_own;
	struct gpu_space *held; /* own ones that nobody is told of yet */
	uint32_t losses;        /* own memory of before is lost */
	struct gpu_request *first, **last;
	uint32_t running, spaces;
	uint32_t counts[OPS], requests[OPS], after[OPS];
	int codes[OPS];
	uint32_t flip_after[OPS], flips[OPS];
	uint32_t blocks, blocks_max, taken;
	uint64_t waits;
	struct gpus_waiter *waiters, **waiters_last;
};

struct gpus_host {
	struct gpus_host_memory memory;
	uint32_t references; /* atomic */
};

struct gpu_space {
	struct gpus *gpus;
	uint8_t uuid[16];
	uint8_t *own; /* owns: mapped from own_fd, at the addresses from 0 on; NULL: a worker's */
	int own_fd;   /* owns, until it is taken */
	uint64_t own_bytes;
	uint32_t losses;                                         /* when it was made */
	void (*settled)(void *arg, const struct th_err *result); /* held */
	void *settled_arg;
	struct gpu_space *next;
	uint32_t references; /* atomic */
	struct {
		uint64_t base, bytes;
		struct gpu_piece_user user;
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
	if (span->space->own)
		data = span->space->own + span->address + walk->at;
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
		all = all && gpu_space_has(spans[i].space, spans[i].address, spans[i].bytes) &&
		      !gpu_space_is_lost(spans[i].space);
	}
	return all;
}

static struct th_hash
move_chunk(const struct gpu_request *request, struct walk *to, struct walk *from, uint64_t left)
{
	struct digest digest;
	uint8_t *data = request->data;
	digest_init(&digest);
	while (left > 0) {
		uint64_t bytes = left;
		uint8_t *source = data, *target = data;
		if (from->count > 0)
			source = next(from, bytes, &bytes);
		if (to->count > 0) {
			uint64_t whole = bytes;
			target = next(to, bytes, &bytes);
			/* What the other side has no room for comes again. */
			if (from->count > 0)
				from->at -= whole - bytes;
		}
		digest_update(&digest, source, bytes);
		if (request->op != GPU_HASH)
			memcpy(target, source, bytes);
		if (data)
			data += bytes;
		left -= bytes;
	}
	return digest_final(&digest);
}

static uint32_t
num_chunks(const struct gpu_request *request)
{
	return request->chunks ? request->num_chunks : 1;
}

/* flipped: mask of chunks. */
static void
move(struct gpu_request *request, uint32_t flipped)
{
	struct walk to = {.spans = request->to, .count = request->num_to};
	struct walk from = {.spans = request->from, .count = request->num_from};
	struct gpu_chunk one = {.bytes = request->bytes};
	struct gpu_chunk *chunks = request->chunks ? request->chunks : &one;
	const uint8_t *data = request->data;
	const struct gpus_host *host = request->host;
	uint64_t sum = 0;
	TH_ASSERT(!host ||
		  (data >= host->memory.data && th_range_fits((uint64_t)(data - host->memory.data),
							request->bytes, host->memory.bytes)));
	TH_ASSERT(!data || num_chunks(request) == 1);
	for (uint32_t i = 0; i < num_chunks(request); i++) {
		chunks[i].digest = move_chunk(request, &to, &from, chunks[i].bytes);
		chunks[i].digest.lo ^= flipped >> i & 1;
		sum += chunks[i].bytes;
	}
	TH_ASSERT(sum == request->bytes);
	if (!request->chunks)
		request->digest = one.digest;
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
	enum gpu_run_op op = request->op;
	uint32_t count = num_chunks(request), flipped = 0;
	int code = 0;
	pthread_mutex_lock(&gpus->lock);
	for (uint32_t i = 0; i < count; i++)
		flipped |= (uint32_t)flips(gpus, op) << i;
	gpus->counts[op] += count;
	gpus->requests[op]++;
	if (gpus->codes[op] != 0 && gpus->after[op] < count)
		code = gpus->codes[op];
	if (gpus->codes[op] != 0)
		gpus->after[op] -= th_min_u32(gpus->after[op], count);
	pthread_mutex_unlock(&gpus->lock);
	if (code == 0 && (!all_there(request->to, request->num_to) ||
				 !all_there(request->from, request->num_from)))
		code = TH_E_STALE_MEMORY;
	request->code = code;
	request->text[0] = '\0';
	if (code == 0)
		move(request, flipped);
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
		gpus->running -= num_chunks(request);
		pthread_mutex_unlock(&gpus->lock);
		struct gpus_host *host = request->host;
		request->done(request);
		gpus_host_release(host);
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
	if (request->host)
		__atomic_add_fetch(&request->host->references, 1, __ATOMIC_RELAXED);
	request->next = NULL;
	pthread_mutex_lock(&gpus->lock);
	TH_ASSERT(!gpus->stopping);
	*gpus->last = request;
	gpus->last = &request->next;
	gpus->running += num_chunks(request);
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
fake_gpus_requests(struct gpus *gpus, enum gpu_run_op op)
{
	return look(gpus, &gpus->requests[op]);
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
fake_gpus_taken(struct gpus *gpus)
{
	return look(gpus, &gpus->taken);
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

/* Nothing of it is ever open: it is gone at once. */
static void
end_piece(struct gpu_space *space, uint64_t piece)
{
	struct gpu_piece_user user = space->pieces[piece].user;
	space->pieces[piece].user = (struct gpu_piece_user){0};
	if (user.gone)
		user.gone(user.arg);
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
	for (uint32_t i = 0; i < space->num_pieces; i++)
		end_piece(space, i);
	if (space->own) {
		munmap(space->own, space->own_bytes);
		th_fd_close(&space->own_fd);
	}
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
	const struct gpu_piece_user *user, struct th_err *err)
{
	(void)err;
	TH_ASSERT(fd < 0 && space->num_pieces < PIECES_MAX);
	pthread_mutex_lock(&space->gpus->lock);
	space->pieces[space->num_pieces].base = base;
	space->pieces[space->num_pieces].bytes = handle->bytes;
	if (user)
		space->pieces[space->num_pieces].user = *user;
	space->num_pieces++;
	pthread_mutex_unlock(&space->gpus->lock);
	return 0;
}

void
gpu_space_forget(struct gpu_space *space, uint64_t base)
{
	uint32_t piece = 0;
	pthread_mutex_lock(&space->gpus->lock);
	while (space->pieces[piece].base != base || space->pieces[piece].bytes == 0)
		TH_ASSERT(++piece < space->num_pieces);
	space->pieces[piece].bytes = 0;
	pthread_mutex_unlock(&space->gpus->lock);
	end_piece(space, piece);
}

bool
gpu_space_is_poisoned(const struct gpu_space *space)
{
	(void)space;
	return false;
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
	struct th_err err = {0};
	struct gpus *gpus = space->gpus;
	pthread_mutex_lock(&gpus->lock);
	bool held = space->own && gpus->hold_own;
	if (held) {
		space->settled = settled;
		space->settled_arg = arg;
		space->next = gpus->held;
		gpus->held = space;
	} else if (space->own && gpus->no_own) {
		th_fail(&err, TH_E_MEMORY_KIND, "the test has none");
	}
	pthread_mutex_unlock(&gpus->lock);
	if (!held)
		settled(arg, &err);
}

void
fake_gpus_hold_own(struct gpus *gpus, bool hold)
{
	pthread_mutex_lock(&gpus->lock);
	struct gpu_space *space = hold ? NULL : gpus->held;
	gpus->hold_own = hold;
	gpus->held = hold ? gpus->held : NULL;
	pthread_mutex_unlock(&gpus->lock);
	while (space) {
		struct gpu_space *next = space->next;
		gpu_space_settle(space, space->settled, space->settled_arg);
		space = next;
	}
}

/* ---- own memory ---------------------------------------------------------------------------- */

struct gpu_space *
gpu_space_new_own(struct gpus *gpus, const uint8_t uuid[16], uint64_t bytes, const char *label,
	struct th_err *err)
{
	struct cuda_handle handle = {.bytes = bytes};
	pthread_mutex_lock(&gpus->lock);
	bool refuse = gpus->refuse_own;
	pthread_mutex_unlock(&gpus->lock);
	if (refuse) {
		(void)th_fail(err, TH_E_LIMIT, "the test says so");
		return NULL;
	}
	struct gpu_space *space = gpu_space_new(gpus, uuid, label, err);
	int fd = memfd_create("own", MFD_CLOEXEC);
	TH_ASSERT(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
	space->own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	space->own_fd = fd;
	space->own_bytes = bytes;
	space->losses = look(gpus, &gpus->losses);
	int rc = gpu_space_add(space, &handle, 0, -1, NULL, err);
	TH_ASSERT(rc == 0 && space->own != MAP_FAILED);
	return space;
}

static void
close_here(int fd, void (*closed)(void *arg), void *arg)
{
	close(fd);
	if (closed)
		closed(arg);
}

int
gpu_space_take_dmabuf(struct gpu_space *space, gpus_close_fd *ret_close_fd)
{
	*ret_close_fd = close_here;
	return th_fd_move(&space->own_fd);
}

bool
gpu_space_is_lost(struct gpu_space *space)
{
	return space->own && look(space->gpus, &space->gpus->losses) != space->losses;
}

void
fake_gpus_have_no_own(struct gpus *gpus)
{
	pthread_mutex_lock(&gpus->lock);
	gpus->no_own = true;
	pthread_mutex_unlock(&gpus->lock);
}

void
fake_gpus_refuse_own(struct gpus *gpus, bool refuse)
{
	pthread_mutex_lock(&gpus->lock);
	gpus->refuse_own = refuse;
	pthread_mutex_unlock(&gpus->lock);
}

void
fake_gpus_lose_own(struct gpus *gpus)
{
	pthread_mutex_lock(&gpus->lock);
	gpus->losses++;
	pthread_mutex_unlock(&gpus->lock);
}

/* ---- host memory --------------------------------------------------------------------------- */

struct gpus_host *
gpus_host_new(struct gpus *gpus, const struct gpus_host_memory *memory)
{
	struct gpus_host *host = th_calloc(1, sizeof(*host));
	(void)gpus;
	host->memory = *memory;
	host->references = 1;
	return host;
}

void
gpus_host_release(struct gpus_host *host)
{
	if (!host || __atomic_sub_fetch(&host->references, 1, __ATOMIC_ACQ_REL) != 0)
		return;
	struct gpus_host_memory memory = host->memory;
	free(host);
	memory.gone(memory.arg);
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
	gpus->taken++;
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
gpus_block_copied(struct gpus *gpus, uint64_t bytes)
{
	(void)gpus;
	(void)bytes;
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
