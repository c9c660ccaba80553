/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader_wait - a reader that waits: for the source's rails, and for memory of either end that is
 * still being registered. That takes seconds where there is much of it, so the leg goes by data
 * connections meanwhile, unless it must not. The acceptor's.
 */
#include <inttypes.h>

#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "transport/rdma/leg/reader_own.h"

#define STREAM_MAX_NS INT64_C(100000000) /* before a leg begins by data connections */
#define STREAM_BYTES_PER_NS 1            /* it waits no longer than those would take */

/* Memory that takes its time to be registered: the leg goes on without. */
static void
begin_to_stream(struct reader *reader)
{
	struct leg_in *leg = reader->leg;
	log_info("rdma",
		"a leg begins by TCP until %s memory is registered leg=%" PRIu64 " source=%s",
		reader->num_rails > 0 ? "our own" : "the source's", leg->id, leg->peer);
	leg_in_stream(leg);
}

/* A source that registers says that it waits: one that says nothing is no more. */
static int64_t
patient_until(const struct reader *reader)
{
	int64_t patience_ns = reader_patience_ns(reader), since_ns = reader->await.begun_ns;
	if (reader->later || reader->num_rails > 0) {
		patience_ns = th_max_i64(patience_ns, reader->leg->transport->config.stall_ns);
		since_ns = reader->heard_ns;
	}
	return th_max_i64(since_ns, reader->late_ns) + patience_ns;
}

static void
judge_silence(struct reader *reader, int64_t now_ns)
{
	/* Its word may lie in our socket. */
	if (now_ns >= patient_until(reader))
		leg_in_hear(reader->leg);
	if (reader->state != READER_WAITING)
		return;
	if (now_ns >= patient_until(reader))
		reader_leave(reader, reader->num_rails > 0 ? "the source says nothing any more"
							   : "the source does not name its rails");
	else if (now_ns >= reader->await.begun_ns + AWAIT_MAX_NS)
		reader_leave(reader, "the source's memory is still being registered");
}

int64_t
reader_tick_waiting(struct reader *reader, int64_t now_ns)
{
	struct leg_in *leg = reader->leg;
	int64_t next_ns = INT64_MAX;
	if (reader->num_rails > 0)
		reader_offer(reader, now_ns);
	/* Those who stream have their own clock. */
	if (reader->state == READER_WAITING && !leg_in_streams(leg))
		judge_silence(reader, now_ns);
	if (reader->state != READER_WAITING)
		return now_ns;
	if (!leg_in_streams(leg) && now_ns >= reader->stream_ns)
		begin_to_stream(reader);
	if (reader->num_rails > 0)
		next_ns = await_next(&reader->await, now_ns);
	if (!leg_in_streams(leg))
		next_ns = th_min_i64(
			await_next(&reader->await, now_ns), th_max_i64(reader->stream_ns, now_ns));
	return next_ns;
}

/* How long it may wait for memory: as long as it would take by TCP, but never long. Slots are few,
 * and ready soon. */
static int64_t
stream_after_ns(const struct reader *reader)
{
	if (reader->stage.slab)
		return STREAM_MAX_NS;
	uint64_t bytes = xfer_part_table(reader->leg->part)->bytes / STREAM_BYTES_PER_NS;
	return (int64_t)th_min_u64(bytes, STREAM_MAX_NS);
}

void
reader_start(struct leg_in_path *path, unsigned welcome_flags)
{
	struct reader *reader = reader_of(path);
	if (!(welcome_flags & FRAME_OFFERS_RDMA)) {
		reader_leave_told(reader, "the source's agent has no RDMA");
		return;
	}
	reader->await.begun_ns = reader->heard_ns = th_now_ns();
	reader->later = (welcome_flags & FRAME_RDMA_LATER) != 0;
	reader->stream_ns = INT64_MAX;
	uint32_t waiting;
	(void)reader_ready(reader, &waiting);
	if (!reader_required(reader) &&
		(reader->later || (waiting & rdma_usable(reader->rdma)) != 0))
		reader->stream_ns = reader->await.begun_ns + stream_after_ns(reader);
	reader_enter(reader, READER_WAITING, INT64_MAX, "welcome");
}
