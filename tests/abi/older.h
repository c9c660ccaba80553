/* SPDX-License-Identifier: Apache-2.0 */
/*
 * older - thc.h as an older version of it would look: structs that end earlier, tensors without
 * boxes. It is frozen: a program that was built against it must work with every library of this
 * SONAME. Only what older_client.c uses; the numbers are those of abi_test.c.
 */
#ifndef TH_TESTS_ABI_OLDER_H
#define TH_TESTS_ABI_OLDER_H

#include <stddef.h>
#include <stdint.h>

#define THC_E_INVALID (-5001)
#define THC_U8 1
#define THC_HOST (-1)

struct thc_shard;
struct thc_op;

struct thc_tensor { /* later: global_shape, offset */
	const char *name;
	void *data;
	uint64_t bytes;
	int dtype;
	int32_t device;
	uint32_t ndim;
	uint64_t local_shape[8];
};

struct thc_open_opts { /* later: retain, launch_id, agent, flags */
	size_t struct_size;
	const char *model;
	const char *replica;
	uint32_t shard;
	uint32_t num_shards;
	uint64_t lineage;
};

struct thc_result { /* later: wait_ns and all that follows */
	size_t struct_size;
	uint64_t lineage, version;
	int updated;
	uint64_t bytes_moved;
	uint64_t bytes_reused;
};

struct thc_attribute {
	const char *name;
	const void *value;
	size_t bytes;
};

struct thc_manifest { /* later: nothing; but its rows are longer than this header's */
	size_t struct_size;
	uint64_t lineage, version;
	uint32_t shard, num_shards;
	size_t count, tensor_bytes;
	const struct thc_tensor *tensors;
	size_t num_attributes, attribute_bytes;
	const struct thc_attribute *attributes;
};

struct thc_replica_info { /* later: flags, progress */
	const char *name, *datacenter;
};

struct thc_version_info {
	uint64_t lineage, version;
	uint32_t retained;
	uint32_t num_replicas;
	const struct thc_replica_info *replicas;
};

struct thc_listing {
	size_t struct_size;
	uint64_t generation;
	uint32_t num_versions;
	size_t version_bytes, replica_bytes;
	const struct thc_version_info *versions;
};

const char *thc_errmsg(void);
int thc_open(const struct thc_open_opts *opts, int64_t timeout_ms, struct thc_shard **ret_shard);
int thc_close(struct thc_shard *shard, uint32_t flags, int64_t timeout_ms);
int thc_alloc(uint64_t bytes, uint32_t flags, void **ret_ptr);
int thc_free(void *ptr);
int thc_register(struct thc_shard *shard, const struct thc_tensor *tensors, size_t count,
	size_t tensor_bytes, int64_t timeout_ms);
int thc_publish(struct thc_shard *shard, uint64_t version, int64_t timeout_ms);
int thc_unpublish(struct thc_shard *shard, uint32_t flags, int64_t timeout_ms);
int thc_replicate(struct thc_shard *shard, const char *version, int64_t timeout_ms,
	struct thc_result *ret_result);
int thc_replicate_submit(
	struct thc_shard *shard, const char *version, int64_t timeout_ms, struct thc_op **ret_op);
int thc_op_wait(struct thc_op *op, int64_t timeout_ms, struct thc_result *ret_result);
void thc_op_free(struct thc_op *op);
int thc_set_attribute(struct thc_shard *shard, const char *name, const void *value, size_t bytes);
int thc_get_manifest(struct thc_shard *shard, const char *version, uint32_t of_shard,
	int64_t timeout_ms, struct thc_manifest **ret_manifest);
void thc_manifest_free(struct thc_manifest *manifest);
int thc_list(struct thc_shard *shard, uint32_t flags, int64_t timeout_ms,
	struct thc_listing **ret_listing);
void thc_listing_free(struct thc_listing *listing);

#endif
