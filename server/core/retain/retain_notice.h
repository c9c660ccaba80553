/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retain_notice - what every agent with a member of a model is told of its retention.
 *
 * An agent that is cut off from the server decides alone whether a group of one may give up what it
 * holds. It goes by what it was told last: the rules of all claims, or that all versions are
 * retained, when there are more rules than fit or agents may still bring some (model_warming).
 *
 * Told is also which rules more than one group claims: who closes goes by those of others only.
 *
 * What is added is told at once, in the step of the OPEN, and so before the outcome of whatever is
 * published later; what is over is told RULES_SHRINK_NS later. So agents know rather too much than
 * too little, and rules that come and go cost each agent a few events a second at most.
 */
#ifndef TH_SERVER_CORE_RETAIN_RETAIN_NOTICE_H
#define TH_SERVER_CORE_RETAIN_RETAIN_NOTICE_H

#include "server/core/refsrv_state.h"

#define RULES_SHRINK_NS INT64_C(1000000000)

/* A worker's member has opened or come back: its agent may have forgotten what it was told. */
void retain_notice_joined(struct refsrv *server, const struct member *member);
/* At the end of a step, and when the time of the model's retention has come. */
void retain_notice_settle(struct refsrv *server, struct model *model);

#endif
