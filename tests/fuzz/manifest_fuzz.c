/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manifest_fuzz - manifests and attributes as a worker or the server may send them.
 *
 * The first byte chooses. A manifest that is accepted has one encoding, the one that came; building
 * it again from its own rows gives it again; its chunk table covers its bytes.
 */
#include "ipc/proto/manifest.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/name.h"
#include "transport/part/chunk.h"

#define TABLE_BYTES_MAX (UINT64_C(1) << 32) /* a larger table only takes time */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
build_again(const struct manifest *manifest)
{
	struct manifest again;
	uint32_t count = manifest->num_rows + manifest->num_aliases;
	struct manifest_row *rows = calloc(count + 1, sizeof(rows[0]));
	uint32_t *alias_of = calloc(count + 1, sizeof(alias_of[0]));
	for (uint32_t i = 0; i < count; i++) {
		bool alias = i >= manifest->num_rows;
		uint32_t row = alias ? manifest->aliases[i - manifest->num_rows].row : i;
		rows[i] = manifest->rows[row];
		alias_of[i] = alias ? row : UINT32_MAX;
		if (alias)
			rows[i].name = manifest->aliases[i - manifest->num_rows].name;
	}
	int rc = manifest_build(rows, count, alias_of, NULL, NULL, &again);
	TH_ASSERT(rc == 0);
	TH_ASSERT(th_hash_equal(manifest_layout(manifest), manifest_layout(&again)));
	TH_ASSERT(manifest_compare(manifest, &again, NULL) == 0);
	TH_ASSERT(again.num_aliases == manifest->num_aliases);
	manifest_free(&again);
	free(rows);
	free(alias_of);
}

static void
try_manifest(const uint8_t *data, size_t size)
{
	struct manifest manifest = {0};
	struct th_err err = {0};
	if (manifest_decode(data, size, &err, &manifest) < 0) {
		TH_ASSERT(err.text[0] != '\0' && !manifest.rows);
		return;
	}
	uint8_t *again;
	size_t again_bytes;
	int rc = manifest_encode(&manifest, &again, &again_bytes);
	TH_ASSERT(rc == 0 && again_bytes == size && memcmp(again, data, size) == 0);
	free(again);
	build_again(&manifest);
	if (manifest.bytes <= TABLE_BYTES_MAX) {
		struct chunk_table *table = chunk_table_new(&manifest);
		TH_ASSERT(table && table->bytes == manifest.bytes);
		chunk_table_release(table);
	}
	manifest_free(&manifest);
}

static void
try_attributes(const uint8_t *data, size_t size)
{
	struct manifest_attribute *attributes;
	size_t count;
	if (manifest_attributes_decode(data, size, NULL, &attributes, &count) < 0)
		return;
	uint8_t *again;
	size_t again_bytes;
	int rc = manifest_attributes_encode(attributes, count, NULL, &again, &again_bytes);
	TH_ASSERT(rc == 0 && again_bytes == size && memcmp(again, data, size) == 0);
	free(again);
	free(attributes);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	if (data[0] & 1)
		try_attributes(data + 1, size - 1);
	else
		try_manifest(data + 1, size - 1);
	return 0;
}
