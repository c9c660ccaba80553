/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_wire - what the agent and the process of one GPU say to each other, over a SOCK_SEQPACKET
 * pair.
 *
 * The same binary at both ends, started by the one for the other, so there are no versions. Still
 * neither believes the other: a worker's handle may break the GPU's process, and what is broken may
 * write anything. Each end copies a message once, checks every number against what it knows, and
 * ends the other for the first that does not fit.
 *
 *   agent  START    which GPU; one per life of the process
 *   gpu    READY    it has a context, or why it has none
 *   agent  AREA     one descriptor: host memory that bytes come from and go to; it is pinned. Or:
 *                   one of them is forgotten
 *   gpu    AREA_IS  pinned, or why not. Or: nothing of it is mapped or pinned any more
 *   agent  OPEN     a worker's piece (ipc/cuda/cuda_handle.h), and the descriptor of the kinds that
 *                   have one; or memory of the process's own, for NICs, which is no worker's
 *   gpu    OPENED   it is, or why not; of own memory with its dma-buf
 *   agent  LEAVE    a worker's pieces, or one of them: closed when nothing runs on them any more
 *   gpu    LEFT     they are
 *   agent  RUN      moves or hashes bytes, of one chunk or of several; many at a time
 *   gpu    DONE     the bytes are where they belong, for whoever looks next; in any order
 *
 * Messages are taken in the order in which they were sent; what a RUN needs was sent before it, and
 * need not be answered yet. OPENs and AREAs with a descriptor are answered in the order in
 * which they were sent, and OPENs before LEFT. The end of the socket is the end of the process, and
 * the other way round. When the process has been reaped, nothing of it touches memory any more, on
 * the GPU or on the host, and all its memory on the GPU is free: a socket may close a little before
 * the driver's own files.
 */
#ifndef TH_TRANSPORT_CUDA_GPU_WIRE_H
#define TH_TRANSPORT_CUDA_GPU_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/ctl.h"
#include "ipc/cuda/cuda_handle.h"

#define GPU_RANGES_MAX 512u /* of one side of a RUN */
/* A message costs microseconds at each end, in which a GPU copies megabytes. */
#define GPU_RUN_CHUNKS_MAX 16u
#define GPU_RUNS_MAX 256u   /* that the agent has sent and not had DONE for */
#define GPU_AREAS_MAX 8192u /* numbered below it: 2 TiB in slices of 256 MiB */
#define GPU_TEXT_BYTES 256u /* of a sentence, with its zero */
#define GPU_MESSAGE_BYTES_MAX (32u << 10)

enum gpu_message_kind {
	GPU_START = 1,
	GPU_READY,
	GPU_AREA,
	GPU_AREA_IS,
	GPU_OPEN,
	GPU_OPENED,
	GPU_LEAVE,
	GPU_LEFT,
	GPU_RUN,
	GPU_DONE,
};

struct gpu_start {
	uint32_t kind; /* enum gpu_message_kind, here and below the first field */
	uint32_t flags;
	uint8_t uuid[16];
};
enum gpu_start_flag {
	GPU_HASH_ON_CPU = 1u << 0, /* digests by the process's own CPU, of bytes that it reads */
};

struct gpu_ready {
	uint32_t kind;
	int32_t code;
	uint64_t context_bytes; /* of GPU memory that the context takes; 0: not known */
	uint32_t hashes_on_gpu; /* 1: there is a kernel for it, and it runs there; or 0 */
	uint32_t reserved;
	char name[64], pci[16];
	char text[GPU_TEXT_BYTES];        /* of code; else why it hashes on the CPU, or empty */
	char gather_text[GPU_TEXT_BYTES]; /* why small ranges are slower to copy, or empty */
};

struct gpu_area {
	uint32_t kind;
	uint32_t area;  /* below GPU_AREAS_MAX; of none that is there, or is not forgotten yet */
	uint64_t at;    /* in the descriptor's file */
	uint64_t bytes; /* 0: forget it, when no RUN uses it any more; no descriptor */
};

