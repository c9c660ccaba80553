/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blob_parts - see blob_parts.h. Main thread only.
 */
#include "daemon/host/server/blob_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "daemon/host/host.h"
#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/name.h"
#include "ipc/proto/manifest.h"

/* One part of a blob; a put goes on from the start when it is lost, a get fails. */
#define PART_NS INT64_C(3000000000)

struct blob_put {
	struct blob_put *prev, *next; /* borrows: of host->puts */
	struct host *host;
	struct th_hash key;
	const uint8_t *data; /* borrows */
	size_t bytes, offset;
	uint64_t asked; /* of link_ask; 0: waits for the server */
	int64_t deadline_ns;
	blob_put_done done;
	void *arg;
};

/* Handed out by nobody: a get ends by itself, or with the process. */
struct blob_get {
	struct blob_get *prev, *next;
	struct host *host;
	struct th_hash key;
	uint8_t *data; /* owns */
	size_t bytes, offset;
	uint64_t asked;
	blob_got got;
	void *arg;
};

/* ---- put ------------------------------------------------------------------------------------ */

static void put_next(struct blob_put *put);

static void
put_free(struct blob_put *put)
{
	DL_DELETE(put->host->puts, put);
	free(put);
}

static void
put_end(struct blob_put *put, const struct th_err *result)
{
	blob_put_done done = put->done;
	void *arg = put->arg;
	put_free(put);
	done(arg, result);
}

static void
put_answered(void *arg, int rc, const struct ctl_reply *reply)
{
	struct blob_put *put = arg;
	put->asked = 0;
	if (rc != 0 || reply->unknown_agent) {
		/* Another server may have none of it: from the start, when there is one. */
		put->offset = 0;
		return;
	}
	struct th_err result = {0};
	if (reply->code != 0) {
		th_fail(&result, reply->code, "%s", reply->text);
		put_end(put, &result);
		return;
	}
	put->offset += th_min_size(put->bytes - put->offset, TH_PART_BYTES_MAX);
	if (put->offset == put->bytes)
		put_end(put, &result);
	else
		put_next(put);
}

static void
put_next(struct blob_put *put)
{
	struct ctl_request request = {.kind = CTL_MANIFEST_PUT};
	request.u.manifest_put = (struct ctl_blob_part){
		.key = put->key,
		.total_bytes = put->bytes,
		.offset = put->offset,
		.data = put->data + put->offset,
		.data_bytes = th_min_size(put->bytes - put->offset, TH_PART_BYTES_MAX),
	};
	put->asked = link_ask(put->host, &request, PART_NS, put_answered, put);
}

struct blob_put *
blob_put_start(struct host *host, struct th_hash key, const uint8_t *data, size_t bytes,
	int64_t deadline_ns, blob_put_done done, void *arg)
{
	struct blob_put *put = th_calloc(1, sizeof(*put));
	*put = (struct blob_put){.host = host,
		.key = key,
		.data = data,
		.bytes = bytes,
		.deadline_ns = deadline_ns,
		.done = done,
		.arg = arg};
	DL_APPEND(host->puts, put);
	if (host->attached)
		put_next(put);
	return put;
}

void
blob_put_cancel(struct blob_put *put)
{
	if (!put)
		return;
	link_cancel(put->host, put->asked);
	put_free(put);
}

void
blob_puts_resume(struct host *host, int64_t now_ns)
{
	struct blob_put *put, *next;
	DL_FOREACH_SAFE(host->puts, put, next)
	{
		if (now_ns >= put->deadline_ns) {
			struct th_err result;
			th_fail(&result, TH_E_NO_SERVER,
				"the manifest could not be handed to the reference server in time: "
				"%s; see 'thctl status'",
				host->attached ? "it answers too slowly" : host->server_text);
			link_cancel(host, put->asked);
			put_end(put, &result);
		} else if (host->attached && put->asked == 0) {
			put_next(put);
		}
	}
}

/* ---- get ------------------------------------------------------------------------------------ */

static void get_next(struct blob_get *get);

static void
get_free(struct blob_get *get)
{
	DL_DELETE(get->host->gets, get);
	free(get->data);
	free(get);
}

static void
get_end(struct blob_get *get, const struct th_err *result)
{
	get->got(get->arg, result, result->code == 0 ? get->data : NULL,
		result->code == 0 ? get->bytes : 0);
	get_free(get);
}

/* Takes one part. 0 or a code with the sentence. */
static int
blob_parts_get_part(struct blob_get *get, const struct ctl_blob_part *part, struct th_err *err)
{
	if (get->offset == 0) {
		if (part->total_bytes == 0 || part->total_bytes > TH_BLOB_BYTES_MAX)
			return th_fail(err, -EPROTO, "a blob of an impossible size");
		free(get->data);
		get->bytes = (size_t)part->total_bytes;
		get->data = malloc(get->bytes);
		if (!get->data)
			return th_fail(err, -ENOMEM, "the agent is out of memory for a manifest");
	}
	if (part->total_bytes != get->bytes || part->offset != get->offset ||
		part->data_bytes == 0 || part->data_bytes > get->bytes - get->offset)
		return th_fail(err, -EPROTO, "a blob's part that does not fit");
	memcpy(get->data + get->offset, part->data, part->data_bytes);
	get->offset += part->data_bytes;
	if (get->offset == get->bytes &&
		!th_hash_equal(manifest_key(get->data, get->bytes), get->key))
		return th_fail(err, TH_E_CHECKSUM, "a blob that is not what its name says");
	return 0;
}

static void
get_answered(void *arg, int rc, const struct ctl_reply *reply)
{
	struct blob_get *get = arg;
	struct th_err result = {0};
	get->asked = 0;
	if (rc != 0)
		th_fail(&result, TH_E_NO_SERVER, "the reference server did not answer: %s",
			th_strerror(rc));
	else if (reply->code != 0)
		th_fail(&result, reply->code, "%s", reply->text);
	else
		(void)blob_parts_get_part(get, &reply->u.manifest_get, &result);
	if (result.code != 0 || get->offset == get->bytes)
		get_end(get, &result);
	else
		get_next(get);
}

static void
get_next(struct blob_get *get)
{
	struct ctl_request request = {.kind = CTL_MANIFEST_GET};
	request.u.manifest_get = (struct ctl_blob_get){.key = get->key, .offset = get->offset};
	get->asked = link_ask(get->host, &request, PART_NS, get_answered, get);
}

void
blob_get(struct host *host, struct th_hash key, blob_got got, void *arg)
{
	struct blob_get *get = th_calloc(1, sizeof(*get));
	*get = (struct blob_get){.host = host, .key = key, .got = got, .arg = arg};
	DL_APPEND(host->gets, get);
	get_next(get);
}

void
blobs_close(struct host *host)
{
	while (host->puts)
		put_free(host->puts);
	while (host->gets)
		get_free(host->gets);
}
