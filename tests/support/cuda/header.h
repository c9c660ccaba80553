/* SPDX-License-Identifier: Apache-2.0 */
/*
 * header - what a header says of the driver's interface, as numbers: of ours and of NVIDIA's.
 */
#ifndef TH_TESTS_SUPPORT_CUDA_HEADER_H
#define TH_TESTS_SUPPORT_CUDA_HEADER_H

#include <stddef.h>

struct cuda_fact {
	const char *name;
	long long a, b; /* a number; a size and an alignment; an offset and a size; same, exists */
};

#define CUDA_FACT_NUMBER(name, number) {#name, (long long)(name), 0},
#define CUDA_FACT_TYPE(type) {#type, (long long)sizeof(type), (long long)_Alignof(type)},
#define CUDA_FACT_MEMBER(type, member)                                                             \
	{#type "." #member, (long long)offsetof(type, member),                                     \
		(long long)sizeof(((type *)NULL)->member)},

#define CUDA_FACTS                                                                                 \
	CUDA_RESULTS(CUDA_FACT_NUMBER)                                                             \
	CUDA_POINTER_ATTRIBUTES(CUDA_FACT_NUMBER)                                                  \
	CUDA_DEVICE_ATTRIBUTES(CUDA_FACT_NUMBER)                                                   \
	CUDA_MEMORY_TYPES(CUDA_FACT_NUMBER)                                                        \
	CUDA_HANDLE_TYPES(CUDA_FACT_NUMBER)                                                        \
	CUDA_LOCATION_TYPES(CUDA_FACT_NUMBER)                                                      \
	CUDA_ALLOCATION_TYPES(CUDA_FACT_NUMBER)                                                    \
	CUDA_ACCESS_FLAGS(CUDA_FACT_NUMBER)                                                        \
	CUDA_GRANULARITIES(CUDA_FACT_NUMBER)                                                       \
	CUDA_RANGE_HANDLE_TYPES(CUDA_FACT_NUMBER)                                                  \
	CUDA_QUERY_RESULTS(CUDA_FACT_NUMBER)                                                       \
	CUDA_NUMBERS(CUDA_FACT_NUMBER)                                                             \
	CUDA_TYPES(CUDA_FACT_TYPE)                                                                 \
	CUDA_MEMBERS(CUDA_FACT_MEMBER)

/* What cuda.h says, and its version. NULL where the build found none that is new enough. */
extern const struct cuda_fact *const cuda_header_facts;
extern const size_t cuda_header_count;
extern const int cuda_header_version;

/* For each call: b 1 if cudaTypedefs.h has it in this version (it does not compile otherwise),
 * a 1 if its form is ours. */
extern const struct cuda_fact *const cuda_header_calls;
extern const size_t cuda_header_calls_count;

#endif
