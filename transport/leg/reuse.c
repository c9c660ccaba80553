/* SPDX-License-Identifier: Apache-2.0 */
/* reuse - see reuse.h. */
#include "transport/leg/reuse.h"

#define FREE_CHUNKS 4u
#define SAMPLE 32u

void
reuse_init(struct reuse *reuse, bool on)
{
	*reuse = (struct reuse){.on = on, .row = UINT32_MAX};
}

bool
reuse_pays(const struct reuse *reuse, uint32_t row, uint32_t under_way)
{
	return reuse->on && row != reuse->row &&
	       reuse->different + under_way < FREE_CHUNKS + reuse->equal + reuse->seen / SAMPLE;
}

bool
reuse_waits(const struct reuse *reuse, uint32_t row)
{
	return reuse_pays(reuse, row, 0) && reuse->different < FREE_CHUNKS + reuse->equal;
}

void
reuse_pass(struct reuse *reuse)
{
	reuse->seen++;
}

void
reuse_judge(struct reuse *reuse, uint32_t row, bool equal, uint64_t bytes)
{
	reuse->seen++;
	if (equal) {
		reuse->equal++;
		reuse->bytes += bytes;
	} else if (reuse->row == UINT32_MAX || row > reuse->row) {
		reuse->different++;
		reuse->row = row;
	}
}
