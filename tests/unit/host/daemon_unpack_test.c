/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of daemon/host/unpack: registrations that do not fit together, and hostile sizes. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/host/worker/unpack.h"

#define ROWS 2

struct columns { /* storage of a message of two rows: "a" is 2 x 3 U8, "b" a scalar */
	char *name[ROWS];
	uint32_t dtype[ROWS], ndim[ROWS], memory_id[ROWS];
	uint64_t local[2], global[2], offset[2], memory_offset[ROWS], bytes[ROWS];
	char a[2], b[2];
	Tensorhub__V1__TensorRows message;
};

static void
columns_init(struct columns *columns)
{
	*columns = (struct columns){
		.dtype = {1, 10},
		.ndim = {2, 0},
		.memory_id = {1, 2},
		.local = {2, 3},
		.global = {4, 3},
		.offset = {2, 0},
		.memory_offset = {64, 128},
		.bytes = {6, 4},
		.a = "a",
		.b = "b",
	};
	columns->name[0] = columns->a;
	columns->name[1] = columns->b;
	Tensorhub__V1__TensorRows *message = &columns->message;
	tensorhub__v1__tensor_rows__init(message);
	message->n_name = message->n_dtype = message->n_ndim = ROWS;
	message->n_memory_id = message->n_memory_offset = message->n_bytes = ROWS;
	message->n_local_shape = message->n_global_shape = message->n_offset = 2;
	message->name = columns->name;
	message->dtype = columns->dtype;
	message->ndim = columns->ndim;
	message->memory_id = columns->memory_id;
	message->local_shape = columns->local;
	message->global_shape = columns->global;
	message->offset = columns->offset;
	message->memory_offset = columns->memory_offset;
	message->bytes = columns->bytes;
}

static int
unpack(const struct columns *columns, uint32_t max, struct th_err *err, struct unpacked_rows *rows)
{
	size_t bytes = tensorhub__v1__tensor_rows__get_packed_size(&columns->message);
	uint8_t *data = malloc(bytes);
	cr_assert(data);
	tensorhub__v1__tensor_rows__pack(&columns->message, data);
	int rc = unpack_rows(data, bytes, max, err, rows);
	free(data);
	return rc;
}

Test(daemon_unpack, rows__that_fit_together__come_out_as_they_went_in)
{
	struct columns columns;
	struct unpacked_rows rows = {0};
	struct th_err err;
	columns_init(&columns);
	cr_assert_eq(unpack(&columns, ROWS, &err, &rows), 0, "%s", err.text);
	cr_assert_eq(rows.rows.count, ROWS);
	cr_assert_str_eq(rows.rows.rows[0].name, "a");
	cr_assert_eq(rows.rows.rows[0].ndim, 2);
	cr_assert_eq(rows.rows.rows[0].local_shape[1], 3);
	cr_assert_eq(rows.rows.rows[0].global_shape[0], 4);
	cr_assert_eq(rows.rows.rows[0].offset[0], 2);
	cr_assert_eq(rows.rows.rows[1].ndim, 0);
	cr_assert_eq(rows.rows.places[1].memory_id, 2);
	cr_assert_eq(rows.rows.places[1].offset, 128);
	cr_assert_eq(rows.rows.places[0].bytes, 6);
	unpack_rows_free(&rows);
}

Test(daemon_unpack, rows__more_than_the_limit__names_both_numbers)
{
	struct columns columns;
	struct unpacked_rows rows = {0};
	struct th_err err;
	columns_init(&columns);
	cr_assert_eq(unpack(&columns, 1, &err, &rows), TH_E_LIMIT);
	cr_assert(strstr(err.text, "1 tensors") && strstr(err.text, "has 2"), "%s", err.text);
}

Test(daemon_unpack, rows__a_column_short__refused)
{
	for (int which = 0; which < 8; which++) {
		struct columns columns;
		struct unpacked_rows rows = {0};
		struct th_err err;
		columns_init(&columns);
		size_t *counts[] = {&columns.message.n_dtype, &columns.message.n_ndim,
			&columns.message.n_local_shape, &columns.message.n_global_shape,
			&columns.message.n_offset, &columns.message.n_memory_id,
			&columns.message.n_memory_offset, &columns.message.n_bytes};
		(*counts[which])--;
		cr_assert_eq(unpack(&columns, ROWS, &err, &rows), TH_E_INVALID, "%d", which);
	}
}

Test(daemon_unpack, rows__ranks_that_promise_too_much__refused)
{
	struct columns columns;
	struct unpacked_rows rows = {0};
	struct th_err err;
	columns_init(&columns);
	columns.ndim[1] = UINT32_MAX;
	cr_assert_eq(unpack(&columns, ROWS, &err, &rows), TH_E_INVALID);
	cr_assert(strstr(err.text, "'b'"), "%s", err.text);
	columns_init(&columns);
	columns.ndim[0] = 8;
	cr_assert_eq(unpack(&columns, ROWS, &err, &rows), TH_E_INVALID);
}

Test(daemon_unpack, rows__garbage__refused)
{
	static const uint8_t garbage[] = {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, 'x'};
	struct unpacked_rows rows = {0};
	struct th_err err;
	cr_assert_eq(unpack_rows(garbage, sizeof(garbage), ROWS, &err, &rows), TH_E_INVALID);
}

/*
 * Two bytes on the wire, a pointer and an allocation here: sixteen million would take half a GiB.
 */
Test(daemon_unpack, rows__empty_names_without_end__stay_within_the_budget)
{
	const size_t bytes = 32u << 20;
	struct unpacked_rows rows = {0};
	struct th_err err;
	uint8_t *data = malloc(bytes);
	cr_assert(data);
	for (size_t i = 0; i < bytes; i += 2) {
		data[i] = 0x0a;
		data[i + 1] = 0;
	}
	cr_assert_eq(unpack_rows(data, bytes, ROWS, &err, &rows), TH_E_INVALID);
	/* Not: columns of unequal length, which would say that all of it was unpacked. */
	cr_assert(strstr(err.text, "cannot be read"), "%s", err.text);
	free(data);
}

Test(daemon_unpack, request__garbage__is_none)
{
	static const uint8_t garbage[] = {0xff, 0xff, 0xff};
	cr_assert_null(unpack_request(garbage, sizeof(garbage)));
	Tensorhub__V1__Request *empty = unpack_request(garbage, 0);
	cr_assert(empty);
	cr_assert_eq((int)empty->body_case, TENSORHUB__V1__REQUEST__BODY__NOT_SET);
	unpack_request_free(empty);
}
