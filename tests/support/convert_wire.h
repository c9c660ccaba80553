/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_wire - messages over the wire and back, for tests of ipc/proto/convert.
 */
#ifndef TH_TESTS_SUPPORT_CONVERT_WIRE_H
#define TH_TESTS_SUPPORT_CONVERT_WIRE_H

#include <stddef.h>

#include "ipc/proto/convert.h"
#include "ipc/proto/tensorhub.pb-c.h"

/* length times letter, and the zero behind them. */
void wire_name(char *ret_name, size_t length, char letter);

/* It is packed to these bytes: WIRE_BYTES("\x08..."). */
#define WIRE_BYTES(TEXT) TEXT, sizeof(TEXT) - 1
void wire_request_is(const struct ctl_request *request, const char *expected, size_t bytes);
void wire_event_is(const struct ctl_event *event, const char *expected, size_t bytes);

/* It comes back as it was sent; not for those with pointers. */
void wire_request_same(const struct ctl_request *request);

/*
 * A peer sends this body, which need not make sense: 0, or the code of the refusal, which has come
 * with a sentence. Pointers of what was taken in are not valid; those of a reply are, until its
 * arena is freed.
 */
int wire_take_request(int body_case, void *body, struct ctl_request *ret_got);
int wire_take_event(int body_case, void *body);
int wire_take_reply(enum ctl_request_kind kind, int body_case, void *body,
	struct convert_arena *arena, struct ctl_reply *ret_got);

#endif
