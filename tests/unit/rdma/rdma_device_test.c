/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of device (rails and what happens to them) and queues (queue pairs of a lane).
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/support/rdma/fake_rdma.h"
#include "tests/support/tally.h"
#include "transport/rdma/device/device.h"
#include "transport/rdma/engine/queues.h"

#define MIB_BYTES (UINT64_C(1) << 20)
#define DEVICES_MAX 4u

struct bench { /* what most tests need */
	struct fake_rdma *fake;
	struct fake_host *host;
	struct verbs_device *devices[DEVICES_MAX];
	struct loop *keeper;
	struct rails *rails;
	struct rails_config config;
	struct tally tally;
	uint32_t changed[RAILS_MAX], lost[RAILS_MAX], failed[RAILS_MAX], last_qpn; /* by tally */
	uint32_t closing[RAILS_MAX], opened[RAILS_MAX];
	uint32_t refused; /* times that `opened` fails */
};

static void
on_changed(void *arg, uint32_t rail)
{
	struct bench *bench = arg;
	tally_add(&bench->tally, &bench->changed[rail]);
}

static void
on_lost(void *arg, uint32_t rail)
{
	struct bench *bench = arg;
	tally_add(&bench->tally, &bench->lost[rail]);
}

static void
on_failed(void *arg, uint32_t rail, uint32_t qpn)
{
	struct bench *bench = arg;
	bench->last_qpn = qpn;
	tally_add(&bench->tally, &bench->failed[rail]);
}

static void
on_closing(void *arg, uint32_t rail)
{
	struct bench *bench = arg;
	tally_add(&bench->tally, &bench->closing[rail]);
}

static int
on_opened(void *arg, uint32_t rail)
{
	struct bench *bench = arg;
	cr_assert_not_null(rail_device(bench->rails, rail));
	tally_add(&bench->tally, &bench->opened[rail]);
	if (bench->refused == 0)
		return 0;
	bench->refused--;
	return -ENOMEM;
}

static int64_t
keeper_tick(void *arg, int64_t now_ns)
{
	struct bench *bench = arg;
	struct rails *rails = __atomic_load_n(&bench->rails, __ATOMIC_ACQUIRE);
	return rails ? rails_tick(rails, now_ns) : INT64_MAX;
}

static void
setup(struct bench *bench, uint32_t num_devices)
{
	*bench = (struct bench){.config = rails_config_default()};
	bench->fake = fake_rdma_new(false);
	bench->host = fake_rdma_host(bench->fake);
	for (uint32_t i = 0; i < num_devices; i++)
		bench->devices[i] = fake_rdma_device(bench->host, NULL);
	tally_init(&bench->tally);
	bench->config.look_ns = 1000000;
	cr_assert_eq(loop_new("keeper", LOOP_EPOLL, keeper_tick, bench, &bench->keeper), 0);
}

struct sync_task {
	struct loop_task task;
	struct bench *bench;
	void (*run)(struct bench *bench, void *arg);
	void *arg;
	uint32_t done;
};

static void
run_sync(struct loop_task *task)
{
	struct sync_task *sync = loop_container(task, struct sync_task, task);
	if (sync->run)
		sync->run(sync->bench, sync->arg);
	tally_add(&sync->bench->tally, &sync->done);
}

/* On the keeper's thread, after all that was posted there before. */
static void
on_keeper(struct bench *bench, void (*run)(struct bench *bench, void *arg), void *arg)
{
	struct sync_task sync = {.task.run = run_sync, .bench = bench, .run = run, .arg = arg};
	loop_post(bench->keeper, &sync.task);
	tally_wait(&bench->tally, &sync.done, 1);
}

static void
start(struct bench *bench)
{
	struct rails_user user = {.arg = bench,
		.changed = on_changed,
		.completions_lost = on_lost,
		.queue_failed = on_failed,
		.closing = on_closing,
		.opened = on_opened};
	struct rails *rails;
	cr_assert_eq(rails_new(fake_rdma_verbs(bench->host), &bench->config, bench->keeper, &user,
			     &rails),
		0);
	__atomic_store_n(&bench->rails, rails, __ATOMIC_RELEASE);
	/* The rails are watched from here on. */
	on_keeper(bench, NULL, NULL);
}

static void
end_clock(struct bench *bench, void *arg)
{
	(void)arg;
	__atomic_store_n(&bench->rails, NULL, __ATOMIC_RELEASE);
}

