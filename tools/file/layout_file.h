/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_file - the shards of a version or of a view as a JSON file: what thctl plan is told.
 *
 * {"shards": [{"rows": [ROW...]}...]} ROW: {"name": "w", "dtype": "BF16", "shape": [3, 8],
 * "global_shape": [10, 8], "offset": [0, 0], "stride": [8, 1], "tied": ["other names of the same
 * bytes"...], "convert": {"scheme": "fp8-block", "of": "w", "scales": true, "block": [128, 128]}}
 *
 * Without global_shape and offset a row is the whole tensor. Only a view has stride and convert.
 * The file is hostile: types, numbers and counts are checked here, boxes by the planner. Pure.
 */
#ifndef TH_TOOLS_FILE_LAYOUT_FILE_H
#define TH_TOOLS_FILE_LAYOUT_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/plan/plan.h"

#define LAYOUT_FILE_BYTES_MAX (UINT64_C(1) << 30)

struct layout_shard {
	struct plan_row *rows;          /* owns */
	struct manifest_alias *aliases; /* owns */
	uint32_t count, num_aliases;
};

struct layout_file {
	struct layout_shard *shards; /* owns */
	uint32_t num_shards;
	void *json; /* owns the names */
};

/* TH_E_INVALID with a sentence that names shard and row; TH_E_LIMIT; -ENOMEM. */
int layout_file_parse(
	const char *text, size_t bytes, struct th_err *err, struct layout_file *ret_file);
void layout_file_free(struct layout_file *file); /* leaves it empty */

/*
 * The plan of one shard of the view. TH_E_INVALID where what is published has strides or
 * conversions; else as the planner.
 */
int layout_file_plan(const struct layout_file *published, const struct layout_file *view,
	uint32_t shard, struct th_err *err, struct plan **ret_plan);

#endif
