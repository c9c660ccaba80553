/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_pool - host memory for copies that have no worker: its budget, and a thread that makes and
 * frees it.
 *
 * A memory is a memfd of its own, mapped, and every page of it is there before anybody hears of it:
 * a copy that is promised must not fail for want of memory later. That takes a second for a few
 * gigabytes, and giving them back takes as long, so a thread does both.
 *
 *   offload_start --> (thread: pages) --> done(memory or why not) --> offload_release --> (thread)
 *
 * All calls come from one thread, the main one; done is called by offload_poll there.
 */
#ifndef TH_DAEMON_HOST_MEMORY_HOST_POOL_H
#define TH_DAEMON_HOST_MEMORY_HOST_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/err.h"

#define OFFLOAD_HALF UINT64_MAX /* limit: half of what is available when memory is asked for */

struct fd_memory;
struct gpus;
struct gpus_host;
struct offload;
struct offload_memory;
struct rails;
struct region;

struct offload_config {
	uint64_t limit;
	const char *root; /* see room_now */
	/* What is to be made waits so long for what was given up. Then it does without what a
	 * device, or the process of a GPU, still knows, which may never be given back; while copies
	 * are still read it fails. */
	int64_t patience_ns;
};

/* 0 or a code with the sentence. */
int offload_new(
	const struct offload_config *config, struct th_err *err, struct offload **ret_offload);
/* Frees all memory; done is not called any more. No device and no GPU's process knows any of it.
 * NULL: nothing. */
void offload_free(struct offload *offload);

int offload_fd(const struct offload *offload); /* readable: offload_poll has something to do */
void offload_poll(struct offload *offload);

uint64_t offload_limit(const struct offload *offload); /* as given */
uint64_t offload_used(const struct offload *offload);  /* with what is being made or freed */
/* What one could take now, with what is used: the limit, or half of what is available. */
uint64_t offload_budget(const struct offload *offload);

/*
 * result->code 0: the memory is there. Otherwise it has been released already, and code is
 * TH_E_NOMEM_RETAIN.
 */
typedef void (*offload_done)(void *arg, const struct th_err *result);

/* 0, or TH_E_NOMEM_RETAIN with a sentence: it would not fit the budget or the host, even when all
 * that was given up is gone. */
int offload_check(const struct offload *offload, uint64_t bytes, struct th_err *err);

/*
 * NULL with TH_E_NOMEM_RETAIN and a sentence when it does not fit the budget or the host. Otherwise
 * done follows, unless the memory is released before.
 */
struct offload_memory *offload_start(
	struct offload *offload, uint64_t bytes, offload_done done, void *arg, struct th_err *err);
/* Where it is mapped; after done. */
uint8_t *offload_data(const struct offload_memory *memory);
/* The file that is mapped there, from its beginning; lives as long as the memory. May be NULL. */
struct fd_memory *offload_file(const struct offload_memory *memory);
uint64_t offload_bytes(const struct offload_memory *memory);
/* Has it registered with these rails, in the background; after done, once. It is freed when no
 * device knows it any more. */
void offload_register(struct offload_memory *memory, struct rails *rails, uint32_t mask);
struct region *offload_region(const struct offload_memory *memory); /* borrowed; NULL: it is not */
/* GPUs may read and write it; after done, once. It is freed when no process of theirs knows it any
 * more. */
void offload_offer(struct offload_memory *memory, struct gpus *gpus);
struct gpus_host *offload_host(
	const struct offload_memory *memory); /* borrowed; NULL: they do not */
/* Nobody wants it any more, and it will be released: from now on it counts as room that comes, and
 * what is made in its place waits for it. After done. */
void offload_give_up(struct offload_memory *memory);
/*
 * For a process of this host, which reads it until offload_returned: a descriptor of the file, open
 * for reading, or -errno. From the first one on nobody can map or write the file for writing any
 * more but who has it mapped. What is lent is neither given up nor released before it is returned.
 */
int offload_lend(struct offload_memory *memory);
void offload_returned(struct offload_memory *memory);
/* Nobody touches it any more, or wants it. NULL: nothing. */
void offload_release(struct offload_memory *memory);

#endif
