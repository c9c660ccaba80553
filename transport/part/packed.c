/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packed - see packed.h. A chunk of a part is EMPTY -> BUSY (a thread copies it) -> THERE; what
 * lands is THERE at once, because the part does not count it yet and nobody packs it before that.
 */
#include "transport/part/packed.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/log.h"
#include "ipc/base/name.h"
#include "transport/cuda/agent/touch.h"
#include "transport/hash/digest.h"
#include "transport/hash/nt_copy.h"
#include "transport/part/pinned_pages.h"
#include "transport/part/sigbus.h"
#include "transport/part/unmap.h"
#include "transport/part/xfer_part.h"
#include "transport/rdma/memory/region.h"
#include "transport/transport_own.h"

#define LINE_BYTES UINT64_C(64)
#define BLOCK_BYTES (256u << 10) /* stays in the cache between the copy and the hash */
#define RANGES_MAX 256u          /* of one guarded call */

struct packed {
	uint8_t *data; /* owns: mmap */
	uint64_t bytes;
	struct region *region; /* owns: a reference; NULL: not asked for */
	uint32_t references;   /* atomic */
	struct unmap unmap;
};

static uint64_t size_all; /* atomic */

enum pack_state { PACK_EMPTY, PACK_BUSY, PACK_THERE };

struct packing {
	struct packed *packed; /* owns: a reference */
	uint32_t num_chunks;
	uint32_t prefix; /* atomic; below it all are THERE, and stay so */
	uint8_t *states; /* owns; each atomic: enum pack_state. The release of THERE pairs with
			  * packed_prefix. */
};

/* ---- the buffer --------------------------------------------------------------------------- */

/*
 * The chunks without padding begin anywhere. Each is moved up to the next line but one at most, by
 * a rule that needs no table: the room that this leaves before each is less than two lines.
 */
uint64_t
packed_at(const struct chunk_table *table, uint32_t chunk)
{
	return table->start[chunk] / LINE_BYTES * LINE_BYTES + LINE_BYTES * chunk;
}

uint64_t
packed_bytes(const struct chunk_table *table)
{
	return table->num_small > 0 ? packed_at(table, table->num_small) : 0;
}

struct packed *
packed_new(const struct chunk_table *table)
{
	uint64_t bytes = 0;
	struct packed *packed = calloc(1, sizeof(*packed));
	if (!packed)
		return NULL;
	if (th_align_up_u64(
		    th_max_u64(packed_bytes(table), 1), (uint64_t)sysconf(_SC_PAGESIZE), &bytes))
		packed->data = pinned_pages_map(bytes);
	if (!packed->data) {
		free(packed);
		return NULL;
	}
	packed->bytes = bytes;
	packed->references = 1;
	__atomic_add_fetch(&size_all, bytes, __ATOMIC_RELAXED);
	return packed;
}

/* On any thread. */
static void
packed_unmapped(void *arg)
{
	struct packed *packed = arg;
	__atomic_sub_fetch(&size_all, packed->bytes, __ATOMIC_RELAXED);
	free(packed);
}

static void
packed_give_back(void *arg)
{
	struct packed *packed = arg;
	unmap_start(&packed->unmap, packed->data, packed->bytes, packed_unmapped, packed);
}

void
packed_register(struct packed *packed, struct rails *rails, uint32_t mask)
{
	const struct region_user user = {.arg = packed, .gone = packed_give_back};
	const struct region_memory memory = {
		.data = packed->data, .dmabuf_fd = -1, .bytes = packed->bytes};
	packed->region = region_new(rails, &memory, mask, SHARD_ACCESS, &user);
}

static struct packed *
packed_retain(struct packed *packed)
{
	__atomic_add_fetch(&packed->references, 1, __ATOMIC_RELAXED);
	return packed;
}

void
packed_release(struct packed *packed)
{
	if (!packed || __atomic_sub_fetch(&packed->references, 1, __ATOMIC_ACQ_REL) != 0)
		return;
	if (packed->region)
		region_release(packed->region); /* gives it back in the end */
	else
		packed_give_back(packed);
}

