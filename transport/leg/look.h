/* SPDX-License-Identifier: Apache-2.0 */
/*
 * look - what chunks of a part in GPU memory hold now: digests by the GPUs, several under way, and
 * nobody waits. What for: reuse.h.
 *
 * Nothing is written by a look, so it harms nobody when its leg has ended before it comes back: it
 * is left behind. It touches only what is its own, keeps the worker's memory open until the GPU is
 * done with it, and the last one frees all.
 *
 * Any thread, but for `done`, which is on the GPU's thread.
 */
#ifndef TH_TRANSPORT_LEG_LOOK_H
#define TH_TRANSPORT_LEG_LOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/ctl.h"
#include "transport/loop/mover_loop.h"
#include "transport/part/xfer_part.h"

/* Chunks: 128 MiB are a tenth of a millisecond of a GPU's work, and longer than the way to it and
 * back. They go there in at least two runs, so that it has one while the other is judged. */
#define LOOKS_MAX 32u
#define LOOKS_RUN (LOOKS_MAX / 2)

struct looks;

/* Of a touchable part. back is posted to loop whenever one has come back. Borrows: part until
 * looks_free, the others until looks_stop. */
struct looks *looks_new(struct xfer_part *part, struct loop *loop, struct loop_task *back);
/* When it returns none begins, and back is not posted any more. */
void looks_stop(struct looks *looks);
/* No call is under way any more. NULL: nothing. */
void looks_free(struct looks *looks);

/* Chunks that lie on one GPU each, at most LOOKS_RUN: those of the first that lie on the same one
 * are one request. Returns how many; 0: stopped. At most LOOKS_MAX are begun and not taken. */
uint32_t looks_begin(struct looks *looks, const uint32_t *chunks, uint32_t count);

struct look_result {
	uint32_t chunk;
	int code; /* 0, or one of its run could not be read: cuda/agent/gpus.h */
	struct th_hash digest;
};
/* The oldest that has come back and was not taken. False: none. By one thread at a time. */
bool looks_take(struct looks *looks, struct look_result *ret_result);

#endif
