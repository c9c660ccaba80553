/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answers_fuzz - what libthc is told by whoever listens at the agent's sockets.
 *
 * The first byte chooses. The stream of a reply (SP): the input is what the other end says, whole.
 * A document: the parts of the input are replies in their order, to thc_list or thc_get_manifest.
 * A handle: messages of the descriptor socket and writes to the agent's shared file, while
 * operations run and answers are waited for. A worker must not end by any of it, nor wait, nor hand
 * its caller a text without an end.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "ipc/shm/doorbell.h"
#include "libthc/given.h"
#include "libthc/libthc_own.h"
#include "tests/fuzz/input.h"

#define REPLY_MAX 4096u
#define SECOND_NS INT64_C(1000000000)
#define PATIENCE_MS 100

int __wrap_dial_unix(const char *path, int type, int64_t deadline_ns);
int __real_sp_req_call(struct sp_req *req, const void *data, size_t bytes, size_t reply_max,
	int64_t deadline_ns, struct th_err *err, uint8_t **ret_reply, size_t *ret_bytes);
int __wrap_sp_req_call(struct sp_req *req, const void *data, size_t bytes, size_t reply_max,
	int64_t deadline_ns, struct th_err *err, uint8_t **ret_reply, size_t *ret_bytes);

static struct input replies;
static int others[2] = {-1, -1}; /* the ends of who says them */

/* ---- SP -------------------------------------------------------------------------------------- */

/* It has said all that it says, and reads nothing. */
int
__wrap_dial_unix(const char *path, int type, int64_t deadline_ns)
{
	struct input part = input_part(&replies);
	int ends[2], *other = others[0] < 0 ? &others[0] : &others[1];

	(void)path;
	(void)deadline_ns;
	TH_ASSERT(type == SOCK_STREAM && *other < 0);
	TH_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
	if (part.left > 0)
		TH_ASSERT(send(ends[1], part.at, part.left, MSG_NOSIGNAL) == (ssize_t)part.left);
	TH_ASSERT(shutdown(ends[1], SHUT_WR) == 0);
	*other = ends[1];
	return ends[0];
}

static void
try_stream(void)
{
	struct sp_req req;
	struct th_err err = {0};
	uint8_t *reply = NULL;
	size_t bytes = 0;

	TH_ASSERT(sp_req_init(&req, "/agent.ipc") == 0);
	req.last_id = 0;
	int rc = __real_sp_req_call(
		&req, "what", 4, REPLY_MAX, th_now_ns() + SECOND_NS, &err, &reply, &bytes);
	TH_ASSERT(rc <= 0 && (rc == 0 || (err.code == rc && err.text[0] != '\0' && req.fd < 0)));
	TH_ASSERT(rc != TH_E_TIMEOUT && (rc < 0 || bytes <= REPLY_MAX));
	free(reply);
	sp_req_close(&req);
	th_fd_close(&others[0]);
	th_fd_close(&others[1]);
}

/* ---- a handle -------------------------------------------------------------------------------- */

/* The next part; the numbers of requests count from 1. */
int
__wrap_sp_req_call(struct sp_req *req, const void *data, size_t bytes, size_t reply_max,
	int64_t deadline_ns, struct th_err *err, uint8_t **ret_reply, size_t *ret_bytes)
{
	struct input part = input_part(&replies);

	(void)req;
	(void)data;
	(void)bytes;
	(void)deadline_ns;
	if (part.left == 0)
		return th_fail(err, TH_E_AGENT_LOST, "nothing more is said");
	TH_ASSERT(part.left <= reply_max);
	*ret_reply = malloc(part.left);
	TH_ASSERT(*ret_reply != NULL);
	memcpy(*ret_reply, part.at, part.left);
	*ret_bytes = part.left;
	return 0;
}

static void *
map_file(size_t bytes)
{
	void *file = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	TH_ASSERT(file != MAP_FAILED);
	return file;
}

static struct thc_shard *
open_shard(int *ret_other, struct shm_a **ret_a)
{
	struct thc_shard *shard = shard_new();
	int ends[2];

	TH_ASSERT(shard != NULL);
	TH_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
	*ret_a = map_file(sizeof(**ret_a));
	shard->files = (struct segment_worker){map_file(sizeof(struct shm_w)), *ret_a};
	shard->sock = ends[0];
	shard->bell_agent = doorbell_new();
	shard->bell_worker = doorbell_new();
	shard->kick = doorbell_new();
	shard->model[0] = 'm';
	ring_worker_init(&shard->ring, shard->files.w, shard->files.a);
	*ret_other = ends[1];
	return shard;
}

static void
check_code(int rc)
{
	TH_ASSERT(rc <= 0 && (rc == 0 || errors_last()->text[0] != '\0'));
}

static void
try_documents(bool listing)
{
	struct shm_a *a;
	int other;
	struct thc_shard *shard = open_shard(&other, &a);
	struct thc_listing *list = NULL;
	struct thc_manifest *manifest = NULL;

	if (listing) {
		int rc = thc_list(shard, 0, PATIENCE_MS, &list);
		check_code(rc);
		for (uint32_t i = 0; rc == 0 && i < list->num_versions; i++)
			for (uint32_t r = 0; r < list->versions[i].num_replicas; r++)
				TH_ASSERT(list->versions[i].replicas[r].name[0] != '\0');
		thc_listing_free(list);
	} else {
		int rc = thc_get_manifest(shard, "latest", 0, PATIENCE_MS, &manifest);
		check_code(rc);
		for (size_t i = 0; rc == 0 && i < manifest->count; i++)
			TH_ASSERT(manifest->tensors[i].name[0] != '\0');
		thc_manifest_free(manifest);
	}
	pthread_mutex_lock(&shard->lock);
	shard_unref_unlock(shard);
	close(other);
}