struct region *
packed_region(const struct packed *packed)
{
	return packed->region;
}

uint8_t *
packed_data(const struct packed *packed)
{
	return packed->data;
}

uint64_t
packed_size(const struct packed *packed)
{
	return packed->bytes;
}

uint64_t
packed_size_all(void)
{
	return __atomic_load_n(&size_all, __ATOMIC_RELAXED);
}

/* ---- which chunks lie in it ---------------------------------------------------------------- */

struct packing *
packing_new(struct packed *packed, const struct chunk_table *table)
{
	struct packing *packing = calloc(1, sizeof(*packing));
	if (!packing)
		return NULL;
	packing->num_chunks = table->num_small;
	packing->states = calloc((size_t)table->num_small + 1, sizeof(packing->states[0]));
	if (!packing->states) {
		free(packing);
		return NULL;
	}
	packing->packed = packed_retain(packed);
	return packing;
}

void
packing_free(struct packing *packing)
{
	if (!packing)
		return;
	packed_release(packing->packed);
	free(packing->states);
	free(packing);
}

struct packed *
packing_packed(const struct packing *packing)
{
	return packing->packed;
}

bool
packed_has(const struct xfer_part *part, uint32_t chunk)
{
	const struct packing *packing = xfer_part_packing(part);
	return packing && chunk < packing->num_chunks;
}

static enum pack_state
packed_state_of(const struct packing *packing, uint32_t chunk)
{
	return (enum pack_state)__atomic_load_n(&packing->states[chunk], __ATOMIC_ACQUIRE);
}

static void
packed_set_state(struct packing *packing, uint32_t chunk, enum pack_state state)
{
	__atomic_store_n(&packing->states[chunk], (uint8_t)state, __ATOMIC_RELEASE);
}

