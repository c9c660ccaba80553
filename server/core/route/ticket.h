/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ticket - the secret that opens one leg: a keyed hash of its number.
 *
 * Every agent sees its own tickets and must not be able to compute another's from them, so a plain
 * pseudo-random generator is not enough. SipHash-2-4 with 128 bits of output (Aumasson, Bernstein).
 */
#ifndef TH_SERVER_CORE_ROUTE_TICKET_H
#define TH_SERVER_CORE_ROUTE_TICKET_H

#include <stdint.h>

#include "ipc/base/ctl.h"

struct th_ticket ticket_make(const uint64_t seed[4], uint64_t leg);

#endif
