/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpus - the GPUs of this host, as the agent knows them: it has no CUDA itself.
 *
 * Each GPU that workers share memory of has a process of its own (gpu_wire.h), started when
 * something needs it, ended when nobody needs it for a while, and killed when it hangs: it can go
 * at any time. What ran in it then runs again in the next one, unseen but for the time; who asked
 * hears of a failure only when that fails too, or when the GPU is gone. Each has a thread here,
 * which alone speaks with the process.
 *
 * A *space* is one worker's memory on one GPU: pieces by the worker's own addresses. It keeps their
 * handles, so that they can be opened again; the last reference closes them, here and on the GPU,
 * and kills the process where the driver does not let go in time: the memory of a dead worker is
 * free when nobody reads it any more.
 *
 * *Own memory* is the agent's, on a GPU: a space with one piece that the GPU's process has made.
 * NICs reach it by its dma-buf. It is not made again: when the process ends it is lost.
 *
 * A *block* is a part of pinned host memory that all GPUs of the host reach. There are only so many
 * bytes of it (key gpu.staging): who gets none waits his turn. A *host memory* is any other memory
 * of the agent that GPUs read and write themselves, with no block between.
 *
 * Any thread, but for gpus_new and gpus_free.
 */
#ifndef TH_TRANSPORT_CUDA_AGENT_GPUS_H
#define TH_TRANSPORT_CUDA_AGENT_GPUS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/checked.h"
#include "ipc/base/ctl.h"
#include "ipc/base/err.h"
#include "transport/cuda/gpu_wire.h"

#define GPUS_MAX 16u
#define GPUS_BLOCK_BYTES (512u << 10) /* of a block: as of a ferry's (transport/loop/ferry.h) */

struct gpus;
struct gpu_space;

/* Of a descriptor that a stranger sent: to close it may take for ever. Calls closed(arg) when that
 * is done, unless it is NULL. Any thread, both. */
typedef void (*gpus_close_fd)(int fd, void (*closed)(void *arg), void *arg);

