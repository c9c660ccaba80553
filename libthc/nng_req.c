/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nng_req - see nng_req.h.
 *
 *   both ways, once   00 53 50 00 PROTO(16, big-endian) 00 00     REQ 0x0030, REP 0x0031 message
 *   01 LENGTH(64, big-endian) then LENGTH bytes: REQUEST ID(32, big-endian, top bit
 *                     set), payload
 */
#include "libthc/nng_req.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/sock/owner.h"
#include "libthc/dial.h"

#define ID_BIT UINT32_C(0x80000000)
#define REPLY_STEP                                                                                 \
	(256u << 10) /* memory grows with what has come, not with what is announced     */

static const uint8_t hello_req[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
static const uint8_t hello_rep[8] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};

struct __attribute__((packed)) frame {
	uint8_t type; /* 1 */
	uint64_t length;
	uint32_t id;
};
_Static_assert(sizeof(struct frame) == 13, "wire format");

int
sp_req_init(struct sp_req *req, const char *path)
{
	size_t length = strnlen(path, DIAL_PATH_MAX + 1);

	if (length == 0 || length > DIAL_PATH_MAX)
		return TH_E_INVALID;
	memset(req, 0, sizeof(*req));
	memcpy(req->path, path, length + 1);
	req->fd = -1;
	/* Any start will do; one of the moment keeps two handles apart in a trace. */
	req->last_id = (uint32_t)th_now_ns();
	return 0;
}

void
sp_req_close(struct sp_req *req)
{
	th_fd_close(&req->fd);
}

