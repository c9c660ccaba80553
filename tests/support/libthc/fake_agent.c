/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_agent - see fake_agent.h. A step that must not fail here ends the process: the test then
 * shows as crashed.
 */
#include "tests/support/libthc/fake_agent.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/proto/manifest.h"
#include "ipc/shm/doorbell.h"
#include "ipc/sock/listener.h"
#include "ipc/sock/peer.h"

static const uint8_t sp_rep[8] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};

/* A rude agent sends what a terminal obeys, and no end. */
static void
say(const struct fake_agent *agent, char *ret_text, size_t bytes, const char *text)
{
	(void)snprintf(ret_text, bytes, "%s", text);
	for (size_t i = 0; agent->rude && i < bytes; i++)
		ret_text[i] = "\x1b[2J"[i % 4];
}

/* ---- rings --------------------------------------------------------------------------------- */

static void
complete(struct fake_agent *agent, const struct shm_submission *submission, int code,
	const char *text)
{
	struct shm_slot slot = {.state = SHM_SLOT_DONE,
		.op_seq = submission->op_seq,
		.code = code,
		.updated = 1,
		.lineage = 3,
		.version = strtoull(submission->version_spec, NULL, 10),
		.bytes_moved = 1000,
		.bytes_prefetched = 700,
		.group_op_seq = 42};
	struct shm_completion completion = {
		.op_seq = submission->op_seq, .slot = submission->slot, .code = code};

	say(agent, slot.transport, sizeof(slot.transport), "tcp");
	say(agent, slot.source, sizeof(slot.source), "trainer");
	(void)snprintf(slot.sentence, sizeof(slot.sentence), "%s", text != NULL ? text : "");
	if (agent->operation == FAKE_BAD_OP_SEQ)
		completion.op_seq++;
	if (agent->operation == FAKE_NO_RESULT)
		slot.state = SHM_SLOT_RUNNING;
	ring_slot_progress(&agent->ring, submission->slot, 500, 1000);
	ring_slot_write(&agent->ring, submission->slot, &slot);
	if (agent->operation == FAKE_BAD_INDEX)
		atomic_store(&agent->files.a->completed, 1000);
	else
		TH_ASSERT(ring_complete(&agent->ring, &completion) == 0);
	TH_ASSERT(doorbell_timer_ring(agent->bell_worker, &agent->files.w->sleeping) >= 0);
}

void
fake_agent_release(struct fake_agent *agent, int code, const char *text)
{
	for (uint32_t slot = 0; slot < SHM_CAPACITY; slot++) {
		if (!agent->held[slot])
			continue;
		agent->held[slot] = false;
		complete(agent, &agent->held_submission[slot], code, text);
	}
}

void
fake_agent_line(struct fake_agent *agent)
{
	agent->line.heartbeat_ns = (uint64_t)th_now_ns();
	ring_line_write(&agent->ring, &agent->line);
	TH_ASSERT(doorbell_timer_signal(agent->bell_worker) == 0);
}

void
fake_agent_change(struct fake_agent *agent)
{
	agent->generation++;
	for (uint32_t slot = 0; slot < SHM_CAPACITY; slot++) {
		if (!agent->held[slot] || agent->held_submission[slot].kind != SHM_WATCH)
			continue;
		agent->held[slot] = false;
		complete(agent, &agent->held_submission[slot], 0, NULL);
	}
}

void
fake_agent_end(struct fake_agent *agent, int code, const char *text)
{
	struct fdmsg_refused refused = {.code = code};
	snprintf(refused.text, sizeof(refused.text), "%s", text);
	TH_ASSERT(fdmsg_send(agent->sock, FDMSG_REFUSED, &refused, sizeof(refused), NULL, 0) == 0);
	agent->line.events[SHM_EV_CONTRACT]++;
	fake_agent_line(agent);
}

void
fake_agent_line_half(struct fake_agent *agent)
{
	(void)atomic_fetch_or(&agent->files.a->line.sequence, 1u);
}

