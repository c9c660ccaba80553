/* SPDX-License-Identifier: Apache-2.0 */
/* plan_tables - see plan_tables.h. */
#include "tools/thctl/plan_tables.h"

#include <inttypes.h>
#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"

static const struct column reader_columns[] = {
	{"shard", "SHARD", false},
	{"bytes_own", "OWN", false},
	{"bytes_in", "IN", false},
	{"sources", "SOURCES", false},
	{"pieces", "PIECES", false},
	{"runs", "RUNS", false},
	{"run_shortest", "SHORTEST", false},
	{"run_longest", "LONGEST", false},
	{"bytes_staged", "STAGED", false},
	{"window_least", "WINDOW", true},
	{"overlaps", "OVERLAPS", true},
};

static const struct column source_columns[] = {
	{"shard", "SHARD", false},
	{"source", "SOURCE", false},
	{"bytes", "BYTES", false},
	{"runs", "RUNS", false},
	{"run_shortest", "SHORTEST", false},
	{"run_longest", "LONGEST", false},
	{"converts", "CONVERTS", false},
};

static void
add_reader(struct document *document, uint32_t shard, const struct plan *plan)
{
	uint64_t runs = 0, shortest = 0, longest = 0;
	for (uint32_t i = 0; i < plan->num_sources; i++) {
		const struct plan_source *source = &plan->sources[i];
		runs += source->runs;
		shortest = i == 0 ? source->shortest : th_min_u64(shortest, source->shortest);
		longest = th_max_u64(longest, source->longest);
	}
	const struct value values[] = {value_number(shard), value_bytes(plan->bytes_own),
		value_bytes(plan->bytes_in), value_number(plan->num_sources),
		value_number(plan->num_pieces), value_number(runs), value_bytes(shortest),
		value_bytes(longest), value_bytes(plan->staged), value_bytes(plan->window_least),
		value_number(plan->overlaps)};
	document_row(document, values);
}

static void
add_sources(struct document *document, uint32_t shard, const struct plan *plan)
{
	for (uint32_t i = 0; i < plan->num_sources; i++) {
		const struct plan_source *source = &plan->sources[i];
		const struct value values[] = {value_number(shard), value_number(source->shard),
			value_bytes(source->bytes), value_number(source->runs),
			value_bytes(source->shortest), value_bytes(source->longest),
			value_number(source->converts)};
		document_row(document, values);
	}
}

static void
add_tables(struct document *document, struct plan *const *plans, uint32_t first, uint32_t count)
{
	document_init(document, "plan");
	document_table(document, "readers", reader_columns, TH_ARRAY_LEN(reader_columns));
	for (uint32_t i = 0; i < count; i++)
		add_reader(document, first + i, plans[i]);
	document_table(document, "sources", source_columns, TH_ARRAY_LEN(source_columns));
	if (count > 1)
		document_table_wide(document);
	for (uint32_t i = 0; i < count; i++)
		add_sources(document, first + i, plans[i]);
}

int
plan_tables(const struct layout_file *published, const struct layout_file *view, uint32_t first,
	uint32_t end, struct th_err *err, struct document *ret_document)
{
	struct plan **plans = th_calloc(end - first, sizeof(plans[0]));
	int rc = 0;
	for (uint32_t i = first; i < end && rc == 0; i++) {
		struct th_err why = {0};
		rc = layout_file_plan(published, view, i, &why, &plans[i - first]);
		if (rc < 0)
			th_fail(err, rc, "shard %" PRIu32 " of the view: %s", i, why.text);
	}
	if (rc == 0)
		add_tables(ret_document, plans, first, end - first);
	for (uint32_t i = first; i < end; i++)
		plan_free(plans[i - first]);
	free(plans);
	return rc;
}
