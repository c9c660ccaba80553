/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim - one world: both real cores (server/core, daemon/core) in virtual time. One seed, one run.
 *
 *   clock.c    the heap of what happens later, ordered by (time, number); processes that stop
 *   trace.c    what happened, one line each; the run's hash; failing
 *   memory.c   shards as tokens, who may write them, digests
 *   net.c      links between processes; requests to a server and their replies, as nng does it
 *   srv.c      server processes around refsrv
 *   peer.c     what servers ask each other
 *   host.c     agent processes around the agent's core: carry out its actions
 *   door.c     agents' data ports: who comes with which ticket
 *   mover.c    legs: NIC reads, TCP, copies within a host; hashing of what is published
 *   worker.c   worker processes and what libthc does for them
 *   program.c  what groups of workers do: SPMD programs
 *   reader.c   what workers ask beside that: list, wait, what is latest
 *   observer.c handles that are members of nothing
 *   borrower.c who borrows through them
 *   fault.c    what goes wrong
 *   operator.c drains and evictions, and says go
 *   leave.c    agents that are told to end
 *   stranger.c what somebody says who is none of them
 *   swarm.c    seed -> options
 *   narrow.c   options set by hand, single faults left out
 *   shrink.c   a failing seed made small with that
 *   check_*.c  invariants; the hooks that the others call are in check.h
 *   run.c      one seed: safety phase with faults, then liveness phase
 *   main.c     options, processes, marks and planted bugs
 *
 * To add
 *   a program   a role in enum role, its steps in program.c (next_step), its share in swarm.c
 *   a fault     a field of struct options, drawn in swarm.c, a row of the table in fault.c
 *   an action   of the agent's core: a case in host_act(); a new event: host_tell()
 *   a checker   a file check_x.c with the hooks it needs, called from check.c; sim_fail() ends the
 *               run: name of the invariant and a sentence
 *   a bug       TH_PLANT(name) in a core; `thsim --plant name --count 2000` must find it
 *
 * Randomness comes from streams of their own for options, workload, network, movers and faults, so
 * that a change of one does not change the others. Nothing depends on addresses or real time.
 */
#ifndef TH_TESTS_SIM_SIM_H
#define TH_TESTS_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/agent_core.h"
#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"
#include "ipc/base/ctl.h"
#include "ipc/base/err.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"
#include "server/core/refsrv.h"
#include "tests/support/rng.h"
#include "transport/leg/tickets.h"

#define US INT64_C(1000)
#define MS (1000 * US)
#define SEC (1000 * MS)
#define KNOCK_NS (2 * SEC) /* that a ticket waits for its grant, and a reader for an answer */
#define NEVER INT64_MAX

#define HOSTS_MAX 6u
#define SERVERS_MAX 3u
#define ENDPOINTS_MAX (HOSTS_MAX + SERVERS_MAX)
#define GROUPS_MAX 8u
#define SHARDS_MAX 4u
#define MODELS_MAX 2u
#define LINEAGES_MAX 4u
#define CHUNKS_MAX 16u
#define CHUNK_TOKENS 4u
#define STEPS_MAX 512u /* of one incarnation of a group; then it closes */

/* ---- time (clock.c) -------------------------------------------------------------------------- */

struct process { /* what can stop, die and have a clock of its own */
	const char *kind;
	uint32_t index;
	bool alive, paused;
	int64_t changed_ns;        /* when that was otherwise */
	uint64_t life;             /* +1 with each start: what was meant for a former one is void */
	int64_t real_ns, local_ns; /* its clock stood at local_ns at real_ns                      */
	uint32_t permille;         /* how fast its clock goes                                     */
	int64_t wake_ns;           /* the earliest armed wake, real                               */
	int64_t stopped_ns;        /* when it was stopped last; all the time it was so: stood_ns  */
	int64_t stood_ns;
	uint32_t stops;
	struct task *held, **held_end; /* came while it was stopped                               */
	void (*on_wake)(struct process *process);
};

struct task { /* something that happens later; one block, freed when it has run */
	int64_t due_ns;
	uint64_t order;
	void (*run)(struct task *task);
	struct process *process; /* NULL: of the world */
	uint64_t life;
	struct task *next;
};

