/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer_parts - see answer_parts.h.
 */
#include "tools/thctl/answer_parts.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"

/* Room for `more` behind `used`, by doubling; the array may have moved. */
static void *
answer_parts_grow(void *array, uint32_t used, uint32_t more, uint32_t *max, size_t size)
{
	uint32_t wanted = used + more;

	if (wanted <= *max)
		return array;
	*max = th_max_u32(wanted, *max * 2);
	return th_realloc(array, *max, size);
}

/* ---- listings ------------------------------------------------------------------------------- */

void
parts_add_listing(struct parts_listing *all, const struct ctl_listing *part)
{
	all->generation = part->generation;
	for (uint32_t v = 0; v < part->num_versions; v++) {
		const struct ctl_version_info *from = &part->versions[v];
		bool goes_on = v == 0 && all->num_versions > 0 &&
			       th_version_compare(all->versions[all->num_versions - 1].version,
				       from->version) == 0;
		if (!goes_on) {
			all->versions = answer_parts_grow(all->versions, all->num_versions, 1,
				&all->versions_max, sizeof(all->versions[0]));
			all->versions[all->num_versions] = *from;
			all->versions[all->num_versions++].num_replicas = 0;
		}
		if (from->num_replicas == 0)
			continue;
		all->replicas = answer_parts_grow(all->replicas, all->num_replicas,
			from->num_replicas, &all->replicas_max, sizeof(all->replicas[0]));
		memcpy(&all->replicas[all->num_replicas], from->replicas,
			from->num_replicas * sizeof(all->replicas[0]));
		all->num_replicas += from->num_replicas;
		all->versions[all->num_versions - 1].num_replicas += from->num_replicas;
	}
}

void
parts_drop_listing(struct parts_listing *all)
{
	free(all->versions);
	free(all->replicas);
	*all = (struct parts_listing){0};
}

struct ctl_listing
parts_whole_listing(struct parts_listing *all)
{
	uint32_t next = 0;

	/* Only now: the array moved while it grew. */
	for (uint32_t v = 0; v < all->num_versions; v++) {
		all->versions[v].replicas = all->replicas == NULL ? NULL : &all->replicas[next];
		next += all->versions[v].num_replicas;
	}
	return (struct ctl_listing){
		.generation = all->generation,
		.num_versions = all->num_versions,
		.versions = all->versions,
	};
}

/* ---- inspections ---------------------------------------------------------------------------- */

/* The struct has the arrays const, for its readers. */
static void *
answer_parts_writable(const void *array)
{
	void *same;

	memcpy(&same, &array, sizeof(same));
	return same;
}

static const void *
answer_parts_append(const void *array, uint32_t *used, uint32_t *max, const void *more,
	uint32_t count, size_t size)
{
	char *grown = answer_parts_writable(array);

	if (count == 0)
		return array;
	grown = answer_parts_grow(grown, *used, count, max, size);
	memcpy(grown + *used * size, more, count * size);
	*used += count;
	return grown;
}

void
parts_add_inspection(struct parts_inspection *all, const struct ctl_inspection *part)
{
	struct ctl_inspection *whole = &all->whole;

	whole->server_inc = part->server_inc;
	whole->uptime_ns = part->uptime_ns;
	whole->serving = part->serving;
	whole->epoch = part->epoch;
	memcpy(whole->server_text, part->server_text, sizeof(whole->server_text));
	whole->num_counters = part->num_counters;
	memcpy(whole->counters, part->counters, sizeof(whole->counters));
	whole->nodes = answer_parts_append(whole->nodes, &whole->num_nodes, &all->nodes_max,
		part->nodes, part->num_nodes, sizeof(part->nodes[0]));
	whole->members = answer_parts_append(whole->members, &whole->num_members, &all->members_max,
		part->members, part->num_members, sizeof(part->members[0]));
	whole->transfers =
		answer_parts_append(whole->transfers, &whole->num_transfers, &all->transfers_max,
			part->transfers, part->num_transfers, sizeof(part->transfers[0]));
}

void
parts_drop_inspection(struct parts_inspection *all)
{
	free(answer_parts_writable(all->whole.nodes));
	free(answer_parts_writable(all->whole.members));
	free(answer_parts_writable(all->whole.transfers));
	*all = (struct parts_inspection){0};
}
