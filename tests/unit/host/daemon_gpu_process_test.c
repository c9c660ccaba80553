/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of daemon/host/gpu: from a worker's handle to the process that opens it. The worker is a
 * child with a GPU of the tests, the test is the agent, and its GPU process is this program again,
 * which is asked before main what it is.
 */
#include <criterion/criterion.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/host/config/options_set.h"
#include "daemon/host/host.h"
#include "daemon/host/memory/memory_gpu.h"
#include "daemon/host/move/gpu_service.h"
#include "daemon/host/move/gpu_spawn.h"
#include "daemon/host/status/status_gpu.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/cuda/cuda_handle.h"
#include "tests/support/cuda/machine.h"
#include "tests/support/cuda/people.h"
#include "transport/cuda/agent/gpus.h"
#include "transport/cuda/helper/helper.h"
#include "transport/part/fd_memory.h"

#define MIB ((uint64_t)1 << 20)
#define PIECE_BYTES (2 * MIB)
#define PIECES 3u
#define PATIENCE_NS INT64_C(50000000000)

static struct machine machine;
static struct host host;
static struct memory_set set;
static struct person person;
static struct th_err err;

__attribute__((constructor)) static void
be_the_child(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], LAUNCH_OPTION) == 0)
		_exit(gpu_helper_main(LAUNCH_SOCK));
}

/* Shares some pieces, and keeps them until it is told. */
static void
worker(int sock)
{
	struct cuda own = cuda_ready(0);
	struct cuda_memory memory;
	char step = 0;
	cuda_memory_init(&memory, 0);
	for (uint32_t i = 0; i < PIECES; i++) {
		struct cuda_handle handle;
		CUdeviceptr address = 0;
		int fd = -1;
		TH_ASSERT(test_cuda.cuMemAlloc(&address, PIECE_BYTES) == CUDA_SUCCESS);
		TH_ASSERT(cuda_memory_add(&memory, &own, address, PIECE_BYTES, NULL) == 0);
		const struct cuda_piece *piece = cuda_memory_find(&memory, address);
		TH_ASSERT(cuda_handle_make(&own, 0, piece, &handle, &fd, NULL) == 0);
		struct fdmsg_gpu message = {.base = address, .bytes = handle.bytes};
		memcpy(message.handle, &handle, sizeof(handle));
		tell(sock, &message, sizeof(message), fd);
		th_fd_close(&fd);
	}
	cuda_memory_end(&memory);
	(void)hear(sock, &step, 1);
}

static void
on_signal(void *arg, int number)
{
	(void)arg;
	(void)number;
}

static void
open_host(void)
{
	host.gpu.source.fd = host.gpu.fd = host.gpu.lifeline[0] = host.gpu.lifeline[1] = -1;
	cr_assert_eq(loop_open(&host.loop, on_signal, &host, &err), 0);
	cr_assert_eq(gpu_open(&host, &err), 0, "%s", err.text);
}

static void
setup(void)
{
	machine_new(&machine, 1, 64 * MIB);
	person = person_new(worker);
	options_default(&host.options);
	host.options.gpu.digest_on_cpu = true;
	open_host();
}

static void
close_host(void)
{
	memory_fini(&set);
	gpu_close(&host);
	loop_close(&host.loop);
}

static uint32_t taken;

/* Returns its descriptor or -1. */
static int
next_piece(struct fdmsg_gpu *ret_message)
{
	taken++;
	return hear(person.sock, ret_message, sizeof(*ret_message));
}

static void
teardown(void)
{
	struct fdmsg_gpu message;
	close_host();
	if (person.pid > 0) {
		while (taken < PIECES)
			(void)next_piece(&message);
		tell(person.sock, "", 1, -1);
		person_end(&person);
	}
	cr_assert_eq(machine_used(&machine, 0), 0, "something is left on the GPU");
	machine_remove(&machine);
}

TestSuite(daemon_gpu_process, .init = setup, .fini = teardown, .timeout = 60);

