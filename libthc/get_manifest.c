/* SPDX-License-Identifier: Apache-2.0 */
/*
 * get_manifest - thc_get_manifest: which version a name means now, then its two blobs in parts,
 * checked against their keys and decoded as hostile bytes.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/name.h"
#include "ipc/proto/manifest.h"
#include "ipc/proto/tensorhub.pb-c.h"
#include "libthc/libthc_own.h"

struct owned {
	struct thc_manifest manifest; /* first: thc_manifest_free gets its address */
	struct manifest content;      /* names */
	struct thc_tensor *tensors;
	struct manifest_attribute *decoded; /* names and values of the attributes */
	struct thc_attribute *attributes;
};

struct blob {
	uint8_t *data; /* owns */
	size_t bytes;
};

/* The next part into blob; the first one tells the size of the whole. */
static int
get_manifest_take_part(const Tensorhub__V1__BlobPart *part, uint64_t at, struct blob *blob)
{
	if (part->offset != at || part->data.len == 0 ||
		!th_range_fits(at, part->data.len, part->total_bytes))
		return shim_fail(THC_E_PROTOCOL, "the agent sent another part than was asked for");
	if (at == 0) {
		if (part->total_bytes > TH_BLOB_BYTES_MAX)
			return shim_fail(THC_E_PROTOCOL,
				"the agent announced a manifest of %" PRIu64
				" bytes; at most %u are "
				"allowed",
				part->total_bytes, TH_BLOB_BYTES_MAX);
		blob->bytes = (size_t)part->total_bytes;
		blob->data = malloc(blob->bytes);
		if (blob->data == NULL)
			return shim_fail(-ENOMEM, "out of memory for a manifest");
	} else if (part->total_bytes != blob->bytes) {
		return shim_fail(THC_E_PROTOCOL, "the parts of a manifest disagree on its size");
	}
	memcpy(blob->data + at, part->data.data, part->data.len);
	return 0;
}

static int
get_blob(struct thc_shard *shard, struct th_hash key, int64_t deadline_ns, struct blob *ret_blob)
{
	struct blob blob = {0};
	uint64_t at = 0;
	int rc = 0;

	do {
		Tensorhub__V1__Request request = TENSORHUB__V1__REQUEST__INIT;
		Tensorhub__V1__BlobGet body = TENSORHUB__V1__BLOB_GET__INIT;
		Tensorhub__V1__Hash hash = TENSORHUB__V1__HASH__INIT;
		Tensorhub__V1__Reply *reply = NULL;
		hash.lo = key.lo;
		hash.hi = key.hi;
		body.key = &hash;
		body.offset = at;
		request.body_case = TENSORHUB__V1__REQUEST__BODY_MANIFEST_GET;
		request.manifest_get = &body;
		rc = documents_call(shard, &request, TENSORHUB__V1__REPLY__BODY_MANIFEST_GET,
			deadline_ns, &reply);
		if (rc < 0)
			break;
		rc = get_manifest_take_part(reply->manifest_get, at, &blob);
		at += reply->manifest_get->data.len;
		documents_free(reply);
	} while (rc == 0 && at < blob.bytes);
	if (rc == 0 && !th_hash_equal(manifest_key(blob.data, blob.bytes), key))
		rc = shim_fail(
			THC_E_PROTOCOL, "the agent sent a manifest that does not fit its key");
	if (rc < 0) {
		free(blob.data);
		return rc;
	}
	*ret_blob = blob;
	return 0;
}

/* ---- what was decoded, as thc.h says ------------------------------------------------------- */

/* Any pointer that is not NULL and the same for all names of one row; it is not to be followed. */
static void *
tie_mark(uint32_t row)
{
	return (void *)((uintptr_t)row + 1);
}

