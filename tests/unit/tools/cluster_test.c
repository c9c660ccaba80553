/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster_test - the tables of thctl ls, from what a server says to what a user reads.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tools/thctl/cluster_tables.h"

static const struct ctl_replica_info replicas[] = {
	{.name = "rollout",
		.datacenter = "iad1",
		.num_shards = 1,
		.chunks_done = 1,
		.chunks_total = 4},
	{.name = "trainer",
		.datacenter = "iad1",
		.num_shards = 2,
		.flags = CTL_REPLICA_READY,
		.chunks_done = 4,
		.chunks_total = 4},
};
static const struct ctl_version_info versions[] = {
	{.version = {0, 17}, .retained = true, .num_replicas = 2, .replicas = replicas}};
static const struct ctl_node_info nodes[] = {
	{.node = "a",
		.datacenter = "iad1",
		.address = "10.0.0.1:7",
		.state = "active",
		.members = 3,
		.legs_out = 1,
		.silent_ns = 250000000},
	{.node = "b", .datacenter = "iad1", .address = "10.0.0.2:7", .state = "suspect"},
};
static const struct ctl_member_info members[] = {
	{.model = "m",
		.replica = "trainer",
		.node = "a",
		.num_shards = 2,
		.sid = 1,
		.state = "live",
		.copy = "ready",
		.version = {0, 17},
		.ready = {0, TH_NO_VERSION},
		.why = "",
		.bytes = 2048,
		.chunks_done = 4,
		.chunks_total = 4},
	{.model = "m",
		.replica = "trainer",
		.node = "a",
		.shard = 1,
		.num_shards = 2,
		.sid = 2,
		.state = "live",
		.copy = "ready",
		.version = {0, 17},
		.ready = {0, TH_NO_VERSION},
		.why = "",
		.bytes = 2048,
		.chunks_done = 4,
		.chunks_total = 4},
	{.model = "m",
		.replica = "asker",
		.node = "b",
		.num_shards = 1,
		.sid = 3,
		.state = "live",
		.copy = "none",
		.version = {0, TH_NO_VERSION},
		.ready = {0, 17},
		.flags = CTL_OPEN_SPOT | CTL_OPEN_PREFETCH,
		.why = ""},
	{.model = "l",
		.replica = "x",
		.node = "a",
		.num_shards = 1,
		.sid = 4,
		.state = "broken",
		.copy = "none",
		.version = {0, TH_NO_VERSION},
		.ready = {0, TH_NO_VERSION},
		.why = "prefetch"},
};
static const struct ctl_transfer_info transfers[] = {
	{.model = "m",
		.version = {0, 17},
		.leg = 9,
		.source_replica = "trainer",
		.reader_replica = "rollout",
		.source_node = "a",
		.reader_node = "b",
		.chunks_done = 1,
		.chunks_total = 4,
		.age_ns = 1200000000,
		.path = {.name = "tcp", .why = "no device", .rate = UINT64_C(5) << 29}},
	{.model = "m",
		.version = {0, 18},
		.leg = 10,
		.source_replica = "trainer",
		.reader_replica = "rollout",
		.chunks_total = 4},
};
static const struct ctl_inspection inspection = {.num_nodes = 2,
	.num_members = 4,
	.num_transfers = 2,
	.nodes = nodes,
	.members = members,
	.transfers = transfers};
static const struct cluster_model models[] = {
	{.name = "l"},
	{.name = "m", .listing = {.num_versions = 1, .versions = versions}},
};

static void
expect(struct document *document, const char *want)
{
	char *text = NULL;
	size_t bytes = 0;

	FILE *to = open_memstream(&text, &bytes);
	output_table.print(document, false, to);
	fclose(to);
	document_free(document);
	cr_assert_str_eq(text, want);
	free(text);
}

Test(cluster, nodes)
{
	struct document document;

	document_init(&document, "nodes");
	cluster_nodes(&document, &inspection);
	expect(&document, "NODE  DATACENTER  STATE    DRAINING  WORKERS  IN  OUT  SILENT\n"
			  "a     iad1        active   no              3   0    1   250ms\n"
			  "b     iad1        suspect  no              0   0    0      0s\n");
}

