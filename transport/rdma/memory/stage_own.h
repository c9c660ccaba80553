/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage_own - the structures of stage.c, the pool, and slab.c, each slab by itself.
 */
#ifndef TH_TRANSPORT_RDMA_MEMORY_STAGE_OWN_H
#define TH_TRANSPORT_RDMA_MEMORY_STAGE_OWN_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "transport/cuda/agent/gpus.h"
#include "transport/loop/mover_loop.h"
#include "transport/part/unmap.h"
#include "transport/rdma/memory/stage.h"

enum slab_state {
	SLAB_READY, /* the host's from the beginning */
	SLAB_MAKING,
	SLAB_REGISTERING,
	SLAB_LEAVING,
};

struct slab {
	struct stage *stage; /* there as long as the slab */
	/* Immutable when READY, and the keeper's until then. */
	uint8_t *data; /* owns: pinned_pages.h; NULL: it is on a GPU, or there is no memory */
	struct gpu_space *space; /* owns a reference; NULL: it is the host's */
	struct gpus *gpus;       /* borrows: of its part; NULL: that has no row on one */
	struct gpus_host *host; /* owns, until it is retired: data, for those; NULL: not for them */
	int fd;                 /* owns: of data, as long as some GPU's process may have it */
	struct region *region;  /* owns a reference, until it is retired; NULL: not yet */
	uint32_t dirty;         /* atomic mask: slots that somebody wrote to, or a NIC */
	uint8_t gpu[16];        /* where it is to lie, if space is not NULL */
	struct loop_task made_task;
	int made_code;          /* written before made_task is posted */
	gpus_close_fd close_fd; /* of the dma-buf */
	/* Guarded by the stage's lock. */
	TAILQ_ENTRY(slab) idle_entry;
	LIST_ENTRY(slab) entry;
	enum slab_state state;
	uint32_t users;
	bool is_idle, condemned, retired;
	uint32_t known_to; /* devices, GPUs' processes: one each as long as some may know it */
	int64_t made_ns, idle_ns;
	struct unmap unmap; /* in the end */
};

TAILQ_HEAD(idle_slabs, slab);
LIST_HEAD(slabs, slab);

struct no_slabs { /* a GPU that had none for NICs when it was asked last */
	uint8_t gpu[16];
	int64_t until_ns; /* it is not asked again before */
	int64_t pause_ns; /* how long that pause was; 0: there is no such GPU here */
};

struct stage {
	struct rdma *rdma; /* borrows, until stage_close */
	/* Immutable, when legs are there. */
	uint64_t budget_bytes;
	int64_t idle_ns;
	uint32_t (*near)(void *arg, const uint8_t uuid[16]);
	void *near_arg;
	struct loop_task wake_task;
	pthread_mutex_t lock; /* of all that follows */
	struct slabs slabs;
	struct idle_slabs idle; /* the one that came last is the first */
	uint64_t num_slabs, num_on_gpus, num_in_use, num_refused;
	struct no_slabs none[GPUS_MAX];
	uint32_t next_none;
	bool closed, left; /* left: stage_free was called */
};

struct known { /* what is given back without the lock */
	struct region *region;
	struct gpus_host *host;
};

/* ---- slab.c ---- */

/* NULL: there is no memory. For the thread that takes it, as the next two. */
struct slab *slab_new(struct stage *stage, struct gpus *gpus);
/* It is MAKING, until slab_make. */
struct slab *slab_new_on_gpu(
	struct stage *stage, struct gpus *gpus, struct gpu_space *space, const uint8_t gpu[16]);
/* told: it was said before. */
void slab_say_none(bool told, const char *why);
/* When others may find it. */
void slab_make(struct slab *slab);
/* Under the lock. Nobody names it any more. */
struct known slab_retire(struct slab *slab);
void slab_let_go(struct known known);

/* ---- stage.c ---- */

/* Under the lock, as the next two. The next legs do not try at once, and the more often it comes to
 * nothing the longer, but for what passes. */
void stage_note_none(struct stage *stage, const uint8_t gpu[16], bool passes);
void stage_note_some(struct stage *stage, const uint8_t gpu[16]);
/* It came to nothing the last time, too: that was said then. */
bool stage_had_none(const struct stage *stage, const uint8_t gpu[16]);
/* The last slab has gone after its end. */
void stage_destroy(struct stage *stage);

#endif
