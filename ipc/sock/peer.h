/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer - who is at the other end of a unix socket: by the kernel's word, never by a message.
 *
 * A pid names a process only while it lives, so its death is watched through a pidfd. The kernel
 * gives one for the socket itself (SO_PEERPIDFD); where it is too old for that, pidfd_open is
 * believed only when the process had the same start time before and after it and was not started
 * after the connection. Any thread.
 */
#ifndef TH_IPC_SOCK_PEER_H
#define TH_IPC_SOCK_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/checked.h"

struct peer {
	uid_t uid;
	gid_t gid;
	pid_t pid; /* at the time of connect; 0 when it is not visible in this pid namespace */
	int pidfd; /* owns; readable when the process has ended; -1 when it cannot be had */
};

/*
 * 0 or -errno of the credentials; -EMFILE, -ENFILE: no descriptor is left for its pidfd. A peer
 * without a pidfd (pid not visible, or gone) is no failure: its life then shows in the connection
 * alone.
 */
TH_MUST_USE int peer_identify(int sock, struct peer *ret_peer);
void peer_fini(struct peer *peer);

/* A pidfd of this process, to be given away; or -errno. */
TH_MUST_USE int peer_own_pidfd(void);
/* True when the process has ended. */
bool peer_pidfd_ended(int pidfd);

/* For peer_identify on old kernels, and its test. */
TH_MUST_USE int peer_pidfd_by_pid(pid_t pid);

#endif
