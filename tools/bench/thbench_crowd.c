/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_crowd - see thbench_crowd.h.
 */
#include "tools/bench/thbench_crowd.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ipc/base/clock.h"

#define WAIT_NS INT64_C(120000000000)
#define OWN_BYTES (UINT64_C(512) << 20) /* daemons, page tables */

static int
crowd_add_member(struct crowd *crowd, struct worker *worker, uint32_t host, const char *name,
	const struct bench_daemon **ret_agent, struct th_err *err)
{
	struct bench *bench = crowd->bench;
	const struct command alloc = {.command = WORKER_ALLOC,
		.bytes = crowd->bytes,
		.number = worker == &crowd->publisher};
	struct command join = {.command = WORKER_JOIN,
		.bytes = crowd->bytes,
		.tensor_bytes = bench->options.tensor_bytes,
		.model = "crowd"};

	snprintf(join.replica, sizeof(join.replica), "%s", name);
	int rc = worker_start(bench, name, worker, err);
	if (rc == 0)
		rc = worker_call(bench, worker, &alloc, NULL, err);
	if (rc == 0)
		rc = field_agent(bench, &crowd->field, name, NULL, hosts_place(&crowd->hosts, host),
			ret_agent, err);
	if (rc < 0)
		return rc;
	snprintf(join.agent, sizeof(join.agent), "%s", (*ret_agent)->runtime);
	return worker_call(bench, worker, &join, NULL, err);
}

int
crowd_start(struct bench *bench, struct crowd *crowd, uint64_t bytes, uint32_t hosts, uint64_t link,
	struct th_err *err)
{
	const struct command publish = {.command = WORKER_PUBLISH, .number = 1};
	const struct bench_daemon *agent;

	*crowd = (struct crowd){.bench = bench, .bytes = bytes};
	int rc = bench_need_memory(bench, hosts * bytes + OWN_BYTES, "this", err);
	if (rc == 0)
		rc = hosts_start(bench, &crowd->hosts, hosts, link, err);
	if (rc == 0)
		rc = field_start(bench, &crowd->field,
			crowd->hosts.count > 0 ? &crowd->hosts.at_switch : &place_here, err);
	if (rc == 0)
		rc = crowd_add_member(crowd, &crowd->publisher, 0, "publisher", &agent, err);
	return rc < 0 ? rc : worker_call(bench, &crowd->publisher, &publish, NULL, err);
}

int
crowd_add(struct crowd *crowd, uint32_t reader, uint32_t host, const char *name, struct th_err *err)
{
	struct crowd_reader *member = &crowd->readers[reader];

	crowd->num_readers = th_max_u32(crowd->num_readers, reader + 1);
	return crowd_add_member(crowd, &member->worker, host, name, &member->agent, err);
}

void
crowd_kill_agent(struct crowd *crowd, uint32_t reader)
{
	field_kill(&crowd->field, crowd->readers[reader].agent);
}

void
crowd_drop(struct crowd *crowd, uint32_t reader)
{
	struct crowd_reader *member = &crowd->readers[reader];

	worker_stop(&member->worker);
	if (member->agent)
		field_kill(&crowd->field, member->agent);
	*member = (struct crowd_reader){0};
}

void
crowd_stop(struct crowd *crowd)
{
	for (uint32_t i = 0; i < crowd->num_readers; i++)
		worker_stop(&crowd->readers[i].worker);
	worker_stop(&crowd->publisher);
	field_stop(&crowd->field);
	hosts_stop(&crowd->hosts);
}

int
crowd_mess(struct crowd *crowd, uint32_t reader, struct th_err *err)
{
	const struct command mess = {.command = WORKER_MESS, .bytes = crowd->bytes};

	return worker_call(crowd->bench, &crowd->readers[reader].worker, &mess, NULL, err);
}

int
crowd_begin(struct crowd *crowd, uint32_t reader, struct th_err *err)
{
	const struct command follow = {.command = WORKER_FOLLOW, .number = 1};

	return worker_ask(&crowd->readers[reader].worker, &follow, err);
}

int
crowd_end(struct crowd *crowd, uint32_t reader, struct answer *ret_answer, struct th_err *err)
{
	int rc = worker_answer(crowd->bench, &crowd->readers[reader].worker, ret_answer, err);

	if (rc == 0 && ret_answer->bytes_moved < crowd->bytes)
		rc = th_fail(err, TH_E_PROTOCOL, "a reader did not move all bytes");
	return rc;
}

int
crowd_give_up(struct crowd *crowd, uint32_t reader, struct th_err *err)
{
	const struct command drop = {.command = WORKER_UNPUBLISH};

	return worker_call(crowd->bench, &crowd->readers[reader].worker, &drop, NULL, err);
}

int
crowd_wait(struct crowd *crowd, uint32_t reader, uint64_t bytes, struct th_err *err)
{
	const struct timespec look = {.tv_nsec = 500000};
	int64_t end_ns = th_now_ns() + WAIT_NS;

	while (worker_done_bytes(&crowd->readers[reader].worker) < bytes) {
		int rc = bench_go_on(crowd->bench, err);
		if (rc < 0)
			return rc;
		if (th_now_ns() > end_ns)
			return th_fail(err, TH_E_TIMEOUT, "a reader does not come on");
		nanosleep(&look, NULL);
	}
	return 0;
}

void
crowd_facts(const struct crowd *crowd, struct section *section, uint64_t link)
{
	section_fact(section, "bytes", "bytes of a shard", (double)crowd->bytes, "B");
	if (crowd->hosts.count > 0)
		section_fact(section, "link", "bytes a second of each link, each way", (double)link,
			"B");
	else
		section_note(section,
			"all on loopback, nothing is limited and all share the CPUs: %s",
			crowd->hosts.why);
}
