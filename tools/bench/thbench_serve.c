/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_serve - the child's side of a worker (see thbench_worker.h): one loop, one memory.
 *
 * What it is told comes from its own parent, so it is checked only where a mistake would hide.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "libthc/thc.h"
#include "tools/bench/thbench_copy.h"
#include "tools/bench/thbench_raw.h"
#include "tools/bench/thbench_worker.h"

#define CALL_MS 120000
#define LEAF_BYTES (64u << 10)
#define TINY_BYTES 1024u
#define SUM_BYTES (UINT64_C(16) << 20)
#define DESCRIPTORS_MAX 4096

struct state {
	double *samples; /* borrows */
	uint8_t *memory;
	uint64_t bytes;
	int memfd;            /* of memory; borrows: libthc's own */
	const uint8_t *other; /* memory of another worker */
	struct thc_shard *shards[WORKER_SLOTS];
	struct raw raw;
};

/* ---- memory --------------------------------------------------------------------------------- */

static void
fill_part(void *arg, uint64_t at, uint64_t bytes)
{
	const struct state *state = arg;
	uint64_t x = at + 1;

	/* No two leaves are equal, and no byte stands out. */
	for (uint64_t i = at; i < at + bytes; i += sizeof(x)) {
		uint64_t word = x += UINT64_C(0x9e3779b97f4a7c15);
		word = (word ^ (word >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
		memcpy(state->memory + i, &word, th_min_u64(sizeof(word), at + bytes - i));
	}
}

/* thc_alloc gives no descriptor away, and a raw copy with sendfile needs one: the file that is
 * mapped there is among our own. */
static int
find_memfd(const void *memory)
{
	char line[512];
	uint64_t begin, end, inode, wanted = 0;
	const uint64_t address = (uintptr_t)memory;

	FILE *maps = fopen("/proc/self/maps", "re");
	while (maps && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %*s %" SCNu64, &begin, &end,
			    &inode) == 3 &&
			address >= begin && address < end)
			wanted = inode;
	}
	if (maps)
		fclose(maps);
	for (int fd = 3; fd < DESCRIPTORS_MAX && wanted != 0; fd++) {
		struct stat st;
		if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_ino == wanted)
			return fd;
	}
	return -1;
}

static int
alloc(struct state *state, const struct command *command, struct answer *answer)
{
	void *memory;
	int rc = thc_alloc(command->bytes, 0, &memory);

	if (rc < 0)
		return rc;
	state->memory = memory;
	state->bytes = command->bytes;
	state->memfd = find_memfd(memory);
	answer->number = (uint64_t)(int64_t)state->memfd;
	if (command->number != 0)
		copy_parallel(2, command->bytes, fill_part, state);
	else
		memset(memory, 1, command->bytes);
	return 0;
}

static void
mess(struct state *state, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes; at += LEAF_BYTES)
		state->memory[at] ^= 0x5a;
}

static uint64_t
sum(const struct state *state, uint64_t bytes)
{
	uint64_t value = 0;

	for (uint64_t at = 0; at < bytes; at += SUM_BYTES)
		value = value * 31 +
			XXH3_64bits(state->memory + at, th_min_u64(SUM_BYTES, bytes - at));
	return value;
}

static int
map_other(struct state *state, const struct command *command)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%" PRIu64 "/fd/%u", command->number, command->slot);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	void *other = mmap(NULL, command->bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
	int rc = other == MAP_FAILED ? -errno : 0;
	close(fd);
	if (rc == 0)
		state->other = other;
	return rc;
}

/* ---- shards --------------------------------------------------------------------------------- */

static int
add_tensors(struct state *state, struct thc_shard *shard, const struct command *command)
{
	uint64_t tiny_bytes = (uint64_t)command->tiny * TINY_BYTES;
	uint64_t large = command->bytes - tiny_bytes;
	uint64_t each = command->tensor_bytes;
	size_t count = command->tiny + (size_t)((large + each - 1) / each), used = 0;
	struct thc_tensor *tensors = th_calloc(count, sizeof(tensors[0]));
	char(*names)[24] = th_calloc(count, sizeof(names[0]));

	TH_ASSERT(command->bytes <= state->bytes && tiny_bytes <= command->bytes);
	for (uint64_t at = 0; at < command->bytes; used++) {
		uint64_t bytes =
			used < command->tiny ? TINY_BYTES : th_min_u64(each, command->bytes - at);
		TH_ASSERT(used < count);
		snprintf(names[used], sizeof(names[used]), "layer.%06zu", used);
		tensors[used] = (struct thc_tensor){.name = names[used],
			.data = state->memory + at,
			.bytes = bytes,
			.dtype = THC_U8,
			.device = THC_HOST,
			.ndim = 1,
			.local_shape = {bytes}};
		at += bytes;
	}
	int rc = thc_register(shard, tensors, used, sizeof(tensors[0]), CALL_MS);
	free(names);
	free(tensors);
	return rc;
}

