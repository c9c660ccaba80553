/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read_map - where the bytes of a shard lie for READs: here, and at a peer, as the peer says.
 *
 * A shard is a few *extents*, the same at every host, since they follow from its chunks: the packed
 * buffer with all small rows (packed.h), if there are any, then each larger row. An extent lies
 * behind one address in one region. A region that is registered in pieces has a *key* for each; a
 * READ crosses no border between two.
 *
 * A peer whose memory no NIC reaches has *slots* in place of extents: a key for each, and in each a
 * chunk from its begin on, for as long as the two have agreed.
 *
 * What a peer says is hostile until map_check has agreed. Pure; immutable then, so any thread.
 */
#ifndef TH_TRANSPORT_RDMA_MEMORY_READ_MAP_H
#define TH_TRANSPORT_RDMA_MEMORY_READ_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "transport/part/chunk.h"
#include "transport/rdma/engine/lane.h"
#include "transport/rdma/leg/rdma_wire.h"

struct region;
struct xfer_part;

#define EXTENT_PACKED UINT32_MAX
/* Borders that a piece of memory of so many bytes may have, on average: who registers in smaller
 * pieces is not READ from. */
#define MAP_PIECE_MIN (1u << 20)

struct extent {
	uint32_t row; /* of the manifest; EXTENT_PACKED: the packed buffer */
	uint32_t first_chunk;
	uint64_t bytes;
};

struct extents {
	const struct chunk_table *table; /* borrows */
	uint32_t count;
	struct extent *list; /* owns; in the order of their chunks */
};

/* 0 or -ENOMEM. */
TH_MUST_USE int extents_init(struct extents *extents, const struct chunk_table *table);
void extents_fini(struct extents *extents);
/* Which one a chunk is of, and where in it it begins. */
uint32_t extents_find(const struct extents *extents, uint32_t chunk, uint64_t *ret_offset);

/* ---- a peer's ----------------------------------------------------------------------------- */

struct map {
	/* That there shall be. No extents: each key is a slot. */
	uint32_t num_lanes, num_keys, num_extents;
	uint32_t have_keys, have_extents;
	struct wire_key *keys;       /* owns */
	struct wire_extent *extents; /* owns */
};

TH_MUST_USE int map_init(
	struct map *map, const struct extents *extents, uint32_t num_lanes, uint32_t num_keys);
/* Of slots: whole with the last key. */
TH_MUST_USE int map_init_slots(struct map *map, uint32_t num_lanes, uint32_t num_slots);
void map_fini(struct map *map); /* also of zeros */
/* The next ones. 0 or TH_E_PROTOCOL. */
TH_MUST_USE int map_add_keys(
	struct map *map, uint32_t first, uint32_t count, uint64_t bytes, const uint8_t *data);
TH_MUST_USE int map_add_extents(
	struct map *map, uint32_t first, uint32_t count, const uint8_t *data);
bool map_whole(const struct map *map);
/* Once whole: every extent lies within keys that there are; every slot has room for each chunk. 0
 * or TH_E_PROTOCOL. */
TH_MUST_USE int map_check(const struct map *map, const struct extents *extents);

/* ---- our own ------------------------------------------------------------------------------ */

struct place {                 /* of an extent */
	struct region *region; /* owns: a reference */
	uint64_t offset;       /* in the region */
};

/* Of all extents. 0, or TH_E_NO_PATH and a sentence about what is not registered. -ENOMEM. */
TH_MUST_USE int places_init(const struct extents *extents, const struct xfer_part *part,
	struct th_err *ret_err, struct place **ret_places);
void places_free(const struct extents *extents, struct place *places);
/* Rails on which all of them are ready; may still become it (waiting). */
uint32_t places_ready(
	const struct extents *extents, const struct place *places, uint32_t *ret_waiting);

/* When there are none: why, by the first registration that failed. TH_E_NO_PATH. */
int places_why(const struct extents *extents, const struct place *places, struct th_err *ret_err);

/* For a source: keys of all regions on these rails, and the extents in them. 0, -ENOMEM, or
 * TH_E_NO_PATH: too many, or one is not registered any more. */
TH_MUST_USE int map_own(struct map *map, const struct extents *extents, const struct place *places,
	const uint32_t *rails, uint32_t num_rails);

/* ---- both --------------------------------------------------------------------------------- */

/* Where a chunk begins in our own memory. Its region is borrowed. */
struct place places_chunk(
	const struct extents *extents, const struct place *places, uint32_t chunk);

struct map_read {         /* of one chunk */
	uint32_t chunk;   /* and, where the peer has slots, */
	uint32_t slot;    /* which one it is in */
	uint32_t lane;    /* of the peer's keys */
	uint32_t rail;    /* our own */
	struct place own; /* where its first byte is to lie: places_chunk, or a buffer */
};

/* As lane_user.pieces. 0: it cannot be READ. */
uint32_t map_pieces(const struct map *map, const struct extents *extents,
	const struct map_read *read, struct lane_piece *ret_pieces, uint32_t pieces_max);

#endif
