/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check - the invariants (I1 .. of the protocol): hooks that the world calls where something
 * happens, and what is looked at after events. A breach ends the run by sim_fail().
 *
 * What of I1 to I21 is proved, and by whom:
 *
 *   I1  bytes            check_memory, check_group: a worker's memory against what was published
 *   I2  readers          check_memory: scribbling where a worker may write; check_group: calls
 *   I3  released memory  check_memory: scribbling over what was given back; mover_must_be_still()
 *   I4  one outcome      check_group: code, version and content; check_list: a group's own listing
 *   I5  all or nothing   check_server: inspection; check_list: what is listed as ready
 *   I6  never backward   check_group
 *   I7  prefixes         check_memory
 *   I8  references       refsrv_check() after each step; check_time: none is left
 *   I9  no cycle         refsrv_check()
 *   I10 one effect       check_wire: an outcome is told once; a second effect breaks another one
 *   I11 fencing          check_memory: a leg reads the generation that was granted; check_standby:
 *                        epochs only grow
 *   I12 retention        check_retain, also of spot hosts; check_time: a node that is called empty
 *   I13 few offloads     check_retain
 *   I14 deadlines        check_time: for whom nothing is disturbed, also while others are; and for
 *                        all when the faults have ended
 *   I15 liveness         check_time: after the faults
 *   I16 nothing is left  check_time; check_retain: hosts' memory
 *   I17 authority        there are no principals yet; check_wire: what is said of a session is said
 *                        to its agent alone; check_list: a model's listing names its own replicas
 *   I18 determinism      main.c: --twice
 *   I19 one server       check_standby: one of several serves
 *   I20 strangers        stranger.c: who knows every number and no secret
 *   I21 brought before   check_fetch: an update reads from its own hosts
 *
 * Beside them: check_risk: who is told that a version is lost; check_list: list, wait and "latest"
 * fit what has happened; check_wire: C6; check_seed: C17. What a plant (TH_PLANT) breaks is printed
 * by plants_test.py.
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
void check_donor(const struct leg *leg);
void check_write(const struct leg *leg);
void check_hash(const struct handle *handle);
void check_part_new(struct handle *handle);
void check_serve(const struct leg *leg);
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
/* A close is refused for want of room. */
void check_retain_no_room(void);
void check_retain_abandon(const struct worker *worker);
void check_retain_closed(const struct worker *worker);
void check_retain_crash(void);
/* An agent is attached to a server, or not any more. */
void check_retain_moves(void);
void check_retain(void);
void check_retain_end(void);
/* It stands, and its rules name this version, that it has known from the beginning. */
bool check_retain_named(const struct group *group, uint32_t model, struct th_version id);
/* Nobody can have published a later one. */
bool check_retain_is_top(uint32_t model, struct th_version id);
/* Bytes of all its shards are somewhere. */
bool check_retain_there(uint32_t model, struct th_version id);
/* Nothing in this world may take away what is retained. */
bool check_retain_nothing_is_lost(void);

/* THC_EV_AT_RISK: a crash has taken the last copy of what was retained; a worker is told. */
void check_risk_start(void);
void check_risk_moves(void);
void check_risk_lost(uint32_t model, struct th_version id);
void check_risk_line(const struct worker *worker, const struct agent_line *line);
void check_risk(void);
/* It leaves its server; a leg is done, or somebody publishes; after every event of the clock. */
void check_risk_event(const struct host *host, const struct ctl_event *event);
void check_risk_filled(const struct leg *leg);
void check_risk_done(uint32_t model, struct th_version id);
void check_risk_stands(void);
void check_risk_end(void);

/* C17: a version comes into a datacenter once; a chunk lands, a leg has failed. */
void check_seed_start(void);
void check_seed_chunk(const struct leg *leg);
void check_seed_leg_failed(void);

