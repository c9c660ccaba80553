/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pacing - caps on what leaves this agent, in all and to one peer: the kernel paces each data
 * connection (SO_MAX_PACING_RATE), which holds for sendfile too and costs no thread and no wake-up
 * of ours; here the caps are divided among the connections, anew whenever one comes or goes.
 *
 * Equal shares, also for one that has nothing to send at the moment: the sum is never beyond a cap,
 * and reaches it when all are busy. No share is below PACING_LEAST, so that none looks like a stall
 * to its reader: with so many connections that it counts, the sum is beyond the cap. A peer is an
 * address, whatever its ports. Acceptor.
 */
#include <string.h>

#include "transport/tcp/tcp.h"

#define PACING_LEAST (UINT64_C(512) << 10) /* bytes a second */

static uint32_t
open_conns(const struct leg_out *leg)
{
	const struct tcp_out *tcp = tcp_out_of(leg);
	uint32_t count = 0;
	for (uint32_t i = 0; tcp && i < tcp->num_conns; i++)
		count += tcp->conns[i]->closing ? 0 : 1;
	return count;
}

/* "1.2.3.4:5" and "1.2.3.4:6" are one, "1.2.3.4" and "1.2.3.40" are two. */
static bool
same_host(const struct leg_out *a, const struct leg_out *b)
{
	const char *end_a = strrchr(a->peer, ':'), *end_b = strrchr(b->peer, ':');
	if (!end_a || !end_b)
		return strcmp(a->peer, b->peer) == 0;
	return end_a - a->peer == end_b - b->peer &&
	       memcmp(a->peer, b->peer, (size_t)(end_a - a->peer)) == 0;
}

static uint64_t
share(uint64_t cap, uint32_t conns)
{
	return cap == 0 ? UINT64_MAX : th_max_u64(cap / th_max_u32(conns, 1), PACING_LEAST);
}

void
pacing_divide(struct transport *transport)
{
	const struct transport_config *config = &transport->config;
	struct leg_out *leg;
	uint32_t all = 0;
	if (config->rate_out == 0 && config->rate_out_peer == 0)
		return;
	for (leg = LIST_FIRST(&transport->legs_out); leg; leg = leg_out_next(leg))
		all += open_conns(leg);
	for (leg = LIST_FIRST(&transport->legs_out); leg; leg = leg_out_next(leg)) {
		uint32_t to_peer = 0;
		const struct leg_out *other = LIST_FIRST(&transport->legs_out);
		for (; other; other = LIST_NEXT(other, entry))
			to_peer += same_host(leg, other) ? open_conns(other) : 0;
		uint64_t rate = th_min_u64(
			share(config->rate_out, all), share(config->rate_out_peer, to_peer));
		const struct tcp_out *tcp = tcp_out_of(leg);
		for (uint32_t i = 0; tcp && i < tcp->num_conns; i++)
			data_out_pace(tcp->conns[i], rate);
	}
}
