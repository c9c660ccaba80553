/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpus_own - the inside of gpus.h.
 *
 *   any thread           requests, orders  ->  the GPU's inbox, and its wake_fd
 *   the GPU's thread     gpu.c: takes the inbox, speaks with the process, watches the clock
 *                        opens.c: which pieces this life of the process has, and is to have
 *                        jobs.c: requests on their way, run by run (cut.c)
 *
 * A life of the process ends at any time. Then all that was under way is *suspect*: it is done
 * again, one after the other with nothing beside it, so that what ends the process each time is
 * known after GPUS_TRIES and given up, and all else goes on.
 *
 * Locks: a space's, then an inbox's, then nothing; no lock while a caller is told, but of a block
 * (gpus.h).
 */
#ifndef TH_TRANSPORT_CUDA_GPUS_OWN_H
#define TH_TRANSPORT_CUDA_GPUS_OWN_H

#include <pthread.h>
#include <sys/queue.h>

#include "transport/cuda/blocks.h"
#include "transport/cuda/gpus.h"
#include "transport/cuda/process.h"

#define GPUS_TRIES 3u      /* of what ended the process */
#define GPUS_OPENS_MAX 64u /* under way: descriptors on their way are counted by the kernel */
#define GPUS_SCRATCH (GPU_AREAS_MAX - 1) /* the area where jobs.c hashes */
#define GPUS_ALL_PIECES UINT64_MAX

struct gpu;
struct job;
struct opened;
struct sides;

/* ---- what many threads know ---------------------------------------------------------------- */

struct gpu_piece {
	uint32_t refs;           /* atomic; the last is dropped on a GPU's thread */
	struct gpu_space *space; /* borrows: for the home GPU's thread, until the space's end */
	uint64_t worker, number, base, bytes;
	struct cuda_handle handle;
	int fd; /* owns, or -1 */
	void (*close_fd)(int fd);
	bool poisoned; /* atomic: it ended the process too often */
	/* Guarded by the space's lock: whether it is known to open, or why it does not. */
	bool known;
	int code;
	char *text; /* owns */
	/* The home GPU's thread's. */
	bool queued; /* in opens.c's queue */
	uint32_t tries;
	TAILQ_ENTRY(gpu_piece) entry;
};

struct gpu_settle {
	struct gpu_settle *next;
	void (*settled)(void *arg, const struct th_err *result);
	void *arg;
	uint64_t upto; /* of the pieces up to this number */
	uint32_t left; /* ... so many are not known yet */
	struct th_err err;
};

struct gpu_space {
	struct gpus *gpus; /* borrow */
	struct gpu *home;
	uint64_t worker;      /* never used again */
	char *label;          /* owns */
	uint32_t refs;        /* atomic; after the last one it is the home GPU's thread's */
	uint32_t opened_on;   /* atomic mask: GPUs whose process may have had something of it */
	bool poisoned;        /* atomic: one of its pieces is */
	pthread_mutex_t lock; /* of all that follows */
	struct gpu_piece **pieces; /* owns references; by base */
	uint32_t count, room;
	uint64_t last_piece;
	struct gpu_settle *settles; /* owns */
};

enum gpu_order_kind {
	ORDER_OPEN = 1, /* piece: when there is time */
	ORDER_FORGET,   /* piece, at home: here and elsewhere */
	ORDER_SETTLED,  /* settle: tell it */
	ORDER_END,      /* space, at home: the last reference is gone */
	ORDER_LEAVE,    /* worker, number: from the home GPU */
};

struct gpu_order {
	struct gpu_order *next;
	enum gpu_order_kind kind;
	struct gpu_space *space;
	struct gpu_piece *piece;   /* owns a reference */
	struct gpu_settle *settle; /* owns */
	uint64_t worker, number;
	uint32_t mask;
};

/* ---- a GPU --------------------------------------------------------------------------------- */

TAILQ_HEAD(gpu_pieces, gpu_piece);
TAILQ_HEAD(opened_list, opened);
TAILQ_HEAD(job_list, job);

