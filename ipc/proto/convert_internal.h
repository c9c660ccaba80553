/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_internal - what the files of convert share: memory, checks of fields, parts of messages.
 *
 * Only convert_*.c include this. Checks are sticky, like th_reader: a function takes all fields
 * of a message and asks once whether one of them failed; the first failure keeps its sentence.
 */
#ifndef TH_IPC_PROTO_CONVERT_INTERNAL_H
#define TH_IPC_PROTO_CONVERT_INTERNAL_H

#include "ipc/proto/convert.h"
#include "ipc/proto/tensorhub.pb-c.h"

/* ---- memory ------------------------------------------------------------------------------- */

/* Aligned for any type, not zeroed; NULL: out of memory, or over CONVERT_ARENA_BYTES_MAX. */
void *convert_alloc(struct convert_arena *arena, size_t bytes);
/* The same for an array, zeroed. */
void *convert_alloc_array(struct convert_arena *arena, size_t count, size_t size);
/*
 * One block of that size at once, so that the convert_message calls which fill it cannot fail.
 * 0, -ENOMEM or TH_E_LIMIT.
 */
TH_MUST_USE int convert_reserve(struct convert_arena *arena, size_t bytes);
/* A message with default values, in reserved memory. */
void *convert_message(struct convert_arena *arena, const ProtobufCMessageDescriptor *descriptor);
/* `count` pointers, in reserved memory. */
void *convert_pointers(struct convert_arena *arena, size_t count);

/* What one message of any type needs, with its padding and its place in an array. */
#define CONVERT_BYTES_PER_MESSAGE 208u

TH_MUST_USE int convert_pack(
	const ProtobufCMessage *message, uint8_t **ret_data, size_t *ret_bytes);
/* NULL: *err says why (-EPROTO, -ENOMEM). */
void *convert_unpack(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data,
	size_t bytes, struct convert_arena *arena, struct th_err *err);

/* ---- fields that go out ---------------------------------------------------------------------- */

/* Messages have char * for texts that protobuf-c only reads when it packs. */
char *convert_out_text(const char *text);
/* NULL, which is "not there", for none. */
Tensorhub__V1__Hash *convert_out_hash(struct convert_arena *arena, struct th_hash hash);
Tensorhub__V1__Version *convert_out_version(struct convert_arena *arena, struct th_version version);
/* NULL for no snapshot. */
Tensorhub__V1__Page *convert_out_page(struct convert_arena *arena, struct ctl_page page);
ProtobufCBinaryData convert_out_bytes(const uint8_t *data, size_t bytes);

/* ---- fields that come in --------------------------------------------------------------------- */

struct convert_in {
	const char *message; /* for the sentence: "OPEN"                                       */
	struct convert_arena *arena;
	struct th_err *err;
	int code; /* of the first failure                                                       */
};

void convert_in_fail(struct convert_in *in, int code, const char *field, const char *problem);
/* Fails unless good. */
void convert_in_check(struct convert_in *in, bool good, const char *field, const char *problem);
/* A name, address or the like of 1..max bytes; ret_name has max + 1. */
void convert_in_name(
	struct convert_in *in, const char *field, const char *text, size_t max, char *ret_name);
/* The same, where nothing may be given. */
void convert_in_name_or_empty(
	struct convert_in *in, const char *field, const char *text, size_t max, char *ret_name);
/* A sentence: cut where it is too long, and what a terminal would obey is replaced. */
void convert_in_sentence(const char *text, size_t size, char *ret_text);
/* What another release may name otherwise: nothing of it is refused. */
void convert_in_path(const char *name, uint64_t rate, const char *why, struct ctl_path *ret_path);
/* A short word that lives in the arena. */
void convert_in_word(
	struct convert_in *in, const char *field, const char *text, const char **ret_word);
void convert_in_spec(
	struct convert_in *in, const char *text, bool required, char ret_spec[TH_SPEC_MAX + 1]);
void convert_in_hash(struct convert_in *in, const char *field, const Tensorhub__V1__Hash *hash,
	bool required, struct th_hash *ret_hash);
/* Not there: version none. */
void convert_in_version(const Tensorhub__V1__Version *version, struct th_version *ret_version);
void convert_in_page(
	struct convert_in *in, const Tensorhub__V1__Page *page, struct ctl_page *ret_page);
