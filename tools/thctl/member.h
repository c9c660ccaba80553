/* SPDX-License-Identifier: Apache-2.0 */
/*
 * member - thctl as a worker: what the verbs that move or await weights do with libthc alike.
 *
 * Failures of libthc come with its own sentence, which is copied at once: the next call would
 * replace it. One thread.
 */
#ifndef TH_TOOLS_THCTL_MEMBER_H
#define TH_TOOLS_THCTL_MEMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/ctl.h"
#include "ipc/base/err.h"
#include "libthc/thc.h"
#include "tools/thctl/progress.h"
#include "tools/thctl/stop_signals.h"
#include "tools/thctl/thctl.h"

/* Fills err with libthc's sentence for this thread's last failure and returns code. */
int member_failed(int code, struct th_err *err);

/* "thctl-HOST-PID": unique among the replicas of a model. */
void member_default_replica(char ret_name[TH_NAME_MAX + 1]);

struct member_options {
	const char *replica;
	uint32_t shard, num_shards;
	uint64_t lineage;
	const char *retain;
};

int member_open(const struct thctl *ctl, const struct member_options *options, struct th_err *err,
	struct thc_shard **ret_shard);

/* A handle that only asks: an observer. */
int member_open_probe(const struct thctl *ctl, struct th_err *err, struct thc_shard **ret_shard);

/* Frees the handle in any case; what an agent cannot finish in time it finishes alone. */
void member_close(const struct thctl *ctl, struct thc_shard *shard, bool abandon);

/* The handles that one verb drives together. */
struct member_set {
	struct thc_shard **shards; /* borrows */
	uint32_t count;
	uint32_t events; /* enum thc_event_bits that came and were not judged yet             */
	/* While holding, once a second: 0, or what makes holding senseless. May be NULL. */
	int (*look)(void *arg, struct th_err *err);
	void *look_arg;
};

/*
 * Until all operations have ended: 0, or the first failure with its sentence. A signal cancels them
 * (TH_E_CANCELLED then). ops are freed and NULL afterwards. results[set->count] and progress may be
 * NULL.
 */
int member_drive(struct member_set *set, struct stop *stop, struct thc_op **ops,
	struct progress *progress, struct thc_result *results, struct th_err *err);

/*
 * Holds, then closes all handles of the set (they are NULL afterwards). status is what came before:
 * only THCTL_OK is held, and only with hold. Returns the exit status of the verb.
 */
int member_finish(const struct thctl *ctl, struct member_set *set, struct stop *stop, int status,
	bool hold, struct th_err *err);

#endif