static int
thbench_serve_join(struct state *state, const struct command *command)
{
	struct thc_open_opts opts = THC_OPEN_OPTS_INIT;
	struct thc_shard *shard;

	opts.model = command->model;
	opts.replica = command->replica;
	opts.agent = command->agent;
	opts.flags = command->prefetch ? THC_PREFETCH : 0;
	int rc = thc_open(&opts, CALL_MS, &shard);
	if (rc < 0)
		return rc;
	state->shards[command->slot] = shard;
	return add_tensors(state, shard, command);
}

static int
thbench_serve_leave(struct state *state, uint32_t slot)
{
	struct thc_shard *shard = state->shards[slot];

	state->shards[slot] = NULL;
	return shard ? thc_close(shard, THC_CLOSE_ABANDON, CALL_MS) : 0;
}

static void
serve_take_result(const struct thc_result *result, struct answer *answer)
{
	answer->bytes_moved = result->bytes_moved;
	answer->bytes_prefetched = result->bytes_prefetched;
	answer->updated = result->updated;
	answer->transfer_ns = result->transfer_ns;
	answer->verify_ns = result->verify_ns;
	snprintf(answer->transport, sizeof(answer->transport), "%s", result->transport);
	snprintf(answer->source, sizeof(answer->source), "%.63s", result->source);
}

/*
 * An operation that the agent refuses by itself: it goes by the ring to its core and back, and to
 * nobody else. This handle holds no version, so there is nothing to unpublish.
 */
static int
ring(struct state *state, const struct command *command)
{
	const struct timespec pause = {.tv_nsec = (long)command->tensor_bytes};
	uint64_t rounds = th_min_u64(command->number, WORKER_SAMPLES_MAX);

	for (uint64_t i = 0; i < rounds; i++) {
		if (pause.tv_nsec > 0)
			nanosleep(&pause, NULL);
		int64_t begin_ns = th_now_ns();
		int rc = thc_unpublish(state->shards[command->slot], 0, CALL_MS);
		state->samples[i] = (double)(th_now_ns() - begin_ns) / 1e3;
		if (rc != THC_E_STATE)
			return rc < 0 ? rc : -EPROTO;
	}
	return 0;
}

/* ---- commands ------------------------------------------------------------------------------- */

/* As thc_replicate, with its progress in the first sample. */
static int
serve_follow(struct state *state, const struct command *command, const char *version,
	struct thc_result *ret_result)
{
	struct thc_op *op;
	uint64_t done = 0, total = 0;

	int rc = thc_replicate_submit(state->shards[command->slot], version, CALL_MS, &op);
	if (rc < 0)
		return rc;
	while ((rc = thc_op_wait(op, 1, ret_result)) == THC_E_TIMEOUT) {
		if (thc_op_done(op) != 0) {
			rc = thc_op_wait(op, 0, ret_result);
			break;
		}
		if (thc_op_progress(op, &done, &total) >= 0)
			*(volatile double *)&state->samples[0] = (double)done;
	}
	(void)thc_op_progress(op, &done, &total);
	thc_op_free(op);
	/* It may have been over before it was looked at. */
	*(volatile double *)&state->samples[0] = (double)th_max_u64(done, 1);
	return rc;
}

static int
is_fetched(const struct thc_listing *listing, void *arg)
{
	const struct command *command = arg;
	const char *versions = (const char *)listing->versions;

	for (uint32_t i = 0; i < listing->num_versions; i++) {
		const struct thc_version_info *version =
			(const void *)(versions + i * listing->version_bytes);
		const char *replicas = (const char *)version->replicas;
		for (uint32_t k = 0; k < version->num_replicas; k++) {
			const struct thc_replica_info *replica =
				(const void *)(replicas + k * listing->replica_bytes);
			if (version->version == command->number &&
				(replica->flags & THC_REPLICA_OFFLOAD) != 0)
				return 1;
		}
	}
	return 0;
}

/* 0, or what is said of this version when the time is over. */
static int
await_ready(struct thc_shard *shard, uint64_t wanted)
{
	struct pollfd happens = {.fd = thc_fd(shard), .events = POLLIN};
	const int64_t end_ns = th_now_ns() + CALL_MS * INT64_C(1000000);
	uint64_t version = 0;

	for (;;) {
		(void)thc_shard_events(shard);
		int rc = thc_ready_version(shard, NULL, &version);
		if (rc == 0 && version == wanted)
			return 0;
		int64_t left_ns = end_ns - th_now_ns();
		if ((rc < 0 && rc != THC_E_NOT_AVAILABLE) || left_ns <= 0)
			return rc < 0 ? rc : -ETIMEDOUT;
		if (poll(&happens, 1, (int)(left_ns / 1000000 + 1)) < 0 && errno != EINTR)
			return -errno;
	}
}

