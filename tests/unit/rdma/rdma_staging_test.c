/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of a source that stages what no NIC reaches, with readers that say what they must not,
 * memory that changes, goes away or gets stuck meanwhile, and ends at any moment. The reader is the
 * test, over a plain socket: it READs nothing.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "tests/support/rdma/fake_rdma.h"
#include "tests/support/transport/sticky.h"
#include "tests/support/transport/transport_pair.h"
#include "tests/support/transport/transport_peer.h"
#include "transport/loop/crew.h"
#include "transport/rdma/leg/rdma_wire.h"
#include "transport/rdma/memory/stage.h"
#include "transport/rdma/rdma.h"

#define LEG 5
#define PATIENCE_NS INT64_C(30000000000)
#define SLOTS STAGE_SLOTS

static const uint64_t twelve_chunks[] = {48 * MIB};
static const uint64_t two_chunks[] = {8 * MIB};
static uint8_t payload[FRAME_PAYLOAD_MAX];

struct setup {
	struct rig rig;
	struct rig_agent *agent;
	struct rig_shard shard;
	struct xfer_part *part;
	int fd;
	uint32_t num_slots, sentence_bytes; /* of ACCEPT */
	char sentence[TH_CTL_TEXT_BYTES + 1];
	uint8_t key[FRAME_KEY_BYTES];
};

static struct setup *
start_of(const uint64_t *sizes, enum rig_memory memory, uint64_t slabs)
{
	struct setup *s = calloc(1, sizeof(*s));
	s->rig.num_rails = 1;
	s->rig.stage_bytes = slabs * SLAB_BYTES;
	s->agent = rig_add_agent(&s->rig, CALM_NS, 0);
	rig_shard_init(&s->shard, sizes, 1, 42);
	rig_shard_to_file(&s->shard);
	struct xfer_part *plain = rig_part(&s->shard, true);
	rig_add_digests(plain);
	uint32_t count = s->shard.table->num_chunks;
	s->part = rig_part_of(&s->shard, memory, true);
	xfer_part_add_digests(s->part, 0, xfer_part_digest(plain, 0), count);
	xfer_part_advance(s->part, count);
	xfer_part_release(plain);
	return s;
}

static struct setup *
start(enum rig_memory memory)
{
	return start_of(twelve_chunks, memory, 2);
}

static void
finish(struct setup *s)
{
	close(s->fd);
	rig_halt(&s->rig);
	xfer_part_release(s->part);
	rig_fini(&s->rig);
	rig_shard_fini(&s->shard);
	free(s);
}

static void
put(int fd, enum frame_kind kind, uint32_t first, uint32_t count)
{
	struct frame frame = {.kind = kind, .leg = LEG, .first = first, .count = count};
	peer_put_frame(fd, &frame, NULL, 0);
}

/* The next frame of that kind, with its payload; what comes before is passed over. */
static struct frame
get(int fd, enum frame_kind kind)
{
	for (;;) {
		struct frame frame = peer_get_frame(fd);
		if (frame.bytes > 0)
			peer_get(fd, payload, frame.bytes);
		if (frame.kind == kind)
			return frame;
	}
}

/* WELCOME has come. */
static void
enter(struct setup *s, unsigned flags)
{
	struct frame_hello hello = {.ticket = rig_ticket(LEG), .protocol = 1, .mode = 1};
	struct frame frame = {.kind = FRAME_HELLO,
		.flags = (uint8_t)(FRAME_VERIFIES | flags),
		.leg = LEG,
		.bytes = FRAME_HELLO_BYTES};
	rig_offer(s->agent, LEG, s->part);
	s->fd = peer_dial(s->agent);
	frame_encode_hello(&hello, payload);
	peer_put_frame(s->fd, &frame, payload, FRAME_HELLO_BYTES);
	frame = get(s->fd, FRAME_WELCOME);
	struct frame_welcome welcome;
	frame_decode_welcome(payload, &welcome);
	memcpy(s->key, welcome.key, sizeof(s->key));
	cr_assert(frame.flags & FRAME_OFFERS_RDMA);
}

static void
offer(struct setup *s)
{
	struct wire_lane lane = {.made = true,
		.end = {.link = VERBS_LINK_ETHERNET,
			.gid = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 9},
			.mtu_bytes = 4096,
			.reads_out = 16,
			.reads_in = 16,
			.qpns = {1000, 1001},
			.psns = {1, 2}}};
	struct frame frame = {
		.kind = FRAME_RDMA_OFFER, .leg = LEG, .count = 1, .bytes = WIRE_LANE_BYTES};
	wire_encode_lanes(&lane, 1, payload);
	peer_put_frame(s->fd, &frame, payload, WIRE_LANE_BYTES);
}

