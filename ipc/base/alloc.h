/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc - memory for the daemons' own small structures, or the end of the process with a sentence.
 *
 * Only where the size is bounded by our own limits: a failure of a few hundred bytes leaves nothing
 * to fall back to. Not for sizes that a peer chose (use malloc and refuse the peer), and never in
 * libthc, which must not end its host process. Free with free(). Any thread.
 */
#ifndef TH_IPC_BASE_ALLOC_H
#define TH_IPC_BASE_ALLOC_H

#include <stddef.h>

/* Zeroed; never NULL, also for count 0. */
void *th_calloc(size_t count, size_t size) __attribute__((malloc, returns_nonnull));

/* Keeps the content, does not zero what is new. */
void *th_realloc(void *memory, size_t count, size_t size) __attribute__((returns_nonnull));

char *th_strdup(const char *text) __attribute__((malloc, returns_nonnull));
void *th_memdup(const void *memory, size_t bytes) __attribute__((malloc, returns_nonnull));

#endif
