/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs - what the RDMA engine asks of devices, as a table of calls.
 *
 * Behind it is libibverbs (verbs_ib.c) or, in tests, a device in memory with scripted completions,
 * faults and virtual time. The engine needs little: registered memory, reliable-connected queue
 * pairs that READ, one kind of completion queue. There is no call that would make memory remotely
 * writable.
 *
 * Threads: calls about different objects are independent. Those about one object are made by one
 * thread at a time, but for read-only queries. All calls but cq_poll, cq_arm and post_reads may
 * enter the kernel and take milliseconds. Errors are -errno of the call that failed.
 */
#ifndef TH_TRANSPORT_RDMA_DEVICE_VERBS_H
#define TH_TRANSPORT_RDMA_DEVICE_VERBS_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"

#define VERBS_NAME_BYTES 64u
#define VERBS_PCI_BYTES 16u
#define VERBS_GID_BYTES 16u

enum verbs_link { VERBS_LINK_NONE, VERBS_LINK_INFINIBAND, VERBS_LINK_ETHERNET };
enum verbs_gid_type { VERBS_GID_IB, VERBS_GID_ROCE_V1, VERBS_GID_ROCE_V2 };

struct verbs_info {                  /* of a device; immutable while it is open */
	char name[VERBS_NAME_BYTES]; /* "mlx5_0" */
	char pci[VERBS_PCI_BYTES];   /* "0000:3b:00.0"; empty: it is not on a PCI bus */
	uint32_t num_ports;          /* 1 .. num_ports */
	uint32_t reads_out_max;      /* outstanding READs of one queue pair as the initiator */
	uint32_t reads_in_max;       /* the same, as the responder */
	uint64_t mr_bytes_max;       /* of one region */
	uint32_t mrs_max, qps_max, qp_depth_max, cq_depth_max;
	bool relaxed_ordering; /* VERBS_RELAXED has an effect */
	bool dmabuf;           /* reg_dmabuf may work */
};

struct verbs_port {
	enum verbs_link link;
	bool active;
	uint32_t mtu_bytes;       /* the active one: 256 .. 4096 */
	uint16_t lid;             /* InfiniBand */
	uint64_t bits_per_second; /* 0: not known */
};

struct verbs_gid {
	uint32_t index; /* of the port's table; it moves when addresses come and go */
	enum verbs_gid_type type;
	uint8_t raw[VERBS_GID_BYTES]; /* network order; IPv4 as ::ffff:a.b.c.d */
};

enum verbs_access {
	VERBS_LOCAL_WRITE = 1 << 0, /* READs land in it */
	VERBS_REMOTE_READ = 1 << 1, /* peers read it: sources only */
	VERBS_RELAXED = 1 << 2,     /* relaxed ordering, where offered */
};

struct verbs_mr {
	uint32_t lkey, rkey;
	void *handle; /* the implementation's */
};

/* What a queue pair needs to know of its peer, both ends' minima already taken. */
struct verbs_path {
	uint32_t port, gid_index; /* own */
	uint16_t pkey_index;      /* own */
	uint8_t gid[VERBS_GID_BYTES];
	uint16_t lid;
	bool global;                /* a GRH: always on Ethernet */
	uint32_t qpn, psn, own_psn; /* the peer's, and the first packet number that we send */
	uint32_t mtu_bytes;
	uint32_t reads_out, reads_in;
	uint8_t service_level, traffic_class;
	uint8_t timeout; /* 4.096 us x 2^timeout; the verdict comes from elsewhere, see lane.h */
	uint8_t retries; /* 0 .. 7 */
};

struct verbs_read {
	uint64_t id; /* comes back in verbs_done */
	uint64_t local, remote;
	uint32_t lkey, rkey;
	uint32_t bytes; /* not 0 */
	bool signalled;
};

enum verbs_status {
	VERBS_OK,
	VERBS_FLUSHED, /* behind an error, or after qp_fail */
	VERBS_ACCESS,  /* the peer's memory is not what was said: its region is gone */
	VERBS_LOCAL,   /* our own memory or request: a defect, or a region that is gone */
	VERBS_GONE,    /* no answer within all retries */
	VERBS_OTHER,
};

struct verbs_done { /* of an error only id, qpn and status mean anything */
	uint64_t id;
	uint32_t qpn;
	enum verbs_status status;
};

