/* SPDX-License-Identifier: Apache-2.0 */
/*
 * epoch - see epoch.h. No I/O.
 */
#include "server/core/cluster/epoch.h"

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/sim.h"
#include "ipc/base/splitmix.h"
#include "server/core/cluster/standby.h"

#define PLACE_MASK ((UINT64_C(1) << (TH_EPOCH_SHIFT - 1)) - 1)

bool
epoch_learning(const struct refsrv *server)
{
	return server->epoch == 0 || server->live_ns < server->learnt_live_ns;
}

uint32_t
epoch_bound(const struct refsrv *server)
{
	uint32_t known = th_max_u32(server->learnt_epoch, standby_epoch_heard(server));

	return epoch_learning(server) ? TH_EPOCH_MAX : th_min_u32(known + EPOCH_LEAP, TH_EPOCH_MAX);
}

bool
epoch_believed(const struct refsrv *server, uint32_t epoch)
{
	return epoch <= epoch_bound(server);
}

void
epoch_seen(struct refsrv *server, uint32_t epoch)
{
	uint64_t state = server->config.server_inc;

	if (server->epoch != 0 && (epoch < server->epoch || server->epoch == TH_EPOCH_MAX))
		return;
	if (server->epoch != 0)
		TH_MARK(epoch_raised);
	else
		server->learnt_live_ns = th_deadline_ns(server->live_ns, server->config.warm_ns);
	server->epoch = th_min_u32(epoch, TH_EPOCH_MAX - 1) + 1;
	if (TH_PLANT(epoch_of_its_predecessor) && epoch > 0)
		server->epoch = epoch;
	server->last_id =
		((uint64_t)server->epoch << TH_EPOCH_SHIFT) | (th_splitmix64(&state) & PLACE_MASK);
	server->first_id = server->last_id;
	if (epoch_learning(server) || server->learnt_epoch == 0)
		server->learnt_epoch = server->epoch;
}

bool
epoch_is_own(const struct refsrv *server, uint64_t id)
{
	return id >= server->first_id && id - server->first_id <= PLACE_MASK;
}

uint64_t
epoch_next_id(struct refsrv *server)
{
	TH_ASSERT(server->epoch != 0);
	return ++server->last_id;
}
