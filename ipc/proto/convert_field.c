/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_field - the checks that every field from another process passes, and its way out.
 *
 * The first failure of a message keeps its code and sentence; later checks of it do nothing. Pure.
 */
#include <errno.h>
#include <string.h>

#include "ipc/base/name.h"
#include "ipc/base/utf8.h"
#include "ipc/proto/convert_internal.h"

#define WORD_BYTES_MAX 31
#define CODE_MIN (-9999) /* errno values and TH_E_* lie far inside */

char *
convert_out_text(const char *text)
{
	char *borrowed;

	memcpy(&borrowed, &text, sizeof(borrowed));
	return borrowed;
}

Tensorhub__V1__Hash *
convert_out_hash(struct convert_arena *arena, struct th_hash hash)
{
	Tensorhub__V1__Hash *message;

	if (th_hash_none(hash))
		return NULL;
	message = convert_message(arena, &tensorhub__v1__hash__descriptor);
	message->lo = hash.lo;
	message->hi = hash.hi;
	return message;
}

Tensorhub__V1__Version *
convert_out_version(struct convert_arena *arena, struct th_version version)
{
	Tensorhub__V1__Version *message;

	if (th_version_none(version))
		return NULL;
	message = convert_message(arena, &tensorhub__v1__version__descriptor);
	message->lineage = version.lineage;
	message->version = version.version;
	return message;
}

Tensorhub__V1__Page *
convert_out_page(struct convert_arena *arena, struct ctl_page page)
{
	Tensorhub__V1__Page *message;

	if (page.snapshot == 0)
		return NULL;
	message = convert_message(arena, &tensorhub__v1__page__descriptor);
	message->snapshot = page.snapshot;
	message->next = page.next;
	return message;
}

ProtobufCBinaryData
convert_out_bytes(const uint8_t *data, size_t bytes)
{
	ProtobufCBinaryData out = {.len = bytes};

	memcpy(&out.data, &data, sizeof(data));
	return out;
}

Tensorhub__V1__BlobPart *
convert_out_blob_part(struct convert_arena *arena, const struct ctl_blob_part *part)
{
	Tensorhub__V1__BlobPart *message =
		convert_message(arena, &tensorhub__v1__blob_part__descriptor);

	message->key = convert_out_hash(arena, part->key);
	message->total_bytes = part->total_bytes;
	message->offset = part->offset;
	message->data = convert_out_bytes(part->data, part->data_bytes);
	return message;
}

void
convert_in_fail(struct convert_in *in, int code, const char *field, const char *problem)
{
	if (in->code != 0)
		return;
	in->code = code;
	th_fail(in->err, code, "%s: %s %s", in->message, field, problem);
}

void
convert_in_check(struct convert_in *in, bool good, const char *field, const char *problem)
{
	if (!good)
		convert_in_fail(in, TH_E_INVALID, field, problem);
}

void
convert_in_name(
	struct convert_in *in, const char *field, const char *text, size_t max, char *ret_name)
{
	if (th_name_valid(text, max))
		memcpy(ret_name, text, strlen(text) + 1);
	else
		convert_in_fail(in, TH_E_INVALID, field,
			"is empty, too long, or not UTF-8 without control characters");
}

void
convert_in_name_or_empty(
	struct convert_in *in, const char *field, const char *text, size_t max, char *ret_name)
{
	if (text == NULL || text[0] == '\0')
		ret_name[0] = '\0';
	else
		convert_in_name(in, field, text, max, ret_name);
}

void
convert_in_sentence(const char *text, size_t size, char *ret_text)
{
	size_t len = text == NULL ? 0 : strnlen(text, size), at = 0, step;

	len = len == size ? th_utf8_cut(text, size - 1) : len;
	while (at < len) {
		step = th_utf8_char(text + at, len - at);
		if (step == 0 || th_utf8_is_control(text + at, step)) {
			step = step == 0 ? 1 : step;
			memset(ret_text + at, '?', step);
		} else {
			memcpy(ret_text + at, text + at, step);
		}
		at += step;
	}
	ret_text[at] = '\0';
}

