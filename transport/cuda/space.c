/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space - one worker's memory on one GPU: its pieces, and who waits until they are known.
 *
 * The pieces are guarded by the space's lock. What is opened and told is the business of the home
 * GPU's thread, which also ends the space, after the last reference, whoever dropped it: a thread
 * of a crew cannot close descriptors for others.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/fd.h"
#include "transport/cuda/gpus_own.h"
#include "transport/cuda/imports.h"

struct gpu_space *
gpu_space_retain(struct gpu_space *space)
{
	__atomic_fetch_add(&space->refs, 1, __ATOMIC_RELAXED);
	return space;
}

void
gpu_space_release(struct gpu_space *space)
{
	if (!space || __atomic_sub_fetch(&space->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	gpu_order(space->home, &(struct gpu_order){.kind = ORDER_END, .space = space});
}

const uint8_t *
gpu_space_uuid(const struct gpu_space *space)
{
	return space->home->uuid;
}

int
gpu_space_wake_fd(const struct gpu_space *space)
{
	return space->home->wake_fd;
}

void
piece_release(struct gpu_piece *piece)
{
	if (!piece || __atomic_sub_fetch(&piece->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	if (piece->fd >= 0)
		piece->close_fd(piece->fd);
	free(piece->text);
	free(piece);
}

static struct gpu_piece *
piece_retain(struct gpu_piece *piece)
{
	__atomic_fetch_add(&piece->refs, 1, __ATOMIC_RELAXED);
	return piece;
}

/* Under the lock: how many begin at the address or before it. */
static uint32_t
count_before(const struct gpu_space *space, uint64_t address)
{
	uint32_t low = 0, high = space->count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (space->pieces[middle]->base <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Under the lock. */
static struct gpu_piece *
find(const struct gpu_space *space, uint64_t address)
{
	uint32_t index = count_before(space, address);
	if (index == 0)
		return NULL;
	struct gpu_piece *piece = space->pieces[index - 1];
	return address - piece->base < piece->bytes ? piece : NULL;
}

struct gpu_piece *
space_find(struct gpu_space *space, uint64_t address)
{
	pthread_mutex_lock(&space->lock);
	struct gpu_piece *piece = find(space, address);
	if (piece)
		piece_retain(piece);
	pthread_mutex_unlock(&space->lock);
	return piece;
}

bool
gpu_space_has(struct gpu_space *space, uint64_t address, uint64_t bytes)
{
	bool has = true;
	pthread_mutex_lock(&space->lock);
	while (has && bytes > 0) {
		const struct gpu_piece *piece = find(space, address);
		has = piece != NULL;
		if (!has)
			break;
		uint64_t here = th_min_u64(bytes, piece->bytes - (address - piece->base));
		address += here;
		bytes -= here;
	}
	pthread_mutex_unlock(&space->lock);
	return has;
}

/* ---- pieces come and go -------------------------------------------------------------------- */

static int
check(struct gpu_space *space, const struct cuda_handle *handle, uint64_t base, struct th_err *err)
{
	uint64_t end;
	if (handle->bytes == 0 || !th_add_u64(base, handle->bytes, &end))
		return th_fail(err, TH_E_INVALID,
			"a piece of GPU memory of %s has no bytes, or more than there are "
			"addresses",
			space->label);
	if (memcmp(handle->uuid, space->home->uuid, sizeof(handle->uuid)) != 0)
		return th_fail(err, TH_E_INVALID, "a piece of GPU memory of %s is another GPU's",
			space->label);
	return 0;
}

/* Under the lock. */
static int
insert(struct gpu_space *space, struct gpu_piece *piece)
{
	uint32_t index = count_before(space, piece->base);
	const struct gpu_piece *before = index > 0 ? space->pieces[index - 1] : NULL;
	const struct gpu_piece *after = index < space->count ? space->pieces[index] : NULL;
	if ((before && piece->base - before->base < before->bytes) ||
		(after && after->base - piece->base < piece->bytes))
		return TH_E_INVALID;
	if (__atomic_load_n(&space->home->num_pieces, __ATOMIC_RELAXED) >= IMPORTS_MAX)
		return TH_E_LIMIT;
	if (space->count == space->room) {
		space->room = space->room > 0 ? 2 * space->room : 16;
		space->pieces = th_realloc(space->pieces, space->room, sizeof(space->pieces[0]));
	}
	memmove(space->pieces + index + 1, space->pieces + index,
		(space->count - index) * sizeof(space->pieces[0]));
	space->pieces[index] = piece;
	space->count++;
	piece->number = ++space->last_piece;
	__atomic_fetch_add(&space->home->num_pieces, 1, __ATOMIC_RELAXED);
	return 0;
}

int
gpu_space_add(struct gpu_space *space, const struct cuda_handle *handle, uint64_t base, int fd,
	struct th_err *err, uint64_t *ret_piece)
{
	int rc = check(space, handle, base, err);
	void (*close_fd)(int fd) = space->gpus->config.close_fd;
	if (rc < 0) {
		if (fd >= 0)
			close_fd(fd);
		return rc;
	}
	struct gpu_piece *piece = th_calloc(1, sizeof(*piece));
	*piece = (struct gpu_piece){.refs = 2,
		.space = space,
		.worker = space->worker,
		.base = base,
		.bytes = handle->bytes,
		.handle = *handle,
		.fd = fd,
		.close_fd = close_fd};
	pthread_mutex_lock(&space->lock);
	rc = insert(space, piece);
	uint64_t number = piece->number;
	pthread_mutex_unlock(&space->lock);
	if (rc < 0) {
		piece->refs = 1;
		piece_release(piece);
	}
	if (rc == TH_E_INVALID)
		return th_fail(err, rc, "two pieces of GPU memory of %s lie at the same addresses",
			space->label);
	if (rc < 0)
		return th_fail(err, rc,
			"the workers of this host share %u pieces of memory of one GPU, the most "
			"that its agent takes: let the allocator make larger ones",
			IMPORTS_MAX);
	gpu_order(space->home, &(struct gpu_order){.kind = ORDER_OPEN, .piece = piece});
	*ret_piece = number;
	return 0;
}

void
gpu_space_forget(struct gpu_space *space, uint64_t number)
{
	struct gpu_piece *piece = NULL;
	pthread_mutex_lock(&space->lock);
	for (uint32_t i = 0; i < space->count && !piece; i++) {
		if (space->pieces[i]->number != number)
			continue;
		piece = space->pieces[i];
		space->count--;
		memmove(space->pieces + i, space->pieces + i + 1,
			(space->count - i) * sizeof(space->pieces[0]));
	}
	pthread_mutex_unlock(&space->lock);
	if (!piece)
		return;
	__atomic_fetch_sub(&space->home->num_pieces, 1, __ATOMIC_RELAXED);
	gpu_order(
		space->home, &(struct gpu_order){.kind = ORDER_FORGET,
				     .piece = piece,
				     .mask = __atomic_load_n(&space->opened_on, __ATOMIC_RELAXED)});
}

/* ---- who waits until they are known -------------------------------------------------------- */

void
settle_tell(struct gpu_settle *settle)
{
	settle->settled(settle->arg, &settle->err);
	free(settle);
}

static void
note(struct gpu_settle *settle, const struct gpu_piece *piece)
{
	if (piece->code < 0 && settle->err.code == 0)
		th_fail(&settle->err, TH_E_MEMORY_KIND, "%s", piece->text);
}

/* Under the lock. What failed may have been no more than a GPU without room. Who waits already has
 * heard of the failure, and hears no more of it than that. */
static void
try_again(struct gpu_piece *piece)
{
	if (!piece->known || piece->code == 0 ||
		__atomic_load_n(&piece->poisoned, __ATOMIC_RELAXED))
		return;
	piece->known = false;
	piece->code = 0;
	gpu_order(piece->space->home,
		&(struct gpu_order){.kind = ORDER_OPEN, .piece = piece_retain(piece)});
}

void
gpu_space_settle(
	struct gpu_space *space, void (*settled)(void *arg, const struct th_err *result), void *arg)
{
	struct gpu_settle *settle = th_calloc(1, sizeof(*settle));
	settle->settled = settled;
	settle->arg = arg;
	pthread_mutex_lock(&space->lock);
	settle->upto = space->last_piece;
	for (uint32_t i = 0; i < space->count; i++) {
		try_again(space->pieces[i]);
		note(settle, space->pieces[i]);
		settle->left += !space->pieces[i]->known;
	}
	bool waits = settle->left > 0;
	if (waits) {
		settle->next = space->settles;
		space->settles = settle;
	}
	pthread_mutex_unlock(&space->lock);
	if (!waits)
		gpu_order(
			space->home, &(struct gpu_order){.kind = ORDER_SETTLED, .settle = settle});
}

void
space_known(struct gpu_piece *piece, int code, const char *text)
{
	struct gpu_space *space = piece->space;
	struct gpu_settle *told = NULL;
	pthread_mutex_lock(&space->lock);
	bool news = !piece->known;
	piece->known = true;
	piece->code = code;
	free(piece->text);
	piece->text = code < 0 ? th_strdup(text) : NULL;
	for (struct gpu_settle **at = &space->settles; news && *at;) {
		struct gpu_settle *settle = *at;
		if (piece->number <= settle->upto) {
			note(settle, piece);
			settle->left--;
		}
		if (settle->left > 0) {
			at = &settle->next;
			continue;
		}
		*at = settle->next;
		settle->next = told;
		told = settle;
	}
	pthread_mutex_unlock(&space->lock);
	while (told) {
		struct gpu_settle *settle = told;
		told = settle->next;
		settle_tell(settle);
	}
}

/* ---- a space ------------------------------------------------------------------------------- */

void
space_end(struct gpu_space *space)
{
	while (space->settles) {
		struct gpu_settle *settle = space->settles;
		space->settles = settle->next;
		th_fail(&settle->err, TH_E_STALE_MEMORY, "%s has left", space->label);
		settle_tell(settle);
	}
	for (uint32_t i = 0; i < space->count; i++)
		piece_release(space->pieces[i]);
	__atomic_fetch_sub(&space->home->num_pieces, space->count, __ATOMIC_RELAXED);
	__atomic_fetch_sub(&space->home->num_spaces, 1, __ATOMIC_RELAXED);
	pthread_mutex_destroy(&space->lock);
	free(space->pieces);
	free(space->label);
	free(space);
}

/* Under the lock of gpus. */
static struct gpu *
find_gpu(const struct gpus *gpus, const uint8_t uuid[16])
{
	for (uint32_t i = 0; i < gpus->count; i++) {
		if (memcmp(gpus->gpus[i]->uuid, uuid, 16) == 0)
			return gpus->gpus[i];
	}
	return NULL;
}

static struct gpu *
find_or_make_gpu(struct gpus *gpus, const uint8_t uuid[16], struct th_err *err)
{
	int rc = 0;
	pthread_mutex_lock(&gpus->lock);
	struct gpu *gpu = find_gpu(gpus, uuid);
	/* A worker may name GPUs that do not exist. */
	for (uint32_t i = 0; i < GPUS_MAX && !gpu && gpus->count == GPUS_MAX; i++)
		gpu = gpu_reuse(gpus->gpus[i], uuid) ? gpus->gpus[i] : NULL;
	if (!gpu && gpus->count == GPUS_MAX)
		rc = th_fail(err, TH_E_LIMIT,
			"workers of this host share memory of %u GPUs, the most that one agent "
			"takes",
			GPUS_MAX);
	else if (!gpu)
		rc = gpu_new(gpus, uuid, gpus->count, &gpu);
	if (rc == 0 && gpus->count < GPUS_MAX && !find_gpu(gpus, uuid))
		gpus->gpus[gpus->count++] = gpu;
	if (rc == 0)
		__atomic_fetch_add(&gpu->num_spaces, 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&gpus->lock);
	if (rc < 0 && rc != TH_E_LIMIT)
		th_fail(err, rc, "no thread for another GPU: %s", th_strerror(rc));
	return rc == 0 ? gpu : NULL;
}

struct gpu_space *
gpu_space_new(struct gpus *gpus, const uint8_t uuid[16], const char *label, struct th_err *err)
{
	if (blocks_prepare(gpus->blocks, err) < 0)
		return NULL;
	struct gpu *gpu = find_or_make_gpu(gpus, uuid, err);
	if (!gpu)
		return NULL;
	struct gpu_space *space = th_calloc(1, sizeof(*space));
	pthread_mutex_init(&space->lock, NULL);
	space->gpus = gpus;
	space->home = gpu;
	space->worker = __atomic_add_fetch(&gpus->last_worker, 1, __ATOMIC_RELAXED);
	space->label = th_strdup(label);
	space->refs = 1;
	return space;
}
