/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned_pages - memory of our own that NICs and GPUs are to know. Any thread.
 */
#ifndef TH_TRANSPORT_PART_PINNED_PAGES_H
#define TH_TRANSPORT_PART_PINNED_PAGES_H

#include <stdint.h>

#include "ipc/base/checked.h"

/* Whole pages, zeros; what is large begins where a huge page may. Neither children nor core files
 * have it. munmap gives it back. NULL: no memory. */
uint8_t *pinned_pages_map(uint64_t bytes);
/* The same in a file of this name for other processes of ours. It keeps its size, whatever they do,
 * so that no touch of it is one behind its end (SIGBUS). A page that one of them punches out of it
 * reads as zeros, which the reader's digest shows. Its descriptor is the caller's, in no core. 0 or
 * -errno. */
TH_MUST_USE int pinned_pages_map_file(
	const char *name, uint64_t bytes, int *ret_fd, uint8_t **ret_data);

#endif
