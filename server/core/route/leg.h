/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leg - one shard read from one source: granting, moving to another source, ending.
 *
 * A leg is current (part.leg of its destination) or on its way out; it is forgotten when its
 * reader's agent has said that it is over, or is gone.
 */
#ifndef TH_SERVER_CORE_ROUTE_LEG_H
#define TH_SERVER_CORE_ROUTE_LEG_H

#include "server/core/refsrv_state.h"

/* dst begins to read from src: the GRANT is sent, what the reader needs is put into ret_grant. */
void leg_start(struct refsrv *server, struct op *op, struct part *dst, struct part *src,
	struct ctl_grant *ret_grant);

/* As a beat reports it. Ignored for a leg that is not this agent's. */
void leg_progress(
	struct refsrv *server, const struct agent *reader, const struct ctl_leg_progress *progress);

int leg_end(struct refsrv *server, struct agent *agent, const struct ctl_leg_end *end,
	struct th_err *err);

/* A part of a running operation has no source: finds one, waits, or aborts the operation. */
void leg_find_source(struct refsrv *server, struct op *op, struct part *part);

/* The readers of a part that is being given up move to another idle source, where there is one. */
void leg_move_readers(struct refsrv *server, struct part *part);
/* This current leg ends at its source, and its reader goes on from another one. */
void leg_move(struct refsrv *server, struct leg *leg, struct part *src);
/* All of them must go: those without another source are fenced and wait. */
void leg_expel_readers(struct part *part);
/* It is proven that nobody reads the part any more: its legs have no source from now on. */
void leg_detach_readers(struct part *part);
/* The reader's agent is gone: its legs are over, their sources forget them. */
void leg_drop_fills(struct refsrv *server, struct part *part);

/*
 * A leg that runs since a former server life, under its number; what it reads is found by
 * leg_link_adopted, now or when that has come back too.
 */
void leg_adopt(
	struct refsrv *server, struct op *op, struct part *dst, const struct ctl_rejoin *said);
void leg_link_adopted(struct refsrv *server);

#endif
