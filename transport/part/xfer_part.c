/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xfer_part - see xfer_part.h. Any thread; the lock guards only the list of watchers.
 */
#include "transport/part/xfer_part.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "transport/cuda/agent/gpus.h"
#include "transport/hash/digest.h"
#include "transport/part/fd_memory.h"
#include "transport/part/packed.h"

#ifndef MADV_POPULATE_READ /* Linux 5.14; an older kernel answers EINVAL */
#define MADV_POPULATE_READ 22
#endif
#define MAP_MIN (64u << 10) /* less costs more calls than it saves faults */

struct prefix_watch {
	struct prefix_watch *next;
	xfer_part_watcher watcher;
	void *arg;
};

struct xfer_part {
	struct chunk_table *table; /* owns: a reference */
	struct xfer_place *places; /* owns: the array and a reference of each access */
	uint32_t num_places;
	bool direct, touchable;
	struct gpus *gpus;  /* NULL: no row is a GPU's */
	const uint8_t *gpu; /* the first one's uuid: borrows from a place; NULL likewise */
	uint32_t num_gpus;
	struct th_hash gpu_set; /* of all their uuids, in any order */
	bool all_gpu, for_gpus;
	struct th_hash *digests; /* owns; [0, digest_count) is immutable */
	bool *kept;              /* owns; the filling leg's, one leg at a time */
	struct packing *packing; /* owns; NULL: no packed buffer */
	const char *no_rdma;     /* NULL: nothing is known */
	bool verify;
	bool reuse;            /* immutable once a leg fills it */
	bool orphaned, failed; /* atomic */
	uint32_t references;   /* atomic */
	uint32_t prefix;       /* atomic; the release pairs with xfer_part_prefix */
	uint32_t digest_count; /* atomic; the release pairs with xfer_part_digest_count */
	uint64_t bytes_moved;  /* atomic */
	void (*release)(void *arg);
	void *arg;
	pthread_mutex_t lock;
	struct prefix_watch *watches; /* guarded by lock */
	char *lost;                   /* owns; likewise; NULL: nobody knows why */
	int lost_code;                /* likewise */
};

/* Once for each. */
static void
add_gpu(struct xfer_part *part, const uint8_t *gpu, const uint8_t **known)
{
	for (uint32_t i = 0; i < part->num_gpus; i++) {
		if (memcmp(gpu, known[i], 16) == 0)
			return;
	}
	TH_ASSERT(part->num_gpus < GPUS_MAX);
	known[part->num_gpus++] = gpu;
	part->gpu = known[0];
	const struct th_hash one = digest_of(gpu, 16);
	part->gpu_set.lo ^= one.lo;
	part->gpu_set.hi ^= one.hi;
}

struct xfer_part *
xfer_part_new_places(struct chunk_table *table, const struct xfer_place *places,
	uint32_t num_places, bool verify, void (*release)(void *arg), void *arg)
{
	struct xfer_part *part = calloc(1, sizeof(*part));
	if (!part)
		return NULL;
	part->places = calloc(num_places ? num_places : 1, sizeof(part->places[0]));
	part->digests = calloc(table->num_chunks ? table->num_chunks : 1, sizeof(part->digests[0]));
	part->kept = calloc(table->num_chunks ? table->num_chunks : 1, sizeof(part->kept[0]));
	if (!part->places || !part->digests || !part->kept) {
		free(part->places);
		free(part->digests);
		free(part->kept);
		free(part);
		return NULL;
	}
	const uint8_t *known[GPUS_MAX];
	part->direct = part->touchable = part->all_gpu = part->for_gpus = true;
	part->num_places = num_places;
	for (uint32_t i = 0; i < num_places; i++) {
		part->places[i] = places[i];
		if (places[i].access) {
			(void)fd_memory_retain(places[i].access);
			part->direct = part->direct && places[i].data;
			part->touchable = part->touchable &&
					  (places[i].data || fd_memory_space(places[i].access));
		}
		struct gpus *gpus = places[i].access ? fd_memory_gpus(places[i].access) : NULL;
		if (gpus) {
			part->gpus = gpus;
			add_gpu(part, gpu_space_uuid(fd_memory_space(places[i].access)), known);
		} else if (places[i].access || places[i].data) {
			part->all_gpu = false;
		}
		if ((places[i].access || places[i].data) && !places[i].host)
			part->for_gpus = false;
	}
	part->table = chunk_table_retain(table);
	part->verify = verify;
	part->references = 1;
	part->release = release;
	part->arg = arg;
	pthread_mutex_init(&part->lock, NULL);
	return part;
}