struct gpu_run_slot {
	uint64_t number; /* its low bits are the slot */
	struct job *job; /* NULL: free */
	int64_t said_ns;
	uint64_t bytes;
	bool counts_as_hash;
	enum gpu_run_op op;
	TAILQ_ENTRY(gpu_run_slot) entry;
};
TAILQ_HEAD(run_list, gpu_run_slot);

struct gpu_leaving { /* said, and not answered */
	struct gpu_leaving *next;
	uint64_t worker, piece;
	uint32_t count; /* of pieces */
	int64_t since_ns;
	bool said;
};

enum gpu_life {
	LIFE_NONE,
	LIFE_STARTING, /* until READY */
	LIFE_UP,
	LIFE_ENDING, /* nobody needs it: hung up on */
	LIFE_DYING,  /* killed */
};

struct gpu {
	struct gpus *gpus; /* borrows */
	uint32_t index;
	uint8_t uuid[16];
	int wake_fd; /* owns */
	pthread_t thread;
	uint32_t num_spaces, num_pieces; /* atomic: with this home */

	pthread_mutex_t lock; /* of what follows */
	struct gpu_request *requests, **requests_last;
	struct gpu_order *orders, **orders_last;
	bool stops;
	bool is_new;  /* it was another GPU before */
	bool is_free; /* nothing to do: it can be another GPU when no space has it */
	struct gpu_status shown;

	/* All that follows is the thread's. */
	struct gpu_status status;
	enum gpu_life life, died_in; /* what it was when it was killed */
	struct process process;
	int64_t life_ns;                /* when this began */
	int64_t idle_ns;                /* since when nobody needs the process; 0: somebody does */
	int64_t pause_ns;               /* nothing is said before */
	int64_t not_before_ns;          /* no start */
	uint32_t starts_failed, deaths; /* in a row */
	bool blocked;                   /* the process does not read */
	bool fails;                     /* what comes before not_before_ns is told so */
	char why[GPU_TEXT_BYTES];       /* it was killed; empty: it was not */

	/* opens.c */
	struct opened *opened; /* owns; uthash */
	struct opened_list opening;
	struct gpu_pieces to_open, suspect_pieces;
	struct gpu_leaving *leavings, **leavings_last;
	int64_t left_ns; /* the last one was answered */
	uint32_t num_opening, num_open;
	uint64_t open_bytes;

	/* jobs.c */
	struct job_list queue, suspects, active;
	uint32_t num_jobs;
	struct job *alone; /* a suspect that runs */
	bool piece_alone;  /* a piece that is opened likewise */
	struct gpu_run_slot slots[GPU_RUNS_MAX];
	uint8_t free_slots[GPU_RUNS_MAX];
	uint32_t num_free_slots;
	struct run_list runs; /* as they were said */
	uint64_t num_said;
	int64_t area_said_ns[GPU_AREAS_MAX]; /* 0: not; -1: and answered */
	uint32_t num_areas_owed;
	uint8_t *scratch; /* owns; NULL: not made yet */
	int scratch_fd;   /* owns */
	struct job *scratch_user;
	struct sides *sides; /* owns */
	_Alignas(8) uint8_t message[GPU_MESSAGE_BYTES_MAX];
};

struct gpus {
	struct gpus_config config;
	struct blocks *blocks;      /* owns */
	uint64_t last_worker;       /* atomic */
	pthread_mutex_t lock;       /* of what follows */
	struct gpu *gpus[GPUS_MAX]; /* own */
	uint32_t count;
};

