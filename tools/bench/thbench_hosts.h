/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_hosts - network namespaces as hosts: each with one link to a switch, limited in both
 * directions. Needs root, ip and tc.
 *
 * A namespace has no name: a process of ours holds it, and it goes with that process.
 */
#ifndef TH_TOOLS_BENCH_THBENCH_HOSTS_H
#define TH_TOOLS_BENCH_THBENCH_HOSTS_H

#include "tools/bench/thbench_daemons.h"

#define HOSTS_MAX (BENCH_READERS_MAX + 1u)

struct hosts {
	uint32_t count;         /* 0: none; everything is on loopback                   */
	struct place at_switch; /* where the server is                                  */
	struct place places[HOSTS_MAX];
	char why[TH_SENTENCE_BYTES]; /* there are none */
	char names[HOSTS_MAX][24];   /* of their addresses                                  */
};

/*
 * link: bytes a second. 0 with count 0 when this user may not, or the machine cannot: then why says
 * so. On failure (a signal came to us) nothing is left.
 */
TH_MUST_USE int hosts_start(struct bench *bench, struct hosts *hosts, uint32_t count, uint64_t link,
	struct th_err *err);
void hosts_stop(struct hosts *hosts);
/* Loopback, when there are no hosts. */
const struct place *hosts_place(const struct hosts *hosts, uint32_t host);
/* Bytes that have left this host by its link. */
uint64_t hosts_sent_bytes(const struct hosts *hosts, uint32_t host);

#endif
