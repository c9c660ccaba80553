/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpus_slow_test - a process that is slow with each of many things, and not dead: what waits for
 * one of them has as long as if it had begun to wait behind the one before it. And one that does
 * not keep to the order.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "tests/support/cuda/gpus_rig.h"
#include "tests/support/cuda/scripted_gpu.h"
#include "transport/cuda/helper/answers.h"
#include "transport/cuda/helper/imports.h"

#define MIB ((size_t)1 << 20)
#define MS INT64_C(1000000)

static struct script *script;
static struct gpus *gpus;
static struct th_err err;
static int64_t leave_end_ns, idle_ns = RIG_PATIENCE_NS;

static void
begin(int64_t hang_ns, int64_t leave_ns)
{
	const struct gpus_config config = {.launch = script_launch,
		.arg = script,
		.staging_bytes = 8 * MIB,
		.hang_ns = hang_ns,
		.leave_ns = leave_ns,
		.leave_end_ns = leave_end_ns,
		.idle_ns = idle_ns};
	TH_ASSERT(gpus_new(&config, &err, &gpus) == 0);
}

static void
set_up(void)
{
	log_set_level(LOG_LEVEL_ERROR);
	script = script_new();
}

static void
tear_down(void)
{
	gpus_free(gpus);
	script_free(script);
}

TestSuite(gpus_slow, .init = set_up, .fini = tear_down, .timeout = 120);

static struct gpu_space *
space_new(void)
{
	static const uint8_t uuid[16] = "the first GPU";
	struct gpu_space *space = gpu_space_new(gpus, uuid, "m/r/0", &err);
	cr_assert(space, "%s", err.text);
	return space;
}

static void
unpin(struct rig_host *host)
{
	gpus_host_release(host->host);
	rig_wait(1);
	rig_host_end(host);
}

struct told {
	_Atomic unsigned times;
	int code;
};

static void
settled(void *arg, const struct th_err *result)
{
	struct told *told = arg;
	told->code = result->code;
	told->times++;
	rig_happens();
}

static void
end_unkilled(struct gpu_space *space)
{
	gpu_space_release(space);
	rig_wait_until(rig_no_imports, gpus);
	cr_assert_eq(rig_status(gpus).kills, 0, "%s", rig_status(gpus).text);
}

/* ---- closing -------------------------------------------------------------------------------- */

/* Each part in a ms, all together in more than the patience. */
#define SLOW_PARTS 700u
#define SLOW_NS (400 * MS)

Test(gpus_slow, pieces__that_close_slowly__do_not_end_the_process)
{
	uint64_t pieces[SLOW_PARTS];
	script_add(script, GPU_LEAVE, SCRIPT_SLOW, 0, 10000);
	begin(RIG_PATIENCE_NS, SLOW_NS);
	struct gpu_space *space = space_new();
	for (unsigned i = 0; i < SLOW_PARTS; i++)
		pieces[i] = rig_add(space, i * 4096, 4096);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	cr_assert_eq(rig_status(gpus).pieces, SLOW_PARTS);
	for (unsigned i = 0; i < SLOW_PARTS; i++)
		gpu_space_forget(space, pieces[i]);
	end_unkilled(space);
}

/* Others come and go all the time. */
Test(gpus_slow, a_piece__that_is_not_closed__is_free_whatever_else_is_closed)
{
	script_add(script, GPU_LEAVE, SCRIPT_MUTE, 0, 1);
	begin(RIG_PATIENCE_NS, 400 * MS);
	struct gpu_space *space = space_new();
	uint64_t piece = rig_add(space, 0, MIB);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	gpu_space_forget(space, piece);
	while (rig_status(gpus).kills == 0) {
		uint64_t other = rig_add(space, MIB, MIB);
		cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
		gpu_space_forget(space, other);
	}
	gpu_space_release(space);
	rig_wait_until(rig_no_imports, gpus);
}

