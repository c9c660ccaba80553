/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listener - the runtime directory of an agent, and unix sockets with a name in it.
 *
 * Exactly one agent serves a directory: it holds a lock (flock) on the file `agent.lock` there for
 * as long as it lives, so two that start at once cannot both find a stale socket and remove each
 * other's. A socket file is removed only after connecting to it was refused. Start-up only.
 */
#ifndef TH_IPC_SOCK_LISTENER_H
#define TH_IPC_SOCK_LISTENER_H

#include <sys/types.h>

#include "ipc/base/err.h"

/*
 * Makes dir (mode 0750) when it is not there and locks it. Returns the descriptor that holds the
 * lock until it is closed (the kernel does that for a dead agent), or a code with a sentence:
 * TH_E_STATE "another agent serves DIR".
 */
int listener_lock_dir(const char *dir, struct th_err *err);

/*
 * Makes sure that path can be bound: 0 when nothing is there or a stale socket was removed,
 * TH_E_STATE when something listens, -EEXIST when it is no socket. For listeners of a library
 * (nng) that bind themselves.
 */
int listener_clear(const char *path, struct th_err *err);

/*
 * A listening socket of this type (SOCK_SEQPACKET, SOCK_STREAM) at path with mode 0660,
 * close-on-exec and non-blocking; clears a stale one first. -1 as gid leaves the group. The
 * descriptor, or a code with a sentence (TH_E_INVALID: the path is too long for a socket address).
 */
int listener_open(const char *path, int type, gid_t gid, struct th_err *err);

/* The next connection, close-on-exec and non-blocking; or -errno (-EAGAIN: none). */
int listener_accept(int listener);

#endif