struct xfer_part *
xfer_part_new(struct chunk_table *table, uint8_t *const *tensors, uint32_t num_tensors, bool verify,
	void (*release)(void *arg), void *arg)
{
	struct xfer_place *places = calloc(num_tensors ? num_tensors : 1, sizeof(places[0]));
	if (!places)
		return NULL;
	for (uint32_t i = 0; i < num_tensors; i++)
		places[i].data = tensors[i];
	struct xfer_part *part =
		xfer_part_new_places(table, places, num_tensors, verify, release, arg);
	free(places);
	return part;
}

int
xfer_part_set_packed(struct xfer_part *part, struct packed *packed)
{
	TH_ASSERT(!part->packing);
	if (!part->touchable || part->table->num_small == 0)
		return 0;
	part->packing = packing_new(packed, part->table);
	return part->packing ? 0 : -ENOMEM;
}

void
xfer_part_set_no_rdma(struct xfer_part *part, const char *why)
{
	part->no_rdma = why;
}

const char *
xfer_part_no_rdma(const struct xfer_part *part)
{
	return part->no_rdma;
}

struct packing *
xfer_part_packing(const struct xfer_part *part)
{
	return part->packing;
}

struct xfer_part *
xfer_part_retain(struct xfer_part *part)
{
	__atomic_add_fetch(&part->references, 1, __ATOMIC_RELAXED);
	return part;
}

void
xfer_part_release(struct xfer_part *part)
{
	if (!part || __atomic_sub_fetch(&part->references, 1, __ATOMIC_ACQ_REL) != 0)
		return;
	TH_ASSERT(!part->watches);
	void (*release)(void *arg) = part->release;
	void *arg = part->arg;
	pthread_mutex_destroy(&part->lock);
	chunk_table_release(part->table);
	for (uint32_t i = 0; i < part->num_places; i++) {
		if (part->places[i].access)
			fd_memory_release(part->places[i].access);
	}
	packing_free(part->packing);
	free(part->places);
	free(part->digests);
	free(part->kept);
	free(part->lost);
	free(part);
	if (release)
		release(arg);
}

const struct chunk_table *
xfer_part_table(const struct xfer_part *part)
{
	return part->table;
}

bool
xfer_part_verify(const struct xfer_part *part)
{
	return part->verify;
}

bool
xfer_part_direct(const struct xfer_part *part)
{
	return part->direct;
}

bool
xfer_part_maps_chunk(const struct xfer_part *part, uint32_t chunk)
{
	const struct chunk_table *table = part->table;
	bool maps = true;
	for (uint32_t r = table->first[chunk]; !part->direct && r < table->first[chunk + 1]; r++)
		maps = maps && part->places[table->ranges[r].row].data;
	return maps;
}

struct gpus *
xfer_part_gpus(const struct xfer_part *part, bool *ret_whole)
{
	if (ret_whole)
		*ret_whole = part->gpus && part->all_gpu;
	return part->gpus;
}

uint32_t
xfer_part_gpu_set(const struct xfer_part *part, struct th_hash *ret_set)
{
	*ret_set = part->gpu_set;
	return part->num_gpus;
}

const uint8_t *
xfer_part_only_gpu(const struct xfer_part *part)
{
	return part->all_gpu && part->num_gpus == 1 ? part->gpu : NULL;
}

