/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_raw - the baseline of everything that goes over TCP: two processes, a few connections, a
 * thread for each at both ends, memory straight in and out of the socket, and nothing else.
 *
 * The connections are made once and stay warm; what is measured against it makes its own anew. Each
 * end belongs to one process (see thbench_worker.h). Blocking.
 */
#ifndef TH_TOOLS_BENCH_THBENCH_RAW_H
#define TH_TOOLS_BENCH_THBENCH_RAW_H

#include <stdint.h>

#include "ipc/base/checked.h"

#define RAW_CONNECTIONS_MAX 16u

struct raw {
	uint32_t count;
	int door;                     /* owns, -1: none; the sender's */
	int fds[RAW_CONNECTIONS_MAX]; /* owns */
};

void raw_init(struct raw *raw);
void raw_close(struct raw *raw);
/* 0 or -errno. */
TH_MUST_USE int raw_listen(struct raw *raw, uint16_t *ret_port);
TH_MUST_USE int raw_accept(struct raw *raw, uint32_t count);
TH_MUST_USE int raw_connect(struct raw *raw, uint16_t port, uint32_t count);
/* memfd -1: with send() from data, else with sendfile() from the file. */
TH_MUST_USE int raw_send(
	struct raw *raw, const uint8_t *data, int memfd, uint64_t bytes, uint64_t block);
TH_MUST_USE int raw_receive(struct raw *raw, uint8_t *data, uint64_t bytes, uint64_t block);

#endif
