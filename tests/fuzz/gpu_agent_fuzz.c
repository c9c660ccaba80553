/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_agent_fuzz - what the agent accepts of the process of a GPU: the thread of one GPU, with a
 * process that says anything, at any time, and may be gone.
 *
 * The thread's function is called, not started: where it would wait the input goes on, and the
 * clock is the input's. Most answers are to what was asked, with a number or a code changed.
 * Whatever is said, each request, settle and piece of a worker has one end, and nothing is left.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/log.h"
#include "tests/fuzz/input.h"
#include "transport/cuda/agent/gpus_own.h"

#define BASE UINT64_C(0x7f0000000000)
#define PIECE_BYTES UINT64_C(4096)
#define PIECES 8u
#define REQUESTS_MAX 32u
#define ASKED_MAX 16u
#define STEPS_MAX 200u

int __wrap_pthread_create(
	pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg);
int __wrap_pthread_join(pthread_t thread, void **ret_value);
int __wrap_pthread_setname_np(pthread_t thread, const char *name);
int __wrap_ppoll(
	struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask);
int64_t __wrap_th_now_ns(void);
int __wrap_process_start(
	struct process *ret_process, const struct gpus_config *config, struct th_err *err);
int __wrap_process_say(struct process *process, const void *message, size_t bytes, int fd);
int __wrap_process_hear(
	struct process *process, void *message, size_t room, struct wire_fd *ret_fd);
void __wrap_process_hang_up(struct process *process);
void __wrap_process_kill(struct process *process);
bool __wrap_process_reap(struct process *process, char *why, size_t room);
void __wrap_process_forget(struct process *process);

static struct input input;
static struct gpus *gpus;
static struct gpu *gpu;
static struct gpu_space *space;
static void *(*thread_main)(void *);
static int64_t now_ns;
static uint32_t steps;

static bool alive, hung_up;
static struct gpu_run asked[ASKED_MAX]; /* the heads of what was said; any kind fits */
static uint32_t num_asked;
static uint8_t said[GPU_MESSAGE_BYTES_MAX]; /* by the process, and not heard yet */
static size_t said_bytes;
static int said_fd;

struct work {
	struct gpu_request request;
	struct gpu_span span;
	bool open;
};
static struct work works[REQUESTS_MAX];
static uint32_t num_works, num_settles, num_settled, num_added, num_gone;

/* ---- in place of the system ------------------------------------------------------------------ */

int
__wrap_pthread_create(
	pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	(void)attr;
	*thread = pthread_self();
	thread_main = run;
	gpu = arg;
	return 0;
}

int
__wrap_pthread_join(pthread_t thread, void **ret_value)
{
	(void)thread;
	(void)ret_value;
	return 0;
}

int
__wrap_pthread_setname_np(pthread_t thread, const char *name)
{
	(void)thread;
	(void)name;
	return 0;
}

int64_t
__wrap_th_now_ns(void)
{
	return now_ns;
}

int
__wrap_process_start(
	struct process *ret_process, const struct gpus_config *config, struct th_err *err)
{
	(void)config;
	if (input_byte(&input) >= 0xf8)
		return th_fail(err, -ENOMEM, "it does not start");
	*ret_process = (struct process){.pid = 1, .pidfd = -1, .sock = -1};
	alive = true;
	hung_up = false;
	num_asked = 0;
	said_bytes = 0;
	return 0;
}

int
__wrap_process_say(struct process *process, const void *message, size_t bytes, int fd)
{
	uint8_t byte = input_byte(&input);

	(void)process;
	(void)fd;
	if (byte >= 0xf8)
		return byte >= 0xfc ? -EAGAIN : -ENOBUFS;
	struct gpu_run *head = &asked[num_asked++ % ASKED_MAX];
	memset(head, 0, sizeof(*head));
	memcpy(head, message, bytes < sizeof(*head) ? bytes : sizeof(*head));
	return 0;
}