/* The part is served out of slots. */
static void
enter_slots(struct setup *s)
{
	enter(s, FRAME_TAKES_RDMA | FRAME_TAKES_STAGED);
	cr_assert_eq(get(s->fd, FRAME_RDMA_RAILS).count, 1);
	offer(s);
	struct frame frame = get(s->fd, FRAME_RDMA_ACCEPT);
	cr_assert_eq(frame.flags, FRAME_STAGES);
	s->num_slots = frame.first;
	s->sentence_bytes = (uint32_t)frame.bytes - WIRE_LANE_BYTES;
	memcpy(s->sentence, payload + WIRE_LANE_BYTES, s->sentence_bytes);
	frame = get(s->fd, FRAME_RDMA_KEYS);
	cr_assert_eq(frame.count, s->num_slots);
}

static struct setup *
start_slots(enum rig_memory memory)
{
	struct setup *s = start(memory);
	enter_slots(s);
	return s;
}

static void
stage(struct setup *s, uint32_t chunk, uint32_t slot)
{
	put(s->fd, FRAME_STAGE, chunk, slot);
	struct frame frame = get(s->fd, FRAME_STAGED);
	cr_assert_eq(frame.first, chunk);
	cr_assert_eq(frame.count, slot);
}

static const struct transport_event *
wait_ended(struct setup *s)
{
	return rig_wait(&s->rig, s->agent, TRANSPORT_ENDED, LEG);
}

static struct stage_status
status_of(struct setup *s)
{
	struct stage_status status;
	stage_status(rdma_stage(transport_rdma(s->agent->transport)), &status);
	return status;
}

static uint64_t
queue_pairs(struct setup *s)
{
	struct fake_counters counters;
	fake_rdma_counters(s->agent->devices[0], &counters);
	return counters.qps;
}

/* ---- what is told ------------------------------------------------------------------------- */

Test(rdma_staging, every_kind_of_memory__slots_and_why)
{
	for (enum rig_memory kind = RIG_MAPPED; kind <= RIG_MIXED; kind++) {
		struct setup *s = start_slots(kind);
		struct wire_key keys[SLOTS];
		cr_assert_eq(s->num_slots, SLOTS);
		cr_assert(strstr(s->sentence, "not registered") || strstr(s->sentence, "private"),
			"%s", s->sentence);
		cr_assert_eq(wire_decode_keys(payload, SLOTS, 1, keys), 0);
		for (uint32_t i = 0; i < SLOTS; i++) {
			cr_assert_geq(keys[i].bytes, CHUNK_BYTES_MAX);
			cr_assert_eq(keys[i].address, keys[0].address + i * CHUNK_BYTES_MAX);
		}
		for (uint32_t i = 0; i < 12; i++)
			stage(s, i, (i * 3) % SLOTS);
		put(s->fd, FRAME_BYE, 0, 0);
		const struct transport_event *ended = wait_ended(s);
		cr_assert_str_eq(ended->transport, "rdma-copy");
		cr_assert_str_eq(ended->copy, s->sentence);
		cr_assert_eq(rig_counters(s->agent).bytes_staged, 48 * MIB);
		cr_assert_eq(status_of(s).bytes_in_use, 0);
		finish(s);
	}
}

Test(rdma_staging, part_of_few_chunks__as_many_slots)
{
	struct setup *s = start_of(two_chunks, RIG_FILE, 2);
	enter_slots(s);
	cr_assert_eq(s->num_slots, 2);
	put(s->fd, FRAME_STAGE, 0, 2);
	cr_assert_eq(wait_ended(s)->code, TH_E_PROTOCOL);
	finish(s);
}

/* It does not know what to do with slots. */
Test(rdma_staging, reader_that_takes_none__declined)
{
	struct setup *s = start(RIG_FILE);
	enter(s, FRAME_TAKES_RDMA);
	struct frame frame = get(s->fd, FRAME_RDMA_DECLINE);
	payload[frame.bytes] = '\0';
	cr_assert(strstr((const char *)payload, "private"), "%s", (const char *)payload);
	cr_assert_eq(status_of(s).bytes, 0);
	finish(s);
}

