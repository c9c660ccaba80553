/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot - long answers (a listing, an inspection) as they were at one moment, kept while they
 * are given away in parts, or while an operation holds them for the members of its group.
 *
 * What changes meanwhile does not touch them. Bounded: in bytes, all together; in number for each
 * asker; in age, and in the time since a part was asked for. One that is gone is answered with
 * TH_E_NOT_AVAILABLE, and its reader begins again.
 */
#ifndef TH_SERVER_CORE_VIEW_SNAPSHOT_H
#define TH_SERVER_CORE_VIEW_SNAPSHOT_H

#include "server/core/refsrv_state.h"

/*
 * Room for a new one, with array_bytes zeroed behind it, that belongs to owner (an agent's inc; 0:
 * an operator). Older ones that no operation holds give way. TH_E_LIMIT.
 */
int snapshot_new(struct refsrv *server, uint64_t owner, const char *model, uint64_t array_bytes,
	struct th_err *err, struct snapshot **ret_snapshot);
/* The one of this number; model NULL: an inspection. TH_E_NOT_AVAILABLE. */
int snapshot_find(struct refsrv *server, uint64_t id, const char *model, struct th_err *err,
	struct snapshot **ret_snapshot);
/* A listing of this model as it is now, which somebody else has asked for; NULL: none. */
struct snapshot *snapshot_same(struct refsrv *server, const struct model *model);

/* Of operations. What nobody holds stays for those who are still reading it. */
void snapshot_hold(struct snapshot *snapshot);
void snapshot_let_go(struct refsrv *server, struct snapshot *snapshot); /* NULL: nothing */

/* The part that begins at entry `next`: valid until the next step. TH_E_INVALID: beyond the end. */
int snapshot_listing_part(struct refsrv *server, struct snapshot *snapshot, uint64_t next,
	struct ctl_listing *ret_part, struct th_err *err);
int snapshot_inspection_part(struct refsrv *server, struct snapshot *snapshot, uint64_t next,
	struct ctl_inspection *ret_part, struct th_err *err);

/* Bytes on the wire, at most. */
uint64_t snapshot_version_bytes(void);
uint64_t snapshot_replica_bytes(const struct ctl_replica_info *info);
uint64_t snapshot_inspection_bytes(const struct ctl_inspection *inspection);
/* So many fit into one part. */
bool snapshot_is_whole(const struct refsrv *server, uint64_t bytes);

void snapshot_timers(struct refsrv *server);
void snapshot_free_all(struct refsrv *server);

#endif
