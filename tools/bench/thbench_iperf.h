/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_iperf - iperf3 on loopback, where it is installed.
 *
 * Its buffers stay in the cache: it says what the sockets can do, not what moving memory costs.
 */
#ifndef TH_TOOLS_BENCH_THBENCH_IPERF_H
#define TH_TOOLS_BENCH_THBENCH_IPERF_H

#include "tools/bench/thbench.h"

bool iperf_there(void);
/*
 * GB/s of so many bytes by so many connections, blocks of 1 MiB, cubic; 0 when it did not say.
 * Fails only when a signal came to us.
 */
TH_MUST_USE int iperf_run(struct bench *bench, uint64_t bytes, uint32_t connections,
	double *ret_rate, struct th_err *err);

#endif
