/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance cases of transport_test.c with shards in the memory of GPUs, which their real
 * processes read and write by the driver of the tests, or on real GPUs by the machine's own
 * (rig_gpus.h): each kind of memory, over tcp, within a host and through slots of RDMA. Three of
 * the twelve suites are of every run, all with -Dlong=true or -Dgpu_kinds=true.
 */
#include <criterion/criterion.h>

#include "tests/support/gpu/rig_gpus.h"
#include "tests/support/transport/transport_pair.h"

static void
run_on(enum cuda_kind kind, void (*name)(enum mode mode), enum mode mode)
{
	RIG_GPUS_NEED(kind);
	pair_rails = mode == MODE_RDMA ? 2 : 0;
	rig_gpus_kind = kind;
	rig_gpus_init(64 * MIB, false);
	rig_of_sources = rig_of_readers = RIG_GPU;
	name(mode);
	rig_gpus_fini();
}

#define ON(suite, name, kind, mode)                                                                \
	Test(suite, name)                                                                          \
	{                                                                                          \
		run_on(kind, name, mode);                                                          \
	}
#ifdef CONFORMANCE_ALL
#define ON_EACH(suite, name, kind)                                                                 \
	ON(suite##_tcp, name, kind, MODE_TCP)                                                      \
	ON(suite##_local, name, kind, MODE_LOCAL)                                                  \
	ON(suite##_rdma_copy, name, kind, MODE_RDMA)
#define ON_GPUS(name)                                                                              \
	ON_EACH(cuda_legacy, name, CUDA_KIND_LEGACY)                                               \
	ON_EACH(cuda_chunk, name, CUDA_KIND_CHUNK)                                                 \
	ON_EACH(cuda_chunks, name, CUDA_KIND_CHUNKS)                                               \
	ON_EACH(cuda_pool, name, CUDA_KIND_POOL)
#else
#define ON_GPUS(name)                                                                              \
	ON(cuda_chunks_local, name, CUDA_KIND_CHUNKS, MODE_LOCAL)                                  \
	ON(cuda_legacy_tcp, name, CUDA_KIND_LEGACY, MODE_TCP)                                      \
	ON(cuda_pool_rdma_copy, name, CUDA_KIND_POOL, MODE_RDMA)
#endif

#include "tests/unit/transport/transport_test.c"
