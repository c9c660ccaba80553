/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance cases of transport_test.c with shards in the memory of GPUs (fake_gpus.h): at the
 * source, at the reader, at both, and rows of more than one kind. Each over tcp, within a host and
 * through slots of RDMA. One of the twelve suites is of every run, all of them with -Dlong=true.
 * conformance_cuda_test.c has them with the processes and the driver behind.
 */
#include <criterion/criterion.h>

#include "tests/support/gpu/rig_fake_gpus.h"
#include "tests/support/transport/transport_pair.h"

static void
run_on(enum rig_memory from, enum rig_memory to, void (*name)(enum mode mode), enum mode mode)
{
	pair_rails = mode == MODE_RDMA ? 2 : 0;
	rig_fake_gpus_init(64 * MIB);
	rig_of_sources = from;
	rig_of_readers = to;
	name(mode);
	rig_fake_gpus_fini();
}

#define ON(suite, name, from, to, mode)                                                            \
	Test(suite, name)                                                                          \
	{                                                                                          \
		run_on(from, to, name, mode);                                                      \
	}
#ifdef CONFORMANCE_ALL
#define ON_EACH(suite, name, from, to)                                                             \
	ON(suite##_tcp, name, from, to, MODE_TCP)                                                  \
	ON(suite##_local, name, from, to, MODE_LOCAL)                                              \
	ON(suite##_rdma_copy, name, from, to, MODE_RDMA)
#define ON_GPUS(name)                                                                              \
	ON_EACH(gpu_source, name, RIG_GPU, RIG_MAPPED)                                             \
	ON_EACH(gpu_reader, name, RIG_MAPPED, RIG_GPU)                                             \
	ON_EACH(gpu_both, name, RIG_GPU, RIG_GPU)                                                  \
	ON_EACH(gpu_mixed, name, RIG_GPU_MAPPED, RIG_GPU_PROCESS)
#else
#define ON_GPUS(name) ON(gpu_mixed_tcp, name, RIG_GPU_MAPPED, RIG_GPU_PROCESS, MODE_TCP)
#endif

#include "tests/unit/transport/transport_test.c"
