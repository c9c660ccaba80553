/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loans - versions that processes of this host read in the agent's own memory.
 *
 *   BORROW --the core--> LENT: the file, for reading, and the lease --the lease ends--> over
 *              '-------> LENT with a code
 *
 * The lease is the read end of a pipe whose other end is here: the loan lasts as long as somebody
 * has it open, so it ends with thc_return and with the process, whatever has become of its handle.
 * Nothing is ever written to it. Main thread only.
 */
#ifndef TH_DAEMON_HOST_WORKER_LOANS_H
#define TH_DAEMON_HOST_WORKER_LOANS_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/ctl.h"

struct agent_action;
struct fdmsg_borrow;
struct host;
struct host_session;

/* False: it breaks the rules. */
bool loans_borrow(struct host_session *session, const struct fdmsg_borrow *borrow);
/* What the core says. */
void loans_lend(struct host *host, const struct agent_action *action);
void loans_refused(struct host *host, const struct agent_action *action);
void loans_reap(struct host *host); /* frees those that are over: between two batches of the loop */
/* Before the memory is freed, at the end of the agent. */
void loans_free(struct host *host);

struct loan_info {
	char model[TH_NAME_MAX + 1];
	struct th_version version;
	uint32_t shard, pid, uid;
	uint64_t bytes;
	int64_t age_ns;
};
/* For status, in order of lending: false when there is no index-th loan. */
bool loans_at(const struct host *host, uint32_t index, struct loan_info *ret_info);

#endif
