/* SPDX-License-Identifier: Apache-2.0 */
/*
 * people - processes of a test that use a GPU, and a driver that is ready.
 */
#ifndef TH_TESTS_SUPPORT_CUDA_PEOPLE_H
#define TH_TESTS_SUPPORT_CUDA_PEOPLE_H

#include <sys/types.h>

#include "ipc/cuda/driver.h"
#include "tests/support/cuda/test_calls.h"

struct person {
	pid_t pid;
	int sock; /* owns */
};

/* The driver's calls, also those of test_calls.h, cuInit done, the primary context of the device
 * current. Fails the process. */
struct cuda cuda_ready(int device);

/* A child lives in its own process and ends with it; sock leads to its parent. Before cuInit. */
struct person person_new(void (*life)(int sock));

/* A message with a descriptor or -1, both ways. Fails the process. */
void tell(int sock, const void *data, size_t bytes, int fd);
int hear(int sock, void *data, size_t bytes); /* the descriptor or -1 */

/* It has come to its end by itself, and well. */
void person_end(struct person *person);
void person_kill(struct person *person);

#endif
