/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment - the two shared files of a session (layout.h): made by the agent, mapped by both sides.
 *
 * Seals make the sharing safe: neither side can shrink a file under the other (SIGBUS), and file A,
 * mapped for writing by the agent before it is sealed F_SEAL_FUTURE_WRITE, can be written by nobody
 * else for ever. Each side maps the other's file for reading only. The worker's mappings are
 * MADV_DONTFORK, so a forked child cannot disturb its parent's rings.
 * Not thread-safe; one owner.
 */
#ifndef TH_IPC_SHM_SEGMENT_H
#define TH_IPC_SHM_SEGMENT_H

#include "ipc/base/checked.h"
#include "ipc/shm/layout.h"

struct segment_agent {
	int fd_w, fd_a;        /* owns; -1 when closed: the mappings stay */
	const struct shm_w *w; /* owns the mapping */
	struct shm_a *a;       /* owns the mapping */
};

/* Both files with headers, versions "none", sealed and ready to be sent. 0 or -errno. */
TH_MUST_USE int segment_agent_new(struct segment_agent *ret_segment);
/* Legal on a zeroed struct with descriptors of -1 and after a failure of segment_agent_new. */
void segment_agent_free(struct segment_agent *segment);

struct segment_worker {
	struct shm_w *w;       /* owns the mapping */
	const struct shm_a *a; /* owns the mapping */
};

/*
 * Maps what the agent sent; the descriptors are borrowed and not needed afterwards. 0; -EPROTO when
 * a file has another size, not the seals, or another magic, layout or capacity; or -errno.
 */
TH_MUST_USE int segment_worker_map(int fd_w, int fd_a, struct segment_worker *ret_segment);
void segment_worker_unmap(struct segment_worker *segment); /* legal on a zeroed one */

#endif
