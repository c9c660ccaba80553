/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_wire - see convert_wire.h.
 */
#include "tests/support/convert_wire.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

void
wire_name(char *ret_name, size_t length, char letter)
{
	memset(ret_name, letter, length);
	ret_name[length] = '\0';
}

static void
are(uint8_t *data, size_t got, const char *expected, size_t bytes)
{
	cr_assert_eq(got, bytes);
	cr_assert_arr_eq(data, expected, bytes);
	free(data);
}

void
wire_request_is(const struct ctl_request *request, const char *expected, size_t bytes)
{
	uint8_t *data;
	size_t got;

	cr_assert_eq(ctl_request_pack(request, &data, &got), 0);
	are(data, got, expected, bytes);
}

void
wire_event_is(const struct ctl_event *event, const char *expected, size_t bytes)
{
	uint8_t *data;
	size_t got;

	cr_assert_eq(ctl_event_pack(event, &data, &got), 0);
	are(data, got, expected, bytes);
}

void
wire_request_same(const struct ctl_request *request)
{
	struct convert_arena arena = {0};
	struct th_err err = {0};
	struct ctl_request got;
	uint8_t *data;
	size_t bytes;

	cr_assert_eq(ctl_request_pack(request, &data, &bytes), 0);
	cr_assert_eq(ctl_request_unpack(data, bytes, &arena, &err, &got), 0, "%s", err.text);
	cr_assert_arr_eq(&got, request, sizeof(got));
	free(data);
	convert_arena_free(&arena);
}

/* All bodies are pointers, in unions. */

int
wire_take_request(int body_case, void *body, struct ctl_request *ret_got)
{
	Tensorhub__V1__Request message;
	struct convert_arena arena = {0};
	struct th_err err = {0};

	tensorhub__v1__request__init(&message);
	message.request_no = 5;
	message.body_case = (Tensorhub__V1__Request__BodyCase)body_case;
	message.hello = body;
	size_t bytes = tensorhub__v1__request__get_packed_size(&message);
	uint8_t *data = malloc(bytes + 1);
	tensorhub__v1__request__pack(&message, data);
	int rc = ctl_request_unpack(data, bytes, &arena, &err, ret_got);
	cr_assert_eq(err.code, rc);
	cr_assert_eq(err.text[0] != '\0', rc != 0);
	cr_assert_eq(ctl_request_unpack(data, bytes, &arena, NULL, ret_got), rc);
	convert_arena_free(&arena);
	free(data);
	return rc;
}

int
wire_take_event(int body_case, void *body)
{
	Tensorhub__V1__Event message;
	struct convert_arena arena = {0};
	struct th_err err = {0};
	struct ctl_event got;

	tensorhub__v1__event__init(&message);
	message.number = 1;
	message.body_case = (Tensorhub__V1__Event__BodyCase)body_case;
	message.plan = body;
	size_t bytes = tensorhub__v1__event__get_packed_size(&message);
	uint8_t *data = malloc(bytes + 1);
	tensorhub__v1__event__pack(&message, data);
	int rc = ctl_event_unpack(data, bytes, &arena, &err, &got);
	cr_assert_eq(err.text[0] != '\0', rc != 0);
	convert_arena_free(&arena);
	free(data);
	return rc;
}

int
wire_take_reply(enum ctl_request_kind kind, int body_case, void *body, struct convert_arena *arena,
	struct ctl_reply *ret_got)
{
	Tensorhub__V1__Reply message;
	struct th_err err = {0};

	tensorhub__v1__reply__init(&message);
	message.body_case = (Tensorhub__V1__Reply__BodyCase)body_case;
	message.hello = body;
	size_t bytes = tensorhub__v1__reply__get_packed_size(&message);
	uint8_t *data = malloc(bytes + 1);
	tensorhub__v1__reply__pack(&message, data);
	int rc = ctl_reply_unpack(data, bytes, kind, arena, &err, ret_got);
	cr_assert_eq(err.text[0] != '\0', rc != 0);
	free(data);
	return rc;
}