/* EMPTY or THERE -> BUSY. False: another thread is at it. */
static bool
packed_begin(struct packing *packing, uint32_t chunk, enum pack_state from)
{
	uint8_t expected = (uint8_t)from;
	return __atomic_compare_exchange_n(&packing->states[chunk], &expected, PACK_BUSY, false,
		__ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* Chunks that the part counts are never dropped, so what was found stays true. */
static uint32_t
packed_settle(struct packing *packing, uint32_t limit)
{
	uint32_t before = __atomic_load_n(&packing->prefix, __ATOMIC_ACQUIRE);
	uint32_t prefix = before;
	limit = th_min_u32(limit, packing->num_chunks);
	while (prefix < limit && packed_state_of(packing, prefix) == PACK_THERE)
		prefix++;
	while (before < prefix && !__atomic_compare_exchange_n(&packing->prefix, &before, prefix,
					  false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		continue;
	return th_max_u32(before, prefix);
}

uint32_t
packed_prefix(const struct xfer_part *part)
{
	struct packing *packing = xfer_part_packing(part);
	uint32_t prefix = xfer_part_prefix(part);
	if (!packing)
		return prefix;
	uint32_t packed = packed_settle(packing, prefix);
	return packed == packing->num_chunks ? prefix : th_min_u32(packed, prefix);
}

/* ---- to and fro ---------------------------------------------------------------------------- */

static uint8_t *
chunk_data(const struct xfer_part *part, uint32_t chunk)
{
	const struct packing *packing = xfer_part_packing(part);
	return packing->packed->data + packed_at(xfer_part_table(part), chunk);
}

/* One of these ranges can not be read: which one is found by reading each by itself. */
static uint32_t
packed_find_row(const struct xfer_part *part, const struct xfer_cursor *cursor, uint8_t *to,
	const struct iovec *ranges, uint32_t count)
{
	uint32_t i = 0;
	while (i + 1 < count && sigbus_gather(to, &ranges[i], 1) == 0)
		i++;
	return xfer_part_table(part)->ranges[cursor->range + i].row;
}

/* Behind these ranges, which begin at the cursor. Returns how many bytes they have. */
static uint32_t
pass(const struct xfer_part *part, struct xfer_cursor *cursor, const struct iovec *ranges,
	uint32_t count)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < count; i++)
		bytes += ranges[i].iov_len;
	xfer_cursor_skip(cursor, part, bytes);
	return (uint32_t)bytes;
}

/* The next bytes of a chunk, at most a block, to where they lie in the buffer. Returns how many, or
 * TH_E_STALE_MEMORY. */
static int
gather_block(struct xfer_part *part, struct xfer_cursor *cursor, uint8_t *to, uint32_t *ret_row)
{
	struct iovec ranges[RANGES_MAX];
	uint32_t bytes = th_min_u32(BLOCK_BYTES, cursor->left), done = 0;
	if (!xfer_part_direct(part)) {
		int rc = touch_gather(part, cursor, to, bytes, ret_row);
		return rc < 0 ? rc : (int)bytes;
	}
	while (done < bytes) {
		uint32_t count = xfer_cursor_next(cursor, part, bytes - done, ranges, RANGES_MAX);
		int rc = sigbus_gather(to + done, ranges, count);
		if (rc < 0) {
			*ret_row = packed_find_row(part, cursor, to + done, ranges, count);
			return rc;
		}
		done += pass(part, cursor, ranges, count);
	}
	return (int)bytes;
}

/*
 * A chunk that is BUSY by this thread. As packed_hash. What is copied from here and there is put
 * together where it stays in the cache; from there it goes past the caches, and is hashed on the
 * way: an ordinary store would fetch what it overwrites.
 */
static int
packed_pack(struct xfer_part *part, uint32_t chunk, const bool *stop, struct th_hash *ret_digest,
	uint32_t *ret_row)
{
	uint8_t *to = chunk_data(part, chunk);
	uint8_t *block = th_realloc(NULL, 1, BLOCK_BYTES); /* not zeroed */
	struct xfer_cursor cursor;
	struct digest digest;
	int rc = 1;
	digest_init(&digest);
	xfer_cursor_init(&cursor, part, chunk);
	while (cursor.left > 0 && rc > 0) {
		if (stop && __atomic_load_n(stop, __ATOMIC_RELAXED)) {
			rc = 0;
			break;
		}
		rc = gather_block(part, &cursor, block, ret_row);
		if (rc > 0 && ret_digest)
			digest_copy(&digest, to, block, (size_t)rc);
		else if (rc > 0)
			nt_copy(to, block, (size_t)rc);
		to += th_max_i64(rc, 0);
	}
	free(block);
	if (rc > 0 && ret_digest)
		*ret_digest = digest_final(&digest);
	return rc > 0 ? 1 : rc;
}

int
packed_hash(struct xfer_part *part, uint32_t chunk, const bool *stop, struct th_hash *ret_digest,
	uint32_t *ret_row)
{
	struct packing *packing = xfer_part_packing(part);
	if (packed_state_of(packing, chunk) == PACK_THERE) {
		/* A job that was stopped has packed it. */
		*ret_digest = digest_of(
			chunk_data(part, chunk), chunk_bytes(xfer_part_table(part), chunk));
		return 1;
	}
	/* It is not below the prefix, so nobody else packs it. */
	bool begun = packed_begin(packing, chunk, PACK_EMPTY);
	TH_ASSERT(begun);
	int rc = packed_pack(part, chunk, stop, ret_digest, ret_row);
	packed_set_state(packing, chunk, rc > 0 ? PACK_THERE : PACK_EMPTY);
	return rc;
}

bool
packed_lacks(const struct xfer_part *part)
{
	const struct packing *packing = xfer_part_packing(part);
	if (!packing)
		return false;
	uint32_t limit = th_min_u32(xfer_part_prefix(part), packing->num_chunks);
	uint32_t chunk = packed_prefix(part);
	while (chunk < limit && packed_state_of(packing, chunk) != PACK_EMPTY)
		chunk++;
	return chunk < limit;
}

int
packed_fill(struct xfer_part *part, uint32_t chunks)
{
	struct packing *packing = xfer_part_packing(part);
	if (!packing)
		return 0;
	uint32_t limit = th_min_u32(xfer_part_prefix(part), packing->num_chunks);
	uint32_t before = packed_prefix(part), row, chunk = before;
	int rc = 0;
	for (; chunk < limit && chunks > 0 && rc >= 0; chunk++) {
		if (!packed_begin(packing, chunk, PACK_EMPTY))
			continue;
		rc = packed_pack(part, chunk, NULL, NULL, &row);
		packed_set_state(packing, chunk, rc > 0 ? PACK_THERE : PACK_EMPTY);
		chunks--;
	}
	/* Of two that have packed one behind the other at least one sees both. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (packed_prefix(part) > before || rc < 0)
		xfer_part_tell(part);
	return rc < 0 ? rc : chunk < limit;
}

/* The next bytes of a chunk, from where they lie in the buffer. 0 or TH_E_STALE_MEMORY. */
static int
scatter_block(
	struct xfer_part *part, struct xfer_cursor *cursor, const uint8_t *from, uint32_t bytes)
{
	struct iovec ranges[RANGES_MAX];
	uint32_t row;
	if (!xfer_part_direct(part))
		return touch_scatter(part, cursor, from, bytes, &row);
	for (uint32_t done = 0; done < bytes;) {
		uint32_t count = xfer_cursor_next(cursor, part, bytes - done, ranges, RANGES_MAX);
		int rc = sigbus_scatter(ranges, count, from + done);
		if (rc < 0)
			return rc;
		done += pass(part, cursor, ranges, count);
	}
	return 0;
}

int
packed_landed(struct xfer_part *part, uint32_t chunk, struct th_hash *ret_digest)
{
	struct packing *packing = xfer_part_packing(part);
	const uint8_t *from = chunk_data(part, chunk);
	struct xfer_cursor cursor;
	struct digest digest;
	TH_ASSERT(chunk >= xfer_part_prefix(part));
	digest_init(&digest);
	xfer_cursor_init(&cursor, part, chunk);
	while (cursor.left > 0) {
		uint32_t bytes = th_min_u32(BLOCK_BYTES, cursor.left);
		if (ret_digest)
			digest_update(&digest, from, bytes);
		int rc = scatter_block(part, &cursor, from, bytes);
		if (rc < 0)
			return rc;
		from += bytes;
	}
	if (ret_digest)
		*ret_digest = digest_final(&digest);
	packed_set_state(packing, chunk, PACK_THERE);
	return 0;
}

void
packed_drop(struct xfer_part *part, uint32_t chunk)
{
	if (packed_has(part, chunk))
		packed_set_state(xfer_part_packing(part), chunk, PACK_EMPTY);
}

/* ---- a second look -------------------------------------------------------------------------- */

int
packed_check(struct xfer_part *part, uint32_t chunk)
{
	struct packing *packing = xfer_part_packing(part);
	struct th_hash now;
	uint32_t row;
	bool has = packed_has(part, chunk);
	if (!xfer_part_verify(part) || chunk >= xfer_part_prefix(part))
		return TH_E_PROTOCOL;
	const struct th_hash *published = xfer_part_digest(part, chunk);
	if (has) {
		now = digest_of(chunk_data(part, chunk), chunk_bytes(xfer_part_table(part), chunk));
		if (th_hash_equal(now, *published))
			return 0;
	}
	int rc = part_digest(part, chunk, &now);
	if (rc < 0)
		return rc;
	if (!th_hash_equal(now, *published))
		return TH_E_CONTRACT;
	/* The tensors are what they were, so nobody has done wrong; who READs it meanwhile finds
	 * out by the digest. */
	if (has && packed_begin(packing, chunk, PACK_THERE)) {
		log_error("packed", "a packed copy was damaged, made again chunk=%" PRIu32, chunk);
		rc = packed_pack(part, chunk, NULL, NULL, &row);
		packed_set_state(packing, chunk, PACK_THERE);
	}
	return rc < 0 ? rc : 0;
}
