/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_failover - verb failover: B reads from the publisher through A, whose agent is killed at
 * one of several moments; how long until B has the rest, against the time that the rest takes.
 */
#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "ipc/base/units.h"
#include "tools/bench/thbench_crowd.h"

#define FAILOVER_BYTES (UINT64_C(256) << 20)
#define LINK 100000000u
#define MOMENTS 10u
#define NS 1e9
#define GOAL_S 1.0 /* beyond the time of the missing bytes */

enum reader {
	READER_B, /* the same all the time */
	READER_A, /* a new one each time   */
	READERS,
};

enum figure {
	AFTER,
	MISSING,
	ALLOWED,
};

/* B alone: the time of all bytes over this link. */
static int
single(struct crowd *crowd, double *ret_seconds, struct th_err *err)
{
	struct answer answer = {0};

	int rc = crowd_mess(crowd, READER_B, err);
	if (rc == 0)
		rc = crowd_begin(crowd, READER_B, err);
	if (rc == 0)
		rc = crowd_end(crowd, READER_B, &answer, err);
	if (rc == 0)
		rc = crowd_give_up(crowd, READER_B, err);
	*ret_seconds = (double)(answer.end_ns - answer.begin_ns) / NS;
	return rc;
}

/* Both under way, B behind A, which has so much. */
static int
failover_under_way(struct crowd *crowd, uint64_t bytes, struct th_err *err)
{
	int rc = crowd_mess(crowd, READER_B, err);

	if (rc == 0)
		rc = crowd_begin(crowd, READER_A, err);
	if (rc == 0)
		rc = crowd_wait(crowd, READER_A, 1, err);
	if (rc == 0)
		rc = crowd_begin(crowd, READER_B, err);
	return rc < 0 ? rc : crowd_wait(crowd, READER_A, bytes, err);
}

static int
thbench_failover_one_round(struct crowd *crowd, struct section *section, uint32_t moment,
	uint32_t moments, double single_s, struct th_err *err)
{
	double share = ((double)moment + 0.5) / moments;
	struct answer answer;
	char name[32];

	snprintf(name, sizeof(name), "a-%u", moment);
	int rc = crowd_add(crowd, READER_A, 2, name, err);
	if (rc == 0)
		rc = failover_under_way(crowd, (uint64_t)(share * (double)crowd->bytes), err);
	if (rc < 0)
		return rc;
	uint64_t done = worker_done_bytes(&crowd->readers[READER_B].worker);
	int64_t killed_ns = th_now_ns();
	crowd_kill_agent(crowd, READER_A);
	rc = worker_answer(crowd->bench, &crowd->readers[READER_B].worker, &answer, err);
	crowd_drop(crowd, READER_A);
	if (rc == 0)
		rc = crowd_give_up(crowd, READER_B, err);
	if (rc < 0)
		return rc;
	uint64_t missing = crowd->bytes - th_min_u64(done, crowd->bytes);
	double missing_s = single_s * (double)missing / (double)crowd->bytes;
	/* It may have had all before the kill was over. */
	double after_s = (double)th_max_i64(answer.end_ns - killed_ns, 1) / NS;
	section_add(section, AFTER, after_s);
	section_add(section, MISSING, (double)th_max_u64(missing, 1) / (1024.0 * 1024.0));
	section_add(section, ALLOWED, GOAL_S + missing_s);
	bench_progress(crowd->bench,
		"A killed at %.0f %%: B missed %.0f %%, has it after %.2f s, %.2f of them extra",
		100.0 * share, 100.0 * (double)missing / (double)crowd->bytes, after_s,
		after_s - missing_s);
	return 0;
}

static int
thbench_failover_measure(struct crowd *crowd, uint64_t link, uint32_t moments, struct th_err *err)
{
	char size[TH_UNITS_BYTES];
	double unmeasured, single_s;

	int rc = crowd_add(crowd, READER_B, 1, "b", err);
	if (rc == 0)
		rc = single(crowd, &unmeasured, err);
	if (rc == 0)
		rc = single(crowd, &single_s, err);
	if (rc < 0)
		return rc;
	struct section *section = report_section(&crowd->bench->report, "failover",
		"%s, the source of a reader killed at %u moments",
		th_print_size_short(crowd->bytes, size), moments);
	crowd_facts(crowd, section, link);
	section_fact(section, "single", "time of one undisturbed transfer", single_s, "s");
	section_fact(
		section, "extra_allowed", "allowed beyond the missing bytes' time", GOAL_S, "s");
	section_series(section, "after", "from the kill until the reader has all", "s");
	section_series(section, "missing", "what it missed at the kill", "MiB");
	section_series(section, "allowed", "1 s and the missing bytes' time", "s");
	section_ratio(section, "after_to_allowed", "the time to what is allowed", AFTER, ALLOWED,
		GOAL_AT_MOST, 1.0);
	for (uint32_t moment = 0; moment < moments && rc == 0; moment++)
		rc = thbench_failover_one_round(crowd, section, moment, moments, single_s, err);
	return rc;
}

static int
thbench_failover_run(struct bench *bench, struct th_err *err)
{
	const struct bench_options *options = &bench->options;
	struct crowd *crowd = th_calloc(1, sizeof(*crowd));
	uint64_t link = options->link > 0 ? options->link : LINK;
	uint32_t moments = options->rounds > 0 ? options->rounds : MOMENTS;

	int rc = moments + READERS > FIELD_DAEMONS_MAX - 2
			 ? th_fail(err, TH_E_LIMIT, "--rounds: at most %u moments",
				   FIELD_DAEMONS_MAX - 2 - READERS)
			 : 0;
	if (rc == 0)
		rc = crowd_start(bench, crowd, options->bytes > 0 ? options->bytes : FAILOVER_BYTES,
			READERS + 1, link, err);
	if (rc == 0)
		rc = thbench_failover_measure(crowd, link, moments, err);
	crowd_stop(crowd);
	free(crowd);
	return rc;
}

const struct bench_verb bench_failover = {
	.name = "failover",
	.summary = "a reader whose source is killed, against the time of the missing bytes",
	.run = thbench_failover_run,
};
