/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert - between the structs of ipc/base/ctl.h and the packed messages of tensorhub.proto.
 *
 * Everything that is unpacked is hostile: each name, enum, hash, count and size is checked
 * before it reaches a core, and a violation is a code with a sentence, never an assertion. What
 * is packed comes from our own core and is trusted. Unknown fields of a newer peer are skipped.
 * No I/O, no globals; any thread, one owner per arena.
 *
 * What an unpacked struct points to (legs, events, listings, blob bytes) lies in the arena that
 * was given, and not in the packed bytes: those may be freed at once.
 */
#ifndef TH_IPC_PROTO_CONVERT_H
#define TH_IPC_PROTO_CONVERT_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/ctl.h"
#include "ipc/base/err.h"

/* One message on a control socket, both ways: nng refuses to receive more (see net.h). */
#define CONVERT_MESSAGE_BYTES_MAX (1u << 20)
/* Memory that unpacking one message may take. The smallest entries of a listing grow fiftyfold. */
#define CONVERT_ARENA_BYTES_MAX (64u << 20)
/* Running legs in one BEAT: far more than one host can pull at once. */
#define CONVERT_BEAT_LEGS_MAX 16384u

/* Owns what unpacked structs point to. Starts as { 0 }; several messages may share one. */
struct convert_arena {
	struct convert_block *blocks;
	size_t bytes;
};

void convert_arena_free(struct convert_arena *arena); /* and ready for use again */

/*
 * Each pack gives *ret_data to the caller, who frees it with free(). 0, -ENOMEM, or TH_E_LIMIT:
 * the message would have more than CONVERT_MESSAGE_BYTES_MAX (a listing of very many replicas).
 * Each unpack gives 0, -ENOMEM, -EPROTO (not such a message at all) or TH_E_INVALID (a field is
 * not acceptable), and fills *err with a sentence; what the arena has taken until then is freed
 * with it.
 */

TH_MUST_USE int ctl_request_pack(
	const struct ctl_request *request, uint8_t **ret_data, size_t *ret_bytes);
TH_MUST_USE int ctl_request_unpack(const uint8_t *data, size_t bytes, struct convert_arena *arena,
	struct th_err *err, struct ctl_request *ret_request);

TH_MUST_USE int ctl_reply_pack(
	const struct ctl_reply *reply, uint8_t **ret_data, size_t *ret_bytes);
/*
 * kind is that of the request, which the asker remembers: most replies are a code only. A reply to
 * another kind of request is -EPROTO, and so is code 0 without what the kind promises.
 */
TH_MUST_USE int ctl_reply_unpack(const uint8_t *data, size_t bytes, enum ctl_request_kind kind,
	struct convert_arena *arena, struct th_err *err, struct ctl_reply *ret_reply);

/*
 * The answer to a request that could not be unpacked: a reply with its number, where that can be
 * read, and the failure.
 */
TH_MUST_USE int ctl_refusal_pack(const uint8_t *request, size_t request_bytes,
	const struct th_err *failure, uint8_t **ret_data, size_t *ret_bytes);

/* One event alone; on the wire they travel in the reply to POLL. For traces and replays. */
TH_MUST_USE int ctl_event_pack(
	const struct ctl_event *event, uint8_t **ret_data, size_t *ret_bytes);
TH_MUST_USE int ctl_event_unpack(const uint8_t *data, size_t bytes, struct convert_arena *arena,
	struct th_err *err, struct ctl_event *ret_event);

#endif
