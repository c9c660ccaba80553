/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options_set - one key and its value into struct options: what each key means and may be.
 *
 * The same keys are used by the command line, the environment, the files and -o. Pure.
 */
#ifndef TH_DAEMON_HOST_CONFIG_OPTIONS_SET_H
#define TH_DAEMON_HOST_CONFIG_OPTIONS_SET_H

#include "daemon/host/config/agent_options.h"

void options_default(struct options *ret_options);
/* 0; TH_E_INVALID with a sentence that names key and value. */
int options_set(struct options *options, const char *key, const char *value, struct th_err *err);
/* What no single key shows: is everything there, do the values go together? */
int options_check(const struct options *options, struct th_err *err);

extern const char *const options_keys[]; /* NULL-terminated */

#endif
