/* SPDX-License-Identifier: Apache-2.0 */
/*
 * endpoint - one end of the queue pairs of a lane, as the two agents tell each other, and what the
 * two ends agree on.
 *
 * Each end says what it could do; what is used is the lesser of both, computed alike at both ends.
 * READs go one way only: the reader initiates, the source responds. So a reader's queue pairs
 * answer no READ at all. Pure; any thread.
 */
#ifndef TH_TRANSPORT_RDMA_ENGINE_ENDPOINT_H
#define TH_TRANSPORT_RDMA_ENGINE_ENDPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "transport/rdma/device/verbs.h"

#define ENDPOINT_QPS 2u        /* of one lane at each end, unless one has less */
#define ENDPOINT_READS_MAX 16u /* outstanding READs of one queue pair that we ask for */
#define ENDPOINT_MTU_MIN 256u
#define ENDPOINT_MTU_MAX 4096u
#define ENDPOINT_NUMBER_MAX 0xffffffu /* of a queue pair or packet: 24 bits */

/* What travels. Plain numbers, so that the frame's codec needs to know nothing else. */
struct endpoint {
	enum verbs_link link;
	uint8_t gid[VERBS_GID_BYTES]; /* network order; IPv4 as ::ffff:a.b.c.d */
	uint16_t lid;                 /* InfiniBand; 0 on Ethernet */
	uint32_t mtu_bytes;
	uint32_t reads_out; /* outstanding READs of one queue pair: as the initiator */
	uint32_t reads_in;  /* and as the responder */
	uint32_t qpns[ENDPOINT_QPS];
	uint32_t psns[ENDPOINT_QPS]; /* the first packet number that this end sends */
};

enum endpoint_role { ENDPOINT_READER, ENDPOINT_SOURCE };

/* What an own port adds that the peer need not know. */
struct endpoint_port {
	uint32_t port, gid_index;
	uint16_t pkey_index;
	uint8_t service_level, traffic_class, timeout, retries;
};

/* Whether a peer's endpoint is one at all: every number within its range. TH_E_PROTOCOL and which
 * one is not. */
TH_MUST_USE int endpoint_check(const struct endpoint *peer, struct th_err *ret_err);

/* Whether the two could talk: the same kind of link. The path proves itself later. TH_E_NO_PATH. */
TH_MUST_USE int endpoint_fits(
	const struct endpoint *own, const struct endpoint *peer, struct th_err *ret_err);

/* Outstanding READs of each queue pair from reader to source; not 0 for checked endpoints. */
uint32_t endpoint_reads(const struct endpoint *reader, const struct endpoint *source);
uint32_t endpoint_mtu(const struct endpoint *own, const struct endpoint *peer);

/* How the own queue pair number index reaches the peer's of the same number. */
void endpoint_path(const struct endpoint *own, const struct endpoint_port *port,
	const struct endpoint *peer, enum endpoint_role own_role, uint32_t index,
	struct verbs_path *ret_path);

#endif
