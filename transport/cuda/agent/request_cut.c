/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request_cut - the sides of a request as ranges of pieces: what a message says.
 */
#include <inttypes.h>
#include <stdio.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "transport/cuda/agent/gpus_own.h"

/* Of either side, where a message has two: both full ones are a little more than it takes. */
#define RANGES_OF_TWO                                                                              \
	(uint32_t)(                                                                                \
		(GPU_MESSAGE_BYTES_MAX - sizeof(struct gpu_run)) / (2 * sizeof(struct gpu_range)))

void
cut_skip(struct cut *cut, uint64_t bytes)
{
	while (bytes > 0 && cut->span < cut->num_spans) {
		uint64_t here = th_min_u64(bytes, cut->spans[cut->span].bytes - cut->at);
		cut->at += here;
		bytes -= here;
		if (bytes > 0) {
			cut->span++;
			cut->at = 0;
		}
	}
}

/* ---- one side ------------------------------------------------------------------------------ */

static bool
request_cut_follows(const struct cut_ranges *ranges, const struct gpu_piece *piece, uint64_t at)
{
	if (ranges->count == 0)
		return false;
	const struct gpu_range *last = &ranges->ranges[ranges->count - 1];
	return last->worker == piece->worker && last->piece == piece->number &&
	       last->at + last->bytes == at;
}

static void
request_cut_add(struct cut_ranges *ranges, struct gpu_space *space, struct gpu_piece *piece,
	uint64_t at, uint64_t bytes)
{
	uint32_t index = ranges->count++;
	ranges->ranges[index] = (struct gpu_range){
		.worker = piece->worker, .piece = piece->number, .at = at, .bytes = bytes};
	ranges->spaces[index] = space;
	ranges->pieces[index] = piece;
}

/* So many more bytes, while there are less than max ranges. */
static int
ranges_add(struct cut_ranges *ret, uint32_t max, uint64_t bytes, char *text)
{
	struct cut *cut = &ret->cut;
	while (bytes > 0 && cut->span < cut->num_spans) {
		const struct gpu_span *span = &cut->spans[cut->span];
		uint64_t address = span->address + cut->at;
		if (cut->at == span->bytes) {
			cut->span++;
			cut->at = 0;
			continue;
		}
		struct gpu_piece *piece = space_find(span->space, address);
		if (!piece) {
			snprintf(text, GPU_TEXT_BYTES,
				"GPU memory of %s at 0x%" PRIx64 " is not shared any more",
				span->space->label, address);
			return TH_E_STALE_MEMORY;
		}
		uint64_t at = address - piece->base;
		uint64_t here = th_min_u64(piece->bytes - at, span->bytes - cut->at);
		here = th_min_u64(here, bytes);
		if (request_cut_follows(ret, piece, at)) {
			ret->ranges[ret->count - 1].bytes += here;
			piece_release(piece);
		} else if (ret->count < max) {
			request_cut_add(ret, span->space, piece, at, here);
		} else {
			piece_release(piece);
			break;
		}
		cut->at += here;
		ret->bytes += here;
		bytes -= here;
	}
	return 0;
}

static void
ranges_cut_back(struct cut_ranges *ranges, uint64_t bytes)
{
	while (ranges->bytes > bytes) {
		struct gpu_range *last = &ranges->ranges[ranges->count - 1];
		uint64_t over = th_min_u64(ranges->bytes - bytes, last->bytes);
		last->bytes -= over;
		ranges->bytes -= over;
		if (last->bytes == 0)
			piece_release(ranges->pieces[--ranges->count]);
	}
}

/* ---- both ---------------------------------------------------------------------------------- */

void
sides_begin(struct sides *sides, const struct cut *to, const struct cut *from)
{
	sides->to.cut = *to;
	sides->from.cut = *from;
	sides->to.count = sides->from.count = 0;
	sides->to.bytes = sides->from.bytes = sides->bytes = 0;
}

int
sides_add(struct sides *sides, uint64_t bytes, char *text)
{
	bool has_to = sides->to.cut.num_spans > 0, has_from = sides->from.cut.num_spans > 0;
	uint32_t max = has_to && has_from ? RANGES_OF_TWO : GPU_RANGES_MAX;
	int rc = 0;
	TH_ASSERT(has_to || has_from);
	if (has_to) {
		rc = ranges_add(&sides->to, max, bytes, text);
		bytes = sides->to.bytes - sides->bytes;
	}
	if (rc == 0 && has_from) {
		rc = ranges_add(&sides->from, max, bytes, text);
		bytes = sides->from.bytes - sides->bytes;
	}
	sides_cut_back(sides, sides->bytes + bytes);
	sides->bytes += bytes;
	return rc;
}

void
sides_cut_back(struct sides *sides, uint64_t bytes)
{
	ranges_cut_back(&sides->to, bytes);
	ranges_cut_back(&sides->from, bytes);
	sides->bytes = th_min_u64(sides->bytes, bytes);
}

void
sides_drop(struct sides *sides)
{
	sides_cut_back(sides, 0);
}