void *task_new(size_t bytes, void (*run)(struct task *task), struct process *process);
void task_at(struct task *task, int64_t due_ns);
void task_in(struct task *task, int64_t delay_ns);
/* False: nothing happens any more. */
bool clock_step(void);
int64_t clock_next_ns(void);
void clock_clear(void);

void process_start(struct process *process);
void process_kill(struct process *process);
void process_pause(struct process *process);
void process_resume(struct process *process);
int64_t process_now(const struct process *process);
/* on_wake no later than at this time of its own clock. */
void process_wake_at(struct process *process, int64_t local_ns);

/* ---- what happened (trace.c) ----------------------------------------------------------------- */

#define TRACE_ARGS 6u
/* In text: # a number, $ a static string, ! a code. Numbers and codes make the hash of the run. */
void trace_add(const char *text, const uint64_t args[TRACE_ARGS]);
#define TRACE(text, ...) trace_add((text), (const uint64_t[TRACE_ARGS]){__VA_ARGS__})
#define TRACE_S(string) ((uint64_t)(uintptr_t)(string))
#define TRACE_E(code) ((uint64_t)(int64_t)(code))
void trace_begin(bool print);
void trace_dump(void);
uint64_t trace_hash(void);
/* Which invariant, and a sentence: ends this run and its process. */
__attribute__((noreturn, format(printf, 2, 3))) void sim_fail(
	const char *invariant, const char *format, ...);

/* ---- randomness ------------------------------------------------------------------------------ */

enum stream {
	RNG_SWARM,
	RNG_WORK,
	RNG_NET,
	RNG_MOVE,
	RNG_FAULT,
	RNG_PEER,
	RNG_READ,
	RNG_SHORT,
	RNG_LOSS,
	RNG_ALONE,
	RNG_STRANGER,
	RNG_LIE,
	RNG_BURST,
	RNG_OBSERVE,
	RNG_FETCH,
	RNG_BORROW,
	RNG_FOLLOW,
	RNG_STREAMS
};

uint64_t chance(enum stream stream, uint64_t bound);
bool percent(enum stream stream, uint32_t share);
bool permille(enum stream stream, uint32_t share);
/* Uniform in [low, high]. */
int64_t between(enum stream stream, int64_t low, int64_t high);

/* ---- options (swarm.c) ----------------------------------------------------------------------- */

struct options { /* what swarm_draw() makes of a seed; all of it is printed with --trace */
	uint32_t servers, hosts, datacenters, models, groups, shards, chunks;
	uint32_t trainers, clock_skew_permille;
	uint32_t offload_max; /* of a host: 0 to this */
	uint32_t tickets_max; /* that wait for their reader at an agent; 0: as many as usual */
	uint32_t retain_percent, force_percent; /* groups with rules; unpublish with THC_FORCE */
	int64_t grace_ns;                       /* of claims whose holder crashed */
	int64_t crawl_ns;                       /* without a chunk, behind one without */
	int64_t fan_gain;                       /* of a tree of readers over a chain */
	uint32_t spot_percent, shared_percent, nic_percent, forever_percent, cancel_permille;
	uint32_t diverge_permille, other_bytes_percent, layout_percent;
	uint32_t lineage_percent; /* of a trainer's starts: from an older checkpoint */
	uint32_t reset_percent;   /* of hosts: their sessions end with their server */
	uint32_t renew_permille;  /* of calls: the tensors are registered anew before it */
	int64_t safety_ns;
	int64_t net_min_ns, net_mean_ns, chunk_ns, think_ns, pair_block_ns;
	bool quiet; /* no fault of a process or of a link */
	bool fifo;  /* requests of one channel are not overtaken */
	/* Faults: per mille of messages, or mean time between two; 0: off. */
	uint32_t loss_permille, twice_permille, slow_permille, leg_fail_permille, corrupt_permille;
	int64_t worker_death_ns, host_crash_ns, host_pause_ns, server_restart_ns, server_pause_ns;
	int64_t cut_ns, slow_link_ns, pipe_drop_ns, late_pidfd_ns, server_down_ns;
	int64_t drain_ns, evict_ns, leave_ns; /* of operators, and of those who stop agents */
	/* With several servers: links between them, and of one agent to one of them. */
	int64_t peer_cut_ns;
	bool only_servers_fail;
	int64_t stranger_ns;  /* between two of what a stranger says */
	int64_t list_ns;      /* between two questions of a worker; 0: none */
	uint32_t lie_percent; /* of legs: other bytes come, with digests that fit */
	uint32_t far_times;   /* a chunk from another datacenter takes so many times as long */
	int64_t burst_ns;     /* between the moments at which all groups call; 0: at any time */
	uint32_t prefetch_percent, seed_percent; /* groups with CTL_OPEN_PREFETCH, _SEED */
	int64_t observe_ns;      /* between two questions of an observer; 0: there are none */
	int64_t borrow_ns;       /* likewise between two loans of a host; needs observers */
	int64_t go_ns;           /* between two words of go; 0: nobody says it */
	uint32_t follow_percent; /* of rollouts: they take versions by themselves */
};

