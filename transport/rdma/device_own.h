/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_own - what device.c, queues.c and region.c share, and nobody else sees.
 */
#ifndef TH_TRANSPORT_RDMA_DEVICE_OWN_H
#define TH_TRANSPORT_RDMA_DEVICE_OWN_H

#include <pthread.h>
#include <semaphore.h>
#include <sys/queue.h>

#include "transport/rdma/device.h"

struct opened { /* a device */
	struct rails *rails;
	struct verbs_device *device; /* owns */
	struct verbs_info info;
	uint32_t first_rail, num_rails;
	uint32_t num_mrs;           /* atomic */
	struct stream events;       /* the keeper's */
	bool gone;                  /* written on the keeper's thread; atomic */
	struct verbs_cq *source_cq; /* owns; NULL until a source needs it (queues_new) */
};

struct rail_port {
	struct opened *opened;
	uint32_t port;
	char name[RAIL_NAME_BYTES];
	struct rails *rails;
	struct loop *registrar; /* owns: registers memory and deregisters it (region.c) */
	/* The registrar's: all that there are with this rail, the newest first. */
	LIST_HEAD(, registration) registrations;
	struct loop_task released_task; /* memory was given back, here or by another rail */
	bool warned;                    /* atomic */
	uint64_t bytes_registered;      /* atomic, as the next */
	uint32_t num_mrs;
	struct rail_status status; /* state and all behind it: guarded by rails.lock */
	uint32_t num_failed;       /* so are these: registrations, and why the last one did */
	char failed_why[RAIL_WHY_BYTES];
};

/* Of a registrar, whose rail it is (region.c). */
void rail_registrar_init(struct rail_port *port);
int64_t rail_registrar_tick(void *arg, int64_t now_ns);

struct rails {
	const struct verbs_ops *ops;
	struct rails_config config;
	struct loop *keeper;
	struct rails_user user;
	pthread_mutex_t lock;
	pthread_mutex_t source_cq_lock; /* of each opened's */
	uint32_t num_opened, num_rails;
	struct opened opened[RAILS_MAX];
	struct rail_port rails[RAILS_MAX];
	uint32_t num_regions; /* atomic */
	struct loop_task watch_task, unwatch_task;
	sem_t unwatched;
};

#endif
