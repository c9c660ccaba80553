/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cut - a side of a request as ranges of pieces: what a message says.
 */
#include <inttypes.h>
#include <stdio.h>

#include "ipc/base/assert.h"
#include "transport/cuda/gpus_own.h"

static bool
follows(const struct cut_ranges *ranges, const struct gpu_piece *piece, uint64_t at)
{
	if (ranges->count == 0)
		return false;
	const struct gpu_range *last = &ranges->ranges[ranges->count - 1];
	return last->worker == piece->worker && last->piece == piece->number &&
	       last->at + last->bytes == at;
}

static void
add(struct cut_ranges *ranges, struct gpu_space *space, struct gpu_piece *piece, uint64_t at,
	uint64_t bytes)
{
	uint32_t index = ranges->count++;
	ranges->ranges[index] = (struct gpu_range){
		.worker = piece->worker, .piece = piece->number, .at = at, .bytes = bytes};
	ranges->spaces[index] = space;
	ranges->pieces[index] = piece;
}

int
cut_next(struct cut *cut, uint32_t max, uint64_t bytes, struct cut_ranges *ret, char *text)
{
	TH_ASSERT(max <= GPU_RANGES_MAX);
	ret->count = 0;
	ret->bytes = 0;
	while (ret->bytes < bytes && cut->span < cut->num_spans) {
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
		here = th_min_u64(here, bytes - ret->bytes);
		if (follows(ret, piece, at)) {
			ret->ranges[ret->count - 1].bytes += here;
			piece_release(piece);
		} else if (ret->count < max) {
			add(ret, span->space, piece, at, here);
		} else {
			piece_release(piece);
			break;
		}
		cut->at += here;
		ret->bytes += here;
	}
	return 0;
}

void
cut_drop(struct cut_ranges *ranges)
{
	for (uint32_t i = 0; i < ranges->count; i++)
		piece_release(ranges->pieces[i]);
	ranges->count = 0;
}
