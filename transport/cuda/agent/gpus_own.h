/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpus_own - the inside of gpus.h.
 *
 *   any thread           requests, orders  ->  the GPU's inbox, and its wake_fd
 *   the GPU's thread     gpu_thread.c: speaks with the process, watches the clock; gpu_inbox.c
 *                        gpu_opens.c: which pieces this life of the process has, and is to have
 *                        gpu_pins.c: which host memory it has pinned
 *                        gpu_jobs.c: requests on their way, run by run (request_cut.c)
 *
 * A life of the process ends at any time. Then all that was under way is *suspect*: it is done
 * again, one after the other with nothing beside it, so that what ends the process each time is
 * known after GPUS_TRIES and given up, and all else goes on.
 *
 * Locks: a space's, then an inbox's, then nothing; no lock while a caller is told, but of a block
 * (gpus.h).
 */
#ifndef TH_TRANSPORT_CUDA_AGENT_GPUS_OWN_H
#define TH_TRANSPORT_CUDA_AGENT_GPUS_OWN_H

#include <pthread.h>
#include <sys/queue.h>

#include "transport/cuda/agent/gpu_blocks.h"
#include "transport/cuda/agent/gpu_process.h"
#include "transport/cuda/agent/gpus.h"

#define GPUS_TRIES 3u      /* of what ended the process */
#define GPUS_OPENS_MAX 64u /* under way: descriptors on their way are counted by the kernel */
#define GPUS_ALL_PIECES UINT64_MAX

struct gpu;
struct gpu_card;
struct job;
struct opened;
struct pin;
struct sides;

/* ---- what many threads know ---------------------------------------------------------------- */

struct gpu_piece {
	/* Atomic; each process that has it open counts. The last is dropped on a GPU's thread, or
	 * by who could not add it. */
	uint32_t refs;
	struct gpu_space *space; /* borrows: for the home GPU's thread, until the space's end */
	uint64_t worker, number, base, bytes;
	struct cuda_handle handle;
	int fd; /* owns, or -1 */
	gpus_close_fd close_fd;
	struct gpu_piece_user user;
	bool own;      /* no worker's: the process made it; fd: of its dma-buf, until it is taken */
	bool lost;     /* atomic: ... and has ended */
	bool poisoned; /* atomic: it ended the process too often */
	/* Guarded by the space's lock: whether it is known to open, or why it does not. */
	bool known;
	int code;
	char *text;     /* owns */
	uint64_t asked; /* the number of the settle that had it tried again; 0: none */
	/* The home GPU's thread's. */
	bool queued; /* in gpu_opens.c's queue */
	uint32_t tries;
	TAILQ_ENTRY(gpu_piece) entry;
};

struct gpu_settle {
	struct gpu_settle *next;
	void (*settled)(void *arg, const struct th_err *result);
	void *arg;
	uint64_t number;
	uint64_t upto; /* of the pieces up to this number */
	uint32_t left; /* pieces that are not known yet */
	struct th_err err;
};

/* A GPU as spaces know it, also when its place is another one's by now. */
struct gpu_card {
	uint8_t uuid[16];
	uint32_t refs;            /* atomic: spaces, and one of its place */
	uint32_t num_spaces;      /* atomic: of workers */
	uint32_t num_pieces;      /* atomic: of those */
	uint32_t num_own;         /* atomic: pieces of own memory */
	bool is_none;             /* atomic: a worker named it, and it has no place any more */
	char why[GPU_TEXT_BYTES]; /* why it has none; it stays from then on */
};

struct gpu_space {
	struct gpus *gpus; /* borrow */
	struct gpu *home;
	struct gpu_card *card; /* owns a reference */
	uint64_t worker;       /* never used again */
	char *label;           /* owns */
	bool own;              /* no worker's: it has one piece, of the process's own memory */
	uint32_t refs;         /* atomic; after the last one it is the home GPU's thread's */
	uint32_t opened_on;    /* atomic mask: GPUs whose process may have had something of it */
	bool poisoned;         /* atomic: one of its pieces is */
	pthread_mutex_t lock;  /* of all that follows */
	struct gpu_piece **pieces; /* owns references; by base */
	uint32_t count, room;
	uint64_t last_piece, last_settle;
	struct gpu_settle *settles; /* owns */
};