void swarm_draw(struct options *ret_options);

/* ---- a narrower world (narrow.c, shrink.c) --------------------------------------------------- */

struct option { /* a field of struct options */
	const char *name;
	size_t offset, bytes;
	bool rate; /* of something that goes wrong: 0 switches it off */
};

struct strike { /* the nth time that a fault of this kind struck, from 1 */
	uint32_t fault, nth;
};

#define STRIKES_MAX 256u /* remembered of one run */

/* NULL: there are no more. */
const struct option *option_at(uint32_t index);
int64_t option_get(const struct options *from, const struct option *option);
void options_print(const struct options *from);

/* False: too many. */
bool narrow_set(const struct option *option, int64_t value);
bool narrow_get(const struct option *option, int64_t *ret_value);
void narrow_unset(const struct option *option);
bool narrow_drop(struct strike strike);
void narrow_undrop(struct strike strike);
bool narrow_dropped(struct strike strike);
void narrow_apply(struct options *to);
/* "loss_permille=0,hosts=2" and "links_are_cut.3,worker_dies.1". False: not understood. */
bool narrow_parse_set(const char *text);
bool narrow_parse_drop(const char *text);
/* The options of thsim that replay it. */
void narrow_print(uint64_t seed);

/* Makes the seed's failure small; exit status of the program. */
int shrink_seed(uint64_t seed);
/* This run has failed: for whoever shrinks. */
void shrink_report(const char *invariant);

/* ---- memory (memory.c) ----------------------------------------------------------------------- */

/* Who may write a shard's memory. */
enum memory_right {
	MEMORY_OWNER,   /* its worker: it was told so, or no agent knows the memory          */
	MEMORY_HELD,    /* an agent: published, or being filled: nobody else writes          */
	MEMORY_NOBODYS, /* freed, with the next owner: touching it is an error               */
};

struct memory { /* owned by world.memories until the end of the run */
	uint64_t tokens[CHUNKS_MAX][CHUNK_TOKENS];
	enum memory_right right;
	bool shared;     /* a mapping of the agent keeps it when the worker dies */
	uint32_t mapped; /* by the worker, and by its session                    */
	struct memory *next;
};

struct content { /* what a version's shard should be */
	uint32_t model, shard, variant;
	uint64_t lineage, version;
};

struct memory *memory_new(bool shared);
void memory_unmap(struct memory *memory);
void memory_scribble(struct memory *memory, const char *who);
void memory_write(struct memory *memory, const struct content *content);
/* UINT32_MAX: all chunks are of it; else the first that is not. */
uint32_t memory_compare(const struct memory *memory, const struct content *content);
uint64_t chunk_digest(const uint64_t tokens[CHUNK_TOKENS]);

/* ---- the world ------------------------------------------------------------------------------- */

struct part { /* of a session, at one generation */
	bool there, published, hashing, stopping;
	uint64_t gen;
	uint32_t prefix; /* chunks that may be read */
	uint64_t digests[CHUNKS_MAX];
};

