/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_fuzz - what any peer can send to a daemon: a request, a reply to any kind, an event.
 *
 * The first byte chooses: a request, an event, or the reply to a kind. What is accepted must
 * survive the way out and in again unchanged: a core and its peer must never see two meanings of
 * one message.
 */
#include "ipc/proto/convert.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct packed {
	uint8_t *data;
	size_t bytes;
};

static void
same(struct packed a, struct packed b)
{
	TH_ASSERT(a.bytes == b.bytes && memcmp(a.data, b.data, a.bytes) == 0);
	free(a.data);
	free(b.data);
}

static void
fuzz_request(const uint8_t *data, size_t size, struct convert_arena *arena)
{
	struct ctl_request request, again;
	struct th_err err = {0};
	struct packed first, second;

	if (ctl_request_unpack(data, size, arena, &err, &request) != 0) {
		TH_ASSERT(err.code != 0 && err.text[0] != '\0');
		TH_ASSERT(ctl_refusal_pack(data, size, &err, &first.data, &first.bytes) == 0);
		free(first.data);
		return;
	}
	TH_ASSERT(ctl_request_pack(&request, &first.data, &first.bytes) == 0);
	TH_ASSERT(ctl_request_unpack(first.data, first.bytes, arena, &err, &again) == 0);
	TH_ASSERT(again.kind == request.kind);
	TH_ASSERT(ctl_request_pack(&again, &second.data, &second.bytes) == 0);
	same(first, second);
}

static void
fuzz_reply(
	const uint8_t *data, size_t size, enum ctl_request_kind kind, struct convert_arena *arena)
{
	struct ctl_reply reply, again;
	struct th_err err = {0};
	struct packed first, second;

	if (ctl_reply_unpack(data, size, kind, arena, &err, &reply) != 0) {
		TH_ASSERT(err.code != 0 && err.text[0] != '\0');
		return;
	}
	TH_ASSERT(ctl_reply_pack(&reply, &first.data, &first.bytes) == 0);
	TH_ASSERT(ctl_reply_unpack(first.data, first.bytes, kind, arena, &err, &again) == 0);
	TH_ASSERT(ctl_reply_pack(&again, &second.data, &second.bytes) == 0);
	same(first, second);
}

static void
fuzz_event(const uint8_t *data, size_t size, struct convert_arena *arena)
{
	struct ctl_event event, again;
	struct th_err err = {0};
	struct packed first, second;

	if (ctl_event_unpack(data, size, arena, &err, &event) != 0) {
		TH_ASSERT(err.code != 0 && err.text[0] != '\0');
		return;
	}
	TH_ASSERT(ctl_event_pack(&event, &first.data, &first.bytes) == 0);
	TH_ASSERT(ctl_event_unpack(first.data, first.bytes, arena, &err, &again) == 0);
	TH_ASSERT(ctl_event_pack(&again, &second.data, &second.bytes) == 0);
	same(first, second);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct convert_arena arena = {0};
	uint8_t choice;

	if (size == 0)
		return 0;
	choice = data[0] % (CTL_REJOINED + 2);
	if (choice == 0)
		fuzz_request(data + 1, size - 1, &arena);
	else if (choice == 1)
		fuzz_event(data + 1, size - 1, &arena);
	else
		fuzz_reply(data + 1, size - 1, (enum ctl_request_kind)(choice - 1), &arena);
	convert_arena_free(&arena);
	return 0;
}
