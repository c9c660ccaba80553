/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk - builds the chunk table of a manifest. Pure but for its memory; the table is immutable and
 * shared by reference count.
 */
#include "transport/part/chunk.h"

#include <stdlib.h>
#include <string.h>

struct counts {
	uint32_t chunks, small_chunks;
	uint64_t ranges;
};

/*
 * The one walk that defines layout id 1. With a table it also writes; without, it only counts, so
 * that the arrays can be allocated in their exact size.
 */
static struct counts
walk(const struct manifest *manifest, struct chunk_table *table)
{
	struct counts counts = {0};
	uint64_t open_bytes = 0; /* in the chunk of small rows being filled; 0 when none is */
	uint64_t shard_bytes = 0;
	bool only_small = true;
	for (uint32_t r = 0; r < manifest->num_rows; r++) {
		uint64_t bytes = manifest->rows[r].bytes;
		bool small = bytes < MANIFEST_SMALL_BYTES;
		for (uint64_t offset = 0; offset < bytes;) {
			uint64_t piece = bytes - offset;
			if (piece > CHUNK_BYTES_MAX)
				piece = CHUNK_BYTES_MAX;
			bool joins =
				small && open_bytes > 0 && open_bytes + piece <= CHUNK_BYTES_MAX;
			if (!joins) {
				if (table) {
					table->first[counts.chunks] = (uint32_t)counts.ranges;
					table->start[counts.chunks] = shard_bytes;
				}
				counts.chunks++;
				only_small = only_small && small;
				counts.small_chunks += only_small;
				open_bytes = 0;
			}
			open_bytes = small ? open_bytes + piece : 0;
			if (table)
				table->ranges[counts.ranges] = (struct chunk_range){
					.row = r, .offset = offset, .bytes = piece};
			counts.ranges++;
			offset += piece;
			shard_bytes += piece;
		}
	}
	if (table) {
		table->first[counts.chunks] = (uint32_t)counts.ranges;
		table->start[counts.chunks] = shard_bytes;
		table->num_chunks = counts.chunks;
		table->num_small = counts.small_chunks;
		table->bytes = shard_bytes;
	}
	return counts;
}

struct chunk_table *
chunk_table_new(const struct manifest *manifest)
{
	/* MANIFEST_BYTES_MAX and MANIFEST_ROWS_MAX keep both counts far below 2^32. */
	struct counts counts = walk(manifest, NULL);
	struct chunk_table *table = calloc(1, sizeof(*table));
	if (!table)
		return NULL;
	table->references = 1;
	table->first = calloc((size_t)counts.chunks + 1, sizeof(table->first[0]));
	table->start = calloc((size_t)counts.chunks + 1, sizeof(table->start[0]));
	table->ranges = calloc(counts.ranges ? counts.ranges : 1, sizeof(table->ranges[0]));
	if (!table->first || !table->start || !table->ranges) {
		chunk_table_release(table);
		return NULL;
	}
	walk(manifest, table);
	return table;
}

struct chunk_table *
chunk_table_retain(struct chunk_table *table)
{
	__atomic_add_fetch(&table->references, 1, __ATOMIC_RELAXED);
	return table;
}

void
chunk_table_release(struct chunk_table *table)
{
	if (!table || __atomic_sub_fetch(&table->references, 1, __ATOMIC_ACQ_REL) != 0)
		return;
	free(table->first);
	free(table->start);
	free(table->ranges);
	free(table);
}

uint32_t
chunk_bytes(const struct chunk_table *table, uint32_t chunk)
{
	return (uint32_t)(table->start[chunk + 1] - table->start[chunk]);
}