enum gpu_order_kind {
	ORDER_OPEN = 1,    /* piece: when there is time */
	ORDER_FORGET,      /* piece, at home: here and elsewhere */
	ORDER_SETTLED,     /* settle: tell it */
	ORDER_END,         /* space, at home: the last reference is gone */
	ORDER_LEAVE,       /* worker, number: from the home GPU */
	ORDER_HOST_LEAVES, /* host: nobody names it any more */
};

struct gpu_order {
	struct gpu_order *next;
	enum gpu_order_kind kind;
	struct gpu_space *space;
	struct gpus_host *host;
	struct gpu_piece *piece;   /* owns a reference */
	struct gpu_settle *settle; /* owns */
	uint64_t worker, number;
	uint32_t mask;
};

/* Guarded by nothing: what is of a GPU is its thread's. */
struct gpus_host {
	struct gpus *gpus; /* borrows; NULL: one of this folder's own, which is only freed */
	int fd;            /* borrows, as data */
	uint8_t *data;
	uint64_t bytes, slice_bytes;
	uint32_t num_slices;
	uint32_t refs; /* atomic: who made it, and requests */
	uint32_t told; /* atomic mask: GPUs whose process may have had some of it */
	uint32_t left; /* atomic, when refs is 0: GPUs that have not forgotten it */
	void (*gone)(void *arg);
	void *arg;
	uint16_t *areas[GPUS_MAX];   /* own; of each slice: its area and 1; 0: it is none */
	uint32_t num_pins[GPUS_MAX]; /* slices that are one */
	bool leaves[GPUS_MAX];       /* when there are none any more, it is forgotten */
};

/* ---- a GPU --------------------------------------------------------------------------------- */

TAILQ_HEAD(gpu_pieces, gpu_piece);
TAILQ_HEAD(opened_list, opened);
TAILQ_HEAD(job_list, job);
TAILQ_HEAD(pin_list, pin);

struct gpu_run_slot {
	uint64_t number; /* its low bits are the slot */
	struct job *job; /* NULL: free */
	int64_t said_ns;
	int64_t since_ns; /* said_ns, or when the last thing was open that it waited for */
	uint64_t bytes;
	uint32_t chunk, num_digests; /* of the job's chunks from that one on; 0: it makes none */
	bool counts_as_hash;
	enum gpu_run_op op;
	TAILQ_ENTRY(gpu_run_slot) entry;
};
TAILQ_HEAD(run_list, gpu_run_slot);

struct gpu_leaving { /* to be said, or not answered */
	struct gpu_leaving *next;
	uint64_t worker, piece;
	uint32_t count; /* of pieces */
	int64_t queued_ns;
	int64_t since_ns; /* queued_ns, or when the last thing was open that was said before */
	bool said;
	bool of_worker; /* all that a worker has: not memory of the agent's own */
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
	int wake_fd; /* owns */
	pthread_t thread;

	pthread_mutex_t lock;  /* of what follows */
	struct gpu_card *card; /* owns a reference; another one only while it is free */
	struct gpu_request *requests, **requests_last;
	struct gpu_order *orders, **orders_last;
	bool stops;
	bool is_new;  /* it was another GPU before */
	bool is_free; /* nothing to do: it can be another GPU when no space has it */
	bool is_none; /* there is no such GPU: it can be another one although spaces have it */
	struct gpu_status shown;

	/* All that follows is the thread's. */
	struct gpu_status status;
	enum gpu_life life, died_in; /* what it was when it was killed */
	struct process process;
	int64_t life_ns;                /* when this began */
	int64_t idle_ns;                /* since when nobody needs the process; 0: somebody does */
	int64_t pause_ns;               /* nothing is said before; 0: something may be */
	int64_t refused_ns;             /* since when the kernel takes none of it; 0: it does */
	int64_t not_before_ns;          /* no start */
	int64_t stop_ns;                /* since when the agent ends; 0: it does not */
	uint32_t starts_failed, deaths; /* in a row */
	int64_t opened_ns;              /* a piece or area was opened last, or has failed */
	int64_t blocked_ns;             /* since when the process does not read; 0: it does */
	char gathers_why[GPU_TEXT_BYTES]; /* small ranges are slower to copy; else empty */
	bool none;                        /* its last start has shown that there is no such GPU */
	bool fails;                       /* what comes before not_before_ns is told so */
	char why[GPU_TEXT_BYTES];         /* it was killed; empty: it was not */