void
convert_in_path(const char *name, uint64_t rate, const char *why, struct ctl_path *ret_path)
{
	convert_in_sentence(name, sizeof(ret_path->name), ret_path->name);
	convert_in_sentence(why, sizeof(ret_path->why), ret_path->why);
	ret_path->rate = rate;
}

void
convert_in_word(struct convert_in *in, const char *field, const char *text, const char **ret_word)
{
	char word[WORD_BYTES_MAX + 1] = "";
	char *copy;

	convert_in_name_or_empty(in, field, text, WORD_BYTES_MAX, word);
	copy = convert_alloc(in->arena, sizeof(word));
	if (copy == NULL) {
		convert_in_fail(in, -ENOMEM, field, "does not fit in memory");
		*ret_word = "";
		return;
	}
	memcpy(copy, word, sizeof(word));
	*ret_word = copy;
}

void
convert_in_spec(
	struct convert_in *in, const char *text, bool required, char ret_spec[TH_SPEC_MAX + 1])
{
	struct th_spec spec;

	ret_spec[0] = '\0';
	if (!required && (text == NULL || text[0] == '\0'))
		return;
	if (th_spec_parse(text, &spec) == 0)
		memcpy(ret_spec, text, strlen(text) + 1);
	else
		convert_in_fail(in, TH_E_INVALID, "spec", "is not latest, latest-K or a number");
}

void
convert_in_hash(struct convert_in *in, const char *field, const Tensorhub__V1__Hash *hash,
	bool required, struct th_hash *ret_hash)
{
	*ret_hash = hash == NULL ? (struct th_hash){0} : (struct th_hash){hash->lo, hash->hi};
	if (required && th_hash_none(*ret_hash))
		convert_in_fail(in, TH_E_INVALID, field, "is missing");
}

void
convert_in_version(const Tensorhub__V1__Version *version, struct th_version *ret_version)
{
	*ret_version = version == NULL ? (struct th_version){0, TH_NO_VERSION}
				       : (struct th_version){version->lineage, version->version};
}

void
convert_in_page(struct convert_in *in, const Tensorhub__V1__Page *page, struct ctl_page *ret_page)
{
	*ret_page =
		page == NULL ? (struct ctl_page){0} : (struct ctl_page){page->snapshot, page->next};
	convert_in_check(in, ret_page->snapshot != 0 || ret_page->next == 0, "page",
		"goes on with no snapshot");
}

void
convert_in_code(struct convert_in *in, int32_t value, int *ret_code)
{
	convert_in_check(in, value <= 0 && value >= CODE_MIN, "code", "is not an error code");
	*ret_code = value;
}

void
convert_in_op_kind(struct convert_in *in, uint32_t kind, uint32_t *ret_kind)
{
	convert_in_check(
		in, kind >= CTL_OP_PUBLISH && kind <= CTL_OP_FOLLOW, "kind", "is not an operation");
	*ret_kind = kind;
}

void
convert_in_blob_part(struct convert_in *in, const Tensorhub__V1__BlobPart *message,
	struct ctl_blob_part *ret_part)
{
	size_t len = message->data.len;

	convert_in_hash(in, "key", message->key, true, &ret_part->key);
	convert_in_check(in, message->total_bytes > 0 && message->total_bytes <= TH_BLOB_BYTES_MAX,
		"total_bytes", "is 0 or more than 64MiB");
	convert_in_check(in, len > 0 && len <= TH_PART_BYTES_MAX, "data",
		"has no bytes or more than 512KiB");
	convert_in_check(in, th_range_fits(message->offset, len, message->total_bytes), "offset",
		"and data reach beyond total_bytes");
	ret_part->total_bytes = message->total_bytes;
	ret_part->offset = message->offset;
	ret_part->data = message->data.data;
	ret_part->data_bytes = len;
}