Test(rdma_staging, nothing_left_to_copy_to__declined_with_both_reasons)
{
	struct setup *s = start_of(twelve_chunks, RIG_FILE, 1);
	struct th_err err;
	struct slab *slab;
	cr_assert_eq(
		stage_take(rdma_stage(transport_rdma(s->agent->transport)), NULL, &err, &slab), 0);
	enter(s, FRAME_TAKES_RDMA | FRAME_TAKES_STAGED);
	struct frame frame = get(s->fd, FRAME_RDMA_DECLINE);
	payload[frame.bytes] = '\0';
	cr_assert(strstr((const char *)payload, "private"), "%s", (const char *)payload);
	cr_assert(strstr((const char *)payload, "rdma.stage"), "%s", (const char *)payload);
	slab_release(slab);
	finish(s);
}

Test(rdma_staging, memory_to_copy_to_is_registered_nowhere__declined_and_tried_anew)
{
	struct setup *s = start(RIG_FILE);
	struct fake_counters counters = {0};
	while (counters.regs == 0) /* its few bytes for probes */
		fake_rdma_counters(s->agent->devices[0], &counters);
	fake_rdma_refuse(s->agent->devices[0], FAKE_REG, 1, -ENOMEM);
	enter(s, FRAME_TAKES_RDMA | FRAME_TAKES_STAGED);
	struct frame frame = get(s->fd, FRAME_RDMA_DECLINE);
	payload[frame.bytes] = '\0';
	cr_assert(strstr((const char *)payload, "rdma.stage"), "%s", (const char *)payload);
	close(s->fd);
	wait_ended(s);
	s->agent->num_events = 0;
	enter_slots(s);
	stage(s, 0, 0);
	finish(s);
}

/* ---- readers that say what they must not -------------------------------------------------- */

static void
say_wrong(struct setup *s, uint32_t which)
{
	switch (which) {
	case 0:
		put(s->fd, FRAME_STAGE, 0, SLOTS); /* there is no such slot */
		break;
	case 1:
		put(s->fd, FRAME_STAGE, 12, 0); /* and no such chunk */
		break;
	case 2:
		put(s->fd, FRAME_STAGE, UINT32_MAX, 0);
		break;
	case 3: /* while that is under way: nobody lets it go on */
		put(s->fd, FRAME_STAGE, 2, 0);
		put(s->fd, FRAME_STAGE, 0, 0);
		break;
	case 4:
		put(s->fd, FRAME_STAGED, 0, 0);
		break;
	case 5: /* what did not match is staged again */
		put(s->fd, FRAME_CHECK, 0, 1);
		break;
	case 6:
		put(s->fd, FRAME_STAGE, 12, SLOTS - 1);
		break;
	default:
		offer(s);
		break;
	}
}

Test(rdma_staging, reader_says_what_it_must_not__ended)
{
	for (uint32_t which = 0; which < 8; which++) {
		struct setup *s = start_slots(RIG_FILE);
		sticky_make(s->part, 5 * MIB);
		say_wrong(s, which);
		const struct transport_event *ended = wait_ended(s);
		cr_assert_eq(ended->code, TH_E_PROTOCOL, "%u: %s", which, ended->text);
		cr_assert_eq(queue_pairs(s), 0);
		sticky_let_go();
		cr_assert(crew_wait(th_now_ns() + PATIENCE_NS));
		cr_assert_eq(status_of(s).bytes_in_use, 0);
		finish(s);
	}
}

Test(rdma_staging, reader_names_a_slot_too_early__ended)
{
	struct setup *s = start(RIG_FILE);
	enter(s, FRAME_TAKES_RDMA | FRAME_TAKES_STAGED);
	put(s->fd, FRAME_STAGE, 0, 0);
	cr_assert_eq(wait_ended(s)->code, TH_E_PROTOCOL);
	finish(s);
}

Test(rdma_staging, reader_names_a_slot_of_a_source_without__ended)
{
	struct setup *s = start(RIG_FILE);
	xfer_part_release(s->part);
	rig_register(s->agent, &s->shard);
	s->part = rig_part_of(&s->shard, RIG_MAPPED, false);
	xfer_part_advance(s->part, 12);
	enter(s, FRAME_TAKES_RDMA | FRAME_TAKES_STAGED);
	get(s->fd, FRAME_RDMA_RAILS);
	offer(s);
	cr_assert_eq(get(s->fd, FRAME_RDMA_ACCEPT).flags, 0);
	get(s->fd, FRAME_RDMA_MAP);
	put(s->fd, FRAME_STAGE, 0, 0);
	cr_assert_eq(wait_ended(s)->code, TH_E_PROTOCOL);
	cr_assert_eq(rig_counters(s->agent).bytes_staged, 0);
	finish(s);
}

