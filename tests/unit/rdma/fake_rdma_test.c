/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of tests/support/fake_rdma: that it is as strict as real devices are. */
#include "tests/support/rdma/fake_rdma.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES 65536u

/* Two devices, memory on both, one queue pair on each. */
struct ends {
	struct fake_rdma *fake;
	struct verbs verbs[2];
	const struct verbs_ops *ops;
	struct verbs_device *devices[2];
	struct verbs_cq *cqs[2];
	struct verbs_qp *qps[2];
	struct verbs_path paths[2]; /* to that end */
	struct verbs_mr mrs[2];
	uint8_t memory[2][BYTES];
};

static struct ends e;

static void
start(uint32_t cq_depth, const struct fake_device_config *config)
{
	e = (struct ends){.fake = fake_rdma_new(true)};
	for (uint32_t i = 0; i < 2; i++) {
		struct fake_host *host = fake_rdma_host(e.fake);
		struct verbs_gid gid;
		fake_rdma_device(host, config);
		e.verbs[i] = fake_rdma_verbs(host);
		e.ops = e.verbs[i].ops;
		cr_assert_eq(e.ops->open(e.verbs[i].context, &e.devices[i], 1), 1);
		cr_assert_eq(e.ops->cq_new(e.devices[i], cq_depth, &e.cqs[i]), 0);
		cr_assert_eq(e.ops->reg(e.devices[i], e.memory[i], BYTES, 0,
				     i ? VERBS_REMOTE_READ : VERBS_LOCAL_WRITE, &e.mrs[i]),
			0);
		cr_assert_eq(e.ops->gids(e.devices[i], 1, &gid, 1), 1);
		e.paths[i] = (struct verbs_path){.port = 1,
			.global = true,
			.psn = 7 + i,
			.own_psn = 8 - i,
			.mtu_bytes = 4096,
			.reads_out = 4,
			.reads_in = 4,
			.timeout = 14,
			.retries = 7};
		memcpy(e.paths[i].gid, gid.raw, sizeof(gid.raw));
		cr_assert_eq(
			e.ops->qp_new(e.devices[i], e.cqs[i], 32, &e.qps[i], &e.paths[i].qpn), 0);
	}
	for (uint32_t i = 0; i < BYTES; i++)
		e.memory[1][i] = (uint8_t)(i % 251);
}

static void
connect_ends(void)
{
	cr_assert_eq(e.ops->qp_connect(e.qps[0], &e.paths[1]), 0);
	cr_assert_eq(e.ops->qp_connect(e.qps[1], &e.paths[0]), 0);
}

static void
finish(void)
{
	for (uint32_t i = 0; i < 2; i++) {
		if (e.qps[i])
			cr_assert_eq(e.ops->qp_free(e.qps[i]), 0);
		if (e.mrs[i].handle)
			cr_assert_eq(e.ops->dereg(e.devices[i], &e.mrs[i]), 0);
		e.ops->cq_free(e.cqs[i]);
		e.ops->close(e.devices[i]);
	}
	fake_rdma_free(e.fake);
}

/* So many of 1 KiB, from the beginning; the signalled ones by a mask of their numbers. */
static int
post(uint32_t count, uint64_t signalled)
{
	struct verbs_read reads[32];
	for (uint32_t i = 0; i < count; i++)
		reads[i] = (struct verbs_read){.id = i,
			.local = i * 1024u,
			.remote = i * 1024u,
			.lkey = e.mrs[0].lkey,
			.rkey = e.mrs[1].rkey,
			.bytes = 1024,
			.signalled = signalled >> i & 1};
	return e.ops->post_reads(e.qps[0], reads, count);
}

/* The status of one READ. */
static enum verbs_status
read_one(const struct verbs_read *read)
{
	struct verbs_done done;
	cr_assert_eq(e.ops->post_reads(e.qps[0], read, 1), 0);
	fake_rdma_run(e.fake, INT64_C(10000000000));
	cr_assert_eq(e.ops->cq_poll(e.cqs[0], &done, 1), 1);
	cr_assert_eq(done.id, read->id);
	return done.status;
}

Test(fake_rdma, unsignalled__silent_and_in_order)
{
	struct verbs_done done[8];
	start(64, NULL);
	connect_ends();
	cr_assert_eq(post(8, 0x88), 0);
	cr_assert_eq(e.ops->cq_poll(e.cqs[0], done, 8), 0);
	fake_rdma_run(e.fake, FAKE_LATENCY_NS * 3);
	cr_assert_eq(e.ops->cq_poll(e.cqs[0], done, 8), 2);
	cr_assert_eq(done[0].id, 3);
	cr_assert_eq(done[1].id, 7);
	cr_assert_eq(memcmp(e.memory[0], e.memory[1], 8192), 0);
	finish();
}

