/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_crowd - one publisher and several readers, each with an agent on a host of its own, where
 * there can be such hosts; else all on loopback.
 */
#ifndef TH_TOOLS_BENCH_THBENCH_CROWD_H
#define TH_TOOLS_BENCH_THBENCH_CROWD_H

#include "tools/bench/thbench_hosts.h"
#include "tools/bench/thbench_worker.h"

struct crowd_reader {
	struct worker worker;
	const struct bench_daemon *agent; /* borrows */
};

struct crowd {
	struct bench *bench;
	struct hosts hosts;
	struct field field;
	struct worker publisher;
	uint32_t num_readers;
	struct crowd_reader readers[BENCH_READERS_MAX];
	uint64_t bytes;
};

/* The publisher, which publishes version 1, and its host; room for readers. Owner: see below. */
TH_MUST_USE int crowd_start(struct bench *bench, struct crowd *crowd, uint64_t bytes,
	uint32_t hosts, uint64_t link, struct th_err *err);
/* On failure too. */
void crowd_stop(struct crowd *crowd);
/* A reader at a new agent on this host (the publisher's is 0), in place number `reader`. */
TH_MUST_USE int crowd_add(
	struct crowd *crowd, uint32_t reader, uint32_t host, const char *name, struct th_err *err);
/* Its agent and its process, at once. */
void crowd_kill_agent(struct crowd *crowd, uint32_t reader);
void crowd_drop(struct crowd *crowd, uint32_t reader);

/* Its memory is other than what is published, and it begins to replicate. */
TH_MUST_USE int crowd_begin(struct crowd *crowd, uint32_t reader, struct th_err *err);
TH_MUST_USE int crowd_mess(struct crowd *crowd, uint32_t reader, struct th_err *err);
/* Waits for its end, and has it give the version up. */
TH_MUST_USE int crowd_end(
	struct crowd *crowd, uint32_t reader, struct answer *ret_answer, struct th_err *err);
TH_MUST_USE int crowd_give_up(struct crowd *crowd, uint32_t reader, struct th_err *err);
/* Until so many bytes are there, or all. */
TH_MUST_USE int crowd_wait(
	struct crowd *crowd, uint32_t reader, uint64_t bytes, struct th_err *err);

/* What a section has to say of the place. */
void crowd_facts(const struct crowd *crowd, struct section *section, uint64_t link);

#endif
