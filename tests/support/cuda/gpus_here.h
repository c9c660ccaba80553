/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpus_here - the GPUs that a test program works with: files that are made for it (machine.h), with
 * their libcuda.so.1 as its own and its children's; or, with TH_GPU_HARDWARE=1 in the environment,
 * those of this machine by whatever libcuda.so.1 the loader finds. Of these nothing can be planned,
 * lost or counted. One thread, before any call of a driver.
 */
#ifndef TH_TESTS_SUPPORT_CUDA_GPUS_HERE_H
#define TH_TESTS_SUPPORT_CUDA_GPUS_HERE_H

#include <limits.h>
#include <stdbool.h>

#include "tests/support/cuda/machine.h"

bool gpus_here_are_real(void);

/* So many of so many bytes, where they are files: what drives them. NULL: they are real. Where
 * there is none it fails the process, with a sentence. */
struct machine *gpus_here_open(unsigned num_devices, uint64_t bytes);
void gpus_here_close(void);

/* What is built in the folder of the second libcuda.so.1: wherever the test lies, it lies in a
 * folder beside that one's parent, as tests/unit and tests/bench do. */
void gpus_here_path(const char *name, char ret_path[PATH_MAX]);

/* First in a Criterion test that plans, loses or counts. */
#define ONLY_ON_FILES()                                                                            \
	do {                                                                                       \
		if (gpus_here_are_real())                                                          \
			cr_skip_test("on real GPUs nothing can be planned, lost or counted");      \
	} while (0)

#endif
