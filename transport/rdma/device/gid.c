/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gid - see gid.h. Each GID gets a grade; the best one wins, and of equals the first.
 */
#include "transport/rdma/device/gid.h"

#include <arpa/inet.h>
#include <string.h>

#include "ipc/base/assert.h"

enum grade { /* higher is better */
	GRADE_NEVER,
	GRADE_V1,
	GRADE_LINK_LOCAL,
	GRADE_SITE,
	GRADE_GLOBAL,
	GRADE_IPV4,
};

enum reach { REACH_NONE, REACH_LINK, REACH_SITE, REACH_GLOBAL };

static bool
is_ipv4(const uint8_t gid[VERBS_GID_BYTES])
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
	return memcmp(gid, mapped, sizeof(mapped)) == 0;
}

static enum reach
reach_ipv4(const uint8_t address[4])
{
	/* Nobody, this host, everybody. */
	if (address[0] == 0 || address[0] == 127 || address[0] >= 224)
		return REACH_NONE;
	return address[0] == 169 && address[1] == 254 ? REACH_LINK : REACH_GLOBAL;
}

static enum reach
reach_ipv6(const uint8_t address[VERBS_GID_BYTES])
{
	static const uint8_t nobody[15];
	if (memcmp(address, nobody, sizeof(nobody)) == 0 && address[15] <= 1) /* :: and ::1 */
		return REACH_NONE;
	if (address[0] == 0xff)
		return REACH_NONE;
	if (address[0] == 0xfe && (address[1] & 0xc0) == 0x80)
		return REACH_LINK;
	/* fc00::/7, and what came before it, fec0::/10. */
	if ((address[0] & 0xfe) == 0xfc || (address[0] == 0xfe && (address[1] & 0xc0) == 0xc0))
		return REACH_SITE;
	return REACH_GLOBAL;
}

static enum grade
grade_ethernet(const struct verbs_gid *gid, const struct gid_rule *rule)
{
	bool ipv4 = is_ipv4(gid->raw);
	enum reach reach = ipv4 ? reach_ipv4(gid->raw + 12) : reach_ipv6(gid->raw);
	if (reach == REACH_NONE)
		return GRADE_NEVER;
	if (gid->type != VERBS_GID_ROCE_V2)
		return gid->type == VERBS_GID_ROCE_V1 && rule->roce_v1 ? GRADE_V1 : GRADE_NEVER;
	if (reach == REACH_LINK)
		return rule->link_local ? GRADE_LINK_LOCAL : GRADE_NEVER;
	if (ipv4)
		return GRADE_IPV4;
	return reach == REACH_SITE ? GRADE_SITE : GRADE_GLOBAL;
}

/* The first half is the subnet, fe80:: until an administrator gives it another. */
static enum grade
grade_infiniband(const struct verbs_gid *gid)
{
	static const uint8_t nobody[8];
	if (gid->type != VERBS_GID_IB || memcmp(gid->raw + 8, nobody, sizeof(nobody)) == 0)
		return GRADE_NEVER;
	return reach_ipv6(gid->raw) == REACH_LINK ? GRADE_LINK_LOCAL : GRADE_GLOBAL;
}

static int
gid_forced(const struct verbs_gid *gids, uint32_t count, int32_t index, struct th_err *ret_err)
{
	for (uint32_t i = 0; i < count; i++) {
		if (gids[i].index == (uint32_t)index)
			return (int)i;
	}
	return th_fail(ret_err, TH_E_NO_PATH,
		"the configured GID index %d has no entry that this network namespace may use",
		(int)index);
}

int
gid_choose(const struct verbs_gid *gids, uint32_t count, enum verbs_link link,
	const struct gid_rule *rule, struct th_err *ret_err)
{
	if (rule->index >= 0)
		return gid_forced(gids, count, rule->index, ret_err);
	enum grade best = GRADE_NEVER;
	uint32_t at = 0;
	for (uint32_t i = 0; i < count; i++) {
		enum grade grade = link == VERBS_LINK_INFINIBAND ? grade_infiniband(&gids[i])
								 : grade_ethernet(&gids[i], rule);
		bool first = grade == best && gids[i].index < gids[at].index;
		if (grade > best || (grade != GRADE_NEVER && first)) {
			best = grade;
			at = i;
		}
	}
	if (best != GRADE_NEVER)
		return (int)at;
	if (link == VERBS_LINK_INFINIBAND)
		return th_fail(ret_err, TH_E_NO_PATH,
			"none of %u GIDs names this port: is a subnet manager running?", count);
	return th_fail(ret_err, TH_E_NO_PATH,
		"none of %u GIDs is a RoCE v2 address that a router forwards: give the network "
		"interface an IPv4 address, or configure the GID index",
		count);
}

const char *
gid_text(const uint8_t gid[VERBS_GID_BYTES], char ret_text[GID_TEXT_BYTES])
{
	bool ipv4 = is_ipv4(gid);
	const char *text = inet_ntop(
		ipv4 ? AF_INET : AF_INET6, ipv4 ? gid + 12 : gid, ret_text, GID_TEXT_BYTES);
	TH_ASSERT(text); /* there is room for any */
	return text;
}

const char *
gid_type_text(enum verbs_gid_type type)
{
	switch (type) {
	case VERBS_GID_IB:
		return "InfiniBand";
	case VERBS_GID_ROCE_V1:
		return "RoCE v1";
	case VERBS_GID_ROCE_V2:
		return "RoCE v2";
	}
	return "?";
}
