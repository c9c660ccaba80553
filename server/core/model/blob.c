/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blob - see blob.h. Memory for bytes is sized by a peer: a failure refuses the peer.
 */
#include "server/core/model/blob.h"

#include <inttypes.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "server/core/model/blob_hash.h"

static struct blob *
blob_find(struct refsrv *server, struct th_hash key)
{
	struct blob *blob = NULL;

	HASH_FIND(hh, server->blobs, &key, sizeof(key), blob);
	return blob;
}

bool
blob_exists(struct refsrv *server, struct th_hash key)
{
	const struct blob *blob = blob_find(server, key);

	return blob != NULL && blob->data != NULL;
}

void
blob_expect(struct refsrv *server, struct th_hash key)
{
	if (th_hash_none(key) || blob_find(server, key) != NULL)
		return;
	struct blob *blob = th_calloc(1, sizeof(*blob));
	blob->key = key;
	HASH_ADD(hh, server->blobs, key, sizeof(blob->key), blob);
}

void
blob_acquire(struct refsrv *server, struct th_hash key)
{
	if (th_hash_none(key))
		return;
	struct blob *blob = blob_find(server, key);
	TH_ASSERT(blob != NULL);
	blob->references++;
}

static void
blob_free(struct refsrv *server, struct blob *blob)
{
	server->blob_bytes -= blob->bytes;
	HASH_DELETE(hh, server->blobs, blob);
	free(blob->data);
	free(blob);
}

void
blob_release(struct refsrv *server, struct th_hash key)
{
	if (th_hash_none(key))
		return;
	struct blob *blob = blob_find(server, key);
	TH_ASSERT(blob != NULL && blob->references > 0);
	/* What was only expected is worth nothing to anybody, and counts in no limit. */
	if (--blob->references == 0 && blob->data == NULL)
		blob_free(server, blob);
}

static bool
blob_fits(const struct refsrv *server, uint64_t bytes)
{
	return bytes <= server->config.blob_bytes_max &&
	       server->blob_bytes <= server->config.blob_bytes_max - bytes;
}

static bool
blob_make_room(struct refsrv *server, uint64_t bytes)
{
	struct blob *blob, *next;

	HASH_ITER(hh, server->blobs, blob, next)
	{
		if (blob_fits(server, bytes))
			return true;
		if (blob->references == 0)
			blob_free(server, blob);
	}
	return blob_fits(server, bytes);
}

static void
upload_free(struct refsrv *server, struct agent *agent, struct upload *upload)
{
	server->blob_bytes -= upload->total_bytes;
	DL_DELETE(agent->uploads, upload);
	agent->num_uploads--;
	free(upload->data);
	free(upload);
}

void
blob_drop_uploads(struct refsrv *server, struct agent *agent)
{
	while (agent->uploads != NULL)
		upload_free(server, agent, agent->uploads);
}

void
blob_free_all(struct refsrv *server)
{
	while (server->blobs != NULL)
		blob_free(server, server->blobs);
}

static struct upload *
upload_find(struct agent *agent, struct th_hash key)
{
	struct upload *upload;

	DL_FOREACH(agent->uploads, upload)
	{
		if (th_hash_equal(upload->key, key))
			return upload;
	}
	return NULL;
}

static int
upload_start(struct refsrv *server, struct agent *agent, const struct ctl_blob_part *part,
	struct upload **ret_upload, struct th_err *err)
{
	if (agent->num_uploads >= UPLOADS_MAX)
		return th_fail(err, TH_E_LIMIT,
			"agent %s has %u manifests half sent already, which is the limit: finish "
			"one "
			"first",
			agent->info.node, UPLOADS_MAX);
	if (!blob_make_room(server, part->total_bytes))
		return th_fail(err, TH_E_LIMIT,
			"the server has no room for a manifest of %" PRIu64 " bytes: %" PRIu64
			" of %" PRIu64 " bytes are in use; raise limit.blob_bytes",
			part->total_bytes, server->blob_bytes, server->config.blob_bytes_max);
	uint8_t *data = malloc(part->total_bytes);
	if (data == NULL)
		return th_fail(err, TH_E_LIMIT,
			"the server has no memory for a manifest of %" PRIu64 " bytes: try again",
			part->total_bytes);
	struct upload *upload = th_calloc(1, sizeof(*upload));
	upload->key = part->key;
	upload->total_bytes = part->total_bytes;
	upload->data = data;
	server->blob_bytes += part->total_bytes;
	DL_APPEND(agent->uploads, upload);
	agent->num_uploads++;
	*ret_upload = upload;
	return 0;
}

