/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv_snapshot_test - long answers of the server in parts: one snapshot whatever changes
 * meanwhile, its bounds in bytes, number and age, and what a reader of one that is gone is told.
 *
 * The parts are made small here: a replica takes at most 4 + (4 + name) + (4 + datacenter) + 4 * 11
 * bytes, its version 41, an answer 256.
 */
#include <stdio.h>

#include "ipc/base/answer_pages.h"
#include "server/core/refsrv_state.h"
#include "tests/unit/server/refsrv_fixture.h"

#define REPLICAS 12u
#define PART_BYTES (256u + 41u + 4u * 70u) /* four replicas named like r00 in dc of 3 letters */

static struct world_member members[REPLICAS];

static void
setup_with(uint64_t snapshot_bytes_max)
{
	struct refsrv_config config;

	refsrv_config_default(&config);
	config.part_bytes = PART_BYTES;
	if (snapshot_bytes_max > 0)
		config.snapshot_bytes_max = snapshot_bytes_max;
	world_init(&w, &config);
	new_agents(1);
	for (uint32_t i = 0; i < REPLICAS; i++) {
		char name[8];
		snprintf(name, sizeof(name), "r%02u", i);
		members[i] = world_member(&w, a, name, 0, 1);
	}
	/* Versions 1 (eight copies) and 2 (four). */
	for (uint32_t i = 0; i < REPLICAS; i++)
		world_publish(&w, &members[i], i < 8 ? "1" : "2");
}

static void
setup(void)
{
	setup_with(0);
}

static int
list(struct ctl_page page)
{
	struct ctl_request request = {.kind = CTL_LIST};

	strcpy(request.u.list.model, "m");
	request.u.list.page = page;
	return world_request(&w, a, &request);
}

static int
inspect(struct ctl_page page)
{
	struct ctl_request request = {.kind = CTL_INSPECT, .u.inspect = page};

	return world_request(&w, a, &request);
}

struct read { /* a listing put together */
	uint32_t num_parts, num_replicas, in_version[3];
	uint64_t generation;
	struct ctl_page next;
	char names[64][8];
};

/* Takes the reply; true: there is more. */
static bool
take(struct read *all)
{
	const struct ctl_listing *part = &w.reply.u.list;

	cr_assert(all->num_parts == 0 || part->generation == all->generation);
	all->generation = part->generation;
	all->num_parts++;
	for (uint32_t v = 0; v < part->num_versions; v++) {
		const struct ctl_version_info *version = &part->versions[v];
		cr_assert_gt(version->num_replicas, 0);
		all->in_version[version->version.version] += version->num_replicas;
		for (uint32_t r = 0; r < version->num_replicas; r++)
			strcpy(all->names[all->num_replicas++], version->replicas[r].name);
	}
	all->next = part->page;
	return part->page.next != 0;
}

static void
read_on(struct read *all)
{
	do {
		cr_assert_eq(list(all->next), 0);
	} while (take(all));
}

static void
expect_all(const struct read *all)
{
	cr_assert_eq(all->num_replicas, REPLICAS);
	cr_assert_eq(all->in_version[1], 8);
	cr_assert_eq(all->in_version[2], 4);
	for (uint32_t i = 0; i < REPLICAS; i++) {
		char name[8];
		snprintf(name, sizeof(name), "r%02u", i);
		cr_assert_str_eq(all->names[i], name);
	}
}

TestSuite(refsrv_snapshot, .init = setup, .fini = teardown);

Test(refsrv_snapshot, listing__longer_than_a_part__comes_whole)
{
	struct read all = {0};

	read_on(&all);
	cr_assert_geq(all.num_parts, 3);
	expect_all(&all);
}

Test(refsrv_snapshot, listing__changes_meanwhile__do_not_touch_it)
{
	struct read all = {0};

	cr_assert_eq(list((struct ctl_page){0}), 0);
	cr_assert(take(&all));
	for (uint32_t i = 0; i < REPLICAS; i++)
		unpublish(&members[i]);
	cr_assert_eq(world_list(&w, a, "m"), 0);
	cr_assert_eq(w.reply.u.list.num_versions, 0);
	cr_assert_gt(w.reply.u.list.generation, all.generation);
	read_on(&all);
	expect_all(&all);
}

