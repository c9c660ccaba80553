/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_fanout - verb fanout: N readers at once, against a chain that loses nothing: of K chunks
 * the last reader has the last one after (K + N - 1) / K of the time of one transfer, which is
 * measured over the same links in the same rounds.
 */
#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "ipc/base/units.h"
#include "tools/bench/thbench_crowd.h"

#define FANOUT_BYTES (UINT64_C(512) << 20)
#define CHUNK_BYTES (UINT64_C(4) << 20)
#define LINK 100000000u
#define READERS 8u
#define ROUNDS 3u
#define NS 1e9
#define MIB (1024.0 * 1024.0)
#define GOAL 1.03

enum figure {
	SINGLE,
	LAST,
	IDEAL,
	SENT,
	PAYLOAD,
};

static int
together(struct crowd *crowd, uint32_t count, double *ret_seconds, struct th_err *err)
{
	int64_t begin_ns = INT64_MAX, end_ns = 0;
	struct answer answer;
	int rc = 0;

	for (uint32_t i = 0; i < count && rc == 0; i++)
		rc = crowd_mess(crowd, i, err);
	for (uint32_t i = 0; i < count && rc == 0; i++)
		rc = crowd_begin(crowd, i, err);
	for (uint32_t i = 0; i < count && rc == 0; i++) {
		rc = crowd_end(crowd, i, &answer, err);
		if (rc < 0)
			break;
		begin_ns = th_min_i64(begin_ns, answer.begin_ns);
		end_ns = th_max_i64(end_ns, answer.end_ns);
	}
	for (uint32_t i = 0; i < count && rc == 0; i++)
		rc = crowd_give_up(crowd, i, err);
	*ret_seconds = (double)(end_ns - begin_ns) / NS;
	return rc;
}

static int
thbench_fanout_one_round(
	struct crowd *crowd, struct section *section, uint32_t readers, struct th_err *err)
{
	double chunks = (double)((crowd->bytes + CHUNK_BYTES - 1) / CHUNK_BYTES), single, last;

	int rc = together(crowd, 1, &single, err);
	uint64_t sent = hosts_sent_bytes(&crowd->hosts, 0);
	if (rc == 0)
		rc = together(crowd, readers, &last, err);
	if (rc < 0)
		return rc;
	sent = hosts_sent_bytes(&crowd->hosts, 0) - sent;
	section_add(section, SINGLE, single);
	section_add(section, LAST, last);
	section_add(section, IDEAL, single * (chunks + readers - 1) / chunks);
	if (crowd->hosts.count > 0) {
		section_add(section, SENT, (double)sent / MIB);
		section_add(section, PAYLOAD, (double)crowd->bytes / MIB);
	}
	bench_progress(
		crowd->bench, "one reader %.3f s, the last of %u %.3f s", single, readers, last);
	return 0;
}

static void
thbench_fanout_describe(
	struct crowd *crowd, struct section *section, uint32_t readers, uint64_t link)
{
	bool limited = crowd->hosts.count > 0;

	crowd_facts(crowd, section, link);
	section_fact(section, "readers", "readers", readers, "");
	section_series(section, "single", "one reader", "s");
	section_series(section, "last", "the last of all readers", "s");
	section_series(section, "ideal", "(K+N-1)/K of one reader", "s");
	section_ratio(section, "last_to_ideal", "the last reader to (K+N-1)/K", LAST, IDEAL,
		limited ? GOAL_AT_MOST : GOAL_NONE, GOAL);
	if (!limited)
		return;
	section_series(section, "sent", "what left the publisher's host", "MiB");
	section_series(section, "payload", "payload", "MiB");
	section_ratio(section, "sent_to_payload", "what left the publisher to the payload", SENT,
		PAYLOAD, GOAL_AT_MOST, 1.1);
}

static int
thbench_fanout_run(struct bench *bench, struct th_err *err)
{
	const struct bench_options *options = &bench->options;
	struct crowd *crowd = th_calloc(1, sizeof(*crowd));
	uint64_t bytes = options->bytes > 0 ? options->bytes : FANOUT_BYTES;
	uint64_t link = options->link > 0 ? options->link : LINK;
	uint32_t readers = options->readers > 0 ? options->readers : READERS;
	uint32_t rounds = options->rounds > 0 ? options->rounds : ROUNDS;
	char size[TH_UNITS_BYTES], name[32];
	double unmeasured;

	int rc = crowd_start(bench, crowd, bytes, readers + 1, link, err);
	for (uint32_t i = 0; i < readers && rc == 0; i++) {
		snprintf(name, sizeof(name), "reader-%u", i);
		rc = crowd_add(crowd, i, i + 1, name, err);
	}
	if (rc == 0) {
		struct section *section = report_section(&bench->report, "fanout",
			"%s to %u readers at once", th_print_size_short(bytes, size), readers);
		thbench_fanout_describe(crowd, section, readers, link);
		rc = together(crowd, 1, &unmeasured, err);
		for (uint32_t round = 0; round < rounds && rc == 0; round++)
			rc = thbench_fanout_one_round(crowd, section, readers, err);
	}
	crowd_stop(crowd);
	free(crowd);
	return rc;
}

const struct bench_verb bench_fanout = {
	.name = "fanout",
	.summary = "several readers at once over limited links, against a chain without loss",
	.run = thbench_fanout_run,
};