Test(fake_rdma, reads_out__the_rest_waits)
{
	struct fake_counters counters;
	struct verbs_done done[8];
	start(64, NULL);
	connect_ends();
	cr_assert_eq(post(8, 0xff), 0);
	fake_rdma_run(e.fake, FAKE_LATENCY_NS);
	/* Four at a time, and no time for their bytes. */
	cr_assert_eq(e.ops->cq_poll(e.cqs[0], done, 8), 4);
	fake_rdma_run(e.fake, FAKE_LATENCY_NS * 2);
	cr_assert_eq(e.ops->cq_poll(e.cqs[0], done, 8), 4);
	fake_rdma_counters(e.devices[0], &counters);
	cr_assert_eq(counters.out_max, 4);
	cr_assert_eq(counters.outstanding_ns, 12 * FAKE_LATENCY_NS);
	finish();
}

Test(fake_rdma, send_queue__room_comes_back_by_polling)
{
	struct verbs_done done[8];
	start(64, NULL);
	connect_ends();
	cr_assert_eq(post(32, UINT64_C(1) << 31), 0);
	cr_assert_eq(post(1, 1), -ENOMEM);
	fake_rdma_run(e.fake, FAKE_LATENCY_NS * 10);
	cr_assert_eq(post(1, 1), -ENOMEM);
	cr_assert_eq(e.ops->cq_poll(e.cqs[0], done, 8), 1);
	cr_assert_eq(post(32, 1), 0);
	finish();
}

Test(fake_rdma, completion_queue_overruns__all_is_lost)
{
	struct fake_counters counters;
	struct verbs_done done[8];
	struct verbs_event event;
	start(4, NULL);
	connect_ends();
	cr_assert_eq(post(5, 0x1f), 0);
	fake_rdma_run(e.fake, FAKE_LATENCY_NS * 3);
	cr_assert_eq(e.ops->cq_poll(e.cqs[0], done, 8), -EIO);
	fake_rdma_counters(e.devices[0], &counters);
	cr_assert_eq(counters.overruns, 1);
	cr_assert_eq(e.ops->event_next(e.devices[0], &event), 1);
	cr_assert_eq(event.kind, VERBS_EVENT_CQ);
	cr_assert_eq(e.ops->event_next(e.devices[0], &event), 0);
	finish();
}

Test(fake_rdma, error__takes_all_behind_it_along)
{
	for (uint32_t quiet = 0; quiet < 2; quiet++) {
		struct fake_device_config config = {.flushes_signalled_only = quiet};
		struct verbs_done done[16];
		start(64, &config);
		connect_ends();
		fake_rdma_fail_read(e.devices[0], 2, VERBS_OTHER);
		cr_assert_eq(post(8, 0x88), 0);
		fake_rdma_run(e.fake, FAKE_LATENCY_NS * 3);
		cr_assert_eq(e.ops->cq_poll(e.cqs[0], done, 16), quiet ? 3 : 6);
		cr_assert_eq(done[0].id, 2);
		cr_assert_eq(done[0].status, VERBS_OTHER);
		cr_assert_eq(done[1].status, VERBS_FLUSHED);
		/* And what comes later. */
		cr_assert_eq(post(1, 1), 0);
		cr_assert_eq(e.ops->cq_poll(e.cqs[0], done, 16), 1);
		cr_assert_eq(done[0].status, VERBS_FLUSHED);
		finish();
	}
}

Test(fake_rdma, memory__bounds_keys_and_access)
{
	static const struct {
		uint64_t local, remote;
		uint32_t bytes;
		bool own_key, gone;
		enum verbs_status status;
	} cases[] = {
		{BYTES - 1, BYTES - 1, 1, false, false, VERBS_OK},
		{0, 0, BYTES, false, false, VERBS_OK},
		{0, BYTES - 1, 2, false, false, VERBS_ACCESS},
		{0, BYTES, 1, false, false, VERBS_ACCESS},
		{0, UINT64_MAX, 2, false, false, VERBS_ACCESS},
		{BYTES - 1, 0, 2, false, false, VERBS_LOCAL},
		{0, 0, 1, true, false, VERBS_ACCESS},
		{0, 0, 1, false, true, VERBS_ACCESS},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		start(64, NULL);
		connect_ends();
		struct verbs_read read = {.id = i,
			.local = cases[i].local,
			.remote = cases[i].remote,
			.lkey = e.mrs[0].lkey,
			.rkey = cases[i].own_key ? e.mrs[1].rkey + 1 : e.mrs[1].rkey,
			.bytes = cases[i].bytes,
			.signalled = true};
		if (cases[i].gone)
			cr_assert_eq(e.ops->dereg(e.devices[1], &e.mrs[1]), 0);
		cr_assert_eq(read_one(&read), cases[i].status, "%zu", i);
		/* The other side's queue pair is told, and of no more use. */
		struct verbs_event event;
		bool told = e.ops->event_next(e.devices[1], &event) == 1;
		cr_assert_eq(told, cases[i].status == VERBS_ACCESS);
		finish();
	}
}

