/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_fuzz - the rows of a view and the manifests of published shards, as nobody would write them.
 *
 * Names are few, so that they meet; numbers are small or at an end of their range. Of a plan that
 * is made the pieces must lie in their rows, and cover each row as often as it has elements; a
 * small one is carried out and compared with a copy by hand.
 */
#include "ipc/plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "tests/fuzz/input.h"
#include "tests/support/plan_rig.h"

#define ROWS 24
#define SHARDS 4
#define SMALL 4096 /* bytes of a row that is carried out */

static const char *const names[] = {"a", "b", "c", "ab", ""};

static const char *
input_name(struct input *input)
{
	uint8_t byte = input_byte(input);
	return byte < 250 ? names[byte % 4] : byte < 255 ? names[4] : NULL;
}

static struct manifest_row
input_row(struct input *input)
{
	static const uint32_t dtypes[] = {RIG_U8, RIG_BF16, RIG_F32, RIG_F8, RIG_F4, RIG_F16, 21};
	struct manifest_row row = {.name = input_name(input)};
	uint8_t form = input_byte(input);
	row.dtype = form >> 4 < 7 ? dtypes[form >> 4] : form >> 4 == 15 ? 99 : RIG_BF16;
	row.ndim = form % 16 < 12 ? form % 4 : form % 16 < 15 ? 8 : 9;
	for (uint32_t d = 0; d < row.ndim && d < MANIFEST_DIMS_MAX; d++) {
		row.global_shape[d] = input_number(input);
		row.offset[d] = input_number(input);
		row.local_shape[d] = input_number(input);
	}
	return row;
}

static struct plan_row
input_want(struct input *input)
{
	struct plan_row row = {.form = input_row(input)};
	uint8_t extra = input_byte(input);
	for (uint32_t d = 0; d < row.form.ndim && d < MANIFEST_DIMS_MAX && extra & 1; d++)
		row.stride[d] = input_number(input);
	if (extra & 2) {
		row.convert.scheme = (uint32_t)(extra >> 4) % 6;
		row.convert.scales = extra & 4;
		if (extra & 8)
			row.convert.of = input_name(input);
		row.convert.block[0] = (uint32_t)input_number(input);
		row.convert.block[1] = (uint32_t)input_number(input);
	}
	return row;
}

/* Pieces in their bounds; copies and conversions of a row are as many bytes as it has. */
static void
check_plan(const struct plan_view *view, const struct manifest *shards, const struct plan *plan)
{
	uint64_t bytes_in = 0, from_sources = 0;
	for (uint32_t i = 0; i < view->count; i++) {
		struct manifest_row form = view->rows[i].form;
		bool whole = true;
		uint64_t bytes = 0;
		for (uint32_t d = 0; d < form.ndim; d++)
			whole = whole && form.global_shape[d] == 0;
		if (whole)
			memcpy(form.global_shape, form.local_shape, sizeof(form.global_shape));
		TH_ASSERT(manifest_check_row(&form, NULL) == 0);
		for (uint32_t p = plan->first[i]; p < plan->first[i + 1]; p++) {
			const struct plan_piece *piece = &plan->pieces[p];
			struct manifest_row from = shards[piece->shard].rows[piece->source_row];
			uint64_t last = piece->source_at + piece->source_run, runs = 1;
			TH_ASSERT(manifest_check_row(&from, NULL) == 0);
			for (uint32_t l = 0; l < piece->num_loops; l++) {
				const struct plan_loop *loop = &plan->loops[piece->loop + l];
				last += (loop->count - 1) * loop->source_step;
				runs *= loop->count;
			}
			TH_ASSERT(runs == piece->runs && last <= from.bytes);
			TH_ASSERT(piece->run > 0 || view->rows[i].convert.scales);
			bytes += piece->runs * piece->run;
			bytes_in += piece->bytes;
		}
		TH_ASSERT(bytes == form.bytes || view->rows[i].convert.scales);
	}
	for (uint32_t i = 0; i < plan->num_sources; i++)
		from_sources += plan->sources[i].bytes;
	TH_ASSERT(bytes_in == plan->bytes_in && from_sources == bytes_in);
}

