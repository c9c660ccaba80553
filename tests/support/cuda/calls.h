/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls - the driver's calls as functions of the library for tests, each in its one form.
 */
#ifndef TH_TESTS_SUPPORT_CUDA_CALLS_H
#define TH_TESTS_SUPPORT_CUDA_CALLS_H

#include "tests/support/cuda/test_calls.h"

#define CUDA_PROTOTYPE(name, version, arguments) CUresult name arguments;
CUDA_ALL_CALLS(CUDA_PROTOTYPE)
#undef CUDA_PROTOTYPE

#endif