static const uint8_t *
gpu_of(const struct xfer_place *place)
{
	struct gpu_space *space =
		!place->data && place->access ? fd_memory_space(place->access) : NULL;
	return space ? gpu_space_uuid(space) : NULL;
}

const uint8_t *
xfer_part_chunk_gpu(const struct xfer_part *part, uint32_t chunk)
{
	const struct chunk_table *table = part->table;
	uint32_t first = table->first[chunk];
	const uint8_t *gpu = gpu_of(&part->places[table->ranges[first].row]);
	for (uint32_t r = first + 1; gpu && r < table->first[chunk + 1]; r++) {
		const uint8_t *other = gpu_of(&part->places[table->ranges[r].row]);
		if (!other || memcmp(other, gpu, 16) != 0)
			gpu = NULL;
	}
	return gpu;
}

bool
xfer_part_for_gpus(const struct xfer_part *part)
{
	return part->for_gpus && part->table->num_chunks > 0;
}

bool
xfer_part_touchable(const struct xfer_part *part)
{
	return part->touchable;
}

struct region *
xfer_part_region(const struct xfer_part *part, uint32_t row, uint64_t *ret_at)
{
	const struct xfer_place *place = &part->places[row];
	*ret_at = place->region_at;
	return place->region;
}

static int
xfer_part_compare_fds(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;
	return (x > y) - (x < y);
}

int *
xfer_part_descriptors(const struct xfer_part *part, uint32_t more, uint32_t *ret_count)
{
	int *fds = th_calloc((size_t)part->num_places + more + 1, sizeof(fds[0]));
	uint32_t count = 0, kept = 0;
	for (uint32_t i = 0; i < part->num_places; i++) {
		const struct xfer_place *place = &part->places[i];
		struct fd_memory *access = place->data ? NULL : place->access;
		/* Neighbours mostly share one. */
		if (access && fd_memory_fd(access) >= 0 &&
			(count == 0 || fd_memory_fd(access) != fds[count - 1]))
			fds[count++] = fd_memory_fd(access);
	}
	qsort(fds, count, sizeof(fds[0]), xfer_part_compare_fds);
	for (uint32_t i = 0; i < count; i++) {
		if (kept == 0 || fds[kept - 1] != fds[i])
			fds[kept++] = fds[i];
	}
	*ret_count = kept;
	return fds;
}

void
xfer_part_keep(struct xfer_part *part, uint32_t chunk)
{
	part->kept[chunk] = true;
}

bool
xfer_part_kept(const struct xfer_part *part, uint32_t chunk)
{
	return part->kept[chunk];
}

/* ---- prefix and digests --------------------------------------------------------------------- */

uint32_t
xfer_part_prefix(const struct xfer_part *part)
{
	return __atomic_load_n(&part->prefix, __ATOMIC_ACQUIRE);
}

uint64_t
xfer_part_prefix_bytes(const struct xfer_part *part)
{
	return part->table->start[xfer_part_prefix(part)];
}

void
xfer_part_moved(struct xfer_part *part, uint64_t bytes)
{
	__atomic_fetch_add(&part->bytes_moved, bytes, __ATOMIC_RELAXED);
}

uint64_t
xfer_part_bytes_moved(const struct xfer_part *part)
{
	return __atomic_load_n(&part->bytes_moved, __ATOMIC_RELAXED);
}

void
xfer_part_tell(struct xfer_part *part)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	pthread_mutex_lock(&part->lock);
	for (struct prefix_watch *watch = part->watches; watch; watch = watch->next)
		watch->watcher(watch->arg);
	pthread_mutex_unlock(&part->lock);
}

