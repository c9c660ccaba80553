/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rail_places - see rail_places.h. Pure.
 */
#include "transport/rdma/device/rail_places.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"

#define PORTS_MAX 255ul
#define HOW "write node0=mlx5_0+mlx5_1,node1=mlx5_2"

/* ---- words -------------------------------------------------------------------------------- */

/* So many hexadecimal digits and the character behind them, which may be the NUL. */
static bool
hex(const char **at, size_t digits_max, char end, uint32_t *ret_value)
{
	uint32_t value = 0;
	size_t digits = 0;

	for (; digits <= digits_max; digits++) {
		char c = (*at)[digits];
		if (c >= '0' && c <= '9')
			value = value << 4 | (uint32_t)(c - '0');
		else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
			value = value << 4 | ((uint32_t)(c | 0x20) - 'a' + 10);
		else
			break;
	}
	if (digits == 0 || digits > digits_max || (*at)[digits] != end)
		return false;
	*at += digits + (end != '\0');
	*ret_value = value;
	return true;
}

bool
place_pci(const char *text, uint32_t *ret_pci)
{
	uint32_t domain = 0, bus, device, function;
	const char *at = text, *colon = strchr(text, ':');

	if (colon && strchr(colon + 1, ':') && !hex(&at, 4, ':', &domain))
		return false;
	if (!hex(&at, 2, ':', &bus) || !hex(&at, 2, '.', &device) || !hex(&at, 1, '\0', &function))
		return false;
	if (device > 0x1f || function > 7)
		return false;
	*ret_pci = domain << 16 | bus << 8 | device << 3 | function;
	return true;
}

bool
place_rail_valid(const char *text)
{
	size_t name = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				   "0123456789_.-");
	const char *port = text + name;

	if (name == 0 || name >= VERBS_NAME_BYTES)
		return false;
	if (*port == '\0')
		return true;
	if (*port != '/' || port[1] < '1' || port[1] > '9' || strlen(port) > 4)
		return false;
	char *end;
	unsigned long number = strtoul(port + 1, &end, 10);
	return *end == '\0' && number <= PORTS_MAX;
}

bool
place_rail_is(const char *written, const char *rail)
{
	size_t length = strlen(written);

	if (strncmp(written, rail, length) != 0)
		return false;
	return rail[length] == '\0' || (!strchr(written, '/') && rail[length] == '/');
}

/* ---- rules -------------------------------------------------------------------------------- */

static int
parse_place(const char *text, struct th_err *err, struct place_rule *rule)
{
	char *end;

	if (strcmp(text, "*") == 0) {
		rule->kind = PLACE_ANY;
		return 0;
	}
	if (strncmp(text, "node", 4) == 0 && text[4] >= '0' && text[4] <= '9') {
		unsigned long node = strtoul(text + 4, &end, 10);
		rule->kind = PLACE_NODE;
		rule->node = (uint32_t)node;
		if (*end == '\0' && node < PLACE_NODES_MAX)
			return 0;
	}
	rule->kind = PLACE_PCI;
	if (place_pci(text, &rule->pci))
		return 0;
	return th_fail(err, TH_E_INVALID,
		"\"%.64s\" is no place: a NUMA node (node0), the PCI address of a GPU (3b:00.0), "
		"or * for all others",
		text);
}

static int
parse_rails(char *text, struct th_err *err, struct place_rule *rule)
{
	char *name;

	while ((name = strsep(&text, "+"))) {
		if (!place_rail_valid(name))
			return th_fail(err, TH_E_INVALID,
				"\"%.64s\" is no device (mlx5_0) and no port of one (mlx5_0/1)",
				name);
		if (rule->num_rails == PLACE_RAILS_MAX)
			return th_fail(err, TH_E_INVALID, "more than %u devices for one place",
				PLACE_RAILS_MAX);
		snprintf(rule->rails[rule->num_rails++], PLACE_RAIL_BYTES, "%s", name);
	}
	return 0;
}

static bool
same_place(const struct place_rule *a, const struct place_rule *b)
{
	return a->kind == b->kind && a->node == b->node && a->pci == b->pci;
}

static int
parse_rule(char *text, struct th_err *err, struct place_rules *rules)
{
	struct place_rule rule = {0};
	char *equals = strchr(text, '=');

	if (!equals)
		return th_fail(err, TH_E_INVALID, "\"%.64s\" has no =; " HOW, text);
	*equals = '\0';
	int rc = parse_place(text, err, &rule);
	if (rc == 0)
		rc = parse_rails(equals + 1, err, &rule);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < rules->count; i++) {
		if (same_place(&rules->rules[i], &rule))
			return th_fail(err, TH_E_INVALID, "\"%.64s\" stands there twice", text);
	}
	if (rules->count == PLACE_RULES_MAX)
		return th_fail(err, TH_E_INVALID, "more than %u places", PLACE_RULES_MAX);
	rules->rules = th_realloc(rules->rules, rules->count + 1, sizeof(rules->rules[0]));
	rules->rules[rules->count++] = rule;
	return 0;
}

int
place_parse(const char *text, struct th_err *err, struct place_rules *ret_rules)
{
	struct place_rules rules = {0};
	char *copy = th_strdup(text), *at = copy, *one;
	int rc = 0;

	while (*text != '\0' && rc == 0 && (one = strsep(&at, ",")))
		rc = parse_rule(one, err, &rules);
	free(copy);
	if (rc < 0)
		place_free(&rules);
	else
		*ret_rules = rules;
	return rc;
}

void
place_free(struct place_rules *rules)
{
	free(rules->rules);
	*rules = (struct place_rules){0};
}

const struct place_rule *
place_find(const struct place_rules *rules, enum place_kind kind, uint32_t node_or_pci)
{
	const struct place_rule *any = NULL;

	for (uint32_t i = 0; i < rules->count; i++) {
		const struct place_rule *rule = &rules->rules[i];
		if (rule->kind == PLACE_ANY)
			any = rule;
		else if (rule->kind == kind &&
			 (kind == PLACE_NODE ? rule->node : rule->pci) == node_or_pci)
			return rule;
	}
	return any;
}
