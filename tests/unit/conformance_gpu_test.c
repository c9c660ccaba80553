/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance cases of transport_test.c with shards in the memory of GPUs (fake_gpus.h): at the
 * source, at the reader, at both, and rows of more than one kind. Each over tcp, within a host and
 * through slots of RDMA; two of the twelve in every run, all of them when TH_LONG is 1.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/rig_fake_gpus.h"
#include "tests/support/transport_pair.h"

static void
run_on(enum rig_memory from, enum rig_memory to, void (*name)(enum mode mode), enum mode mode,
	bool always)
{
	const char *all = getenv("TH_LONG");
	if (!always && !(all && strcmp(all, "1") == 0))
		cr_skip_test("only when TH_LONG is 1");
	pair_rails = mode == MODE_RDMA ? 2 : 0;
	rig_fake_gpus_init(64 * MIB);
	rig_of_sources = from;
	rig_of_readers = to;
	name(mode);
	rig_fake_gpus_fini();
}

#define ON(suite, name, from, to, tcp, local)                                                      \
	Test(suite##_tcp, name)                                                                    \
	{                                                                                          \
		run_on(from, to, name, MODE_TCP, tcp);                                             \
	}                                                                                          \
	Test(suite##_local, name)                                                                  \
	{                                                                                          \
		run_on(from, to, name, MODE_LOCAL, local);                                         \
	}                                                                                          \
	Test(suite##_rdma_copy, name)                                                              \
	{                                                                                          \
		run_on(from, to, name, MODE_RDMA, false);                                          \
	}
#define ON_GPUS(name)                                                                              \
	ON(gpu_source, name, RIG_GPU, RIG_MAPPED, false, false)                                    \
	ON(gpu_reader, name, RIG_MAPPED, RIG_GPU, false, false)                                    \
	ON(gpu_both, name, RIG_GPU, RIG_GPU, false, true)                                          \
	ON(gpu_mixed, name, RIG_GPU_MAPPED, RIG_GPU_PROCESS, true, false)

#include "tests/unit/transport_test.c"
