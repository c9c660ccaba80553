/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_claims - see memory_claims.h. Linear merges: a check costs what the two lists have in
 * entries, and the lists of sessions that share no memory object are passed by at their first
 * entries.
 */
#include "daemon/host/memory/memory_claims.h"

#include <stddef.h>

static int
compare_u64(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

static int
compare_object(const struct interval *a, const struct interval *b)
{
	int order = compare_u64(a->dev, b->dev);
	return order ? order : compare_u64(a->ino, b->ino);
}

int
interval_compare(const void *a, const void *b)
{
	const struct interval *left = a, *right = b;
	int order = compare_object(left, right);
	if (order == 0)
		order = compare_u64(left->start, right->start);
	if (order == 0)
		order = compare_u64(left->end, right->end);
	return order ? order : compare_u64(left->row, right->row);
}

bool
interval_overlap(const struct interval *a, uint32_t num_a, const struct interval *b, uint32_t num_b,
	uint32_t *ret_a, uint32_t *ret_b)
{
	uint32_t i = 0, j = 0;
	while (i < num_a && j < num_b) {
		int order = compare_object(&a[i], &b[j]);
		if (order < 0 || (order == 0 && a[i].end <= b[j].start)) {
			i++;
		} else if (order > 0 || b[j].end <= a[i].start) {
			j++;
		} else {
			*ret_a = i;
			*ret_b = j;
			return true;
		}
	}
	return false;
}

void
claim_add(struct claim_table *table, struct claim *claim)
{
	claim->mode = CLAIM_NONE;
	claim->next = table->first;
	table->first = claim;
}

void
claim_remove(struct claim_table *table, struct claim *claim)
{
	for (struct claim **link = &table->first; *link; link = &(*link)->next) {
		if (*link == claim) {
			*link = claim->next;
			claim->next = NULL;
			claim->mode = CLAIM_NONE;
			return;
		}
	}
}

const struct claim *
claim_conflict(const struct claim_table *table, const struct claim *claim, enum claim_mode mode,
	uint32_t *ret_own, uint32_t *ret_other)
{
	if (mode == CLAIM_NONE)
		return NULL;
	for (const struct claim *other = table->first; other; other = other->next) {
		if (other->owner == claim->owner || other->mode == CLAIM_NONE ||
			(mode == CLAIM_READ && other->mode == CLAIM_READ))
			continue;
		if (interval_overlap(claim->intervals, claim->num_intervals, other->intervals,
			    other->num_intervals, ret_own, ret_other))
			return other;
	}
	return NULL;
}
