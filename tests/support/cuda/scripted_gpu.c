/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scripted_gpu - see scripted_gpu.h. After the fork it takes no memory: other threads were there.
 */
#include "tests/support/cuda/scripted_gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "transport/hash/digest.h"

#define PIECES_MAX 8192u

struct piece {
	uint64_t worker, number, at, bytes;
};

struct life {
	struct script *script;
	int sock;
	struct piece *pieces; /* mapped */
	uint32_t count;
	uint8_t *areas[GPU_AREAS_MAX]; /* NULL with bytes: it was refused */
	uint64_t area_bytes[GPU_AREAS_MAX];
	uint8_t *scratch; /* mapped */
	_Alignas(8) uint8_t message[GPU_MESSAGE_BYTES_MAX];
};

static void *
map(size_t bytes, int flags)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
	TH_ASSERT(memory != MAP_FAILED);
	return memory;
}

struct script *
script_new(void)
{
	return map(sizeof(struct script), MAP_SHARED);
}

void
script_free(struct script *script)
{
	(void)munmap(script, sizeof(*script));
}

struct script_step *
script_add(struct script *script, enum gpu_message_kind kind, enum script_act act, int after,
	int times)
{
	for (uint32_t i = 0; i < SCRIPT_STEPS_MAX; i++) {
		struct script_step *step = &script->steps[i];
		if (step->kind != 0)
			continue;
		step->act = act;
		step->after = after;
		step->times = times;
		step->code = TH_E_MEMORY_KIND;
		step->ms = 1;
		step->kind = kind;
		return step;
	}
	TH_ASSERT(!"more steps than there is room for");
	return NULL;
}

/* ---- the process --------------------------------------------------------------------------- */

static void
sleep_for_ever(void)
{
	for (;;)
		pause();
}

/* With so many descriptors, two at most. */
static ssize_t
send_message(int sock, const void *data, size_t bytes, uint32_t num_fds, uint64_t fd_bytes)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control = {0};
	struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
	struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1};
	int fds[2] = {-1, -1};
	for (uint32_t i = 0; i < num_fds; i++) {
		fds[i] = memfd_create("own", MFD_CLOEXEC);
		TH_ASSERT(fds[i] >= 0 && ftruncate(fds[i], (off_t)fd_bytes) == 0);
	}
	if (num_fds > 0) {
		head.msg_control = &control;
		head.msg_controllen = CMSG_SPACE(num_fds * sizeof(int));
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(num_fds * sizeof(int));
		memcpy(CMSG_DATA(&control.head), fds, num_fds * sizeof(int));
	}
	ssize_t sent = sendmsg(sock, &head, MSG_NOSIGNAL);
	for (uint32_t i = 0; i < num_fds; i++)
		close(fds[i]);
	return sent;
}

static uint32_t
count_fds(const struct script_step *step, bool own)
{
	if (step && step->act == SCRIPT_NO_FD)
		return 0;
	if (step && step->act == SCRIPT_TWO_FDS)
		return 2;
	return own || (step && (step->act == SCRIPT_FD || step->act == SCRIPT_EMPTY));
}

static void
answer_with(struct life *life, const struct script_step *step, void *message, size_t bytes,
	char *text, uint64_t own_bytes)
{
	static uint8_t room[1024], late[1024];
	static size_t late_bytes;
	if (step && step->act == SCRIPT_MUTE)
		return;
	if (step && step->act == SCRIPT_LATE) {
		memcpy(late, message, bytes);
		late_bytes = bytes;
		return;
	}
	memcpy(room, message, bytes);
	if (step && step->act == SCRIPT_ENDLESS)
		memset(room + (text - (char *)message), 'x', GPU_TEXT_BYTES);
	if (step && step->act == SCRIPT_SHORT)
		bytes -= 4;
	if (step && step->act == SCRIPT_LONG)
		bytes += 4;
	if (step && step->act == SCRIPT_EMPTY)
		bytes = 0;
	uint32_t num_fds = count_fds(step, own_bytes > 0);
	own_bytes -= step && step->act == SCRIPT_LESS_FD;
	if (send_message(life->sock, room, bytes, num_fds, own_bytes) < 0)
		_exit(0);
	if (late_bytes > 0)
		(void)send_message(life->sock, late, late_bytes, 0, 0);
	late_bytes = 0;
}