Test(refsrv_snapshot, listing__fits_in_a_part__is_not_kept)
{
	for (uint32_t i = 2; i < REPLICAS; i++)
		unpublish(&members[i]);
	cr_assert_eq(list((struct ctl_page){0}), 0);
	cr_assert_eq(w.reply.u.list.page.snapshot, 0);
	cr_assert_eq(w.reply.u.list.page.next, 0);
	cr_assert_eq(w.server->snapshot_bytes, 0);
}

Test(refsrv_snapshot, listing__the_same_for_two_askers__is_kept_once)
{
	cr_assert_eq(list((struct ctl_page){0}), 0);
	struct ctl_page first = w.reply.u.list.page;
	uint64_t bytes = w.server->snapshot_bytes;
	cr_assert_eq(list((struct ctl_page){0}), 0);
	cr_assert_eq(w.reply.u.list.page.snapshot, first.snapshot);
	cr_assert_eq(w.server->snapshot_bytes, bytes);
	unpublish(&members[0]);
	cr_assert_eq(list((struct ctl_page){0}), 0);
	cr_assert_neq(w.reply.u.list.page.snapshot, first.snapshot);
}

Test(refsrv_snapshot, part__asked_twice__is_the_same)
{
	cr_assert_eq(list((struct ctl_page){0}), 0);
	struct ctl_page second = w.reply.u.list.page;
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(list(second), 0);
		cr_assert_eq(w.reply.u.list.page.next, 2 * second.next);
	}
}

Test(refsrv_snapshot, part__beyond_the_end__is_refused)
{
	cr_assert_eq(list((struct ctl_page){0}), 0);
	struct ctl_page page = w.reply.u.list.page;
	page.next = REPLICAS;
	cr_assert_eq(list(page), TH_E_INVALID);
	page.next = UINT64_MAX;
	cr_assert_eq(list(page), TH_E_INVALID);
}

Test(refsrv_snapshot, part__of_another_model_or_kind__is_not_there)
{
	struct ctl_request request = {.kind = CTL_LIST};

	cr_assert_eq(list((struct ctl_page){0}), 0);
	struct ctl_page page = w.reply.u.list.page;
	strcpy(request.u.list.model, "other");
	request.u.list.page = page;
	cr_assert_eq(world_request(&w, a, &request), TH_E_NOT_AVAILABLE);
	cr_assert_eq(inspect(page), TH_E_NOT_AVAILABLE);
	cr_assert_eq(list((struct ctl_page){page.snapshot + 1, 4}), TH_E_NOT_AVAILABLE);
}

Test(refsrv_snapshot, snapshot__not_read_for_10_s__is_gone)
{
	cr_assert_eq(list((struct ctl_page){0}), 0);
	struct ctl_page page = w.reply.u.list.page;
	/* Read again and again it stays, but not for ever. */
	for (int i = 0; i < 6; i++) {
		world_sleep(&w, 9 * SEC);
		cr_assert_eq(list(page), 0, "after %d s", 9 * (i + 1));
	}
	world_sleep(&w, 7 * SEC);
	cr_assert_eq(list(page), TH_E_NOT_AVAILABLE);
	cr_assert_eq(w.server->snapshot_bytes, 0);
	cr_assert_eq(list((struct ctl_page){0}), 0);
	page = w.reply.u.list.page;
	world_sleep(&w, 11 * SEC);
	cr_assert_eq(list(page), TH_E_NOT_AVAILABLE);
}

Test(refsrv_snapshot, snapshots__of_one_asker__are_few)
{
	struct ctl_page first = {0}, page = {0};

	for (int i = 0; i < 17; i++) {
		cr_assert_eq(inspect((struct ctl_page){0}), 0);
		page = w.reply.u.inspect.page;
		cr_assert_neq(page.snapshot, 0);
		if (i == 0)
			first = page;
		world_sleep(&w, MS);
	}
	cr_assert_eq(inspect(first), TH_E_NOT_AVAILABLE);
	cr_assert_eq(inspect(page), 0);
	cr_assert_eq(HASH_COUNT(w.server->snapshots), 16);
}

