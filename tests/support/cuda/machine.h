/* SPDX-License-Identifier: Apache-2.0 */
/*
 * machine - GPUs that tests make, in a folder: what the libcuda.so.1 of the tests drives.
 *
 * Each GPU's memory is a sparse file, so that processes that know nothing of each other share it: a
 * legacy IPC handle is 64 bytes and no descriptor, for which a memfd would not do. Memory is taken
 * in chunks, and a chunk lives as long as some open file description holds a lock on its range: a
 * process that works with it, a descriptor that was exported, wherever it has been sent. So memory
 * is free at the moment when the last of them ends, also by SIGKILL, and never before: as on a GPU,
 * and nobody counts.
 *
 * The folder also holds a page that all share: what the GPUs can do, what each process holds, and
 * faults that a test plans. A process with no TH_FAKE_CUDA in its environment sees no GPU.
 */
#ifndef TH_TESTS_SUPPORT_CUDA_MACHINE_H
#define TH_TESTS_SUPPORT_CUDA_MACHINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/support/cuda/test_calls.h"

#define MACHINE_ENV "TH_FAKE_CUDA"
#define MACHINE_DEVICES_MAX 8u
#define MACHINE_PAGE 65536u
#define MACHINE_PAGES_MAX 65535u /* not quite 4 GiB a GPU */
#define MACHINE_GRANULARITY (2u << 20)
#define MACHINE_CHUNKS_MAX 8192u
#define MACHINE_OBJECTS_MAX 128u
#define MACHINE_PIECES_MAX 256u
#define MACHINE_PROCESSES_MAX 128u
#define MACHINE_FAULTS_MAX 16u

enum machine_call {
#define MACHINE_CALL(name, version, arguments) CALL_##name,
	CUDA_ALL_CALLS(MACHINE_CALL)
#undef MACHINE_CALL
	/* Not a call: work that a stream does. */
	CALL_STREAM,
	CALLS
};

enum machine_kind { /* of a chunk */
	MACHINE_LEGACY = 1,
	MACHINE_VMM,
	MACHINE_POOL,
	MACHINE_CONTEXT, /* what a context itself takes */
};

enum machine_held { /* by one process */
	HELD_CONTEXTS,
	HELD_ALLOCATIONS, /* legacy, pool and managed memory */
	HELD_HANDLES,     /* of physical memory */
	HELD_RESERVATIONS,
	HELD_MAPPINGS,
	HELD_IMPORTS, /* by legacy handles and from pools */
	HELD_POOLS,
	HELD_HOST,
	HELD_STREAMS,
	HELD_URGENT_STREAMS, /* of these, those before which or with which others' work waits */
	HELD_EVENTS,
	HELD_MODULES,
	HELDS
};

enum machine_fault {
	FAULT_RESULT = 1, /* the call returns it and does nothing */
	FAULT_HANG,       /* the call does not return until the fault is lifted */
	FAULT_LOST, /* the GPU is gone for everybody: everything about it returns the result */
	FAULT_IDLE, /* the call answers that all is well, and does nothing */
};

struct machine_device {
	CUuuid uuid;
	char name[32], pci[16];
	uint64_t bytes, context_bytes;
	uint32_t peers;        /* a bit for each GPU that it reaches */
	int dma_buf, vmm_rdma; /* attributes */
	int pools, pool_types;
	int compute_mode;
	int capability;                    /* 90 is 9.0 */
	_Atomic int lost;                  /* a CUresult */
	uint16_t pages[MACHINE_PAGES_MAX]; /* 0: free, else 1 + the chunk's number */
};

struct machine_chunk {
	uint64_t generation;    /* 0: no chunk; of the whole machine, never used again */
	uint64_t offset, bytes; /* in the GPU's file */
	int device;
	enum machine_kind kind;
	int types; /* by which it can be exported */
	bool rdma;
	pid_t owner;
	uint64_t address; /* the owner's */
};

struct machine_piece {
	uint64_t offset, bytes; /* in the GPU's file */
};

struct machine_object {      /* a pool, or what dma-buf descriptors are about */
	uint64_t generation; /* 0: none */
	int device;
	int types;           /* pool */
	pid_t owner;         /* pool */
	uint64_t ino;        /* dma-buf: of its file */
	unsigned num_pieces; /* likewise */
	struct machine_piece pieces[MACHINE_PIECES_MAX];
};

struct machine_process {
	/* 0: none; stays when it is dead, so that a test sees what it left, until all places are
	 * taken. */
	_Atomic pid_t pid;
	_Atomic int held[HELDS];
	_Atomic unsigned calls[CALLS];
};

