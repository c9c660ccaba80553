/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thctl - what all verbs share: the command line, exit statuses, sentences, the way to the daemons.
 *
 * A verb reads struct thctl, does its work and returns an exit status. Data go to stdout through a
 * document, sentences to stderr through thctl_say and thctl_fail. One thread.
 */
#ifndef TH_TOOLS_THCTL_THCTL_H
#define TH_TOOLS_THCTL_THCTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/err.h"
#include "ipc/sock/agent_dir.h"
#include "tools/thctl/output.h"

/* Never renumbered: scripts branch on them. */
enum thctl_exit {
	THCTL_OK = 0,
	THCTL_FAILED = 1,
	THCTL_USAGE = 2,
	THCTL_NO_AGENT = 3,
	THCTL_NO_SERVER = 4,
	THCTL_DEGRADED = 5,
	THCTL_TIMED_OUT = 6,
	THCTL_DENIED = 7,
	THCTL_TAKEN = 8,
};

enum thctl_option { /* which options a verb takes */
	THCTL_MODEL = 1u << 0,
	THCTL_VERSION = 1u << 1,
	THCTL_REPLICA = 1u << 2,
	THCTL_SHARD = 1u << 3,
	THCTL_NUM_SHARDS = 1u << 4,
	THCTL_LINEAGE = 1u << 5,
	THCTL_RETAIN = 1u << 6,
	THCTL_HOLD = 1u << 7,
	THCTL_FORCE = 1u << 8,
	THCTL_REPLICAS = 1u << 9,
	THCTL_WATCH = 1u << 10,
	THCTL_YES = 1u << 11,
	THCTL_FOLLOW = 1u << 12,
	THCTL_JOIN = 1u << 13,
	THCTL_LISTEN = 1u << 14,
	THCTL_NODE = 1u << 15,
	THCTL_DATACENTER = 1u << 16,
};

#define THCTL_ARGUMENTS_MAX 2u

struct thctl;

struct verb {
	const char *name;
	const char *arguments; /* as in the usage line; NULL: none                              */
	const char *summary;   /* one line of --help; NULL: not built yet                       */
	const char *text;      /* more of it, for --help of the verb; may be NULL               */
	uint32_t options;      /* enum thctl_option                                             */
	uint32_t arguments_min, arguments_max;
	bool agent_only; /* does not work with -s                                         */
	int (*run)(struct thctl *ctl);
};

struct thctl {
	const struct verb *verb;
	const char *runtime_dir; /* -r, else $THC_AGENT, else where an agent is looked for      */
	char looked[AGENT_DIR_LOOKED_BYTES]; /* at what, for that; "": it was named             */
	const char *server; /* -s; NULL: ask the agent                                     */
	const struct output_format *format;
	int64_t timeout_ns;  /* --timeout; TH_FOREVER: not given                                */
	int64_t deadline_ns; /* the moment it passes                                            */

	uint32_t given; /* enum thctl_option                                                    */
	const char *model, *version, *replica, *retain;
	const char *join, *listen, *node, *datacenter;
	uint64_t shard, num_shards, lineage, replicas;
	uint32_t num_arguments;
	const char *arguments[THCTL_ARGUMENTS_MAX];
};

extern const struct verb verb_status, verb_ls, verb_publish, verb_fetch, verb_wait, verb_drain,
	verb_undrain, verb_evict, verb_go, verb_events, verb_plan, verb_up;

/* A line on stderr: "thctl: ...". */
void thctl_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/*
 * The sentence of a failure on stderr, with what to do next where the sentence does not say so;
 * returns the exit status for the code.
 */
int thctl_fail(const struct thctl *ctl, int code, const char *text);
int thctl_usage(const struct thctl *ctl, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* What --timeout leaves, in ms for libthc (THC_FOREVER without one). */
int64_t thctl_left_ms(const struct thctl *ctl);

/* Prints and frees; THCTL_OK, or THCTL_FAILED with a sentence when stdout takes it no more. */
int thctl_print(const struct thctl *ctl, struct document *document);

#endif
