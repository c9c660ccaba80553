/* SPDX-License-Identifier: Apache-2.0 */
/* fake_wire - what the two halves of fake_rdma share. All under the fabric's lock. */
#ifndef TH_TESTS_SUPPORT_RDMA_FAKE_WIRE_H
#define TH_TESTS_SUPPORT_RDMA_FAKE_WIRE_H

#include <pthread.h>

#include "tests/support/rdma/fake_rdma.h"

#define FAKE_HOSTS_MAX 64u
#define FAKE_DEVICES_MAX 16u /* of one host */
#define FAKE_EVENTS_MAX 64u
#define FAKE_KEY_SHIFT 12u
#define FAKE_KEY_REGIONS (1u << FAKE_KEY_SHIFT)
#define FAKE_PS 1000 /* of one ns: READs at high rates take fractions */

struct fake_region {
	uint8_t *data; /* borrows; NULL: only its size matters */
	uint64_t bytes, iova;
	unsigned access;
	bool live;
	uint32_t key;
	int dmabuf_fd; /* owns; -1: it is of no dma-buf */
	void *map;     /* owns */
	uint64_t map_bytes;
};

struct fake_port {
	bool active;
	uint16_t lid;
	uint32_t num_gids;
	struct verbs_gid gids[FAKE_GIDS_MAX];
	int64_t in_free_ps, out_free_ps; /* when the wire has time for more */
};

struct fake_refusal { /* after the next good calls so many fail */
	uint32_t good, count;
	int code;
};

struct verbs_device {
	struct fake_rdma *fake;
	char name[VERBS_NAME_BYTES];
	struct fake_device_config config;
	struct fake_port ports[FAKE_PORTS_MAX + 1]; /* from 1 on */
	struct fake_region *regions;                /* owns */
	uint32_t num_regions, keys;
	int event_fd; /* owns */
	struct verbs_event events[FAKE_EVENTS_MAX];
	uint32_t num_events;
	int events_code; /* behind them; 0: more may come */
	bool removed, vanished, muted, held, blind;
	uint32_t let; /* READs that may go on although they are held */
	int64_t fail_at;
	enum verbs_status fail_status;
	int64_t connect_ns; /* atomic */
	bool hold_regs;     /* atomic */
	uint32_t hold_connects;
	bool connects_held; /* atomic */
	struct fake_refusal refusals[FAKE_CALLS];
	uint32_t half_post; /* READs that the next post takes before it fails; 0: all */
	uint64_t out;       /* READs posted and not done */
	int64_t out_since_ns;
	struct fake_counters counters;
	struct fake_seen seen;
};

struct fake_entry {
	struct verbs_done done;
	uint32_t upto; /* room up to there is free when it is polled */
};

struct verbs_cq {
	struct verbs_device *device;
	uint32_t depth, head, count, num_qps;
	struct fake_entry *entries; /* owns */
	int fd;                     /* owns */
	bool armed, broken;
};

struct fake_read {
	struct verbs_read read;
	enum verbs_status fate;
	uint32_t tries;
	bool due; /* its time has come */
};

enum fake_state { FAKE_NEW, FAKE_READY, FAKE_ERROR };

struct verbs_qp {
	struct verbs_device *device;
	struct verbs_cq *cq;
	enum fake_state state;
	struct verbs_path path;
	uint32_t qpn, depth;
	struct fake_read *reads;                  /* owns; by number modulo depth */
	uint32_t posted, issued, done, reclaimed; /* numbers, they run on */
	int64_t last_ps;                          /* when the last one issued will be done */
};

struct fake_happening {
	int64_t at_ps;
	uint64_t order;
	uint32_t qpn, number; /* of a queue pair, and of its READ */
};

struct fake_host {
	struct fake_rdma *fake;
	struct verbs_device *devices[FAKE_DEVICES_MAX];
	uint32_t num_devices;
};

struct fake_cut {
	const struct verbs_device *a, *b;
};

struct fake_rdma {
	bool virtual_time;
	void *(*map_dmabuf)(void *arg, int fd, uint64_t offset, size_t bytes);
	void *map_dmabuf_arg;
	pthread_mutex_t lock;
	int64_t now_ns;
	struct fake_host hosts[FAKE_HOSTS_MAX];
	uint32_t num_hosts;
	struct verbs_device **devices; /* owns */
	uint32_t num_devices;
	struct verbs_qp **qps; /* by number - 1; a number is never used again */
	uint32_t num_qps;
	struct fake_cut *cuts;
	uint32_t num_cuts;
	struct fake_happening *heap;
	uint32_t num_heap, heap_room;
	uint64_t order;
};

static inline void
fake_lock(struct fake_rdma *fake)
{
	pthread_mutex_lock(&fake->lock);
}

static inline void
fake_unlock(struct fake_rdma *fake)
{
	pthread_mutex_unlock(&fake->lock);
}

/* fake_rdma.c */
void fake_signal(int fd);
void fake_event(struct verbs_device *device, const struct verbs_event *event);
void fake_cq_push(struct verbs_cq *cq, struct verbs_qp *qp, uint64_t id, enum verbs_status status);
void fake_break_cq(struct verbs_cq *cq);

/* fake_wire.c */
struct verbs_qp *fake_qp(const struct fake_rdma *fake, uint32_t qpn);
void fake_qp_add(struct fake_rdma *fake, struct verbs_qp *qp);
void fake_qp_remove(struct fake_rdma *fake, struct verbs_qp *qp);
/* Into the error state, if it is not there; all that is posted comes back. */
void fake_qp_flush(struct verbs_qp *qp);
/* Puts on the wire what may be there. */
void fake_issue(struct verbs_qp *qp);
/* So many READs more are posted and not done. */
void fake_out(struct verbs_device *device, int64_t more);

#endif
