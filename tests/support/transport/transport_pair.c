/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_pair - see transport_pair.h.
 */
#include "tests/support/transport/transport_pair.h"

#include <criterion/criterion.h>
#include <stdlib.h>

uint32_t pair_rails;
uint64_t pair_mr_bytes;
unsigned pair_staged;

struct pair *
pair_new(const uint64_t *sizes, uint32_t count, int64_t stall_ns)
{
	struct pair *p = calloc(1, sizeof(*p));
	p->rig.num_rails = pair_rails;
	p->rig.mr_bytes_max = pair_mr_bytes;
	p->source_agent = rig_add_agent(&p->rig, stall_ns, 0);
	p->reader_agent = rig_add_agent(&p->rig, stall_ns, 0);
	rig_shard_init(&p->source, sizes, count, 42);
	rig_shard_init(&p->reader, sizes, count, 0);
	if (!(pair_staged & PAIR_SOURCE))
		rig_register(p->source_agent, &p->source);
	if (!(pair_staged & PAIR_READER))
		rig_register(p->reader_agent, &p->reader);
	return p;
}

void
pair_parts(struct pair *p, bool verify)
{
	p->from = rig_part(&p->source, verify);
	p->to = rig_part(&p->reader, verify);
}

void
pair_release(struct pair *p)
{
	xfer_part_release(p->from);
	xfer_part_release(p->to);
	p->from = p->to = NULL;
}

void
pair_finish(struct pair *p)
{
	rig_halt(&p->rig);
	pair_release(p);
	rig_fini(&p->rig);
	rig_shard_fini(&p->source);
	rig_shard_fini(&p->reader);
	free(p);
}

void
pair_cut(struct pair *p, uint32_t round)
{
	if (round % 3 != 0)
		transport_stop(p->reader_agent->transport, 1);
	if (round % 3 != 1)
		transport_fence(p->source_agent->transport, 1);
}

void
pair_move(
	struct pair *p, enum mode mode, uint64_t leg, struct xfer_part *from, struct xfer_part *to)
{
	if (mode != MODE_LOCAL)
		rig_pull(p->source_agent, p->reader_agent, leg, from, to);
	else
		cr_assert_eq(transport_copy(p->reader_agent->transport, leg, from, to), 0);
}

const struct transport_event *
pair_done(struct pair *p, uint64_t leg)
{
	const struct transport_event *done =
		rig_wait(&p->rig, p->reader_agent, TRANSPORT_DONE, leg);
	cr_assert(rig_shards_equal(&p->source, &p->reader));
	return done;
}

void
pair_parts_of(struct pair *p, enum rig_memory from, enum rig_memory to, bool verify)
{
	p->from = rig_part_of(&p->source, from, verify);
	p->to = rig_part_of(&p->reader, to, verify);
	p->leg++;
}

void
pair_publish(struct pair *p)
{
	rig_add_digests(p->from);
	xfer_part_advance(p->from, p->source.table->num_chunks);
}

void
pair_hash(struct pair *p)
{
	cr_assert_eq(transport_hash(p->source_agent->transport, p->leg, p->from), 0);
}

void
pair_go(struct pair *p, enum mode mode)
{
	pair_move(p, mode, p->leg, p->from, p->to);
}

const struct transport_event *
pair_wait(struct pair *p, enum transport_event_kind kind)
{
	return rig_wait(&p->rig, p->reader_agent, kind, p->leg);
}
