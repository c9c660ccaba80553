/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_helper_hostile_test - messages that no agent sends end the process of a GPU, and nothing
 * else; an agent that does not listen holds it up, and no more.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "tests/support/cuda/helper_rig.h"
#include "transport/part/chunk.h"

#define MIB ((uint64_t)1 << 20)
#define WORKER 7u
#define ALL UINT64_MAX

static struct machine machine;
static struct rig rig;
static struct rig_worker worker;

static void
setup(void)
{
	machine_new(&machine, 1, 64 * MIB);
}

static void
teardown(void)
{
	machine_remove(&machine);
}

/* It ends by itself, says nothing, and leaves no memory. */
static void
expect_end(const char *what)
{
	rig_hear_end(&rig, 0);
	cr_assert_eq(rig_end(&rig), 2, "%s", what);
	cr_assert_eq(machine_used(&machine, 0), 0);
}

/* bytes of the message, which may be longer than it; fds: that go with it. */
static void
refused(const char *what, bool started, const void *message, size_t bytes, int fd)
{
	if (started)
		rig_start(&rig, &machine, 0);
	else
		rig_launch(&rig);
	rig_send(&rig, message, bytes, fd);
	expect_end(what);
}

Test(gpu_helper_hostile, messages__of_no_agent__end_it, .init = setup, .fini = teardown)
{
	static char long_one[GPU_MESSAGE_BYTES_MAX + 8];
	struct gpu_start start = {.kind = GPU_START};
	struct gpu_area area = {.kind = GPU_AREA, .bytes = 4096};
	struct gpu_leave leave = {.kind = GPU_LEAVE, .worker = WORKER, .piece = ALL};
	struct gpu_open open = {.kind = GPU_OPEN, .worker = WORKER, .piece = ALL};
	int fd = memfd_create("any", MFD_CLOEXEC);
	uint32_t kind = 0;
	memcpy(start.uuid, machine.page->devices[0].uuid.bytes, sizeof(start.uuid));
	refused("kind 0", true, &kind, sizeof(kind), -1);
	refused("short", true, "x", 1, -1);
	kind = GPU_DONE;
	refused("an answer", true, &kind, sizeof(kind), -1);
	refused("second START", true, &start, sizeof(start), -1);
	refused("short START", false, &start, sizeof(start) - 1, -1);
	refused("START with a descriptor", false, &start, sizeof(start), fd);
	refused("LEAVE first", false, &leave, sizeof(leave), -1);
	refused("LEAVE with a descriptor", true, &leave, sizeof(leave), fd);
	refused("long LEAVE", true, long_one, sizeof(long_one), -1);
	refused("AREA without its own", true, &area, sizeof(area), -1);
	area.area = GPU_AREAS_MAX;
	refused("area number", true, &area, sizeof(area), fd);
	area = (struct gpu_area){.kind = GPU_AREA};
	refused("AREA of nothing with a descriptor", true, &area, sizeof(area), fd);
	area.area = 1;
	refused("AREA that is not there is forgotten", true, &area, sizeof(area), -1);
	area = (struct gpu_area){.kind = GPU_AREA, .bytes = 4096};
	refused("AREA twice", true, &area, sizeof(area), fd);
	refused("OPEN of all", true, &open, sizeof(open), -1);
	refused("OPEN first", false, &open, sizeof(open), -1);
	open.own = 1;
	refused("OPEN of all, its own", true, &open, sizeof(open), -1);
	open.piece = 0;
	refused("OPEN of its own with a descriptor", true, &open, sizeof(open), fd);
	open.own = 2;
	refused("OPEN of nobody's", true, &open, sizeof(open), -1);
	th_fd_close(&fd);
}

Test(gpu_helper_hostile, message__with_two_descriptors__ends_it, .init = setup, .fini = teardown)
{
	struct gpu_area area = {.kind = GPU_AREA, .bytes = 4096};
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control = {.head = {.cmsg_level = SOL_SOCKET,
			     .cmsg_type = SCM_RIGHTS,
			     .cmsg_len = CMSG_LEN(2 * sizeof(int))}};
	struct iovec part = {&area, sizeof(area)};
	const struct msghdr head = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control)};
	const int fds[2] = {STDIN_FILENO, STDERR_FILENO};
	memcpy(CMSG_DATA(&control.head), fds, sizeof(fds));
	rig_start(&rig, &machine, 0);
	cr_assert_eq(sendmsg(rig.sock, &head, 0), (ssize_t)sizeof(area));
	expect_end("two descriptors");
}

/* ---- RUN ------------------------------------------------------------------------------------ */

struct one_run {
	struct gpu_run run;
	struct gpu_range ranges[3];
};

static void
refused_run(const char *what, const struct one_run *run, size_t bytes)
{
	refused(what, true, run, bytes, -1);
}