static void
teardown(struct bench *bench)
{
	struct rails *rails = bench->rails;
	on_keeper(bench, end_clock, NULL);
	rails_free(rails);
	loop_free(bench->keeper);
	fake_rdma_free(bench->fake);
	tally_fini(&bench->tally);
}

static struct rail_status
status_of(struct bench *bench, uint32_t rail)
{
	struct rail_status status;
	rail_status(bench->rails, rail, &status);
	return status;
}

static struct fake_counters
counters_of(struct verbs_device *device)
{
	struct fake_counters counters;
	fake_rdma_counters(device, &counters);
	return counters;
}

static void
event(struct verbs_device *device, enum verbs_event_kind kind, uint32_t qpn)
{
	fake_rdma_add_event(device, &(struct verbs_event){.kind = kind, .qpn = qpn});
}

/* Its only address is 10.77.c.d. */
static void
set_address(struct verbs_device *device, uint32_t index, uint8_t c, uint8_t d)
{
	const struct verbs_gid gid = {.index = index,
		.type = VERBS_GID_ROCE_V2,
		.raw = {[10] = 0xff, [11] = 0xff, [12] = 10, [13] = 77, [14] = c, [15] = d}};
	fake_rdma_set_gids(device, 1, &gid, 1);
}

/* ---- rails ---- */

Test(rdma_device, no_device__no_rail_and_no_failure)
{
	static struct bench bench;
	setup(&bench, 0);
	start(&bench);
	cr_assert_eq(rails_count(bench.rails), 0);
	cr_assert_eq(rails_up(bench.rails), 0);
	teardown(&bench);
}

/* Whatever there is on this machine: mostly no device, no driver, no /dev/infiniband. */
Test(rdma_device, libibverbs__opens_what_there_is)
{
	static struct bench bench;
	struct rails_user user = {0};
	setup(&bench, 0);
	struct verbs verbs;
	struct th_err err;
	cr_assert_eq(verbs_ib(&verbs, &err), 0, "%s", err.text);
	cr_assert_eq(rails_new(verbs, &bench.config, bench.keeper, &user, &bench.rails), 0);
	cr_assert_leq(rails_count(bench.rails), RAILS_MAX);
	teardown(&bench);
}

static int
refuse_to_open(void *context, struct verbs_device **ret_devices, uint32_t devices_max)
{
	(void)context;
	(void)ret_devices;
	(void)devices_max;
	return -EPERM;
}

Test(rdma_device, open__its_failure_is_passed_on)
{
	static struct bench bench;
	struct rails_user user = {0};
	setup(&bench, 0);
	const struct verbs_ops ops = {.open = refuse_to_open};
	cr_assert_eq(rails_new((struct verbs){.ops = &ops}, &bench.config, bench.keeper, &user,
			     &bench.rails),
		-EPERM);
	loop_free(bench.keeper);
	fake_rdma_free(bench.fake);
}

Test(rdma_device, ports__each_is_a_rail)
{
	static struct bench bench;
	setup(&bench, 3);
	fake_rdma_config(bench.devices[1])->num_ports = 2;
	const struct verbs_gid gid = {.index = 3,
		.type = VERBS_GID_ROCE_V2,
		.raw = {[10] = 0xff, [11] = 0xff, [12] = 10, [14] = 1, [15] = 2}};
	fake_rdma_set_gids(bench.devices[1], 2, &gid, 1);
	start(&bench);
	cr_assert_eq(rails_count(bench.rails), 4);
	cr_assert_eq(rails_up(bench.rails), 0xf);
	cr_assert_eq(rails_there(bench.rails), 0xf);
	cr_assert_str_eq(rail_name(bench.rails, 0), "fake0/1");
	cr_assert_str_eq(rail_name(bench.rails, 2), "fake1/2");
	cr_assert_eq(rail_device(bench.rails, 1), rail_device(bench.rails, 2));
	cr_assert_eq(rail_device(bench.rails, 3), bench.devices[2]);
	struct endpoint endpoint;
	struct endpoint_port port;
	struct th_err err;
	cr_assert_eq(rail_endpoint(bench.rails, 2, &endpoint, &port, &err), 0);
	cr_assert(endpoint.gid[14] == 1 && endpoint.gid[15] == 2);
	cr_assert(port.port == 2 && port.gid_index == 3 && port.timeout == 16 && port.retries == 7);
	teardown(&bench);
}

