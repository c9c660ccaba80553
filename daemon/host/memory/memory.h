/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory - the memory objects that one worker has sent: descriptors checked, and mapped or kept.
 *
 * A memfd that can not shrink any more (F_SEAL_SHRINK) is mapped shared: the agent reads and writes
 * the very pages of the worker, and no truncation can turn an access into SIGBUS. The mapping is
 * for reading only until the session receives something, and again when it publishes: what is
 * published no mistake of the agent's can change. Any other file in
 * memory, and the memory of the worker's process, is read and written through the descriptor
 * (transport/part/fd_memory.h), by threads that may be left behind.
 *
 * Nothing is asked here of a descriptor that whoever made it could leave unanswered: only a file
 * that is known to lie in memory is measured, and of any other not even the size is asked. No seal
 * is added, which can wait behind another write to the file.
 *
 * What NICs may reach stays mapped until no device knows it any more, also when its worker and this
 * set are gone. What is large takes its time to be unmapped, and a thread of its own
 * (transport/part/unmap.h). Main thread only.
 */
#ifndef TH_DAEMON_HOST_MEMORY_MEMORY_H
#define TH_DAEMON_HOST_MEMORY_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/err.h"
#include "ipc/sock/fdmsg.h"

struct fd_memory;
struct gpu_space;
struct hold;
struct rails;
struct region;

struct memory {
	uint32_t id;    /* 1, 2, ... per session                                                */
	bool forgotten; /* unmapped as soon as nothing is registered in it                       */
	bool gone;      /* nothing is left of it but its place in the array                      */
	uint64_t dev, ino;
	uint64_t base;   /* in the worker; of host memory for sentences only                      */
	uint64_t offset; /* of the first byte in the file                                        */
	uint64_t bytes;
	uint8_t *data; /* the first byte in this process                                        */
	void *map;     /* owns                                                                  */
	bool writable; /* it may be written now*/
	size_t map_bytes;
	struct region *region; /* owns: a reference; of the mapping; NULL: no NIC reaches it      */
	uint64_t missing;      /* of its bytes: pages that nobody had touched when it was shared  */
	struct fd_memory
		*access;        /* owns: a reference; NULL: it is mapped                          */
	struct fd_memory *file; /* owns: likewise, of what is mapped, to send from; may be NULL   */
	bool process;           /* access: of a process, not of a file                            */
	bool shadow;            /* mapped: the worker copies GPU memory to it and from it         */
	bool dmabuf;            /* no row lies in it: the way of a NIC to GPU memory              */
	int dmabuf_fd;          /* owns, until a region has it; then, and of all else, -1         */
	struct hold *hold;      /* owns: a use; of a dma-buf                                      */
	bool owner;             /* access or file: was made for this object                       */
	const char *read_only;  /* why it can not be written; NULL: it can                        */
	/* A piece of GPU memory (memory_gpu.h); base and offset are the worker's address.       */
	struct gpu_space *space; /* borrows: the set's; NULL: it is none                         */
	uint32_t gpu, gpu_kind;  /* of the set's; enum cuda_kind                                 */
};

#define MEMORY_GPUS_MAX 16u

struct memory_gpu {               /* where the worker has memory; space NULL: a free place */
	struct gpu_space *space;  /* owns: a reference                                            */
	struct fd_memory *access; /* owns: likewise; what its rows lie in                         */
	uint32_t objects;
};

struct memory_set {
	struct memory *objects; /* owns: the array and what it maps                               */
	uint32_t count, capacity, last_id;
	uint32_t gone;      /* of the count */
	uint32_t forgotten; /* of the count: forgotten, and still mapped */
	uint32_t let_go_id; /* no piece of GPU memory up to this id is kept any more */
	uint64_t mapped_bytes;
	uint32_t descriptors; /* kept open */
	struct memory_gpu gpus[MEMORY_GPUS_MAX];
	struct hold *hold; /* owns: a use; of all GPU memory in it; NULL: there was none */
	bool poisoned;     /* such memory has ended a process of a GPU too often */
};

struct memory_limits {
	uint32_t objects_max;     /* of the set */
	uint64_t mapped_by_all;   /* bytes, of all sets together */
	uint32_t kept_by_all;     /* descriptors, of all sets together */
	uint32_t descriptors_max; /* of all sets together */
	bool no_process;          /* the worker has opened with THC_NO_MEMORY_FD */
};

/*
 * A sparse file costs its worker nothing, but the address space of the agent ends (128 TiB), and
 * with it all that it could still allocate: half of it is for workers, and one has a part of that.
 */
#define MEMORY_BYTES_MAX (UINT64_C(1) << 42)
#define MEMORY_BYTES_MAX_ALL (UINT64_C(1) << 46)

/*
 * Takes in what message announces and *fd is. *fd is set to -1 when it is kept: a mapping needs
 * none, but keeps one while few are kept, and two objects of one file or process share one. 0 and
 * *ret_id, or TH_E_MEMORY_KIND, TH_E_INVALID, TH_E_LIMIT, -errno with a sentence.
 */
int memory_add(struct memory_set *set, const struct fdmsg_memory *message, int *fd,
	const struct memory_limits *limits, struct th_err *err, uint32_t *ret_id);

/* NULL when there is none with this id, or it was forgotten. Valid until the set changes. */
const struct memory *memory_find(const struct memory_set *set, uint32_t id);

/* The same, and those that were forgotten and not unmapped. Not for what a worker names. */
struct memory *memory_object(struct memory_set *set, uint32_t id);

/*
 * The dma-bufs among the objects, by the worker's address: a new array, which is free()d. NULL:
 * there is none.
 */
struct memory **memory_dmabufs(struct memory_set *set, uint32_t *ret_count);
/* Of such an array: the one that has all of [address, address + bytes); NULL. */
struct memory *memory_dmabuf_of(
	struct memory *const *dmabufs, uint32_t count, uint64_t address, uint64_t bytes);

/*
 * Whether the mappings may be written from now on; those that are so already are not touched. It
 * takes time where much was mapped with other rights before, tens of milliseconds a gigabyte: a
 * session changes between receiving and publishing, not with each operation. 0 or -errno.
 */
int memory_set_writable(struct memory_set *set, bool writable);
/* Of a mapped object: how many of its bytes have no page yet, by what its file has now. */
uint64_t memory_missing(const struct memory *object);
/* Has the mapping, or the dma-buf, registered with these rails, in the background. Once. */
void memory_register(struct memory *object, struct rails *rails, uint32_t mask);
/* Bytes without pages that are being registered, and get some by that. Any thread. */
uint64_t memory_populating(void);
/* Bytes that are mapped still, although their objects are gone. Any thread. */
uint64_t memory_unmapping(void);

/* For memory_gpu.c: room for one more; there are too many descriptors; adds one; ends one. */
int memory_reserve(struct memory_set *set, uint32_t objects_max, struct th_err *err);
int memory_no_descriptors(const struct memory_limits *limits, struct th_err *err);
uint32_t memory_append(struct memory_set *set, const struct memory *object);
void memory_drop(struct memory_set *set, uint32_t index);

/*
 * 0, or TH_E_INVALID for an id that is not there. in_use: a registration may lie in it, so the
 * mapping stays until memory_sweep.
 */
int memory_forget(struct memory_set *set, uint32_t id, bool in_use);
void memory_sweep(struct memory_set *set); /* unmaps what was forgotten meanwhile */
void memory_fini(struct memory_set *set);  /* unmaps all */

#endif
