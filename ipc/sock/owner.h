/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner - whether who listens at a unix socket is an agent, or somebody who wants to pass for one.
 *
 * A worker gives its agent descriptors of its memory. Whoever can put a socket where the worker
 * looks for the agent's would get them, so it is looked at who listens, and at whose hand has made
 * the way there:
 *
 *   1. A listener of the caller's own user is trusted, wherever it is.
 *   2. Any other listener is root, or the owner of the directory that the socket is in.
 *   3. Each directory above that one, links followed, belongs to root or the caller, and nobody
 *      else may write it, or it is sticky and what comes next on the way belongs to root or the
 *      caller.
 *   4. The same goes for the directory of the socket, except that it and the socket may also belong
 *      to the listener.
 *
 * So an agent of a user of its own passes in a directory that root made for it (/run/tensorhub),
 * and nobody's does in one that he made himself in /tmp. After that check only those who are
 * trusted can change the way. Any thread.
 */
#ifndef TH_IPC_SOCK_OWNER_H
#define TH_IPC_SOCK_OWNER_H

#include <stdbool.h>
#include <sys/types.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"

/* 0; TH_E_DENIED with a sentence that names what is not trusted, or -errno with one. */
TH_MUST_USE int owner_check(int sock, const char *path, struct th_err *err);

/* The rule, with the caller's user and the listener's given: for its tests. */
TH_MUST_USE int owner_check_of(uid_t self, uid_t listener, const char *path, struct th_err *err);

struct owner_sight { /* what the kernel says of a step of the way */
	uid_t uid;
	mode_t mode;
};

/*
 * What is wrong with a directory for one who looks for next in it, as the end of "directory X ...",
 * or NULL. agent: this user is trusted, too.
 */
const char *owner_step_wrong(uid_t self, uid_t agent, const struct owner_sight *directory,
	const struct owner_sight *next);

#endif