Test(gpu_helper_hostile, runs__of_no_agent__end_it, .init = setup, .fini = teardown)
{
	const struct one_run good = {.run = {.kind = GPU_RUN,
					     .op = GPU_READ,
					     .num_from = 1,
					     .num_chunks = 1,
					     .chunk_bytes = {4096}},
		.ranges = {{WORKER, 0, 0, 4096}, {WORKER, 0, 0, 4096}}};
	const size_t bytes = offsetof(struct one_run, ranges[1]);
	struct one_run run = good;
	refused_run("no ranges", &run, sizeof(run.run));
	refused_run("a range more", &run, bytes + sizeof(run.ranges[0]));
	refused_run("half a head", &run, sizeof(run.run) / 2);
	run.run.op = 0;
	refused_run("op", &run, bytes);
	run.run.op = GPU_WRITE;
	refused_run("wrong side", &run, bytes);
	run.run.op = GPU_COPY;
	refused_run("one side", &run, bytes);
	run = good;
	run.run.hashes = 2;
	refused_run("hashes", &run, bytes);
	run = good;
	run.run.chunk_bytes[0] = 4095;
	refused_run("sum", &run, bytes);
	run = good;
	run.ranges[0].bytes = run.run.chunk_bytes[0] = CHUNK_BYTES_MAX + 1u;
	refused_run("too many bytes", &run, bytes);
	run = good;
	run.ranges[0].bytes = run.run.chunk_bytes[0] = 0;
	refused_run("nothing", &run, bytes);
	run = good;
	run.ranges[0].at = UINT64_MAX - 4094;
	refused_run("over the end", &run, bytes);
	run = good;
	run.run.num_from = 2;
	run.ranges[0].bytes = UINT64_MAX;
	run.ranges[1].bytes = 4097;
	refused_run("sum over the end", &run, bytes + sizeof(run.ranges[0]));
	run = good;
	run.run.num_from = GPU_RANGES_MAX + 1u;
	refused_run("ranges", &run, bytes);
	run.run.num_from = UINT32_MAX;
	run.run.num_to = 2;
	refused_run("ranges of both sides", &run, bytes);
}

/* Of several chunks. */
Test(gpu_helper_hostile, groups__of_no_agent__end_it, .init = setup, .fini = teardown)
{
	const struct one_run good = {.run = {.kind = GPU_RUN,
					     .op = GPU_HASH,
					     .num_from = 1,
					     .num_chunks = 2,
					     .chunk_bytes = {4096, 1000}},
		.ranges = {{WORKER, 0, 0, 5096}}};
	const size_t bytes = offsetof(struct one_run, ranges[1]);
	struct one_run run = good;
	run.run.op = GPU_READ;
	refused_run("two chunks of the host's", &run, bytes);
	run = good;
	run.run.num_chunks = 0;
	run.ranges[0].bytes = 0;
	refused_run("no chunk", &run, bytes);
	run = good;
	run.run.num_chunks = GPU_RUN_CHUNKS_MAX + 1u;
	refused_run("chunks", &run, bytes);
	run.run.num_chunks = UINT32_MAX;
	refused_run("all chunks", &run, bytes);
	run = good;
	run.ranges[0].bytes = run.run.chunk_bytes[0] = 5096;
	run.run.chunk_bytes[1] = 0;
	refused_run("an empty chunk", &run, bytes);
	run = good;
	run.run.chunk_bytes[1] = UINT32_MAX;
	run.ranges[0].bytes = 4096 + (uint64_t)UINT32_MAX;
	refused_run("a chunk longer than any", &run, bytes);
	run = good;
	run.run.num_chunks = 1;
	refused_run("a range over the last chunk", &run, bytes);
	run = good;
	run.run.num_chunks = 3;
	run.run.chunk_bytes[2] = 1;
	refused_run("a chunk that has no range", &run, bytes);
}

static void
expect_done(int code)
{
	struct gpu_done done = rig_done(&rig);
	cr_assert_eq(done.code, code, "%d: %s", done.code, done.text);
}