Test(refsrv_snapshot, inspection__in_parts__every_member_once)
{
	struct ctl_page page = {0};
	uint32_t num_nodes = 0, num_members = 0, num_parts = 0;

	do {
		cr_assert_eq(inspect(page), 0);
		num_parts++;
		num_nodes += w.reply.u.inspect.num_nodes;
		for (uint32_t i = 0; i < w.reply.u.inspect.num_members; i++)
			cr_assert_eq(w.reply.u.inspect.members[i].sid, members[num_members++].sid);
		page = w.reply.u.inspect.page;
	} while (page.next != 0);
	cr_assert_eq(num_nodes, 1);
	cr_assert_eq(num_members, REPLICAS);
	cr_assert_geq(num_parts, 4);
}

Test(refsrv_snapshot, group__long_listing__the_same_for_all_members)
{
	struct world_member m[2];
	struct read all[2] = {{0}, {0}};

	for (uint32_t i = 0; i < 2; i++)
		m[i] = world_member(&w, a, "asker", i, 2);
	world_call(&w, &m[0], CTL_OP_LIST, "", TH_FOREVER);
	for (uint32_t i = 0; i < 4; i++)
		unpublish(&members[i]);
	world_call(&w, &m[1], CTL_OP_LIST, "", TH_FOREVER);
	for (uint32_t i = 0; i < 2; i++) {
		struct ctl_request request = {.kind = CTL_LIST};
		succeeded(&m[i]);
		request.u.list.sid = m[i].sid;
		request.u.list.op_seq = m[i].seq;
		cr_assert_eq(world_request(&w, a, &request), 0);
		cr_assert(take(&all[i]));
		/* It outlives the operation: others may have moved on. */
		if (i == 1)
			for (uint32_t j = 0; j < 2; j++)
				world_call(&w, &m[j], CTL_OP_LIST, "", TH_FOREVER);
		read_on(&all[i]);
		expect_all(&all[i]);
	}
	cr_assert_eq(all[0].generation, all[1].generation);
}

static void
setup_small(void)
{
	world_fini(&w); /* of the suite: its set-up runs before this one */
	setup_with(2 * (sizeof(struct snapshot) + 2 * sizeof(struct ctl_version_info) +
			       REPLICAS * sizeof(struct ctl_replica_info)));
}

Test(refsrv_snapshot, bytes__limit__the_oldest_gives_way, .init = setup_small)
{
	struct ctl_page pages[3];

	for (uint32_t i = 0; i < 3; i++) {
		cr_assert_eq(list((struct ctl_page){0}), 0);
		pages[i] = w.reply.u.list.page;
		world_sleep(&w, MS);
		unpublish(&members[i]);
	}
	cr_assert_eq(list(pages[0]), TH_E_NOT_AVAILABLE);
	cr_assert_eq(list(pages[1]), 0);
	cr_assert_eq(list(pages[2]), 0);
}

Test(refsrv_snapshot, bytes__held_for_groups__are_not_taken_away, .init = setup_small)
{
	struct world_member m[2];
	struct read all = {0};

	for (uint32_t i = 0; i < 2; i++)
		m[i] = world_member(&w, a, "asker", i, 2);
	/* The second member does not call: two snapshots are held, a third has no room. */
	for (int i = 0; i < 2; i++) {
		world_call(&w, &m[0], CTL_OP_LIST, "", TH_FOREVER);
		succeeded(&m[0]);
	}
	world_call(&w, &m[0], CTL_OP_LIST, "", TH_FOREVER);
	struct ctl_ev_outcome end = world_outcome(&w, &m[0]);
	cr_assert_eq(end.code, TH_E_LIMIT);
	cr_assert_not_null(strstr(end.text, "limit.snapshot_bytes"));
	unpublish(&members[0]);
	cr_assert_eq(list((struct ctl_page){0}), TH_E_LIMIT);
	/* It calls at last, and they are free again. */
	for (int i = 0; i < 3; i++)
		world_call(&w, &m[1], CTL_OP_LIST, "", TH_FOREVER);
	call_both(m, CTL_OP_UNPUBLISH, "");
	read_on(&all);
	cr_assert_eq(all.num_replicas, REPLICAS - 1);
}

