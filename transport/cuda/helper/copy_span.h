/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_span - bytes that the process of a GPU moves or hashes.
 */
#ifndef TH_TRANSPORT_CUDA_HELPER_COPY_SPAN_H
#define TH_TRANSPORT_CUDA_HELPER_COPY_SPAN_H

#include <stdint.h>

#include "ipc/cuda/driver.h"

struct copy_span { /* of memory that this GPU reaches */
	CUdeviceptr address;
	uint64_t bytes;
};

#endif