static bool
is_small(const struct plan_view *view, const struct manifest *shards, uint32_t num_shards)
{
	for (uint32_t i = 0; i < view->count; i++) {
		const struct plan_row *row = &view->rows[i];
		uint64_t span = 8;
		for (uint32_t d = 0; d < row->form.ndim; d++) {
			if (row->form.local_shape[d] > SMALL || row->stride[d] > SMALL)
				return false;
			span += (row->form.local_shape[d] + 1) * (row->stride[d] + 1);
		}
		struct manifest_row form = row->form;
		memcpy(form.global_shape, form.local_shape, sizeof(form.global_shape));
		memset(form.offset, 0, sizeof(form.offset));
		TH_ASSERT(manifest_check_row(&form, NULL) == 0);
		if (span > SMALL || form.bytes > SMALL)
			return false;
	}
	for (uint32_t i = 0; i < num_shards; i++)
		for (uint32_t j = 0; j < shards[i].num_rows; j++) {
			struct manifest_row row = shards[i].rows[j];
			TH_ASSERT(manifest_check_row(&row, NULL) == 0);
			if (row.bytes > SMALL)
				return false;
		}
	return true;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input input = {.at = data, .left = size};
	static struct plan_row wants[ROWS];
	static struct manifest_row rows[SHARDS][ROWS];
	static struct manifest_alias aliases[SHARDS + 1];
	static struct manifest shards[SHARDS];
	struct plan_rig rig = {0};
	struct planner *planner = NULL;
	struct plan *plan = NULL;
	uint8_t first = input_byte(&input), second = input_byte(&input);
	rig.num_shards = 1u + (uint32_t)first % SHARDS;
	rig.rows = wants;
	rig.shards = shards;
	rig.view = (struct plan_view){.rows = wants,
		.aliases = &aliases[SHARDS],
		.count = (uint32_t)first / SHARDS % ROWS,
		.num_aliases = (uint32_t)second >> 7,
		.shard = second & 3u,
		.num_shards = (uint32_t)(second >> 2) & 7};
	aliases[SHARDS] = (struct manifest_alias){"tied", 0};
	for (uint32_t i = 0; i < rig.view.count; i++)
		wants[i] = input_want(&input);
	int rc = planner_new(&rig.view, NULL, &planner);
	for (uint32_t i = 0; i < rig.num_shards && rc == 0; i++) {
		struct manifest *shard = &rig.shards[i];
		uint8_t count = input_byte(&input);
		*shard = (struct manifest){.rows = rows[i],
			.num_rows = (uint32_t)count % ROWS,
			.num_aliases = (uint32_t)count >> 7,
			.aliases = &aliases[i]};
		for (uint32_t j = 0; j < shard->num_rows; j++)
			rows[i][j] = input_row(&input);
		if (shard->num_aliases)
			aliases[i] = (struct manifest_alias){
				input_name(&input), (uint32_t)input_number(&input)};
		rc = planner_add(planner, shard, NULL);
	}
	if (rc == 0)
		rc = planner_finish(planner, NULL, &plan);
	TH_ASSERT(rc == 0 || rc == TH_E_INVALID || rc == TH_E_LAYOUT || rc == TH_E_LIMIT);
	if (rc == 0) {
		check_plan(&rig.view, rig.shards, plan);
		bool tied = false;
		for (uint32_t i = 0; i < rig.num_shards; i++)
			tied = tied || rig.shards[i].num_aliases > 0;
		if (!tied && is_small(&rig.view, rig.shards, rig.num_shards)) {
			const char *wrong = plan_rig_replay(&rig, plan);
			TH_ASSERT(!wrong);
		}
	}
	plan_free(plan);
	planner_free(planner);
	return 0;
}
