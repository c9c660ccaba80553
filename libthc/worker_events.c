/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_events - what a worker may know without a system call: thc_shard_events,
 * thc_held_version, thc_ready_version, thc_safe_to_mutate. All read the line of the agent's shared
 * file. Only when the agent's heartbeat has become old is its life looked at.
 */
#include <poll.h>
#include <string.h>

#include "ipc/sock/peer.h"
#include "libthc/libthc_own.h"

_Static_assert(
	THC_EV_EVICTED == 1u << SHM_EV_EVICTED &&
		THC_EV_VERSION_CONFLICT == 1u << SHM_EV_CONFLICT &&
		THC_EV_CONTRACT == 1u << SHM_EV_CONTRACT &&
		THC_EV_GROUP_BROKEN == 1u << SHM_EV_BROKEN &&
		THC_EV_AGENT_LOST == 1u << SHM_EV_LOST && THC_EV_AT_RISK == 1u << SHM_EV_AT_RISK &&
		THC_EV_READY == 1u << SHM_EV_READY && THC_EV_UPDATED == 1u << SHM_EV_UPDATED &&
		THC_EV_FOLLOW_FAILED == 1u << SHM_EV_FOLLOW_FAILED,
	"a bit for each counter");

/* The line, after a look at the agent where its heartbeat is old. */
static int
worker_events_read_line(struct thc_shard *shard, struct shm_line *ret_line)
{
	int rc = ring_line_read(&shard->ring, ret_line);

	if (rc < 0 || shard_heartbeat_stale(shard, ret_line)) {
		shard_look(shard);
		rc = ring_line_read(&shard->ring, ret_line);
	}
	return rc;
}

uint32_t
thc_shard_events(struct thc_shard *shard)
{
	struct shm_line line;
	uint16_t events[SHM_EV_COUNT];
	uint32_t mask = 0;

	if (shard_enter(shard, ENTER_LOST | ENTER_BEGINS_NOTHING) < 0)
		return 0;
	/* Who polls thc_fd has been woken by what a look settles. */
	if (shard->epoll >= 0 || ring_pending(&shard->ring))
		shard_look(shard);
	(void)worker_events_read_line(shard, &line);
	/* Also when the line could not be read as a whole: shard_update_fd tells of them too. */
	ring_events_read(&shard->ring, events);
	for (uint32_t i = 0; i < SHM_EV_COUNT; i++)
		if (events[i] != shard->events_reported[i])
			mask |= 1u << i;
	memcpy(shard->events_reported, events, sizeof(events));
	if (shard->agent == AGENT_LOST) {
		mask |= THC_EV_AGENT_LOST;
		shard_agent_enter(shard, AGENT_LOST_REPORTED, "thc_shard_events");
	}
	shard_update_fd(shard);
	shard_leave(shard);
	return mask;
}

static void
give_version(uint64_t lineage, uint64_t version, uint64_t *ret_lineage, uint64_t *ret_version)
{
	if (ret_lineage != NULL)
		*ret_lineage = lineage;
	if (ret_version != NULL)
		*ret_version = version;
}

int
thc_held_version(struct thc_shard *shard, uint64_t *ret_lineage, uint64_t *ret_version)
{
	struct shm_line line;
	int rc = shard_enter(shard, ENTER_BEGINS_NOTHING);

	if (rc < 0)
		return rc;
	/* At the end of a batch: what its loads have seen was there before the line is read. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	rc = worker_events_read_line(shard, &line);
	if (shard_lost(shard))
		rc = shard_lost_error(shard);
	else if (rc < 0)
		rc = shim_fail(
			THC_E_NOT_AVAILABLE, "the agent was stopped while it wrote the version");
	else if (line.held_version == THC_NO_VERSION)
		rc = shim_fail(THC_E_NOT_AVAILABLE, "this handle holds no version");
	else if (shadow_behind(shard, line.held_lineage, line.held_version))
		rc = shim_fail(THC_E_NOT_AVAILABLE,
			"the version is not wholly in GPU memory yet; wait for its operation");
	if (rc == 0)
		give_version(line.held_lineage, line.held_version, ret_lineage, ret_version);
	shard_leave(shard);
	return rc;
}

int
thc_ready_version(struct thc_shard *shard, uint64_t *ret_lineage, uint64_t *ret_version)
{
	struct shm_line line;
	int rc = shard_enter(shard, ENTER_BEGINS_NOTHING);

	if (rc < 0)
		return rc;
	rc = worker_events_read_line(shard, &line);
	if (shard_lost(shard))
		rc = shard_lost_error(shard);
	else if ((shard->open_flags & (THC_PREFETCH | THC_OFFLOAD_SEED)) == 0)
		rc = shim_fail(THC_E_NOT_AVAILABLE,
			"this handle was opened without THC_PREFETCH and THC_OFFLOAD_SEED: nothing "
			"is brought for it before it asks");
	else if (rc < 0)
		rc = shim_fail(
			THC_E_NOT_AVAILABLE, "the agent was stopped while it wrote the version");
	else if (line.ready_version == THC_NO_VERSION)
		rc = shim_fail(THC_E_NOT_AVAILABLE, "no newer version is whole on this host");
	if (rc == 0)
		give_version(line.ready_lineage, line.ready_version, ret_lineage, ret_version);
	shard_leave(shard);
	return rc;
}

/* Without a lifeline the agent has no other process that reaches the memory. */
static bool
hung_up(int lifeline)
{
	struct pollfd poll_fd = {.fd = lifeline};

	return lifeline < 0 || (poll(&poll_fd, 1, 0) == 1 && (poll_fd.revents & POLLHUP) != 0);
}

/*
 * A lost agent proves nothing by its silence: one that is only frozen, or that dropped this
 * session, may still write. Its end does, and that of its GPU processes: the kernel has taken
 * mappings and connections away, and the driver what they were doing.
 */
int
thc_safe_to_mutate(struct thc_shard *shard)
{
	struct shm_line line;
	int rc = shard_enter(shard, ENTER_LOST | ENTER_BEGINS_NOTHING);

	if (rc < 0)
		return rc;
	rc = worker_events_read_line(shard, &line);
	if (shard_lost(shard))
		rc = peer_pidfd_ended(shard->agent_pidfd) && hung_up(shard->lifeline) ? 1 : 0;
	else
		rc = rc == 0 && line.safe_to_mutate == 1 ? 1 : 0;
	/* Whatever became of the version, another thread's call may be writing it yet. */
	if (shard->shadow.copy.to_gpu && (shard->shadow.copying || shard->shadow.copy.stuck))
		rc = 0;
	shard_leave(shard);
	return rc;
}