int
__wrap_process_hear(struct process *process, void *message, size_t room, struct wire_fd *ret_fd)
{
	size_t bytes = said_bytes;

	(void)process;
	*ret_fd = (struct wire_fd){.fd = -1};
	if (hung_up)
		return 0;
	if (bytes == 0)
		return -EAGAIN;
	memcpy(message, said, bytes < room ? bytes : room);
	ret_fd->fd = said_fd;
	said_fd = -1;
	said_bytes = 0;
	return (int)bytes;
}

void
__wrap_process_hang_up(struct process *process)
{
	(void)process;
	alive = false;
}

void
__wrap_process_kill(struct process *process)
{
	(void)process;
	alive = false;
}

bool
__wrap_process_reap(struct process *process, char *why, size_t room)
{
	if (alive)
		return false;
	snprintf(why, room, "it ended");
	__wrap_process_forget(process);
	return true;
}

void
__wrap_process_forget(struct process *process)
{
	*process = (struct process){.pidfd = -1, .sock = -1};
	alive = false;
}

/* ---- the process ----------------------------------------------------------------------------- */

static void
say(const void *message, size_t bytes)
{
	memcpy(said, message, bytes);
	said_bytes = bytes;
	said_fd = -1;
}

static void
fill_text(char text[GPU_TEXT_BYTES], uint8_t how)
{
	memset(text, how == 0xff ? 'x' : 0, GPU_TEXT_BYTES);
	text[0] = (char)how;
}

/* To something that it was told, as it should be or nearly. */
static void
answer(void)
{
	uint8_t which = input_byte(&input), how = input_byte(&input);
	uint32_t has = num_asked < ASKED_MAX ? num_asked : ASKED_MAX;
	int32_t code = how < 0x80 ? 0 : -(int32_t)(how & 0x3f);

	if (has == 0)
		return;
	const struct gpu_run *head = &asked[(num_asked - 1 - which % has) % ASKED_MAX];
	union {
		struct gpu_ready ready;
		struct gpu_area_is area;
		struct gpu_opened opened;
		struct gpu_left left;
		struct gpu_done done;
	} message;
	memset(&message, 0, sizeof(message));
	if (head->kind == GPU_START) {
		message.ready.kind = GPU_READY;
		message.ready.code = code;
		message.ready.hashes_on_gpu = how & 1;
		fill_text(message.ready.text, which);
		say(&message, sizeof(message.ready));
	} else if (head->kind == GPU_AREA) {
		struct gpu_area area;
		memcpy(&area, head, sizeof(area));
		message.area = (struct gpu_area_is){GPU_AREA_IS, area.area, code, how & 1u, {0}};
		fill_text(message.area.text, which);
		say(&message, sizeof(message.area));
	} else if (head->kind == GPU_OPEN) {
		struct gpu_open open = {0};
		memcpy(&open, head, offsetof(struct gpu_open, handle));
		message.opened =
			(struct gpu_opened){GPU_OPENED, code, open.worker, open.piece, {0}};
		fill_text(message.opened.text, which);
		say(&message, sizeof(message.opened));
	} else if (head->kind == GPU_LEAVE) {
		struct gpu_leave leave;
		memcpy(&leave, head, sizeof(leave));
		message.left = (struct gpu_left){GPU_LEFT, code, leave.worker, leave.piece, {0}};
		fill_text(message.left.text, which);
		say(&message, sizeof(message.left));
	} else {
		message.done.kind = GPU_DONE;
		message.done.code = code;
		message.done.run = head->run;
		fill_text(message.done.text, which);
		say(&message, sizeof(message.done));
	}
	if ((how & 0x70) == 0x70)
		said[input_byte(&input) % said_bytes] ^= input_byte(&input);
	if ((how & 0x7c) == 0x6c)
		said_fd = memfd_create("said", MFD_CLOEXEC);
}

/* ---- workers --------------------------------------------------------------------------------- */

static void
piece_gone(void *arg)
{
	(void)arg;
	num_gone++;
}

static void
settled(void *arg, const struct th_err *result)
{
	(void)arg;
	(void)result;
	num_settled++;
}

static void
done(struct gpu_request *request)
{
	struct work *work = (struct work *)request;

	TH_ASSERT(work->open);
	TH_ASSERT(request->code == 0 || request->text[0] != '\0');
	work->open = false;
	gpu_space_release(work->span.space);
}

