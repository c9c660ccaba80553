/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spans - see spans.h.
 */
#include "transport/cuda/agent/spans.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "transport/part/fd_memory.h"

void
spans_cut(struct spans *spans, uint32_t count)
{
	while (spans->count > count)
		fd_memory_release(spans->access[--spans->count]);
}

void
spans_fini(struct spans *spans)
{
	spans_cut(spans, 0);
	free(spans->spans);
	free(spans->access);
	free(spans->rows);
	*spans = (struct spans){0};
}

static void
spans_grow(struct spans *spans)
{
	uint32_t room = spans->room ? 2 * spans->room : 8;
	spans->spans = th_realloc(spans->spans, room, sizeof(spans->spans[0]));
	spans->access = th_realloc(spans->access, room, sizeof(spans->access[0]));
	spans->rows = th_realloc(spans->rows, room, sizeof(spans->rows[0]));
	spans->room = room;
}

void
spans_add(struct spans *spans, const struct xfer_piece *piece)
{
	if (spans->count == spans->room)
		spans_grow(spans);
	uint32_t i = spans->count++;
	spans->access[i] = fd_memory_retain(piece->access);
	spans->rows[i] = piece->row;
	spans->spans[i] = (struct gpu_span){.space = fd_memory_space(piece->access),
		.address = piece->place,
		.bytes = piece->bytes};
}

bool
spans_chunk(struct spans *spans, struct xfer_part *part, uint32_t chunk)
{
	struct xfer_cursor cursor;
	xfer_cursor_init(&cursor, part, chunk);
	while (cursor.left > 0) {
		struct xfer_piece piece;
		xfer_cursor_piece(&cursor, part, cursor.left, &piece);
		if (piece.data)
			return false;
		spans_add(spans, &piece);
		if (memcmp(gpu_space_uuid(spans->spans[0].space),
			    gpu_space_uuid(spans->spans[spans->count - 1].space), 16) != 0)
			return false;
		xfer_cursor_skip(&cursor, part, piece.bytes);
	}
	return true;
}

uint32_t
spans_lost(const struct spans *spans, uint32_t first, uint32_t count)
{
	bool one = true;
	for (uint32_t i = first; i < first + count; i++) {
		const struct gpu_span *span = &spans->spans[i];
		if (!gpu_space_has(span->space, span->address, span->bytes))
			return spans->rows[i];
		one = one && spans->rows[i] == spans->rows[first];
	}
	return one ? spans->rows[first] : UINT32_MAX;
}