/* An operation that is held shows that it runs, and what it has done. */
static void
hold(struct fake_agent *agent, const struct shm_submission *submission)
{
	const struct shm_slot slot = {.state = SHM_SLOT_RUNNING, .op_seq = submission->op_seq};

	agent->held[submission->slot] = true;
	agent->held_submission[submission->slot] = *submission;
	ring_slot_progress(&agent->ring, submission->slot, 0, 0);
	ring_slot_write(&agent->ring, submission->slot, &slot);
	ring_slot_progress(&agent->ring, submission->slot, 250, 1000);
}

static bool
is_held(const struct fake_agent *agent, const struct shm_submission *submission)
{
	uint64_t number = strtoull(submission->version_spec, NULL, 10);

	if (agent->operation == FAKE_HOLD_ODD)
		return submission->kind == SHM_WATCH ? number == agent->generation
						     : number % 2 == 1;
	return agent->operation == FAKE_HOLD;
}

static void
take_one(struct fake_agent *agent, const struct shm_submission *submission)
{
	if (submission->kind == SHM_CANCEL) {
		agent->cancels++;
		if (!agent->ignore_cancel && agent->held[submission->slot] &&
			agent->held_submission[submission->slot].op_seq == submission->op_seq) {
			agent->held[submission->slot] = false;
			complete(agent, &agent->held_submission[submission->slot], -5021,
				"cancelled as asked");
		}
		return;
	}
	agent->submissions++;
	agent->submission = *submission;
	if (is_held(agent, submission))
		hold(agent, submission);
	else
		complete(agent, submission, agent->operation_code, agent->operation_text);
}

static void
take_all(struct fake_agent *agent)
{
	struct shm_submission submission;

	if (agent->sock < 0)
		return;
	TH_ASSERT(doorbell_drain(agent->bell_agent) >= 0);
	if (agent->operation == FAKE_DEAF)
		return;
	doorbell_arm(&agent->files.a->sleeping);
	while (ring_take(&agent->ring, &submission) == 1)
		take_one(agent, &submission);
}

/* ---- descriptor socket --------------------------------------------------------------------- */

void
fake_agent_hang_up(struct fake_agent *agent)
{
	if (agent->sock < 0)
		return;
	th_fd_close(&agent->sock);
	th_fd_close(&agent->bell_agent);
	th_fd_close(&agent->bell_worker);
	th_fd_close(&agent->lifeline[0]);
	th_fd_close(&agent->lifeline[1]);
	segment_agent_free(&agent->files);
	memset(agent->held, 0, sizeof(agent->held));
	agent->hang_ups++;
}

static void
refuse(struct fake_agent *agent, enum fdmsg_kind kind, int code, const char *text)
{
	struct fdmsg_refused refused = {.code = code};

	(void)snprintf(refused.text, sizeof(refused.text), "%s", text != NULL ? text : "");
	(void)fdmsg_send(agent->sock, kind, &refused, sizeof(refused), NULL, 0);
}

void
fake_agent_closed(struct fake_agent *agent, int code)
{
	refuse(agent, FDMSG_CLOSED, code, code != 0 ? "not closed" : "");
}

static void
on_hello(struct fake_agent *agent)
{
	const struct fdmsg_welcome welcome = {.protocol = agent->protocol,
		.tensors_max = agent->tensors_max,
		.features = agent->no_gpus ? 0 : FDMSG_FEATURES,
		.memory_objects_max = 1000,
		.agent_version = "fake",
		.node = "here"};

	switch (agent->hello) {
	case FAKE_WELCOME:
		(void)fdmsg_send(agent->sock, FDMSG_WELCOME, &welcome, sizeof(welcome), NULL, 0);
		break;
	case FAKE_REFUSE_HELLO:
		refuse(agent, FDMSG_REFUSED, agent->refuse_code, agent->refuse_text);
		break;
	case FAKE_GARBAGE_HELLO:
		(void)send(agent->sock, "garbage", 7, MSG_NOSIGNAL);
		break;
	case FAKE_HANG_UP_HELLO:
		fake_agent_hang_up(agent);
		break;
	case FAKE_SILENT_HELLO:
	case FAKE_REFUSE_CONNECT:
	default:
		break;
	}
}