static void
answer(struct life *life, const struct script_step *step, void *message, size_t bytes, char *text)
{
	answer_with(life, step, message, bytes, text, 0);
}

static bool
lies(const struct script_step *step)
{
	return step && step->act == SCRIPT_LIE;
}

static int
refuse(int code, char *text)
{
	memcpy(text, "the script says no", 19);
	return code;
}

static int
code_of(const struct script_step *step, char *text)
{
	return step && step->act == SCRIPT_REFUSE ? refuse(step->code, text) : 0;
}

/* Pieces of one worker have numbers that follow each other. */
static void
answer_unheard(struct life *life)
{
	const struct gpu_open *open = (const void *)life->message;
	struct gpu_opened opened = {
		.kind = GPU_OPENED, .worker = open->worker, .piece = open->piece};
	for (;;) {
		int bytes = 0;
		TH_ASSERT(ioctl(life->sock, FIONREAD, &bytes) == 0);
		uint64_t said = open->piece + (uint64_t)bytes / sizeof(*open);
		for (; opened.piece <= said; opened.piece++)
			answer(life, NULL, &opened, sizeof(opened), opened.text);
		usleep(1000);
	}
}

/* The step that is met; those that end the process do not come back. */
static const struct script_step *
meet(struct life *life, uint32_t kind, uint64_t piece)
{
	for (uint32_t i = 0; i < SCRIPT_STEPS_MAX; i++) {
		struct script_step *step = &life->script->steps[i];
		if (step->kind != kind || (step->piece > 0 && step->piece != piece))
			continue;
		int seen = step->seen++;
		if (seen < step->after || seen >= step->after + step->times)
			continue;
		step->met++;
		switch (step->act) {
		case SCRIPT_DIE:
			raise(SIGKILL);
			break;
		case SCRIPT_HANG:
			sleep_for_ever();
			break;
		case SCRIPT_CLOSE:
			close(life->sock);
			sleep_for_ever();
			break;
		case SCRIPT_SLOW:
			usleep(1000 * step->ms);
			break;
		case SCRIPT_WAIT:
			while (!life->script->go)
				usleep(1000);
			break;
		case SCRIPT_DEAF:
			answer_unheard(life);
			break;
		case SCRIPT_REFUSE:
		case SCRIPT_LIE:
		case SCRIPT_SHORT:
		case SCRIPT_LONG:
		case SCRIPT_ENDLESS:
		case SCRIPT_NO_FD:
		case SCRIPT_FD:
		case SCRIPT_TWO_FDS:
		case SCRIPT_LESS_FD:
		case SCRIPT_LATE:
		case SCRIPT_MUTE:
		case SCRIPT_EMPTY:
			break;
		}
		return step;
	}
	return NULL;
}

static const struct piece *
find(const struct life *life, const struct gpu_range *range)
{
	for (uint32_t i = 0; i < life->count; i++) {
		const struct piece *piece = &life->pieces[i];
		if (piece->worker == range->worker && piece->number == range->piece)
			return piece;
	}
	return NULL;
}

static void
start(struct life *life)
{
	const struct gpu_start *start = (const void *)life->message;
	struct gpu_ready ready = {.kind = GPU_READY,
		.context_bytes = 1 << 20,
		.hashes_on_gpu = !(start->flags & GPU_HASH_ON_CPU),
		.name = "a scripted GPU",
		.pci = "0000:01:00.0"};
	life->script->flags = start->flags;
	const struct script_step *step = meet(life, GPU_START, 0);
	ready.code = code_of(step, ready.text);
	if (lies(step))
		ready.kind = GPU_DONE;
	answer(life, step, &ready, sizeof(ready), ready.text);
}

