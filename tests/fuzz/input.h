/* SPDX-License-Identifier: Apache-2.0 */
/*
 * input - what a fuzz target reads its bytes by. Behind the end there are zeros, so every input is
 * a whole one.
 */
#ifndef TH_TESTS_FUZZ_INPUT_H
#define TH_TESTS_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct input {
	const uint8_t *at;
	size_t left;
};

/* The target's own: one input. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void
input_copy(struct input *input, void *ret_bytes, size_t bytes)
{
	size_t has = bytes < input->left ? bytes : input->left;

	memset(ret_bytes, 0, bytes);
	if (has > 0)
		memcpy(ret_bytes, input->at, has);
	input->at += has;
	input->left -= has;
}

static inline uint8_t
input_byte(struct input *input)
{
	uint8_t byte;

	input_copy(input, &byte, sizeof(byte));
	return byte;
}

static inline uint64_t
input_word(struct input *input)
{
	uint64_t word;

	input_copy(input, &word, sizeof(word));
	return word;
}

/* Most are small, as real ones are; some are at an end of their range. */
static inline uint64_t
input_number(struct input *input)
{
	uint8_t byte = input_byte(input);

	if (byte < 0xf0)
		return byte;
	if (byte < 0xf8)
		return UINT64_MAX - (byte & 7u);
	return input_word(input);
}

/* A part behind its length of two bytes: at most as much as there is. */
static inline struct input
input_part(struct input *input)
{
	uint8_t length[2];
	struct input part = {0};

	input_copy(input, length, sizeof(length));
	part.left = (size_t)length[0] | (size_t)length[1] << 8;
	if (part.left > input->left)
		part.left = input->left;
	part.at = input->at;
	input->at += part.left;
	input->left -= part.left;
	return part;
}

#endif