void
xfer_part_advance(struct xfer_part *part, uint32_t prefix)
{
	uint32_t before = __atomic_load_n(&part->prefix, __ATOMIC_RELAXED);
	TH_ASSERT(prefix >= before && prefix <= part->table->num_chunks);
	TH_ASSERT(!part->verify || prefix <= xfer_part_digest_count(part));
	if (prefix == before)
		return;
	__atomic_store_n(&part->prefix, prefix, __ATOMIC_RELEASE);
	/* Whoever finds the prefix too short says that it waits, then looks again; here the prefix
	 * is stored, then the watchers look who waits. One of the two sees the other. */
	xfer_part_tell(part);
}

void
xfer_part_orphan(struct xfer_part *part)
{
	__atomic_store_n(&part->orphaned, true, __ATOMIC_RELEASE);
	xfer_part_tell(part);
}

bool
xfer_part_orphaned(const struct xfer_part *part)
{
	return __atomic_load_n(&part->orphaned, __ATOMIC_ACQUIRE);
}

void
xfer_part_fail(struct xfer_part *part)
{
	__atomic_store_n(&part->failed, true, __ATOMIC_RELEASE);
	xfer_part_tell(part);
}

bool
xfer_part_failed(const struct xfer_part *part)
{
	return __atomic_load_n(&part->failed, __ATOMIC_ACQUIRE);
}

void
xfer_part_set_lost(struct xfer_part *part, int code, const char *why)
{
	pthread_mutex_lock(&part->lock);
	if (!part->lost && why[0] != '\0') {
		part->lost = th_strdup(why);
		part->lost_code = code;
	}
	pthread_mutex_unlock(&part->lock);
}

int
xfer_part_lost(struct xfer_part *part, char *ret_why, size_t bytes)
{
	pthread_mutex_lock(&part->lock);
	int code = part->lost_code;
	if (code < 0)
		snprintf(ret_why, bytes, "%s", part->lost);
	pthread_mutex_unlock(&part->lock);
	return code;
}

void
xfer_part_expect_reuse(struct xfer_part *part)
{
	part->reuse = true;
}

bool
xfer_part_expects_reuse(const struct xfer_part *part)
{
	return part->reuse;
}

void
xfer_part_map_chunk(const struct xfer_part *part, uint32_t chunk)
{
	const struct chunk_table *table = part->table;
	if (part->reuse || !part->direct)
		return;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	for (uint32_t r = table->first[chunk]; r < table->first[chunk + 1]; r++) {
		const struct chunk_range *range = &table->ranges[r];
		if (range->bytes < MAP_MIN)
			continue;
		uint8_t *data = part->places[range->row].data + range->offset;
		uint8_t *from = data - (uintptr_t)data % page;
		/* What cannot be mapped is found when it is written, in a guarded call. */
		(void)madvise(from, (size_t)(data + range->bytes - from), MADV_POPULATE_READ);
	}
}

uint32_t
xfer_part_digest_count(const struct xfer_part *part)
{
	return __atomic_load_n(&part->digest_count, __ATOMIC_ACQUIRE);
}

const struct th_hash *
xfer_part_digest(const struct xfer_part *part, uint32_t chunk)
{
	return &part->digests[chunk];
}

void
xfer_part_add_digests(
	struct xfer_part *part, uint32_t first, const struct th_hash *digests, uint32_t count)
{
	uint32_t known = __atomic_load_n(&part->digest_count, __ATOMIC_RELAXED);
	TH_ASSERT(first == known && count <= part->table->num_chunks - known);
	if (count == 0)
		return;
	memcpy(part->digests + first, digests, count * sizeof(digests[0]));
	__atomic_store_n(&part->digest_count, known + count, __ATOMIC_RELEASE);
}

struct th_hash
xfer_part_content(const struct xfer_part *part)
{
	uint32_t count = part->table->num_chunks;
	if (!part->verify || xfer_part_digest_count(part) != count)
		return (struct th_hash){0};
	return digest_of(part->digests, count * sizeof(part->digests[0]));
}

/* ---- watchers ------------------------------------------------------------------------------- */

