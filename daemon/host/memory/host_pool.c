/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_pool - see host_pool.h. The main thread owns everything but the two lists, which a lock
 * guards: a memory that stands in one of them, or is between them, belongs to the thread.
 */
#include "daemon/host/memory/host_pool.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "daemon/host/memory/mem_available.h"
#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/failpoint.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "ipc/base/units.h"
#include "ipc/shm/doorbell.h"
#include "transport/cuda/agent/gpus.h"
#include "transport/part/fd_memory.h"
#include "transport/part/packed.h"
#include "transport/part/unmap.h"
#include "transport/rdma/memory/region.h"

#ifndef MADV_POPULATE_WRITE /* Linux 5.14; an older kernel answers EINVAL */
#define MADV_POPULATE_WRITE 23
#endif

/* The thread looks between two whether it is still wanted. */
#define SLICE_BYTES (UINT64_C(32) << 20)
#define NS INT64_C(1000000000)

struct offload_memory {
	struct offload *offload; /* borrows */
	uint64_t bytes;          /* whole pages */
	offload_done done;       /* NULL: it was called, or nobody wants to know */
	void *arg;
	bool making;   /* until done */
	bool given_up; /* released, or soon */
	bool freeing;  /* released */
	bool sealed;   /* for good, as it was lent */
	bool unowned;  /* to be released when all of it is returned */
	uint32_t num_lent;
	atomic_bool unwanted;   /* released while it is made */
	uint8_t *map;           /* owns; the thread's until done */
	struct fd_memory *file; /* owns: a reference; likewise; NULL: only the mapping */
	int error;              /* 0 or why it could not be made */
	struct region *region;  /* owns: a reference; NULL: no NIC reaches it */
	struct gpus_host *host; /* owns; NULL: no GPU reaches it */
	atomic_uint known_to;   /* released: devices, and processes of GPUs */
	/* Made when as many bytes as `after` are gone, of all that ever were, and it fits below
	 * offload.most. At until_ns it is made if only what was released is in its way, as what a
	 * device never gives back does not go; else it is not made. */
	uint64_t after;
	int64_t until_ns;
	struct offload_memory *next;
};

struct offload {
	uint64_t limit, used;
	uint64_t given_up; /* part of used: nobody wants it any more */
	uint64_t staying;  /* part of given_up: it is not released yet */
	int64_t patience_ns;
	uint32_t count; /* memories that are not freed */
	char *root;     /* owns */
	int fd;         /* owns: an eventfd */
	bool started;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct offload_memory *queue, *finished; /* guarded by lock; finished: newest first */
	/* Guarded by lock: bytes that have pages, or are getting them; of them, released ones; gone
	 * ones; how many may be there. */
	uint64_t there, leaving, gone, most;
	bool stop;            /* guarded by lock */
	atomic_bool stopping; /* the same, for who is at work */
};

/* ---- the thread ------------------------------------------------------------------------------ */

static void
host_pool_unmap(struct offload_memory *memory)
{
	if (memory->map)
		unmap_here(memory->map, memory->bytes);
	memory->map = NULL;
	fd_memory_release(memory->file);
	memory->file = NULL;
}

/* Pages for this range. 0 or -errno. */
static int
populate(int fd, uint8_t *map, uint64_t offset, uint64_t bytes)
{
	/* By the mapping first: only there a file of memory can ask for huge pages. */
	if (madvise(map + offset, bytes, MADV_POPULATE_WRITE) == 0)
		return 0;
	if (errno != EINVAL)
		return errno == EFAULT ? -ENOMEM : -errno;
	while (fallocate(fd, 0, (off_t)offset, (off_t)bytes) < 0) {
		if (errno != EINTR)
			return -errno;
	}
	return 0;
}

