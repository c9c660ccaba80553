/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_own - what device.c, device_back.c, queues.c, region.c and selfread.c share, and nobody
 * else sees.
 */
#ifndef TH_TRANSPORT_RDMA_DEVICE_DEVICE_OWN_H
#define TH_TRANSPORT_RDMA_DEVICE_DEVICE_OWN_H

#include <pthread.h>
#include <semaphore.h>
#include <sys/queue.h>

#include "transport/rdma/device/device.h"
#include "transport/rdma/memory/selfread.h"

enum opened_phase { OPENED_THERE, OPENED_HELD, OPENED_LEAVING, OPENED_AWAY }; /* device_back.c */

struct opened_device { /* a device */
	struct rails *rails;
	/* Owns; NULL while it is away. The keeper's, and whoever's who holds it, and the
	 * registrars', from which it is taken before it is closed. */
	struct verbs_device *device;
	struct verbs_info info; /* immutable: as it was at first */
	uint32_t first_rail, num_rails;
	uint32_t num_mrs;     /* atomic */
	struct stream events; /* the keeper's */
	bool gone;            /* written on the keeper's thread under the lock of rails; atomic */
	uint32_t holds;       /* guarded by it, as lost_ns */
	int64_t lost_ns;
	struct verbs_cq *source_cq; /* owns; NULL until a source needs it (queues_new) */
	uint32_t leaving;           /* atomic: registrars that have not let go yet */
	struct loop_task unheld_task, left_task; /* to the keeper */
	/* The keeper's. */
	enum opened_phase phase;
	bool said;                           /* that it cannot be closed */
	int code;                            /* why it could not be opened again, as said */
	int64_t there_ns, look_ns, pause_ns; /* since when; when to look for it */
};

void opened_init(struct opened_device *opened);
/* The keeper's: its events; that it is lost. */
void opened_watch(struct opened_device *opened);
void opened_lose(struct opened_device *opened);
/* A registrar's: it has let go (lost_task). */
void opened_left(struct opened_device *opened);

struct rail_port {
	struct opened_device *opened;
	uint32_t port;
	char name[RAIL_NAME_BYTES];
	struct rails *rails;
	struct loop *registrar; /* owns: registers memory and deregisters it (region.c) */
	/* The registrar's: all that there are with this rail, the newest first. */
	LIST_HEAD(, rail_registration) registrations;
	struct selfread selfread;       /* also its own */
	struct loop_task released_task; /* memory was given back, here or by another rail */
	struct loop_task lost_task;     /* the device is lost: nothing is registered any more */
	struct loop_task back_task;     /* it is back: all is registered again */
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
/* The keeper's: what became of the rail, for the user as well. */
void rails_look(struct rails *rails, uint32_t index);

struct rails {
	const struct verbs_ops *ops;
	void *context;
	struct rails_config config;
	struct loop *keeper;
	struct rails_user user;
	pthread_mutex_t lock;
	pthread_mutex_t source_cq_lock; /* of each opened's */
	uint32_t num_opened, num_rails;
	struct opened_device opened[RAILS_MAX];
	struct rail_port rails[RAILS_MAX];
	uint32_t num_regions; /* atomic */
	struct loop_task watch_task, unwatch_task;
	sem_t unwatched;
	bool stopped; /* the keeper's */
};

#endif