struct handle { /* a session of an agent's core; goes with AGENT_FREE or with the agent */
	uint64_t id;
	struct host *host;
	struct worker *worker;     /* NULL: gone */
	struct observer *observer; /* likewise; NULL: it is none */
	struct memory *memory;     /* NULL: of an observer */
	struct part part;
	bool offload; /* no worker has opened it */
	bool given_up;
	struct agent_line line;
	uint32_t hash_serial;
	struct handle *next, *prev;
};

enum leg_way { LEG_NIC, LEG_TCP, LEG_LOCAL };

struct leg {
	enum leg_way way;
	struct host *host; /* the reader's */
	uint64_t host_life, number, server_number;
	struct th_ticket ticket;
	struct handle *to;
	uint64_t to_gen;
	uint32_t prefix_start;
	struct host *from_host;
	uint64_t from_life, from_number; /* of the source's agent */
	struct handle *from;
	struct memory *from_memory;
	uint64_t from_gen;
	struct handle *donor; /* of the reader's host; NULL: there is none, or it was left    */
	uint64_t donor_gen;
	bool lies;              /* other bytes come, with digests that fit            */
	bool over;              /* reported to the reader's core                      */
	bool stopping;          /* by the reader's core                               */
	bool serving;           /* the source's core waits for OUT_ENDED              */
	bool fencing;           /* the source's core has said FENCE                  */
	bool connected;         /* the reader knows                                   */
	bool stall_told;        /* OUT_STALLED                                        */
	bool overwrote, posted; /* posted: a chunk is on its way                      */
	uint32_t chunk;         /* that one, with what its source says of it         */
	uint64_t digest, tokens[CHUNK_TOKENS];
	uint32_t bad_chunks;
	int64_t moved_ns; /* last progress, or the source had nothing           */
	int64_t begun_ns;
	uint32_t serial; /* of its steps: older ones are void                  */
	int64_t chunk_ns;
	struct leg *next;
};

struct flight { /* a request of an agent without its answer */
	uint64_t tag, token;
	bool core;
	uint64_t handle;    /* not core: whose manifest, or question */
	uint32_t kind;      /* enum ctl_request_kind */
	uint64_t op_seq;    /* LIST: of this operation; 0: as it is now */
	uint32_t server;    /* whom it was sent to */
	int64_t timeout_ns; /* real */
};

#define FLIGHTS_MAX 512u

struct host { /* an agent process and its machine */
	struct process process;
	struct agent_core *core;
	uint64_t inc;
	struct th_secret secret;
	uint32_t datacenter;
	bool spot, attached, resets;
	bool leaving, left; /* told to end; its core waits for nothing more */
	int64_t stop_ns, farewell_ns;
	uint32_t offload_max; /* shards of others that it has memory for */
	uint64_t server_inc;  /* attached to */
	uint32_t epoch;       /* the highest that it has accepted */
	uint64_t connection;  /* to it; a new one when that has ended */
	int64_t hung_up_ns;   /* when the one before ended */
	uint32_t server;      /* of the list */
	int64_t dialed_ns;
	bool refused; /* by that one: the next is tried at once */
	uint64_t last_tag;
	struct flight flights[FLIGHTS_MAX];
	uint32_t num_flights;
	int64_t next_ns;  /* of the core, its own clock   */
	int64_t mover_ns; /* events of the movers do not overtake each other */
	struct handle *handles;
	struct tickets tickets; /* of its data port */
};

struct srv { /* a server process */
	struct process process;
	struct refsrv *core;
	uint64_t inc;
	int64_t next_ns;
	uint64_t generation;
	bool serving;
	bool lost; /* it does not know where it stands in the list */
};

enum worker_state {
	W_OFF,
	W_OPENING,
	W_PUTTING,
	W_REGISTERING,
	W_UNREGISTERING,
	W_IDLE,
	W_BUSY,
	W_UNKNOWN, /* its call came back without an outcome; it waits or closes */
	W_CLOSING,
};

