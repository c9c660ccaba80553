/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_calls - calls of the driver that only tests make: the product asks no driver for them.
 */
#ifndef TH_TESTS_SUPPORT_CUDA_TEST_CALLS_H
#define TH_TESTS_SUPPORT_CUDA_TEST_CALLS_H

#include "ipc/cuda/driver.h"
#include "tests/support/cuda/test_names.h"

struct test_cuda {
#define TEST_ENTRY(name, version, arguments) CUresult(*name) arguments;
	CUDA_TEST_CALLS(TEST_ENTRY)
#undef TEST_ENTRY
};

/* Of this process's one driver, once test_calls_find was called, as cuda_ready (people.h) does. */
extern struct test_cuda test_cuda;
/* Fails the process where the driver has not all of them. */
void test_calls_find(const struct cuda *cuda);

#endif
