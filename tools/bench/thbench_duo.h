/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_duo - one publisher and one reader, and the ways by which the same bytes go from the
 * memory of the one to the memory of the other: raw copies and legs of agents.
 *
 * All ways use the same two memories, so no way has better ones.
 */
#ifndef TH_TOOLS_BENCH_THBENCH_DUO_H
#define TH_TOOLS_BENCH_THBENCH_DUO_H

#include "tools/bench/thbench_copy.h"
#include "tools/bench/thbench_daemons.h"
#include "tools/bench/thbench_worker.h"

struct duo {
	struct field field;
	struct worker source, reader;
	uint64_t bytes; /* of each memory */
	uint32_t connections;
	int source_memfd;
};

enum way_kind {
	WAY_RAW_SEND,
	WAY_RAW_SENDFILE,
	WAY_LEG,  /* of the agents that slot was joined with */
	WAY_COPY, /* in the reader, from the source's memory: enum copy_kind in slot */
};

struct way {
	enum way_kind kind;
	uint32_t slot;
	uint32_t series;       /* where its rates go */
	const char *transport; /* what a leg must have gone by */
};

/* What a shard consists of. */
struct shape {
	uint64_t bytes, tensor_bytes;
	uint32_t tiny; /* so many tensors of 1 KiB first, within bytes */
};

/* A server, no agent yet, two workers with memory of so many bytes. On failure call duo_stop. */
TH_MUST_USE int duo_start(struct bench *bench, struct duo *duo, uint64_t bytes, struct th_err *err);
void duo_stop(struct duo *duo);

/* Registers with these agents in slot, and publishes version 1 of model. */
TH_MUST_USE int duo_publish(struct bench *bench, struct duo *duo, uint32_t slot, const char *model,
	const struct bench_daemon *from, const struct bench_daemon *to, const struct shape *shape,
	struct th_err *err);
TH_MUST_USE int duo_forget(struct bench *bench, struct duo *duo, uint32_t slot, struct th_err *err);

/*
 * The connections of the raw copy: duo->connections of them, or, when that is 0, as many as a leg
 * to agent has, which is looked at during one.
 */
TH_MUST_USE int duo_connect(struct bench *bench, struct duo *duo, uint32_t slot,
	const struct bench_daemon *agent, struct th_err *err);

/* Once, unmeasured; and what has arrived must be what was sent. */
TH_MUST_USE int duo_warm(struct bench *bench, struct duo *duo, const struct way *way,
	uint64_t bytes, struct th_err *err);
/* One round of all ways into the section, a round of an odd number in reverse order. */
TH_MUST_USE int duo_round(struct bench *bench, struct duo *duo, struct section *section,
	const struct way *ways, uint32_t count, uint64_t bytes, uint32_t round, struct th_err *err);
TH_MUST_USE int duo_measure(struct bench *bench, struct duo *duo, struct section *section,
	const struct way *ways, uint32_t count, uint64_t bytes, uint32_t rounds,
	struct th_err *err);

#endif
