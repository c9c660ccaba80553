/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unpack - messages of workers and thctl out of their bytes, within a budget of memory.
 *
 * protobuf-c trusts a message about how much memory it needs; a hostile one of a megabyte would
 * take a hundred. Here it gets what a real one can need and no more. Pure.
 */
#ifndef TH_DAEMON_HOST_WORKER_UNPACK_H
#define TH_DAEMON_HOST_WORKER_UNPACK_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/host/worker/tensor_places.h"
#include "ipc/base/err.h"
#include "ipc/proto/tensorhub.pb-c.h"

/* Free with unpack_request_free. NULL: no such message, or over the budget. */
Tensorhub__V1__Request *unpack_request(const uint8_t *data, size_t bytes);
void unpack_request_free(Tensorhub__V1__Request *request);

struct unpacked_rows {
	struct tensors_rows rows;           /* points into the two below */
	Tensorhub__V1__TensorRows *message; /* owns: the names */
	void *storage;                      /* owns */
};

/*
 * The rows of a registration, with arrays that fit together and at most tensors_max of them. 0;
 * TH_E_LIMIT; TH_E_INVALID: the worker's library would not send this; -ENOMEM.
 */
int unpack_rows(const uint8_t *data, size_t bytes, uint32_t tensors_max, struct th_err *err,
	struct unpacked_rows *ret_rows);
void unpack_rows_free(struct unpacked_rows *rows);

#endif
