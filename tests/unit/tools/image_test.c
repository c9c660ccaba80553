/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image_test - from a manifest to memory and files: the publisher's header where it fits, one of
 * our own where not, ties, several files.
 */
#include "tools/file/image.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "tools/file/checkpoint_index.h"

/* In canonical order; the file below has them the other way round. */
static struct thc_tensor two[] = {
	{.name = "a",
		.dtype = THC_F32,
		.device = THC_HOST,
		.ndim = 1,
		.bytes = 8,
		.local_shape = {2},
		.global_shape = {2}},
	{.name = "b",
		.dtype = THC_U8,
		.device = THC_HOST,
		.ndim = 2,
		.bytes = 6,
		.local_shape = {2, 3},
		.global_shape = {2, 3}},
};

#define HEADER                                                                                     \
	"{\"b\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[0,6]},   "                     \
	"\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[6,14]}}"

static struct thc_manifest
manifest_of(struct thc_tensor *tensors, size_t count, struct thc_attribute *attributes,
	size_t num_attributes)
{
	return (struct thc_manifest){
		.struct_size = sizeof(struct thc_manifest),
		.version = 1,
		.num_shards = 1,
		.count = count,
		.tensor_bytes = sizeof(tensors[0]),
		.tensors = tensors,
		.num_attributes = num_attributes,
		.attribute_bytes = sizeof(attributes[0]),
		.attributes = attributes,
	};
}

/* Room for the files, with their headers; the caller frees each. */
static void
make_files(struct image *image, uint8_t *maps[4])
{
	cr_assert_leq(image->num_files, 4);
	for (uint32_t i = 0; i < image->num_files; i++) {
		const struct image_file *file = &image->files[i];
		maps[i] = calloc(1, file->bytes);
		cr_assert(maps[i]);
		memcpy(maps[i], file->length, sizeof(file->length));
		memcpy(maps[i] + sizeof(file->length), file->header, file->header_bytes);
	}
	image_bind(image, maps);
}

Test(image, carried_header__gives_the_file_back)
{
	struct thc_attribute header = {"safetensors.header", HEADER, sizeof(HEADER) - 1};
	struct thc_manifest manifest = manifest_of(two, 2, &header, 1);
	struct image image;
	struct th_err err = {0};
	uint8_t *maps[4];
	char want[256];

	cr_assert_eq(image_plan(&manifest, UINT64_MAX, &err, &image), 0, "%s", err.text);
	cr_assert(image.carried);
	cr_assert_eq(image.note[0], '\0');
	make_files(&image, maps);
	memcpy(image.tensors[0].data, "AAAAAAAA", 8);
	memcpy(image.tensors[1].data, "BBBBBB", 6);
	memset(want, 0, 8);
	want[0] = (char)(sizeof(HEADER) - 1);
	memcpy(want + 8, HEADER "BBBBBBAAAAAAAA", sizeof(HEADER) - 1 + 14);
	cr_assert_eq(image.files[0].bytes, 8 + sizeof(HEADER) - 1 + 14);
	cr_assert_eq(image.file_bytes, image.files[0].bytes);
	cr_assert_eq(memcmp(maps[0], want, image.file_bytes), 0);
	free(maps[0]);
	image_free(&image);
}

/* The file that was written must describe tensors exactly; returns the parsed header. */
static struct safetensors_header
parse_file(const struct image_file *file)
{
	struct safetensors_header header;
	struct th_err err = {0};

	cr_assert_eq(safetensors_parse(file->header, file->header_bytes, &err, &header), 0, "%s",
		err.text);
	return header;
}

Test(image, header_that_lies__is_not_used)
{
	static const char *const lies[] = {
		"{",
		"{}",
		/* Another name, dtype, shape; one too few; one twice is no JSON for us. */
		"{\"c\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[0,6]},"
		"\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[6,14]}}",
		"{\"b\":{\"dtype\":\"I8\",\"shape\":[2,3],\"data_offsets\":[0,6]},"
		"\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[6,14]}}",
		"{\"b\":{\"dtype\":\"U8\",\"shape\":[3,2],\"data_offsets\":[0,6]},"
		"\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[6,14]}}",
		"{\"b\":{\"dtype\":\"U8\",\"shape\":[6],\"data_offsets\":[0,6]},"
		"\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[6,14]}}",
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
	};

	for (size_t i = 0; i < TH_ARRAY_LEN(lies); i++) {
		struct thc_attribute header = {"safetensors.header", lies[i], strlen(lies[i])};
		struct thc_manifest manifest = manifest_of(two, 2, &header, 1);
		struct image image;
		cr_assert_eq(image_plan(&manifest, UINT64_MAX, NULL, &image), 0);
		cr_assert_not(image.carried, "used: %s", lies[i]);
		cr_assert_neq(image.note[0], '\0');
		struct safetensors_header own = parse_file(&image.files[0]);
		cr_assert_eq(own.count, 2);
		safetensors_free(&own);
		image_free(&image);
	}
}

