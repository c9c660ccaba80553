/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data_fault - failures on purpose, for tests. Compiled into test builds only (meson
 * -Dfaults=true); a production build has neither the variables nor the code.
 *
 * Environment, read once at transport_open:
 *   TH_FAULT_FLIP_CHUNK=N[,always]   the source flips a byte of chunk N in flight, once per leg or
 *                                    each time; its own memory is not touched
 *   TH_FAULT_EXIT_AFTER_BYTES=N      _exit(99) when N bytes of chunks have been sent
 *   TH_FAULT_STALL_AFTER_BYTES=N     nothing of a chunk is sent any more after N bytes
 */
#ifndef TH_TRANSPORT_DATA_FAULT_H
#define TH_TRANSPORT_DATA_FAULT_H

#ifdef TH_FAULTS

#include <stdbool.h>
#include <stdint.h>

struct fault {
	bool flip, flip_always;
	uint32_t flip_chunk;
	uint64_t exit_after, stall_after; /* bytes; 0: never */
	uint64_t sent;                    /* atomic: of all legs of the process */
};

void fault_init(struct fault *fault);
/* Counts what was sent; may not return. */
void fault_sent(struct fault *fault, uint64_t bytes);
bool fault_stalls(const struct fault *fault);

#endif
#endif
