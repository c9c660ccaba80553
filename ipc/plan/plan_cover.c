/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_cover - which published boxes make up the box of a row, each element once. Pure.
 *
 * Owners of one box are a class. Classes are taken in the order of their boxes; each takes what is
 * still a hole of what it has, and splits the hole around itself. A mesh that cuts a tensor leaves
 * few holes at a time, so that is one step a box. Where boxes overlap and are not the same, the
 * order is that of the first owners instead. Whoever makes many holes meets the limit of steps.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/plan/plan_internal.h"

/* ---- classes ------------------------------------------------------------------------------- */

static int
compare_numbers(const uint64_t *a, const uint64_t *b, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (a[i] != b[i])
			return a[i] < b[i] ? -1 : 1;
	return 0;
}

struct order {
	const struct planner *planner;
	uint32_t ndim;
};

/* By box, then as they came: by shard and row. */
static int
compare_owners(const void *a, const void *b, void *arg)
{
	const struct order *order = arg;
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	int by_box = compare_numbers(plan_owner_box(order->planner, x),
		plan_owner_box(order->planner, y), 2 * order->ndim);
	if (by_box != 0)
		return by_box;
	return x < y ? -1 : x > y;
}

static void
sort_owners(struct planner *planner, const struct plan_name *name)
{
	struct order order = {planner, name->ndim};
	uint32_t *owners = planner->order + name->first_source;
	for (uint32_t i = 1; i < name->num_sources; i++) {
		if (compare_owners(&owners[i - 1], &owners[i], &order) > 0) {
			qsort_r(owners, name->num_sources, sizeof(owners[0]), compare_owners,
				&order);
			return;
		}
	}
}

/* Equal boxes of one shard count once, so that the choice among owners is one among shards. */
static int
find_classes(struct planner *planner, struct plan_name *name)
{
	const struct plan_owner *all = planner->owners.items;
	uint32_t *owners = planner->order + name->first_source, kept = 0;
	struct plan_class *class = NULL;
	name->first_class = (uint32_t)planner->classes.count;
	for (uint32_t i = 0; i < name->num_sources; i++) {
		uint32_t owner = owners[i];
		bool same = class && compare_numbers(plan_owner_box(planner, owners[kept - 1]),
					     plan_owner_box(planner, owner), 2 * name->ndim) == 0;
		if (same && all[owners[kept - 1]].shard == all[owner].shard)
			continue;
		if (!same) {
			class = plan_push(&planner->classes, sizeof(*class));
			if (!class)
				return -ENOMEM;
			class->first = name->first_source + kept;
		}
		class->count++;
		owners[kept++] = owner;
	}
	name->num_classes = (uint32_t)planner->classes.count - name->first_class;
	return 0;
}

/*
 * Brings what belongs to one name together, or each comparison of two boxes would wait for memory.
 * Within a name the order stays that of shards and rows.
 */
static int
gather_names(struct planner *planner)
{
	const struct plan_owner *from = planner->owners.items;
	const uint64_t *from_numbers = planner->numbers.items;
	size_t count = planner->owners.count;
	uint32_t at = 0, box = 0;
	struct plan_owner *owners = calloc(count + 1, sizeof(owners[0]));
	uint64_t *numbers = calloc(planner->numbers.count + 1, sizeof(numbers[0]));
	planner->order = calloc(count + 1, sizeof(planner->order[0]));
	if (!owners || !numbers || !planner->order) {
		free(owners);
		free(numbers);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < planner->num_names; i++) {
		struct plan_name *name = &planner->names[i];
		name->first_source = at;
		name->first_class = box; /* until there are classes: its next box */
		at += name->num_sources;
		box += name->num_sources * plan_box_numbers(name->ndim);
		name->num_sources = 0;
	}
	for (size_t i = 0; i < count; i++) {
		struct plan_name *name = &planner->names[from[i].name];
		uint32_t to = name->first_source + name->num_sources++;
		uint32_t width = plan_box_numbers(name->ndim);
		planner->order[to] = to;
		owners[to] = from[i];
		owners[to].box = name->first_class;
		memcpy(numbers + name->first_class, from_numbers + from[i].box,
			width * sizeof(numbers[0]));
		name->first_class += width;
	}
	free(planner->owners.items);
	free(planner->numbers.items);
	planner->owners.items = owners;
	planner->numbers.items = numbers;
	return 0;
}

