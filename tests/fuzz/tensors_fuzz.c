/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensors_fuzz - the rows of a registration as a worker may send them, against memory objects that
 * the agent has of it.
 *
 * The input begins with the sizes of three objects; the first two are parts of one file. What is
 * taken lies in them, without two rows on the same bytes, and the chunk table covers it.
 */
#include <stdlib.h>

#include "daemon/host/worker/tensor_places.h"
#include "daemon/host/worker/unpack.h"
#include "ipc/base/assert.h"
#include "tests/fuzz/input.h"

#define OBJECTS 3u
#define TENSORS_MAX 64u

/* Nothing of it is read or written. */
static uint8_t somewhere[1];

static void
make_memory(struct input *input, struct memory objects[OBJECTS], struct memory_set *ret_set)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < OBJECTS; i++) {
		uint64_t pages = input_byte(input);
		objects[i] = (struct memory){.id = i + 1,
			.dev = 1,
			.ino = i < 2 ? 1 : 2,
			.offset = i < 2 ? end : 0,
			.bytes = pages * 4096,
			.data = somewhere,
			.dmabuf_fd = -1,
			.dmabuf = pages == 0xff,
			.read_only = pages == 0xfe ? "it is open for reading only" : NULL};
		/* The second begins where the first ends, or in its middle. */
		end = objects[i].bytes / (pages % 2 + 1);
	}
	*ret_set = (struct memory_set){
		.objects = objects, .count = OBJECTS, .capacity = OBJECTS, .last_id = OBJECTS};
}

static void
check_places(const struct tensors *tensors, const struct memory *objects)
{
	for (uint32_t i = 0; i < tensors->num_intervals; i++) {
		const struct interval *interval = &tensors->intervals[i];
		TH_ASSERT(interval->row < tensors->manifest.num_rows);
		const struct memory *object = &objects[tensors->memory_ids[interval->row] - 1];
		TH_ASSERT(interval->ino == object->ino && !object->dmabuf);
		TH_ASSERT(interval->start < interval->end && interval->start >= object->offset &&
			  interval->end <= object->offset + object->bytes);
		TH_ASSERT(interval->end - interval->start ==
			  tensors->manifest.rows[interval->row].bytes);
		if (i > 0 && interval[-1].ino == interval->ino)
			TH_ASSERT(interval[-1].end <= interval->start);
	}
	TH_ASSERT(tensors->table->bytes == tensors->manifest.bytes);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input input = {data, size};
	struct memory objects[OBJECTS];
	struct memory_set set;
	struct unpacked_rows rows;
	struct tensors *tensors = NULL;
	struct th_err err = {0};

	make_memory(&input, objects, &set);
	int rc = unpack_rows(input.at, input.left, TENSORS_MAX, &err, &rows);
	if (rc == 0) {
		TH_ASSERT(rows.rows.count <= TENSORS_MAX);
		rc = tensors_new(&rows.rows, &set, &err, &tensors);
		if (rc == 0)
			check_places(tensors, objects);
		tensors_free(tensors);
		unpack_rows_free(&rows);
	}
	TH_ASSERT(rc == 0 || (err.code == rc && err.text[0] != '\0'));
	return 0;
}
