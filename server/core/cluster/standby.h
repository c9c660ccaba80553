/* SPDX-License-Identifier: Apache-2.0 */
/*
 * standby - which of several servers serves.
 *
 *   ASKING --all others have answered or failed--> WAITING --nobody is to serve in its place-->
 *   SERVING --another is to--> WAITING, when nothing is held yet; else OVER
 *
 * Servers stand in a list that all have, and ask each other all the time (HELLO). One waits while a
 * server before it in the list answers, or did so within silence_ns, and while any other serves
 * with an epoch. Of two that serve with one, the lower (epoch, life) is over. So is one that serves
 * while a server before it has answered every question for return_ns: it gives the cluster back.
 *
 * A server that is over knows things that are not so any more. It answers whoever waits, and says
 * renew: its shell makes a new core, which knows nothing, and its agents announce what they hold to
 * whom they find serving.
 *
 * Only what another of the list answers to this one counts, not what anybody says to it.
 *
 * All this goes by the live clock: a server that stood still has not heard the others be silent.
 * What two halves of a network do at the same time is not prevented; when they meet, the one with
 * the lower epoch is over.
 */
#ifndef TH_SERVER_CORE_CLUSTER_STANDBY_H
#define TH_SERVER_CORE_CLUSTER_STANDBY_H

#include "server/core/refsrv_state.h"

void standby_init(struct refsrv *server);
/* Time has passed, or another server has said something. */
void standby_look(struct refsrv *server);
/* This process stood still for this long. */
void standby_stood_still(struct refsrv *server, int64_t ns);

bool standby_serves(const struct refsrv *server);
/* May this be answered by one that does not serve? */
bool standby_answers(const struct ctl_request *request);
/* Of one that does not serve: the answer to all that it does not answer. */
int standby_refuse(const struct refsrv *server, const struct ctl_request *request,
	struct ctl_reply *reply, struct th_err *err);

/*
 * A server, not an agent, has said HELLO, or somebody who says that he is one. What it says of
 * itself is a reason to ask the others of the list at once, and no more.
 */
int standby_hello(struct refsrv *server, const struct ctl_hello *hello, struct th_err *err);
/* reply NULL: a probe of this peer has failed. */
void standby_probed(struct refsrv *server, uint32_t peer, const struct ctl_hello_reply *reply);
/*
 * The agent was attached here, then to a later life, and comes back: is what this one knows as old
 * for all? Then it is over.
 */
bool standby_left_behind(
	struct refsrv *server, const struct agent *agent, const struct ctl_attach *attach);

/* The highest that any server has said of any. */
uint32_t standby_epoch_heard(const struct refsrv *server);
/* What is to be asked now; valid until the next call. */
uint32_t standby_probes(struct refsrv *server, const struct refsrv_probe **ret_probes);
/* When to look again. */
int64_t standby_next_ns(const struct refsrv *server);
void standby_describe(const struct refsrv *server, struct ctl_inspection *inspection);
void standby_check(const struct refsrv *server);

#endif
