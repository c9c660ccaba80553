/* SPDX-License-Identifier: Apache-2.0 */
/*
 * held_unmap - a munmap that takes as long as a test likes, or is refused.
 *
 * For programs that are linked with support['held_unmap'], which wraps it. Any thread.
 */
#ifndef TH_TESTS_SUPPORT_TRANSPORT_HELD_UNMAP_H
#define TH_TESTS_SUPPORT_TRANSPORT_HELD_UNMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* From now on whoever unmaps as many bytes or more waits. */
void held_unmap_begin(size_t bytes);
/* Until so many wait. False: not within half a minute. */
bool held_unmap_wait(uint32_t count);
/* They go on, and nobody waits any more. */
void held_unmap_end(void);
/* Whoever unmaps from..to bytes, to itself not among them, hears this code (errno) instead. */
void held_unmap_refuse(size_t from, size_t to, int code);
/* How often it was called with as many bytes or more. */
uint32_t held_unmap_calls(size_t bytes);

/* Whether the first page is mapped. */
bool held_unmap_is_mapped(const void *data);

#endif
