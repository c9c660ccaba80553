/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offload - copies of a version in agents' own memory.
 *
 * An offload copy is a group like any other, whose members are sessions of agents:
 *
 *   RESERVING: each shard's agent is asked for memory (RESERVE), opens a session and registers;
 *              who refuses is replaced by another agent of the datacenter
 *   FILLING:   the group replicates, by the same PLAN, GO and legs as any group
 *   READY:     it serves, until no rule wants it any more or another copy will do; then RELEASE
 *
 * For retention a version has one at a time, but while its agent's node is drained or does not
 * answer, when a second one takes over; or one comes back after the loss of a server (rejoin.h) and
 * finds that another was begun. Then the older one goes, and not before the other is complete.
 * Copies that are fetched are as many as hosts and datacenters want them (fetch.h).
 */
#ifndef TH_SERVER_CORE_RETAIN_OFFLOAD_H
#define TH_SERVER_CORE_RETAIN_OFFLOAD_H

#include "server/core/refsrv_state.h"

/*
 * Makes a copy of source, or joins what is being made of its version; avoid: NULL, or an agent that
 * shall have no part of it. NULL: nobody can; last_copy_offload_failed was told why. What comes of
 * it: the model is dirty then, and a copy more or none is there.
 */
struct offload *offload_begin(struct refsrv *server, struct copy *source, enum offload_why why,
	const struct agent *avoid);
/* The hosts of this group bring the version; pinned: they alone, else any of their datacenter. */
void offload_begin_fetch(
	struct refsrv *server, const struct group *group, struct version *version, bool pinned);
/* The agent brings the version to lend it. */
void offload_begin_borrow(
	struct refsrv *server, const struct agent *agent, struct version *version);
/* Agents that stay have said that they keep so much; they may refuse all the same. */
bool offload_conceivable(const struct refsrv *server, const struct copy *copy);
/* One is being made; or is complete, and its agents stay and may yet prove that they live. */
bool offload_running(const struct version *version);
bool offload_awaited(const struct version *version);
/* Chunks that have arrived in the one that is being made. */
uint64_t offload_progress(const struct version *version);
bool offload_begun(const struct version *version);

/* OPEN with a reservation: its group, or NULL with a sentence. The model may be NULL. */
struct group *offload_join(struct refsrv *server, struct model *model, const struct agent *agent,
	const struct ctl_open *open, struct th_err *err);
void offload_joined(struct member *member);
/* REGISTER of such a member: is it the layout that was asked for? */
int offload_register_check(
	const struct member *member, const struct ctl_register *reg, struct th_err *err);
void offload_register_refused(const struct member *member, const struct th_err *err);
void offload_registered(const struct member *member);
/* RESERVED: an agent cannot. */
int offload_refused(struct refsrv *server, const struct agent *agent,
	const struct ctl_reserved *reserved, struct th_err *err);

/* A group of a former server life is complete: its copy, or what fills it, is one of ours. */
void offload_rejoined(struct refsrv *server, struct group *group);

/* The version goes: nothing is left to copy. */
void offload_version_gone(const struct version *version);
/* With the model's other deadlines: all of it goes on, and goes when it is not needed. */
void offload_settle(struct refsrv *server, struct model *model);
/* It is on no list any more. */
void offload_free(struct refsrv *server, struct offload *offload);

#endif
