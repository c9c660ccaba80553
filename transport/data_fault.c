/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data_fault - see data_fault.h: compiled into test builds only.
 */
#include "transport/data_fault.h"

#ifndef TH_FAULTS
#error "only for builds with -Dfaults=true"
#endif

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t
number(const char *name)
{
	const char *text = getenv(name);
	return text ? strtoull(text, NULL, 10) : 0;
}

void
fault_init(struct fault *fault)
{
	const char *flip = getenv("TH_FAULT_FLIP_CHUNK");
	*fault = (struct fault){
		.exit_after = number("TH_FAULT_EXIT_AFTER_BYTES"),
		.stall_after = number("TH_FAULT_STALL_AFTER_BYTES"),
	};
	if (flip && *flip) {
		fault->flip = true;
		fault->flip_chunk = (uint32_t)strtoul(flip, NULL, 10);
		fault->flip_always = strstr(flip, ",always") != NULL;
	}
}

void
fault_sent(struct fault *fault, uint64_t bytes)
{
	uint64_t sent = __atomic_add_fetch(&fault->sent, bytes, __ATOMIC_RELAXED);
	if (fault->exit_after > 0 && sent >= fault->exit_after)
		_exit(99);
}

bool
fault_stalls(const struct fault *fault)
{
	return fault->stall_after > 0 &&
	       __atomic_load_n(&fault->sent, __ATOMIC_RELAXED) >= fault->stall_after;
}