static int
map_pages(struct offload_memory *memory, int fd)
{
	/* A GPU's process has the file, too: it can take no page away. The last seals come when it
	 * is lent. */
	if (ftruncate(fd, (off_t)memory->bytes) < 0 ||
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		return -errno;
	void *map = mmap(NULL, memory->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	memory->map = map;
	(void)madvise(map, memory->bytes, MADV_HUGEPAGE);
	(void)madvise(map, memory->bytes, MADV_DONTFORK);
	(void)madvise(map, memory->bytes, MADV_DONTDUMP);
	for (uint64_t at = 0; at < memory->bytes; at += SLICE_BYTES) {
		if (atomic_load(&memory->unwanted) || atomic_load(&memory->offload->stopping))
			return -ECANCELED;
		int rc = populate(fd, memory->map, at, th_min_u64(SLICE_BYTES, memory->bytes - at));
		if (rc < 0)
			return rc;
	}
	return 0;
}

static void
close_file(int fd)
{
	th_fd_close(&fd);
}

static void
host_pool_make(struct offload_memory *memory)
{
	int rc = TH_FP_RC(agent_makes_room);
	int fd = rc == 0 ? memfd_create("tensorhub-offload", MFD_CLOEXEC | MFD_ALLOW_SEALING) : -1;
	if (rc == 0)
		rc = fd < 0 ? -errno : map_pages(memory, fd);
	memory->error = rc;
	/* The mapping keeps the file; the descriptor is for who sends out of it. */
	memory->file = rc == 0 ? fd_memory_new(fd, FD_MEMORY_FILE, close_file) : NULL;
	if (!memory->file)
		th_fd_close(&fd);
	if (memory->error != 0)
		host_pool_unmap(memory);
}

/* Under the lock: bytes that have to go before this can be made. What was given up may still be
 * read, and what was released be known to a device: together they may be too much. */
static uint64_t
lacks(const struct offload *offload, const struct offload_memory *memory)
{
	uint64_t all = offload->there + memory->bytes;
	return th_max_u64(all > offload->most ? all - offload->most : 0,
		memory->after > offload->gone ? memory->after - offload->gone : 0);
}

/* Under the lock: out of the queue, whatever can be done now. NULL: nothing can, until
 * *ret_until_ns. What waits is in nobody's way: all of it fits when what goes is gone. */
static struct offload_memory *
take_work(struct offload *offload, int64_t *ret_until_ns)
{
	struct offload_memory **link, *memory;
	*ret_until_ns = INT64_MAX;
	for (link = &offload->queue; (memory = *link); link = &memory->next) {
		if (memory->freeing || atomic_load(&memory->unwanted) ||
			lacks(offload, memory) == 0 || th_now_ns() >= memory->until_ns) {
			*link = memory->next;
			return memory;
		}
		*ret_until_ns = th_min_i64(*ret_until_ns, memory->until_ns);
	}
	return NULL;
}

/* Under the lock. */
static void
wait_for_work(struct offload *offload, int64_t until_ns)
{
	const struct timespec until = {.tv_sec = until_ns / NS, .tv_nsec = until_ns % NS};
	if (until_ns == INT64_MAX)
		pthread_cond_wait(&offload->work, &offload->lock);
	else
		(void)pthread_cond_clockwait(
			&offload->work, &offload->lock, CLOCK_MONOTONIC, &until);
}

/* Under the lock, but for the work itself. */
static void
do_work(struct offload *offload, struct offload_memory *memory)
{
	bool frees = memory->freeing;
	if (!frees && atomic_load(&memory->unwanted))
		memory->error = -ECANCELED;
	else if (!frees && lacks(offload, memory) > offload->leaving)
		memory->error = -ETIMEDOUT;
	if (memory->error == 0) {
		offload->there += frees ? 0 : memory->bytes;
		pthread_mutex_unlock(&offload->lock);
		if (frees)
			host_pool_unmap(memory);
		else
			host_pool_make(memory);
		pthread_mutex_lock(&offload->lock);
		offload->there -= memory->map ? 0 : memory->bytes;
	}
	if (frees) {
		offload->leaving -= memory->bytes;
		offload->gone += memory->bytes;
	}
	memory->next = offload->finished;
	offload->finished = memory;
	(void)doorbell_signal(offload->fd);
}

static void *
host_pool_run(void *arg)
{
	struct offload *offload = arg;
	int64_t until_ns;
	pthread_mutex_lock(&offload->lock);
	while (!offload->stop) {
		struct offload_memory *memory = take_work(offload, &until_ns);
		if (memory)
			do_work(offload, memory);
		else
			wait_for_work(offload, until_ns);
	}
	pthread_mutex_unlock(&offload->lock);
	return NULL;
}

/* What is to be freed goes first: what is to be made may need its pages. */
static void
host_pool_enqueue(struct offload *offload, struct offload_memory *memory)
{
	pthread_mutex_lock(&offload->lock);
	struct offload_memory **link = &offload->queue;
	while (*link && (!memory->freeing || (*link)->freeing))
		link = &(*link)->next;
	memory->next = *link;
	*link = memory;
	pthread_cond_signal(&offload->work);
	pthread_mutex_unlock(&offload->lock);
}

/* ---- begin and end --------------------------------------------------------------------------- */

int
offload_new(const struct offload_config *config, struct th_err *err, struct offload **ret_offload)
{
	struct offload *offload = th_calloc(1, sizeof(*offload));
	offload->fd = doorbell_new();
	if (offload->fd < 0) {
		int rc = offload->fd;
		free(offload);
		return th_fail(err, rc, "an eventfd: %s", th_strerror(rc));
	}
	offload->limit = config->limit;
	offload->patience_ns = config->patience_ns;
	offload->root = th_strdup(config->root);
	pthread_mutex_init(&offload->lock, NULL);
	pthread_cond_init(&offload->work, NULL);
	*ret_offload = offload;
	return 0;
}

static void
host_pool_forget(struct offload *offload, struct offload_memory *memory)
{
	offload->used -= memory->bytes;
	offload->given_up -= memory->given_up ? memory->bytes : 0;
	offload->count--;
	free(memory);
}

static void
free_list(struct offload *offload, struct offload_memory *list)
{
	while (list) {
		struct offload_memory *next = list->next;
		host_pool_unmap(list);
		host_pool_forget(offload, list);
		list = next;
	}
}

void
offload_free(struct offload *offload)
{
	if (!offload)
		return;
	pthread_mutex_lock(&offload->lock);
	offload->stop = true;
	atomic_store(&offload->stopping, true);
	pthread_cond_signal(&offload->work);
	pthread_mutex_unlock(&offload->lock);
	if (offload->started)
		pthread_join(offload->thread, NULL);
	free_list(offload, offload->queue);
	free_list(offload, offload->finished);
	if (offload->count > 0)
		log_error("offload", "memory is still in use count=%" PRIu32, offload->count);
	pthread_cond_destroy(&offload->work);
	pthread_mutex_destroy(&offload->lock);
	th_fd_close(&offload->fd);
	free(offload->root);
	free(offload);
}

int
offload_fd(const struct offload *offload)
{
	return offload->fd;
}

/* ---- the budget ------------------------------------------------------------------------------ */

uint64_t
offload_limit(const struct offload *offload)
{
	return offload->limit;
}

uint64_t
offload_used(const struct offload *offload)
{
	return offload->used;
}

/* With room bytes available beside what is used already. */
static uint64_t
budget(const struct offload *offload, uint64_t room)
{
	uint64_t all;
	if (offload->limit != OFFLOAD_HALF)
		return offload->limit;
	return th_add_u64(room, offload->used - offload->given_up, &all) ? all / 2 : UINT64_MAX;
}

/* What is given up is as good as free: as much of it as needed is gone before anything is made. */
static uint64_t
room(const struct offload *offload)
{
	uint64_t now = room_now(offload->root), all;
	return th_add_u64(now, offload->given_up, &all) ? all : UINT64_MAX;
}

uint64_t
offload_budget(const struct offload *offload)
{
	return budget(offload, room(offload));
}

int
offload_check(const struct offload *offload, uint64_t bytes, struct th_err *err)
{
	char need[TH_UNITS_BYTES], used[TH_UNITS_BYTES], all[TH_UNITS_BYTES];
	uint64_t held = offload->used - offload->given_up;
	uint64_t available = room(offload);
	uint64_t most = budget(offload, available);
	th_print_size_short(bytes, need);
	if (offload->limit == 0)
		return th_fail(err, TH_E_NOMEM_RETAIN,
			"this agent takes no offloaded copies (--offload-limit 0)");
	if (bytes > most || held > most - bytes)
		return th_fail(err, TH_E_NOMEM_RETAIN,
			"%s are needed for an offloaded copy, and %s of the %s that this agent may "
			"take are used; raise --offload-limit%s",
			need, th_print_size_short(held, used), th_print_size_short(most, all),
			offload->limit == OFFLOAD_HALF
				? " (without one it is half of the memory that is available)"
				: "");
	if (bytes > available)
		return th_fail(err, TH_E_NOMEM_RETAIN,
			"%s are needed for an offloaded copy, and this host has %s available", need,
			th_print_size_short(available, all));
	return 0;
}

/* ---- memories -------------------------------------------------------------------------------- */

static int
host_pool_start_thread(struct offload *offload)
{
	if (offload->started)
		return 0;
	int rc = pthread_create(&offload->thread, NULL, host_pool_run, offload);
	offload->started = rc == 0;
	if (rc == 0)
		pthread_setname_np(offload->thread, "th-offload");
	return -rc;
}

struct offload_memory *
offload_start(
	struct offload *offload, uint64_t bytes, offload_done done, void *arg, struct th_err *err)
{
	uint64_t whole;
	if (!th_align_up_u64(th_max_u64(bytes, 1), (uint64_t)sysconf(_SC_PAGESIZE), &whole) ||
		whole > (uint64_t)PTRDIFF_MAX) {
		th_fail(err, TH_E_NOMEM_RETAIN, "%" PRIu64 " bytes are more than a host has",
			bytes);
		return NULL;
	}
	if (offload_check(offload, whole, err) < 0)
		return NULL;
	int rc = host_pool_start_thread(offload);
	if (rc < 0) {
		th_fail(err, TH_E_NOMEM_RETAIN, "no thread for offloaded copies: %s",
			th_strerror(rc));
		return NULL;
	}
	struct offload_memory *memory = th_calloc(1, sizeof(*memory));
	*memory = (struct offload_memory){
		.offload = offload, .bytes = whole, .done = done, .arg = arg, .making = true};
	uint64_t most = offload_budget(offload), now = room_now(offload->root);
	offload->used += whole;
	offload->count++;
	pthread_mutex_lock(&offload->lock);
	offload->most = most;
	/* No more can go: what was checked may have changed a little. */
	memory->after = offload->gone + th_min_u64(whole > now ? whole - now : 0,
						offload->leaving + offload->staying);
	memory->until_ns = th_deadline_ns(th_now_ns(), offload->patience_ns);
	pthread_mutex_unlock(&offload->lock);
	host_pool_enqueue(offload, memory);
	return memory;
}

uint8_t *
offload_data(const struct offload_memory *memory)
{
	return memory->map;
}

struct fd_memory *
offload_file(const struct offload_memory *memory)
{
	return memory->file;
}

uint64_t
offload_bytes(const struct offload_memory *memory)
{
	return memory->bytes;
}

/* Any thread. */
static void
not_known(void *arg)
{
	struct offload_memory *memory = arg;
	if (atomic_fetch_sub(&memory->known_to, 1) > 1)
		return;
	host_pool_enqueue(memory->offload, memory);
}

void
offload_register(struct offload_memory *memory, struct rails *rails, uint32_t mask)
{
	const struct region_memory all = {
		.data = memory->map, .dmabuf_fd = -1, .bytes = memory->bytes};
	const struct region_user user = {.arg = memory, .gone = not_known};
	memory->region = region_new(rails, &all, mask, SHARD_ACCESS, &user);
}

void
offload_offer(struct offload_memory *memory, struct gpus *gpus)
{
	if (!memory->file)
		return;
	memory->host =
		gpus_host_new(gpus, &(struct gpus_host_memory){.fd = fd_memory_fd(memory->file),
					    .data = memory->map,
					    .bytes = memory->bytes,
					    .gone = not_known,
					    .arg = memory});
}

struct gpus_host *
offload_host(const struct offload_memory *memory)
{
	return memory->host;
}

struct region *
offload_region(const struct offload_memory *memory)
{
	return memory->region;
}

void
offload_give_up(struct offload_memory *memory)
{
	/* What is lent makes no room. */
	if (memory->given_up || memory->num_lent > 0)
		return;
	memory->given_up = true;
	memory->offload->given_up += memory->bytes;
	memory->offload->staying += memory->bytes;
}

void
offload_release(struct offload_memory *memory)
{
	if (!memory)
		return;
	struct offload *offload = memory->offload;
	if (memory->num_lent > 0) {
		memory->unowned = true;
		return;
	}
	if (memory->making) {
		/* The thread has it, or will: offload_poll gets it back. */
		memory->done = NULL;
		offload->given_up += memory->bytes;
		pthread_mutex_lock(&offload->lock);
		atomic_store(&memory->unwanted, true);
		pthread_cond_signal(&offload->work);
		pthread_mutex_unlock(&offload->lock);
		return;
	}
	offload_give_up(memory);
	offload->staying -= memory->bytes;
	pthread_mutex_lock(&offload->lock);
	offload->leaving += memory->bytes;
	pthread_mutex_unlock(&offload->lock);
	memory->freeing = true;
	/* Ourselves, too: whoever is last frees it. */
	atomic_store(&memory->known_to, 1u + (memory->region != NULL) + (memory->host != NULL));
	struct gpus_host *host = memory->host;
	region_release(memory->region);
	gpus_host_release(host);
	not_known(memory);
}

/* A mapping that is older can still be written by. */
static int
seal(struct offload_memory *memory)
{
	const int seals = F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
	if (!memory->sealed && fcntl(fd_memory_fd(memory->file), F_ADD_SEALS, seals) < 0)
		return -errno;
	memory->sealed = true;
	return 0;
}

int
offload_lend(struct offload_memory *memory)
{
	char path[32];
	int rc = memory->file ? seal(memory) : -EBADF;
	if (rc < 0)
		return rc;
	/* Of its own: who has it can add nothing to the file. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd_memory_fd(memory->file));
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	memory->num_lent++;
	return fd;
}

void
offload_returned(struct offload_memory *memory)
{
	memory->num_lent--;
	if (memory->num_lent == 0 && memory->unowned)
		offload_release(memory);
}

static void
host_pool_made(struct offload *offload, struct offload_memory *memory)
{
	offload_done done = memory->done;
	void *arg = memory->arg;
	struct th_err result = {0};
	char size[TH_UNITS_BYTES], waited[TH_UNITS_BYTES];
	memory->making = false;
	memory->done = NULL;
	if (!done) {
		/* Released meanwhile. */
		offload->given_up -= memory->bytes;
		if (memory->error == 0)
			offload_release(memory);
		else
			host_pool_forget(offload, memory);
		return;
	}
	if (memory->error == -ETIMEDOUT)
		th_fail(&result, TH_E_NOMEM_RETAIN,
			"%s are needed for an offloaded copy, and former copies that are to make "
			"room are still read after %s; raise --offload-limit, or ask again when "
			"their readers have ended",
			th_print_size_short(memory->bytes, size),
			th_print_duration_short(offload->patience_ns, waited));
	else if (memory->error != 0)
		th_fail(&result, TH_E_NOMEM_RETAIN,
			"%s of memory for an offloaded copy cannot be had: %s",
			th_print_size_short(memory->bytes, size), th_strerror(memory->error));
	if (memory->error != 0)
		host_pool_forget(offload, memory);
	done(arg, &result);
}

void
offload_poll(struct offload *offload)
{
	(void)doorbell_drain(offload->fd);
	pthread_mutex_lock(&offload->lock);
	struct offload_memory *list = offload->finished, *first = NULL;
	offload->finished = NULL;
	pthread_mutex_unlock(&offload->lock);
	/* In the order in which they were finished. */
	while (list) {
		struct offload_memory *next = list->next;
		list->next = first;
		first = list;
		list = next;
	}
	while (first) {
		struct offload_memory *memory = first;
		first = memory->next;
		if (memory->freeing)
			host_pool_forget(offload, memory);
		else
			host_pool_made(offload, memory);
	}
}
