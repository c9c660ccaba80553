/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_rig - published shards and views for tests of the planner, and a plan carried out by hand.
 *
 * Each element has a value that its tensor's name and its place in the whole give, so a copy is
 * right when each element of the reader's row has the value of its own place. One owner.
 */
#ifndef TH_TESTS_SUPPORT_PLAN_RIG_H
#define TH_TESTS_SUPPORT_PLAN_RIG_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/plan/plan.h"

enum { RIG_U8 = 1, RIG_F16 = 6, RIG_BF16 = 7, RIG_F32 = 10, RIG_F8 = 14, RIG_F4 = 20 };

#define PLAN_RIG_SHARDS 512

struct plan_rig {
	struct manifest *shards; /* PLAN_RIG_SHARDS of them, once one is published */
	uint32_t num_shards;
	struct plan_row *rows; /* of the view */
	struct plan_view view;
	char **names; /* owns; of all rows there were */
	uint32_t num_names;
};

void plan_rig_free(struct plan_rig *rig);

/* A box of a whole: dims are {whole, start, length} a dimension. */
struct plan_dim {
	uint64_t whole, lo, size;
};
#define DIMS(...)                                                                                  \
	(const struct plan_dim[])                                                                  \
	{                                                                                          \
		__VA_ARGS__                                                                        \
	}
void plan_rig_publish(struct plan_rig *rig, uint32_t shard, const char *name, uint32_t dtype,
	uint32_t ndim, const struct plan_dim *dims);
/* Returns the row, for strides and conversions; good until the next call. */
struct plan_row *plan_rig_want(struct plan_rig *rig, const char *name, uint32_t dtype,
	uint32_t ndim, const struct plan_dim *dims);
void plan_rig_clear_view(struct plan_rig *rig);

/*
 * What rank of ranks gets of a dimension as torch chunks it: ceil(whole / ranks) each, then less.
 */
struct plan_dim plan_chunk(uint64_t whole, uint32_t ranks, uint32_t rank);

int plan_rig_plan(struct plan_rig *rig, uint32_t shard, uint32_t num_shards, struct th_err *err,
	struct plan **ret_plan);

/*
 * Carries the plan out and compares with a copy by hand: each byte of each row once, from a place
 * inside of the source's row, with the value of its own place; none beside it. Conversions cut the
 * value to the bits of the row's type. NULL, or what is wrong.
 */
const char *plan_rig_replay(const struct plan_rig *rig, const struct plan *plan);

#endif
