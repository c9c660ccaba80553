/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sigbus - touches memory of workers without being ended by it.
 *
 * Mapped memory cannot shrink, but its pages can still be missing: a hole that was punched into it
 * and that nothing is left to fill (no huge pages, a full tmpfs) is SIGBUS at the touch. Within a
 * guarded call such a fault is a result; anywhere else it goes on to whoever had the signal before,
 * and ends the process as ever. The thread must not block SIGBUS. Any thread.
 */
#ifndef TH_TRANSPORT_PART_SIGBUS_H
#define TH_TRANSPORT_PART_SIGBUS_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "ipc/base/checked.h"
#include "transport/hash/digest.h"

/* Once, before the first guarded call; again is harmless. 0 or -errno. */
TH_MUST_USE int sigbus_install(void);
/* All signals but the one that guards: what threads that touch memory of workers block. */
void sigbus_mask(sigset_t *ret_mask);

/* 0, or TH_E_STALE_MEMORY when a page could not be touched: what was done until then stays done. */
TH_MUST_USE int sigbus_copy(void *to, const void *from, size_t bytes);
/* Many small pieces, one behind the other at the other end. */
TH_MUST_USE int sigbus_gather(uint8_t *to, const struct iovec *from, uint32_t count);
TH_MUST_USE int sigbus_scatter(const struct iovec *to, uint32_t count, const uint8_t *from);
TH_MUST_USE int sigbus_digest(struct digest *digest, const void *data, size_t bytes);
/* Past the caches (nt_copy.h), and the same with the digest of what was stored (digest.h). */
TH_MUST_USE int sigbus_nt_copy(void *to, const void *from, size_t bytes);
TH_MUST_USE int sigbus_digest_copy(struct digest *digest, void *to, const void *from, size_t bytes);

#endif
