/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slow_reader - see slow_reader.h.
 *
 * Only the first reader behind the slow one moves: those further down get their bytes from it. Nor
 * does it move when it lies behind its own source, for then the way between the two is slow, or it
 * is itself; nor off its own host, whose link the other one would have to share. From a complete
 * source nobody moves on, so nothing hops.
 */
#include "server/core/route/slow_reader.h"

#include "ipc/base/sim.h"
#include "server/core/route/leg.h"
#include "server/core/route/route.h"

bool
slow_reader_is(const struct refsrv *server, const struct part *part)
{
	return !part->done && part->leg != NULL &&
	       server->live_ns - part->chunk_live_ns >= server->config.crawl_ns;
}

/* Its source is slow, and not because it waits for another one. */
static bool
held_up(const struct refsrv *server, const struct leg *leg)
{
	const struct part *dst = leg->dst, *src = leg->src;

	return slow_reader_is(server, dst) && slow_reader_is(server, src) &&
	       dst->chunks_done >= src->chunks_done && src->leg->src != NULL && src->leg->src->done;
}

void
slow_reader_look(struct refsrv *server, struct leg *leg)
{
	struct part *dst = leg->dst;

	if (dst->leg != leg || leg->src == NULL || leg->op->state != OP_RUNNING ||
		dst->member->agent == leg->src->member->agent || !held_up(server, leg))
		return;
	struct part *src = route_choose_relief(server, leg->op, dst);
	if (src == NULL) {
		TH_MARK(crawling_reader_has_no_other_source);
		return;
	}
	TH_MARK(crawling_reader_moved);
	leg_move(server, leg, src);
}