/* The worker's next piece, spoilt if asked for. */
static void
take(bool spoilt)
{
	const struct memory_limits limits = {.objects_max = 10, .descriptors_max = 10};
	const struct memory_gpu_limits gpu_limits = {
		.gpus = host.gpu.gpus, .why_not = host.gpu.why_not, .label = "m/r/0", .process = 7};
	struct fdmsg_gpu message;
	struct cuda_handle handle;
	uint32_t id = 0;
	int fd = next_piece(&message);
	memcpy(&handle, message.handle, sizeof(handle));
	if (spoilt)
		memset(handle.data, 0x5a, sizeof(handle.data));
	memcpy(message.handle, &handle, sizeof(handle));
	cr_assert_eq(memory_gpu_add(&set, &message, &fd, &limits, &gpu_limits, false, &err, &id), 0,
		"%s", err.text);
	th_fd_close(&fd);
}

struct answer {
	uint32_t times;
	struct th_err result;
};

static void
on_settled(void *arg, const struct th_err *result)
{
	struct answer *answer = arg;
	answer->times++;
	answer->result = *result;
}

static void
run_loop(int64_t until_ns)
{
	loop_arm(&host.loop, until_ns);
	loop_wait(&host.loop, false);
}

static void
wait_for_answer(const struct answer *answer)
{
	int64_t end_ns = th_now_ns() + PATIENCE_NS;
	while (answer->times == 0) {
		cr_assert_lt(th_now_ns(), end_ns);
		run_loop(end_ns);
	}
}

static uint32_t
imports(void)
{
	struct gpu_status status = {.imports = 0};
	return gpus_status(host.gpu.gpus, &status, 1) == 1 ? status.imports : 0;
}

Test(daemon_gpu_process, pieces__of_a_worker__are_open_when_it_is_told_so)
{
	struct answer answer = {0};
	for (uint32_t i = 0; i < PIECES; i++)
		take(false);
	cr_assert_not_null(gpu_wait(&host, &set, 1, on_settled, &answer));
	cr_assert_eq(answer.times, 0, "never within the call");
	wait_for_answer(&answer);
	cr_assert_eq(answer.result.code, 0, "%s", answer.result.text);
	int64_t end_ns = th_now_ns() + PATIENCE_NS;
	while (imports() != PIECES) { /* counted a moment later */
		cr_assert_lt(th_now_ns(), end_ns);
		usleep(1000);
	}
	/* The worker dies, and what it shared is there as long as it is not let go. */
	person_kill(&person);
	person.pid = 0;
	cr_assert_geq(machine_used(&machine, 0), PIECES * PIECE_BYTES);
	memory_fini(&set);
	fd_memory_sweep();
	while (machine_used(&machine, 0) > machine.page->devices[0].context_bytes) {
		cr_assert_lt(th_now_ns(), end_ns);
		usleep(1000);
	}
}

/* What a worker hears of that unregisters. */
Test(daemon_gpu_process, memory__of_a_worker__is_free_when_it_is_told_so)
{
	struct answer opened = {0}, answer = {0};
	for (uint32_t i = 0; i < PIECES; i++)
		take(false);
	(void)gpu_wait(&host, &set, 1, on_settled, &opened);
	wait_for_answer(&opened);
	struct gpu_status status;
	cr_assert_eq(gpus_status(host.gpu.gpus, &status, 1), 1);
	cr_assert_eq(machine_holds(&machine, status.pid, HELD_IMPORTS), PIECES);
	memory_gpu_forget_all(&set);
	struct hold *hold = set.hold;
	set.hold = NULL;
	(void)gpu_wait_gone(&host, hold, on_settled, &answer);
	run_loop(th_now_ns());
	cr_assert_eq(answer.times, 0, "it is forgotten, and not given back");
	memory_sweep(&set);
	wait_for_answer(&answer);
	cr_assert_eq(machine_holds(&machine, status.pid, HELD_IMPORTS), 0);
	cr_assert_eq(answer.result.code, 0);
}