Test(cluster, workers__of_one_model)
{
	struct document document;

	document_init(&document, "workers");
	cluster_workers(&document, &inspection, "l");
	expect(&document,
		"MODEL  REPLICA  SHARD  SHARDS  NODE  GROUP   COPY  VERSION  DONE  SIZE  WHY\n"
		"l      x            0       1  a     broken  none  -        -       0B  "
		"prefetch\n");
}

Test(cluster, transfers)
{
	struct document document;

	document_init(&document, "transfers");
	cluster_transfers(&document, &inspection, NULL);
	expect(&document,
		"MODEL  VERSION  SHARD  SOURCE   READER   DONE  PATH       RATE    AGE  WHY\n"
		"m           17      0  trainer  rollout   25%  tcp   2.50GiB/s  1.20s  no device\n"
		"m           18      0  trainer  rollout    0%  -             -     0s  -\n");
}

Test(cluster, model_names__each_once_sorted)
{
	uint32_t count = 0;
	const char **names = cluster_model_names(&inspection, &count);

	cr_assert_eq(count, 2);
	cr_assert_str_eq(names[0], "l");
	cr_assert_str_eq(names[1], "m");
	free(names);
}

Test(cluster, models__shards_are_not_replicas)
{
	struct document document;

	document_init(&document, "models");
	cluster_models(&document, &inspection, models, 2);
	expect(&document, "MODEL  LATEST  VERSIONS  REPLICAS  WORKERS\n"
			  "l           -         0         1        1\n"
			  "m          17         1         2        3\n");
}

Test(cluster, versions)
{
	struct document document;

	document_init(&document, "versions");
	cluster_versions(&document, &inspection, models, 2);
	expect(&document, "MODEL  VERSION  REPLICAS  READY  RETAINED  PREFETCHED  OF\n"
			  "m           17         2      1  yes                1   1\n");
}

Test(cluster, replicas__also_those_without_a_copy)
{
	struct document document;

	document_init(&document, "replicas");
	cluster_replicas(&document, &inspection, models, 2);
	expect(&document, "MODEL  REPLICA  SHARDS  STATE    VERSION  DONE  DATACENTER\n"
			  "l      x             1  broken         -     -  -\n"
			  "m      rollout       1  filling       17   25%  iad1\n"
			  "m      trainer       2  ready         17  100%  iad1\n"
			  "m      asker         1  empty          -     -  -\n");
}

Test(cluster, judge__silent_nodes_and_broken_groups)
{
	struct document document;

	document_init(&document, "cluster");
	cluster_judge(&document, &inspection);
	cr_assert_eq(document.num_warnings, 2);
	cr_assert_str_eq(document.warnings[0].code, "TH_NODE_SILENT");
	cr_assert_str_eq(document.warnings[1].code, "TH_GROUP_BROKEN");
	cr_assert(strstr(document.warnings[1].text, "replica x of model l"));
	document_free(&document);
}

Test(cluster, judge__drained_node_that_is_switched_off__is_well)
{
	struct ctl_node_info drained[2] = {{.node = "a", .state = "dead", .draining = true},
		{.node = "b", .state = "suspect", .draining = true}};
	const struct ctl_inspection two = {.num_nodes = 2, .nodes = drained};
	struct document document;

	document_init(&document, "cluster");
	cluster_judge(&document, &two);
	cr_assert_eq(document.num_warnings, 1);
	cr_assert(strstr(document.warnings[0].text, "node b is suspect"));
	document_free(&document);
}

Test(cluster, judge__versions_at_risk)
{
	struct ctl_inspection some = {
		.num_counters = 2, .counters = {{"beats", 7}, {"versions_at_risk", 3}}};
	struct document document;

	document_init(&document, "cluster");
	cluster_judge(&document, &some);
	cr_assert_eq(document.num_warnings, 1);
	cr_assert_str_eq(document.warnings[0].code, "TH_AT_RISK");
	cr_assert(strstr(document.warnings[0].text, ": 3"));
	some.counters[1].value = 0;
	document_free(&document);
	document_init(&document, "cluster");
	cluster_judge(&document, &some);
	cr_assert_eq(document.num_warnings, 0);
	document_free(&document);
}
