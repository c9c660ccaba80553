/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_rdma - RDMA devices in memory, behind the table of verbs.h.
 *
 * A fabric has hosts, a host has devices; all are in this process. Queue pairs are connected by
 * number and GID as real ones are, both sides' packet numbers must agree, and keys, bounds and
 * access of regions are checked at every READ. READs of one queue pair complete in order; at most
 * reads_out of them are on the wire, the others wait in the device. One that fails takes all behind
 * it along. What is unsignalled and good completes silently. Room in a send queue comes back when a
 * completion is polled, as with real devices.
 *
 * In virtual time a READ takes the latency, and its bytes pass both devices at their rates, one
 * READ after the other; nothing happens but in fake_rdma_run. Otherwise it is done when post_reads
 * returns, unless it is held back; then all calls are for any thread, and completion channels are
 * real.
 */
#ifndef TH_TESTS_SUPPORT_RDMA_FAKE_RDMA_H
#define TH_TESTS_SUPPORT_RDMA_FAKE_RDMA_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/rdma/device/verbs.h"

#define FAKE_LATENCY_NS 10000
#define FAKE_GIDS_MAX 8u
#define FAKE_PORTS_MAX 4u
#define FAKE_SEEN_MAX 64u
#define FAKE_ALWAYS UINT32_MAX

struct fake_rdma;
struct fake_host;

struct fake_device_config { /* zeros: what a good device has */
	const char *name;   /* "fake<N>" */
	const char *pci;
	uint32_t num_ports;
	uint32_t reads_out_max, reads_in_max; /* 16 */
	uint64_t mr_bytes_max;                /* no limit */
	uint32_t mrs_max, qps_max, qp_depth_max, cq_depth_max;
	bool relaxed_ordering, dmabuf;
	bool infiniband;           /* by LID, without GIDs but the port's own */
	bool without_lid;          /* no subnet manager has come by */
	uint32_t mtu_bytes;        /* 4096 */
	uint64_t bytes_per_second; /* virtual time; 0: no time passes */
	int64_t latency_ns;        /* there and back; of two devices the mean */
	bool flushes_signalled_only;
};

struct fake_counters { /* of a device */
	uint64_t posts, reads, signalled, refused;
	uint64_t bytes_in, bytes_out; /* read by it, read from it */
	uint64_t regs, deregs, qps_made, qps_connected, qps_failed, qps_freed;
	uint64_t connects_held; /* so far */
	uint64_t tries;         /* to open it again */
	uint64_t regs_held;     /* registrations and their ends that wait now */
	uint64_t events;        /* taken */
	uint64_t polls, arms, overruns, flushed, failed;
	uint64_t mrs, qps, cqs, opens; /* there now */
	uint32_t out_max;              /* most READs on the wire of one queue pair */
	/* Virtual time: from a READ's way onto the wire until all of it came, at most. Who hears
	 * nothing for its timeout asks again, and the answers to both come. */
	int64_t slowest_ns;
	/* READs that it was asked for and that are not done, times for how long. */
	uint64_t outstanding_ns;
};

struct fake_reg {
	void *data; /* NULL: of a dma-buf */
	int fd;     /* -1: of none */
	uint64_t offset, bytes, iova;
	unsigned access;
	uint32_t key; /* 0: refused */
};

struct fake_seen { /* what a device was asked; the first so many of each */
	uint32_t num_regs, num_paths;
	struct fake_reg regs[FAKE_SEEN_MAX];
	struct verbs_path paths[FAKE_SEEN_MAX];
	struct verbs_read last_read;
};

struct fake_rdma *fake_rdma_new(bool virtual_time);
/* Everything that was made must have been freed. */
void fake_rdma_free(struct fake_rdma *fake);

struct fake_host *fake_rdma_host(struct fake_rdma *fake);
/* How devices see the memory behind a dma-buf: a new mapping, or NULL with errno. Else it is mapped
 * as a file. Before anything is registered. */
void fake_rdma_map_dmabuf(struct fake_rdma *fake,
	void *(*map)(void *arg, int fd, uint64_t offset, size_t bytes), void *arg);
/* For the agent of that host; it opens the host's devices. */
struct verbs fake_rdma_verbs(struct fake_host *host);
/* config may be NULL. The devices of a host are opened in this order. */
struct verbs_device *fake_rdma_device(
	struct fake_host *host, const struct fake_device_config *config);
