/* SPDX-License-Identifier: Apache-2.0 */
/* queues - see queues.h. */
#include "transport/rdma/engine/queues.h"

#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/log.h"
#include "ipc/base/random.h"
#include "transport/rdma/device/device_own.h"

#define SOURCE_CQ_DEPTH 16u /* nothing is posted, so nothing completes */

/* Several legs may be the first at once. */
static int
source_cq(struct rails *rails, struct opened_device *opened, struct verbs_cq **ret_cq)
{
	int rc = 0;
	pthread_mutex_lock(&rails->source_cq_lock);
	if (!opened->source_cq)
		rc = rails->ops->cq_new(opened->device, SOURCE_CQ_DEPTH, &opened->source_cq);
	*ret_cq = opened->source_cq;
	pthread_mutex_unlock(&rails->source_cq_lock);
	return rc;
}

int
queues_new(struct rails *rails, uint32_t rail, struct verbs_cq *cq, uint32_t depth,
	struct queues *ret_queues, struct th_err *ret_err)
{
	TH_ASSERT(rail < rails->num_rails);
	struct opened_device *opened = rails->rails[rail].opened;
	struct queues queues = {.rail = rail, .held = rail_hold(rails, rail)};
	int rc = queues.held
			 ? rail_endpoint(rails, rail, &queues.own, &queues.port, ret_err)
			 : th_fail(ret_err, TH_E_NO_PATH, "%s cannot be used: the device is gone",
				   rail_name(rails, rail));
	if (rc < 0) {
		(void)queues_free(rails, &queues);
		return rc;
	}
	uint32_t psns[ENDPOINT_QPS];
	th_random(psns, sizeof(psns));
	if (!cq)
		rc = source_cq(rails, opened, &cq);
	for (; rc == 0 && queues.count < ENDPOINT_QPS; queues.count += rc == 0) {
		uint32_t i = queues.count;
		queues.own.psns[i] = psns[i] & ENDPOINT_NUMBER_MAX;
		rc = rails->ops->qp_new(
			opened->device, cq, depth, &queues.qps[i], &queues.own.qpns[i]);
	}
	if (rc < 0) {
		(void)queues_free(rails, &queues); /* nobody knows of them yet */
		return th_fail(ret_err, rc, "%s makes no queue pair: %s", rail_name(rails, rail),
			th_strerror(rc));
	}
	*ret_queues = queues;
	return 0;
}

int
queues_connect(struct rails *rails, struct queues *queues, const struct endpoint *peer,
	enum endpoint_role own_role, const char *peer_name, struct th_err *ret_err)
{
	int rc = endpoint_fits(&queues->own, peer, ret_err);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < queues->count; i++) {
		struct verbs_path path;
		endpoint_path(&queues->own, &queues->port, peer, own_role, i, &path);
		rc = rails->ops->qp_connect(queues->qps[i], &path);
		if (rc < 0) {
			char gid[GID_TEXT_BYTES];
			return th_fail(ret_err, rc, "%s cannot be connected to %s (%s): %s",
				rail_name(rails, queues->rail), peer_name, gid_text(peer->gid, gid),
				th_strerror(rc));
		}
	}
	queues->reads = own_role == ENDPOINT_READER ? endpoint_reads(&queues->own, peer)
						    : endpoint_reads(peer, &queues->own);
	rail_warn_slow(
		rails, queues->rail, peer_name, endpoint_mtu(&queues->own, peer), queues->reads);
	return 0;
}

static bool
is_gone(const struct rails *rails, uint32_t rail)
{
	return __atomic_load_n(&rails->rails[rail].opened->gone, __ATOMIC_ACQUIRE);
}

int
queues_free(struct rails *rails, struct queues *queues)
{
	int rc = 0;
	for (uint32_t i = 0; i < queues->count; i++) {
		int code = rails->ops->qp_free(queues->qps[i]);
		/* The kernel frees all of a device that is gone. */
		if (code < 0 && !is_gone(rails, queues->rail))
			rc = code;
		queues->qps[i] = NULL;
	}
	queues->count = 0;
	if (queues->held && rc == 0)
		rail_unhold(rails, queues->rail);
	queues->held = false;
	return rc;
}
