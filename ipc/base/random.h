/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random - numbers that nobody can guess: names, keys and secrets. Cores have splitmix.h.
 *
 * They come from the kernel, which has them from a moment after its own start on, and is waited for
 * until then. Where it refuses (a filter of system calls) the process says so and aborts: it would
 * find that out with its first number, and has nothing instead that would keep a secret. Any
 * thread; not in libthc, whose process is not ours to end.
 */
#ifndef TH_IPC_BASE_RANDOM_H
#define TH_IPC_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

void th_random(void *ret_bytes, size_t count);

/* One that names something: never 0. */
uint64_t th_random_name(void);

#endif