static int
serve_await(struct state *state, struct command *command, struct answer *answer)
{
	struct thc_shard *shard = state->shards[command->slot];

	int rc = command->command == WORKER_READY ? await_ready(shard, command->number)
						  : thc_wait(shard, is_fetched, command, CALL_MS);
	answer->end_ns = th_now_ns();
	return rc;
}

static int
on_shard(struct state *state, const struct command *command, struct answer *answer)
{
	struct thc_result result = THC_RESULT_INIT;
	struct thc_shard *shard = state->shards[command->slot];
	char version[24];
	int rc;

	snprintf(version, sizeof(version), "%" PRIu64, command->number);
	answer->begin_ns = th_now_ns();
	if (command->command == WORKER_PUBLISH)
		rc = thc_publish(shard, command->number, CALL_MS);
	else if (command->command == WORKER_REPLICATE)
		rc = thc_replicate(shard, version, CALL_MS, &result);
	else if (command->command == WORKER_FOLLOW)
		rc = serve_follow(state, command, version, &result);
	else if (command->command == WORKER_UPDATE)
		rc = thc_update(shard, "latest", CALL_MS, &result);
	else
		rc = thc_unpublish(shard, 0, CALL_MS);
	answer->end_ns = th_now_ns();
	if (rc >= 0)
		serve_take_result(&result, answer);
	return rc;
}

static int
on_raw(struct state *state, const struct command *command, struct answer *answer)
{
	struct raw *raw = &state->raw;
	uint16_t port = 0;
	int rc = 0;

	answer->begin_ns = th_now_ns();
	if (command->command == WORKER_LISTEN)
		rc = raw_listen(raw, &port);
	else if (command->command == WORKER_ACCEPT)
		rc = raw_accept(raw, (uint32_t)command->number);
	else if (command->command == WORKER_CONNECT)
		rc = raw_connect(raw, (uint16_t)command->number, (uint32_t)command->tensor_bytes);
	else if (command->command == WORKER_SEND)
		rc = raw_send(raw, state->memory, command->number == 1 ? state->memfd : -1,
			command->bytes, command->tensor_bytes);
	else
		rc = raw_receive(raw, state->memory, command->bytes, command->tensor_bytes);
	answer->end_ns = th_now_ns();
	answer->number = port;
	return rc;
}

static int
serve_on_memory(struct state *state, const struct command *command, struct answer *answer)
{
	if (command->command == WORKER_ALLOC)
		return alloc(state, command, answer);
	if (command->command == WORKER_MAP)
		return map_other(state, command);
	TH_ASSERT(command->bytes <= state->bytes);
	answer->begin_ns = th_now_ns();
	if (command->command == WORKER_MESS)
		mess(state, command->bytes);
	else if (command->command == WORKER_SUM)
		answer->number = sum(state, command->bytes);
	else
		copy_run((enum copy_kind)command->slot, state->memory, state->other, command->bytes,
			(uint32_t)command->number);
	answer->end_ns = th_now_ns();
	return 0;
}

static int
serve_obey(struct state *state, struct command *command, struct answer *answer)
{
	switch (command->command) {
	case WORKER_ALLOC:
	case WORKER_MESS:
	case WORKER_SUM:
	case WORKER_MAP:
	case WORKER_COPY:
		return serve_on_memory(state, command, answer);
	case WORKER_JOIN:
		return thbench_serve_join(state, command);
	case WORKER_PUBLISH:
	case WORKER_REPLICATE:
	case WORKER_FOLLOW:
	case WORKER_UPDATE:
	case WORKER_UNPUBLISH:
		return on_shard(state, command, answer);
	case WORKER_FETCHED:
	case WORKER_READY:
		return serve_await(state, command, answer);
	case WORKER_CLOSE:
		return thbench_serve_leave(state, command->slot);
	case WORKER_LISTEN:
	case WORKER_ACCEPT:
	case WORKER_CONNECT:
	case WORKER_SEND:
	case WORKER_RECEIVE:
		return on_raw(state, command, answer);
	case WORKER_RING:
		return ring(state, command);
	case WORKER_QUIT:
		break;
	}
	return -ENOSYS;
}

void
worker_serve(int sock, double *samples)
{
	struct state state = {.samples = samples, .memfd = -1};
	struct command command;

	raw_init(&state.raw);
	while (recv(sock, &command, sizeof(command), 0) == sizeof(command) &&
		command.command != WORKER_QUIT) {
		struct answer answer = {0};
		answer.code = serve_obey(&state, &command, &answer);
		if (answer.code < 0) {
			/* Its sentence is of its own last failure, which may be an older one. */
			snprintf(answer.text, sizeof(answer.text), "%s",
				answer.code <= THC_E_INVALID ? thc_errmsg()
							     : th_strerror(answer.code));
		}
		if (send(sock, &answer, sizeof(answer), MSG_NOSIGNAL) != sizeof(answer))
			break;
	}
	for (uint32_t i = 0; i < WORKER_SLOTS; i++)
		(void)thbench_serve_leave(&state, i);
	raw_close(&state.raw);
	_exit(0);
}