	/* gpu_opens.c */
	struct opened *opened; /* owns; uthash */
	struct opened_list opening;
	struct gpu_pieces to_open, suspect_pieces;
	struct gpu_leaving *leavings, **leavings_last;
	int64_t left_ns;        /* the first one was answered */
	int64_t worker_gone_ns; /* the first one of a whole worker was queued; 0: there is none */
	uint32_t num_opening, num_open;
	uint64_t open_bytes;
	uint32_t num_open_own; /* of those */
	uint64_t open_own_bytes;

	/* gpu_pins.c */
	struct pin *pins;  /* owns: by the area's number */
	uint32_t num_pins; /* that were ever used: the first ones */
	struct pin_list opening_pins, open_pins, closing_pins, free_pins; /* open: by last use */
	int64_t pin_closed_ns;                                            /* the last answer */
	uint64_t pinned_bytes;
	bool says_unpinned; /* that some are not; once in a life */

	/* gpu_jobs.c */
	struct job_list queue, suspects, active;
	uint32_t num_jobs;
	struct job *alone; /* a suspect that runs */
	bool piece_alone;  /* a piece that is opened likewise */
	struct gpu_run_slot slots[GPU_RUNS_MAX];
	uint8_t free_slots[GPU_RUNS_MAX];
	uint32_t num_free_slots;
	struct run_list runs; /* as they were said */
	uint64_t num_said;
	uint8_t *scratch;               /* owns; NULL: not made yet */
	int scratch_fd;                 /* owns */
	struct gpus_host *scratch_host; /* owns */
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

/* gpu_thread.c: its thread runs from now on. 0 or -errno. */
int gpu_new(struct gpus *gpus, const uint8_t uuid[16], uint32_t index, struct gpu **ret_gpu);
/* It is that GPU from now on. False: somebody needs it as what it is, but for spaces of a GPU that
 * does not exist, if takes_none. Under the lock of gpus. */
bool gpu_reuse(struct gpu *gpu, const uint8_t uuid[16], bool takes_none);
/* Each of all of them, before the next for the first. */
void gpu_stop(struct gpu *gpu);
void gpu_drain(struct gpu *gpu); /* what came too late for its thread */
void gpu_free(struct gpu *gpu);
void gpu_show(struct gpu *gpu, struct gpu_status *ret_status);
/* On its thread: the process has done what it cannot, or has not done what it owes. */
void gpu_kill(struct gpu *gpu, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* On its thread: takes what process_say has returned. Whether all goes on. */
bool gpu_said(struct gpu *gpu, int rc);
/* On its thread: something went well. */
void gpu_goes(struct gpu *gpu);
/* On its thread: the CPU has made digests that the GPU could have made, and why. */
void gpu_hashed_by_cpu(struct gpu *gpu, const char *why);

/* gpu_inbox.c: any thread, but for the last one. */
void gpu_wake(struct gpu *gpu);
void gpu_order(struct gpu *gpu, const struct gpu_order *order); /* copies it */
void gpu_take_request(struct gpu *gpu, struct gpu_request *request);
bool inbox_take(struct gpu *gpu); /* on its thread, which is to end when it is true */

/* gpu_space.c; the rest of it is in gpus.h. */
struct gpu_card *card_new(const uint8_t uuid[16]); /* with one reference */
void card_release(struct gpu_card *card);
/* There is no such GPU, nor a process for it. True: why. */
bool space_is_nowhere(const struct gpu_space *space, char *text);
/* The piece that the address lies in, with a reference; NULL. */
struct gpu_piece *space_find(struct gpu_space *space, uint64_t address);
/* It has not been forgotten by now. */
bool space_keeps(struct gpu_space *space, const struct gpu_piece *piece);
void piece_release(struct gpu_piece *piece); /* on a GPU's thread, or it was not added */
/* On the home GPU's thread, as all that follows. */
void space_known(struct gpu_piece *piece, int code, const char *text);
void space_end(struct gpu_space *space);
void settle_tell(struct gpu_settle *settle);

/* gpu_opens.c: on the GPU's thread. */
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
/* Takes the descriptor. */
void opens_hear_opened(
	struct gpu *gpu, const struct gpu_opened *opened, const struct wire_fd *with);
void opens_hear_left(struct gpu *gpu, const struct gpu_left *left);
/* A piece or an area that was said then has been opened, or not. False: it is not its turn, so that
 * another one may never have it; the process is killed. */
bool opens_hear_turn(struct gpu *gpu, int64_t said_ns);
void opens_died(struct gpu *gpu);
void opens_fail(struct gpu *gpu, const char *why); /* what is queued */
bool opens_any(const struct gpu *gpu);
bool opens_wait(const struct gpu *gpu); /* something is queued */
/* When the process has owed an answer for too long; INT64_MAX: it owes none. */
int64_t opens_deadline(const struct gpu *gpu);
/* When it has kept memory of a worker for too long; INT64_MAX: it keeps none. */
int64_t opens_leave_deadline(const struct gpu *gpu);

/* gpu_hosts.c; the rest of it is in gpus.h. */
struct gpus_host *host_make(int fd, uint8_t *data, uint64_t bytes, uint64_t slice_bytes);
void host_free(struct gpus_host *host); /* no process has any of it; NULL: nothing */
void host_retain(struct gpus_host *host);
void host_left(struct gpus_host *host); /* one more GPU has forgotten it */

/* gpu_pins.c: on the GPU's thread, but for pins_room. */
void pins_init(struct gpu *gpu);
void pins_end(struct gpu *gpu);
/* The process knows the bytes, or will before what is said next: 0 and where. -EAGAIN: later. */
int pins_need(struct gpu *gpu, struct gpus_host *host, uint64_t at, struct gpu_run *ret_run);
uint64_t pins_room(const struct gpus_host *host, uint64_t at); /* to the end of the slice */
void pins_forget(struct gpu *gpu, struct gpus_host *host);
bool pins_say(struct gpu *gpu); /* false: nothing more can be said now */
void pins_hear(struct gpu *gpu, const struct gpu_area_is *area);
void pins_died(struct gpu *gpu);
int64_t pins_opening_ns(const struct gpu *gpu); /* the first one was said; INT64_MAX: none */
/* It is the agent's own: to unpin it may take as long as anything, and no worker waits for it. */
int64_t pins_deadline(const struct gpu *gpu);

/* gpu_jobs.c: on the GPU's thread. */
void jobs_init(struct gpu *gpu);
void jobs_end(struct gpu *gpu);
void jobs_add(struct gpu *gpu, struct gpu_request *request);
void jobs_say(struct gpu *gpu); /* all that can be */
void jobs_hear_done(struct gpu *gpu, const struct gpu_done *done);
void jobs_hear_turn(struct gpu *gpu, int64_t said_ns); /* opens_hear_turn, of what waits for it */
void jobs_died(struct gpu *gpu, const char *why);
void jobs_fail(struct gpu *gpu, const char *why);   /* nothing of them is under way */
void jobs_refuse(struct gpu *gpu, const char *why); /* those that have more to say */
int64_t jobs_deadline(const struct gpu *gpu);

/* request_cut.c: the sides of a request as ranges of pieces, as many as one message takes. */
struct cut {                          /* a place in one side */
	const struct gpu_span *spans; /* borrows */
	uint32_t num_spans, span;     /* 0: there is no such side */
	uint64_t at;                  /* in the span */
};
struct cut_ranges {
	struct cut cut; /* behind them */
	struct gpu_range ranges[GPU_RANGES_MAX];
	struct gpu_space *spaces[GPU_RANGES_MAX]; /* borrow */
	struct gpu_piece *pieces[GPU_RANGES_MAX]; /* own references */
	uint32_t count;
	uint64_t bytes;
};
struct sides {
	struct cut_ranges to, from;
	uint64_t bytes; /* of each side that is there */
};

void cut_skip(struct cut *cut, uint64_t bytes);
/* Nothing yet, from there on. */
void sides_begin(struct sides *sides, const struct cut *to, const struct cut *from);
/*
 * So many more bytes; as many of them as there is room for, where sides->bytes tells so, and then
 * that was the last time. 0; or TH_E_STALE_MEMORY, with text (of GPU_TEXT_BYTES): some of it is not
 * shared. sides_drop either way.
 */
int sides_add(struct sides *sides, uint64_t bytes, char *text);
/* No more than so many bytes. */
void sides_cut_back(struct sides *sides, uint64_t bytes);
void sides_drop(struct sides *sides);

#endif
