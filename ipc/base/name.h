/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name - the rules for names, versions and hashes that all programs must apply alike.
 *
 * Shared by both cores, libthc and thctl, so that what one accepts the others do too. Pure.
 */
#ifndef TH_IPC_BASE_NAME_H
#define TH_IPC_BASE_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/ctl.h"
#include "ipc/base/err.h"

/*
 * A name is 1..max bytes of UTF-8 without control characters (they would forge log lines and
 * terminal output). name may be NULL: not valid. Reads at most max + 1 bytes of it.
 */
bool th_name_valid(const char *name, size_t max);

/* Two programs of these clusters may talk; empty: none is configured, and it goes with any. */
bool th_cluster_fits(const char *a, const char *b);

/* Copies a NUL-terminated text of at most TH_NAME_MAX bytes. 0, or TH_E_INVALID when it is longer
 * (ret_name is then untouched). Does not judge the text: see th_name_valid. */
TH_MUST_USE int th_name_copy(char ret_name[TH_NAME_MAX + 1], const char *text);

bool th_hash_equal(struct th_hash a, struct th_hash b);
bool th_hash_none(struct th_hash hash);

bool th_version_none(struct th_version version);
/* <0, 0, >0 by (lineage, version). None is before every version and equal to none. */
int th_version_compare(struct th_version a, struct th_version b);

/* What a version string means: a number, or latest minus a number. */
struct th_spec {
	bool relative;
	uint64_t number; /* the version, or how far before latest (0: latest itself) */
};

/*
 * Grammar: latest(-[1-9][0-9]*)? or a decimal number. 0 or TH_E_INVALID: another text, a number
 * over 64 bits, TH_NO_VERSION, more than TH_SPEC_MAX bytes, or NULL.
 */
TH_MUST_USE int th_spec_parse(const char *text, struct th_spec *ret_spec);

#endif