static int
upload_finish(struct refsrv *server, struct agent *agent, struct upload *upload, struct th_err *err)
{
	struct th_hash key = upload->key;

	if (!th_hash_equal(hash_bytes(upload->data, upload->total_bytes), key)) {
		upload_free(server, agent, upload);
		return th_fail(err, TH_E_CHECKSUM,
			"a manifest of agent %s is not what its key says "
			"(%016" PRIx64 "%016" PRIx64 "): send it again from the start",
			agent->info.node, key.hi, key.lo);
	}
	blob_expect(server, key);
	struct blob *blob = blob_find(server, key);
	blob->bytes = upload->total_bytes;
	blob->data = upload->data;
	server->blob_bytes += blob->bytes;
	upload->data = NULL;
	upload_free(server, agent, upload);
	return 0;
}

static int
blob_put_check(const struct agent *agent, const struct ctl_blob_part *part, struct th_err *err)
{
	if (th_hash_none(part->key) || part->total_bytes == 0 || part->data == NULL ||
		part->data_bytes == 0 || part->data_bytes > TH_PART_BYTES_MAX ||
		!th_range_fits(part->offset, part->data_bytes, part->total_bytes))
		return th_fail(err, TH_E_INVALID,
			"agent %s sends a bad part of a manifest: %zu bytes at %" PRIu64
			" of %" PRIu64 " (a part has 1 to %u bytes)",
			agent->info.node, part->data_bytes, part->offset, part->total_bytes,
			TH_PART_BYTES_MAX);
	if (part->total_bytes > TH_BLOB_BYTES_MAX)
		return th_fail(err, TH_E_LIMIT,
			"a manifest of agent %s has %" PRIu64 " bytes, the limit is %u",
			agent->info.node, part->total_bytes, TH_BLOB_BYTES_MAX);
	return 0;
}

int
blob_put(struct refsrv *server, struct agent *agent, const struct ctl_blob_part *part,
	struct th_err *err)
{
	int rc = blob_put_check(agent, part, err);

	if (rc != 0)
		return rc;
	struct upload *upload = upload_find(agent, part->key);
	if (blob_exists(server, part->key)) {
		/* Equal names are equal bytes: somebody else has brought it. */
		if (upload != NULL)
			upload_free(server, agent, upload);
		return 0;
	}
	if (upload == NULL && part->offset == 0) {
		rc = upload_start(server, agent, part, &upload, err);
		if (rc != 0)
			return rc;
	}
	uint64_t received = upload == NULL ? 0 : upload->received_bytes;
	if (upload == NULL || part->total_bytes != upload->total_bytes || part->offset > received)
		return th_fail(err, TH_E_INVALID,
			"agent %s sends bytes %" PRIu64 " on of a manifest of which the server has "
			"%" PRIu64 ": parts come in order, from 0",
			agent->info.node, part->offset, received);
	if (part->offset + part->data_bytes <= received)
		return 0;
	memcpy(upload->data + part->offset, part->data, part->data_bytes);
	upload->received_bytes = part->offset + part->data_bytes;
	if (upload->received_bytes < upload->total_bytes)
		return 0;
	return upload_finish(server, agent, upload, err);
}

int
blob_get(struct refsrv *server, const struct ctl_blob_get *get, struct ctl_blob_part *ret_part,
	struct th_err *err)
{
	const struct blob *blob = blob_find(server, get->key);

	if (blob != NULL && blob->data == NULL)
		return th_fail(err, TH_E_NOT_AVAILABLE,
			"the server was restarted and has manifest %016" PRIx64 "%016" PRIx64
			" not again yet: try again",
			get->key.hi, get->key.lo);
	if (blob == NULL)
		return th_fail(err, TH_E_NOT_AVAILABLE,
			"the server has no manifest %016" PRIx64 "%016" PRIx64
			": the version that it belongs to is gone; list the versions again",
			get->key.hi, get->key.lo);
	if (get->offset >= blob->bytes)
		return th_fail(err, TH_E_INVALID,
			"bytes from %" PRIu64 " on of a manifest of %" PRIu64
			" bytes were asked for",
			get->offset, blob->bytes);
	uint64_t count = th_min_u64(blob->bytes - get->offset, TH_PART_BYTES_MAX);
	*ret_part = (struct ctl_blob_part){
		.key = blob->key,
		.total_bytes = blob->bytes,
		.offset = get->offset,
		.data = blob->data + get->offset,
		.data_bytes = (size_t)count,
	};
	return 0;
}
