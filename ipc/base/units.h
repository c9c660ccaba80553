/* SPDX-License-Identifier: Apache-2.0 */
/*
 * units - durations and sizes as people write them in options and configuration files.
 *
 * A printed value parses again to the same number. Pure.
 */
#ifndef TH_IPC_BASE_UNITS_H
#define TH_IPC_BASE_UNITS_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/base/checked.h"

#define TH_UNITS_BYTES 32 /* the longest printed value and a NUL */

/*
 * "500ms", "1.5s", "2h": a decimal number and, directly behind it, ns us ms s m h or d. Only 0 may
 * stand without a unit. 0 or TH_E_INVALID (also when it does not fit 63 bits of ns).
 */
TH_MUST_USE int th_parse_duration(const char *text, int64_t *ret_ns);

/* "64MiB", "10GB", "4096": bytes, or B, KB MB GB TB (powers of 1000), KiB MiB GiB TiB. */
TH_MUST_USE int th_parse_size(const char *text, uint64_t *ret_bytes);

/* Exact, in the largest unit that divides it: "1500ms", "64MiB", "0s". Returns buffer. */
char *th_print_duration(int64_t ns, char buffer[TH_UNITS_BYTES]);
char *th_print_size(uint64_t bytes, char buffer[TH_UNITS_BYTES]);

/* For people, three digits or so: "1.50GiB", "712ms". Does not parse back. Returns buffer. */
char *th_print_duration_short(int64_t ns, char buffer[TH_UNITS_BYTES]);
char *th_print_size_short(uint64_t bytes, char buffer[TH_UNITS_BYTES]);

#endif
