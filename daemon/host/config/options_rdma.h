/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options_rdma - the keys of RDMA: what each means and may be. Read-only after the start. Pure.
 */
#ifndef TH_DAEMON_HOST_CONFIG_OPTIONS_RDMA_H
#define TH_DAEMON_HOST_CONFIG_OPTIONS_RDMA_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/err.h"

#define OPTIONS_RDMA_TEXT_BYTES 1024

enum options_rdma_mode {
	OPTIONS_RDMA_AUTO, /* where there is a device */
	OPTIONS_RDMA_ON,   /* there must be one */
	OPTIONS_RDMA_OFF,
};

struct options_rdma {
	enum options_rdma_mode mode;
	char devices[OPTIONS_RDMA_TEXT_BYTES]; /* "mlx5_0,mlx5_1/2"; empty: all */
	char rails[OPTIONS_RDMA_TEXT_BYTES];   /* see rail_places.h; empty: by hwloc */
	int32_t gid_index;                     /* -1: by type and reach */
	bool link_local, roce_v1;          /* also addresses that no router forwards */
	uint32_t mtu;                      /* of packets, at most */
	uint32_t service_level, traffic_class, pkey_index;
	uint32_t timeout; /* 4.096 us x 2^timeout */
	uint32_t retries;
	uint32_t depth;         /* outstanding READs of a queue pair, at most */
	uint64_t slice, window; /* bytes of a READ, and under way on a device */
	uint64_t stage;         /* bytes of memory that is copied to, all together; 0: none */
};

struct options_rdma options_rdma_default(void);
/* key is "rdma" or begins with "rdma.". 0; TH_E_INVALID and a sentence with key and value. */
int options_rdma_set(
	struct options_rdma *rdma, const char *key, const char *value, struct th_err *err);
/* What no single key shows. */
int options_rdma_check(const struct options_rdma *rdma, struct th_err *err);

#endif
