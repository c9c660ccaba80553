/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config - where the daemons' settings come from, other than the command line.
 *
 * A configuration is keys with text values; what a key means is the program's own. The file is
 * ini: "key = value" lines; "[lease]" before "dead = 10s" is the key "lease.dead". Files in the
 * folder conf.d beside it whose names end in .conf are read after it, by name bytewise, then the
 * environment (THSERVERD_LEASE_DEAD): what comes later wins. Sections "[thserverd]" and
 * "[thagentd]", alone or before a key's own ("[thserverd.lease]"), are for that program only and
 * the other one skips them, so that both can share a folder. Start-up only, one thread.
 */
#ifndef TH_IPC_BASE_CONFIG_H
#define TH_IPC_BASE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"

struct config {
	const char *program;     /* "thserverd": sections, and THSERVERD_ in the environment     */
	const char *file;        /* /etc/tensorhub/thserverd.conf                                */
	const char *const *keys; /* all there are, NULL-terminated                               */
	/* 0, or a code with a sentence; config puts the place before it. */
	int (*set)(void *to, const char *key, const char *value, struct th_err *err);
	void *to;
};

/*
 * Calls set for everything that is configured, in rising precedence. file: instead of
 * config->file, which alone may be absent; NULL: that one. 0; -errno of a file that cannot be
 * read; TH_E_INVALID: a line that is none, a key that does not exist, or a value that set
 * refused, with "FILE:LINE:".
 */
TH_MUST_USE int config_load(const struct config *config, const char *file, struct th_err *err);

/* Values of one kind, for set: 0, or TH_E_INVALID with a sentence that says what is wanted. */
int config_number(uint32_t *field, uint32_t low, uint32_t high, const char *key, const char *value,
	struct th_err *err);
int config_bool(bool *field, const char *key, const char *value, struct th_err *err);
int config_duration(
	int64_t *field, int64_t low_ns, const char *key, const char *value, struct th_err *err);
/* high may be UINT64_MAX: there is no limit. */
int config_size(uint64_t *field, uint64_t low, uint64_t high, const char *key, const char *value,
	struct th_err *err);

#endif