/* gpu.c: its thread runs from now on. 0 or -errno. */
int gpu_new(struct gpus *gpus, const uint8_t uuid[16], uint32_t index, struct gpu **ret_gpu);
/* It is that GPU from now on. False: somebody needs it as what it is. Under the lock of gpus. */
bool gpu_reuse(struct gpu *gpu, const uint8_t uuid[16]);
/* Each of all of them, before the next for the first. */
void gpu_stop(struct gpu *gpu);
void gpu_join(struct gpu *gpu);
void gpu_drain(struct gpu *gpu); /* what came too late for its thread */
void gpu_free(struct gpu *gpu);
void gpu_order(struct gpu *gpu, const struct gpu_order *order); /* copies it */
void gpu_take_request(struct gpu *gpu, struct gpu_request *request);
void gpu_show(struct gpu *gpu, struct gpu_status *ret_status);
/* On its thread: the process has done what it cannot, or has not done what it owes. */
void gpu_kill(struct gpu *gpu, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* ... what process_say has returned: whether all goes on. */
bool gpu_said(struct gpu *gpu, int rc);
/* ... something went well. */
void gpu_goes(struct gpu *gpu);

/* space.c; the rest of it is in gpus.h. */
/* The piece that the address lies in, with a reference; NULL. */
struct gpu_piece *space_find(struct gpu_space *space, uint64_t address);
void piece_release(struct gpu_piece *piece); /* on a GPU's thread */
/* On the home GPU's thread, as all that follows. */
void space_known(struct gpu_piece *piece, int code, const char *text);
void space_end(struct gpu_space *space);
void settle_tell(struct gpu_settle *settle);

/* opens.c: on the GPU's thread. */
void opens_init(struct gpu *gpu);
void opens_end(struct gpu *gpu);
void opens_queue(struct gpu *gpu, struct gpu_piece *piece); /* takes the reference */
void opens_forget(struct gpu *gpu, struct gpu_piece *piece);
void opens_forget_space(struct gpu *gpu, struct gpu_space *space);
void opens_leave(struct gpu *gpu, uint64_t worker, uint64_t piece);
/* 0: it is open, or will be before what is said next. -EAGAIN: later; or why not, with text. */
int opens_need(struct gpu *gpu, struct gpu_space *space, struct gpu_piece *piece, char *text);
/* Why this process does not have it; NULL: it has, or nobody has asked. */
const char *opens_why(struct gpu *gpu, uint64_t worker, uint64_t piece);
/* False: nothing more can be said now. */
bool opens_say_leaving(struct gpu *gpu);
bool opens_say(struct gpu *gpu);
bool opens_say_suspect(struct gpu *gpu);
void opens_hear_opened(struct gpu *gpu, const struct gpu_opened *opened);
void opens_hear_left(struct gpu *gpu, const struct gpu_left *left);
void opens_died(struct gpu *gpu);
void opens_fail(struct gpu *gpu, const char *why); /* what is queued */
bool opens_any(const struct gpu *gpu);
bool opens_wait(const struct gpu *gpu); /* something is queued */
/* When the process has owed an answer for too long; INT64_MAX: it owes none. */
int64_t opens_deadline(const struct gpu *gpu);
int64_t opens_leave_deadline(const struct gpu *gpu); /* ... and with it for too long memory */

/* jobs.c: on the GPU's thread. */
void jobs_init(struct gpu *gpu);
void jobs_end(struct gpu *gpu);
void jobs_add(struct gpu *gpu, struct gpu_request *request);
void jobs_say(struct gpu *gpu); /* all that can be */
void jobs_hear_area(struct gpu *gpu, const struct gpu_area_is *area);
void jobs_hear_done(struct gpu *gpu, const struct gpu_done *done);
void jobs_died(struct gpu *gpu, const char *why);
void jobs_fail(struct gpu *gpu, const char *why);
int64_t jobs_deadline(const struct gpu *gpu);

/* cut.c: a side of a request as ranges of pieces. */
struct cut {
	const struct gpu_span *spans; /* borrows */
	uint32_t num_spans, span;
	uint64_t at; /* in the span */
};
struct cut_ranges {
	struct gpu_range ranges[GPU_RANGES_MAX];
	struct gpu_space *spaces[GPU_RANGES_MAX]; /* borrow */
	struct gpu_piece *pieces[GPU_RANGES_MAX]; /* own references */
	uint32_t count;
	uint64_t bytes;
};

/* The next ones, at most max and so many bytes. 0; or TH_E_STALE_MEMORY, with text (of
 * GPU_TEXT_BYTES): some of it is not shared. cut_drop either way. */
int cut_next(struct cut *cut, uint32_t max, uint64_t bytes, struct cut_ranges *ret, char *text);
void cut_drop(struct cut_ranges *ranges);

#endif