/* I21: what hosts bring before it is asked for; a chunk lands, a host has no room. */
void check_fetch_start(void);
void check_fetch_chunk(const struct leg *leg);
void check_fetch_refused(void);

/* I23: what groups take by themselves; an operator's go is answered, a worker is told. */
void check_follow_start(void);
void check_follow_said(const struct srv *srv, uint32_t model, struct th_version mark);
void check_follow_line(const struct worker *worker, const struct agent_line *line);
void check_follow(void);
/* Its memory is what was published as this version. */
void check_bytes(const struct worker *worker, struct th_version held);

/* Servers: a new core; it begins to serve; another's answer has come; an agent is attached. */
void check_standby_start(void);
void check_server_begins(const struct srv *srv);
void check_server_serves(const struct srv *srv);
void check_answered(struct srv *srv, uint32_t peer, const struct ctl_hello_reply *reply);
void check_attached(struct host *host, uint32_t epoch);
void check_one_serves(void);
/* A server has died or been stopped. */
void check_server_down(void);
/* False: two were down, or two served, at the same time. */
bool check_one_led(void);

/* How long after the end of the faults all is as if there had been none. */
int64_t check_recovery_ns(void);

/* Anybody has said that these bytes are this version. */
bool check_known(uint32_t model, struct th_version id);
/* Of its group, as the server has it: what must agree; 0: not known. */
uint64_t check_life(uint64_t sid);

/* Listings: given by a server, heard by a worker; waiting; and what "latest" has meant. */
void check_list_start(void);
/* Everybody who should know what there is knows. */
bool check_list_certain(void);
/* All of it have a version and give nothing up, since that time at the latest. */
bool check_list_keeps(const struct group *group, struct th_version *ret_id, int64_t *ret_since_ns);
void check_list_published(const struct group *group, uint64_t version);
void check_list_given(struct srv *srv, uint32_t model, bool grouped, const struct ctl_listing *from,
	struct listed *ret_listed);
void check_resolved(uint32_t model, int code, struct th_version id);
void check_list_told(const struct worker *worker, const struct listed *listed);
void check_list_grouped(const struct worker *worker, uint64_t op_seq, const struct listed *listed);
void check_wait_over(const struct worker *worker, int code, uint64_t generation);
void check_waits(void);
/* Who has seen this listing and waits since then should have been told of what a group has. */
bool check_list_missed(uint32_t model, const struct listed *listed, int64_t since_ns,
	uint32_t *ret_group, struct th_version *ret_id);
void check_restored(void);
void check_list_submit(const struct worker *worker);
void check_list_group_start(const struct group *group);
void check_list_gives(const struct worker *worker);
void check_list_upset(const struct worker *worker);
void check_warms(const struct srv *srv, const struct host *host, bool former);
void check_latest(const struct worker *worker, int code, struct th_version held);

/* What leaves a server: events in the answer to POLL; and a LEG_END that it has taken. */
void check_wire_start(void);
void check_wire_opened(uint64_t sid, const struct host *host);
void check_events(
	const struct srv *srv, const struct host *host, const struct ctl_poll_reply *poll);
void check_blame(struct srv *srv, const struct ctl_request *request);

/* Observers: a request that an agent sends; who waits; the faults end; they have ended. */
void check_observer_sent(const struct host *host, const struct ctl_request *request);
void check_observers(void);
void check_observers_calm(void);
void check_observers_alive(void);

/* A copy of an agent's own is on its way out, which may be lent. */
void check_borrow_given_up(const struct host *host, const struct handle *handle);

/* A server says that a node is empty. */
void check_empty(const struct srv *srv, const struct host *host);
void check_retain_without(const struct host *host);

/* A call is not answered when libthc stops waiting for its agent. */
void check_deadline(const struct worker *worker);

/* Faults have ended some time ago: everything must have moved. */
void check_alive(void);
/* Everybody has closed: nothing may be left. True: not yet all gone, wait. */
bool check_remains(void);
void check_end(void);

#endif