struct call {
	uint32_t kind, flags, slot, step;
	char spec[TH_SPEC_MAX + 1];
	int64_t timeout_ns, submitted_ns;
	int64_t drawn_ns; /* when its group chose it */
	struct th_version held;
	bool cancelled, watched; /* watched: I14 holds for it */
};

struct worker { /* a process */
	struct group *group;
	uint32_t shard;
	struct host *host;
	enum worker_state state;
	uint64_t life;
	struct handle *handle;
	struct memory *memory;
	struct agent_line line;
	uint64_t sid;
	uint32_t step;
	struct call call;
	bool want_close, starting;
	bool following; /* its group takes versions by itself */
	bool ghost; /* its last operation was answered without a server, which may go on with it */
	int64_t off_ns, ring_ns, open_ns;
	uint64_t alarm;     /* its timers of before are void */
	uint64_t successes; /* of all its lives */
};

#define LISTED_MAX 16u

struct listed { /* a listing, as far as it is looked at */
	uint64_t server_inc, generation, hash;
	uint32_t num;
	struct {
		struct th_version id;
		uint32_t group;
	} ready[LISTED_MAX]; /* replicas; none of hosts' own copies */
};

enum reader_state { READER_OFF, READER_THINKS, READER_ASKS, READER_WAITS };

struct reader { /* what a worker has heard of versions */
	enum reader_state state;
	uint64_t life;             /* of its worker */
	uint64_t floor, floor_inc; /* the newest generation of this server */
	struct listed listed;      /* WAITS: for a newer one */
	int64_t since_ns;
};

enum role { ROLE_TRAINER, ROLE_ROLLOUT, ROLE_STANDALONE, ROLE_ROLES };

struct step { /* the same for all members */
	uint32_t kind, flags;
	char spec[TH_SPEC_MAX + 1];
	int64_t timeout_ns, drawn_ns;
	uint64_t version; /* publish */
	uint32_t variant;
	bool known; /* someone has its outcome */
	int code;
	struct th_version held;
};

struct group {
	uint32_t index, model, shards, layout;
	uint64_t lineage; /* of what it publishes */
	enum role role;
	char replica[32], launch[32];
	const char *retain; /* rules, or empty */
	uint32_t flags;     /* CTL_OPEN_... */
	uint64_t incarnation;
	struct worker workers[SHARDS_MAX];
	struct step steps[STEPS_MAX];
	uint32_t num_steps;
	uint32_t behind; /* latest-K */
	bool launches;   /* it names them */
	bool apart;      /* a member closes, or may be one call behind the others */
	bool follows;    /* publishes what another trainer has published */
	bool follower;   /* takes versions by itself */
	uint64_t successes, successes_before;
};

struct world {
	uint64_t seed;
	struct options options;
	struct th_rng rng[RNG_STREAMS];
	int64_t now_ns;
	uint64_t events;
	struct srv servers[SERVERS_MAX];
	struct host hosts[HOSTS_MAX];
	struct group groups[GROUPS_MAX];
	struct leg *legs; /* newest first; never removed while the run lasts */
	struct memory *memories;
	uint64_t last_inc, last_session, last_knock, last_launch, last_connection;
	uint64_t last_version[MODELS_MAX], last_lineage[MODELS_MAX];
	struct strike strikes[STRIKES_MAX];
	uint32_t num_strikes;
	bool calm;    /* the faults have ended  */
	bool closing; /* nobody opens any more  */
	int64_t calm_ns;
};

extern struct world world;

/* ---- network (net.c) ------------------------------------------------------------------------- */

void net_start(void);
/* Endpoints: hosts, then servers. One way; until_ns NEVER: until it is healed. */
uint32_t net_host(const struct host *host);
uint32_t net_srv(const struct srv *srv);
void net_cut(uint32_t from, uint32_t to, int64_t until_ns);
void net_slow(uint32_t from, uint32_t to, int64_t until_ns, uint32_t factor);
void net_heal(void);
bool net_is_cut(uint32_t from, uint32_t to);
/* Since when nothing has been wrong between the two. */
int64_t net_whole_since(const struct host *host, const struct srv *srv);
/* How long a message takes; NEVER: it is lost. */
int64_t net_delay(uint32_t from, uint32_t to);
/* The same, of one server to another. */
int64_t net_delay_of_peer(uint32_t from, uint32_t to);
/* A request of the core (its tag), or of the shell itself for this handle (tag 0). */
void net_request(struct host *host, enum agent_channel channel, const struct ctl_request *request,
	uint64_t tag, uint64_t handle);
