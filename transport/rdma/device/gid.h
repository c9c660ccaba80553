/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gid - which address of a port to use, by what it is and how far it reaches.
 *
 * Never by a fixed index: the place in the table moves with every address that comes or goes. On
 * Ethernet: RoCE v2 only, IPv4 first, then global IPv6, then site-local IPv6; of equals the one
 * with the lowest index. RoCE v1, and addresses that no router forwards (fe80::/10, 169.254/16),
 * only when the configuration says so; what means nobody, this host or everybody never. On
 * InfiniBand: one with a subnet of its own before one with the default subnet. Pure; any thread.
 */
#ifndef TH_TRANSPORT_RDMA_DEVICE_GID_H
#define TH_TRANSPORT_RDMA_DEVICE_GID_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "transport/rdma/device/verbs.h"

#define GID_TEXT_BYTES 48u
#define GID_INDEX_CHOSEN (-1)

struct gid_rule {
	int32_t index;   /* GID_INDEX_CHOSEN, or this one whatever it is */
	bool link_local; /* also those that no router forwards, after all others */
	bool roce_v1;    /* also RoCE v1, which no router forwards, last */
};

/* The place in gids; or TH_E_NO_PATH and why none of them will do. */
TH_MUST_USE int gid_choose(const struct verbs_gid *gids, uint32_t count, enum verbs_link link,
	const struct gid_rule *rule, struct th_err *ret_err);

/* "10.1.2.3" or "2001:db8::1". */
const char *gid_text(const uint8_t gid[VERBS_GID_BYTES], char ret_text[GID_TEXT_BYTES]);
const char *gid_type_text(enum verbs_gid_type type);

#endif
