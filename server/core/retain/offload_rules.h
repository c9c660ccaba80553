/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offload_rules - which offload copies there shall be, and until when.
 *
 * One that is being made is needed while somebody waits for it. A complete one stays while a rule
 * names its version, or somebody reads from it, and goes when another copy, on hosts that stay, has
 * been there for a while. One that is only read goes at once when its room is needed. What only
 * spot hosts and drained nodes have is rescued from them.
 */
#ifndef TH_SERVER_CORE_RETAIN_OFFLOAD_RULES_H
#define TH_SERVER_CORE_RETAIN_OFFLOAD_RULES_H

#include "server/core/refsrv_state.h"

bool offload_needed(struct refsrv *server, const struct offload *offload);
/* READY: ends it when its time has come. */
void offload_release(struct refsrv *server, struct offload *offload);
/* Ends one that the agent keeps a part of and no rule asks for; its readers go on while bytes flow.
 * False: there is none. */
bool offload_make_room(struct refsrv *server, const struct agent *agent);
/* The version is retained, and only hosts that may vanish or shall be empty have it. */
bool offload_at_risk(struct refsrv *server, const struct version *version);
/* Looks for such versions, and has them copied elsewhere. */
void offload_rescue(struct refsrv *server, struct model *model);
/* One that was to rescue a version has failed: not again at once. */
void offload_rules_failed(struct refsrv *server, const struct offload *offload);

/* Of offload.c: takes it out and frees it. */
void offload_end(struct refsrv *server, struct offload *offload, const char *why);

#endif