static int
read_all(int fd, void *ret_bytes, size_t count, int64_t deadline_ns)
{
	uint8_t *at = ret_bytes;

	while (count > 0) {
		ssize_t got = recv(fd, at, count, MSG_DONTWAIT);
		if (got == 0)
			return -ECONNRESET;
		if (got > 0) {
			at += got;
			count -= (size_t)got;
			continue;
		}
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return -errno;
		int rc = dial_wait(fd, POLLIN, deadline_ns);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static int
write_all(int fd, struct iovec *parts, size_t num_parts, int64_t deadline_ns)
{
	while (num_parts > 0) {
		struct msghdr msg = {.msg_iov = parts, .msg_iovlen = num_parts};
		ssize_t sent = sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent < 0) {
			if (errno == EINTR)
				continue;
			if (errno != EAGAIN)
				return -errno;
			int rc = dial_wait(fd, POLLOUT, deadline_ns);
			if (rc < 0)
				return rc;
			continue;
		}
		size_t done = (size_t)sent;
		while (num_parts > 0 && done >= parts->iov_len) {
			done -= parts->iov_len;
			parts++;
			num_parts--;
		}
		if (num_parts > 0) {
			parts->iov_base = (uint8_t *)parts->iov_base + done;
			parts->iov_len -= done;
		}
	}
	return 0;
}

static int
handshake(int fd, int64_t deadline_ns)
{
	uint8_t hello[sizeof(hello_req)], answer[sizeof(hello_rep)];
	struct iovec part = {hello, sizeof(hello)};

	memcpy(hello, hello_req, sizeof(hello));
	int rc = write_all(fd, &part, 1, deadline_ns);
	if (rc == 0)
		rc = read_all(fd, answer, sizeof(answer), deadline_ns);
	if (rc == 0 && memcmp(answer, hello_rep, sizeof(answer)) != 0)
		rc = -EPROTO;
	return rc;
}

static int
nng_req_send_request(
	struct sp_req *req, uint32_t id, const void *data, size_t bytes, int64_t deadline_ns)
{
	struct frame frame = {1, htobe64(sizeof(id) + (uint64_t)bytes), htobe32(id)};
	union {
		const void *constant;
		void *plain;
	} pointer = {.constant = data};
	struct iovec parts[2] = {{&frame, sizeof(frame)}, {pointer.plain, bytes}};

	return write_all(req->fd, parts, 2, deadline_ns);
}

static int
read_payload(int fd, size_t bytes, int64_t deadline_ns, uint8_t **ret_payload)
{
	uint8_t *payload = NULL;
	size_t have = 0;

	do {
		size_t step = th_min_size(bytes - have, REPLY_STEP);
		uint8_t *more = realloc(payload, have + step > 0 ? have + step : 1);
		int rc = more == NULL ? -ENOMEM : read_all(fd, more + have, step, deadline_ns);
		if (rc < 0) {
			free(more != NULL ? more : payload);
			return rc;
		}
		payload = more;
		have += step;
	} while (have < bytes);
	*ret_payload = payload;
	return 0;
}

/* Replies to earlier requests cannot come: a connection with one missing is closed. */
static int
read_reply(struct sp_req *req, uint32_t id, size_t reply_max, int64_t deadline_ns,
	uint8_t **ret_reply, size_t *ret_bytes)
{
	struct frame frame;
	int rc = read_all(req->fd, &frame, sizeof(frame), deadline_ns);

	if (rc < 0)
		return rc;
	uint64_t length = be64toh(frame.length);
	if (frame.type != 1 || length < sizeof(frame.id) || be32toh(frame.id) != id)
		return -EPROTO;
	if (length - sizeof(frame.id) > reply_max)
		return -EMSGSIZE;
	size_t bytes = (size_t)(length - sizeof(frame.id));
	rc = read_payload(req->fd, bytes, deadline_ns, ret_reply);
	if (rc == 0)
		*ret_bytes = bytes;
	return rc;
}

/*
 * 0, or -errno; -ECONNABORTED: an open connection broke, another try may help. TH_E_DENIED: has its
 * sentence.
 */
static int
nng_req_exchange(struct sp_req *req, uint32_t id, const void *data, size_t bytes, size_t reply_max,
	int64_t deadline_ns, struct th_err *err, uint8_t **ret_reply, size_t *ret_bytes)
{
	int rc = 0;

	if (req->fd < 0) {
		rc = dial_unix(req->path, SOCK_STREAM, deadline_ns);
		if (rc < 0)
			return rc;
		req->fd = rc;
		rc = owner_check(req->fd, req->path, err);
		if (rc == 0)
			rc = handshake(req->fd, deadline_ns);
		if (rc < 0)
			return rc;
	}
	rc = nng_req_send_request(req, id, data, bytes, deadline_ns);
	if (rc == 0)
		rc = read_reply(req, id, reply_max, deadline_ns, ret_reply, ret_bytes);
	return rc == -ECONNRESET || rc == -EPIPE ? -ECONNABORTED : rc;
}

static int
nng_req_explain(const struct sp_req *req, int rc, size_t reply_max, struct th_err *err)
{
	switch (rc) {
	case -ENOENT:
	case -ECONNREFUSED:
		return th_fail(err, TH_E_NO_AGENT,
			"no agent listens at %s; start one by `thctl up`, or set THC_AGENT to the "
			"directory of one that runs",
			req->path);
	case -EACCES:
	case -EPERM:
		return th_fail(err, TH_E_DENIED,
			"%s may not be opened by this user; the agent's group may", req->path);
	case TH_E_DENIED:
		return rc;
	case -ETIMEDOUT:
		return th_fail(err, TH_E_TIMEOUT, "no answer at %s before the deadline", req->path);
	case -ECONNABORTED:
	case -ECONNRESET:
	case -EPIPE:
		return th_fail(err, TH_E_AGENT_LOST,
			"the agent at %s hung up without an answer; its log says why", req->path);
	case -EPROTO:
		return th_fail(err, TH_E_PROTOCOL,
			"what listens at %s does not speak SP REP as an agent does", req->path);
	case -EMSGSIZE:
		return th_fail(err, TH_E_PROTOCOL,
			"the agent at %s announced a reply of more than %zu bytes", req->path,
			reply_max);
	default:
		return th_fail(err, rc, "asking the agent at %s: %s", req->path, th_strerror(rc));
	}
}

int
sp_req_call(struct sp_req *req, const void *data, size_t bytes, size_t reply_max,
	int64_t deadline_ns, struct th_err *err, uint8_t **ret_reply, size_t *ret_bytes)
{
	uint32_t id = ++req->last_id | ID_BIT;
	int rc = 0;

	for (int try = 0; try < 2; try++) {
		rc = nng_req_exchange(
			req, id, data, bytes, reply_max, deadline_ns, err, ret_reply, ret_bytes);
		if (rc == 0)
			return 0;
		sp_req_close(req);
		if (rc != -ECONNABORTED)
			break;
	}
	return nng_req_explain(req, rc, reply_max, err);
}
