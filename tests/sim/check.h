/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check - the invariants (I1 .. of the protocol): hooks that the world calls where something
 * happens, and what is looked at after events. A breach ends the run by sim_fail().
 *
 *   check_memory.c  I1 bytes, I2 nobody reads what may be written, I3 nobody writes what was given
 *                   back, I7 what is counted is verified
 *   check_group.c   I4 one outcome for all members, I6 no backward move
 *   check_server.c  I5 ready means complete, at the server's own inspection
 *   check_retain.c I12 what is retained stays, I13 offload copies are few and go
 *   check_standby.c I11 epochs only grow, I19 one server serves
 *   check_time.c    I14 deadlines, I15 liveness, I16 nothing is left, I8 at the end
 */
#ifndef TH_TESTS_SIM_CHECK_H
#define TH_TESTS_SIM_CHECK_H

#include "tests/sim/sim.h"

void check_start(void);
/* After every event of the clock. */
void check_event(void);
/* Now and then, and when the world is calm. */
void check_slowly(void);

/* Memory: somebody may write it from now on; a leg reads, or writes; digests are made of it. */
void check_scribble(const struct memory *memory, const char *who);
void check_sample(const struct leg *leg);
void check_write(const struct leg *leg);
void check_hash(const struct handle *handle);
void check_part_new(struct handle *handle);
void check_serve(const struct leg *leg, const struct agent_action *action);
void check_leg_over(const struct leg *leg, enum agent_event_kind kind);

/* A server has taken in a member. */
void check_opened(uint64_t sid, uint64_t group_inc);
/* Calls of workers. */
void check_submit(const struct worker *worker);
void check_complete(struct worker *worker, const struct agent_action *action);
/* Its deadline has passed long ago, and there is no outcome. */
void check_late(const struct worker *worker);
void check_line(const struct worker *worker, const struct agent_line *line);
void check_group_start(const struct group *group);
/* A trainer is about to say that these bytes are this version. */
void check_published(const struct group *group, uint64_t version, uint32_t variant);

/* Retention: a worker is open, calls, is told, leaves by force; or somebody has died. */
void check_retain_start(void);
void check_retain_opened(const struct worker *worker);
void check_retain_submit(const struct worker *worker);
void check_retain_complete(const struct worker *worker, int code);
void check_retain_abandon(const struct worker *worker);
void check_retain_crash(void);
void check_retain(void);
void check_retain_end(void);

/* Servers: a new core; it begins to serve; another's answer has come; an agent is attached. */
void check_standby_start(void);
void check_server_begins(const struct srv *srv);
void check_server_serves(const struct srv *srv);
void check_answered(struct srv *srv, uint32_t peer, const struct ctl_hello_reply *reply);
void check_attached(struct host *host, uint32_t epoch);
void check_one_serves(void);
/* Another server has died or been stopped; false: two were down at the same time. */
void check_server_down(void);
bool check_one_was_up(void);

/* How long after the end of the faults all is as if there had been none. */
int64_t check_recovery_ns(void);
/* Faults have ended some time ago: everything must have moved. */
void check_alive(void);
/* Everybody has closed: nothing may be left. True: not yet all gone, wait. */
bool check_remains(void);
void check_end(void);

#endif
