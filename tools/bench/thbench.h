/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench - what all its verbs share: options, how a measurement ends early, sentences.
 *
 * A verb starts what it needs (thbench_daemons.h, thbench_worker.h), adds sections to the report
 * and ends what it started. It returns 0, or a code with a sentence in *err. One thread.
 */
#ifndef TH_TOOLS_BENCH_THBENCH_H
#define TH_TOOLS_BENCH_THBENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "tools/bench/thbench_report.h"
#include "tools/thctl/stop_signals.h"

#define GB 1e9
#define BENCH_READERS_MAX 64u

struct bench_options {
	uint64_t bytes;        /* of a shard; 0: the verb's own                                */
	uint64_t tensor_bytes; /* of a tensor in it                                            */
	uint64_t block;        /* of the raw copy's send and receive                           */
	uint64_t link;         /* bytes a second of a link of fanout; 0: not limited           */
	uint32_t rounds;       /* 0: the verb's own                                            */
	uint32_t connections;  /* of a leg and of the raw copy; 0: the agents' default         */
	uint32_t threads;      /* of copies and digests; 0: as many as there are CPUs          */
	uint32_t readers;      /* 0: the verb's own                                            */
	bool curve, shapes;    /* of pair                                                      */
	bool json, quiet;
	const char *python; /* of peers */
	const char *peers;  /* which of them, comma separated; NULL: all                       */
};

struct bench {
	struct bench_options options;
	struct stop stop;
	struct report report;
	char program_dir[256]; /* where this program lies */
	uint32_t cpus;         /* that this process may use */
};

struct bench_verb {
	const char *name, *summary;
	int (*run)(struct bench *bench, struct th_err *err);
};

extern const struct bench_verb bench_pair, bench_local, bench_digest, bench_cast, bench_ring,
	bench_control, bench_pause, bench_fanout, bench_failover, bench_peers;

/* A line on stderr, "thbench: ..."; not with --quiet. */
void bench_progress(const struct bench *bench, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* 0, or TH_E_CANCELLED once a signal has come. */
TH_MUST_USE int bench_go_on(struct bench *bench, struct th_err *err);

/* 0, or -ENOMEM with a sentence when the machine has not as much to give. */
TH_MUST_USE int bench_need_memory(
	const struct bench *bench, uint64_t bytes, const char *what, struct th_err *err);
uint64_t bench_memory_available(void);

/* GB/s of bytes within a time. */
double bench_rate(uint64_t bytes, int64_t ns);

void bench_machine_facts(struct bench *bench);

#endif
