/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_dir - where the agent of this machine is looked for when nobody names its directory: in the
 * first that is there of
 *
 *   1. $XDG_RUNTIME_DIR/tensorhub, where the variable holds a path from the root on,
 *   2. /tmp/tensorhub-UID,
 *   3. /run/tensorhub.
 *
 * The first two are one user's own. One that is another user's, that others may write (in /tmp:
 * that they may do anything with), or that is no directory counts as not there, since in /tmp
 * anybody may make that name: it neither leads a worker astray nor keeps it from the machine's
 * agent. The directory decides, not whether somebody listens in it: while one's own agent is being
 * started again, a worker must not end up in the cluster of another one. This chooses, and proves
 * nothing: who connects looks by owner.h who listens. Any thread.
 */
#ifndef TH_IPC_SOCK_AGENT_DIR_H
#define TH_IPC_SOCK_AGENT_DIR_H

#include <stdbool.h>
#include <sys/types.h>

#include "ipc/base/checked.h"

#define AGENT_DIR_BYTES 108 /* a socket in it has no more */
#define AGENT_DIR_PLACES 3
#define AGENT_DIR_LOOKED_BYTES 512

struct agent_dir {
	char path[AGENT_DIR_BYTES]; /* "": there is none such */
	bool own;                   /* it has to belong to the user, with "closed" off */
	mode_t closed;
};

/* In their order. xdg: the variable, or NULL. */
void agent_dir_places(uid_t self, const char *xdg, struct agent_dir ret_places[AGENT_DIR_PLACES]);

/* 0: it is there; -ENOENT: it is not; TH_E_DENIED: it must not be used. ret_why: a few words. */
TH_MUST_USE int agent_dir_look(const struct agent_dir *place, uid_t self, const char **ret_why);

/*
 * The first that is there, else the last one; it lies in places. ret_looked: those up to it, each
 * with what was found of it, for a sentence.
 */
const struct agent_dir *agent_dir_first(const struct agent_dir places[AGENT_DIR_PLACES], uid_t self,
	char ret_looked[AGENT_DIR_LOOKED_BYTES]);

/* The same for this process, by its environment. */
void agent_dir_find(struct agent_dir *ret_dir, char ret_looked[AGENT_DIR_LOOKED_BYTES]);

#endif
