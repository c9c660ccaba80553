/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tables - uthash and utlist as the agent core uses them. One place for the settings.
 *
 * The hash function is fixed, so a run is repeatable; tables iterate in insertion order. Running
 * out of memory ends the process with a sentence (ipc/base/alloc.h): the sizes are bounded by the
 * limits of the configuration.
 */
#ifndef TH_DAEMON_CORE_TABLES_H
#define TH_DAEMON_CORE_TABLES_H

#include <stdlib.h>

#include "ipc/base/alloc.h"

#define HASH_FUNCTION HASH_JEN
#define uthash_malloc(bytes) th_calloc(1, (bytes))
#define uthash_free(memory, bytes) free(memory)
#include <uthash.h>
#include <utlist.h>

#endif
