/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cast_pipe - transport/cast for a program in another language, by which a test compares it.
 *
 *   cast_pipe KIND SCHEME FROM TO ROWS COLUMNS [BLOCK ROWS, BLOCK COLUMNS]
 *
 * KIND is that of cast_force, the rest are numbers, types and schemes as in cast.h. A whole tensor
 * of two dimensions comes by stdin; what it becomes leaves by stdout, and behind it the scales.
 * Exit status 77: this CPU does not have KIND.
 */
#include <stdio.h>
#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "transport/cast/cast.h"

static size_t
size_of(uint32_t type)
{
	return type == CAST_F32 ? 4 : type == CAST_F8_E4M3 ? 1 : 2;
}

int
main(int argc, char **argv)
{
	uint32_t number[8] = {0};
	struct th_err err = {0};
	struct cast_box of_scales = {0};
	int rc = 1;

	if (argc < 7 || argc > 9)
		return 2;
	if (!cast_force(argv[1]))
		return 77;
	for (int i = 2; i < argc; i++)
		number[i - 2] = (uint32_t)strtoul(argv[i], NULL, 10);
	const struct cast cast = {number[0], number[1], number[2], {number[5], number[6]}};
	const struct cast_box box = {
		.ndim = 2, .global_shape = {number[3], number[4]}, .shape = {number[3], number[4]}};
	if (cast_check(&cast, &box, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		return 2;
	}
	const size_t count = (size_t)number[3] * number[4];
	cast_scales_box(&cast, &box, &of_scales);
	const size_t num_scales = of_scales.shape[0] * of_scales.shape[1];
	uint8_t *from = th_calloc(count, size_of(cast.from)),
		*to = th_calloc(count, size_of(cast.to));
	float *scales = th_calloc(num_scales + 1, sizeof(*scales));
	const struct cast_memory memory = {.from = from, .to = to, .scales = scales};

	if (fread(from, size_of(cast.from), count, stdin) == count) {
		cast_run(&cast, &box, &memory);
		if (fwrite(to, size_of(cast.to), count, stdout) == count &&
			fwrite(scales, sizeof(*scales), num_scales, stdout) == num_scales &&
			fflush(stdout) == 0)
			rc = 0;
	}
	free(from);
	free(to);
	free(scales);
	return rc;
}
