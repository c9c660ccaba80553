/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of gid (which address of a port is used) and endpoint (what two ends agree on).
 */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <string.h>

#include "transport/rdma/device/gid.h"
#include "transport/rdma/engine/endpoint.h"

#define ROWS 5

struct row {
	uint32_t index;
	enum verbs_gid_type type;
	const char *address; /* NULL: the end of the rows */
};

struct table {
	const char *what;
	enum verbs_link link;
	struct gid_rule rule;
	struct row rows[ROWS];
	int chosen; /* the index of the GID; -1: none */
};

#define CHOSEN                                                                                     \
	{                                                                                          \
		.index = GID_INDEX_CHOSEN                                                          \
	}
#define ETH VERBS_LINK_ETHERNET
#define IB VERBS_LINK_INFINIBAND
#define V1 VERBS_GID_ROCE_V1
#define V2 VERBS_GID_ROCE_V2

static const struct table tables[] = {
	{"IPv4 before all others, also behind them", ETH, CHOSEN,
		{{0, V1, "fe80::1"}, {1, V2, "fe80::1"}, {2, V2, "2001:db8::1"},
			{3, V1, "::ffff:10.0.0.1"}, {4, V2, "::ffff:10.0.0.1"}},
		4},
	{"the lowest index of equals, in whatever order", ETH, CHOSEN,
		{{9, V2, "::ffff:10.0.0.9"}, {5, V2, "::ffff:10.0.0.5"},
			{7, V2, "::ffff:10.0.0.7"}},
		5},
	{"a global IPv6 before one of the site", ETH, CHOSEN,
		{{1, V2, "fd00::1"}, {2, V2, "fec0::1"}, {3, V2, "2001:db8::1"}}, 3},
	{"one of the site when there is no other", ETH, CHOSEN,
		{{1, V2, "fe80::1"}, {2, V2, "fd00::1"}}, 2},
	{"never one of the link", ETH, CHOSEN,
		{{1, V2, "fe80::1"}, {2, V2, "::ffff:169.254.1.1"}, {3, V2, "febf::1"}}, -1},
	{"one of the link when configured, after all others", ETH,
		{.index = GID_INDEX_CHOSEN, .link_local = true},
		{{1, V2, "fe80::1"}, {2, V2, "fd00::1"}}, 2},
	{"one of the link when configured", ETH, {.index = GID_INDEX_CHOSEN, .link_local = true},
		{{0, V1, "fe80::1"}, {1, V2, "fe80::1"}}, 1},
	{"never nobody, this host or everybody", ETH,
		{.index = GID_INDEX_CHOSEN, .link_local = true, .roce_v1 = true},
		{{1, V2, "::"}, {2, V2, "::1"}, {3, V2, "::ffff:0.0.0.0"},
			{4, V2, "::ffff:127.0.0.1"}, {5, V2, "ff02::1"}},
		-1},
	{"never everybody in IPv4", ETH, CHOSEN,
		{{1, V2, "::ffff:224.0.0.1"}, {2, V2, "::ffff:255.255.255.255"}}, -1},
	{"never RoCE v1", ETH, CHOSEN, {{0, V1, "::ffff:10.0.0.1"}, {1, V1, "2001:db8::1"}}, -1},
	{"RoCE v1 when configured, last", ETH,
		{.index = GID_INDEX_CHOSEN, .link_local = true, .roce_v1 = true},
		{{0, V1, "::ffff:10.0.0.1"}, {1, V2, "fe80::1"}}, 1},
	{"RoCE v1 when configured", ETH, {.index = GID_INDEX_CHOSEN, .roce_v1 = true},
		{{0, V1, "::ffff:10.0.0.1"}, {1, V2, "fe80::1"}}, 0},
	{"what is not of Ethernet", ETH, CHOSEN, {{0, VERBS_GID_IB, "2001:db8::1"}}, -1},
	{"no entry", ETH, CHOSEN, {{0, V2, NULL}}, -1},
	{"the configured one, whatever it is", ETH, {.index = 2},
		{{1, V2, "::ffff:10.0.0.1"}, {2, V1, "fe80::1"}}, 2},
	{"the configured one is not there", ETH, {.index = 0}, {{1, V2, "::ffff:10.0.0.1"}}, -1},
	{"InfiniBand with the default subnet", IB, CHOSEN, {{0, VERBS_GID_IB, "fe80::2:c903:0:1"}},
		0},
	{"InfiniBand: a subnet of its own first", IB, CHOSEN,
		{{0, VERBS_GID_IB, "fe80::2:c903:0:1"}, {1, VERBS_GID_IB, "2001:db8::2:c903:0:1"}},
		1},
	{"InfiniBand: a port without a number", IB, CHOSEN, {{0, VERBS_GID_IB, "fe80::"}}, -1},
};

Test(rdma_gid, choose__by_type_and_reach)
{
	for (size_t t = 0; t < TH_ARRAY_LEN(tables); t++) {
		const struct table *table = &tables[t];
		struct verbs_gid gids[ROWS];
		uint32_t count = 0;
		for (; count < ROWS && table->rows[count].address; count++) {
			gids[count].index = table->rows[count].index;
			gids[count].type = table->rows[count].type;
			cr_assert_eq(
				inet_pton(AF_INET6, table->rows[count].address, gids[count].raw),
				1);
		}
		struct th_err err = {0};
		int at = gid_choose(gids, count, table->link, &table->rule, &err);
		if (table->chosen < 0) {
			cr_assert_eq(at, TH_E_NO_PATH, "%s", table->what);
			cr_assert_neq(err.text[0], '\0', "%s", table->what);
		} else {
			cr_assert(at >= 0 && gids[at].index == (uint32_t)table->chosen, "%s: %d",
				table->what, at);
		}
	}
}