Test(rdma_device, names__choose_devices_and_ports)
{
	static struct bench bench;
	static const char *const names[] = {"fake0", "fake1/2", "fake9"};
	setup(&bench, 3);
	for (uint32_t i = 0; i < 3; i++)
		fake_rdma_config(bench.devices[i])->num_ports = 2;
	bench.config.names = names;
	bench.config.num_names = TH_ARRAY_LEN(names);
	start(&bench);
	cr_assert_eq(rails_count(bench.rails), 3);
	cr_assert_str_eq(rail_name(bench.rails, 0), "fake0/1");
	cr_assert_str_eq(rail_name(bench.rails, 1), "fake0/2");
	cr_assert_str_eq(rail_name(bench.rails, 2), "fake1/2");
	cr_assert_eq(counters_of(bench.devices[2]).opens, 0); /* nobody wants it */
	teardown(&bench);
}

Test(rdma_device, endpoint__no_more_than_device_and_configuration_offer)
{
	static struct bench bench;
	setup(&bench, 2);
	fake_rdma_config(bench.devices[0])->reads_out_max = 128;
	fake_rdma_config(bench.devices[0])->reads_in_max = 2;
	fake_rdma_config(bench.devices[0])->mtu_bytes = 1024;
	bench.config.mtu_bytes = 2048;
	bench.config.traffic_class = 106;
	bench.config.service_level = 3;
	bench.config.pkey_index = 1;
	start(&bench);
	struct endpoint endpoint;
	struct endpoint_port port;
	struct th_err err;
	cr_assert_eq(rail_endpoint(bench.rails, 0, &endpoint, &port, &err), 0);
	cr_assert(endpoint.reads_out == 16 && endpoint.reads_in == 2 && endpoint.mtu_bytes == 1024);
	cr_assert(port.traffic_class == 106 && port.service_level == 3 && port.pkey_index == 1);
	cr_assert_eq(rail_endpoint(bench.rails, 1, &endpoint, &port, &err), 0);
	cr_assert_eq(endpoint.mtu_bytes, 2048);
	teardown(&bench);
}

Test(rdma_device, not_usable__each_reason_is_said)
{
	static struct bench bench;
	setup(&bench, 4);
	fake_rdma_port_set(bench.devices[0], 1, false);
	fake_rdma_set_gids(bench.devices[1], 1, NULL, 0);
	fake_rdma_refuse(bench.devices[2], FAKE_PORT, FAKE_ALWAYS, -EIO);
	fake_rdma_config(bench.devices[3])->reads_in_max = 0;
	start(&bench);
	cr_assert_eq(rails_up(bench.rails), 0);
	cr_assert_eq(rails_there(bench.rails), 0xf);
	cr_assert_neq(strstr(status_of(&bench, 0).why, "link is down"), NULL);
	cr_assert_neq(strstr(status_of(&bench, 1).why, "none of 0 GIDs"), NULL);
	cr_assert_neq(strstr(status_of(&bench, 2).why, "cannot be asked"), NULL);
	cr_assert_neq(strstr(status_of(&bench, 3).why, "no READ"), NULL);
	struct endpoint endpoint;
	struct endpoint_port port;
	struct th_err err;
	cr_assert_eq(rail_endpoint(bench.rails, 0, &endpoint, &port, &err), TH_E_NO_PATH);
	cr_assert_neq(strstr(err.text, "fake0/1"), NULL, "%s", err.text);
	teardown(&bench);
}

Test(rdma_device, infiniband__needs_a_lid)
{
	static struct bench bench;
	setup(&bench, 0);
	for (uint32_t i = 0; i < 2; i++) {
		const struct fake_device_config config = {
			.infiniband = true, .without_lid = i == 0};
		bench.devices[i] = fake_rdma_device(bench.host, &config);
	}
	start(&bench);
	cr_assert_eq(rails_up(bench.rails), 2);
	teardown(&bench);
}

