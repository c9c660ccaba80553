/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages - anonymous memory of our own that NICs are to know. Any thread.
 */
#ifndef TH_TRANSPORT_RDMA_PAGES_H
#define TH_TRANSPORT_RDMA_PAGES_H

#include <stdint.h>

/* Whole pages, zeros; what is large begins where a huge page may. Neither children nor core files
 * have it. munmap gives it back. NULL: no memory. */
uint8_t *pages_map(uint64_t bytes);

#endif
