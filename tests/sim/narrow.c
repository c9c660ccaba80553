/* SPDX-License-Identifier: Apache-2.0 */
/*
 * narrow - a smaller world than the seed's own: options set by hand, single faults left out. With
 * the seed they say a run in one line, which is what shrink.c looks for and what is replayed.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

#define SET_MAX 64u
#define DROP_MAX 256u

static struct {
	struct setting {
		const struct option *option;
		int64_t value;
	} set[SET_MAX];
	struct strike drop[DROP_MAX];
	uint32_t num_set, num_drop;
} narrow;

#define OPTION(field, is_rate)                                                                     \
	{                                                                                          \
		.name = #field, .offset = offsetof(struct options, field),                         \
		.bytes = sizeof(((struct options *)0)->field), .rate = (is_rate)                   \
	}

static const struct option options[] = {
	OPTION(servers, false),
	OPTION(hosts, false),
	OPTION(datacenters, false),
	OPTION(models, false),
	OPTION(groups, false),
	OPTION(shards, false),
	OPTION(chunks, false),
	OPTION(trainers, false),
	OPTION(clock_skew_permille, true),
	OPTION(spot_percent, true),
	OPTION(shared_percent, false),
	OPTION(nic_percent, false),
	OPTION(forever_percent, false),
	OPTION(cancel_permille, true),
	OPTION(diverge_permille, true),
	OPTION(other_bytes_percent, true),
	OPTION(layout_percent, true),
	OPTION(lineage_percent, true),
	OPTION(reset_percent, true),
	OPTION(renew_permille, true),
	OPTION(safety_ns, false),
	OPTION(net_min_ns, false),
	OPTION(net_mean_ns, false),
	OPTION(chunk_ns, false),
	OPTION(think_ns, false),
	OPTION(pair_block_ns, false),
	OPTION(fifo, false),
	OPTION(quiet, false),
	OPTION(loss_permille, true),
	OPTION(twice_permille, true),
	OPTION(slow_permille, true),
	OPTION(leg_fail_permille, true),
	OPTION(corrupt_permille, true),
	OPTION(worker_death_ns, true),
	OPTION(host_crash_ns, true),
	OPTION(host_pause_ns, true),
	OPTION(server_restart_ns, true),
	OPTION(server_pause_ns, true),
	OPTION(cut_ns, true),
	OPTION(slow_link_ns, true),
	OPTION(pipe_drop_ns, true),
	OPTION(late_pidfd_ns, true),
	OPTION(server_down_ns, false),
	OPTION(offload_max, false),
	OPTION(tickets_max, true),
	OPTION(retain_percent, true),
	OPTION(force_percent, false),
	OPTION(grace_ns, false),
	OPTION(crawl_ns, false),
	OPTION(fan_gain, false),
	OPTION(drain_ns, true),
	OPTION(evict_ns, true),
	OPTION(leave_ns, true),
	OPTION(peer_cut_ns, true),
	OPTION(stranger_ns, true),
	OPTION(only_servers_fail, false),
	OPTION(list_ns, true),
	OPTION(lie_percent, true),
	OPTION(far_times, false),
	OPTION(burst_ns, false),
	OPTION(observe_ns, true),
	OPTION(borrow_ns, true),
	OPTION(prefetch_percent, true),
	OPTION(seed_percent, true),
	OPTION(go_ns, true),
	OPTION(follow_percent, true),
};

_Static_assert(sizeof(struct options) == 392, "a field has come or gone: so must its row above");

const struct option *
option_at(uint32_t index)
{
	return index < TH_ARRAY_LEN(options) ? &options[index] : NULL;
}

static const struct option *
option_named(const char *name, size_t bytes)
{
	for (uint32_t i = 0; i < TH_ARRAY_LEN(options); i++) {
		if (strlen(options[i].name) == bytes && memcmp(options[i].name, name, bytes) == 0)
			return &options[i];
	}
	return NULL;
}

int64_t
option_get(const struct options *from, const struct option *option)
{
	const char *at = (const char *)from + option->offset;
	int64_t wide;
	uint32_t narrow_value;

	if (option->bytes == sizeof(bool))
		return *(const bool *)at;
	if (option->bytes == sizeof(wide)) {
		memcpy(&wide, at, sizeof(wide));
		return wide;
	}
	memcpy(&narrow_value, at, sizeof(narrow_value));
	return narrow_value;
}

static void
option_put(struct options *to, const struct option *option, int64_t value)
{
	char *at = (char *)to + option->offset;
	uint32_t narrow_value = (uint32_t)value;

	if (option->bytes == sizeof(bool))
		*(bool *)at = value != 0;
	else if (option->bytes == sizeof(value))
		memcpy(at, &value, sizeof(value));
	else
		memcpy(at, &narrow_value, sizeof(narrow_value));
}

void
options_print(const struct options *from)
{
	for (uint32_t i = 0; i < TH_ARRAY_LEN(options); i++)
		printf("%s=%" PRId64 "%c", options[i].name, option_get(from, &options[i]),
			i % 6 == 5 || i + 1 == TH_ARRAY_LEN(options) ? '\n' : ' ');
}

/* ---- what is narrower ------------------------------------------------------------------------ */