void net_reply(struct srv *srv, const struct refsrv_reply *reply);
void net_timeouts(struct host *host);
int64_t net_next_timeout(const struct host *host);
/* The connection is gone: what the agent waits for is answered so, and the server hears of it. */
void net_hang_up(struct host *host, struct srv *srv);
/* The agent tries another server: nothing more comes of what it waits for. */
void net_dial(struct host *host, uint32_t server);
/* The agent process has ended. */
void net_forget(struct host *host);

/* ---- processes ------------------------------------------------------------------------------- */

void srv_start(struct srv *srv);
void srv_stop(struct srv *srv);
void srv_request(struct srv *srv, uint64_t token, const struct ctl_request *request);
void srv_forget(struct srv *srv, uint64_t token);
void srv_gone(struct srv *srv, uint64_t connection);
/* Anybody asks, and has an answer at once. */
void srv_stranger(struct srv *srv, const struct ctl_request *request, struct ctl_reply *ret_reply);
/* Another server asks; what is said to it, or a code. */
int srv_asked(struct srv *srv, const struct ctl_hello *hello, struct ctl_hello_reply *ret_reply);
/* reply NULL: none. */
void srv_answered(struct srv *srv, uint32_t peer, const struct ctl_hello_reply *reply);
/* How many servers there are that ask each other; 0: one alone does not. */
uint32_t peer_count(void);
void peer_ask(struct srv *srv, const struct refsrv_probe *probe);
/* An operator's question; its answer is there at once. */
int srv_admin(struct srv *srv, const struct ctl_admin *admin, struct ctl_admin_reply *ret_reply);

void host_start(struct host *host);
void host_crash(struct host *host);
/* An event for the core, a little later; the caller fills in the rest. */
struct agent_event *host_tell(
	struct host *host, enum agent_event_kind kind, uint64_t session, int64_t delay_ns);
/* An event of a mover comes after those that it said earlier. */
struct agent_event *host_tell_mover(
	struct host *host, enum agent_event_kind kind, uint64_t session);
void host_step(struct host *host, const struct agent_event *event);
struct handle *host_handle(struct host *host, uint64_t id);
/* A new session, before its core hears of it. Takes memory. */
struct handle *host_new_handle(struct host *host, struct memory *memory);
/* The answer to a request of the shell; NULL: none. listed: of LIST. */
void host_answered(struct host *host, const struct flight *flight, const struct ctl_reply *reply,
	const struct listed *listed);

/* ---- movers (mover.c) ------------------------------------------------------------------------ */

void mover_part(struct host *host, const struct agent_action *action);
void mover_begin(struct host *host, const struct agent_action *action);
void mover_stop(struct host *host, uint64_t number);
void mover_drop_donor(struct host *host, uint64_t number);
/* False: its reader has left. */
bool mover_serve(struct leg *leg, uint64_t session, uint64_t gen, uint64_t number);
void mover_turned_away(struct leg *leg);
void mover_fenced(struct leg *leg);
uint32_t mover_progress(
	const struct host *host, struct ctl_leg_progress *ret_legs, uint32_t legs_max);
void mover_host_died(struct host *host);
/* Nothing may run on it any more: who says so, for the message. */
void mover_must_be_still(const struct handle *handle, const char *why);
uint32_t mover_running(void);

/* ---- data ports (door.c) ---- */

void door_knock(struct host *host, const struct th_ticket *ticket, struct leg *leg);
void door_knock_later(struct host *host, const struct th_ticket *ticket, int64_t delay_ns);
void door_expect(struct host *host, const struct agent_action *action);
void door_refuse(struct host *host, const struct agent_action *action);
void door_fence(struct host *host, uint64_t number);
void door_ended(struct host *host, uint64_t number); /* nothing is read for it any more */
void door_must_be_shut(const struct handle *handle, const char *why);
void door_host_died(struct host *host);

