/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rpc - an operator's questions to an agent (admin.ipc in its runtime directory) or to a reference
 * server, and a worker's to its agent (agent.ipc).
 *
 * Blocking, one question at a time, within --timeout or 5 s. What comes back was checked by
 * ipc/proto and is still text of other processes: print it through a document. The process must
 * end by net_exit afterwards (nng's threads). One thread.
 */
#ifndef TH_TOOLS_THCTL_RPC_H
#define TH_TOOLS_THCTL_RPC_H

#include "ipc/base/ctl.h"
#include "ipc/base/err.h"
#include "ipc/proto/tensorhub.pb-c.h"
#include "tools/thctl/thctl.h"

struct rpc;

/*
 * To the server with -s, of several to that which serves; else to the agent. TH_E_NO_AGENT,
 * TH_E_NO_SERVER, TH_E_DENIED...
 */
int rpc_open(const struct thctl *ctl, struct th_err *err, struct rpc **ret_rpc);
/* To the agent, which tells a worker about its user's own handles and nothing else. */
int rpc_open_worker(const struct thctl *ctl, struct th_err *err, struct rpc **ret_rpc);
const char *rpc_url(const struct rpc *rpc); /* whom it asks */
void rpc_close(struct rpc *rpc);            /* NULL is fine */

/*
 * Questions that both answer, in as many parts as it takes; what they point to stays until
 * rpc_close. A refusal is a failure with the other side's sentence. TH_E_INVALID: not the name of
 * a model.
 */
int rpc_listing(
	struct rpc *rpc, const char *model, struct th_err *err, struct ctl_listing *ret_listing);
int rpc_inspection(struct rpc *rpc, struct th_err *err, struct ctl_inspection *ret_inspection);

/*
 * An operator's question, answered at once. Each gets its own time, within --timeout; what the
 * reply points to is valid until the next one.
 */
int rpc_admin(struct rpc *rpc, const struct ctl_admin *admin, struct th_err *err,
	struct ctl_admin_reply *ret_reply);

/* The agent's own state. Free with tensorhub__v1__reply__free_unpacked; its status is there. */
int rpc_status(struct rpc *rpc, struct th_err *err, Tensorhub__V1__Reply **ret_reply);

#endif
