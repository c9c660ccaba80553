/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selfread - whether a device can read the memory of a GPU, tried before anybody relies on it.
 *
 * On some hosts a NIC may write a GPU's memory and not read it. Registering it goes well there, and
 * only peers would notice, by READs that fail as those do whose path is broken. So the rail READs
 * some of it itself, through a queue pair that is connected to itself.
 *
 * What a queue pair could not do says something of the GPU only where it has just READ memory of
 * our own. A rail that is down, or that does not reach itself, tells nothing: then all is well, and
 * the first READ of a peer tells.
 *
 * Threads: the rail's registrar, which waits here; after it whoever frees the rails.
 */
#ifndef TH_TRANSPORT_RDMA_MEMORY_SELFREAD_H
#define TH_TRANSPORT_RDMA_MEMORY_SELFREAD_H

#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "transport/rdma/device/verbs.h"

struct rail_port;

#define SELFREAD_NS INT64_C(1000000000) /* until a READ is given up */

struct selfread { /* of a rail; all zeros: there is none yet */
	struct verbs_cq *cq;
	struct verbs_qp *qp;
	uint8_t *data; /* owns: mmap. Where bytes land */
	struct verbs_mr mr;
	int64_t not_before_ns; /* the rail does not reach itself */
};

/* 0; -ENODEV: the device is lost; or -EREMOTEIO and why. */
TH_MUST_USE int selfread_try(struct rail_port *port, const struct verbs_mr *mr, uint64_t address,
	uint64_t bytes, struct th_err *ret_err);
/* Of zeros it is harmless. */
void selfread_close(struct rail_port *port);

#endif