/* 0 or negative, as th_strerror knows them. */
void convert_in_code(struct convert_in *in, int32_t value, int *ret_code);
void convert_in_op_kind(struct convert_in *in, uint32_t kind, uint32_t *ret_kind);
/* A later version may have more of them: not said. */
enum ctl_copy_why convert_in_copy_why(uint32_t why);
void convert_in_blob_part(struct convert_in *in, const Tensorhub__V1__BlobPart *message,
	struct ctl_blob_part *ret_part);

/*
 * ---- parts of replies
 * -------------------------------------------------------------------------
 */

Tensorhub__V1__BlobPart *convert_out_blob_part(
	struct convert_arena *arena, const struct ctl_blob_part *part);
Tensorhub__V1__Event *convert_out_event(struct convert_arena *arena, const struct ctl_event *event);
/* Messages that one event becomes, at most. */
#define CONVERT_MESSAGES_PER_EVENT 5u
void convert_in_event(
	struct convert_in *in, const Tensorhub__V1__Event *message, struct ctl_event *ret_event);

/* OPEN, REGISTER, REJOIN: convert_rejoin.c */
Tensorhub__V1__Open *convert_out_open(struct convert_arena *arena, const struct ctl_open *open);
Tensorhub__V1__Register *convert_out_register(
	struct convert_arena *arena, const struct ctl_register *reg);
Tensorhub__V1__Rejoin *convert_out_rejoin(
	struct convert_arena *arena, const struct ctl_rejoin *rejoin);
void convert_in_open(
	struct convert_in *in, const Tensorhub__V1__Open *body, struct ctl_open *ret_open);
void convert_in_register(
	struct convert_in *in, const Tensorhub__V1__Register *body, struct ctl_register *ret_reg);
void convert_in_rejoin(
	struct convert_in *in, const Tensorhub__V1__Rejoin *body, struct ctl_rejoin *ret_rejoin);

/* RESERVE, RELEASE, CLOSE_REFUSED, PING, AT_RISK, RULES, READY, GO_MARK: convert_offload.c */
void convert_out_offload_event(
	struct convert_arena *arena, const struct ctl_event *event, Tensorhub__V1__Event *message);
bool convert_in_offload_event(
	struct convert_in *in, const Tensorhub__V1__Event *message, struct ctl_event *ret_event);
Tensorhub__V1__Reserved *convert_out_reserved(
	struct convert_arena *arena, const struct ctl_reserved *reserved);
void convert_in_reserved(struct convert_in *in, const Tensorhub__V1__Reserved *message,
	struct ctl_reserved *ret_reserved);
Tensorhub__V1__Borrow *convert_out_borrow(
	struct convert_arena *arena, const struct ctl_borrow *borrow);
void convert_in_borrow(
	struct convert_in *in, const Tensorhub__V1__Borrow *message, struct ctl_borrow *ret_borrow);
void convert_in_retain(struct convert_in *in, const char *text, char ret_rules[TH_RETAIN_MAX + 1]);

size_t convert_listing_messages(const struct ctl_listing *listing);
Tensorhub__V1__Listing *convert_out_listing(
	struct convert_arena *arena, const struct ctl_listing *listing);
void convert_in_listing(struct convert_in *in, const Tensorhub__V1__Listing *message,
	struct ctl_listing *ret_listing);

size_t convert_inspection_messages(const struct ctl_inspection *inspection);
Tensorhub__V1__Inspection *convert_out_inspection(
	struct convert_arena *arena, const struct ctl_inspection *inspection);
void convert_in_inspection(struct convert_in *in, const Tensorhub__V1__Inspection *message,
	struct ctl_inspection *ret_inspection);

/* ---- administration (convert_admin.c) -------------------------------------------------------- */

Tensorhub__V1__Admin *convert_out_admin(struct convert_arena *arena, const struct ctl_admin *admin);
void convert_in_admin(
	struct convert_in *in, const Tensorhub__V1__Admin *message, struct ctl_admin *ret_admin);
size_t convert_admin_messages(const struct ctl_admin_reply *reply);
Tensorhub__V1__AdminReply *convert_out_admin_reply(
	struct convert_arena *arena, const struct ctl_admin_reply *reply);
void convert_in_admin_reply(struct convert_in *in, const Tensorhub__V1__AdminReply *message,
	struct ctl_admin_reply *ret_reply);

#endif