static void
on_open(struct fake_agent *agent)
{
	const struct fdmsg_session session = {
		.session = 7, .secret = "0123456789abcde", .next_op = 1};
	const struct fdmsg_forget forget = {.id = 1};
	int pidfd = agent->pidfd >= 0 ? dup(agent->pidfd) : peer_own_pidfd();

	memcpy(&agent->opened, agent->message->body, sizeof(agent->opened));
	if (agent->open == FAKE_REFUSE_OPEN) {
		refuse(agent, FDMSG_REFUSED, agent->refuse_code, agent->refuse_text);
	} else if (agent->open == FAKE_HANG_UP_OPEN) {
		fake_agent_hang_up(agent);
	} else if (agent->open == FAKE_WRONG_MESSAGE) {
		(void)fdmsg_send(agent->sock, FDMSG_FORGET, &forget, sizeof(forget), NULL, 0);
	} else {
		bool bad = agent->open == FAKE_BAD_FILES;
		const int fds[6] = {bad ? agent->files.fd_a : agent->files.fd_w, agent->files.fd_a,
			agent->bell_agent, agent->bell_worker, pidfd, agent->lifeline[0]};
		agent->sessions++;
		TH_ASSERT(fdmsg_send(agent->sock, FDMSG_SESSION, &session, sizeof(session), fds,
				  agent->no_gpus ? 5 : 6) == 0);
		th_fd_close(&agent->lifeline[0]);
	}
	th_fd_close(&pidfd);
}

static void
answer_memory(struct fake_agent *agent, uint32_t token, int code, const char *path)
{
	struct fdmsg_memory_id answer = {.token = token, .code = code};

	if (code == 0)
		answer.id = ++agent->memories;
	say(agent, answer.path, sizeof(answer.path), path);
	say(agent, answer.text, sizeof(answer.text), code != 0 ? "not taken here" : "");
	(void)fdmsg_send(agent->sock, FDMSG_MEMORY_ID, &answer, sizeof(answer), NULL, 0);
}

static void
on_dmabuf(struct fake_agent *agent, const struct fdmsg_memory *message)
{
	agent->dmabufs++;
	agent->dmabuf = *message;
	th_fd_close(&agent->dmabuf_fd);
	agent->dmabuf_fd = th_fd_move(&agent->message->fds[0]);
	answer_memory(agent, message->token, agent->dmabuf_code, "dma-buf");
	agent->freeze = agent->dmabufs == agent->last_dmabuf;
}

static void
on_gpu(struct fake_agent *agent)
{
	struct fake_piece piece = {.has_fd = agent->message->fds[0] >= 0};
	int code = agent->gpus >= agent->gpu_good ? agent->gpu_code : 0;

	memcpy(&piece.message, agent->message->body, sizeof(piece.message));
	answer_memory(agent, piece.message.token, code, "cuda-ipc");
	piece.id = code == 0 ? agent->memories : 0;
	for (unsigned i = 0; i < agent->gpus && i < FAKE_PIECES; i++)
		if (agent->pieces[i].id != 0 && !agent->pieces[i].forgotten &&
			agent->pieces[i].message.base == piece.message.base)
			agent->overlaps++;
	if (agent->gpus < FAKE_PIECES)
		agent->pieces[agent->gpus] = piece;
	agent->gpus++;
}

static void
on_forget(struct fake_agent *agent)
{
	struct fdmsg_forget message;

	memcpy(&message, agent->message->body, sizeof(message));
	for (unsigned i = 0; i < agent->gpus && i < FAKE_PIECES; i++)
		if (agent->pieces[i].id == message.id)
			agent->pieces[i].forgotten = true;
	agent->forgets++;
}

