/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_manifest_test - thc_get_manifest: parts, ties and attributes of a version, and blobs
 * that are not what was asked for.
 */
#include <stdlib.h>

#include "ipc/proto/manifest.h"
#include "tests/unit/libthc/libthc_fixture.h"

static uint8_t *rows_data, *attributes_data;

static void
encode(void)
{
	const struct manifest_row rows[] = {
		{.name = "weight",
			.dtype = THC_BF16,
			.ndim = 2,
			.local_shape = {4, 8},
			.global_shape = {8, 8},
			.offset = {4, 0}},
		{.name = "bias", .dtype = THC_F32, .ndim = 1, .local_shape = {3}},
		{.name = "head",
			.dtype = THC_BF16,
			.ndim = 2,
			.local_shape = {4, 8},
			.global_shape = {8, 8},
			.offset = {4, 0}},
	};
	const uint32_t alias_of[] = {UINT32_MAX, UINT32_MAX, 0};
	const struct manifest_attribute attribute = {"header", "{}", 2};
	struct manifest manifest;
	struct th_err err = {0};

	cr_assert_eq(manifest_build(rows, 3, alias_of, NULL, &err, &manifest), 0, "%s", err.text);
	cr_assert_eq(manifest_encode(&manifest, &rows_data, &agent.manifest_bytes), 0);
	manifest_free(&manifest);
	cr_assert_eq(manifest_attributes_encode(
			     &attribute, 1, &err, &attributes_data, &agent.attributes_bytes),
		0);
}

static void
setup(void)
{
	fake_agent_start(&agent);
	encode();
	agent.blob_part_bytes = 50;
	cr_assert_eq(try_open(&shard), 0, "%s", thc_errmsg());
}

static void
teardown(void)
{
	teardown_handle();
	free(rows_data);
	free(attributes_data);
}

TestSuite(libthc_manifest, .init = setup, .fini = teardown, .timeout = 30);

static void
show(bool attributes)
{
	fake_agent_lock(&agent);
	agent.manifest = rows_data;
	agent.attributes = attributes ? attributes_data : NULL;
	fake_agent_unlock(&agent);
}

Test(libthc_manifest, get__version_with_ties_and_attributes__has_a_row_for_each_name)
{
	struct thc_manifest *manifest = NULL;
	const struct thc_tensor *by_name[3] = {NULL};
	static const char *const names[] = {"weight", "bias", "head"};

	show(true);
	cr_assert_eq(thc_get_manifest(shard, "latest", 1, SOON, &manifest), 0, "%s", thc_errmsg());
	cr_assert_gt(agent.requests, 3); /* in parts */
	cr_assert_eq(manifest->lineage, 3);
	cr_assert_eq(manifest->version, 17);
	cr_assert_eq(manifest->shard, 1);
	cr_assert_eq(manifest->num_shards, 2);
	cr_assert_eq(manifest->count, 3);
	cr_assert_eq(manifest->tensor_bytes, sizeof(struct thc_tensor));
	for (size_t i = 0; i < 3; i++)
		for (size_t n = 0; n < 3; n++)
			if (strcmp(manifest->tensors[i].name, names[n]) == 0)
				by_name[n] = &manifest->tensors[i];
	cr_assert(by_name[0] != NULL && by_name[1] != NULL && by_name[2] != NULL);
	cr_assert_eq(by_name[0]->bytes, 64);
	cr_assert_eq(by_name[0]->dtype, THC_BF16);
	cr_assert_eq(by_name[0]->global_shape[0], 8);
	cr_assert_eq(by_name[0]->offset[0], 4);
	cr_assert_not_null(by_name[0]->data);
	cr_assert_eq(by_name[0]->data, by_name[2]->data);
	cr_assert_eq(by_name[2]->bytes, 64);
	cr_assert_null(by_name[1]->data);
	cr_assert_eq(by_name[1]->global_shape[0], 3);
	cr_assert_eq(manifest->num_attributes, 1);
	cr_assert_str_eq(manifest->attributes[0].name, "header");
	cr_assert_eq(manifest->attributes[0].bytes, 2);
	cr_assert_eq(memcmp(manifest->attributes[0].value, "{}", 2), 0);
	thc_manifest_free(manifest);
	show(false);
	cr_assert_eq(thc_get_manifest(shard, "17", 1, SOON, &manifest), 0, "%s", thc_errmsg());
	cr_assert_eq(manifest->num_attributes, 0);
	thc_manifest_free(manifest);
}

Test(libthc_manifest, get__no_such_version_or_damaged_blob__is_an_error)
{
	struct thc_manifest *manifest = NULL;

	cr_assert_eq(thc_get_manifest(shard, "latest", 0, SOON, &manifest), THC_E_NOT_AVAILABLE);
	show(true);
	script(agent.blob_damaged = true);
	cr_assert_eq(thc_get_manifest(shard, "latest", 0, SOON, &manifest), THC_E_PROTOCOL);
	cr_assert_not_null(strstr(thc_errmsg(), "does not fit its key"), "%s", thc_errmsg());
	cr_assert_null(manifest);
}