int
plan_cover_prepare(struct planner *planner, struct th_err *err)
{
	int rc = gather_names(planner);
	for (uint32_t i = 0; i < planner->num_names && rc == 0; i++) {
		sort_owners(planner, &planner->names[i]);
		rc = find_classes(planner, &planner->names[i]);
	}
	if (rc < 0)
		return th_fail(err, rc, "no memory to plan %zu rows", planner->owners.count);
	return 0;
}

/* ---- covering ------------------------------------------------------------------------------ */

static void
box_meet(const struct plan_box *a, const uint64_t *lo, const uint64_t *size, uint32_t ndim,
	struct plan_box *ret_box)
{
	*ret_box = (struct plan_box){0};
	for (uint32_t d = 0; d < ndim; d++) {
		ret_box->lo[d] = th_max_u64(a->lo[d], lo[d]);
		ret_box->size[d] =
			th_min_u64(a->lo[d] + a->size[d], lo[d] + size[d]) - ret_box->lo[d];
	}
}

/* What is left of a hole around what was taken: at most two boxes a dimension. */
static int
hole_split(
	struct planner *planner, struct plan_box hole, const struct plan_box *taken, uint32_t ndim)
{
	for (uint32_t d = 0; d < ndim; d++) {
		uint64_t before = taken->lo[d] - hole.lo[d];
		uint64_t behind = hole.size[d] - before - taken->size[d];
		for (int side = 0; side < 2; side++) {
			if ((side ? behind : before) == 0)
				continue;
			struct plan_box *rest = plan_push(&planner->holes, sizeof(*rest));
			if (!rest)
				return -ENOMEM;
			*rest = hole;
			rest->size[d] = side ? behind : before;
			if (side)
				rest->lo[d] = taken->lo[d] + taken->size[d];
		}
		hole.lo[d] = taken->lo[d];
		hole.size[d] = taken->size[d];
	}
	return 0;
}

/* Takes what is still a hole of the class's box. ret_taken: its elements. */
static int
take_class(struct planner *planner, const struct plan_name *name, uint32_t class_index,
	struct th_err *err, uint64_t *ret_taken)
{
	const struct plan_class *class =
		(const struct plan_class *)planner->classes.items + class_index;
	const uint64_t *lo = plan_owner_box(planner, planner->order[class->first]);
	const uint64_t *size = lo + name->ndim;
	uint64_t taken = 0;
	int rc = plan_steps(planner, 1 + planner->holes.count, name->name, err);
	/* From the last: one that is split makes room for the last, which has been looked at. */
	for (size_t i = planner->holes.count; i-- > 0 && rc == 0;) {
		struct plan_box *holes = planner->holes.items;
		if (!plan_box_meets(&holes[i], lo, size, name->ndim))
			continue;
		struct plan_part *part = plan_push(&planner->parts, sizeof(*part));
		if (!part)
			return th_fail(err, -ENOMEM, "no memory to plan tensor '%s'", name->name);
		struct plan_box hole = holes[i];
		part->class_index = class_index;
		box_meet(&hole, lo, size, name->ndim, &part->box);
		taken += plan_box_volume(&part->box, name->ndim);
		struct plan_box box = part->box;
		holes[i] = holes[--planner->holes.count];
		rc = hole_split(planner, hole, &box, name->ndim);
		if (rc < 0)
			th_fail(err, rc, "no memory to plan tensor '%s'", name->name);
		if (rc == 0 && planner->parts.count > PLAN_PIECES_MAX)
			rc = th_fail(err, TH_E_LIMIT, "tensor '%s' has more than %u pieces",
				name->name, PLAN_PIECES_MAX);
	}
	*ret_taken = taken;
	return rc;
}

struct first_owner {
	uint32_t owner, class_index;
};

