/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_hold - see gpu_hold.h.
 */
#include "daemon/host/memory/gpu_hold.h"

#include <stdint.h>
#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"

struct hold {
	uint32_t uses; /* atomic */
	bool kept;     /* atomic */
	/* Written by who still has a use, read by who ends the last one. */
	hold_gone gone;
	void *arg;
};

struct hold *
hold_new(void)
{
	struct hold *hold = th_calloc(1, sizeof(*hold));
	hold->uses = 1;
	return hold;
}

void
hold_use(struct hold *hold)
{
	__atomic_fetch_add(&hold->uses, 1, __ATOMIC_RELAXED);
}

void
hold_end(void *arg)
{
	struct hold *hold = arg;
	if (!hold || __atomic_sub_fetch(&hold->uses, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	if (hold->gone)
		hold->gone(hold->arg, __atomic_load_n(&hold->kept, __ATOMIC_RELAXED));
	free(hold);
}

void
hold_refused(void *arg)
{
	struct hold *hold = arg;
	__atomic_store_n(&hold->kept, true, __ATOMIC_RELAXED);
}

void
hold_end_and_tell(struct hold *hold, hold_gone gone, void *arg)
{
	TH_ASSERT(!hold->gone);
	hold->gone = gone;
	hold->arg = arg;
	hold_end(hold);
}
