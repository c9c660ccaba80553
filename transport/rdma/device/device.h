/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device - the ports of this host that can speak RDMA ("rails"), and how they are.
 *
 * The devices are opened at the start; those that do not open are logged and left out. Each port of
 * an opened device is a rail. It is up when its link is active and it has an address that others
 * can reach; it goes down and comes back with the port's and the address table's events.
 *
 * A device may be lost: pulled out, reset. Its rails are gone then. Once nobody needs what is left
 * of it, it is closed, and looked for from time to time; when it is there again, by the same name
 * and at the same place, it is opened, its rails come up, and regions are registered with it anew.
 *
 * Who owns what of a device: whoever has queue pairs of a rail, or keys of regions that he uses
 * with them, *holds* the rail (rail_hold; queues do). While it is held, the device, the user's
 * completion queues on it (rails_user.closing) and the keys of regions stay what they are, and a
 * device that is lost cannot be held. So keys and queue pairs that are used together are of one
 * opening of the device, never of two: keys of an old one may name other memory of the new one.
 *
 * Threads: rails_new and rails_free are the owner's. All state changes happen on the keeper's loop,
 * and so do the user's callbacks. rail_status, rail_endpoint, rail_hold and the like are for any
 * thread.
 */
#ifndef TH_TRANSPORT_RDMA_DEVICE_DEVICE_H
#define TH_TRANSPORT_RDMA_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "transport/loop/mover_loop.h"
#include "transport/rdma/device/gid.h"
#include "transport/rdma/device/verbs.h"
#include "transport/rdma/engine/endpoint.h"

#define RAILS_MAX 16u /* a set of rails is a bit mask: bit i is rail i */
#define RAIL_NAME_BYTES (VERBS_NAME_BYTES + 12u)
#define RAIL_WHY_BYTES TH_SENTENCE_BYTES

struct rails_config {
	struct gid_rule gid;
	uint32_t mtu_bytes; /* at most */
	uint32_t reads;     /* outstanding READs of a queue pair, at most */
	uint16_t pkey_index;
	uint8_t service_level, traffic_class;
	uint8_t timeout; /* 4.096 us x 2^timeout */
	uint8_t retries; /* 0 .. 7 */
	/* Until a device that was lost is looked for; then twice as long each time, up to 30 s. */
	int64_t look_ns;
	int64_t selfread_ns; /* until a READ of GPU memory by its own device is given up */
	/* Only these rails, "mlx5_0" (all its ports) or "mlx5_0/1"; none named: all. Borrowed
	 * during rails_new. */
	const char *const *names;
	uint32_t num_names;
};

/* What is right unless somebody knows better. */
struct rails_config rails_config_default(void);

enum rail_state {
	RAIL_DOWN, /* for now: why says what is missing */
	RAIL_UP,
	RAIL_GONE, /* its device is lost; it may come back */
};

struct rail_status {
	char name[RAIL_NAME_BYTES]; /* "mlx5_0/1" */
	char pci[VERBS_PCI_BYTES];
	enum rail_state state;
	char why[RAIL_WHY_BYTES]; /* empty when up */
	struct verbs_info info;
	struct verbs_port port;
	struct verbs_gid gid; /* when up */
	uint64_t changes;     /* of the state, since the start */
	uint64_t bytes_registered;
	uint32_t num_mrs;
	uint32_t num_failed; /* registrations that failed; they are tried again */
	char failed_why[RAIL_WHY_BYTES];
};

struct rails;

/* On the keeper's thread. Each may be NULL. */
struct rails_user {
	void *arg;
	/* The state, or the address, of the rail is another. Queue pairs of a rail that is not up,
	 * or whose address changed, reach nobody any more. */
	void (*changed)(void *arg, uint32_t rail);
	/* All queue pairs on completion queues of the rail's device are lost. */
	void (*completions_lost)(void *arg, uint32_t rail);
	/* One queue pair failed outside of its completions. */
	void (*queue_failed)(void *arg, uint32_t rail, uint32_t qpn);
	/* Its device was lost, nobody holds the rail, and all queue pairs are freed: what the user
	 * has made of the device must go now. */
	void (*closing)(void *arg, uint32_t rail);
	/* It is open again, nobody holds the rail yet: the user makes anew what he needs. 0; or
	 * -errno: then `closing` follows for all rails of the device, and a later try. */
	int (*opened)(void *arg, uint32_t rail);
};

/*
 * Opens the devices and says in the log what there is. No device at all is no failure: there are 0
 * rails. keeper must live until rails_free. Not on the keeper's thread. 0 or -errno.
 */
TH_MUST_USE int rails_new(struct verbs verbs, const struct rails_config *config,
	struct loop *keeper, const struct rails_user *user, struct rails **ret_rails);
/* Not on the keeper's thread: waits for it. All regions are gone, all queue pairs and completion
 * queues freed. */
void rails_free(struct rails *rails);
/* Not on the keeper's thread: after it no device is opened or closed, and no callback comes. */
void rails_stop(struct rails *rails);
/* The keeper's loop calls it by its clock, until rails_free. Returns when next. */
int64_t rails_tick(struct rails *rails, int64_t now_ns);

uint32_t rails_count(const struct rails *rails);
/* That are not gone yet. */
uint32_t rails_regions(const struct rails *rails);
/* Which rails are up; which are not gone. */
uint32_t rails_up(struct rails *rails);
uint32_t rails_there(struct rails *rails);
void rail_status(struct rails *rails, uint32_t rail, struct rail_status *ret_status);

const struct verbs_ops *rails_ops(const struct rails *rails);
/* False: its device is lost. Who holds it shall let go soon after it is lost. */
bool rail_hold(struct rails *rails, uint32_t rail);
void rail_unhold(struct rails *rails, uint32_t rail);
/* For who holds it, and in `opened`. */
struct verbs_device *rail_device(const struct rails *rails, uint32_t rail);
/* After so long without an answer a device asks again (rails_config.timeout); 0: never. */
int64_t rails_answer_ns(const struct rails *rails);
/* Like rail_status, for those who look often. */
const char *rail_name(const struct rails *rails, uint32_t rail);
const struct verbs_info *rail_info(const struct rails *rails, uint32_t rail);

/* The rail's own end, without queue pairs (queues.h). TH_E_NO_PATH and why when it is not up. */
TH_MUST_USE int rail_endpoint(struct rails *rails, uint32_t rail, struct endpoint *ret_endpoint,
	struct endpoint_port *ret_port, struct th_err *ret_err);

/* Once in the life of a rail: says that what was agreed with this peer is slow. */
void rail_warn_slow(
	struct rails *rails, uint32_t rail, const char *peer, uint32_t mtu_bytes, uint32_t reads);

#endif
