/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retain - who claims which versions, and so which versions must stay available.
 *
 * A claim is the rules of a group's members. It begins with the first member's open and ends when
 * the first of them closes, because the group is no more then. When a holder crashes its claim
 * stays for a while: otherwise the crash that needs retention would end it. A rule names one
 * version, counted from the latest in the highest lineage; when a successor has been published, the
 * one before it is the latest no longer, and nothing of a lower lineage is named.
 */
#ifndef TH_SERVER_CORE_RETAIN_RETAIN_H
#define TH_SERVER_CORE_RETAIN_RETAIN_H

#include "server/core/refsrv_state.h"

/* Different lists of rules in one model: who crashes leaves his for a time. */
#define RETAIN_CLAIMS_MAX 256u

/* TH_E_LIMIT when there is no room for one more claim; model NULL: it is not there yet. */
int retain_room(const struct refsrv *server, const char *name, const struct model *model,
	const struct th_retain *rules, struct th_err *err);
/* TH_E_GROUP_MISMATCH when a member brings other rules than those before it. */
int retain_join(const struct group *group, const struct agent *agent, const struct ctl_open *open,
	struct th_err *err);
/* The group is new and claims what these rules name. */
void retain_claim(struct refsrv *server, struct group *group, const struct th_retain *rules);
/* A member has left: with that the group's claim ends, or begins its time of grace. */
void retain_leave(struct refsrv *server, struct group *group, bool crashed);

/* A member of the group closes, and its claim does not count while that waits; or it is refused. */
void retain_closing(struct group *group, bool closing);

/* Some claim names the version now; while the server is warming every one may be named. */
bool retain_names(struct refsrv *server, const struct version *version);
/* The same, as if its copies were listed already: it may be the latest then. */
bool retain_would_name(struct refsrv *server, const struct version *version);
/* A claim names it now, for certain. */
bool retain_claimed(struct refsrv *server, const struct version *version);

/* A claim of this group names it. */
bool retain_group_names(
	struct refsrv *server, const struct group *group, const struct version *version);

/* At the end of a step in which something has changed, and when its timer fires. */
void retain_settle(struct refsrv *server, struct model *model);
void retain_free(struct refsrv *server, struct model *model);

#endif