Test(rdma_gid, text__as_people_write_it)
{
	char text[GID_TEXT_BYTES];
	uint8_t gid[VERBS_GID_BYTES];
	cr_assert_eq(inet_pton(AF_INET6, "::ffff:10.77.0.1", gid), 1);
	cr_assert_str_eq(gid_text(gid, text), "10.77.0.1");
	cr_assert_eq(inet_pton(AF_INET6, "2001:db8::1", gid), 1);
	cr_assert_str_eq(gid_text(gid, text), "2001:db8::1");
	memset(gid, 0xff, sizeof(gid));
	cr_assert_str_eq(gid_text(gid, text), "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
}

/* ---- endpoint ---- */

static struct endpoint
endpoint_of(const char *gid)
{
	struct endpoint endpoint = {.link = VERBS_LINK_ETHERNET,
		.mtu_bytes = 4096,
		.reads_out = 16,
		.reads_in = 16,
		.qpns = {17, 18},
		.psns = {0, ENDPOINT_NUMBER_MAX}};
	cr_assert_eq(inet_pton(AF_INET6, gid, endpoint.gid), 1);
	return endpoint;
}

Test(rdma_endpoint, check__each_number_within_its_range)
{
	struct endpoint good = endpoint_of("::ffff:10.0.0.1");
	struct th_err err = {0};
	cr_assert_eq(endpoint_check(&good, &err), 0);
	struct endpoint bad[16];
	size_t count = 0;
#define BAD(change)                                                                                \
	do {                                                                                       \
		bad[count] = good;                                                                 \
		bad[count++].change;                                                               \
	} while (0)
	BAD(link = VERBS_LINK_NONE);
	BAD(link = (enum verbs_link)3);
	BAD(link = VERBS_LINK_INFINIBAND); /* without a LID */
	BAD(mtu_bytes = 0);
	BAD(mtu_bytes = 128);
	BAD(mtu_bytes = 1500);
	BAD(mtu_bytes = 8192);
	BAD(reads_out = 0);
	BAD(reads_out = 256);
	BAD(reads_in = 0);
	BAD(reads_in = UINT32_MAX);
	BAD(qpns[0] = 1);
	BAD(qpns[1] = 0x1000000);
	BAD(qpns[1] = 17); /* twice */
	BAD(psns[1] = 0x1000000);
	BAD(gid[15] = 0);
	memset(bad[count - 1].gid, 0, VERBS_GID_BYTES);
	cr_assert_eq(count, TH_ARRAY_LEN(bad));
	for (size_t i = 0; i < count; i++) {
		err.text[0] = '\0';
		cr_assert_eq(endpoint_check(&bad[i], &err), TH_E_PROTOCOL, "%zu", i);
		cr_assert_neq(err.text[0], '\0', "%zu", i);
	}
}

Test(rdma_endpoint, path__the_lesser_of_both_ends_one_way_only)
{
	struct endpoint reader = endpoint_of("::ffff:10.0.0.1");
	struct endpoint source = endpoint_of("::ffff:10.0.0.2");
	struct endpoint_port port = {.port = 1,
		.gid_index = 3,
		.pkey_index = 2,
		.service_level = 4,
		.traffic_class = 106,
		.timeout = 16,
		.retries = 7};
	struct verbs_path path;
	reader.reads_out = 16;
	reader.reads_in = 1;
	reader.mtu_bytes = 1024;
	reader.psns[1] = 5;
	source.reads_out = 2;
	source.reads_in = 8;
	source.psns[1] = 6;
	source.qpns[1] = 99;
	endpoint_path(&reader, &port, &source, ENDPOINT_READER, 1, &path);
	cr_assert(path.reads_out == 8 && path.reads_in == 0);
	cr_assert(path.qpn == 99 && path.psn == 6 && path.own_psn == 5);
	cr_assert(path.mtu_bytes == 1024 && path.global);
	cr_assert(path.port == 1 && path.gid_index == 3 && path.pkey_index == 2);
	cr_assert(path.service_level == 4 && path.traffic_class == 106);
	cr_assert(path.timeout == 16 && path.retries == 7);
	cr_assert_eq(memcmp(path.gid, source.gid, VERBS_GID_BYTES), 0);
	endpoint_path(&source, &port, &reader, ENDPOINT_SOURCE, 1, &path);
	cr_assert(path.reads_out == 0 && path.reads_in == 8);
	cr_assert(path.psn == 5 && path.own_psn == 6 && path.mtu_bytes == 1024);
	cr_assert_eq(endpoint_reads(&reader, &source), 8);
}

Test(rdma_endpoint, path__global_only_between_subnets_of_infiniband)
{
	struct endpoint a = endpoint_of("fe80::1"), b = endpoint_of("fe80::2");
	struct endpoint c = endpoint_of("2001:db8::1");
	struct endpoint_port port = {.port = 1};
	struct verbs_path path;
	struct th_err err = {0};
	a.link = b.link = c.link = VERBS_LINK_INFINIBAND;
	a.lid = 1;
	b.lid = 2;
	c.lid = 3;
	endpoint_path(&a, &port, &b, ENDPOINT_READER, 0, &path);
	cr_assert(!path.global && path.lid == 2);
	endpoint_path(&a, &port, &c, ENDPOINT_READER, 0, &path);
	cr_assert(path.global && path.lid == 3);
	cr_assert_eq(endpoint_check(&a, &err), 0);
	cr_assert_eq(endpoint_fits(&a, &b, &err), 0);
	b.link = VERBS_LINK_ETHERNET;
	cr_assert_eq(endpoint_fits(&a, &b, &err), TH_E_NO_PATH);
	cr_assert_neq(err.text[0], '\0');
}
