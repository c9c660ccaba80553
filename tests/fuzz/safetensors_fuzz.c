/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_fuzz - any bytes as a header: what is taken keeps the promises of a header, and what
 * is formatted from it parses to the same tensors.
 */
#include "tools/file/safetensors.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void
check_promises(const struct safetensors_header *header)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < header->count; i++) {
		const struct safetensors_tensor *tensor = &header->tensors[i];
		TH_ASSERT(tensor->offset == end);
		TH_ASSERT(tensor->ndim <= MANIFEST_DIMS_MAX);
		TH_ASSERT(tensor->name[0] != '\0');
		end += tensor->bytes;
	}
	TH_ASSERT(header->data_bytes == end);
}

static void
check_round_trip(struct safetensors_header *header)
{
	struct safetensors_header again;
	size_t bytes = 0;
	char *text = NULL;

	/*
	 * A name may be __metadata__ only where it is no tensor, so every other one can be
	 * written.
	 */
	TH_ASSERT(safetensors_format(header->tensors, header->count, NULL, &text, &bytes) == 0);
	TH_ASSERT(safetensors_parse(text, bytes, NULL, &again) == 0);
	TH_ASSERT(again.count == header->count && again.data_bytes == header->data_bytes);
	safetensors_free(&again);
	free(text);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct safetensors_header header;
	uint64_t length;

	if (bytes >= SAFETENSORS_LENGTH_BYTES)
		(void)safetensors_header_length(data, bytes, NULL, &length);
	if (safetensors_parse((const char *)data, bytes, NULL, &header) < 0)
		return 0;
	check_promises(&header);
	check_round_trip(&header);
	safetensors_free(&header);
	return 0;
}