Test(fake_rdma, peers_that_do_not_agree__no_answer)
{
	enum { NOT_CONNECTED, FREED, PACKET_NUMBER, ADDRESS, READS, KINDS };
	for (int kind = 0; kind < KINDS; kind++) {
		start(64, NULL);
		struct verbs_path path = e.paths[0];
		struct verbs_read read = {.lkey = e.mrs[0].lkey,
			.rkey = e.mrs[1].rkey,
			.bytes = 8,
			.signalled = true};
		cr_assert_eq(e.ops->qp_connect(e.qps[0], &e.paths[1]), 0);
		if (kind == PACKET_NUMBER)
			path.psn++;
		if (kind == ADDRESS)
			path.gid[15]++;
		if (kind == READS)
			path.reads_in = 3;
		if (kind != NOT_CONNECTED)
			cr_assert_eq(e.ops->qp_connect(e.qps[1], &path), 0);
		if (kind == FREED) {
			cr_assert_eq(e.ops->qp_free(e.qps[1]), 0);
			e.qps[1] = NULL;
		}
		cr_assert_eq(read_one(&read), kind == READS ? VERBS_OTHER : VERBS_GONE);
		finish();
	}
}

Test(fake_rdma, retries__an_answer_before_they_are_used_up_is_good)
{
	struct verbs_done done[8];
	start(64, NULL);
	connect_ends();
	fake_rdma_cut(e.devices[0], e.devices[1], true);
	cr_assert_eq(post(4, 8), 0);
	/* 67 ms for each. */
	fake_rdma_run(e.fake, 500000000);
	cr_assert_eq(e.ops->cq_poll(e.cqs[0], done, 8), 0);
	fake_rdma_cut(e.devices[0], e.devices[1], false);
	fake_rdma_run(e.fake, 600000000);
	cr_assert_eq(e.ops->cq_poll(e.cqs[0], done, 8), 1);
	cr_assert_eq(done[0].id, 3);
	cr_assert_eq(done[0].status, VERBS_OK);
	cr_assert_eq(memcmp(e.memory[0], e.memory[1], 4096), 0);
	finish();
}

Test(fake_rdma, rates__the_slower_end_counts)
{
	struct fake_device_config config = {.bytes_per_second = 1000000000};
	struct verbs_done done[8];
	start(64, &config);
	connect_ends();
	fake_rdma_set_rate(e.devices[1], 500000000);
	cr_assert_eq(post(4, 8), 0);
	/* 4 KiB at 0.5 GB/s. */
	fake_rdma_run(e.fake, FAKE_LATENCY_NS + 8190);
	cr_assert_eq(e.ops->cq_poll(e.cqs[0], done, 8), 0);
	fake_rdma_run(e.fake, FAKE_LATENCY_NS + 8192);
	cr_assert_eq(e.ops->cq_poll(e.cqs[0], done, 8), 1);
	finish();
}

Test(fake_rdma, dmabuf__memory_of_a_descriptor)
{
	struct fake_device_config config = {.dmabuf = true};
	struct verbs_mr mr;
	int fd = memfd_create("dmabuf", MFD_CLOEXEC);
	cr_assert_geq(fd, 0);
	cr_assert_eq(ftruncate(fd, 8192), 0);
	cr_assert_eq(pwrite(fd, "weights", 7, 4096), 7);
	start(64, &config);
	connect_ends();
	cr_assert_eq(e.ops->reg_dmabuf(e.devices[1], fd, 4096, 4096, 0, VERBS_REMOTE_READ, &mr), 0);
	close(fd);
	struct verbs_read read = {
		.lkey = e.mrs[0].lkey, .rkey = mr.rkey, .bytes = 7, .signalled = true};
	cr_assert_eq(read_one(&read), VERBS_OK);
	cr_assert_eq(memcmp(e.memory[0], "weights", 7), 0);
	cr_assert_eq(e.ops->dereg(e.devices[1], &mr), 0);
	finish();
}