/* As the agent does it when a worker has ended: all of its pieces, then the worker. */
static void
forget_all(struct gpu_space *space, const uint64_t *pieces)
{
	for (unsigned i = 0; i < SLOW_PARTS; i++)
		gpu_space_forget(space, pieces[i]);
	gpu_space_release(space);
}

static struct gpu_space *
open_many(uint64_t *pieces)
{
	script_add(script, GPU_LEAVE, SCRIPT_SLOW, 0, 10000);
	leave_end_ns = 20 * MS;
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	for (unsigned i = 0; i < SLOW_PARTS; i++)
		pieces[i] = rig_add(space, i * 4096, 4096);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	return space;
}

static struct gpu_space *
pin(struct rig_host *host)
{
	struct gpu_space *space = space_new();
	rig_add(space, 0, MIB);
	*host = rig_host_new(gpus, 1);
	struct gpu_span span = {space, RIG_BASE, host->bytes};
	struct gpu_request read = rig_read(&span, host->data);
	read.host = host->host;
	cr_assert_eq(rig_carry(&read), 0, "%s", read.text);
	return space;
}

/* The first area is opened, and its closing is what the script is about. */
static struct gpu_space *
pin_and_unpin(struct rig_host *host)
{
	struct gpu_space *space = pin(host);
	unpin(host);
	return space;
}

/* Gigabytes of the agent's own memory may take longer than a worker waits for its. */
Test(gpus_slow, host_memory__that_is_unpinned_slowly__does_not_end_the_process)
{
	struct rig_host host;
	script_add(script, GPU_AREA, SCRIPT_SLOW, 1, 1)->ms = 60;
	begin(RIG_PATIENCE_NS, 20 * MS);
	end_unkilled(pin_and_unpin(&host));
}

Test(gpus_slow, host_memory__that_is_not_unpinned__is_free_with_the_end_of_the_process)
{
	struct rig_host host;
	script_add(script, GPU_AREA, SCRIPT_HANG, 1, 1);
	begin(200 * MS, RIG_PATIENCE_NS);
	struct gpu_space *space = pin_and_unpin(&host);
	cr_assert_eq(rig_status(gpus).kills, 1);
	gpu_space_release(space);
	rig_wait_until(rig_no_imports, gpus);
}

/* So does a process that nobody needs, and is about to end. */
Test(gpus_slow, host_memory__that_a_process_has_at_its_end__does_not_hurry_it)
{
	struct rig_host host;
	idle_ns = script->lingers = 1;
	begin(RIG_PATIENCE_NS, 500 * MS);
	gpu_space_release(pin(&host));
	while (script->ending == 0)
		usleep(500);
	int64_t until_ns = th_now_ns() + 600 * MS;
	struct gpu_space *space = space_new();
	gpus_host_release(host.host);
	do { /* turns of its thread */
		cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	} while (th_now_ns() < until_ns);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	gpu_space_release(space);
	script->lingers = 0;
	rig_wait(1);
	cr_assert_eq(script->ended, 1, "it was killed");
	rig_host_end(&host);
}

/* A worker that has gone waits for no more than so long, though it goes on. */
Test(gpus_slow, a_worker__whose_pieces_close_slowly__is_free_in_the_end)
{
	uint64_t pieces[SLOW_PARTS];
	forget_all(open_many(pieces), pieces);
	rig_wait_until(rig_no_process, gpus);
	cr_assert_eq(rig_status(gpus).kills, 1);
	rig_wait_until(rig_no_imports, gpus);
}

static bool
nothing_open(const struct gpu_status *status)
{
	return status->imports == 0;
}

/* The agent's own memory is no worker's. */
Test(gpus_slow, own_memory__behind_pieces_that_close_slowly__has_time)
{
	uint64_t pieces[SLOW_PARTS];
	struct gpu_space *space = open_many(pieces);
	struct gpu_space *own = gpu_space_new_own(gpus, gpu_space_uuid(space), MIB, "slab", &err);
	cr_assert(own, "%s", err.text);
	cr_assert_eq(rig_settle(own, &err), 0, "%s", err.text);
	for (unsigned i = 0; i < SLOW_PARTS; i++)
		gpu_space_forget(space, pieces[i]);
	gpu_space_release(own);
	rig_wait_until(nothing_open, gpus);
	end_unkilled(space);
}

