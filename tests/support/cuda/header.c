/* SPDX-License-Identifier: Apache-2.0 */
/*
 * header - what NVIDIA's cuda.h says. The only file that includes it, where it is installed.
 */
#include "tests/support/cuda/header.h"

#if TH_CUDA_HEADER
#include <cuda.h>
#include <cudaTypedefs.h>

#include "tests/support/cuda/test_names.h"

static const struct cuda_fact facts[] = {CUDA_FACTS};

/* Their pointer type of that version, against our arguments read with their types. */
#define CUDA_FACT_CALL(name, version, arguments)                                                   \
	{#name,                                                                                    \
		__builtin_types_compatible_p(                                                      \
			PFN_##name##_v##version, CUresult(CUDAAPI *) arguments),                   \
		1},

static const struct cuda_fact calls[] = {CUDA_ALL_CALLS(CUDA_FACT_CALL)};

const struct cuda_fact *const cuda_header_facts = facts;
const size_t cuda_header_count = sizeof(facts) / sizeof(facts[0]);
const int cuda_header_version = CUDA_VERSION;
const struct cuda_fact *const cuda_header_calls = calls;
const size_t cuda_header_calls_count = sizeof(calls) / sizeof(calls[0]);
#else
const struct cuda_fact *const cuda_header_facts = NULL;
const size_t cuda_header_count = 0;
const int cuda_header_version = 0;
const struct cuda_fact *const cuda_header_calls = NULL;
const size_t cuda_header_calls_count = 0;
#endif