static void
take_area(struct life *life, int fd)
{
	const struct gpu_area *area = (const void *)life->message;
	struct gpu_area_is is = {.kind = GPU_AREA_IS, .area = area->area};
	const struct script_step *step = meet(life, GPU_AREA, area->at);
	uint8_t **at = &life->areas[area->area];
	uint64_t *bytes = &life->area_bytes[area->area];
	TH_ASSERT((area->bytes > 0) == (fd >= 0) && (area->bytes > 0) == (*bytes == 0));
	is.code = code_of(step, is.text);
	if (area->bytes > 0 && is.code >= 0) {
		*at = mmap(
			NULL, area->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)area->at);
		TH_ASSERT(*at != MAP_FAILED);
		is.pinned = 1;
		life->script->areas++;
	} else if (*at) {
		(void)munmap(*at, *bytes);
		*at = NULL;
		life->script->areas--;
	}
	*bytes = area->bytes;
	is.area += lies(step);
	answer(life, step, &is, sizeof(is), is.text);
}

static void
open_piece(struct life *life)
{
	const struct gpu_open *open = (const void *)life->message;
	struct gpu_opened opened = {
		.kind = GPU_OPENED, .worker = open->worker, .piece = open->piece};
	const struct script_step *step = meet(life, GPU_OPEN, open->piece);
	opened.code = code_of(step, opened.text);
	opened.piece += lies(step);
	TH_ASSERT(life->count < PIECES_MAX);
	TH_ASSERT(th_range_fits(open->handle.id, open->handle.bytes, SCRIPT_MEMORY_BYTES));
	if (opened.code == 0)
		life->pieces[life->count++] = (struct piece){
			open->worker, open->piece, open->handle.id, open->handle.bytes};
	answer_with(life, step, &opened, sizeof(opened), opened.text,
		open->own && opened.code == 0 ? open->handle.bytes : 0);
}

static void
leave(struct life *life)
{
	const struct gpu_leave *leave = (const void *)life->message;
	struct gpu_left left = {.kind = GPU_LEFT, .worker = leave->worker, .piece = leave->piece};
	const struct script_step *step = meet(life, GPU_LEAVE, 0);
	for (uint32_t i = 0; i < life->count;) {
		const struct piece *piece = &life->pieces[i];
		if (piece->worker == leave->worker &&
			(leave->piece == UINT64_MAX || leave->piece == piece->number))
			life->pieces[i] = life->pieces[--life->count];
		else
			i++;
	}
	left.code = code_of(step, left.text);
	left.worker += lies(step);
	answer(life, step, &left, sizeof(left), left.text);
}

/* 0, or not all of it is open. */
static int
move(struct life *life, const struct gpu_range *ranges, uint32_t count, uint8_t *bytes, bool out)
{
	if (count > life->script->ranges_max)
		life->script->ranges_max = count;
	for (uint32_t i = 0; i < count; i++) {
		const struct piece *piece = find(life, &ranges[i]);
		if (!piece)
			return TH_E_STALE_MEMORY;
		TH_ASSERT(th_range_fits(ranges[i].at, ranges[i].bytes, piece->bytes));
		uint8_t *memory = life->script->memory + piece->at + ranges[i].at;
		if (out)
			memcpy(bytes, memory, ranges[i].bytes);
		else
			memcpy(memory, bytes, ranges[i].bytes);
		bytes += ranges[i].bytes;
	}
	return 0;
}