/* What it says of itself. A test changes it while nobody asks; its name, and whether it is of
 * InfiniBand, stay as they were made. */
struct fake_device_config *fake_rdma_config(struct verbs_device *device);
/* A test reads it while the device is asked for nothing. */
const struct fake_seen *fake_rdma_seen(const struct verbs_device *device);
void fake_rdma_counters(struct verbs_device *device, struct fake_counters *ret_counters);

/* ---- virtual time ---- */

int64_t fake_rdma_now(const struct fake_rdma *fake);
/* When something happens next by itself; INT64_MAX: nothing will. */
int64_t fake_rdma_next(const struct fake_rdma *fake);
/* Goes on until then. */
void fake_rdma_run(struct fake_rdma *fake, int64_t until_ns);

/* ---- what goes wrong ---- */

/* The n-th READ (0: the next) that the device is asked for ends so. VERBS_GONE takes all retries.
 */
void fake_rdma_fail_read(struct verbs_device *device, uint32_t n, enum verbs_status status);
enum fake_call {
	FAKE_OPEN_AGAIN,
	FAKE_PORT,
	FAKE_REG,
	FAKE_DEREG,
	FAKE_QP_NEW,
	FAKE_QP_CONNECT,
	FAKE_QP_FREE,
	FAKE_POST,
	FAKE_CALLS
};
/* The next count calls fail with code. What they were to destroy or deregister is gone all the
 * same, although they say that it is not. */
void fake_rdma_refuse(struct verbs_device *device, enum fake_call call, uint32_t count, int code);
/* All calls after the next good ones. */
void fake_rdma_refuse_from(
	struct verbs_device *device, enum fake_call call, uint32_t good, int code);
/* The next post fails midway: so many of its READs lie in the queue. */
void fake_rdma_half_post(struct verbs_device *device, uint32_t taken);
/* Registrations and their ends wait until they are let go on. Not in virtual time. */
void fake_rdma_hold_regs(struct verbs_device *device, bool held);
/* Connecting takes so long, as where an address must be found first. Not in virtual time. */
void fake_rdma_slow_connects(struct verbs_device *device, int64_t duration_ns);
/* The next count connects wait; 0: they go on, and none waits any more. Not in virtual time. */
void fake_rdma_hold_connects(struct verbs_device *device, uint32_t count);
/* With its event. READs through it are tried again until their retries are used up. */
void fake_rdma_port_set(struct verbs_device *device, uint32_t port, bool active);
/* Its process is gone: it does not answer any more. */
void fake_rdma_vanish(struct verbs_device *device);
/* It is unplugged: what is posted comes back flushed, then all its calls fail. */
void fake_rdma_remove(struct verbs_device *device);
/* It is there again. False: not yet, somebody has the old one open. */
bool fake_rdma_return(struct verbs_device *device);
/* As if the completion queues of a device had overrun. */
void fake_rdma_break_cqs(struct verbs_device *device);
/* Flushed requests do not come back before their queue pair is destroyed. */
void fake_rdma_mute(struct verbs_device *device, bool muted);
/* It registers dma-bufs and cannot read them: whoever READs from there is told of an error. */
void fake_rdma_blind(struct verbs_device *device, bool blind);
/* Two devices do (not) reach each other. */
void fake_rdma_cut(struct verbs_device *a, struct verbs_device *b, bool cut);
void fake_rdma_set_rate(struct verbs_device *device, uint64_t bytes_per_second);
/* With its event. */
void fake_rdma_set_gids(struct verbs_device *device, uint32_t port, const struct verbs_gid *gids,
	uint32_t num_gids);
void fake_rdma_add_event(struct verbs_device *device, const struct verbs_event *event);
/* Behind its events the device's channel of them fails. */
void fake_rdma_fail_events(struct verbs_device *device, int code);

/* ---- without virtual time ---- */

/* READs that the device is asked for wait. */
void fake_rdma_hold(struct verbs_device *device, bool held);
/* So many of them go on, in the order of their queue pairs. Returns how many there were. */
uint32_t fake_rdma_let(struct verbs_device *device, uint32_t count);
/* All READs that get no answer have used up their retries. */
void fake_rdma_give_up(struct verbs_device *device);

#endif