static void
add_piece(uint8_t which)
{
	const struct gpu_piece_user user = {.gone = piece_gone};
	struct cuda_handle handle = {.kind = 1, .bytes = PIECE_BYTES, .id = which};
	struct th_err err = {0};

	memcpy(handle.uuid, gpu_space_uuid(space), sizeof(handle.uuid));
	num_added++;
	(void)gpu_space_add(space, &handle, BASE + which % PIECES * PIECE_BYTES, -1, &user, &err);
}

static void
submit(uint8_t which)
{
	struct work *work = &works[num_works];

	if (num_works == REQUESTS_MAX)
		return;
	num_works++;
	work->span = (struct gpu_span){.space = gpu_space_retain(space),
		.address = BASE + which % PIECES * PIECE_BYTES,
		.bytes = PIECE_BYTES * (1u + (which >> 6))};
	work->request = (struct gpu_request){.op = GPU_HASH,
		.from = &work->span,
		.num_from = 1,
		.bytes = (uint32_t)work->span.bytes,
		.hashes = true,
		.done = done};
	if (which & 0x20) {
		work->request.op = GPU_COPY;
		work->request.to = &work->span;
		work->request.num_to = 1;
	}
	work->open = true;
	gpu_submit(&work->request);
}

/* Where the thread would wait. */
int
__wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
	uint8_t what = input_byte(&input), which = input_byte(&input);

	(void)mask;
	for (nfds_t i = 0; i < count; i++)
		fds[i].revents = 0;
	if (input.left == 0 || ++steps > STEPS_MAX) {
		if (space) {
			gpu_space_release(space);
			space = NULL;
			gpu_stop(gpu);
		} else if (timeout) {
			now_ns += timeout->tv_sec * INT64_C(1000000000) + timeout->tv_nsec;
		}
		return 0;
	}
	if (what < 0x80) {
		answer();
	} else if (what < 0x98) {
		add_piece(which);
	} else if (what < 0xa0) {
		gpu_space_forget(space, BASE + which % PIECES * PIECE_BYTES);
	} else if (what < 0xc0) {
		submit(which);
	} else if (what < 0xc8) {
		num_settles++;
		gpu_space_settle(space, settled, NULL);
	} else if (what < 0xd0) {
		alive = which >= 0x80 && alive;
		hung_up = hung_up || which < 0x40;
	} else if (what < 0xd8) {
		struct input part = input_part(&input);
		if (part.left > 0)
			say(part.at, part.left < sizeof(said) ? part.left : sizeof(said));
	} else if (timeout) {
		now_ns += timeout->tv_sec * INT64_C(1000000000) + timeout->tv_nsec;
	} else {
		now_ns += INT64_C(1000000) * which;
	}
	if (count > 1)
		fds[1].revents = POLLOUT;
	return 1;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint8_t uuid[16] = "the first GPU";
	const struct gpus_config config = {.staging_bytes = 1u << 20,
		.hang_ns = INT64_C(10000000000),
		.leave_ns = INT64_C(500000000),
		.leave_end_ns = INT64_C(800000000),
		.idle_ns = INT64_C(10000000000)};
	struct th_err err = {0};

	log_set_level(LOG_LEVEL_ERROR);
	input = (struct input){data, size};
	now_ns = INT64_C(1000000000000);
	steps = num_works = num_settles = num_settled = num_added = num_gone = 0;
	alive = hung_up = false;
	said_bytes = 0;
	said_fd = -1;
	TH_ASSERT(gpus_new(&config, &err, &gpus) == 0);
	space = gpu_space_new(gpus, uuid, "m/r/0", &err);
	TH_ASSERT(space != NULL && thread_main != NULL);
	thread_main(gpu);
	gpus_free(gpus);
	if (said_fd >= 0)
		close(said_fd);
	for (uint32_t i = 0; i < num_works; i++)
		TH_ASSERT(!works[i].open);
	TH_ASSERT(num_settled == num_settles && num_gone == num_added);
	return 0;
}