Test(rdma_device, port_events__down_and_up_again)
{
	static struct bench bench;
	setup(&bench, 1);
	start(&bench);
	struct verbs_device *device = bench.devices[0];
	for (uint32_t round = 0; round < 3; round++) {
		fake_rdma_port_set(device, 1, false);
		tally_wait(&bench.tally, &bench.changed[0], 2 * round + 1);
		cr_assert_eq(rails_up(bench.rails), 0);
		cr_assert_eq(status_of(&bench, 0).state, RAIL_DOWN);
		fake_rdma_port_set(device, 1, true);
		tally_wait(&bench.tally, &bench.changed[0], 2 * round + 2);
		cr_assert_eq(rails_up(bench.rails), 1);
		cr_assert_str_eq(status_of(&bench, 0).why, "");
	}
	cr_assert_eq(status_of(&bench, 0).changes, 6);
	teardown(&bench);
}

Test(rdma_device, gid_events__the_index_moves_and_the_address_changes)
{
	static struct bench bench;
	struct endpoint endpoint;
	struct endpoint_port port;
	struct th_err err;
	setup(&bench, 1);
	struct verbs_device *device = bench.devices[0];
	set_address(device, 3, 0, 1);
	start(&bench);
	/* The same address elsewhere: new queue pairs find it, old ones do not care. */
	set_address(device, 7, 0, 1);
	event(device, VERBS_EVENT_QP, 5);
	tally_wait(&bench.tally, &bench.failed[0], 1); /* comes after it */
	cr_assert_eq(bench.changed[0], 0);
	cr_assert_eq(rail_endpoint(bench.rails, 0, &endpoint, &port, &err), 0);
	cr_assert_eq(port.gid_index, 7);
	/* Another address. */
	set_address(device, 7, 9, 9);
	tally_wait(&bench.tally, &bench.changed[0], 1);
	cr_assert_eq(rail_endpoint(bench.rails, 0, &endpoint, &port, &err), 0);
	cr_assert(endpoint.gid[14] == 9 && endpoint.gid[15] == 9);
	/* None, and one again. */
	fake_rdma_set_gids(device, 1, NULL, 0);
	tally_wait(&bench.tally, &bench.changed[0], 2);
	cr_assert_eq(rails_up(bench.rails), 0);
	set_address(device, 7, 9, 9);
	tally_wait(&bench.tally, &bench.changed[0], 3);
	cr_assert_eq(rails_up(bench.rails), 1);
	teardown(&bench);
}

Test(rdma_device, queue_events__are_passed_on_for_each_port)
{
	static struct bench bench;
	setup(&bench, 2);
	fake_rdma_config(bench.devices[0])->num_ports = 2;
	start(&bench);
	event(bench.devices[0], VERBS_EVENT_QP, 4711);
	tally_wait(&bench.tally, &bench.failed[1], 1);
	cr_assert(bench.failed[0] == 1 && bench.last_qpn == 4711);
	event(bench.devices[0], VERBS_EVENT_CQ, 0);
	tally_wait(&bench.tally, &bench.lost[1], 1);
	cr_assert(bench.lost[0] == 1 && bench.lost[2] == 0 && bench.failed[2] == 0);
	teardown(&bench);
}

Test(rdma_device, device_events__gone)
{
	static struct bench bench;
	setup(&bench, 3);
	fake_rdma_config(bench.devices[0])->num_ports = 2;
	start(&bench);
	fake_rdma_remove(bench.devices[0]);
	tally_wait(&bench.tally, &bench.changed[0], 1);
	tally_wait(&bench.tally, &bench.changed[1], 1);
	cr_assert_eq(rails_there(bench.rails), 0xc);
	cr_assert_eq(rails_up(bench.rails), 0xc);
	cr_assert_eq(status_of(&bench, 1).state, RAIL_GONE);
	cr_assert_neq(strstr(status_of(&bench, 1).why, "gone"), NULL);
	/* Nobody reads them any more. */
	fake_rdma_port_set(bench.devices[0], 1, true);
	/* The channel of the events itself fails: the same. */
	fake_rdma_refuse(bench.devices[1], FAKE_OPEN_AGAIN, FAKE_ALWAYS, -ENODEV);
	fake_rdma_fail_events(bench.devices[1], -EIO);
	tally_wait(&bench.tally, &bench.changed[2], 1);
	cr_assert_eq(rails_up(bench.rails), 0x8);
	cr_assert_eq(counters_of(bench.devices[0]).events, 1);
	teardown(&bench);
}

