/* SPDX-License-Identifier: Apache-2.0 */
/*
 * borrow - versions that agents lend to processes of their hosts.
 *
 * An agent says which shard of which version it lends, or wants to lend (BORROW). A complete copy
 * in its own memory serves for that, whatever it was made for, and does not go while it is lent.
 * When there is none it is brought: an offload (offload.h) with another reason, on that host alone.
 * What is lent cannot be taken back, so the agent says how much it has left for it.
 *
 *   wanted --no copy: an offload--> brought --complete--> kept until the agent says stop, or ends
 *      '----- BORROW_REFUSED: no such version, no room, nobody to read it from
 *
 * A copy that goes all the same, with its group or its agent's memory, is not made again: who has
 * borrowed it has its pages.
 */
#ifndef TH_SERVER_CORE_RETAIN_BORROW_H
#define TH_SERVER_CORE_RETAIN_BORROW_H

#include "server/core/refsrv_state.h"

int borrow_request(struct refsrv *server, struct agent *agent, const struct ctl_borrow *request,
	struct th_err *err);
/* What the agent lends is not known here any more. */
void borrow_drop_all(struct refsrv *server, const struct agent *agent);
/* Somebody borrows a shard of this copy from its agent, or waits for that. */
bool borrow_wanted(const struct offload *offload);
/* The agent of this shard lends it. */
bool borrow_lent(const struct offload *offload, uint32_t shard);
/* It cannot be made. */
void borrow_failed(const struct offload *offload, const char *why);
/* With the model's other deadlines: begins what is missing, refuses what cannot be. */
void borrow_settle(struct refsrv *server, struct model *model);

#endif