Test(image, no_header__own_one_by_name)
{
	struct thc_manifest manifest = manifest_of(two, 2, NULL, 0);
	struct image image;
	uint8_t *maps[4];

	cr_assert_eq(image_plan(&manifest, UINT64_MAX, NULL, &image), 0);
	cr_assert_not(image.carried);
	cr_assert_eq(image.note[0], '\0');
	cr_assert_eq(image.num_files, 1);
	cr_assert_str_eq(image.files[0].name, "model.safetensors");
	make_files(&image, maps);
	/* Apart in memory, so that both can be registered. */
	cr_assert_neq(image.tensors[0].data, image.tensors[1].data);
	struct safetensors_header header = parse_file(&image.files[0]);
	cr_assert_str_eq(header.tensors[0].name, "a");
	cr_assert_eq(header.tensors[1].offset, 8);
	cr_assert_eq(image.places[0].offset, 8 + image.files[0].header_bytes);
	cr_assert_eq(image.places[1].offset, 8 + image.files[0].header_bytes + 8);
	safetensors_free(&header);
	free(maps[0]);
	image_free(&image);
}

Test(image, several_files__each_within_the_limit_and_in_the_index)
{
	struct thc_manifest manifest = manifest_of(two, 2, NULL, 0);
	struct checkpoint_index index;
	struct image image;
	size_t bytes;
	char *text;

	cr_assert_eq(image_plan(&manifest, 10, NULL, &image), 0);
	cr_assert_eq(image.num_files, 2);
	cr_assert_str_eq(image.files[0].name, "model-00001-of-00002.safetensors");
	cr_assert_eq(image.places[1].file, 1);
	cr_assert_eq(image_index(&image, NULL, &text, &bytes), 0);
	cr_assert_eq(checkpoint_index_parse(text, bytes, NULL, &index), 0);
	cr_assert_str_eq(checkpoint_index_find(&index, "b"), "model-00002-of-00002.safetensors");
	checkpoint_index_free(&index);
	free(text);
	image_free(&image);
	/* A tensor that alone is beyond the limit gets a file of its own. */
	cr_assert_eq(image_plan(&manifest, 1, NULL, &image), 0);
	cr_assert_eq(image.num_files, 2);
	image_free(&image);
}

Test(image, tied_tensors__one_place_to_arrive_and_two_in_the_file)
{
	static int mark;
	struct thc_tensor tied[] = {two[0], two[1], two[0]};
	struct thc_manifest manifest = manifest_of(tied, 3, NULL, 0);
	struct image image;
	uint8_t *maps[4];

	tied[0].data = &mark;
	tied[2].data = &mark;
	tied[2].name = "z";
	cr_assert_eq(image_plan(&manifest, UINT64_MAX, NULL, &image), 0);
	make_files(&image, maps);
	cr_assert_eq(image.tensors[0].data, image.tensors[2].data);
	cr_assert_neq(image.tensors[0].data, image.tensors[1].data);
	cr_assert_eq(image.leaders[0], 0);
	cr_assert_eq(image.leaders[1], 1);
	cr_assert_eq(image.leaders[2], 0);
	memcpy(image.tensors[0].data, "AAAAAAAA", 8);
	memcpy(image.tensors[1].data, "BBBBBB", 6);
	memcpy(maps[0] + image.places[2].offset, "CCCCCCCC", 8);
	cr_assert_eq(memcmp(maps[0] + image.file_bytes - 22, "AAAAAAAABBBBBBCCCCCCCC", 22), 0);
	free(maps[0]);
	image_free(&image);
	/* A tie of different sizes is no tie. */
	tied[2].bytes = 4;
	cr_assert_eq(image_plan(&manifest, UINT64_MAX, NULL, &image), TH_E_INVALID);
}

Test(image, nothing__is_refused)
{
	struct thc_manifest manifest = manifest_of(two, 0, NULL, 0);
	struct image image;

	cr_assert_eq(image_plan(&manifest, UINT64_MAX, NULL, &image), TH_E_INVALID);
}
