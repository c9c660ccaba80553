/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options_gpu - the keys of GPU memory: what each means and may be. Read-only after start. Pure.
 */
#ifndef TH_DAEMON_HOST_CONFIG_OPTIONS_GPU_H
#define TH_DAEMON_HOST_CONFIG_OPTIONS_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/err.h"

struct options_gpu {
	bool used;              /* workers may share GPU memory, where there is CUDA */
	bool digest_on_cpu;     /* also where the GPU could */
	uint64_t staging_bytes; /* of pinned host memory, at most */
};

struct options_gpu options_gpu_default(void);

/* A key named "gpu" or "gpu.something". 0, or TH_E_INVALID with a sentence that names it. */
int options_gpu_set(
	struct options_gpu *gpu, const char *key, const char *value, struct th_err *err);

#endif
