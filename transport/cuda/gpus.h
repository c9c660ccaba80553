/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpus - the GPUs of this host, as the agent knows them: it has no CUDA itself.
 *
 * Each GPU that workers share memory of has a process of its own (wire.h), started when something
 * needs it, ended when nobody needs it for a while, and killed when it hangs: it can go at any
 * time. What ran in it then runs again in the next one, unseen but for the time; who asked hears of
 * a failure only when that fails too, or when the GPU is gone. Each has a thread here, which alone
 * speaks with the process.
 *
 * A *space* is one worker's memory on one GPU: pieces by the worker's own addresses. It keeps their
 * handles, so that they can be opened again; the last reference closes them, here and on the GPU,
 * and kills the process where the driver does not let go in time: the memory of a dead worker is
 * free when nobody reads it any more.
 *
 * A *block* is a part of pinned host memory that all GPUs of the host reach. There are only so many
 * bytes of it (key gpu.staging): who gets none waits his turn.
 *
 * Any thread, but for gpus_new and gpus_free.
 */
#ifndef TH_TRANSPORT_CUDA_GPUS_H
#define TH_TRANSPORT_CUDA_GPUS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/checked.h"
#include "ipc/base/ctl.h"
#include "ipc/base/err.h"
#include "transport/cuda/wire.h"

#define GPUS_MAX 16u
#define GPUS_BLOCK_BYTES (512u << 10) /* of a block: as of a ferry's (transport/ferry.h) */

struct gpus;
struct gpu_space;

struct gpus_config {
	/* Starts the process of a GPU, with sock as its only business. 0 or -errno with a
	 * sentence; sock stays the caller's. On the GPU's thread. */
	int (*launch)(void *arg, int sock, pid_t *ret_pid, struct th_err *err);
	void *arg;
	/* Of a handle, which a stranger sent: to close it may take for ever. Any thread. NULL:
	 * close(). */
	void (*close_fd)(int fd);
	uint64_t staging_bytes; /* of all blocks */
	/* A process that owes an answer for so long is killed: 10 s; three times that to start. */
	int64_t hang_ns;
	int64_t leave_ns; /* ... and one that does not let go of memory: 0.5 s */
	int64_t idle_ns;  /* a process that nobody needs ends after it: 10 s */
	bool hash_on_cpu;
};

int gpus_new(const struct gpus_config *config, struct th_err *err, struct gpus **ret_gpus);
/*
 * Ends all processes. Requests that are under way then fail, and their spaces and blocks are given
 * back in `done`; whoever waits to be told is told. After all others. NULL: nothing.
 */
void gpus_free(struct gpus *gpus);

/* ---- a worker's memory --------------------------------------------------------------------- */

/* label: for sentences and status, "model/replica/shard". NULL: TH_E_LIMIT, over GPUS_MAX GPUs. */
struct gpu_space *gpu_space_new(
	struct gpus *gpus, const uint8_t uuid[16], const char *label, struct th_err *err);
struct gpu_space *gpu_space_retain(struct gpu_space *space);
void gpu_space_release(struct gpu_space *space); /* NULL: nothing */
const uint8_t *gpu_space_uuid(const struct gpu_space *space);
/* What wakes the GPU's thread: a thread with descriptors of its own keeps it (crew.h). */
int gpu_space_wake_fd(const struct gpu_space *space);

/*
 * A piece that begins at base in the worker. Opens it in the background, so that a failure is known
 * early. fd: of the handle, or -1; taken, also after a failure. 0 and the piece's number, or
 * TH_E_INVALID: it overlaps another one of the space; TH_E_LIMIT.
 */
int gpu_space_add(struct gpu_space *space, const struct cuda_handle *handle, uint64_t base, int fd,
	struct th_err *err, uint64_t *ret_piece);
