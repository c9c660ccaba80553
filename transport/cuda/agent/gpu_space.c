/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_space - one worker's memory on one GPU: its pieces, and who waits until they are known.
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
#include "transport/cuda/agent/gpus_own.h"
#include "transport/cuda/helper/imports.h"

/* ---- which GPU ------------------------------------------------------------------------------ */

struct gpu_card *
card_new(const uint8_t uuid[16])
{
	struct gpu_card *card = th_calloc(1, sizeof(*card));
	memcpy(card->uuid, uuid, sizeof(card->uuid));
	card->refs = 1;
	return card;
}

void
card_release(struct gpu_card *card)
{
	if (__atomic_sub_fetch(&card->refs, 1, __ATOMIC_ACQ_REL) == 0)
		free(card);
}

bool
space_is_nowhere(const struct gpu_space *space, char *text)
{
	const struct gpu_card *card = space->card;
	if (!__atomic_load_n(&card->is_none, __ATOMIC_ACQUIRE))
		return false;
	memcpy(text, card->why, sizeof(card->why));
	return true;
}

/* ---- references ----------------------------------------------------------------------------- */

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
	return space->card->uuid;
}

bool
gpu_space_is_poisoned(const struct gpu_space *space)
{
	return __atomic_load_n(&space->poisoned, __ATOMIC_RELAXED);
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
		piece->close_fd(piece->fd, piece->user.gone, piece->user.arg);
	else if (piece->user.gone)
		piece->user.gone(piece->user.arg);
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
gpu_space_find(const struct gpu_space *space, uint64_t address)
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
	struct gpu_piece *piece = gpu_space_find(space, address);
	if (piece)
		piece_retain(piece);
	pthread_mutex_unlock(&space->lock);
	return piece;
}

bool
space_keeps(struct gpu_space *space, const struct gpu_piece *piece)
{
	pthread_mutex_lock(&space->lock);
	bool keeps = gpu_space_find(space, piece->base) == piece;
	pthread_mutex_unlock(&space->lock);
	return keeps;
}