static int
lent_file(const struct fake_agent *agent)
{
	int fd = memfd_create("fake-lent", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	TH_ASSERT(fd >= 0);
	for (uint64_t i = 0; i < agent->lent_bytes; i++) {
		const uint8_t byte = (uint8_t)(i / 4);
		TH_ASSERT(pwrite(fd, &byte, 1, (off_t)i) == 1);
	}
	TH_ASSERT(fcntl(fd, F_ADD_SEALS, agent->lent_seals) == 0);
	return fd;
}

static void
on_borrow(struct fake_agent *agent)
{
	struct fdmsg_lent lent = {.code = agent->borrow_code, .bytes = agent->lent_bytes};
	int lease[2], fds[FDMSG_LENT_FDS];
	bool bare = agent->lent_bare || agent->borrow_code != 0;

	agent->borrows++;
	memcpy(&agent->borrowed, agent->message->body, sizeof(agent->borrowed));
	if (agent->borrow_silent)
		return;
	lent.token = agent->borrowed.token;
	say(agent, lent.text, sizeof(lent.text), lent.code != 0 ? "refused as told" : "");
	TH_ASSERT(pipe2(lease, O_CLOEXEC | O_NONBLOCK) == 0);
	th_fd_close(&agent->lease);
	agent->lease = lease[1];
	fds[0] = lent_file(agent);
	fds[1] = lease[0];
	(void)fdmsg_send(
		agent->sock, FDMSG_LENT, &lent, sizeof(lent), fds, bare ? 0 : FDMSG_LENT_FDS);
	th_fd_close(&fds[0]);
	th_fd_close(&fds[1]);
}

static void
on_memory(struct fake_agent *agent)
{
	struct fdmsg_memory message;

	memcpy(&message, agent->message->body, sizeof(message));
	if (message.kind == FDMSG_DMABUF) {
		on_dmabuf(agent, &message);
		return;
	}
	agent->memory = message;
	th_fd_close(&agent->memory_fd);
	agent->memory_fd = th_fd_move(&agent->message->fds[0]);
	bool copied = message.kind == FDMSG_FILE || message.kind == FDMSG_PROCESS;
	answer_memory(agent, message.token + (agent->unexpected_message ? 1u : 0u),
		agent->memory_code, copied ? "copy" : "direct");
}

static void
on_message(struct fake_agent *agent)
{
	int rc = fdmsg_recv(agent->sock, agent->message);

	if (rc == -EAGAIN)
		return;
	if (rc <= 0) {
		fake_agent_hang_up(agent);
		return;
	}
	switch ((enum fdmsg_kind)agent->message->head.kind) {
	case FDMSG_HELLO:
		on_hello(agent);
		break;
	case FDMSG_OPEN:
		on_open(agent);
		break;
	case FDMSG_MEMORY:
		on_memory(agent);
		break;
	case FDMSG_GPU:
		on_gpu(agent);
		break;
	case FDMSG_BORROW:
		on_borrow(agent);
		break;
	case FDMSG_FORGET:
		on_forget(agent);
		break;
	case FDMSG_CLOSE:
		agent->closes++;
		if (!agent->close_silent)
			fake_agent_closed(agent, agent->close_code);
		break;
	case FDMSG_WELCOME:
	case FDMSG_REFUSED:
	case FDMSG_SESSION:
	case FDMSG_MEMORY_ID:
	case FDMSG_CLOSED:
	case FDMSG_LENT:
	default:
		fake_agent_hang_up(agent);
		break;
	}
	fdmsg_close_fds(agent->message);
}

static void
on_connect(struct fake_agent *agent)
{
	int sock = listener_accept(agent->fds_listener);

	if (sock < 0)
		return;
	fake_agent_hang_up(agent);
	agent->sock = sock;
	if (agent->hello == FAKE_REFUSE_CONNECT) {
		refuse(agent, FDMSG_REFUSED, agent->refuse_code, agent->refuse_text);
		fake_agent_hang_up(agent);
		return;
	}
	agent->bell_agent = doorbell_new();
	agent->bell_worker = doorbell_timer_new();
	TH_ASSERT(agent->bell_agent >= 0 && agent->bell_worker >= 0);
	TH_ASSERT(pipe2(agent->lifeline, O_CLOEXEC) == 0);
	TH_ASSERT(segment_agent_new(&agent->files) == 0);
	ring_agent_init(&agent->ring, agent->files.w, agent->files.a);
	memset(&agent->line, 0, sizeof(agent->line));
	agent->line.held_version = UINT64_MAX;
	agent->line.ready_version = UINT64_MAX;
	agent->line.safe_to_mutate = 1;
	agent->line.heartbeat_ns = (uint64_t)th_now_ns();
	ring_line_write(&agent->ring, &agent->line);
	doorbell_arm(&agent->files.a->sleeping);
}

/* ---- documents ----------------------------------------------------------------------------- */

static bool
read_all(int sock, void *ret_bytes, size_t count)
{
	uint8_t *at = ret_bytes;

	while (count > 0) {
		struct pollfd poll_fd = {.fd = sock, .events = POLLIN};
		ssize_t got = poll(&poll_fd, 1, 5000) == 1 ? recv(sock, at, count, 0) : 0;
		if (got <= 0)
			return false;
		at += got;
		count -= (size_t)got;
	}
	return true;
}

static void
on_register(struct fake_agent *agent, const Tensorhub__V1__RegisterTensors *part,
	Tensorhub__V1__Reply *reply, Tensorhub__V1__RegisterTensorsReply *body)
{
	static char not_opened[] = "no GPU process opens it";

	if (part->part == 0)
		agent->parts_bytes = 0;
	agent->parts = realloc(agent->parts, agent->parts_bytes + part->data.len + 1);
	TH_ASSERT(agent->parts != NULL);
	memcpy(agent->parts + agent->parts_bytes, part->data.data, part->data.len);
	agent->parts_bytes += part->data.len;
	if (part->part + 1 < part->num_parts)
		return;
	agent->registers++;
	Tensorhub__V1__TensorRows *rows =
		tensorhub__v1__tensor_rows__unpack(NULL, agent->parts_bytes, agent->parts);
	TH_ASSERT(rows != NULL);
	agent->rows = rows->n_name;
	agent->rows_bytes = 0;
	agent->first_place = rows->n_memory_offset > 0 ? rows->memory_offset[0] : 0;
	for (size_t i = 0; i < rows->n_bytes; i++) {
		agent->rows_bytes += rows->bytes[i];
		if (i >= FAKE_PIECES)
			continue;
		agent->places[i].id = rows->memory_id[i];
		agent->places[i].offset = rows->memory_offset[i];
		agent->places[i].bytes = rows->bytes[i];
	}
	body->bytes = agent->rows_bytes;
	tensorhub__v1__tensor_rows__free_unpacked(rows, NULL);
	if (agent->not_opened > 0) {
		agent->not_opened--;
		reply->code = TH_E_MEMORY_KIND;
		reply->text = not_opened;
		return;
	}
	reply->body_case = TENSORHUB__V1__REPLY__BODY_REGISTER_TENSORS;
	reply->register_tensors = body;
}

/* A listing of one version, whose number is the generation, with one replica. */
static size_t
pack_listing(struct fake_agent *agent, Tensorhub__V1__Reply *reply, uint8_t *ret_data)
{
	char name[8], datacenter[] = "default";
	Tensorhub__V1__Listing listing = TENSORHUB__V1__LISTING__INIT;
	Tensorhub__V1__VersionInfo version = TENSORHUB__V1__VERSION_INFO__INIT, *versions[1];
	Tensorhub__V1__Version number = TENSORHUB__V1__VERSION__INIT;
	Tensorhub__V1__ReplicaInfo replica, *replicas[1];

	tensorhub__v1__replica_info__init(&replica);
	say(agent, name, sizeof(name), "trainer");
	name[7] = '\0';
	replica.name = name;
	replica.datacenter = datacenter;
	replica.num_shards = 2;
	replica.flags = 1;
	replica.chunks_done = 1;
	replica.chunks_total = 4;
	replicas[0] = &replica;
	versions[0] = &version;
	number.lineage = 3;
	number.version = agent->generation;
	version.version = &number;
	version.n_replicas = 1;
	version.replicas = replicas;
	listing.generation = agent->generation;
	listing.n_versions = 1;
	listing.versions = versions;
	reply->body_case = TENSORHUB__V1__REPLY__BODY_LIST;
	reply->list = &listing;
	return tensorhub__v1__reply__pack(reply, ret_data);
}

static void
set_hash(Tensorhub__V1__Hash *hash, const uint8_t *data, size_t bytes)
{
	struct th_hash key = {0};

	if (data != NULL)
		key = manifest_key(data, bytes);
	tensorhub__v1__hash__init(hash);
	hash->lo = key.lo;
	hash->hi = key.hi;
}

static size_t
pack_resolved(struct fake_agent *agent, Tensorhub__V1__Reply *reply, uint8_t *ret_data)
{
	Tensorhub__V1__ResolveReply body = TENSORHUB__V1__RESOLVE_REPLY__INIT;
	Tensorhub__V1__Version version = TENSORHUB__V1__VERSION__INIT;
	Tensorhub__V1__Hash manifest, attributes;

	set_hash(&manifest, agent->manifest, agent->manifest_bytes);
	set_hash(&attributes, agent->attributes, agent->attributes_bytes);
	version.lineage = 3;
	version.version = 17;
	body.version = &version;
	body.num_shards = 2;
	body.manifest = &manifest;
	body.attributes = &attributes;
	reply->body_case = TENSORHUB__V1__REPLY__BODY_RESOLVE;
	reply->resolve = &body;
	return tensorhub__v1__reply__pack(reply, ret_data);
}

static size_t
pack_blob(struct fake_agent *agent, const Tensorhub__V1__BlobGet *get, Tensorhub__V1__Reply *reply,
	uint8_t *ret_data)
{
	Tensorhub__V1__BlobPart part = TENSORHUB__V1__BLOB_PART__INIT;
	Tensorhub__V1__Hash hash;
	uint8_t copy[4096];

	set_hash(&hash, agent->manifest, agent->manifest_bytes);
	bool rows = hash.lo == get->key->lo && hash.hi == get->key->hi;
	const uint8_t *data = rows ? agent->manifest : agent->attributes;
	size_t bytes = rows ? agent->manifest_bytes : agent->attributes_bytes;
	size_t count = th_min_size(bytes - get->offset, agent->blob_part_bytes);
	TH_ASSERT(get->offset < bytes && count <= sizeof(copy) / 2);
	memcpy(copy, data + get->offset, count);
	if (agent->blob_damaged)
		copy[0] ^= 1;
	part.key = &hash;
	part.total_bytes = bytes;
	part.offset = get->offset;
	part.data.data = copy;
	part.data.len = count;
	reply->body_case = TENSORHUB__V1__REPLY__BODY_MANIFEST_GET;
	reply->manifest_get = &part;
	return tensorhub__v1__reply__pack(reply, ret_data);
}

static size_t
answer(struct fake_agent *agent, const Tensorhub__V1__Request *request, uint8_t *ret_data)
{
	char text[] = "refused as told", missing[] = "shard 1 has not called it";
	Tensorhub__V1__Reply reply;
	Tensorhub__V1__WaitsReply waits;
	Tensorhub__V1__RegisterTensorsReply registered =
		TENSORHUB__V1__REGISTER_TENSORS_REPLY__INIT;

	tensorhub__v1__reply__init(&reply);
	reply.request_no = request->request_no;
	agent->requests++;
	tensorhub__v1__waits_reply__init(&waits);
	waits.text = missing;
	if (agent->request_code != 0) {
		reply.code = agent->request_code;
		reply.text = text;
	} else if (request->body_case == TENSORHUB__V1__REQUEST__BODY_REGISTER_TENSORS) {
		on_register(agent, request->register_tensors, &reply, &registered);
	} else if (request->body_case == TENSORHUB__V1__REQUEST__BODY_UNREGISTER_TENSORS) {
		agent->unregisters++;
	} else if (request->body_case == TENSORHUB__V1__REQUEST__BODY_SET_ATTRIBUTES) {
		agent->attribute_parts++;
	} else if (request->body_case == TENSORHUB__V1__REQUEST__BODY_LIST) {
		agent->list_op_seq = request->list->op_seq;
		return pack_listing(agent, &reply, ret_data);
	} else if (request->body_case == TENSORHUB__V1__REQUEST__BODY_MANIFEST_GET) {
		return pack_blob(agent, request->manifest_get, &reply, ret_data);
	} else if (request->body_case == TENSORHUB__V1__REQUEST__BODY_RESOLVE) {
		if (agent->manifest != NULL)
			return pack_resolved(agent, &reply, ret_data);
		reply.code = TH_E_NOT_AVAILABLE;
		reply.text = text;
	} else if (request->body_case == TENSORHUB__V1__REQUEST__BODY_WAITS) {
		reply.body_case = TENSORHUB__V1__REPLY__BODY_WAITS;
		reply.waits = &waits;
	}
	return tensorhub__v1__reply__pack(&reply, ret_data);
}

/* One request of a connection; the handshake is done at accept. False: it is over. */
static bool
on_request(struct fake_agent *agent, int sock)
{
	uint8_t frame[13], data[4096];
	uint64_t length;

	if (!read_all(sock, frame, sizeof(frame)))
		return false;
	memcpy(&length, frame + 1, sizeof(length));
	length = be64toh(length) - 4;
	TH_ASSERT(length <= 1u << 20);
	uint8_t *packed = malloc(length + 1);
	TH_ASSERT(packed != NULL && read_all(sock, packed, length));
	Tensorhub__V1__Request *request = tensorhub__v1__request__unpack(NULL, length, packed);
	free(packed);
	TH_ASSERT(request != NULL && request->session == 7 && request->secret.len == 16);
	size_t bytes = agent->request_garbage ? 3 : answer(agent, request, data);
	if (agent->request_garbage)
		memset(data, 0xff, sizeof(data));
	tensorhub__v1__request__free_unpacked(request, NULL);
	if (agent->request_silent)
		return true;
	if (agent->request_hang_up)
		return false;
	length = htobe64(4 + bytes);
	memcpy(frame + 1, &length, sizeof(length));
	return send(sock, frame, sizeof(frame), MSG_NOSIGNAL | MSG_MORE) == 13 &&
	       send(sock, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

static void
on_dial(struct fake_agent *agent)
{
	uint8_t hello[8];
	int sock = listener_accept(agent->ipc_listener);

	if (sock < 0)
		return;
	for (int i = 0; i < FAKE_CONNECTIONS; i++) {
		if (agent->connections[i] >= 0)
			continue;
		if (!read_all(sock, hello, sizeof(hello)) ||
			send(sock, sp_rep, sizeof(sp_rep), MSG_NOSIGNAL) != 8)
			break;
		agent->connections[i] = sock;
		return;
	}
	th_fd_close(&sock);
}

/* ---- the thread ---------------------------------------------------------------------------- */

#define FIXED 5

static void
step(struct fake_agent *agent, const struct pollfd set[FIXED + FAKE_CONNECTIONS])
{
	if (set[0].revents != 0)
		(void)doorbell_drain(agent->wake);
	if (set[1].revents != 0)
		on_connect(agent);
	if (set[2].revents != 0)
		on_dial(agent);
	if (set[3].revents != 0 && set[3].fd == agent->sock)
		on_message(agent);
	take_all(agent);
	for (int i = 0; i < FAKE_CONNECTIONS; i++)
		if (set[FIXED + i].revents != 0 && set[FIXED + i].fd == agent->connections[i] &&
			!on_request(agent, agent->connections[i]))
			th_fd_close(&agent->connections[i]);
}

static void *
agent_main(void *arg)
{
	struct fake_agent *agent = arg;
	struct pollfd set[FIXED + FAKE_CONNECTIONS];

	pthread_mutex_lock(&agent->lock);
	while (!agent->stop) {
		if (agent->freeze) {
			agent->frozen = true;
			pthread_cond_broadcast(&agent->changed);
			pthread_cond_wait(&agent->changed, &agent->lock);
			continue;
		}
		agent->frozen = false;
		set[0] = (struct pollfd){.fd = agent->wake, .events = POLLIN};
		set[1] = (struct pollfd){.fd = agent->fds_listener, .events = POLLIN};
		set[2] = (struct pollfd){.fd = agent->ipc_listener, .events = POLLIN};
		set[3] = (struct pollfd){.fd = agent->sock, .events = POLLIN};
		set[4] = (struct pollfd){.fd = agent->bell_agent, .events = POLLIN};
		for (int i = 0; i < FAKE_CONNECTIONS; i++)
			set[FIXED + i] =
				(struct pollfd){.fd = agent->connections[i], .events = POLLIN};
		pthread_mutex_unlock(&agent->lock);
		(void)poll(set, FIXED + FAKE_CONNECTIONS, -1);
		pthread_mutex_lock(&agent->lock);
		if (!agent->freeze)
			step(agent, set);
		pthread_cond_broadcast(&agent->changed);
	}
	pthread_mutex_unlock(&agent->lock);
	return NULL;
}

void
fake_agent_start(struct fake_agent *agent)
{
	char path[128];

	memset(agent, 0, sizeof(*agent));
	strcpy(agent->dir, "/tmp/thc-agent-XXXXXX");
	TH_ASSERT(mkdtemp(agent->dir) != NULL);
	agent->protocol = FDMSG_PROTOCOL_MAX;
	agent->tensors_max = 131072;
	agent->generation = 5;
	agent->pidfd = -1;
	agent->memory_fd = -1;
	agent->lease = -1;
	agent->dmabuf_fd = -1;
	agent->sock = agent->bell_agent = agent->bell_worker = -1;
	agent->lifeline[0] = agent->lifeline[1] = -1;
	agent->gpu_good = UINT_MAX;
	agent->files.fd_w = agent->files.fd_a = -1;
	for (int i = 0; i < FAKE_CONNECTIONS; i++)
		agent->connections[i] = -1;
	agent->message = calloc(1, sizeof(*agent->message));
	agent->wake = doorbell_new();
	(void)snprintf(path, sizeof(path), "%s/agent.fds", agent->dir);
	agent->fds_listener = listener_open(path, SOCK_SEQPACKET, (gid_t)-1, NULL);
	(void)snprintf(path, sizeof(path), "%s/agent.ipc", agent->dir);
	agent->ipc_listener = listener_open(path, SOCK_STREAM, (gid_t)-1, NULL);
	TH_ASSERT(agent->message != NULL && agent->wake >= 0);
	TH_ASSERT(agent->fds_listener >= 0 && agent->ipc_listener >= 0);
	(void)pthread_mutex_init(&agent->lock, NULL);
	(void)pthread_cond_init(&agent->changed, NULL);
	TH_ASSERT(pthread_create(&agent->thread, NULL, agent_main, agent) == 0);
}

void
fake_agent_stop(struct fake_agent *agent)
{
	char path[128];

	fake_agent_lock(agent);
	agent->stop = true;
	fake_agent_unlock(agent);
	TH_ASSERT(pthread_join(agent->thread, NULL) == 0);
	fake_agent_hang_up(agent);
	for (int i = 0; i < FAKE_CONNECTIONS; i++)
		th_fd_close(&agent->connections[i]);
	th_fd_close(&agent->memory_fd);
	th_fd_close(&agent->lease);
	th_fd_close(&agent->dmabuf_fd);
	th_fd_close(&agent->fds_listener);
	th_fd_close(&agent->ipc_listener);
	th_fd_close(&agent->wake);
	(void)snprintf(path, sizeof(path), "%s/agent.fds", agent->dir);
	(void)unlink(path);
	(void)snprintf(path, sizeof(path), "%s/agent.ipc", agent->dir);
	(void)unlink(path);
	(void)rmdir(agent->dir);
	free(agent->message);
	free(agent->parts);
	(void)pthread_cond_destroy(&agent->changed);
	(void)pthread_mutex_destroy(&agent->lock);
}

void
fake_agent_lock(struct fake_agent *agent)
{
	pthread_mutex_lock(&agent->lock);
}

void
fake_agent_unlock(struct fake_agent *agent)
{
	pthread_cond_broadcast(&agent->changed);
	TH_ASSERT(doorbell_signal(agent->wake) == 0);
	pthread_mutex_unlock(&agent->lock);
}

void
fake_agent_freeze(struct fake_agent *agent, bool freeze)
{
	fake_agent_lock(agent);
	agent->freeze = freeze;
	fake_agent_unlock(agent);
	fake_agent_lock(agent);
	while (agent->frozen != freeze)
		pthread_cond_wait(&agent->changed, &agent->lock);
	fake_agent_unlock(agent);
}

void
fake_agent_await(struct fake_agent *agent, const unsigned *counter, unsigned count)
{
	fake_agent_lock(agent);
	while (*counter < count)
		pthread_cond_wait(&agent->changed, &agent->lock);
	fake_agent_unlock(agent);
}