enum verbs_event_kind {
	VERBS_EVENT_PORT_UP = 1,
	VERBS_EVENT_PORT_DOWN,
	VERBS_EVENT_GIDS,   /* the port's table, its LID or its partition keys have changed */
	VERBS_EVENT_QP,     /* a queue pair failed outside of its completions */
	VERBS_EVENT_CQ,     /* a completion queue overran: all its queue pairs are lost */
	VERBS_EVENT_DEVICE, /* the device is gone: everything of it is lost */
	VERBS_EVENT_OTHER,
};

struct verbs_event {
	enum verbs_event_kind kind;
	uint32_t port; /* PORT_*, GIDS */
	uint32_t qpn;  /* QP */
};

struct verbs_device; /* the implementation's */
struct verbs_cq;
struct verbs_qp;

struct verbs_ops {
	/* Opens all devices that can be opened and logs the others with the reason. Returns how
	 * many (0 where there is no RDMA), or -errno. */
	int (*open)(void *context, struct verbs_device **ret_devices, uint32_t devices_max);
	/* One that was lost and closed, as it was known: by its name and, where it has one, its
	 * place on the bus. 0, -ENODEV: there is none (yet), or -errno. Logs nothing. */
	int (*open_again)(
		void *context, const struct verbs_info *info, struct verbs_device **ret_device);
	void (*close)(struct verbs_device *device);
	void (*info)(struct verbs_device *device, struct verbs_info *ret_info);
	int (*port)(struct verbs_device *device, uint32_t port, struct verbs_port *ret_port);
	/* How many, or -errno. Entries that this network namespace may not see are left out. */
	int (*gids)(struct verbs_device *device, uint32_t port, struct verbs_gid *ret_gids,
		uint32_t gids_max);

	/* iova: the address by which READs name its first byte, here and at peers. */
	int (*reg)(struct verbs_device *device, void *data, uint64_t bytes, uint64_t iova,
		unsigned access, struct verbs_mr *ret_mr);
	int (*reg_dmabuf)(struct verbs_device *device, int fd, uint64_t offset, uint64_t bytes,
		uint64_t iova, unsigned access, struct verbs_mr *ret_mr);
	int (*dereg)(struct verbs_device *device, struct verbs_mr *mr);

	int (*cq_new)(struct verbs_device *device, uint32_t depth, struct verbs_cq **ret_cq);
	void (*cq_free)(struct verbs_cq *cq);
	/* How many, or -errno. */
	int (*cq_poll)(struct verbs_cq *cq, struct verbs_done *ret_done, uint32_t done_max);
	/* The next completion makes cq_fd readable. Poll once more then: it may be there. */
	int (*cq_arm)(struct verbs_cq *cq);
	int (*cq_fd)(struct verbs_cq *cq);
	void (*cq_quiet)(struct verbs_cq *cq); /* takes what made cq_fd readable */

	/* depth: requests that are posted and not done. */
	int (*qp_new)(struct verbs_device *device, struct verbs_cq *cq, uint32_t depth,
		struct verbs_qp **ret_qp, uint32_t *ret_qpn);
	int (*qp_connect)(struct verbs_qp *qp, const struct verbs_path *path);
	/* Everything that is posted comes back FLUSHED; nothing of it moves bytes after that. */
	int (*qp_fail)(struct verbs_qp *qp);
	/* After it no byte moves through it in either direction: the fence. */
	int (*qp_free)(struct verbs_qp *qp);
	/* 0: all of them, in order, by one doorbell. -errno: none. Positive: it failed midway, and
	 * so many of them, from the first on, lie in the queue: the queue pair is of no more use.
	 */
	int (*post_reads)(struct verbs_qp *qp, const struct verbs_read *reads, uint32_t count);

	int (*event_fd)(struct verbs_device *device);
	/* 1 and an event, 0: none now, or -errno. Never blocks. */
	int (*event_next)(struct verbs_device *device, struct verbs_event *ret_event);
};

/* The table and what it is called with. NULL context but for the tests' own device. */
struct verbs {
	const struct verbs_ops *ops;
	void *context;
};

#define VERBS_LIBRARY "libibverbs.so.1"

/*
 * libibverbs, loaded by the first call, which no other may overtake. 0, or with a sentence: -ENOENT
 * where it cannot be loaded, -ENOSYS where it is there and lacks something.
 */
int verbs_ib(struct verbs *ret_verbs, struct th_err *err);

/* By what a device says to no bytes of a dma-buf that is none: EBADF or EINVAL where it takes them,
 * by what the kernel looks at first. */
static inline bool
verbs_takes_dmabuf(int code)
{
	return code != -EOPNOTSUPP && code != -EPROTONOSUPPORT;
}

#endif