bool
gpu_space_has(struct gpu_space *space, uint64_t address, uint64_t bytes)
{
	bool has = true;
	pthread_mutex_lock(&space->lock);
	while (has && bytes > 0) {
		const struct gpu_piece *piece = gpu_space_find(space, address);
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
gpu_space_check(struct gpu_space *space, const struct cuda_handle *handle, uint64_t base,
	struct th_err *err)
{
	uint64_t end;
	if (handle->bytes == 0 || !th_add_u64(base, handle->bytes, &end))
		return th_fail(err, TH_E_INVALID,
			"a piece of GPU memory of %s has no bytes, or more than there are "
			"addresses",
			space->label);
	if (memcmp(handle->uuid, space->card->uuid, sizeof(handle->uuid)) != 0)
		return th_fail(err, TH_E_INVALID, "a piece of GPU memory of %s is another GPU's",
			space->label);
	return 0;
}

static uint32_t *
counter_of(const struct gpu_space *space)
{
	return space->own ? &space->card->num_own : &space->card->num_pieces;
}

/* Under the lock. */
static int
gpu_space_insert(struct gpu_space *space, struct gpu_piece *piece)
{
	const struct gpu_card *card = space->card;
	uint32_t index = count_before(space, piece->base);
	const struct gpu_piece *before = index > 0 ? space->pieces[index - 1] : NULL;
	const struct gpu_piece *after = index < space->count ? space->pieces[index] : NULL;
	if ((before && piece->base - before->base < before->bytes) ||
		(after && after->base - piece->base < piece->bytes))
		return TH_E_INVALID;
	if (__atomic_load_n(&card->num_pieces, __ATOMIC_RELAXED) +
			__atomic_load_n(&card->num_own, __ATOMIC_RELAXED) >=
		IMPORTS_MAX)
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
	__atomic_fetch_add(counter_of(space), 1, __ATOMIC_RELAXED);
	return 0;
}

/* With one reference: the space's. */
static struct gpu_piece *
piece_new(struct gpu_space *space, const struct cuda_handle *handle, uint64_t base, int fd)
{
	struct gpu_piece *piece = th_calloc(1, sizeof(*piece));
	*piece = (struct gpu_piece){.refs = 1,
		.space = space,
		.worker = space->worker,
		.base = base,
		.bytes = handle->bytes,
		.handle = *handle,
		.fd = fd,
		.close_fd = space->gpus->config.close_fd};
	return piece;
}

int
gpu_space_add(struct gpu_space *space, const struct cuda_handle *handle, uint64_t base, int fd,
	const struct gpu_piece_user *user, struct th_err *err)
{
	struct gpu_piece *piece = piece_new(space, handle, base, fd);
	if (user)
		piece->user = *user;
	int rc = gpu_space_check(space, handle, base, err);
	if (rc < 0) {
		piece_release(piece);
		return rc;
	}
	pthread_mutex_lock(&space->lock);
	rc = gpu_space_insert(space, piece);
	if (rc == 0)
		piece_retain(piece); /* of the order */
	pthread_mutex_unlock(&space->lock);
	if (rc < 0)
		piece_release(piece);
	if (rc == TH_E_INVALID)
		return th_fail(err, rc, "two pieces of GPU memory of %s lie at the same addresses",
			space->label);
	if (rc < 0)
		return th_fail(err, rc,
			"the workers of this host share %u pieces of memory of one GPU, the most "
			"that its agent takes: let the allocator make larger ones",
			IMPORTS_MAX);
	gpu_order(space->home, &(struct gpu_order){.kind = ORDER_OPEN, .piece = piece});
	return 0;
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
try_again(struct gpu_piece *piece, uint64_t settle)
{
	if (!piece->known || piece->code == 0 ||
		__atomic_load_n(&piece->poisoned, __ATOMIC_RELAXED) ||
		__atomic_load_n(&piece->lost, __ATOMIC_RELAXED))
		return;
	piece->known = false;
	piece->code = 0;
	piece->asked = settle;
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
	settle->number = ++space->last_settle;
	settle->upto = space->last_piece;
	for (uint32_t i = 0; i < space->count; i++) {
		try_again(space->pieces[i], settle->number);
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

/* Under the lock: the piece is known from now on. Who waited for no other piece. */
static struct gpu_settle *
now_known(struct gpu_piece *piece)
{
	struct gpu_space *space = piece->space;
	struct gpu_settle *settled = NULL;
	bool news = !piece->known;
	piece->known = true;
	for (struct gpu_settle **at = &space->settles; news && *at;) {
		struct gpu_settle *settle = *at;
		if (piece->number <= settle->upto && piece->asked <= settle->number) {
			note(settle, piece);
			settle->left--;
		}
		if (settle->left > 0) {
			at = &settle->next;
			continue;
		}
		*at = settle->next;
		settle->next = settled;
		settled = settle;
	}
	return settled;
}

void
space_known(struct gpu_piece *piece, int code, const char *text)
{
	struct gpu_space *space = piece->space;
	pthread_mutex_lock(&space->lock);
	piece->code = code;
	free(piece->text);
	piece->text = code < 0 ? th_strdup(text) : NULL;
	struct gpu_settle *settled = now_known(piece);
	pthread_mutex_unlock(&space->lock);
	while (settled) {
		struct gpu_settle *settle = settled;
		settled = settle->next;
		settle_tell(settle);
	}
}

/* What has gone before it was known is nobody's to wait for. */
void
gpu_space_forget(struct gpu_space *space, uint64_t base)
{
	struct gpu_settle *settled = NULL;
	pthread_mutex_lock(&space->lock);
	struct gpu_piece *piece = gpu_space_find(space, base);
	if (piece && piece->base != base)
		piece = NULL;
	if (piece) {
		uint32_t after = count_before(space, base);
		space->count--;
		memmove(space->pieces + after - 1, space->pieces + after,
			(space->count + 1 - after) * sizeof(space->pieces[0]));
		settled = now_known(piece);
	}
	pthread_mutex_unlock(&space->lock);
	if (!piece)
		return;
	__atomic_fetch_sub(counter_of(space), 1, __ATOMIC_RELAXED);
	gpu_order(
		space->home, &(struct gpu_order){.kind = ORDER_FORGET,
				     .piece = piece,
				     .mask = __atomic_load_n(&space->opened_on, __ATOMIC_RELAXED)});
	while (settled) {
		struct gpu_settle *settle = settled;
		settled = settle->next;
		gpu_order(
			space->home, &(struct gpu_order){.kind = ORDER_SETTLED, .settle = settle});
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
	__atomic_fetch_sub(counter_of(space), space->count, __ATOMIC_RELAXED);
	__atomic_fetch_sub(&space->card->num_spaces, !space->own, __ATOMIC_RELAXED);
	card_release(space->card);
	pthread_mutex_destroy(&space->lock);
	free(space->pieces);
	free(space->label);
	free(space);
}

/* Under the lock of gpus. */
static struct gpu *
gpu_space_find_gpu(const struct gpus *gpus, const uint8_t uuid[16])
{
	for (uint32_t i = 0; i < gpus->count; i++) {
		if (memcmp(gpus->gpus[i]->card->uuid, uuid, 16) == 0)
			return gpus->gpus[i];
	}
	return NULL;
}

/* Likewise. All places are taken: one that nobody has anything of, else one of a GPU that a worker
 * named and that does not exist. */
static struct gpu *
reuse_gpu(const struct gpus *gpus, const uint8_t uuid[16])
{
	for (uint32_t i = 0; i < 2 * GPUS_MAX; i++) {
		struct gpu *gpu = gpus->gpus[i % GPUS_MAX];
		if (gpu_reuse(gpu, uuid, i >= GPUS_MAX))
			return gpu;
	}
	return NULL;
}

/* With a reference to its card. */
static struct gpu *
find_or_make_gpu(
	struct gpus *gpus, const uint8_t uuid[16], struct gpu_card **ret_card, struct th_err *err)
{
	int rc = 0;
	pthread_mutex_lock(&gpus->lock);
	struct gpu *gpu = gpu_space_find_gpu(gpus, uuid);
	if (!gpu && gpus->count == GPUS_MAX)
		gpu = reuse_gpu(gpus, uuid);
	if (!gpu && gpus->count == GPUS_MAX)
		rc = th_fail(err, TH_E_LIMIT,
			"workers of this host share memory of %u GPUs, the most that one agent "
			"takes",
			GPUS_MAX);
	else if (!gpu)
		rc = gpu_new(gpus, uuid, gpus->count, &gpu);
	if (rc == 0 && gpus->count < GPUS_MAX && !gpu_space_find_gpu(gpus, uuid))
		gpus->gpus[gpus->count++] = gpu;
	if (rc == 0) {
		__atomic_fetch_add(&gpu->card->refs, 1, __ATOMIC_RELAXED);
		*ret_card = gpu->card;
	}
	pthread_mutex_unlock(&gpus->lock);
	if (rc < 0 && rc != TH_E_LIMIT)
		th_fail(err, rc, "no thread for another GPU: %s", th_strerror(rc));
	return rc == 0 ? gpu : NULL;
}

static struct gpu_space *
space_new(
	struct gpus *gpus, const uint8_t uuid[16], const char *label, bool own, struct th_err *err)
{
	if (blocks_prepare(gpus->blocks, err) < 0)
		return NULL;
	struct gpu_card *card = NULL;
	struct gpu *gpu = find_or_make_gpu(gpus, uuid, &card, err);
	if (!gpu)
		return NULL;
	struct gpu_space *space = th_calloc(1, sizeof(*space));
	pthread_mutex_init(&space->lock, NULL);
	space->gpus = gpus;
	space->home = gpu;
	space->card = card;
	space->worker = __atomic_add_fetch(&gpus->last_worker, 1, __ATOMIC_RELAXED);
	space->label = th_strdup(label);
	space->own = own;
	space->refs = 1;
	__atomic_fetch_add(&card->num_spaces, !own, __ATOMIC_RELAXED);
	return space;
}

struct gpu_space *
gpu_space_new(struct gpus *gpus, const uint8_t uuid[16], const char *label, struct th_err *err)
{
	return space_new(gpus, uuid, label, false, err);
}

/* ---- the agent's own memory ----------------------------------------------------------------- */

struct gpu_space *
gpu_space_new_own(struct gpus *gpus, const uint8_t uuid[16], uint64_t bytes, const char *label,
	struct th_err *err)
{
	struct cuda_handle handle = {.bytes = bytes};
	struct gpu_space *space = space_new(gpus, uuid, label, true, err);
	if (!space)
		return NULL;
	memcpy(handle.uuid, uuid, sizeof(handle.uuid));
	struct gpu_piece *piece = piece_new(space, &handle, 0, -1);
	piece->own = true;
	pthread_mutex_lock(&space->lock);
	int rc = gpu_space_insert(space, piece);
	if (rc == 0)
		piece_retain(piece); /* of the order */
	pthread_mutex_unlock(&space->lock);
	if (rc < 0) {
		piece_release(piece);
		gpu_space_release(space);
		(void)th_fail(err, rc, "too much GPU memory is shared (%u pieces)", IMPORTS_MAX);
		return NULL;
	}
	gpu_order(space->home, &(struct gpu_order){.kind = ORDER_OPEN, .piece = piece});
	return space;
}

/* It has no other piece, and that is never forgotten. */
int
gpu_space_take_dmabuf(struct gpu_space *space, gpus_close_fd *ret_close_fd)
{
	TH_ASSERT(space->own);
	*ret_close_fd = space->gpus->config.close_fd;
	return th_fd_move(&space->pieces[0]->fd);
}

bool
gpu_space_is_lost(struct gpu_space *space)
{
	return space->own && __atomic_load_n(&space->pieces[0]->lost, __ATOMIC_RELAXED);
}
