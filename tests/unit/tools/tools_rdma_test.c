/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools_rdma_test - what thctl status says of an agent's RDMA.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tools/thctl/status_tables.h"

static Tensorhub__V1__RailInfo rails[2];
static Tensorhub__V1__PathInfo path;
static Tensorhub__V1__RdmaInfo rdma;
static Tensorhub__V1__RailInfo *rail_list[] = {&rails[0], &rails[1]};
static Tensorhub__V1__PathInfo *path_list[] = {&path};

static void
two_ports(void)
{
	static char name0[] = "mlx5_0/1", name1[] = "mlx5_1/1", up[] = "up", down[] = "down";
	static char address[] = "10.1.0.1", type[] = "RoCE v2", why[] = "the link is down";
	static char host[] = "10.0.0.2:7", peer[] = "10.1.0.2", failed[] = "no answer";
	tensorhub__v1__rail_info__init(&rails[0]);
	rails[0].name = name0;
	rails[0].state = up;
	rails[0].address = address;
	rails[0].address_type = type;
	rails[0].on_node = true;
	rails[0].node = 1;
	rails[0].bits_per_second = UINT64_C(400000000000);
	rails[0].bytes_in = 3072;
	rails[0].reads = 12;
	rails[0].bytes_registered = 1 << 20;
	rails[0].dma_buf = true;
	rails[0].changes = 1;
	tensorhub__v1__rail_info__init(&rails[1]);
	rails[1].name = name1;
	rails[1].state = down;
	rails[1].why = why;
	tensorhub__v1__path_info__init(&path);
	path.rail = name0;
	path.host = host;
	path.peer = peer;
	path.bytes = 3072;
	path.legs = 2;
	path.failures = 1;
	path.paused_ns = 1500000000;
	path.why = failed;
	tensorhub__v1__rdma_info__init(&rdma);
	rdma.used = true;
	rdma.memlock_limit = UINT64_MAX;
	rdma.rails = rail_list;
	rdma.n_rails = 2;
	rdma.paths = path_list;
	rdma.n_paths = 1;
}

TestSuite(tools_rdma, .init = two_ports);

static char *
shown(const struct output_format *format, const Tensorhub__V1__RdmaInfo *info)
{
	struct document document;
	char *text = NULL;
	size_t bytes = 0;
	document_init(&document, "status");
	document.has_verdict = true;
	rdma_judge(&document, info);
	rdma_fields(&document, info);
	rdma_tables(&document, info);
	FILE *to = open_memstream(&text, &bytes);
	format->print(&document, false, to);
	fclose(to);
	document_free(&document);
	return text;
}

static void
expect(const Tensorhub__V1__RdmaInfo *info, const char *want)
{
	char *text = shown(&output_table, info);
	cr_assert_str_eq(text, want);
	free(text);
}

static void
expect_word(const struct output_format *format, const char *word)
{
	char *text = shown(format, &rdma);
	cr_assert(strstr(text, word), "no '%s' in:\n%s", word, text);
	free(text);
}

Test(tools_rdma, older_agent__nothing)
{
	expect(NULL, "HEALTH_OK\n");
}

Test(tools_rdma, not_used__why)
{
	static char why[] = "rdma is left out of --transport";
	tensorhub__v1__rdma_info__init(&rdma);
	rdma.why = why;
	expect(&rdma, "HEALTH_OK\n"
		      "rdma  not used: rdma is left out of --transport\n");
}

Test(tools_rdma, ports__one_without_a_cable_is_no_warning)
{
	expect(&rdma,
		"HEALTH_OK\n"
		"rdma  1 of 2 ports up\n"
		"\n"
		"PORT      STATE  ADDRESS   GBIT/S  NODE       IN  READS  REGISTERED  WHY\n"
		"mlx5_0/1  up     10.1.0.1     400     1  3.00KiB     12     1.00MiB  -\n"
		"mlx5_1/1  down   -              -     -       0B      0          0B  the link is "
		"down\n");
}

Test(tools_rdma, port_that_was_up__is_warned_of)
{
	rails[1].changes = 2;
	expect_word(&output_table, "TH_RDMA_PORT");
	expect_word(&output_table, "RDMA port mlx5_1/1 was up and is down: the link is down");
}

Test(tools_rdma, small_memlock_limit__is_warned_of_and_what_to_do)
{
	rdma.memlock_limit = 8 << 20;
	expect_word(&output_table, "TH_MEMLOCK");
	expect_word(&output_table, "LimitMEMLOCK=infinity");
}

Test(tools_rdma, fallbacks_and_paths)
{
	static char why[] = "the source has no RDMA";
	rdma.fallbacks = 3;
	rdma.last_fallback = why;
	expect_word(&output_table, "last because  the source has no RDMA");
	expect_word(&output_wide, "10.0.0.2:7");
	expect_word(&output_wide, "paused");
	expect_word(&output_wide, "dma-buf");
	expect_word(&output_json, "\"rdma_fallbacks\": 3");
	static char copy[] = "it is private";
	rdma.copies = 2;
	rdma.last_copy = copy;
	expect_word(&output_table, "last because     it is private");
	expect_word(&output_json, "\"rdma_copies\": 2");
	rdma.stage_bytes = 64 << 20;
	rdma.stage_on_gpus = 32 << 20;
	rdma.stage_refused = 4;
	expect_word(&output_table, "in buffers");
	expect_word(&output_table, "found no buffer");
	expect_word(&output_table, "of it on GPUs");
	expect_word(&output_json, "\"rdma_stage_bytes\": 67108864");
	expect_word(&output_json, "\"rdma_stage_on_gpus\": 33554432");
	expect_word(&output_json, "\"paused_ns\": 1500000000");
}