Test(refsrv_snapshot, watch__stop__nothing_is_told_any_more)
{
	struct ctl_request watch = {.kind = CTL_WATCH};

	strcpy(watch.u.watch.model, "m");
	cr_assert_eq(world_request(&w, a, &watch), 0);
	unpublish(&members[0]);
	world_sleep(&w, SEC);
	struct ctl_event event;
	cr_assert(world_take(&w, a, CTL_EV_CHANGED, 0, &event));
	cr_assert_eq(list((struct ctl_page){0}), 0);
	cr_assert_eq(event.u.changed.generation, w.reply.u.list.generation);
	watch.u.watch.stop = true;
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(world_request(&w, a, &watch), 0);
		cr_assert_eq(w.reply.u.watch.generation, event.u.changed.generation);
	}
	while (world_take(&w, a, CTL_EV_CHANGED, 0, &event))
		;
	unpublish(&members[1]);
	world_sleep(&w, SEC);
	cr_assert_not(world_has(&w, a, CTL_EV_CHANGED, 0));
}

/* ---- the reader's side ---- */

Test(pages, take__parts_in_order__until_the_last)
{
	struct pages pages = {0};
	struct th_err err;

	cr_assert_eq(pages_take(&pages, (struct ctl_page){9, 4}, 4, 7, &err), 1);
	cr_assert_eq(pages.ask.snapshot, 9);
	cr_assert_eq(pages.ask.next, 4);
	cr_assert_eq(pages_take(&pages, (struct ctl_page){9, 5}, 1, 7, &err), 1);
	cr_assert_eq(pages_take(&pages, (struct ctl_page){9, 0}, 3, 7, &err), 0);
	pages = (struct pages){0};
	cr_assert_eq(pages_take(&pages, (struct ctl_page){0, 0}, 0, 7, &err), 0);
}

Test(pages, take__hostile_parts__are_refused)
{
	const struct {
		struct ctl_page page;
		uint64_t entries, mark;
	} bad[] = {
		{{8, 5}, 1, 7}, /* another snapshot */
		{{0, 0}, 1, 7}, /* none */
		{{9, 5}, 1, 6}, /* another generation */
		{{9, 4}, 0, 7}, /* no progress */
		{{9, 4}, 1, 7}, /* back */
		{{9, 6}, 1, 7}, /* over one */
		{{9, 5}, UINT64_MAX, 7},
		{{9, 0}, PAGES_ENTRIES_MAX, 7},
	};
	struct th_err err;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct pages pages = {0};
		cr_assert_eq(pages_take(&pages, (struct ctl_page){9, 4}, 4, 7, &err), 1);
		err.code = 0;
		cr_assert_lt(pages_take(&pages, bad[i].page, bad[i].entries, bad[i].mark, &err), 0,
			"%zu", i);
		cr_assert_neq(err.code, 0);
	}
}

Test(pages, restart__only_when_the_snapshot_is_gone__and_not_for_ever)
{
	struct pages pages = {0};
	struct th_err err;

	cr_assert_not(pages_restart(&pages, TH_E_NOT_AVAILABLE));
	for (uint32_t i = 0; i <= PAGES_RESTARTS_MAX; i++) {
		cr_assert_eq(pages_take(&pages, (struct ctl_page){9, 4}, 4, 7, &err), 1);
		cr_assert_not(pages_restart(&pages, TH_E_NO_SERVER));
		cr_assert_eq(pages_restart(&pages, TH_E_NOT_AVAILABLE), i < PAGES_RESTARTS_MAX);
	}
}
