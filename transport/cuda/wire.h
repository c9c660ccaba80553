/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire - what the agent and the process of one GPU say to each other, over a SOCK_SEQPACKET pair.
 *
 * The same binary at both ends, started by the one for the other, so there are no versions. Still
 * neither believes the other: a worker's handle may break the GPU's process, and what is broken may
 * write anything. Each end copies a message once, checks every number against what it knows, and
 * ends the other for the first that does not fit.
 *
 *   agent  START    which GPU; one per life of the process
 *   gpu    READY    it has a context, or why it has none
 *   agent  AREA     one descriptor: host memory that bytes come from and go to; it is pinned
 *   gpu    AREA_IS  pinned, or why not
 *   agent  OPEN     a worker's piece (ipc/cuda/handle.h), with the descriptor of the kinds that
 *                   have one
 *   gpu    OPENED   it is, or why not
 *   agent  LEAVE    a worker's pieces, or one of them: closed when nothing runs on them any more
 *   gpu    LEFT     they are
 *   agent  RUN      moves or hashes bytes; many at a time
 *   gpu    DONE     the bytes are where they belong, for whoever looks next; in any order
 *
 * Messages are taken in the order in which they were sent; what a RUN needs was sent before it, and
 * need not be answered yet. OPENs are answered in their order, and before LEFT. The end of the
 * socket is the end of the process, and the other way round. When the process has been reaped,
 * nothing of it touches memory any more, on the GPU or on the host, and all its memory on the GPU
 * is free: a socket may close a little before the driver's own files.
 */
#ifndef TH_TRANSPORT_CUDA_WIRE_H
#define TH_TRANSPORT_CUDA_WIRE_H

#include <stdint.h>

#include "ipc/base/ctl.h"
#include "ipc/cuda/handle.h"

#define GPU_RANGES_MAX 512u /* of one side of a RUN */
#define GPU_RUNS_MAX 256u   /* that the agent has sent and not had DONE for */
#define GPU_AREAS_MAX 256u  /* numbered below it */
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
	uint64_t total_bytes;   /* of the GPU */
	uint32_t hashes_on_gpu; /* 1: there is a kernel for it, and it runs there */
	int32_t driver_version; /* 13000 is CUDA 13.0 */
	char name[64], pci[16];
	char text[GPU_TEXT_BYTES]; /* of code; else why it hashes on the CPU, or empty */
};

struct gpu_area {
	uint32_t kind;
	uint32_t area; /* below GPU_AREAS_MAX; of one that is there: forgotten and unpinned first */
	uint64_t bytes; /* from the start of the descriptor; 0: only forget it, no descriptor */
};

struct gpu_area_is {
	uint32_t kind, area;
	int32_t code; /* a failure to pin is none: it is slower, and text says so */
	uint32_t pinned;
	char text[GPU_TEXT_BYTES];
};

struct gpu_open {
	uint32_t kind, reserved;
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
	uint64_t imports; /* that are open now, of all workers */
	uint64_t bytes;   /* ... and what they span */
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
	uint32_t area;
	uint32_t hashes; /* 1: the digest of the bytes, as of one chunk, is wanted. HASH: always */
	uint64_t area_at;
	uint64_t bytes;    /* of each side; at most CHUNK_BYTES_MAX */
	uint32_t num_to;   /* WRITE, COPY; else 0 */
	uint32_t num_from; /* READ, COPY, HASH; else 0 */
};
_Static_assert(sizeof(struct gpu_run) + 2 * GPU_RANGES_MAX * sizeof(struct gpu_range) >
		       GPU_MESSAGE_BYTES_MAX,
	"the bytes of a message are the narrower limit of a COPY");
_Static_assert(
	sizeof(struct gpu_run) + GPU_RANGES_MAX * sizeof(struct gpu_range) <= GPU_MESSAGE_BYTES_MAX,
	"one full side fits");

struct gpu_done {
	uint32_t kind;
	int32_t code; /* 0; TH_E_STALE_MEMORY: the piece is not open; TH_E_PROTOCOL; -EIO: the
		       * driver failed: where nobody can tell what the GPU still does, the process
		       * ends behind this, and its end tells */
	uint64_t run;
	struct th_hash digest;
	char text[GPU_TEXT_BYTES];
};

#endif