/* Until the device was looked for so often from now on. */
static void
wait_tries(struct verbs_device *device, uint32_t tries)
{
	uint64_t until = counters_of(device).tries + tries;
	while (counters_of(device).tries < until)
		(void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

Test(rdma_device, lost_and_back__closed_looked_for_and_opened)
{
	static struct bench bench;
	setup(&bench, 2);
	struct verbs_device *device = bench.devices[0];
	fake_rdma_config(device)->num_ports = 2;
	bench.refused = 1;
	start(&bench);
	fake_rdma_remove(device);
	tally_wait(&bench.tally, &bench.closing[1], 1);
	wait_tries(device, 2);
	cr_assert_eq(rails_up(bench.rails), 4);
	cr_assert_not_null(strstr(status_of(&bench, 0).why, "gone for"));
	cr_assert_not(rail_hold(bench.rails, 1));
	fake_rdma_refuse(device, FAKE_OPEN_AGAIN, FAKE_ALWAYS, -EIO);
	cr_assert(fake_rdma_return(device));
	wait_tries(device, 2);
	/* The user's part fails once: all is closed again. */
	fake_rdma_refuse(device, FAKE_OPEN_AGAIN, 0, 0);
	tally_wait(&bench.tally, &bench.opened[1], 1);
	tally_wait(&bench.tally, &bench.changed[1], 2);
	cr_assert_eq(rails_up(bench.rails), 7);
	cr_assert(bench.opened[0] == 2 && bench.closing[0] == 2 && bench.closing[2] == 0);
	cr_assert(rail_hold(bench.rails, 1));
	rail_unhold(bench.rails, 1);
	/* Its events are read again. */
	fake_rdma_port_set(device, 1, false);
	tally_wait(&bench.tally, &bench.changed[0], 3);
	cr_assert_eq(rails_up(bench.rails), 6);
	teardown(&bench);
}

Test(rdma_device, back_and_less_than_before__left_alone)
{
	static struct bench bench;
	setup(&bench, 1);
	start(&bench);
	fake_rdma_remove(bench.devices[0]);
	tally_wait(&bench.tally, &bench.closing[0], 1);
	wait_tries(bench.devices[0], 1);
	fake_rdma_config(bench.devices[0])->mr_bytes_max = MIB_BYTES;
	cr_assert(fake_rdma_return(bench.devices[0]));
	wait_tries(bench.devices[0], 2);
	cr_assert_eq(rails_there(bench.rails), 0);
	cr_assert_eq(bench.opened[0], 0);
	teardown(&bench);
}

/* ---- queue pairs ---- */

static struct endpoint
peer_endpoint(void)
{
	struct endpoint peer = {.link = VERBS_LINK_ETHERNET,
		.mtu_bytes = 1024,
		.reads_out = 4,
		.reads_in = 8,
		.qpns = {100, 101},
		.psns = {1, 2}};
	peer.gid[10] = peer.gid[11] = 0xff;
	peer.gid[12] = 10;
	return peer;
}

static void
use_queues(struct bench *bench, void *arg)
{
	(void)arg;
	struct queues reader, source, more;
	struct th_err err = {0};
	struct endpoint peer = peer_endpoint();
	struct verbs_device *device = bench->devices[0];
	const struct fake_seen *seen = fake_rdma_seen(device);
	const struct verbs_ops *ops = rails_ops(bench->rails);
	struct verbs_cq *cq;
	cr_assert_eq(ops->cq_new(device, 64, &cq), 0);
	cr_assert_eq(queues_new(bench->rails, 0, cq, 16, &reader, &err), 0);
	cr_assert_eq(queues_new(bench->rails, 0, NULL, 16, &source, &err), 0);
	cr_assert_eq(queues_new(bench->rails, 0, NULL, 16, &more, &err), 0);
	struct fake_counters counters = counters_of(device);
	cr_assert(counters.cqs == 2 && counters.qps == 3 * ENDPOINT_QPS);
	cr_assert_neq(reader.own.qpns[0], reader.own.qpns[1]);
	/* Of 24 bits each; once in 10^21 runs all of them are the same by chance. */
	cr_assert(memcmp(reader.own.psns, source.own.psns, sizeof(reader.own.psns)) != 0 ||
		  memcmp(reader.own.psns, more.own.psns, sizeof(reader.own.psns)) != 0);
	cr_assert_eq(endpoint_check(&reader.own, &err), 0, "%s", err.text);

	cr_assert_eq(
		queues_connect(bench->rails, &reader, &peer, ENDPOINT_READER, "peer", &err), 0);
	cr_assert_eq(
		queues_connect(bench->rails, &source, &peer, ENDPOINT_SOURCE, "peer", &err), 0);
	cr_assert_eq(seen->num_paths, 2 * ENDPOINT_QPS);
	const struct verbs_path *path = &seen->paths[1];
	cr_assert(path->qpn == 101 && path->psn == 2 && path->own_psn == reader.own.psns[1]);
	cr_assert(path->reads_out == 8 && path->reads_in == 0 && path->mtu_bytes == 1024);
	path = &seen->paths[2];
	cr_assert(path->qpn == 100 && path->reads_out == 0 && path->reads_in == 4);
	cr_assert(reader.reads == 8 && source.reads == 4);

	peer.link = VERBS_LINK_INFINIBAND;
	cr_assert_eq(queues_connect(bench->rails, &more, &peer, ENDPOINT_SOURCE, "peer", &err),
		TH_E_NO_PATH);
	peer.link = VERBS_LINK_ETHERNET;
	fake_rdma_refuse(device, FAKE_QP_CONNECT, 1, -EHOSTUNREACH);
	err.text[0] = '\0';
	cr_assert_eq(queues_connect(bench->rails, &more, &peer, ENDPOINT_SOURCE, "peer", &err),
		-EHOSTUNREACH);
	cr_assert_neq(strstr(err.text, "10.0.0.0"), NULL, "%s", err.text);

	cr_assert_eq(queues_free(bench->rails, &reader), 0);
	cr_assert_eq(queues_free(bench->rails, &reader), 0);
	cr_assert_eq(counters_of(device).qps, 2 * ENDPOINT_QPS);
	cr_assert_eq(queues_free(bench->rails, &source), 0);
	/* Not fenced: the caller must know. */
	fake_rdma_refuse(device, FAKE_QP_FREE, FAKE_ALWAYS, -EBUSY);
	cr_assert_eq(queues_free(bench->rails, &more), -EBUSY);
	fake_rdma_refuse(device, FAKE_QP_FREE, 0, 0);

	/* The second of two cannot be made: the first does not stay. */
	fake_rdma_refuse_from(device, FAKE_QP_NEW, 1, -ENOMEM);
	err.text[0] = '\0';
	cr_assert_eq(queues_new(bench->rails, 0, cq, 16, &more, &err), -ENOMEM);
	cr_assert_neq(strstr(err.text, "fake0/1"), NULL, "%s", err.text);
	cr_assert_eq(counters_of(device).qps, 0);
	ops->cq_free(cq);
}

Test(rdma_queues, made_connected_and_freed)
{
	static struct bench bench;
	setup(&bench, 1);
	start(&bench);
	on_keeper(&bench, use_queues, NULL);
	teardown(&bench);
}

static void
make_queues(struct bench *bench, void *arg)
{
	struct th_err err;
	cr_assert_eq(queues_new(bench->rails, 0, NULL, 16, arg, &err), 0);
}

static void
free_lost_queues(struct bench *bench, void *arg)
{
	struct th_err err = {0};
	struct queues more;
	fake_rdma_refuse(bench->devices[0], FAKE_QP_FREE, FAKE_ALWAYS, -EIO);
	cr_assert_eq(queues_free(bench->rails, arg), 0);
	cr_assert_eq(queues_new(bench->rails, 0, NULL, 16, &more, &err), TH_E_NO_PATH);
}

Test(rdma_queues, a_device_that_is_gone_has_fenced_itself)
{
	static struct bench bench;
	struct queues queues;
	setup(&bench, 1);
	start(&bench);
	on_keeper(&bench, make_queues, &queues);
	fake_rdma_remove(bench.devices[0]);
	tally_wait(&bench.tally, &bench.changed[0], 1);
	on_keeper(&bench, free_lost_queues, &queues);
	teardown(&bench);
}

Test(rdma_device, dmabuf_that_is_none__who_looks_at_it_takes_others)
{
	cr_assert(verbs_takes_dmabuf(-EBADF));
	cr_assert(verbs_takes_dmabuf(-EINVAL));
	cr_assert_not(verbs_takes_dmabuf(-EOPNOTSUPP));
	cr_assert_not(verbs_takes_dmabuf(-EPROTONOSUPPORT));
}
