/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_host_bench - GB/s of a copy between a GPU and memory of the agent, each way: by the GPU
 * itself, through the staging, and by the driver alone; and from one GPU to another by RDMA that
 * reaches neither, so that both ends copy through slabs of the host's. The best of some rounds.
 *
 *   [TH_GPU_HARDWARE=1] build/tests/bench/gpu_host_bench [BYTES]
 *
 * But for hardware the GPUs are files, so a copy engine is the driver's thread and a kernel a slow
 * CPU: what counts is how the ways compare. Prints one object of JSON.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/units.h"
#include "tests/support/cuda/people.h"
#include "tests/support/gpu/rig_gpus.h"

#define ROUNDS 4u
#define STAGING (256 * MIB)
#define STALL_NS INT64_C(15000000000) /* a busy machine is no stall */

static struct rig rig;
static struct rig_agent *agent, *peer; /* the peer: another host */
static uint64_t leg;

static double
gb_s(uint64_t bytes, int64_t since_ns)
{
	return (double)bytes / (double)(th_now_ns() - since_ns);
}

static double
copy(struct rig_shard shards[2], enum rig_memory from_memory, enum rig_memory to_memory,
	bool verify, bool by_rdma)
{
	struct xfer_part *from = rig_part_of(&shards[0], from_memory, verify);
	struct xfer_part *to = rig_part_of(&shards[1], to_memory, verify);
	if (verify)
		rig_add_digests(from);
	xfer_part_advance(from, shards[0].table->num_chunks);
	int64_t begin_ns = th_now_ns();
	leg++;
	if (by_rdma)
		rig_pull(peer, agent, leg, from, to);
	else
		TH_ASSERT(transport_copy(agent->transport, leg, from, to) == 0);
	const struct transport_event *done = rig_wait(&rig, agent, TRANSPORT_DONE, leg);
	double rate = gb_s(shards[0].table->bytes, begin_ns);
	if (by_rdma && strcmp(done->transport, "rdma-copy") != 0)
		rate = 0; /* not what was asked for */
	xfer_part_release(from);
	xfer_part_release(to);
	return rate;
}

/* The shards of a pair keep the memory that they got first. */
static double
best(uint64_t bytes, enum rig_memory from, enum rig_memory to, bool verify, bool by_rdma)
{
	struct rig_shard shards[2];
	double most = 0;
	rig_shard_init(&shards[0], &bytes, 1, 1);
	rig_shard_init(&shards[1], &bytes, 1, 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		double rate = copy(shards, from, to, verify, by_rdma);
		most = rate > most ? rate : most;
	}
	rig_shard_fini(&shards[0]);
	rig_shard_fini(&shards[1]);
	return most;
}

static double
best_alone(uint64_t bytes, bool out)
{
	struct cuda cuda = cuda_ready(0);
	void *host = aligned_alloc(4096, bytes);
	CUdeviceptr gpu = 0;
	double most = 0;
	TH_ASSERT(host && cuda.cuMemHostRegister(host, bytes, 0) == CUDA_SUCCESS);
	TH_ASSERT(test_cuda.cuMemAlloc(&gpu, bytes) == CUDA_SUCCESS);
	for (unsigned i = 0; i < ROUNDS; i++) {
		int64_t begin_ns = th_now_ns();
		CUresult result = out ? test_cuda.cuMemcpyDtoH(host, gpu, bytes)
				      : test_cuda.cuMemcpyHtoD(gpu, host, bytes);
		TH_ASSERT(result == CUDA_SUCCESS);
		double rate = gb_s(bytes, begin_ns);
		most = rate > most ? rate : most;
	}
	TH_ASSERT(cuda.cuMemFree(gpu) == CUDA_SUCCESS);
	TH_ASSERT(cuda.cuMemHostUnregister(host) == CUDA_SUCCESS);
	free(host);
	return most;
}

int
main(int argc, char **argv)
{
	uint64_t bytes = 128 * MIB;
	if (argc > 2 || (argc > 1 && th_parse_size(argv[1], &bytes) < 0) || bytes < 1 * MIB) {
		fprintf(stderr, "usage: gpu_host_bench [BYTES]\n");
		return 2;
	}
	bytes -= bytes % MIB;
	rig_gpus_init(STAGING, false);
	rig_no_dmabufs = true;
	rig.num_rails = 1;
	agent = rig_add_agent(&rig, STALL_NS, 0);
	peer = rig_add_agent(&rig, STALL_NS, 0);
	printf("{\"bytes\": %llu", (unsigned long long)bytes);
	for (unsigned out = 0; out < 2; out++) {
		const char *way = out ? "offload" : "reload";
		printf(", \"%s_driver\": %.2f", way, best_alone(bytes, out));
		for (unsigned verify = 0; verify < 2; verify++) {
			const char *kind = verify ? "verified_" : "";
			printf(", \"%s_%sdirect\": %.2f, \"%s_%sstaged\": %.2f", way, kind,
				out ? best(bytes, RIG_GPU, RIG_HOST, verify, false)
				    : best(bytes, RIG_HOST, RIG_GPU, verify, false),
				way, kind,
				out ? best(bytes, RIG_GPU, RIG_MAPPED, verify, false)
				    : best(bytes, RIG_MAPPED, RIG_GPU, verify, false));
		}
	}
	for (unsigned verify = 0; verify < 2; verify++)
		printf(", \"%srdma_copy\": %.2f", verify ? "verified_" : "",
			best(bytes, RIG_GPU, RIG_GPU, verify, true));
	printf("}\n");
	rig_halt(&rig);
	rig_fini(&rig);
	rig_gpus_fini();
	return 0;
}
