/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_own - the handle, its operations, and the rules that all files of libthc follow.
 *
 * Locks, in this order: the list of handles (shard.c), a handle's lock, the memory registry
 * (own_memory.c), what is given away (given.c). None is held while a thread sleeps in poll,
 * exchanges a document or runs a caller's predicate.
 *
 * Waiting: of all threads that wait in one handle one polls (the agent's doorbell, the descriptor
 * socket for messages and hang-up, the agent's pidfd); the others sleep on the condition variable.
 * Whoever wakes collects for all and wakes the others, one of which polls next. As a model, with
 * thc_fd: tests/model/waiters.pml.
 *
 * A forked child shares descriptors with its parent, so the child handler closes them, and every
 * call looks at the fork count before it touches anything else: a lock may be held for ever there.
 * Names that begin with thc_ are exported, so internal ones do not.
 */
#ifndef TH_LIBTHC_LIBTHC_OWN_H
#define TH_LIBTHC_LIBTHC_OWN_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/ctl.h"
#include "ipc/base/err.h"
#include "ipc/shm/ring.h"
#include "ipc/shm/segment.h"
#include "ipc/sock/fdmsg.h"
#include "libthc/gpu_tensors.h"
#include "libthc/map_check.h"
#include "libthc/nng_req.h"
#include "libthc/thc.h"
#include "libthc/worker_copy.h"

/*
 * The agent ends an operation at its deadline and answers what was asked at the last moment; its
 * answer has this long to arrive. Half of the second that thc.h allows.
 */
#define GRACE_NS INT64_C(500000000)

/* ---- errors.c ------------------------------------------------------------------------------ */

struct th_err *errors_last(void); /* of this thread */
/* Fills this thread's sentence and returns the code. */
#define shim_fail(code, ...) th_fail(errors_last(), (code), __VA_ARGS__)
/* Text of the agent, in place: it ends, and what a terminal must not be given is '?'. */
void errors_clean(char *text, size_t room);
/* The same for a code and sentence of the agent: what is no error code becomes THC_E_PROTOCOL. */
int errors_from_agent(int code, const char *text);

/* THC_E_INVALID unless it is THC_FOREVER or not negative; else the deadline on the clock. */
TH_MUST_USE int deadline_of(int64_t timeout_ms, int64_t *ret_deadline_ns);
int64_t deadline_with_grace(int64_t deadline_ns);
int64_t deadline_left(int64_t deadline_ns); /* >= 0; TH_FOREVER when there is none */
/* For poll: rounded up, -1 for none. */
int deadline_poll_ms(int64_t deadline_ns);

/*
 * A struct of a caller that was built against another header: THC_E_INVALID that names what when
 * its size is below least (what the first version had) or no header has it. The caller's may be
 * longer than ours by a tail, which is then all zero, or it asks for what this library does not
 * know.
 */
TH_MUST_USE int struct_size_check(const char *what, size_t size, size_t least);
TH_MUST_USE int struct_take(const char *what, const void *from, size_t size, size_t least,
	void *ret_struct, size_t own_size);

/* ---- the handle ---------------------------------------------------------------------------- */

enum op_holder {          /* who has a pointer to an operation; written by op_holder_enter */
	OP_OF_CALLER = 0, /* done, it makes thc_fd readable */
	OP_COLLECTED,     /* the caller has it still, and has seen its end */
	OP_OF_CALL,       /* a blocking call, or libthc: not for thc_fd */
	OP_OF_NOBODY,     /* freed when it is done and not unresolved */
};

enum op_cancel { /* written by op_cancel_enter */
	CANCEL_NOT_ASKED = 0,
	CANCEL_DUE, /* the ring was full; counted in shard->cancels_due */
	CANCEL_SENT,
};

struct thc_op {
	struct thc_shard *shard; /* counted in shard->refs */
	uint64_t op_seq;
	uint32_t slot;
	uint16_t kind; /* enum shm_submission_kind */
	bool done;
	bool fills; /* what it brought is still to be copied to GPU memory, or was */
	enum op_holder holder;
	enum op_cancel cancel;
	int64_t unknown_ns; /* from here on a missing outcome is THC_E_UNKNOWN */
	struct th_err outcome;
	struct thc_result result;
	uint64_t group_op_seq;
	uint64_t done_bytes, total_bytes; /* as it ended */
};

struct sent_memory; /* what this session's agent was given: given.h */
struct sender;

struct loan_answer { /* of the thread that borrows; see borrow.c */
	bool done;
	int code;
	char text[TH_CTL_TEXT_BYTES];
	int file, lease; /* own; -1: none came */
};

struct held_memory { /* acquired by the registration */
	uintptr_t start;
	uint64_t serial;
};

struct placed_tensor {      /* of the registration, for thc_memory_path and sentences */
	char *name;         /* owns */
	int device;         /* THC_HOST, or the CUDA ordinal */
	uint64_t serial;    /* as in sent_memory; 0: has no bytes, or lies on a GPU */
	const char *reason; /* of its memory object, or NULL */
	bool unreached;     /* libthc copies it, as the agent does not open its GPU memory */
	uint64_t start, bytes;
};

enum shard_life {         /* written by life_enter (open_close.c) */
	SHARD_CLOSED = 0, /* no new call; torn down by the last that leaves. Not open yet, too */
	SHARD_OPEN,
	SHARD_CLOSING, /* thc_close waits for the others to leave, and for the agent */
};

enum shard_agent { /* written by shard_agent_enter */
	AGENT_THERE = 0,
	AGENT_LOST,          /* gone, or given up: lost_text says why */
	AGENT_LOST_REPORTED, /* thc_shard_events has said so */
};

enum shard_close { /* the agent's part in it; written by shard_close_enter */
	CLOSE_NOT_ASKED = 0,
	CLOSE_ASKED,    /* stays so when thc_close has not waited for the answer */
	CLOSE_ANSWERED, /* close_answer; until a call uses it up */
};

enum registration { REGISTRATION_NONE, REGISTRATION_DONE, REGISTRATION_UNKNOWN };

/*
 * Its memory is never freed, so a call may take the lock of a handle that another thread closes, or
 * has closed, and finds it closed. It is kept for the next thc_open.
 */
struct thc_shard {
	/* These five outlive a close: of a closed handle all others are 0. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t fork_count;           /* of the process that made it; never changes */
	struct thc_shard *next, *prev; /* list of open or closed handles, under its lock */
	enum shard_life life;          /* under lock */

	char model[TH_NAME_MAX + 1];
	uint64_t session;
	uint8_t secret[16];
	uint32_t tensors_max;
	uint32_t open_flags;
	bool observes;     /* an observer: opened without a replica */
	uint64_t features; /* that both sides have */

	/* All below: under lock. */
	uint32_t refs;   /* the caller's handle, calls inside, operations: the memory */
	uint32_t inside; /* calls inside: the descriptors and mappings */
	enum shard_agent agent;
	char lost_text[TH_CTL_TEXT_BYTES];
	int ended; /* the agent has ended the session: what every call answers; 0: it has not */
	char ended_text[TH_CTL_TEXT_BYTES];
	bool polling; /* a thread polls for all */

	int sock, bell_agent, bell_worker, agent_pidfd; /* own */
	int lifeline; /* owns: hangs up when no process of the agent reaches the memory; or -1 */
	int kick;     /* owns: eventfd that wakes the thread that polls for all */
	int epoll, uncollected; /* own; -1 until thc_fd: an epoll set, and an eventfd in it */
	bool uncollected_set; /* what the eventfd holds: no system call when it holds it already */
	int giving; /* owns: what no child is to have, while the agent is given it; else -1 */
	struct segment_worker files; /* owns */
	struct ring_worker ring;
	struct fdmsg *message; /* owns: room for one */
	int64_t looked_ns;     /* when the agent's life was last looked at */

	uint64_t next_op_seq;
	struct thc_op *ops[SHM_CAPACITY]; /* by slot; borrowed */
	struct thc_op *running;           /* the group operation, borrowed */
	bool listing;                     /* a grouped list has ended and is being fetched */
	struct watch *watch;              /* of the newest generation; its users free it */
	struct thc_op *unresolved;        /* ended in THC_E_UNKNOWN, borrowed */
	bool resolving;                   /* a thread is in thc_resolve */
	uint32_t cancels_due;             /* of operations that nobody waits for any more */
	uint32_t num_uncollected;         /* finished operations that the caller has not seen yet */
	uint16_t events_reported[SHM_EV_COUNT];

	bool exclusive;                  /* a register or unregister is under way */
	uint32_t last_loan;              /* token of the last BORROW that was sent */
	struct loan_answer *loan_answer; /* borrowed, of the thread that waits for it; NULL */
	uint32_t last_token;             /* of the last MEMORY that was sent */
	uint32_t answered_token; /* answers come in this order, some after nobody waits for them */
	struct sender *sender;   /* borrowed, of the thread that waits for some of them; NULL */
	enum shard_close close;
	struct fdmsg_refused close_answer;

	enum registration registration;
	struct sent_memory *sent; /* owns; ascending by serial */
	size_t num_sent, sent_room;
	uint32_t *forgets; /* owns: ids of what the agent is still to be told to forget */
	size_t num_forgets;
	struct held_memory *held; /* owns */
	size_t num_held;
	struct placed_tensor *placed; /* owns; by name bytewise */
	size_t num_placed;
	struct ranges ranges; /* of the registration, as what follows */
	struct gpu_set gpus;  /* owns */
	struct shadow shadow; /* owns */
	uint64_t fill_due;    /* op_seq of what is in the shadow and not wholly in GPU memory; 0 */
	uint64_t filled;      /* op_seq of the last that is wholly in GPU memory */
	/* Owns, names and values too; by name bytewise. NULL: the agent has none, and is to. */
	struct thc_attribute *attributes;
	size_t num_attributes;

	bool asking; /* a thread exchanges a document: request is its own, without the lock */
	struct sp_req request;
	uint64_t next_request_no;
};

/* ---- shard.c ------------------------------------------------------------------------------- */

/* Registers the fork handlers; every call that makes something that fork must know begins here. */
void shard_process_init(void);
uint64_t shard_fork_count(void);
/* All fields at rest, closed, descriptors -1, in the list of open ones. NULL: out of memory. */
struct thc_shard *shard_new(void);
/* Not for shard_for_each any more. Under no lock. */
void shard_unlist(struct thc_shard *shard);
/* Calls visit for every listed handle of this process, with its lock held. */
void shard_for_each(void (*visit)(struct thc_shard *shard, uint64_t arg), uint64_t arg);

enum shard_enter_flags {
	ENTER_LOST = 1u,           /* also when the agent is lost, or has ended the session */
	ENTER_BEGINS_NOTHING = 2u, /* also after THC_E_UNKNOWN, and while a thc_close is not over */
	ENTER_MEMBER = 4u,         /* not an observer */
};
/* 0: the lock is held and the handle stays until shard_leave; or a code, and nothing is held. */
TH_MUST_USE int shard_enter(struct thc_shard *shard, unsigned flags);
void shard_leave(struct thc_shard *shard); /* gives the lock back */
/* Drops a reference under the lock, which is given back; what nobody refers to is for shard_new. */
void shard_unref_unlock(struct thc_shard *shard);

/* The handle is of no use any more: ends all operations and wakes all waiters. */
void shard_lose(struct thc_shard *shard, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* why: what has happened, static text. A way that its table does not have is a bug. */
void shard_agent_enter(struct thc_shard *shard, enum shard_agent state, const char *why);
static inline bool
shard_lost(const struct thc_shard *shard)
{
	return shard->agent != AGENT_THERE;
}
/* THC_E_AGENT_LOST with its sentence. */
int shard_lost_error(const struct thc_shard *shard);
/* Takes what has arrived, without waiting: completions, messages, the agent's end. */
void shard_look(struct thc_shard *shard);
/* Takes completions only: no system call. */
void shard_collect(struct thc_shard *shard);
/* True when so long nothing was heard of the agent that its life should be looked at. */
bool shard_heartbeat_stale(struct thc_shard *shard, const struct shm_line *line);
/* Brings thc_fd's descriptor in line with what is uncollected. */
void shard_update_fd(struct thc_shard *shard);

/*
 * Waits, lock given back meanwhile, until *done is true (set by shard_collect or a message). NULL,
 * for the thread that closes: until CLOSE_ANSWERED. Returns 0; or THC_E_AGENT_LOST; THC_E_CANCELLED
 * when another thread closes the handle; -ETIMEDOUT without a sentence at until_ns.
 */
TH_MUST_USE int shard_await(struct thc_shard *shard, const bool *done, int64_t until_ns);
/* Something of the handle has changed: all waiters look again. */
void shard_wake(struct thc_shard *shard);
/* Sleeps until something of the handle changed, or until_ns. */
void shard_sleep(struct thc_shard *shard, int64_t until_ns);
/* Of sendmsg: too many descriptors of this user are on their way, whoever sent them, or there is no
 * memory. No event tells when it has passed. */
static inline bool
shard_send_passes(int rc)
{
	return rc == -ETOOMANYREFS || rc == -ENOBUFS || rc == -ENOMEM;
}
/* One message on the descriptor socket; waits while it is full. As shard_await. */
TH_MUST_USE int shard_send(struct thc_shard *shard, enum fdmsg_kind kind, const void *body,
	size_t body_bytes, const int *fd, int64_t until_ns);
/* One thread at a time between both: THC_E_STATE with a sentence otherwise. */
TH_MUST_USE int shard_exclusive_begin(struct thc_shard *shard);
void shard_exclusive_end(struct thc_shard *shard);

/*
 * ---- open_close.c -----------------------------------------------------------------------------
 */

/* As shard_agent_enter. */
void shard_close_enter(struct thc_shard *shard, enum shard_close state, const char *why);
/* The agent was asked to close it, and has not refused: what would begin ends at once. */
bool session_is_being_closed(struct thc_shard *shard);

/*
 * ---- async_op.c
 * ----------------------------------------------------------------------------------
 */

struct op_request {
	uint16_t kind; /* enum shm_submission_kind */
	bool internal;
	uint32_t flags;
	int64_t deadline_ns; /* on the clock */
	char spec[32];
};
/* Under the lock. */
TH_MUST_USE int op_submit(
	struct thc_shard *shard, const struct op_request *request, struct thc_op **ret_op);
/* They abort where no way leads there. For async_op.c, and for its test. */
void op_holder_enter(struct thc_op *op, enum op_holder holder, const char *why);
void op_cancel_enter(struct thc_op *op, enum op_cancel cancel, const char *why);
void op_finish(struct thc_op *op, int code, const char *text); /* from shard.c; may free op */
/* After completions have been taken: what did not fit into the ring before. */
void op_send_cancels(struct thc_shard *shard);
/* Nobody will ask for it any more: cancelled when it still runs, and freed at its end. */
void op_detach(struct thc_op *op);
/* thc_close: ends all. */
void op_end_all(struct thc_shard *shard);
/*
 * Waits for an operation of a blocking call, and gives it up: its result, or THC_E_UNKNOWN (it is
 * then shard->unresolved) or the failure. ret_result may be NULL; *ret_group_op_seq too.
 */
TH_MUST_USE int op_complete(struct thc_op *op, int64_t deadline_ns, struct thc_result *ret_result,
	uint64_t *ret_group_op_seq);
/* What a finished operation returns, with its sentence. */
int op_outcome(const struct thc_op *op);
TH_MUST_USE int op_check_result(const struct thc_result *result, const char *argument);
/* THC_E_INVALID that names version; copies the text. */
TH_MUST_USE int op_check_spec(const char *version, char ret_spec[32]);

/* ---- wait.c -------------------------------------------------------------------------------- */

struct watch;
/* This thread runs a predicate that was given to thc_wait of this handle. */
bool wait_is_judging(const struct thc_shard *shard);

/* ---- doc_call.c ------------------------------------------------------------------------- */

struct Tensorhub__V1__Request;
struct Tensorhub__V1__Reply;
/*
 * Asks the agent, under the lock, which is given back meanwhile. request has its body; the envelope
 * is filled here. body_case: of the reply that is wanted, 0: none. 0 and a reply to be freed with
 * documents_free, or a code with a sentence: THC_E_TIMEOUT when no answer came by the deadline and
 * the grace.
 */
TH_MUST_USE int documents_call(struct thc_shard *shard, struct Tensorhub__V1__Request *request,
	int body_case, int64_t deadline_ns, struct Tensorhub__V1__Reply **ret_reply);
void documents_free(struct Tensorhub__V1__Reply *reply);

/* ---- get_manifest.c ------------------------------------------------------------------------ */

struct manifest;
/* thc_get_manifest, inside the handle. */
TH_MUST_USE int manifest_fetch(struct thc_shard *shard, char *spec, uint32_t of_shard,
	int64_t deadline_ns, struct thc_manifest **ret_manifest);
/* What it was made of: the rows come first, then the aliases; and its rows, to be filled. */
const struct manifest *manifest_content(const struct thc_manifest *manifest);
struct thc_tensor *manifest_tensors(struct thc_manifest *manifest);

/* ---- publish.c ------------------------------------------------------------------------------ */

void attributes_free(struct thc_shard *shard);

/* ---- register.c ----------------------------------------------------------------------------- */

/* In place of a serial: what is reached through /proc/self/mem. */
#define PRIVATE_SERIAL UINT64_MAX
void tensors_release(struct thc_shard *shard); /* the agent has let go of them */
/* thc_memory_path, inside the handle. */
TH_MUST_USE int memory_path_of(
	struct thc_shard *shard, const char *tensor, char *ret_text, size_t text_bytes);

/* ---- given.c -------------------------------------------------------------------------------- */

void sent_forget(struct thc_shard *shard, uint64_t serial); /* a memory object is gone */
/* Around what makes or closes shard->giving, and around fork: its child finds the descriptor where
 * it looks, or none. */
void sent_lock(void);
void sent_unlock(void);
/* shard->giving has been sent, or not. */
void sent_close(struct thc_shard *shard);
/* What could not be said at once: 0, THC_E_AGENT_LOST, or -ETIMEDOUT without a sentence. */
TH_MUST_USE int sent_flush(struct thc_shard *shard, int64_t until_ns);
bool sent_take_answer(struct thc_shard *shard); /* MEMORY_ID came; false: out of order */
/* All that was sent is answered, and what nobody waited for is taken back: 0, or a code with a
 * sentence. */
TH_MUST_USE int sent_settle(struct thc_shard *shard, int64_t until_ns);

/* ---- proc_mem.c ----------------------------------------------------------------------------- */

/* Opens /proc/self/mem as shard->giving. */
TH_MUST_USE int private_open(struct thc_shard *shard);
/*
 * Before an operation (its name), under the lock: that the registered memory is still there, and
 * writable for a destination. THC_E_STALE_MEMORY, THC_E_MEMORY_KIND or -errno with a sentence.
 */
/* Of GPU memory alone. */
TH_MUST_USE int private_look_at_gpus(struct thc_shard *shard, const char *operation);
/* Of the tensors that end behind the address, the first. */
const char *private_tensor_at(const struct thc_shard *shard, uintptr_t at);
TH_MUST_USE int private_look(struct thc_shard *shard, const char *operation, bool destination);

#endif