/* ---- hearing -------------------------------------------------------------------------------- */

/* It owes nothing, and nothing can be said to it. More pieces than a socket takes. */
Test(gpus_slow, a_process__that_answers_and_does_not_hear__is_killed)
{
	script_add(script, GPU_OPEN, SCRIPT_DEAF, 0, 1);
	begin(300 * MS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	for (unsigned i = 0; i < 6000; i++)
		rig_add(space, i * 4096, 4096);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	cr_assert_eq(rig_status(gpus).kills, 1);
	gpu_space_release(space);
	rig_wait_until(rig_no_imports, gpus);
}

/* Too many descriptors are on their way: what has one is refused, while there is room otherwise. Or
 * every second one. */
static _Atomic pid_t refused;
static _Atomic unsigned passes, tried;

ssize_t __real_sendmsg(int sock, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int sock, const struct msghdr *message, int flags);

ssize_t
__wrap_sendmsg(int sock, const struct msghdr *message, int flags)
{
	if (refused != getpid() || message->msg_controllen == 0 || (passes && ++tried % 2 == 0))
		return __real_sendmsg(sock, message, flags);
	errno = ETOOMANYREFS;
	return -1;
}

#define REFUSED_NS (500 * MS)

static void
add_with_descriptor(struct gpu_space *space, uint64_t at)
{
	struct cuda_handle handle = {.kind = CUDA_KIND_LEGACY, .bytes = 4096, .id = at};
	int fd = memfd_create("a piece", MFD_CLOEXEC);
	memcpy(handle.uuid, gpu_space_uuid(space), sizeof(handle.uuid));
	cr_assert_eq(gpu_space_add(space, &handle, RIG_BASE + at, fd, NULL, &err), 0);
}

Test(gpus_slow, a_descriptor__that_the_kernel_does_not_take__is_waited_for_and_not_for_ever)
{
	static const char sentence[] = "more descriptors are on their way";
	begin(REFUSED_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	struct gpu_span good = {space, RIG_BASE, 4096}, bad = {space, RIG_BASE + MIB, 4096};
	rig_add(space, 0, MIB);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	refused = getpid();
	add_with_descriptor(space, MIB);
	struct gpu_request hash = rig_hash(&bad);
	struct told refusal = {0};
	rig_submit(&hash);
	gpu_space_settle(space, settled, &refusal);
	rig_wait(2);
	cr_assert_eq(refusal.code, TH_E_MEMORY_KIND);
	cr_assert_eq(hash.code, TH_E_MEMORY_KIND);
	cr_assert(strstr(hash.text, sentence), "%s", hash.text);
	hash = rig_hash(&good);
	cr_assert_eq(rig_carry(&hash), 0, "%s", hash.text);
	refused = 0;
	hash = rig_hash(&bad);
	cr_assert_eq(rig_carry(&hash), 0, "%s", hash.text);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	cr_assert_eq(script->lives, 1);
	end_unkilled(space);
}

/* Each of them waits for 10 ms, all of them for longer than one may. */
Test(gpus_slow, descriptors__that_the_kernel_takes_one_by_one__are_waited_for)
{
	passes = 1;
	refused = getpid();
	begin(REFUSED_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	for (unsigned i = 0; i < 60; i++)
		add_with_descriptor(space, i * 4096);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	end_unkilled(space);
}

/* Likewise of the process: its socket would be ready at once, for ever. */
Test(gpus_slow, an_answer__that_the_kernel_does_not_take__is_tried_again_later)
{
	struct answers answers;
	struct wire_fd with;
	int socks[2];
	short events = 0;
	char message = 'a';
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, socks), 0);
	int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	answers_init(&answers, socks[0], wake_fd);
	refused = getpid();
	answers_send_fd(&answers, &message, 1, memfd_create("own", MFD_CLOEXEC));
	cr_assert_gt(answers_wait(&answers, &events), 0);
	cr_assert_eq(events, 0);
	answers_flush(&answers);
	cr_assert_eq(wire_receive(socks[1], &message, 1, &with), -EAGAIN);
	refused = 0;
	answers_flush(&answers);
	cr_assert_eq(wire_receive(socks[1], &message, 1, &with), 1);
	cr_assert_geq(with.fd, 0);
	while (answers.waiting == 0)
		answers_send(&answers, &message, 1);
	cr_assert_eq(answers_wait(&answers, &events), -1);
	cr_assert_eq(events, POLLOUT, "it is full");
	while (answers.waiting > 0) {
		cr_assert_eq(wire_receive(socks[1], &message, 1, &with), 1);
		answers_flush(&answers);
	}
	events = 0;
	cr_assert_eq(answers_wait(&answers, &events), -1);
	cr_assert_eq(events, 0);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* Likewise, each part in so many ms. */
#define OPEN_PARTS 60u
#define OPEN_MS 30
#define OPEN_NS (1200 * MS)

static struct gpu_space *
open_slowly(void)
{
	script_add(script, GPU_OPEN, SCRIPT_SLOW, 0, OPEN_PARTS)->ms = OPEN_MS;
	struct gpu_space *space = space_new();
	for (unsigned i = 0; i < OPEN_PARTS; i++)
		rig_add(space, i * MIB / 4, MIB / 4);
	return space;
}

/* A request that waits for as many areas. */
static void
pin_slowly(struct gpu_space *space, struct rig_host *host, struct gpu_span *span,
	struct gpu_request *request)
{
	script_add(script, GPU_AREA, SCRIPT_SLOW, 0, OPEN_PARTS)->ms = OPEN_MS;
	*host = rig_host_new(gpus, OPEN_PARTS);
	*span = (struct gpu_span){space, RIG_BASE, host->bytes};
	*request = rig_read(span, host->data);
	request->host = host->host;
	rig_submit(request);
	while (script->messages[GPU_AREA] == 0)
		usleep(500);
}

Test(gpus_slow, pieces__that_open_slowly__do_not_end_the_process)
{
	begin(OPEN_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = open_slowly();
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	end_unkilled(space);
}

Test(gpus_slow, what_waits_behind_host_memory__that_is_pinned_slowly__is_waited_for)
{
	struct rig_host host;
	struct gpu_span span;
	struct gpu_request read;
	begin(OPEN_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	rig_add(space, 0, MIB);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	pin_slowly(space, &host, &span, &read);
	rig_add(space, MIB, MIB);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	rig_wait(1);
	cr_assert_eq(read.code, 0, "%s", read.text);
	unpin(&host);
	end_unkilled(space);
}

Test(gpus_slow, a_worker__that_leaves_while_its_memory_opens_slowly__is_waited_for)
{
	begin(RIG_PATIENCE_NS, OPEN_NS);
	struct gpu_space *space = open_slowly();
	while (script->messages[GPU_OPEN] < 2)
		usleep(500);
	end_unkilled(space);
}

Test(gpus_slow, a_piece__forgotten_under_reads_that_wait_for_pins__is_waited_for)
{
	struct rig_host host;
	struct gpu_span span;
	struct gpu_request read;
	begin(RIG_PATIENCE_NS, OPEN_NS);
	struct gpu_space *space = space_new();
	uint64_t piece = rig_add(space, 0, MIB);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	pin_slowly(space, &host, &span, &read);
	while (script->messages[GPU_AREA] < 2)
		usleep(500);
	gpu_space_forget(space, piece);
	rig_wait(1); /* whether all of it had been said by now or not */
	unpin(&host);
	end_unkilled(space);
}

static sem_t starts, asked;

static int
launch_when_told(void *arg, int sock, pid_t *ret_pid, struct th_err *why)
{
	(void)sem_post(&asked);
	(void)sem_wait(&starts);
	return script_launch(arg, sock, ret_pid, why);
}

/* What is asked for meanwhile is ordered before any of it is done. */
static void
begin_when_told(void)
{
	const struct gpus_config config = {.launch = launch_when_told,
		.arg = script,
		.staging_bytes = 8 * MIB,
		.hang_ns = RIG_PATIENCE_NS,
		.leave_ns = RIG_PATIENCE_NS,
		.idle_ns = RIG_PATIENCE_NS};
	cr_assert_eq(sem_init(&starts, 0, 0), 0);
	cr_assert_eq(sem_init(&asked, 0, 0), 0);
	cr_assert_eq(gpus_new(&config, &err, &gpus), 0);
}

/* The thread has done all that was ordered before, and what was said to it. */
static void
catch_up(struct gpu_space *nothing)
{
	cr_assert_eq(rig_settle(nothing, &err), 0);
	cr_assert_eq(rig_settle(nothing, &err), 0);
}

/* Somebody else has the first piece tried again meanwhile, and it is forgotten. */
Test(gpus_slow, who_waits_for_two_pieces__of_which_one_has_failed__hears_of_both)
{
	struct told first = {0}, second = {0};
	begin_when_told();
	script_add(script, GPU_OPEN, SCRIPT_REFUSE, 0, 1)->piece = 1;
	script_add(script, GPU_OPEN, SCRIPT_WAIT, 0, 1)->piece = 2;
	struct gpu_space *space = space_new(), *nothing = space_new();
	uint64_t bad = rig_add(space, 0, MIB);
	rig_add(space, MIB, MIB);
	gpu_space_settle(space, settled, &first);
	cr_assert_eq(sem_post(&starts), 0);
	while (script->messages[GPU_OPEN] < 2)
		usleep(500);
	catch_up(nothing);
	gpu_space_settle(space, settled, &second);
	gpu_space_forget(space, bad);
	catch_up(nothing);
	cr_assert_eq(first.times + second.times, 0, "the second piece is not known");
	script->go = 1;
	rig_wait(2);
	cr_assert_eq(first.code, TH_E_MEMORY_KIND);
	cr_assert_eq(second.code, 0);
	gpu_space_release(nothing);
	end_unkilled(space);
}

/* Who came behind that never waited for it. */
Test(gpus_slow, a_piece__forgotten_before_it_is_known__is_no_other_one)
{
	struct told before = {0}, behind = {0}, alone = {0};
	begin_when_told();
	script_add(script, GPU_OPEN, SCRIPT_REFUSE, 0, 1)->piece = 2;
	struct gpu_space *space = space_new(), *other = space_new();
	uint64_t first = rig_add(space, 0, MIB);
	cr_assert_eq(sem_wait(&asked), 0);
	rig_add(space, MIB, MIB);
	uint64_t only = rig_add(other, 0, MIB);
	gpu_space_settle(space, settled, &before);
	gpu_space_settle(other, settled, &alone);
	gpu_space_forget(space, first);
	gpu_space_forget(other, only);
	gpu_space_settle(space, settled, &behind);
	cr_assert_eq(sem_post(&starts), 0);
	rig_wait(3);
	cr_assert_eq(before.code, TH_E_MEMORY_KIND);
	cr_assert_eq(behind.code, TH_E_MEMORY_KIND);
	cr_assert_eq(alone.code, 0);
	gpu_space_release(other);
	end_unkilled(space);
}

/* ---- turns ---------------------------------------------------------------------------------- */

/* Whoever waits for the first one might wait for ever: it is its turn. */
static void
open_out_of_turn(enum gpu_message_kind kind, int after)
{
	struct script_step *step = script_add(script, kind, SCRIPT_LATE, after, 1);
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	rig_add(space, 0, MIB);
	rig_add(space, MIB, MIB);
	cr_assert_eq(rig_settle(space, &err), 0, "%s", err.text);
	uint8_t *data = gpus_block_take(gpus, NULL);
	struct gpu_span span = {space, RIG_BASE, 4096};
	struct gpu_request read = rig_read(&span, data);
	cr_assert_eq(rig_carry(&read), 0, "%s", read.text);
	cr_assert_eq(step->met, 1);
	cr_assert_eq(rig_status(gpus).kills, 1);
	gpus_block_give(gpus, data);
	gpu_space_release(space);
	gpus_free(gpus);
	gpus = NULL;
}

Test(gpus_slow, a_process__that_opens_out_of_turn__is_killed)
{
	open_out_of_turn(GPU_OPEN, 0);
	/* In the second life the area comes first, and then the piece for the same request. */
	script_add(script, GPU_RUN, SCRIPT_DIE, 0, 1);
	open_out_of_turn(GPU_AREA, 1);
}

/* Nothing of it may be closed before it was opened. */
static void
close_out_of_turn(bool all)
{
	memset(script->steps, 0, sizeof(script->steps));
	memset(script->messages, 0, sizeof(script->messages));
	struct script_step *step = script_add(script, GPU_OPEN, SCRIPT_LATE, 0, 1);
	begin(RIG_PATIENCE_NS, RIG_PATIENCE_NS);
	struct gpu_space *space = space_new();
	uint64_t piece = rig_add(space, 0, MIB);
	while (step->met == 0)
		usleep(500);
	if (!all)
		gpu_space_forget(space, piece);
	else
		gpu_space_release(space);
	rig_wait_until(rig_no_process, gpus);
	cr_assert_eq(rig_status(gpus).kills, 1);
	cr_assert(strstr(rig_status(gpus).text, "it closed what"), "%s", rig_status(gpus).text);
	if (!all)
		gpu_space_release(space);
	gpus_free(gpus);
	gpus = NULL;
}

Test(gpus_slow, a_process__that_closes_what_it_opens_still__is_killed)
{
	close_out_of_turn(false);
	close_out_of_turn(true);
}

/* ---- too many -------------------------------------------------------------------------------- */

/* A process never starts, so that none of them is opened. */
Test(gpus_slow, pieces__and_gpus__are_so_many_at_most)
{
	struct gpu_space *spaces[GPUS_MAX];
	struct cuda_handle handle = {.kind = CUDA_KIND_LEGACY, .bytes = 1};
	script_add(script, GPU_START, SCRIPT_HANG, 0, 1);
	begin(RIG_PATIENCE_NS, 1);
	for (unsigned i = 0; i < GPUS_MAX; i++) {
		uint8_t other[16] = {(uint8_t)i, 1};
		spaces[i] = gpu_space_new(gpus, other, "m/r/0", &err);
		cr_assert(spaces[i], "%s", err.text);
	}
	cr_assert_null(gpu_space_new(gpus, (const uint8_t[16]){0}, "m/r/0", &err));
	cr_assert_eq(err.code, TH_E_LIMIT);
	memcpy(handle.uuid, gpu_space_uuid(spaces[0]), 16);
	for (uint64_t i = 0; i < IMPORTS_MAX; i++)
		cr_assert_eq(gpu_space_add(spaces[0], &handle, i, -1, NULL, &err), 0);
	cr_assert_eq(gpu_space_add(spaces[0], &handle, IMPORTS_MAX, -1, NULL, &err), TH_E_LIMIT);
	cr_assert_null(gpu_space_new_own(gpus, gpu_space_uuid(spaces[0]), MIB, "a slab", &err));
	cr_assert_eq(err.code, TH_E_LIMIT);
	gpu_space_forget(spaces[0], 7);
	cr_assert_eq(gpu_space_add(spaces[0], &handle, 7, -1, NULL, &err), 0, "%s", err.text);
	for (unsigned i = 0; i < GPUS_MAX; i++)
		gpu_space_release(spaces[i]);
	gpus_free(gpus);
	gpus = NULL;
}