/* Also where nobody can say what a context takes. */
Test(daemon_gpu_process, status__memory_of_the_agents_own__is_the_agents)
{
	struct gpu_status status = {.own_bytes = 0};
	struct answer answer = {0};
	uint8_t uuid[16];
	take(false);
	memcpy(uuid, gpu_space_uuid(set.gpus[0].space), sizeof(uuid));
	machine.page->devices[0].context_bytes = 0;
	(void)gpu_wait(&host, &set, 1, on_settled, &answer);
	wait_for_answer(&answer);
	struct gpu_space *own = gpu_space_new_own(host.gpu.gpus, uuid, 2 * MIB, "own", &err);
	cr_assert_not_null(own, "%s", err.text);
	int64_t end_ns = th_now_ns() + PATIENCE_NS;
	while (status.own_bytes == 0) {
		cr_assert_lt(th_now_ns(), end_ns);
		usleep(1000);
		cr_assert_eq(gpus_status(host.gpu.gpus, &status, 1), 1);
	}
	cr_assert_eq(status.context_bytes, 0);
	struct status_gpu *shown = status_gpu_new(&host);
	cr_assert_eq(status_gpu_info(shown)->gpus[0]->context_bytes, 2 * MIB);
	status_gpu_free(shown);
	gpu_space_release(own);
}

Test(daemon_gpu_process, handle__that_the_driver_does_not_open__is_told_with_the_reason)
{
	struct answer answer = {0}, again = {0};
	take(false);
	take(true);
	(void)gpu_wait(&host, &set, 1, on_settled, &answer);
	wait_for_answer(&answer);
	cr_assert_eq(answer.result.code, TH_E_MEMORY_KIND);
	cr_assert(strstr(answer.result.text, "CUDA_ERROR"), "%s", answer.result.text);
	/* Without it all is well. */
	cr_assert_eq(memory_forget(&set, 2, false), 0);
	(void)gpu_wait(&host, &set, 1, on_settled, &again);
	wait_for_answer(&again);
	cr_assert_eq(again.result.code, 0, "%s", again.result.text);
	cr_assert_eq(answer.times, 1);
}

Test(daemon_gpu_process, wait__cancelled__is_not_told)
{
	struct answer answer = {0}, other = {0};
	take(false);
	struct gpu_wait *wait = gpu_wait(&host, &set, 1, on_settled, &answer);
	(void)gpu_wait(&host, &set, 1, on_settled, &other);
	gpu_wait_cancel(wait);
	gpu_wait_cancel(NULL);
	wait_for_answer(&other);
	cr_assert_eq(answer.times, 0);
	/* One that is under way when the agent ends. */
	(void)gpu_wait(&host, &set, 1, on_settled, &answer);
}

/* The worker sees the end of the last that could touch its memory. */
Test(daemon_gpu_process, lifeline__hangs_up_when_agent_and_process_are_gone)
{
	struct answer answer = {0};
	struct pollfd line = {.fd = dup(host.gpu.lifeline[0])};
	take(false);
	(void)gpu_wait(&host, &set, 1, on_settled, &answer);
	wait_for_answer(&answer);
	cr_assert_eq(answer.result.code, 0, "%s", answer.result.text);
	th_fd_close(&host.gpu.lifeline[1]);
	cr_assert_eq(poll(&line, 1, 0), 0, "the process of the GPU is there");
	memory_fini(&set);
	fd_memory_sweep();
	gpus_free(host.gpu.gpus);
	host.gpu.gpus = NULL;
	cr_assert_eq(poll(&line, 1, 30000), 1);
	cr_assert_eq(line.revents, POLLHUP);
	th_fd_close(&line.fd);
}

Test(daemon_gpu_process, machine__without_a_gpu__is_said_to_who_registers)
{
	struct answer answer = {0};
	close_host();
	memset(&host.gpu, 0, sizeof(host.gpu));
	cr_assert_eq(unsetenv(MACHINE_ENV), 0);
	open_host();
	take(false);
	(void)gpu_wait(&host, &set, 1, on_settled, &answer);
	wait_for_answer(&answer);
	cr_assert_eq(answer.result.code, TH_E_MEMORY_KIND);
	cr_assert_neq(answer.result.text[0], '\0');
	cr_log_info("%s", answer.result.text);
}

Test(daemon_gpu_process, off__there_is_a_sentence_and_a_lifeline)
{
	close_host();
	memset(&host.gpu, 0, sizeof(host.gpu));
	host.options.gpu.used = false;
	open_host();
	cr_assert_null(host.gpu.gpus);
	cr_assert(strstr(host.gpu.why_not, "gpu=auto"), "%s", host.gpu.why_not);
	cr_assert_geq(host.gpu.lifeline[0], 0);
}