static void
fill_tensor(const struct manifest_row *row, const char *name, struct thc_tensor *ret_tensor)
{
	*ret_tensor = (struct thc_tensor){.name = name,
		.bytes = row->bytes,
		.dtype = (enum thc_dtype)row->dtype,
		.device = THC_HOST,
		.ndim = row->ndim};
	memcpy(ret_tensor->local_shape, row->local_shape, sizeof(ret_tensor->local_shape));
	memcpy(ret_tensor->global_shape, row->global_shape, sizeof(ret_tensor->global_shape));
	memcpy(ret_tensor->offset, row->offset, sizeof(ret_tensor->offset));
}

static int
fill_tensors(struct owned *owned)
{
	const struct manifest *content = &owned->content;
	size_t count = (size_t)content->num_rows + content->num_aliases;

	owned->tensors = calloc(count > 0 ? count : 1, sizeof(*owned->tensors));
	if (owned->tensors == NULL)
		return shim_fail(-ENOMEM, "out of memory for a manifest");
	for (uint32_t i = 0; i < content->num_rows; i++)
		fill_tensor(&content->rows[i], content->rows[i].name, &owned->tensors[i]);
	for (uint32_t i = 0; i < content->num_aliases; i++) {
		const struct manifest_alias *alias = &content->aliases[i];
		struct thc_tensor *tensor = &owned->tensors[content->num_rows + i];
		fill_tensor(&content->rows[alias->row], alias->name, tensor);
		tensor->data = tie_mark(alias->row);
		owned->tensors[alias->row].data = tie_mark(alias->row);
	}
	owned->manifest.count = count;
	owned->manifest.tensor_bytes = sizeof(*owned->tensors);
	owned->manifest.tensors = owned->tensors;
	return 0;
}

static int
fill_attributes(struct owned *owned, const struct blob *blob)
{
	size_t count = 0;
	struct th_err err = {0};
	int rc = manifest_attributes_decode(blob->data, blob->bytes, &err, &owned->decoded, &count);

	if (rc < 0)
		return rc == -ENOMEM ? shim_fail(rc, "out of memory for attributes")
				     : shim_fail(THC_E_PROTOCOL, "the attributes are damaged: %s",
					       err.text);
	owned->attributes = calloc(count > 0 ? count : 1, sizeof(*owned->attributes));
	if (owned->attributes == NULL)
		return shim_fail(-ENOMEM, "out of memory for attributes");
	for (size_t i = 0; i < count; i++)
		owned->attributes[i] = (struct thc_attribute){
			owned->decoded[i].name, owned->decoded[i].value, owned->decoded[i].bytes};
	owned->manifest.num_attributes = count;
	owned->manifest.attributes = owned->attributes;
	return 0;
}

/* ---- the call ------------------------------------------------------------------------------ */

struct resolved {
	struct th_version version;
	uint32_t num_shards;
	struct th_hash manifest, attributes;
};

static struct th_hash
hash_of(const Tensorhub__V1__Hash *hash)
{
	struct th_hash none = {0};

	return hash == NULL ? none : (struct th_hash){hash->lo, hash->hi};
}

static int
resolve(struct thc_shard *shard, char *spec, uint32_t of_shard, int64_t deadline_ns,
	struct resolved *ret_resolved)
{
	Tensorhub__V1__Request request = TENSORHUB__V1__REQUEST__INIT;
	Tensorhub__V1__Resolve body;
	Tensorhub__V1__Reply *reply = NULL;

	tensorhub__v1__resolve__init(&body);
	body.model = shard->model;
	body.spec = spec;
	body.shard = of_shard;
	request.body_case = TENSORHUB__V1__REQUEST__BODY_RESOLVE;
	request.resolve = &body;
	int rc = documents_call(
		shard, &request, TENSORHUB__V1__REPLY__BODY_RESOLVE, deadline_ns, &reply);
	if (rc < 0)
		return rc;
	const Tensorhub__V1__ResolveReply *answer = reply->resolve;
	*ret_resolved = (struct resolved){.num_shards = answer->num_shards,
		.manifest = hash_of(answer->manifest),
		.attributes = hash_of(answer->attributes)};
	if (answer->version == NULL || th_hash_none(ret_resolved->manifest))
		rc = shim_fail(THC_E_PROTOCOL, "the agent's answer lacks version or manifest");
	else
		ret_resolved->version =
			(struct th_version){answer->version->lineage, answer->version->version};
	documents_free(reply);
	return rc;
}