/* What is not published yet is not copied. */
Test(rdma_staging, reader_asks_beyond_the_prefix__ended)
{
	struct setup *s = start(RIG_FILE);
	xfer_part_release(s->part);
	s->part = rig_part_of(&s->shard, RIG_FILE, false);
	xfer_part_advance(s->part, 2);
	enter_slots(s);
	stage(s, 1, 0);
	put(s->fd, FRAME_STAGE, 2, 0);
	cr_assert_eq(wait_ended(s)->code, TH_E_PROTOCOL);
	finish(s);
}

/* Each chunk is copied as often as it may be fetched, whatever a reader asks for. */
Test(rdma_staging, reader_asks_for_ever__ended)
{
	struct setup *s = start_slots(RIG_FILE);
	for (uint32_t round = 0; round < 3; round++)
		stage(s, 4, round);
	put(s->fd, FRAME_STAGE, 4, 0);
	cr_assert_eq(wait_ended(s)->code, TH_E_PROTOCOL);
	cr_assert_eq(rig_counters(s->agent).bytes_staged, 3 * CHUNK);
	finish(s);
}

/* All slots at once, and no answer is taken: there is never more to say than there are slots. */
Test(rdma_staging, reader_floods__as_many_answers_as_slots)
{
	struct setup *s = start_slots(RIG_PROCESS);
	uint32_t seen = 0;
	for (uint32_t i = 0; i < SLOTS; i++)
		put(s->fd, FRAME_STAGE, i, i);
	for (uint32_t i = 0; i < SLOTS; i++) {
		struct frame frame = get(s->fd, FRAME_STAGED);
		cr_assert_eq(frame.first, frame.count);
		seen |= UINT32_C(1) << frame.count;
	}
	cr_assert_eq(seen, (1u << SLOTS) - 1);
	finish(s);
}

Test(rdma_staging, reader_leaves_in_any_state__nothing_is_held)
{
	for (uint32_t state = 0; state < 5; state++) {
		struct setup *s = start(RIG_FILE);
		if (state < 2)
			enter(s, FRAME_TAKES_RDMA | FRAME_TAKES_STAGED);
		else
			enter_slots(s);
		if (state == 1)
			offer(s);
		if (state == 3)
			put(s->fd, FRAME_STAGE, 0, 0);
		if (state == 4)
			stage(s, 0, 0);
		close(s->fd);
		wait_ended(s);
		cr_assert_eq(queue_pairs(s), 0);
		cr_assert(crew_wait(th_now_ns() + PATIENCE_NS));
		cr_assert_eq(status_of(s).bytes_in_use, 0, "state %u", state);
		finish(s);
	}
}

/* The thread that copied for the leg may have it for a moment longer. */
static void
wait_slab_given_back(struct setup *s)
{
	int64_t until_ns = th_now_ns() + PATIENCE_NS;
	while (status_of(s).bytes_in_use > 0) {
		cr_assert_lt(th_now_ns(), until_ns, "a leg without RDMA keeps its slab");
		(void)nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	}
}

/* It goes on by data connections, and may ask there as often as ever. */
Test(rdma_staging, reader_goes_on_without__slab_given_back)
{
	struct setup *s = start_slots(RIG_FILE);
	for (uint32_t round = 0; round < 3; round++)
		stage(s, 0, round);
	put(s->fd, FRAME_STAGE, 1, 0); /* on its way still */
	put(s->fd, FRAME_RDMA_DECLINE, 0, 5000);
	put(s->fd, FRAME_STAGE, 2, 0);
	get(s->fd, FRAME_RDMA_DECLINE);
	cr_assert_eq(queue_pairs(s), 0);
	int data = peer_dial(s->agent);
	struct frame frame = {.kind = FRAME_JOIN, .leg = LEG, .bytes = FRAME_KEY_BYTES};
	peer_put_frame(data, &frame, s->key, FRAME_KEY_BYTES);
	peer_ask(data, LEG, 0, 1);
	frame = peer_get_frame(data);
	cr_assert_eq(frame.kind, FRAME_DATA);
	cr_assert_eq(frame.first, 0);
	wait_slab_given_back(s);
	close(data);
	put(s->fd, FRAME_BYE, 0, 0);
	cr_assert_str_eq(wait_ended(s)->transport, "tcp");
	finish(s);
}

/* ---- memory ------------------------------------------------------------------------------- */