void
xfer_part_watch(struct xfer_part *part, xfer_part_watcher watcher, void *arg)
{
	struct prefix_watch *watch = th_calloc(1, sizeof(*watch));
	watch->watcher = watcher;
	watch->arg = arg;
	pthread_mutex_lock(&part->lock);
	watch->next = part->watches;
	part->watches = watch;
	pthread_mutex_unlock(&part->lock);
}

bool
xfer_part_watched(struct xfer_part *part)
{
	pthread_mutex_lock(&part->lock);
	bool watched = part->watches != NULL;
	pthread_mutex_unlock(&part->lock);
	return watched;
}

void
xfer_part_unwatch(struct xfer_part *part, xfer_part_watcher watcher, void *arg)
{
	struct prefix_watch *found = NULL;
	pthread_mutex_lock(&part->lock);
	for (struct prefix_watch **link = &part->watches; *link; link = &(*link)->next) {
		if ((*link)->watcher == watcher && (*link)->arg == arg) {
			found = *link;
			*link = found->next;
			break;
		}
	}
	pthread_mutex_unlock(&part->lock);
	free(found);
}

/* ---- memory --------------------------------------------------------------------------------- */

void
xfer_cursor_init(struct xfer_cursor *cursor, const struct xfer_part *part, uint32_t chunk)
{
	*cursor = (struct xfer_cursor){
		.range = part->table->first[chunk], .left = chunk_bytes(part->table, chunk)};
}

uint32_t
xfer_cursor_next(const struct xfer_cursor *cursor, const struct xfer_part *part, uint64_t bytes,
	struct iovec *ret_ranges, uint32_t count)
{
	const struct chunk_table *table = part->table;
	uint64_t left = th_min_u64(bytes, cursor->left);
	uint64_t offset = cursor->offset;
	uint32_t used = 0;
	TH_ASSERT(part->direct);
	for (uint32_t r = cursor->range; left > 0 && used < count; r++) {
		const struct chunk_range *range = &table->ranges[r];
		uint64_t piece = th_min_u64(range->bytes - offset, left);
		ret_ranges[used++] = (struct iovec){
			.iov_base = part->places[range->row].data + range->offset + offset,
			.iov_len = piece};
		left -= piece;
		offset = 0;
	}
	return used;
}

void
xfer_cursor_piece(const struct xfer_cursor *cursor, const struct xfer_part *part, uint64_t bytes,
	struct xfer_piece *ret_piece)
{
	const struct chunk_range *range = &part->table->ranges[cursor->range];
	const struct xfer_place *place = &part->places[range->row];
	uint64_t offset = range->offset + cursor->offset;
	*ret_piece = (struct xfer_piece){.data = place->data ? place->data + offset : NULL,
		.access = place->data ? NULL : place->access,
		.place = place->place + offset,
		.host = place->data ? place->host : NULL,
		.bytes = th_min_u64(th_min_u64(bytes, cursor->left), range->bytes - cursor->offset),
		.row = range->row};
}

bool
xfer_cursor_file(const struct xfer_cursor *cursor, const struct xfer_part *part, uint64_t bytes,
	struct xfer_file *ret_file)
{
	const struct chunk_range *range = &part->table->ranges[cursor->range];
	const struct xfer_place *place = &part->places[range->row];
	if (!place->data || !place->access || cursor->left == 0)
		return false;
	*ret_file = (struct xfer_file){.fd = fd_memory_fd(place->access),
		.offset = place->place + range->offset + cursor->offset,
		.bytes =
			th_min_u64(th_min_u64(bytes, cursor->left), range->bytes - cursor->offset)};
	return true;
}

void
xfer_cursor_skip(struct xfer_cursor *cursor, const struct xfer_part *part, uint64_t bytes)
{
	TH_ASSERT(bytes <= cursor->left);
	cursor->left -= (uint32_t)bytes;
	cursor->offset += bytes;
	while (cursor->left > 0 && cursor->offset >= part->table->ranges[cursor->range].bytes)
		cursor->offset -= part->table->ranges[cursor->range++].bytes;
}