static int
compare_first(const void *a, const void *b)
{
	const struct first_owner *x = a, *y = b;
	return x->owner < y->owner ? -1 : x->owner > y->owner;
}

static int
cover_begin(struct planner *planner, const struct plan_want *want)
{
	planner->parts.count = planner->holes.count = 0;
	struct plan_box *hole = plan_push(&planner->holes, sizeof(*hole));
	if (!hole)
		return -ENOMEM;
	*hole = want->box;
	return 0;
}

static int
compare_parts(const void *a, const void *b)
{
	const struct plan_part *x = a, *y = b;
	return compare_numbers(x->box.lo, y->box.lo, MANIFEST_DIMS_MAX);
}

/* Boxes overlap: the first owner has each element, and the parts come back into their order. */
static int
cover_by_owner(struct planner *planner, const struct plan_want *want, const struct plan_name *name,
	struct th_err *err)
{
	const struct plan_class *classes = planner->classes.items;
	uint64_t taken;
	int rc = plan_steps(planner, name->num_classes, name->name, err);
	if (rc < 0)
		return rc;
	struct first_owner *firsts = calloc(name->num_classes, sizeof(firsts[0]));
	if (!firsts || cover_begin(planner, want) < 0) {
		rc = th_fail(err, -ENOMEM, "no memory to plan tensor '%s'", name->name);
		goto out;
	}
	for (uint32_t i = 0; i < name->num_classes; i++)
		firsts[i] =
			(struct first_owner){planner->order[classes[name->first_class + i].first],
				name->first_class + i};
	qsort(firsts, name->num_classes, sizeof(firsts[0]), compare_first);
	for (uint32_t i = 0; i < name->num_classes && rc == 0 && planner->holes.count > 0; i++)
		rc = take_class(planner, name, firsts[i].class_index, err, &taken);
	if (rc == 0 && planner->parts.count > 1)
		qsort(planner->parts.items, planner->parts.count, sizeof(struct plan_part),
			compare_parts);
	planner->overlaps++;
out:
	free(firsts);
	return rc;
}

static int
fail_hole(const struct planner *planner, const struct plan_want *want, const struct plan_name *name,
	struct th_err *err)
{
	const struct plan_box *holes = planner->holes.items, *first = &holes[0];
	char hole[PLAN_BOX_TEXT], box[PLAN_BOX_TEXT];
	for (size_t i = 1; i < planner->holes.count; i++)
		if (compare_numbers(holes[i].lo, first->lo, name->ndim) < 0)
			first = &holes[i];
	return th_fail(err, TH_E_LAYOUT,
		"tensor '%s': nobody has published %s of %s, which row '%s' wants", name->name,
		plan_box_print(first, name->ndim, hole),
		plan_box_print(&want->box, name->ndim, box), want->row->form.name);
}

int
plan_cover_row(struct planner *planner, uint32_t row, struct th_err *err)
{
	const struct plan_want *want = &planner->wants[row];
	const struct plan_name *name = &planner->names[want->name];
	const struct plan_class *classes = planner->classes.items;
	bool overlap = false;
	if (cover_begin(planner, want) < 0)
		return th_fail(err, -ENOMEM, "no memory to plan tensor '%s'", name->name);
	int rc = plan_steps(planner, name->num_classes, name->name, err);
	for (uint32_t i = 0; i < name->num_classes && rc == 0 && !overlap; i++) {
		uint32_t index = name->first_class + i;
		const uint64_t *lo = plan_owner_box(planner, planner->order[classes[index].first]);
		struct plan_box common;
		uint64_t taken;
		if (!plan_box_meets(&want->box, lo, lo + name->ndim, name->ndim))
			continue;
		box_meet(&want->box, lo, lo + name->ndim, name->ndim, &common);
		rc = take_class(planner, name, index, err, &taken);
		overlap = rc == 0 && taken < plan_box_volume(&common, name->ndim);
	}
	if (rc == 0 && overlap)
		rc = cover_by_owner(planner, want, name, err);
	if (rc == 0 && planner->holes.count > 0)
		rc = fail_hole(planner, want, name, err);
	return rc;
}
