/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doc_call - one question to the agent over its nng endpoint, on the caller's thread.
 *
 * Documents of one handle go one after the other over one connection. The caller's operations go on
 * beside them: the handle's lock is not held during the exchange.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/proto/tensorhub.pb-c.h"
#include "libthc/libthc_own.h"

#define MESSAGE_BYTES_MAX (1u << 20) /* of both sides, everywhere */

/* One exchange of a handle at a time; then it is this thread's turn, and ends with end_turn. */
static int
await_turn(struct thc_shard *shard, int64_t until_ns)
{
	while (shard->asking) {
		if (shard_lost(shard))
			return shard_lost_error(shard);
		if (shard->life != SHARD_OPEN)
			return shim_fail(THC_E_CANCELLED, "another thread closes this handle");
		if (deadline_left(until_ns) == 0)
			return shim_fail(THC_E_TIMEOUT, "other threads of this handle kept the "
							"agent busy until the deadline");
		shard_sleep(shard, until_ns);
	}
	shard->asking = true;
	return 0;
}

static void
end_turn(struct thc_shard *shard)
{
	shard->asking = false;
	shard_wake(shard);
}

static int
doc_call_judge(const Tensorhub__V1__Reply *reply, uint64_t request_no, int body_case)
{
	if (reply == NULL)
		return shim_fail(THC_E_PROTOCOL, "the agent's answer is no message");
	if (reply->request_no != request_no)
		return shim_fail(THC_E_PROTOCOL, "the agent answered another request");
	if (reply->code != 0)
		return errors_from_agent(reply->code, reply->text);
	if (body_case != 0 && (int)reply->body_case != body_case)
		return shim_fail(THC_E_PROTOCOL, "the agent's answer lacks what was asked for");
	return 0;
}

static int
doc_call_pack(struct thc_shard *shard, Tensorhub__V1__Request *request, int64_t until_ns,
	uint8_t **ret_data, size_t *ret_bytes)
{
	request->request_no = ++shard->next_request_no;
	request->session = shard->session;
	request->secret.data = shard->secret;
	request->secret.len = sizeof(shard->secret);
	/* Before this side stops waiting, so that the agent's own sentence arrives; 0 is none. */
	request->deadline_ns =
		until_ns == INT64_MAX ? 0 : th_max_i64(deadline_left(until_ns) - GRACE_NS / 2, 1);
	size_t bytes = tensorhub__v1__request__get_packed_size(request);
	if (bytes > MESSAGE_BYTES_MAX)
		return shim_fail(THC_E_LIMIT, "a request of %zu bytes; at most %u are allowed",
			bytes, MESSAGE_BYTES_MAX);
	uint8_t *data = malloc(bytes > 0 ? bytes : 1);
	if (data == NULL)
		return shim_fail(-ENOMEM, "out of memory for a request of %zu bytes", bytes);
	*ret_bytes = tensorhub__v1__request__pack(request, data);
	*ret_data = data;
	return 0;
}

int
documents_call(struct thc_shard *shard, Tensorhub__V1__Request *request, int body_case,
	int64_t deadline_ns, Tensorhub__V1__Reply **ret_reply)
{
	int64_t until_ns = deadline_with_grace(deadline_ns);
	uint8_t *data = NULL, *answer = NULL;
	size_t bytes = 0, answer_bytes = 0;
	int rc = await_turn(shard, until_ns);

	if (rc < 0)
		return rc;
	rc = doc_call_pack(shard, request, until_ns, &data, &bytes);
	if (rc < 0) {
		end_turn(shard);
		return rc;
	}
	uint64_t request_no = request->request_no;
	pthread_mutex_unlock(&shard->lock);
	rc = sp_req_call(&shard->request, data, bytes, MESSAGE_BYTES_MAX, until_ns, errors_last(),
		&answer, &answer_bytes);
	explicit_bzero(data, bytes);
	free(data);
	pthread_mutex_lock(&shard->lock);
	end_turn(shard);
	if (rc == THC_E_NO_AGENT || rc == THC_E_AGENT_LOST) {
		shard_look(shard);
		if (shard_lost(shard))
			rc = shard_lost_error(shard);
	}
	if (rc < 0)
		return rc;
	Tensorhub__V1__Reply *reply = tensorhub__v1__reply__unpack(NULL, answer_bytes, answer);
	free(answer);
	rc = doc_call_judge(reply, request_no, body_case);
	if (rc < 0) {
		documents_free(reply);
		return rc;
	}
	*ret_reply = reply;
	return 0;
}

void
documents_free(Tensorhub__V1__Reply *reply)
{
	if (reply != NULL)
		tensorhub__v1__reply__free_unpacked(reply, NULL);
}