static void
run(struct life *life, size_t bytes)
{
	const struct gpu_run *run = (const void *)life->message;
	const struct gpu_range *to = (const void *)(run + 1), *from = to + run->num_to;
	struct gpu_done done = {.kind = GPU_DONE, .run = run->run};
	uint64_t sums[2] = {0, 0}, all = 0;
	const struct script_step *step =
		meet(life, GPU_RUN, run->num_to > 0 ? to[0].piece : from[0].piece);
	TH_ASSERT(bytes == sizeof(*run) + (run->num_to + run->num_from) * sizeof(*to));
	for (uint32_t i = 0; i < run->num_to; i++)
		sums[0] += to[i].bytes;
	for (uint32_t i = 0; i < run->num_from; i++)
		sums[1] += from[i].bytes;
	TH_ASSERT(run->num_chunks > 0 && run->num_chunks <= GPU_RUN_CHUNKS_MAX);
	for (uint32_t i = 0; i < run->num_chunks; i++)
		all += run->chunk_bytes[i];
	TH_ASSERT(run->num_to == 0 || sums[0] == all);
	TH_ASSERT(run->num_from == 0 || sums[1] == all);
	TH_ASSERT(run->num_to <= GPU_RANGES_MAX && run->num_from <= GPU_RANGES_MAX);
	if (run->num_chunks > life->script->chunks_max)
		life->script->chunks_max = run->num_chunks;
	done.code = code_of(step, done.text);
	uint8_t *data = life->scratch;
	if (run->op == GPU_READ || run->op == GPU_WRITE) {
		TH_ASSERT(run->area < GPU_AREAS_MAX && run->num_chunks == 1);
		TH_ASSERT(th_range_fits(run->area_at, all, life->area_bytes[run->area]));
		data = life->areas[run->area];
		if (data)
			data += run->area_at;
		else if (done.code == 0)
			done.code = refuse(TH_E_MEMORY_KIND, done.text);
	}
	if (done.code == 0 && run->num_from > 0)
		done.code = move(life, from, run->num_from, data, true);
	if (done.code == 0 && run->num_to > 0)
		done.code = move(life, to, run->num_to, data, false);
	for (uint32_t i = 0; i < run->num_chunks && done.code == 0; i++) {
		if (run->hashes || run->op == GPU_HASH)
			done.digests[i] = digest_of(data, run->chunk_bytes[i]);
		data += run->chunk_bytes[i];
	}
	done.run += lies(step) ? 256 : 0;
	answer(life, step, &done, sizeof(done), done.text);
}

static size_t
hear(struct life *life, int *ret_fd)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = {.iov_base = life->message, .iov_len = sizeof(life->message)};
	struct msghdr message = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control)};
	ssize_t got = recvmsg(life->sock, &message, MSG_CMSG_CLOEXEC);
	*ret_fd = -1;
	if (got <= 0) {
		life->script->ending++;
		while (life->script->lingers)
			usleep(1000);
		life->script->ended++;
		_exit(0);
	}
	TH_ASSERT(!(message.msg_flags & MSG_TRUNC));
	if (message.msg_controllen >= CMSG_LEN(sizeof(int)))
		memcpy(ret_fd, CMSG_DATA(&control.head), sizeof(*ret_fd));
	return (size_t)got;
}

static void
live(struct script *script, int sock)
{
	struct life *life = map(sizeof(*life), MAP_PRIVATE);
	life->script = script;
	life->sock = sock;
	life->pieces = map(PIECES_MAX * sizeof(struct piece), MAP_PRIVATE);
	life->scratch = map(GPU_RUN_CHUNKS_MAX * CHUNK_BYTES_MAX, MAP_PRIVATE);
	script->lives++;
	script->areas = 0;
	for (;;) {
		int fd;
		size_t bytes = hear(life, &fd);
		uint32_t kind = *(const uint32_t *)(const void *)life->message;
		script->messages[kind & 15]++;
		if (script->dies_every > 0 && kind != GPU_START &&
			++script->heard % script->dies_every == 0)
			raise(SIGKILL);
		if (kind == GPU_START)
			start(life);
		else if (kind == GPU_AREA)
			take_area(life, fd);
		else if (kind == GPU_OPEN)
			open_piece(life);
		else if (kind == GPU_LEAVE)
			leave(life);
		else if (kind == GPU_RUN)
			run(life, bytes);
		else
			TH_ASSERT(!"an unknown message");
		if (fd >= 0)
			close(fd);
	}
}

int
script_launch(void *arg, int sock, pid_t *ret_pid, struct th_err *err)
{
	pid_t pid = fork();
	if (pid < 0)
		return th_fail(err, -errno, "no process for a scripted GPU");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int fd = 3; fd < 256; fd++) {
			if (fd != sock)
				close(fd);
		}
		live(arg, sock);
	}
	*ret_pid = pid;
	return 0;
}