bool
narrow_set(const struct option *option, int64_t value)
{
	for (uint32_t i = 0; i < narrow.num_set; i++) {
		if (narrow.set[i].option == option) {
			narrow.set[i].value = value;
			return true;
		}
	}
	if (narrow.num_set == SET_MAX)
		return false;
	narrow.set[narrow.num_set++] = (struct setting){.option = option, .value = value};
	return true;
}

bool
narrow_get(const struct option *option, int64_t *ret_value)
{
	for (uint32_t i = 0; i < narrow.num_set; i++) {
		if (narrow.set[i].option == option) {
			*ret_value = narrow.set[i].value;
			return true;
		}
	}
	return false;
}

void
narrow_unset(const struct option *option)
{
	for (uint32_t i = 0; i < narrow.num_set; i++) {
		if (narrow.set[i].option == option)
			narrow.set[i--] = narrow.set[--narrow.num_set];
	}
}

bool
narrow_drop(struct strike strike)
{
	if (narrow.num_drop == DROP_MAX)
		return false;
	narrow.drop[narrow.num_drop++] = strike;
	return true;
}

void
narrow_undrop(struct strike strike)
{
	for (uint32_t i = 0; i < narrow.num_drop; i++) {
		if (narrow.drop[i].fault == strike.fault && narrow.drop[i].nth == strike.nth)
			narrow.drop[i--] = narrow.drop[--narrow.num_drop];
	}
}

bool
narrow_dropped(struct strike strike)
{
	for (uint32_t i = 0; i < narrow.num_drop; i++) {
		if (narrow.drop[i].fault == strike.fault && narrow.drop[i].nth == strike.nth)
			return true;
	}
	return false;
}

void
narrow_apply(struct options *to)
{
	for (uint32_t i = 0; i < narrow.num_set; i++)
		option_put(to, narrow.set[i].option, narrow.set[i].value);
}

bool
narrow_parse_set(const char *text)
{
	while (*text != '\0') {
		size_t name_bytes = strcspn(text, "=");
		const struct option *option = option_named(text, name_bytes);
		char *end;
		if (option == NULL || text[name_bytes] != '=')
			return false;
		int64_t value = strtoll(text + name_bytes + 1, &end, 10);
		if (end == text + name_bytes + 1 || (*end != ',' && *end != '\0') || value < 0)
			return false;
		if (!narrow_set(option, value))
			return false;
		text = *end == ',' ? end + 1 : end;
	}
	return true;
}

bool
narrow_parse_drop(const char *text)
{
	while (*text != '\0') {
		size_t name_bytes = strcspn(text, ".");
		struct strike strike;
		char *end;
		if (text[name_bytes] != '.' || !fault_named(text, name_bytes, &strike.fault))
			return false;
		strike.nth = (uint32_t)strtoul(text + name_bytes + 1, &end, 10);
		if (end == text + name_bytes + 1 || (*end != ',' && *end != '\0'))
			return false;
		if (!narrow_drop(strike))
			return false;
		text = *end == ',' ? end + 1 : end;
	}
	return true;
}

void
narrow_print(uint64_t seed)
{
	printf("--seed %" PRIu64, seed);
	for (uint32_t i = 0; i < narrow.num_set; i++)
		printf("%s%s=%" PRId64, i == 0 ? " --set " : ",", narrow.set[i].option->name,
			narrow.set[i].value);
	for (uint32_t i = 0; i < narrow.num_drop; i++)
		printf("%s%s.%u", i == 0 ? " --drop " : ",", fault_name(narrow.drop[i].fault),
			narrow.drop[i].nth);
	printf("\n");
}
