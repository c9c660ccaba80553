/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_file_fuzz - any bytes as the file of a version or a view: what is taken may be planned
 * from itself, which ends in a plan of what it holds or in a sentence.
 */
#include "tools/file/layout_file.h"

#include "ipc/base/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct layout_file file;
	struct th_err err = {0};
	const char *text = (const char *)data;
	int rc = layout_file_parse(text, size, &err, &file);
	TH_ASSERT(rc == 0 || err.text[0] != '\0');
	for (uint32_t i = 0; rc == 0 && i < file.num_shards; i++) {
		struct plan *plan = NULL;
		int planned = layout_file_plan(&file, &file, i, &err, &plan);
		TH_ASSERT(planned == 0 || err.text[0] != '\0');
		TH_ASSERT(planned < 0 || plan->bytes_in == plan->bytes_own);
		plan_free(plan);
	}
	if (rc == 0)
		layout_file_free(&file);
	return 0;
}
