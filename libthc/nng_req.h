/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nng_req - the REQ side of nng's request/reply protocol (SP) over a unix stream socket, by itself.
 *
 * libthc cannot contain the nng library, which starts threads in every process and aborts in a
 * forked child. One connection, one request at a time, the caller's thread. What the other side
 * announces is never believed: a reply is read in steps and only up to the limit that the caller
 * gives. Not thread-safe.
 */
#ifndef TH_LIBTHC_NNG_REQ_H
#define TH_LIBTHC_NNG_REQ_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"
#include "libthc/dial.h"

#define DIAL_PATH_MAX                                                                            \
	107 /* bytes of a socket address */

struct sp_req {
	char path[DIAL_PATH_MAX + 1];
	int fd; /* owns; -1: not connected */
	uint32_t
		last_id; /* of a request; the top bit is set on the wire */
};

/* Does not connect. TH_E_INVALID: path is empty or too long for a socket address. */
TH_MUST_USE int sp_req_init(struct sp_req *req, const char *path);
void sp_req_close(struct sp_req *req);

/*
 * Sends data and waits for its reply until deadline_ns on the clock; *ret_reply is the caller's,
 * to be freed with free(). A connection that breaks before the reply has come is made again once,
 * and the request is sent again: the receiver must know a repeat by what is in it. TH_E_NO_AGENT:
 * nobody listens; TH_E_TIMEOUT; TH_E_AGENT_LOST: it hung up twice; TH_E_PROTOCOL: not SP, or a
 * reply over reply_max; TH_E_DENIED; or -errno. After a failure the connection is closed: a late
 * reply to this request can never be taken for that to another.
 */
TH_MUST_USE int sp_req_call(struct sp_req *req, const void *data, size_t bytes, size_t reply_max,
	int64_t deadline_ns, struct th_err *err, uint8_t **ret_reply, size_t *ret_bytes);

#endif