struct gpus_config {
	/* Starts the process of a GPU, with sock as its only business. 0 or -errno with a
	 * sentence; sock stays the caller's. On the GPU's thread. */
	int (*launch)(void *arg, int sock, pid_t *ret_pid, struct th_err *err);
	void *arg;
	gpus_close_fd close_fd; /* NULL: close() */
	uint64_t staging_bytes; /* of all blocks */
	/* A process that owes an answer for so long is killed: 10 s; three times that to start. */
	int64_t hang_ns;
	/* A process that keeps a worker's memory for so long is killed: 0.5 s. */
	int64_t leave_ns;
	/* The same for a worker that has gone, whatever else it does: 0.8 s; 0: no limit. */
	int64_t leave_end_ns;
	int64_t idle_ns; /* a process that nobody needs ends after it: 10 s */
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

/* Who is told that the agent does not keep the memory of a piece allocated any more. */
struct gpu_piece_user {
	void *arg;
	/* Once, on any thread, also after a failure of gpu_space_add: no process of a GPU has it
	 * open, because it closed it or is dead, and its descriptor is closed. */
	void (*gone)(void *arg);
};

/*
 * A piece that begins at base in the worker. Opens it in the background, so that a failure is known
 * early. fd: of the handle, or -1; taken, also after a failure. user may be NULL. 0, or
 * TH_E_INVALID: it overlaps another one of the space; TH_E_LIMIT.
 */
int gpu_space_add(struct gpu_space *space, const struct cuda_handle *handle, uint64_t base, int fd,
	const struct gpu_piece_user *user, struct th_err *err);
/* The piece that begins there. Nobody begins to use it any more: requests that have not begun fail.
 * Closed when none runs; a process that does not close it within leave_ns is killed. */
void gpu_space_forget(struct gpu_space *space, uint64_t base);
/* All of [address, address + bytes) is in pieces, one behind the other. */
bool gpu_space_has(struct gpu_space *space, uint64_t address, uint64_t bytes);
/* One of its pieces has ended the process each time that it was opened: none is opened any more. */
bool gpu_space_is_poisoned(const struct gpu_space *space);
/*
 * Calls settled(arg, err) once, on the GPU's thread, when every piece that was added before has
 * been opened, has failed or has been forgotten: err->code is 0 or the first failure,
 * TH_E_MEMORY_KIND with the reason; what had failed before is tried again. TH_E_STALE_MEMORY: the
 * last reference went meanwhile.
 */
void gpu_space_settle(struct gpu_space *space,
	void (*settled)(void *arg, const struct th_err *result), void *arg);

/* ---- the agent's own memory ----------------------------------------------------------------- */

/*
 * So many zeros, at the addresses from 0 on: whole pages of the GPU's (2 MiB). gpu_space_settle
 * tells when it is there, or why it is not; no request before. What a NIC has been given by the
 * dma-buf stays allocated until that lets go of it, even when it is lost. NULL: TH_E_LIMIT.
 */
struct gpu_space *gpu_space_new_own(struct gpus *gpus, const uint8_t uuid[16], uint64_t bytes,
	const char *label, struct th_err *err);
/* Once, when it is there: the caller's, to be closed that way. */
int gpu_space_take_dmabuf(struct gpu_space *space, gpus_close_fd *ret_close_fd);
/* Its process has ended, or nobody has its dma-buf: all requests for it fail. */
bool gpu_space_is_lost(struct gpu_space *space);

/* ---- work ---------------------------------------------------------------------------------- */

struct gpu_span {
	struct gpu_space *space; /* borrows, until done */
	uint64_t address, bytes; /* the worker's; may run over pieces that follow each other */
};

struct gpu_chunk {
	uint32_t bytes;
	struct th_hash digest; /* when done: as gpu_request.digest */
};

struct gpu_request {
	struct gpu_request *next; /* the GPU's */
	enum gpu_run_op op;
	/* WRITE, COPY: where to; READ, COPY, HASH: where from. Borrowed, until done. All of one
	 * side is on one GPU. A COPY is done by the GPU that it goes to. */
	const struct gpu_span *to, *from;
	uint32_t num_to, num_from;
	uint8_t *data; /* READ, WRITE: in a block, or in host, which the request then keeps */
	struct gpus_host *host;
	/* Of a side. READ, WRITE: at most CHUNK_BYTES_MAX, in a block: what is left of it. */
	uint32_t bytes;
	bool hashes; /* READ, WRITE, COPY: digest is wanted, as of one whole chunk */
	/* What the bytes are, one behind the other; at most CHUNK_BYTES_MAX each. COPY, HASH: up to
	 * GPU_RUN_CHUNKS_MAX, READ, WRITE: one. Borrowed, until done. NULL: one, and its digest is
	 * in `digest`. */
	struct gpu_chunk *chunks;
	uint32_t num_chunks;
	void (*done)(struct gpu_request *request); /* on the GPU's thread: it must not wait */
	uint32_t tries;                            /* the GPU's */
	/* When done. */
	/* 0; TH_E_STALE_MEMORY: the memory is not reached any more; TH_E_MEMORY_KIND: the agent has
	 * no way to it, because the GPU's process, or memory to hash in, cannot be had, or that
	 * process does not map the host memory; or a COPY between GPUs of which this one does not
	 * reach the other: go through the host. */
	int code;
	bool unmapped; /* code is for that the process does not map the host memory */
	struct th_hash digest;
	char text[GPU_TEXT_BYTES]; /* why */
};

/*
 * Of any number of spans: cut into as many messages as it takes, where it can between chunks. Never
 * fails at once.
 */
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
/* For status: the CPU copied so many bytes into one or out of one. */
void gpus_block_copied(struct gpus *gpus, uint64_t bytes);

/* ---- host memory --------------------------------------------------------------------------- */

struct gpus_host_memory {
	int fd;               /* of a file that cannot shrink; borrowed until gone */
	uint8_t *data;        /* where all of it is mapped; likewise */
	uint64_t bytes;       /* whole pages */
	uint64_t slice_bytes; /* 0: 256 MiB */
	/* Nobody names it, and no process has any of it. Any thread, also within the call that
	 * gives the last reference back. */
	void (*gone)(void *arg);
	void *arg;
};

/*
 * A GPU's process gets to know of it when a request names bytes of it, and then has them mapped and
 * pinned in slices, each with one call of the driver: that of all of a large memory would take as
 * long as a process that hangs. A slice that it cannot map fails the requests that name it; for the
 * next one it is tried again.
 */
struct gpus_host *gpus_host_new(struct gpus *gpus, const struct gpus_host_memory *memory);
/* Whoever made it names it no more; before gpus_free. A process that does not forget a slice of it
 * in hang_ns is killed. NULL: nothing. */
void gpus_host_release(struct gpus_host *host);

/* ---- status -------------------------------------------------------------------------------- */

struct gpu_status {
	uint8_t uuid[16];
	char name[64], pci[16];
	pid_t pid;               /* 0: no process now */
	uint64_t context_bytes;  /* of GPU memory, by the agent; 0: none, or not known */
	uint32_t spaces, pieces; /* that workers share */
	uint32_t imports;        /* that are open */
	uint64_t import_bytes;
	uint64_t own_bytes;     /* of the agent's own memory on the GPU */
	uint64_t pinned_bytes;  /* of the agent's memory, by the process */
	uint32_t running;       /* requests */
	uint64_t starts, kills; /* of its process: kills by the agent, because it hung */
	uint64_t ends;          /* of its process: those that nobody asked for */
	uint64_t bytes_read, bytes_written, bytes_copied, bytes_hashed;
	bool hashes_on_gpu;
	char hashes_why[GPU_TEXT_BYTES]; /* the CPU makes some of them, or all; else empty */
	char text[GPU_TEXT_BYTES];       /* the last failure of the process; empty: none */
};
/* Returns how many there are. */
uint32_t gpus_status(struct gpus *gpus, struct gpu_status *ret_status, uint32_t count);

struct gpus_stage_status {
	/* bytes: of the blocks that have been in use; a process pins slices of them
	 * (gpu_status.pinned_bytes). */
	uint64_t budget_bytes, bytes, bytes_in_use;
	/* Since the start: for a block; by the CPU, as a transfer had its bytes elsewhere. */
	uint64_t waits, bytes_copied;
};
void gpus_stage_status(struct gpus *gpus, struct gpus_stage_status *ret_status);

#endif
