/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdma_wire - the payloads of the RDMA frames (frame.h). Encoding and checking only; pure, any
 * thread.
 *
 * Little-endian records, each of one size; reserved bytes are zero and checked.
 *
 *   rail (RAILS), 56 bytes: link u8, 0 u8, lid u16, 0 u32, gid 16 bytes, name 32 bytes (printable,
 *     padded with zeros). Those rails of the source that are up and have the whole part registered.
 *   lane (OFFER, ACCEPT), 48 bytes: link u8, rail u8, lid u16, mtu u32, reads_out u32, reads_in
 *     u32, gid 16 bytes, queue pairs 2 x u32, packet numbers 2 x u32. rail is an index into RAILS.
 *     ACCEPT has the lanes of OFFER in the same order; one that the source could not make is all
 *     zeros but for its rail.
 *   key (KEYS), 16 bytes + 4 per lane of ACCEPT, padded to 8: address u64, bytes u64, rkey u32 of
 *     each lane. One piece of a region. The next one goes on where this one ends if its address
 *     says so. Of a source that stages: slot by slot, each with room for any chunk.
 *   extent (MAP), 16 bytes: key u32, 0 u32, address u64. Where the bytes of an extent begin
 *     (read_map.h): both ends know their number, order and lengths from the shard's layout.
 */
#ifndef TH_TRANSPORT_RDMA_LEG_RDMA_WIRE_H
#define TH_TRANSPORT_RDMA_LEG_RDMA_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "transport/rdma/engine/endpoint.h"

#define WIRE_RAILS_MAX 16u
#define WIRE_LANES_MAX 8u /* of one leg */
#define WIRE_KEYS_MAX 16384u
#define WIRE_SLOTS_MAX 16u /* of a source that stages */
#define WIRE_NAME_BYTES 32u
#define WIRE_RAIL_BYTES (24u + WIRE_NAME_BYTES)
#define WIRE_LANE_BYTES 48u
#define WIRE_EXTENT_BYTES 16u
#define WIRE_KEYS_AT_ONCE 1024u
#define WIRE_EXTENTS_AT_ONCE 4096u /* 64 KiB */

struct wire_rail {
	enum verbs_link link;
	uint16_t lid;
	uint8_t gid[VERBS_GID_BYTES];
	char name[WIRE_NAME_BYTES]; /* with a 0 at its end */
};

struct wire_lane {
	uint32_t rail;
	bool made;           /* false: there is nothing in end */
	struct endpoint end; /* checked by whoever decodes (endpoint_check) */
};

struct wire_key {
	uint64_t address, bytes;
	uint32_t rkeys[WIRE_LANES_MAX];
};

struct wire_extent {
	uint32_t key;
	uint64_t address;
};

/* For frame.c: 1 .. max records of so many bytes. */
bool wire_fits(uint32_t count, uint32_t max, uint32_t record_bytes, uint64_t bytes);
/* How many lanes keys of that size have; 0: none. */
uint32_t wire_key_lanes(uint32_t count, uint64_t bytes);
uint32_t wire_key_bytes(uint32_t lanes);

/* The decoders: 0 or TH_E_PROTOCOL. Sizes are the frame's, which frame_decode has checked. */
void wire_encode_rails(const struct wire_rail *rails, uint32_t count, uint8_t *ret_data);
TH_MUST_USE int wire_decode_rails(const uint8_t *data, uint32_t count, struct wire_rail *ret_rails);
void wire_encode_lanes(const struct wire_lane *lanes, uint32_t count, uint8_t *ret_data);
TH_MUST_USE int wire_decode_lanes(const uint8_t *data, uint32_t count, struct wire_lane *ret_lanes);
void wire_encode_keys(
	const struct wire_key *keys, uint32_t count, uint32_t lanes, uint8_t *ret_data);
TH_MUST_USE int wire_decode_keys(
	const uint8_t *data, uint32_t count, uint32_t lanes, struct wire_key *ret_keys);
void wire_encode_extents(const struct wire_extent *extents, uint32_t count, uint8_t *ret_data);
TH_MUST_USE int wire_decode_extents(
	const uint8_t *data, uint32_t count, struct wire_extent *ret_extents);

#endif
