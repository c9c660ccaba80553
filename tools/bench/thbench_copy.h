/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_copy - what memory itself gives: copies and reads by several threads.
 *
 * A baseline of our own, on purpose not the code that is measured against it. Blocks until all
 * threads have ended; threads 1 works in the caller's.
 */
#ifndef TH_TOOLS_BENCH_THBENCH_COPY_H
#define TH_TOOLS_BENCH_THBENCH_COPY_H

#include <stdint.h>

enum copy_kind {
	COPY_STREAM, /* stores that pass the caches by, where the CPU has them          */
	COPY_MEMCPY,
	COPY_READ, /* source only, the widest loads of the CPU                          */
};

void copy_run(enum copy_kind kind, void *to, const void *from, uint64_t bytes, uint32_t threads);

/*
 * run(arg, at, bytes) by each of the threads on its own part of [0, bytes), cut at multiples of
 * 64 KiB. How other measurements share the threads.
 */
void copy_parallel(uint32_t threads, uint64_t bytes,
	void (*run)(void *arg, uint64_t at, uint64_t bytes), void *arg);

/* "AVX-512", "AVX2" or "plain": what COPY_STREAM and COPY_READ use here. */
const char *copy_width(void);

#endif
