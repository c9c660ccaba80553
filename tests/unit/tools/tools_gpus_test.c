/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools_gpus_test - what thctl status says of GPU memory.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tools/thctl/status_tables.h"

static Tensorhub__V1__GpuInfo gpu;
static Tensorhub__V1__GpusInfo gpus;
static Tensorhub__V1__MemoryInfo memory[3];
static Tensorhub__V1__SessionInfo session;
static Tensorhub__V1__StatusReply status;
static Tensorhub__V1__GpuInfo *gpu_list[] = {&gpu};
static Tensorhub__V1__MemoryInfo *memory_list[] = {&memory[0], &memory[1], &memory[2]};
static Tensorhub__V1__SessionInfo *session_list[] = {&session};

static void
one_gpu(void)
{
	static char uuid[] = "GPU-00112233-4455-6677-8899-aabbccddeeff", name[] = "NVIDIA H100";
	static char pci[] = "0000:17:00.0", direct[] = "direct", ipc[] = "cuda-ipc";
	static char memfd[] = "memfd", chunks[] = "chunks of a range", pool[] = "a memory pool";
	static char model[] = "m", replica[] = "r";
	tensorhub__v1__gpu_info__init(&gpu);
	gpu.uuid = uuid;
	gpu.name = name;
	gpu.pci = pci;
	gpu.pid = 4711;
	gpu.workers = 3;
	gpu.pieces = 40;
	gpu.imports = 39;
	gpu.import_bytes = UINT64_C(3) << 30;
	gpu.pinned_bytes = 256 << 20;
	gpu.kills = 1;
	gpu.starts = 2;
	gpu.bytes_read = 1024;
	gpu.bytes_copied = 1024;
	gpu.hashes = true;
	tensorhub__v1__gpus_info__init(&gpus);
	gpus.used = true;
	gpus.gpus = gpu_list;
	gpus.n_gpus = 1;
	gpus.stage_budget = 256 << 20;
	gpus.stage_bytes = 8 << 20;
	for (int i = 0; i < 3; i++)
		tensorhub__v1__memory_info__init(&memory[i]);
	memory[0].path = ipc;
	memory[0].kind = chunks;
	memory[0].gpu = uuid;
	memory[0].address = 0x7f0000000000;
	memory[0].bytes = 66 << 20;
	memory[0].pieces = 33;
	memory[1].path = direct;
	memory[1].kind = memfd;
	memory[1].bytes = 4096;
	memory[1].pieces = 1;
	memory[2].path = ipc;
	memory[2].kind = pool;
	memory[2].gpu = uuid;
	tensorhub__v1__session_info__init(&session);
	session.model = model;
	session.replica = replica;
	session.shard = 5;
	session.session = 9;
	session.memory = memory_list;
	session.n_memory = 3;
	tensorhub__v1__status_reply__init(&status);
	status.sessions = session_list;
	status.n_sessions = 1;
	status.gpus = &gpus;
}

TestSuite(tools_gpus, .init = one_gpu);

static char *
shown(const struct output_format *format)
{
	struct document document;
	char *text = NULL;
	size_t bytes = 0;
	document_init(&document, "status");
	document.has_verdict = true;
	gpus_judge(&document, status.gpus);
	gpus_fields(&document, status.gpus);
	gpus_memory(&document, &status);
	gpus_table(&document, status.gpus);
	FILE *to = open_memstream(&text, &bytes);
	format->print(&document, false, to);
	fclose(to);
	document_free(&document);
	return text;
}

static void
expect(const char *want)
{
	char *text = shown(&output_table);
	cr_assert_str_eq(text, want);
	free(text);
}

static void
expect_word(const struct output_format *format, const char *word)
{
	char *text = shown(format);
	cr_assert(strstr(text, word), "no '%s' in:\n%s", word, text);
	free(text);
}

Test(tools_gpus, older_agent__nothing)
{
	status.gpus = NULL;
	session.n_memory = 0;
	expect("HEALTH_OK\n");
}

Test(tools_gpus, off__is_said)
{
	static char why[] = "gpu=off";
	tensorhub__v1__gpus_info__init(&gpus);
	gpus.why = why;
	expect("HEALTH_OK\n"
	       "gpu  not used: gpu=off\n");
}

Test(tools_gpus, nobody_has_gpu_memory__nothing)
{
	gpus.n_gpus = 0;
	gpus.stage_bytes = 0;
	expect("HEALTH_OK\n");
}

Test(tools_gpus, one_gpu__a_row_with_what_is_open)
{
	expect("HEALTH_OK\n"
	       "gpu          1 with memory of workers\n"
	       "gpu buffers  8.00MiB\n"
	       "\n"
	       "GPU           NAME          PID  WORKERS     OPEN  PINNED  CONTEXT  RUNNING  "
	       "LAST FAILURE\n"
	       "0000:17:00.0  NVIDIA H100  4711        3  3.00GiB  256MiB  -              0  -\n");
}

/* A process that came back is a number; one that does not is a warning. */
Test(tools_gpus, gpu_that_is_not_reached__is_warned_of)
{
	static char why[] = "CUDA_ERROR_NO_DEVICE";
	char *text;
	gpu.why = why;
	text = shown(&output_table);
	cr_assert_null(strstr(text, "TH_GPU"), "%s", text);
	free(text);
	gpu.pid = 0;
	expect_word(&output_table, "TH_GPU");
	expect_word(&output_table, "3 workers share memory of GPU 0000:17:00.0, which the agent "
				   "does not reach: CUDA_ERROR_NO_DEVICE");
	gpu.workers = 0;
	text = shown(&output_table);
	cr_assert_null(strstr(text, "TH_GPU"), "%s", text);
	free(text);
}

Test(tools_gpus, digests_by_the_cpu__are_said_with_their_reason)
{
	static char why[] = "CUDA_ERROR_JIT_COMPILATION_DISABLED";
	expect_word(&output_json, "\"hashes\": \"gpu\",");
	gpu.hashes = false;
	gpu.hashes_why = why;
	expect_word(&output_json, "\"hashes\": \"cpu\",");
	expect_word(&output_json, "\"hashes_why\": \"CUDA_ERROR_JIT_COMPILATION_DISABLED\"");
	expect_word(&output_wide, why);
}

Test(tools_gpus, memory__each_allocation_with_its_way)
{
	session.memory_more = 4;
	expect_word(&output_wide,
		"m      r            5  cuda-ipc  chunks of a range  66.0MiB  "
		"    33  0x7f0000000000  GPU-00112233-4455-6677-8899-aabbccddeeff");
	expect_word(&output_wide, "m      r            5  direct    memfd");
	expect_word(&output_wide, "m      r            5  ...       more");
	expect_word(&output_json, "\"path\": \"cuda-ipc\"");
	expect_word(&output_json, "\"kills\": 1");
	expect_word(&output_json, "\"bytes_moved\": 2048");
	struct value paths = gpus_paths(&session);
	cr_assert_str_eq(paths.text, "cuda-ipc,direct", "each once");
	free(paths.text);
	static char by_worker[] = "worker-copy", copy[] = "copy";
	memory[0].path = by_worker;
	memory[1].path = memory[2].path = copy;
	paths = gpus_paths(&session);
	cr_assert_str_eq(paths.text, "worker-copy,copy");
	free(paths.text);
}
