/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_memory - the arena behind unpacked structs, and packing and unpacking as such.
 *
 * An arena only grows until it is freed, and stops at CONVERT_ARENA_BYTES_MAX: a message of many
 * tiny parts must not become many times its size in memory. Any thread, one owner.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/proto/convert_internal.h"

#define BLOCK_BYTES ((size_t)16 << 10)

struct convert_block {
	struct convert_block *next;
	size_t size, used; /* of data */
	_Alignas(max_align_t) unsigned char data[];
};

void
convert_arena_free(struct convert_arena *arena)
{
	struct convert_block *block = arena->blocks, *next;

	for (; block != NULL; block = next) {
		next = block->next;
		free(block);
	}
	*arena = (struct convert_arena){0};
}

static int
add_block(struct convert_arena *arena, size_t size)
{
	struct convert_block *block;

	if (size > CONVERT_ARENA_BYTES_MAX - arena->bytes)
		return TH_E_LIMIT;
	block = malloc(sizeof(*block) + size);
	if (block == NULL)
		return -ENOMEM;
	block->size = size;
	block->used = 0;
	block->next = arena->blocks;
	arena->blocks = block;
	arena->bytes += size;
	return 0;
}

void *
convert_alloc(struct convert_arena *arena, size_t bytes)
{
	struct convert_block *block = arena->blocks;
	uint64_t aligned;
	void *memory;

	if (bytes > CONVERT_ARENA_BYTES_MAX ||
		!th_align_up_u64(bytes, sizeof(max_align_t), &aligned))
		return NULL;
	if (block == NULL || block->size - block->used < aligned) {
		if (add_block(arena, th_max_u64(aligned, BLOCK_BYTES)) != 0)
			return NULL;
		block = arena->blocks;
	}
	memory = block->data + block->used;
	block->used += aligned;
	return memory;
}

void *
convert_alloc_array(struct convert_arena *arena, size_t count, size_t size)
{
	uint64_t bytes;
	void *memory;

	if (!th_mul_u64(count, size, &bytes))
		return NULL;
	memory = convert_alloc(arena, bytes);
	if (memory != NULL)
		memset(memory, 0, bytes);
	return memory;
}

int
convert_reserve(struct convert_arena *arena, size_t bytes)
{
	return add_block(arena, bytes);
}

void *
convert_message(struct convert_arena *arena, const ProtobufCMessageDescriptor *descriptor)
{
	void *memory = convert_alloc(arena, descriptor->sizeof_message);

	/* What CONVERT_BYTES_PER_MESSAGE leaves beside a pointer and the rounding of an array. */
	TH_ASSERT(descriptor->sizeof_message <= CONVERT_BYTES_PER_MESSAGE - 48);
	TH_ASSERT(memory != NULL);
	protobuf_c_message_init(descriptor, memory);
	return memory;
}

void *
convert_pointers(struct convert_arena *arena, size_t count)
{
	void *memory = convert_alloc(arena, count * sizeof(void *));

	TH_ASSERT(memory != NULL);
	return memory;
}

int
convert_pack(const ProtobufCMessage *message, uint8_t **ret_data, size_t *ret_bytes)
{
	size_t bytes = protobuf_c_message_get_packed_size(message);
	uint8_t *data;

	if (bytes > CONVERT_MESSAGE_BYTES_MAX)
		return TH_E_LIMIT;
	data = malloc(bytes + 1); /* an empty message is a message */
	if (data == NULL)
		return -ENOMEM;
	protobuf_c_message_pack(message, data);
	*ret_data = data;
	*ret_bytes = bytes;
	return 0;
}

static void *
arena_alloc(void *arena, size_t bytes)
{
	return convert_alloc(arena, bytes);
}

static void
arena_free(void *arena, void *memory)
{
	(void)arena;
	(void)memory;
}

void *
convert_unpack(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data, size_t bytes,
	struct convert_arena *arena, struct th_err *err)
{
	ProtobufCAllocator allocator = {arena_alloc, arena_free, arena};
	void *message;

	if (bytes > CONVERT_MESSAGE_BYTES_MAX) {
		th_fail(err, -EPROTO, "a message of %zu bytes; at most %u are allowed", bytes,
			CONVERT_MESSAGE_BYTES_MAX);
		return NULL;
	}
	message = protobuf_c_message_unpack(descriptor, &allocator, bytes, data);
	if (message == NULL)
		th_fail(err, -EPROTO,
			"%zu bytes that are no tensorhub.v1.%s, or too many small parts", bytes,
			descriptor->short_name);
	return message;
}
