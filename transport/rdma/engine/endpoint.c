/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint - see endpoint.h. */
#include "transport/rdma/engine/endpoint.h"

#include <string.h>

#include "ipc/base/assert.h"

#define SUBNET_BYTES 8u

static bool
is_zero(const uint8_t *bytes, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		if (bytes[i] != 0)
			return false;
	}
	return true;
}

int
endpoint_check(const struct endpoint *peer, struct th_err *ret_err)
{
	if (peer->link != VERBS_LINK_INFINIBAND && peer->link != VERBS_LINK_ETHERNET)
		return th_fail(ret_err, TH_E_PROTOCOL, "endpoint: no such kind of link: %u",
			(unsigned)peer->link);
	if (!th_is_power_of_two_u64(peer->mtu_bytes) || peer->mtu_bytes < ENDPOINT_MTU_MIN ||
		peer->mtu_bytes > ENDPOINT_MTU_MAX)
		return th_fail(
			ret_err, TH_E_PROTOCOL, "endpoint: no such MTU: %u", peer->mtu_bytes);
	if (peer->reads_out == 0 || peer->reads_out > UINT8_MAX || peer->reads_in == 0 ||
		peer->reads_in > UINT8_MAX)
		return th_fail(ret_err, TH_E_PROTOCOL,
			"endpoint: %u READs out and %u in, where 1 to 255 can be", peer->reads_out,
			peer->reads_in);
	bool ethernet = peer->link == VERBS_LINK_ETHERNET;
	if (ethernet ? is_zero(peer->gid, VERBS_GID_BYTES) : peer->lid == 0)
		return th_fail(ret_err, TH_E_PROTOCOL, "endpoint: no address");
	for (uint32_t i = 0; i < ENDPOINT_QPS; i++) {
		/* 0 and 1 are for the management of the network. */
		if (peer->qpns[i] < 2 || peer->qpns[i] > ENDPOINT_NUMBER_MAX ||
			peer->psns[i] > ENDPOINT_NUMBER_MAX)
			return th_fail(ret_err, TH_E_PROTOCOL,
				"endpoint: queue pair %#x with packet number %#x: 24 bits can be",
				peer->qpns[i], peer->psns[i]);
		for (uint32_t k = 0; k < i; k++) {
			if (peer->qpns[k] == peer->qpns[i])
				return th_fail(ret_err, TH_E_PROTOCOL,
					"endpoint: queue pair %#x is there twice", peer->qpns[i]);
		}
	}
	return 0;
}

int
endpoint_fits(const struct endpoint *own, const struct endpoint *peer, struct th_err *ret_err)
{
	if (own->link != peer->link)
		return th_fail(ret_err, TH_E_NO_PATH, "this end is %s and the peer's is %s",
			own->link == VERBS_LINK_ETHERNET ? "Ethernet" : "InfiniBand",
			peer->link == VERBS_LINK_ETHERNET ? "Ethernet" : "InfiniBand");
	return 0;
}

uint32_t
endpoint_reads(const struct endpoint *reader, const struct endpoint *source)
{
	return th_min_u32(reader->reads_out, source->reads_in);
}

uint32_t
endpoint_mtu(const struct endpoint *own, const struct endpoint *peer)
{
	return th_min_u32(own->mtu_bytes, peer->mtu_bytes);
}

void
endpoint_path(const struct endpoint *own, const struct endpoint_port *port,
	const struct endpoint *peer, enum endpoint_role own_role, uint32_t index,
	struct verbs_path *ret_path)
{
	TH_ASSERT(index < ENDPOINT_QPS);
	bool reads = own_role == ENDPOINT_READER;
	*ret_path = (struct verbs_path){
		.port = port->port,
		.gid_index = port->gid_index,
		.pkey_index = port->pkey_index,
		.lid = peer->lid,
		.qpn = peer->qpns[index],
		.psn = peer->psns[index],
		.own_psn = own->psns[index],
		.mtu_bytes = endpoint_mtu(own, peer),
		.reads_out = reads ? endpoint_reads(own, peer) : 0,
		.reads_in = reads ? 0 : endpoint_reads(peer, own),
		.service_level = port->service_level,
		.traffic_class = port->traffic_class,
		.timeout = port->timeout,
		.retries = port->retries,
	};
	memcpy(ret_path->gid, peer->gid, VERBS_GID_BYTES);
	/* Within a subnet of InfiniBand the LID says all. */
	ret_path->global =
		own->link == VERBS_LINK_ETHERNET || memcmp(own->gid, peer->gid, SUBNET_BYTES) != 0;
}