/* ---- workers (worker.c, program.c) ----------------------------------------------------------- */

void worker_start(struct worker *worker);
void worker_kill(struct worker *worker);
void worker_submit(struct worker *worker); /* what stands in worker->call */
void worker_close(struct worker *worker);
void worker_opened(struct worker *worker, int code);
void worker_put(struct worker *worker, int code);
void worker_unregister(struct worker *worker);
void worker_unregistered(struct worker *worker, int code);
void worker_registered(struct worker *worker, int code);
void worker_completed(struct worker *worker, const struct agent_action *action);
void worker_line(struct worker *worker, const struct agent_line *line);
void worker_closed(struct worker *worker);
void worker_close_refused(struct worker *worker, int code);
void worker_agent_lost(struct worker *worker);
/* It may write its memory from now on. */
void worker_may_write(struct worker *worker);

/* A watch of the listing, in the slot of its own. */
#define READER_SLOT 64u
void worker_watch(struct worker *worker, uint64_t generation, int64_t timeout_ns);
/* It has fetched what its group has listed, or could not. */
void worker_listed(struct worker *worker);

void reader_start(void);
struct reader *reader_of(const struct worker *worker);
void reader_begin(struct worker *worker);
/* False: nothing is fetched. */
bool reader_fetch(struct worker *worker, uint64_t op_seq);
void reader_answered(
	struct worker *worker, const struct flight *flight, int code, const struct listed *listed);
void reader_completed(struct worker *worker, const struct agent_action *action);
/* LIST or RESOLVE. False: the agent has no server, nobody is asked. */
bool reader_question(struct handle *handle, uint32_t model, enum ctl_request_kind kind,
	uint64_t sid, uint64_t op_seq);

void observer_start(void);
void observer_opened(struct observer *observer, int code);
void observer_answered(struct observer *observer, int code, const struct listed *listed);
void observer_completed(struct observer *observer, const struct agent_action *action);
/* What it has called that is a member's. */
void observer_refused(struct observer *observer, int code);
void observer_line(const struct observer *observer, const struct agent_line *line);
/* Its session has been freed, or its agent is lost. */
void observer_gone(struct observer *observer);
/* Of its model. */
uint32_t observer_model(const struct observer *observer);

/* It is open, and thinks. */
bool observer_asks(const struct observer *observer);

void borrower_start(void);
void borrower_lent(struct host *host, const struct agent_action *action);
void borrower_refused(struct host *host, const struct agent_action *action);
void borrower_host_died(const struct host *host);

void program_start(void);
/* This worker is idle: what it does next. */
void program_next(struct worker *worker);
void program_done(struct worker *worker, int code, struct th_version held);
/* Between a call of this kind that has succeeded and the next. */
int64_t program_think_ns(uint32_t kind);
struct content program_content(
	const struct group *group, uint32_t shard, struct th_version version, uint32_t variant);

/* ---- faults (fault.c) ------------------------------------------------------------------------ */

void fault_start(void);
const char *fault_name(uint32_t fault);
bool fault_named(const char *name, size_t bytes, uint32_t *ret_fault);
/* All of them end, everything is whole again. */
void fault_end(void);
/* Its agent and all workers on it end; it is started again later. */
void fault_machine_ends(struct host *host);
void fault_host_starts(struct host *host, int64_t delay_ns);

/* ---- operators (operator.c, leave.c) --------------------------------------------------------- */

void operator_drains(struct host *host);
void operator_evicts(const struct group *group);
/* Says go now and then, until all close. */
void operator_start(void);
/* All drains are taken back. */
void operator_ends(void);

void stranger_speaks(void);

/* SIGTERM. */
void host_leave(struct host *host, int64_t timeout_ns);
/* Its core says that it may go. */
void host_left(struct host *host, int code);

/* ---- a run (run.c) --------------------------------------------------------------------------- */

/* Returns the hash of what happened. A failure ends the process. */
uint64_t run_seed(uint64_t seed, bool print);

#endif