/* Nobody begins to use it any more: requests that have not begun fail. */
void gpu_space_forget(struct gpu_space *space, uint64_t piece);
/* All of [address, address + bytes) is in pieces, one behind the other. */
bool gpu_space_has(struct gpu_space *space, uint64_t address, uint64_t bytes);
/*
 * Calls settled(arg, err) once, on the GPU's thread, when every piece that was added before has
 * been opened or has failed: err->code is 0 or the first failure, TH_E_MEMORY_KIND with the reason;
 * what had failed before is tried again. TH_E_STALE_MEMORY: the last reference went meanwhile.
 */
void gpu_space_settle(struct gpu_space *space,
	void (*settled)(void *arg, const struct th_err *result), void *arg);

/* ---- work ---------------------------------------------------------------------------------- */

struct gpu_span {
	struct gpu_space *space; /* borrows, until done */
	uint64_t address, bytes; /* the worker's; may run over pieces that follow each other */
};

struct gpu_request {
	struct gpu_request *next; /* the GPU's */
	enum gpu_run_op op;
	/* WRITE, COPY: where to; READ, COPY, HASH: where from. Borrowed, until done. All of one
	 * side is on one GPU. A COPY is done by the GPU that it goes to. */
	const struct gpu_span *to, *from;
	uint32_t num_to, num_from;
	uint8_t *data;  /* READ, WRITE: in a block */
	uint32_t bytes; /* of a side; at most CHUNK_BYTES_MAX, READ and WRITE: GPUS_BLOCK_BYTES */
	bool hashes;    /* READ, WRITE, COPY: digest is wanted, as of one whole chunk */
	void (*done)(struct gpu_request *request); /* on the GPU's thread: it must not wait */
	uint32_t tries;                            /* the GPU's */
	/* When done. */
	/* 0; TH_E_STALE_MEMORY: the memory or its GPU is not reached any more; TH_E_MEMORY_KIND: a
	 * COPY between GPUs of which this one does not reach the other: go through the host. */
	int code;
	struct th_hash digest;
	char text[GPU_TEXT_BYTES]; /* why */
};

/* Of any number of spans: cut into as many messages as it takes. Never fails at once. */
void gpu_submit(struct gpu_request *request);

/* ---- blocks -------------------------------------------------------------------------------- */

struct gpus_waiter {
	struct gpus_waiter *next; /* the stage's */
	/* A block for who waits; from any thread, with a lock held: no call back in here. */
	void (*granted)(struct gpus_waiter *waiter, uint8_t *data);
};

/*
 * One that is free now; NULL: waiter is called later, in the order of asking. Who waits gives it
 * back as soon as a GPU has done its work with it, whatever peers and workers do. With no waiter it
 * may be kept, so the last quarter is not given out that way: who waits always gets one in the end.
 */
uint8_t *gpus_block_take(struct gpus *gpus, struct gpus_waiter *waiter);
/* Does not want any more. False: it was granted already. */
bool gpus_block_cancel(struct gpus *gpus, struct gpus_waiter *waiter);
void gpus_block_give(struct gpus *gpus, uint8_t *data); /* NULL: nothing */

/* ---- status -------------------------------------------------------------------------------- */

struct gpu_status {
	uint8_t uuid[16];
	char name[64], pci[16];
	pid_t pid;               /* 0: no process now */
	uint64_t context_bytes;  /* of GPU memory, by the agent; 0: none, or not known */
	uint32_t spaces, pieces; /* that workers share */
	uint32_t imports;        /* that are open */
	uint64_t import_bytes;
	uint32_t running;       /* requests */
	uint64_t starts, kills; /* of its process: kills by the agent, because it hung */
	uint64_t ends;          /* ... and those that nobody asked for */
	uint64_t bytes_read, bytes_written, bytes_copied, bytes_hashed;
	bool hashes_on_gpu;
	char text[GPU_TEXT_BYTES]; /* the last failure of the process; empty: none */
};
/* Returns how many there are. */
uint32_t gpus_status(struct gpus *gpus, struct gpu_status *ret_status, uint32_t count);

struct gpus_stage_status {
	uint64_t budget_bytes, bytes, bytes_in_use;
	uint64_t waits; /* for a block, since the start */
};
void gpus_stage_status(struct gpus *gpus, struct gpus_stage_status *ret_status);

#endif