Test(gpu_helper_hostile, runs__that_do_not_fit__fail, .init = setup, .fini = teardown)
{
	const struct gpu_range whole = {WORKER, 0, 0, MIB},
			       beyond = {WORKER, 0, RIG_PIECE_BYTES - MIB + 1, MIB},
			       far = {WORKER, 0, UINT64_MAX - MIB, MIB}, none = {WORKER, 1, 0, MIB};
	struct gpu_area_is is;
	int fd = memfd_create("short", MFD_CLOEXEC);
	rig_start(&rig, &machine, 0);
	worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	rig_worker_open(&worker, &rig, WORKER);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &beyond, 1, false);
	expect_done(TH_E_PROTOCOL);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &far, 1, false);
	expect_done(TH_E_PROTOCOL);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &none, 1, false);
	expect_done(TH_E_STALE_MEMORY);
	rig_run(&rig, GPU_READ, RIG_AREA_BYTES - MIB + 1, NULL, 0, &whole, 1, false);
	expect_done(TH_E_PROTOCOL);
	rig_run(&rig, GPU_READ, UINT64_MAX - 5, NULL, 0, &whole, 1, false);
	expect_done(TH_E_PROTOCOL);
	/* A file that is shorter than it is said to be is not touched. */
	cr_assert_eq(ftruncate(fd, 4096), 0);
	cr_assert_eq(rig_area(&rig, 0, 0, -1, &is), 0);
	cr_assert_eq(rig_area(&rig, 0, 8192, fd, &is), TH_E_PROTOCOL);
	cr_assert(strstr(is.text, "has only 4096 behind"), "%s", is.text);
	rig_run(&rig, GPU_READ, 0, NULL, 0, &whole, 1, false);
	expect_done(TH_E_PROTOCOL);
	cr_assert_eq(rig_area(&rig, 1, 4095, fd, &is), TH_E_PROTOCOL);
	cr_assert_eq(rig_area(&rig, 0, 0, -1, &is), 0);
	cr_assert_eq(rig_area(&rig, 0, RIG_AREA_BYTES, rig.area_fd, &is), 0);
	rig_run(&rig, GPU_READ, RIG_AREA_BYTES - MIB, NULL, 0, &whole, 1, false);
	expect_done(0);
	/* Nor is a worker's lie the agent's. */
	struct cuda_handle bad = worker.handles[0];
	bad.bytes += 1;
	struct gpu_opened opened = rig_open(&rig, WORKER, 5, &bad, -1);
	cr_assert_eq(opened.code, TH_E_PROTOCOL, "%s", opened.text);
	th_fd_close(&fd);
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
	rig_worker_kill(&worker);
}

Test(gpu_helper_hostile, open__twice__ends_it, .init = setup, .fini = teardown)
{
	rig_start(&rig, &machine, 0);
	worker = rig_worker_new(CUDA_KIND_LEGACY, 0, 1);
	const struct gpu_open open = {
		.kind = GPU_OPEN, .worker = WORKER, .handle = worker.handles[0]};
	rig_send(&rig, &open, sizeof(open), -1);
	rig_send(&rig, &open, sizeof(open), -1);
	rig_hear_end(&rig, GPU_OPENED);
	cr_assert_eq(rig_end(&rig), 2);
	rig_worker_kill(&worker);
}

Test(gpu_helper_hostile, runs__too_many__end_it, .init = setup, .fini = teardown)
{
	const struct gpu_range whole = {WORKER, 0, 0, 4096};
	rig_start(&rig, &machine, 0);
	worker = rig_worker_new(CUDA_KIND_CHUNK, 0, 1);
	rig_worker_open(&worker, &rig, WORKER);
	int plan = machine_plan(&machine, FAULT_HANG, rig.pid, CALL_STREAM, 0, 0);
	for (uint32_t i = 0; i < GPU_RUNS_MAX + 1; i++)
		rig_run(&rig, GPU_READ, 0, NULL, 0, &whole, 1, false);
	rig_hear_end(&rig, 0);
	cr_assert_eq(rig_end(&rig), 2);
	machine_lift(&machine, plan);
	rig_worker_kill(&worker);
	cr_assert_eq(machine_used(&machine, 0), 0);
}

/* ---- an agent that does not listen ---------------------------------------------------------- */

Test(gpu_helper_hostile, answers__nobody_takes__wait_and_are_bounded, .init = setup,
	.fini = teardown)
{
	const struct gpu_leave leave = {.kind = GPU_LEAVE, .worker = WORKER, .piece = ALL};
	struct gpu_left left;
	uint32_t sent = 0;
	rig_start(&rig, &machine, 0);
	/* Until it takes no more: its own socket is full and what may wait there waits. */
	for (int quiet = 0; quiet < 20;) {
		struct timespec pause = {.tv_nsec = 5000000};
		if (send(rig.sock, &leave, sizeof(leave), MSG_DONTWAIT) == (ssize_t)sizeof(leave)) {
			sent++;
			quiet = 0;
		} else {
			cr_assert_eq(errno, EAGAIN);
			quiet++;
			nanosleep(&pause, NULL);
		}
		cr_assert_lt(sent, 100000u);
	}
	for (uint32_t i = 0; i < sent; i++)
		rig_hear(&rig, GPU_LEFT, &left, sizeof(left));
	rig_hear_nothing(&rig, 20);
	rig_hang_up(&rig);
	cr_assert_eq(rig_end(&rig), 0);
}