/* Nobody sees that a chunk changed before it is asked for: then its digest does not match. */
Test(rdma_staging, memory_that_changed__told_when_it_is_asked_for_again)
{
	struct setup *s = start_slots(RIG_FILE);
	s->shard.tensors[0][5 * MIB] ^= 1;
	stage(s, 1, 0);
	stage(s, 2, 1);
	put(s->fd, FRAME_STAGE, 1, 2);
	const struct transport_event *changed = rig_wait(&s->rig, s->agent, TRANSPORT_CHANGED, LEG);
	cr_assert_eq(changed->chunk, 1);
	struct frame frame = get(s->fd, FRAME_REFUSED);
	cr_assert_eq(frame.count, 0u - (uint32_t)TH_E_CHECKSUM);
	put(s->fd, FRAME_BYE, 0, 0);
	cr_assert_eq(wait_ended(s)->code, TH_E_CONTRACT);
	finish(s);
}

Test(rdma_staging, memory_that_did_not_change__staged_again)
{
	struct setup *s = start_slots(RIG_FILE);
	stage(s, 1, 0);
	stage(s, 1, 0);
	stage(s, 1, 7);
	cr_assert_null(rig_find(s->agent, TRANSPORT_CHANGED, LEG));
	finish(s);
}

Test(rdma_staging, memory_that_vanishes__reader_is_told)
{
	struct setup *s = start_slots(RIG_FILE);
	stage(s, 0, 0);
	cr_assert_eq(ftruncate(s->shard.fd, 6 * MIB), 0);
	put(s->fd, FRAME_STAGE, 1, 1);
	struct frame frame = get(s->fd, FRAME_REFUSED);
	cr_assert_eq(frame.count, 0u - (uint32_t)TH_E_STALE_MEMORY);
	const struct transport_event *ended = wait_ended(s);
	cr_assert_eq(ended->code, TH_E_STALE_MEMORY);
	cr_assert_eq(ended->row, 0);
	finish(s);
}

/* Its thread keeps the slab, so what it reads at last lands in nobody's. */
Test(rdma_staging, memory_that_is_stuck__neither_fence_nor_others_wait)
{
	struct setup *s = start_of(twelve_chunks, RIG_FILE, 1);
	enter_slots(s);
	sticky_make(s->part, 5 * MIB);
	put(s->fd, FRAME_STAGE, 2, 0);
	sticky_wait(&s->rig);
	stage(s, 0, 1); /* by another thread */
	transport_fence(s->agent->transport, LEG);
	cr_assert_eq(wait_ended(s)->code, TH_E_CANCELLED);
	cr_assert_eq(queue_pairs(s), 0);
	cr_assert_eq(status_of(s).bytes_in_use, SLAB_BYTES);
	close(s->fd);
	s->agent->num_events = 0;
	enter(s, FRAME_TAKES_RDMA | FRAME_TAKES_STAGED);
	get(s->fd, FRAME_RDMA_DECLINE); /* there is one slab, and it is not free */
	close(s->fd);
	wait_ended(s);
	sticky_let_go();
	cr_assert(crew_wait(th_now_ns() + PATIENCE_NS));
	cr_assert_eq(status_of(s).bytes_in_use, 0);
	s->agent->num_events = 0;
	enter_slots(s);
	stage(s, 2, 0);
	finish(s);
}

Test(rdma_staging, memory_that_is_stuck__does_not_keep_the_transport_open)
{
	struct setup *s = start_slots(RIG_FILE);
	sticky_make(s->part, 5 * MIB);
	put(s->fd, FRAME_STAGE, 2, 0);
	put(s->fd, FRAME_STAGE, 3, 1);
	sticky_wait(&s->rig);
	finish(s);
	cr_assert_geq(crew_count(), 1);
	sticky_let_go();
	cr_assert(crew_wait(th_now_ns() + PATIENCE_NS));
}

/* ---- ends --------------------------------------------------------------------------------- */

Test(rdma_staging, fence_at_any_moment__ended_without_queue_pairs)
{
	for (uint32_t round = 0; round < 12; round++) {
		struct setup *s = start_slots(round % 2 ? RIG_PROCESS : RIG_MAPPED);
		for (uint32_t i = 0; i < SLOTS; i++)
			put(s->fd, FRAME_STAGE, i, i);
		rig_pump_for(&s->rig, (int64_t)round * 200000);
		transport_fence(s->agent->transport, LEG);
		cr_assert_eq(wait_ended(s)->code, TH_E_CANCELLED);
		cr_assert_eq(queue_pairs(s), 0);
		finish(s);
	}
}

Test(rdma_staging, transport_closes_while_it_copies__closed)
{
	for (uint32_t round = 0; round < 6; round++) {
		struct setup *s = start_slots(RIG_FILE);
		for (uint32_t i = 0; i < SLOTS; i++)
			put(s->fd, FRAME_STAGE, i, i);
		rig_pump_for(&s->rig, (int64_t)round * 300000);
		finish(s);
	}
}
