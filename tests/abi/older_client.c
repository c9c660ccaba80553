/* SPDX-License-Identifier: Apache-2.0 */
/*
 * older_client - a program that was built against an older header, with today's library: publishes
 * at one agent and replicates at another. Arguments: the runtime directories of the two.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/abi/older.h"

#define SOON 60000
#define TENSORS 5
#define BYTES 100000

static void
check(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "older_client: %s: %s\n", what, thc_errmsg());
	exit(1);
}

/* The options have no agent yet, so it is the environment's. */
static struct thc_shard *
open_at(const char *agent, const char *replica)
{
	const struct thc_open_opts opts = {.struct_size = sizeof(opts),
		.model = "m",
		.replica = replica,
		.num_shards = 1,
		.lineage = 3};
	struct thc_shard *shard = NULL;

	check(setenv("THC_AGENT", agent, 1) == 0, "setenv");
	check(thc_open(&opts, SOON, &shard) == 0, "open");
	return shard;
}

static void
register_all(struct thc_shard *shard, char *memory)
{
	static const char *const names[TENSORS] = {"a", "b", "c", "d", "e"};
	struct thc_tensor tensors[TENSORS];

	memset(tensors, 0, sizeof(tensors));
	for (size_t i = 0; i < TENSORS; i++)
		tensors[i] = (struct thc_tensor){.name = names[i],
			.data = memory + i * BYTES,
			.bytes = BYTES,
			.dtype = THC_U8,
			.device = THC_HOST,
			.ndim = 1,
			.local_shape = {BYTES}};
	check(thc_register(shard, tensors, TENSORS, sizeof(tensors[0]), SOON) == 0, "register");
}

/* A result, and what must stay as it is behind it. */
struct guarded {
	struct thc_result result;
	unsigned char behind[512];
};

static struct guarded
guard(void)
{
	struct guarded guarded;

	memset(&guarded, 0x5a, sizeof(guarded));
	guarded.result.struct_size = sizeof(guarded.result);
	return guarded;
}

static void
check_result(const struct guarded *guarded)
{
	check(guarded->result.struct_size == sizeof(guarded->result), "size of the result");
	check(guarded->result.lineage == 3 && guarded->result.version == 7, "version");
	check(guarded->result.updated == 1, "updated");
	check(guarded->result.bytes_moved == TENSORS * BYTES, "bytes");
	for (size_t i = 0; i < sizeof(guarded->behind); i++)
		check(guarded->behind[i] == 0x5a, "a byte behind the result");
}

static void
check_manifest(struct thc_shard *shard)
{
	struct thc_manifest *manifest = NULL;

	check(thc_get_manifest(shard, "latest", 0, SOON, &manifest) == 0, "get_manifest");
	check(manifest->struct_size >= sizeof(*manifest), "size of the manifest");
	check(manifest->version == 7 && manifest->count == TENSORS, "rows");
	check(manifest->tensor_bytes >= sizeof(struct thc_tensor), "size of a row");
	for (size_t i = 0; i < TENSORS; i++) {
		const struct thc_tensor *row = (const void *)((const char *)manifest->tensors +
							      i * manifest->tensor_bytes);
		check(row->name[0] == (char)('a' + i) && row->local_shape[0] == BYTES, "row");
	}
	check(manifest->num_attributes == 1, "attributes");
	check(memcmp(manifest->attributes[0].value, "{}", 2) == 0, "attribute");
	thc_manifest_free(manifest);
}

static void
check_listing(struct thc_shard *shard)
{
	struct thc_listing *listing = NULL;

	check(thc_list(shard, 0, SOON, &listing) == 0, "list");
	check(listing->num_versions == 1 && listing->versions->num_replicas == 3, "listing");
	check(listing->replica_bytes >= sizeof(struct thc_replica_info), "size of a replica");
	for (uint32_t i = 0; i < 3; i++) {
		const struct thc_replica_info *replica =
			(const void *)((const char *)listing->versions->replicas +
				       i * listing->replica_bytes);
		check(strcmp(replica->datacenter, "default") == 0, "datacenter");
	}
	thc_listing_free(listing);
}

int
main(int argc, char **argv)
{
	void *from = NULL, *to = NULL, *second = NULL;
	struct thc_op *op = NULL;

	check(argc == 3, "two runtime directories are needed");
	struct thc_shard *source = open_at(argv[1], "source");
	struct thc_shard *reader = open_at(argv[2], "reader");
	struct thc_shard *other = open_at(argv[2], "other");
	check(thc_alloc(TENSORS * BYTES, 0, &from) == 0, "alloc");
	check(thc_alloc(TENSORS * BYTES, 0, &to) == 0, "alloc");
	check(thc_alloc(TENSORS * BYTES, 0, &second) == 0, "alloc");
	memset(from, 42, TENSORS * BYTES);
	register_all(source, from);
	register_all(reader, to);
	register_all(other, second);
	check(thc_set_attribute(source, "header", "{}", 2) == 0, "set_attribute");
	check(thc_publish(source, 7, SOON) == 0, "publish");

	struct guarded guarded = guard();
	check(thc_replicate(reader, "latest", SOON, &guarded.result) == 0, "replicate");
	check_result(&guarded);
	guarded = guard();
	check(thc_replicate_submit(other, "7", SOON, &op) == 0, "replicate_submit");
	check(thc_op_wait(op, SOON, &guarded.result) == 0, "op_wait");
	check_result(&guarded);
	thc_op_free(op);
	check(memcmp(from, to, TENSORS * BYTES) == 0, "bytes");
	check(memcmp(from, second, TENSORS * BYTES) == 0, "bytes");
	check_manifest(reader);
	check_listing(reader);

	check(thc_unpublish(reader, 0, SOON) == 0, "unpublish");
	check(thc_close(other, 0, SOON) == 0 && thc_close(reader, 0, SOON) == 0, "close");
	check(thc_close(source, 0, SOON) == 0, "close");
	check(thc_free(from) == 0 && thc_free(to) == 0 && thc_free(second) == 0, "free");
	puts("ok");
	return 0;
}
