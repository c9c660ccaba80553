/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refsrv_reader - see refsrv_reader.h. The expectation is worked out here, from the state itself.
 */
#include "tests/support/core/refsrv_reader.h"

#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/name.h"
#include "server/core/model/copy.h"
#include "server/core/model/model.h"

static uint32_t
look(struct world *w, struct reader_row *rows)
{
	const struct model *model = model_find(w->server, "m");
	struct version *version;
	const struct copy *copy;
	uint32_t count = 0;

	if (model == NULL)
		return 0;
	DL_FOREACH(model->versions, version)
	{
		copy_sort(version);
		DL_FOREACH2(version->by_name, copy, name_next)
		{
			struct reader_row *row = &rows[count];
			if (copy->aborting || copy->group->state == GROUP_BROKEN ||
				copy->content != version->contents)
				continue;
			TH_ASSERT(count++ < READER_REPLICAS_MAX);
			memset(row, 0, sizeof(*row));
			row->version = version->id;
			strcpy(row->info.name, copy->group->replica);
			strcpy(row->info.datacenter, copy->parts[0].member->agent->info.datacenter);
			row->info.num_shards = copy->num_parts;
			if (copy->state == COPY_READY)
				row->info.flags |= CTL_REPLICA_READY;
			if (copy->draining)
				row->info.flags |= CTL_REPLICA_DRAINING;
			for (uint32_t i = 0; i < copy->num_parts; i++) {
				row->info.chunks_done += copy->parts[i].chunks_done;
				row->info.chunks_total += WORLD_CHUNKS;
			}
		}
	}
	return count;
}

/* Once: what the generation stands for is the same as when it was seen before. */
static void
check_generation(struct reader *reader)
{
	TH_ASSERT(reader->generation >= reader->last_generation);
	if (reader->generation == reader->last_generation) {
		TH_ASSERT(reader->num_expected == reader->num_last);
		for (uint32_t i = 0; i < reader->num_last; i++) {
			const struct reader_row *was = &reader->last[i], *is = &reader->expected[i];
			TH_ASSERT(th_version_compare(was->version, is->version) == 0);
			TH_ASSERT(strcmp(was->info.name, is->info.name) == 0);
			TH_ASSERT(was->info.flags == is->info.flags);
		}
	}
	reader->last_generation = reader->generation;
	reader->num_last = reader->num_expected;
	memcpy(reader->last, reader->expected, sizeof(reader->last));
}

static void
take(struct reader *reader, const struct ctl_listing *part)
{
	uint64_t entries = 0;
	struct th_err err;

	TH_ASSERT(part->generation == reader->generation);
	for (uint32_t v = 0; v < part->num_versions; v++) {
		const struct ctl_version_info *version = &part->versions[v];
		for (uint32_t r = 0; r < version->num_replicas; r++) {
			const struct reader_row *expected = &reader->expected[reader->num_taken];
			TH_ASSERT(reader->num_taken++ < reader->num_expected);
			TH_ASSERT(th_version_compare(version->version, expected->version) == 0);
			TH_ASSERT(memcmp(&version->replicas[r], &expected->info,
					  sizeof(expected->info)) == 0);
			entries++;
		}
	}
	int rc = pages_take(&reader->pages, part->page, entries, part->generation, &err);
	TH_ASSERT(rc >= 0);
	reader->reading = rc > 0;
	if (rc > 0)
		return;
	TH_ASSERT(reader->num_taken == reader->num_expected);
	reader->num_whole += reader->pages.ask.snapshot == 0;
	reader->num_in_parts += reader->pages.ask.snapshot != 0;
}

void
reader_step(struct reader *reader, uint32_t agent)
{
	struct ctl_request request = {.kind = CTL_LIST};
	struct world *w = reader->w;

	if (!reader->reading) {
		reader->pages = (struct pages){0};
		reader->agent = agent;
		reader->num_taken = 0;
	}
	strcpy(request.u.list.model, "m");
	request.u.list.page = reader->pages.ask;
	int rc = world_request(w, agent, &request);
	if (!w->agents[agent].attached)
		return;
	if (rc != 0) {
		/* It was away for so long that its snapshot is gone. */
		TH_ASSERT(rc == TH_E_NOT_AVAILABLE && reader->pages.ask.snapshot != 0);
		reader->reading = false;
		reader->num_lost++;
		return;
	}
	if (reader->pages.ask.snapshot == 0) {
		reader->generation = w->reply.u.list.generation;
		reader->num_expected = look(w, reader->expected);
		check_generation(reader);
	}
	take(reader, &w->reply.u.list);
}