/* ---- messages and the ring ------------------------------------------------------------------- */

#define OPS_MAX 8u
#define TOKENS 4u
#define ROUNDS_MAX 48u

static void
send_message(struct input *input, int other)
{
	union {
		struct fdmsg_memory_id id;
		struct fdmsg_refused refused;
	} body = {0};
	uint8_t what = input_byte(input);

	if (what < 0x80) {
		body.id.token = input_byte(input) % (TOKENS + 2);
		body.id.code = what & 1 ? TH_E_MEMORY_KIND : 0;
		body.id.id = input_byte(input);
		input_copy(input, body.id.path, sizeof(body.id.path));
		input_copy(input, body.id.text, what >> 2);
		(void)fdmsg_send(other, FDMSG_MEMORY_ID, &body.id, sizeof(body.id), NULL, 0);
	} else if (what < 0xf0) {
		body.refused.code = (int8_t)input_byte(input);
		input_copy(input, body.refused.text, what >> 2);
		(void)fdmsg_send(other, what & 1 ? FDMSG_CLOSED : FDMSG_REFUSED, &body.refused,
			sizeof(body.refused), NULL, 0);
	} else {
		struct input part = input_part(input);
		(void)send(other, part.at, part.left, MSG_NOSIGNAL);
	}
}

/* As an agent completes one, or nearly. */
static void
complete(struct input *input, struct ring_agent *agent)
{
	struct shm_completion completion = {.code = (int8_t)input_byte(input)};
	struct shm_slot slot = {.state = SHM_SLOT_DONE};
	uint8_t what = input_byte(input);

	completion.slot = what % OPS_MAX;
	completion.op_seq = slot.op_seq = input_byte(input);
	slot.code = what & 0x80 ? completion.code + 1 : completion.code;
	input_copy(input, slot.sentence, what & 0x40 ? sizeof(slot.sentence) : 4);
	memset(slot.source, 'x', what & 0x20 ? sizeof(slot.source) : 1);
	ring_slot_write(agent, completion.slot, &slot);
	(void)!ring_complete(agent, &completion);
}

static void
look_at(struct thc_op *op)
{
	if (!op->done)
		return;
	TH_ASSERT(memchr(op->result.source, 0, sizeof(op->result.source)) != NULL);
	TH_ASSERT(memchr(op->result.transport, 0, sizeof(op->result.transport)) != NULL);
	TH_ASSERT(op_outcome(op) <= 0);
}

static void
try_handle(struct input *input)
{
	struct shm_a *a;
	int other;
	struct thc_shard *shard = open_shard(&other, &a);
	struct thc_op *ops[OPS_MAX] = {0};
	struct ring_agent agent;
	struct sender sender;
	uint32_t num_ops = 0;

	ring_agent_init(&agent, shard->files.w, a);
	pthread_mutex_lock(&shard->lock);
	sender_begin(&sender, shard, th_now_ns() + SECOND_NS);
	sender.sent = sender.wanted = TOKENS;
	shard->last_token = TOKENS;
	shard->sent_room = 2 * FDMSG_AHEAD;
	shard->sent = calloc(shard->sent_room, sizeof(*shard->sent));
	for (uint32_t i = 0; i < ROUNDS_MAX && input->left > 0; i++) {
		uint8_t what = input_byte(input), more = input_byte(input);
		if (what < 0x30) {
			uint64_t word = input_word(input);
			memcpy((uint8_t *)a + ((size_t)what << 8 | more) * 8 % sizeof(*a), &word,
				sizeof(word));
		} else if (what < 0x60 && num_ops < OPS_MAX) {
			const struct op_request request = {
				.kind = (uint16_t)(SHM_PUBLISH + more % SHM_WATCH),
				.deadline_ns = INT64_MAX};
			num_ops += op_submit(shard, &request, &ops[num_ops]) == 0;
		} else if (what < 0x90) {
			complete(input, &agent);
		} else if (what < 0xc0) {
			send_message(input, other);
		} else if (what < 0xd0) {
			if (shard->close == CLOSE_NOT_ASKED)
				shard_close_enter(shard, CLOSE_ASKED, "thc_close");
		} else {
			shard_look(shard);
			shard_collect(shard);
		}
	}
	shard_look(shard);
	shard->sender = NULL;
	op_end_all(shard);
	for (uint32_t i = 0; i < num_ops; i++) {
		look_at(ops[i]);
		op_detach(ops[i]);
	}
	shard_unref_unlock(shard);
	close(other);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	replies = (struct input){data, size};
	uint8_t choice = input_byte(&replies);

	log_set_level(LOG_LEVEL_ERROR);
	if (choice % 4 == 0)
		try_stream();
	else if (choice % 4 == 3)
		try_handle(&replies);
	else
		try_documents(choice % 4 == 1);
	return 0;
}
