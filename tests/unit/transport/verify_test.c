/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of who makes digests and who wants them: several threads at one part, and agents with
 * --verify full and off beside each other.
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/err.h"
#include "ipc/base/name.h"
#include "tests/support/transport/transport_rig.h"

#define MIB (UINT64_C(1) << 20)
#define CALM_NS INT64_C(15000000000)

static const uint64_t sizes[] = {
	1, 70000, 2 * MIB - 1, 0, 2 * MIB, 4 * MIB + 1, 61 * MIB + 13, 65537, 1000000, 30 * MIB};
#define COUNT (sizeof(sizes) / sizeof(sizes[0]))

/* ---- several threads ------------------------------------------------------------------------ */

static struct transport *
open_with(uint32_t hash_threads)
{
	const struct transport_config config = {.hash_threads = hash_threads};
	struct transport *transport;
	struct th_err err;
	cr_assert_eq(transport_open(&config, &err, &transport), 0);
	return transport;
}

/* How the job ended. */
static enum transport_event_kind
wait_job(struct transport *transport)
{
	struct transport_event event;
	struct pollfd poll_fd = {.fd = transport_fd(transport), .events = POLLIN};
	do {
		cr_assert_eq(poll(&poll_fd, 1, 30000), 1);
	} while (transport_poll(transport, &event, 1) == 0);
	return event.kind;
}

static void
expect_digests(const struct xfer_part *part, const struct xfer_part *plain)
{
	uint32_t num_chunks = xfer_part_table(part)->num_chunks;
	cr_assert_eq(xfer_part_prefix(part), num_chunks);
	cr_assert_eq(xfer_part_digest_count(part), num_chunks);
	for (uint32_t c = 0; c < num_chunks; c++)
		cr_assert(th_hash_equal(*xfer_part_digest(part, c), *xfer_part_digest(plain, c)));
}

/* With somebody who waits for it, and without; stopped none, one or two times in between. */
Test(verify, digests_by_many_threads__the_same_and_all)
{
	struct rig_shard shard;
	rig_shard_init(&shard, sizes, COUNT, 42);
	struct xfer_part *plain = rig_part(&shard, true);
	rig_add_digests(plain);
	for (uint32_t threads = 1; threads <= 4; threads++) {
		struct transport *transport = open_with(threads);
		for (uint64_t round = 0; round < 6; round++) {
			struct xfer_part *part = rig_part(&shard, true);
			uint32_t grew = 0;
			if (round % 2)
				xfer_part_watch(part, rig_count_news, &grew);
			cr_assert_eq(transport_hash(transport, 1, part), 0);
			enum transport_event_kind kind = TRANSPORT_HASH_STOPPED;
			for (uint64_t stop = 0; stop < round / 2 && kind != TRANSPORT_HASHED;
				stop++) {
				transport_hash_stop(transport, 1);
				kind = wait_job(transport);
				if (kind != TRANSPORT_HASHED)
					cr_assert_eq(transport_hash(transport, 1, part), 0);
			}
			if (kind != TRANSPORT_HASHED)
				cr_assert_eq(wait_job(transport), TRANSPORT_HASHED);
			expect_digests(part, plain);
			if (round % 2)
				xfer_part_unwatch(part, rig_count_news, &grew);
			cr_assert(round % 2 == 0 || grew > 0);
			xfer_part_release(part);
		}
		transport_close(transport);
	}
	xfer_part_release(plain);
	rig_shard_fini(&shard);
}

/* Close with jobs under way: they end, and nobody reads the parts any more. */
Test(verify, close_while_digests_are_made__returns)
{
	struct rig_shard shard;
	rig_shard_init(&shard, sizes, COUNT, 42);
	struct transport *transport = open_with(3);
	struct xfer_part *parts[3];
	for (uint32_t i = 0; i < 3; i++) {
		parts[i] = rig_part(&shard, true);
		cr_assert_eq(transport_hash(transport, i + 1, parts[i]), 0);
	}
	transport_close(transport);
	memset(shard.memory, 0, shard.bytes);
	for (uint32_t i = 0; i < 3; i++)
		xfer_part_release(parts[i]);
	rig_shard_fini(&shard);
}

/* ---- full and off ---------------------------------------------------------------------------- */

/* Each way, from an agent that makes digests to one that does not want them. */
static void
to_a_reader_without(bool tcp)
{
	struct rig *rig = calloc(1, sizeof(*rig));
	struct rig_shard source, reader;
	struct rig_agent *from = rig_add_agent(rig, CALM_NS, 0);
	struct rig_agent *to = rig_add_agent(rig, CALM_NS, 0);
	rig_shard_init(&source, sizes, COUNT, 42);
	rig_shard_init(&reader, sizes, COUNT, 0);
	struct xfer_part *full = rig_part(&source, true), *off = rig_part(&reader, false);
	cr_assert_eq(transport_hash(from->transport, 1, full), 0);
	if (tcp)
		rig_pull(from, to, 1, full, off);
	else
		cr_assert_eq(transport_copy(to->transport, 1, full, off), 0);
	rig_wait(rig, to, TRANSPORT_DONE, 1);
	cr_assert(rig_shards_equal(&source, &reader));
	cr_assert_eq(xfer_part_digest_count(off), 0);
	cr_assert_eq(rig_counters(to).chunks_verified, 0);

	/* What it has now it cannot vouch for: who wants digests is sent on, with a sentence. */
	struct xfer_part *behind = rig_part(&source, true);
	if (tcp) {
		rig_pull(to, from, 2, off, behind);
		const struct transport_event *failed = rig_wait(rig, from, TRANSPORT_FAILED, 2);
		cr_assert_eq(failed->code, TH_E_CHECKSUM);
		cr_assert(failed->source_failed);
		cr_assert(strstr(failed->text, "--verify off"), "%s", failed->text);
		cr_assert_not(failed->overwrote);
	} else {
		cr_assert_eq(transport_copy(to->transport, 2, off, behind), TH_E_CHECKSUM);
	}
	rig_fini(rig);
	xfer_part_release(full);
	xfer_part_release(off);
	xfer_part_release(behind);
	rig_shard_fini(&source);
	rig_shard_fini(&reader);
	free(rig);
}

Test(verify, full_and_off_over_tcp__bytes_go_one_way)
{
	to_a_reader_without(true);
}

Test(verify, full_and_off_within_a_host__bytes_go_one_way)
{
	to_a_reader_without(false);
}