static int
get_manifest_fetch(struct thc_shard *shard, char *spec, uint32_t of_shard, int64_t deadline_ns,
	struct owned *owned)
{
	struct resolved resolved;
	struct blob rows = {0}, attributes = {0};
	struct th_err err = {0};
	int rc = resolve(shard, spec, of_shard, deadline_ns, &resolved);

	if (rc == 0)
		rc = get_blob(shard, resolved.manifest, deadline_ns, &rows);
	if (rc == 0 && !th_hash_none(resolved.attributes))
		rc = get_blob(shard, resolved.attributes, deadline_ns, &attributes);
	if (rc == 0) {
		rc = manifest_decode(rows.data, rows.bytes, &err, &owned->content);
		if (rc == -ENOMEM)
			rc = shim_fail(rc, "out of memory for a manifest");
		else if (rc < 0)
			rc = shim_fail(THC_E_PROTOCOL, "the manifest is damaged: %s", err.text);
	}
	if (rc == 0) {
		owned->manifest = (struct thc_manifest){.struct_size = sizeof(owned->manifest),
			.lineage = resolved.version.lineage,
			.version = resolved.version.version,
			.shard = of_shard,
			.num_shards = resolved.num_shards,
			.attribute_bytes = sizeof(struct thc_attribute)};
		rc = fill_tensors(owned);
	}
	if (rc == 0 && attributes.data != NULL)
		rc = fill_attributes(owned, &attributes);
	free(rows.data);
	free(attributes.data);
	return rc;
}

int
manifest_fetch(struct thc_shard *shard, char *spec, uint32_t of_shard, int64_t deadline_ns,
	struct thc_manifest **ret_manifest)
{
	struct owned *owned = calloc(1, sizeof(*owned));

	if (owned == NULL)
		return shim_fail(-ENOMEM, "out of memory for a manifest");
	int rc = get_manifest_fetch(shard, spec, of_shard, deadline_ns, owned);
	if (rc < 0) {
		thc_manifest_free(&owned->manifest);
		return rc;
	}
	*ret_manifest = &owned->manifest;
	return 0;
}

const struct manifest *
manifest_content(const struct thc_manifest *manifest)
{
	return &((const struct owned *)manifest)->content;
}

struct thc_tensor *
manifest_tensors(struct thc_manifest *manifest)
{
	return ((struct owned *)manifest)->tensors;
}

int
thc_get_manifest(struct thc_shard *shard, const char *version, uint32_t of_shard,
	int64_t timeout_ms, struct thc_manifest **ret_manifest)
{
	char spec[32];
	int64_t deadline_ns = 0;
	int rc = op_check_spec(version, spec);

	if (rc == 0 && of_shard >= TH_SHARDS_MAX)
		rc = shim_fail(THC_E_INVALID,
			"of_shard: is %" PRIu32 "; a group has at most %d shards", of_shard,
			TH_SHARDS_MAX);
	if (rc == 0 && ret_manifest == NULL)
		rc = shim_fail(THC_E_INVALID, "ret_manifest: is NULL");
	if (rc == 0)
		rc = deadline_of(timeout_ms, &deadline_ns);
	if (rc == 0)
		rc = shard_enter(shard, 0);
	if (rc < 0)
		return rc;
	rc = manifest_fetch(shard, spec, of_shard, deadline_ns, ret_manifest);
	shard_leave(shard);
	return rc;
}

void
thc_manifest_free(struct thc_manifest *manifest)
{
	struct owned *owned = (struct owned *)manifest;

	if (owned == NULL)
		return;
	manifest_free(&owned->content);
	free(owned->tensors);
	free(owned->attributes);
	free(owned->decoded);
	free(owned);
}