struct machine_plan {
	_Atomic int fault; /* 0: none */
	pid_t pid;         /* 0: any */
	int call, device;  /* LOST: the device that is lost */
	_Atomic int after; /* so many calls pass before */
	CUresult result;
	_Atomic unsigned met;
};

struct machine_page {
	uint64_t magic;
	int version; /* of CUDA */
	unsigned num_devices;
	uint64_t generations;
	struct machine_device devices[MACHINE_DEVICES_MAX];
	struct machine_chunk chunks[MACHINE_CHUNKS_MAX];
	struct machine_object objects[MACHINE_OBJECTS_MAX];
	struct machine_process processes[MACHINE_PROCESSES_MAX];
	struct machine_plan plans[MACHINE_FAULTS_MAX];
};

struct machine {
	struct machine_page *page; /* owns the mapping */
	char folder[200];
	int files[MACHINE_DEVICES_MAX];   /* own: the memory, without any lock */
	int holders[MACHINE_DEVICES_MAX]; /* own: with this process's locks */
	int maker;                        /* own: the folder, locked by who has made it; or -1 */
};

/* ---- for tests ------------------------------------------------------------------------------ */

/* A machine in a new folder, its GPUs all peers of each other and able to do everything; its folder
 * is put into the environment. bytes: of memory, each. Fails the test. Folders whose makers have
 * ended without machine_remove, as who is killed does, go first. */
void machine_new(struct machine *ret_machine, unsigned num_devices, uint64_t bytes);

/* Removes the folder. Programs that still run keep what they have. */
void machine_remove(struct machine *machine);

/* What somebody holds of a GPU's memory, contexts included. */
uint64_t machine_used(struct machine *machine, int device);

/* What a process holds, or held when it ended; -1 if it never was here. */
int machine_holds(struct machine *machine, pid_t pid, enum machine_held held);
unsigned machine_calls(struct machine *machine, pid_t pid, int call);

/* Returns its number. pid 0: whoever comes. after: so many calls are let through. */
int machine_plan(struct machine *machine, enum machine_fault fault, pid_t pid, int call, int after,
	CUresult result);
/* How often it was met. */
unsigned machine_met(struct machine *machine, int plan);
void machine_lift(struct machine *machine, int plan);
/* At once, for all. */
void machine_lose(struct machine *machine, int device, CUresult result);

/* Through a descriptor of a dma-buf, as a NIC would. 0 or -errno. */
int machine_dmabuf_read(struct machine *machine, int fd, uint64_t offset, void *data, size_t bytes);
int machine_dmabuf_write(
	struct machine *machine, int fd, uint64_t offset, const void *data, size_t bytes);
/* The same memory, mapped; munmap ends it. offset: of a page. NULL with errno. */
void *machine_dmabuf_map(struct machine *machine, int fd, uint64_t offset, size_t bytes);

/* ---- for the library ------------------------------------------------------------------------ */

/* 0 or -errno. */
int machine_open(struct machine *ret_machine, const char *folder);
void machine_close(struct machine *machine);

/* All that follows is called between these; they give and take a descriptor. */
int machine_lock(struct machine *machine);
void machine_unlock(int lock);

/* A chunk's number, held by this process; -1: no memory. */
int machine_take(struct machine *machine, const struct machine_chunk *form);
/* One hold more, and none. */
int machine_hold(struct machine *machine, int chunk);
void machine_drop(struct machine *machine, int chunk);
/* Another process has a context of the GPU. */
bool machine_is_used(struct machine *machine, int device, pid_t but_for);
/* Somebody holds it, whoever. */
bool machine_alive(struct machine *machine, int chunk);

#define EXPORT_CHUNK (1ull << 32) /* kinds of numbers of exports */
#define EXPORT_DMABUF (2ull << 32)
#define EXPORT_POOL (3ull << 32)
#define EXPORT_KIND(number) ((number) & ~0xffffffffull)
#define EXPORT_INDEX(number) ((number)&0xffffffffull)

/* A descriptor that holds the pieces, or -errno. number: what machine_number gives. A dma-buf's has
 * the size of its object. */
int machine_export(struct machine *machine, int device, const struct machine_piece *pieces,
	unsigned num_pieces, uint64_t number);
/* Of a descriptor that machine_export made: of which GPU; -EINVAL for any other. */
int machine_number(struct machine *machine, int fd, uint64_t *ret_number);

/* An object's number that is alive as long as a descriptor is that has it as a piece: the piece. */
int machine_object_new(struct machine *machine, int device, struct machine_piece *ret_piece);

#endif
