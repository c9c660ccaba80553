/* SPDX-License-Identifier: Apache-2.0 */
/*
 * at_risk - who is told that a retained version may be lost, or is.
 *
 * The version has no complete copy on a host that stays, and no agent can keep one of it; or its
 * last copy has gone with its host or its worker. Members of the groups that hold it, or whose
 * rules name it, get AT_RISK, once each time that it has become so; operators read it in the log.
 */
#ifndef TH_SERVER_CORE_RETAIN_AT_RISK_H
#define TH_SERVER_CORE_RETAIN_AT_RISK_H

#include "server/core/refsrv_state.h"

/* What only spot hosts or drained nodes have cannot be copied elsewhere. why: may be empty. */
void at_risk_stays(struct refsrv *server, struct version *version, const char *why);
/* It is not at risk any more, or goes: the next time is another one. */
void at_risk_over(struct refsrv *server, struct version *version);

/*
 * This copy is about to go, and nobody has given it up: when it is the last one of a retained
 * version that is an error. why: a sentence.
 */
void at_risk_lost(struct refsrv *server, struct copy *copy, const char *why);

#endif