struct gpu_area_is {
	uint32_t kind, area;
	/* A failure to pin is none: it is slower, and text says so. What failed is mapped nowhere,
	 * keeps its number until it is forgotten, and each RUN that names it fails. */
	int32_t code;
	uint32_t pinned;
	char text[GPU_TEXT_BYTES];
};

struct gpu_open {
	uint32_t kind;
	uint32_t own;           /* 1: handle.bytes of new memory, all zeros; no descriptor */
	uint64_t worker, piece; /* the agent's numbers; again only for what could not be opened */
	struct cuda_handle handle;
};

struct gpu_opened {
	uint32_t kind;
	int32_t code; /* import_new; TH_E_LIMIT; -EIO: the driver failed, and the process ends */
	uint64_t worker, piece;
	char text[GPU_TEXT_BYTES];
};

struct gpu_leave {
	uint32_t kind, reserved;
	uint64_t worker, piece; /* piece UINT64_MAX: all of the worker's */
};

struct gpu_left {
	uint32_t kind;
	int32_t code; /* the driver would not close it: only the end of the process frees it */
	uint64_t worker, piece;
	char text[GPU_TEXT_BYTES];
};

enum gpu_run_op {
	GPU_READ = 1, /* GPU to area: the ranges one behind the other */
	GPU_WRITE,    /* area to GPU, likewise */
	GPU_COPY,     /* GPU to GPU: both sides have as many bytes, cut as they like */
	GPU_HASH,     /* GPU only */
};

struct gpu_range { /* of one opened piece */
	uint64_t worker, piece, at, bytes;
};

struct gpu_run { /* followed by num_to ranges and then num_from ranges */
	uint32_t kind;
	uint32_t op;
	uint64_t run; /* the agent's number; not that of one under way */
	uint64_t area_at;
	uint32_t area;
	uint32_t hashes;     /* 1: the digest of each chunk is wanted. HASH: always */
	uint32_t num_to;     /* WRITE, COPY; else 0 */
	uint32_t num_from;   /* READ, COPY, HASH; else 0 */
	uint32_t num_chunks; /* one behind the other on each side. READ, WRITE: 1 */
	uint32_t reserved;
	uint32_t chunk_bytes[GPU_RUN_CHUNKS_MAX]; /* at most CHUNK_BYTES_MAX each */
};
_Static_assert(sizeof(struct gpu_run) + 2 * GPU_RANGES_MAX * sizeof(struct gpu_range) >
		       GPU_MESSAGE_BYTES_MAX,
	"the bytes of a message are the narrower limit of a COPY");
_Static_assert(
	sizeof(struct gpu_run) + GPU_RANGES_MAX * sizeof(struct gpu_range) <= GPU_MESSAGE_BYTES_MAX,
	"one full side fits");

struct gpu_done {
	uint32_t kind;
	int32_t code; /* 0; TH_E_STALE_MEMORY: the piece is not open; TH_E_MEMORY_KIND: the area is
		       * not mapped; TH_E_PROTOCOL; -EIO: the driver failed: where nobody can tell
		       * what the GPU still does, the process ends behind this, and its end
		       * tells */
	uint64_t run;
	struct th_hash digests[GPU_RUN_CHUNKS_MAX]; /* of its chunks */
	char text[GPU_TEXT_BYTES]; /* of code; else why the CPU made them, or empty */
};

/* ---- a message ------------------------------------------------------------------------------ */

/*
 * With fd, which is only borrowed; -1: none. 0; -EAGAIN: later, when the socket takes something;
 * -ENOBUFS: later, and no event tells when; or another failure: the other end has gone.
 */
int wire_send(int sock, const void *message, size_t bytes, int fd);

struct wire_fd {   /* what came with a message */
	int fd;    /* the caller's, or -1: a stranger's, whose close may take for ever */
	bool lost; /* there was one, and this process had no room for it */
	bool more; /* there were several, and fd is the first */
};
/* Of how many bytes it was, of which room are here at most; 0: it was the last; -EAGAIN: none now.
 * A message of no bytes is no message, and the last; it may have a descriptor all the same. */
int wire_receive(int sock, void *message, size_t room, struct wire_fd *ret_fd);

#endif
