/* SPDX-License-Identifier: Apache-2.0 */
/*
 * path - names of files that stay right when the process goes to another folder. Any thread.
 */
#ifndef TH_IPC_BASE_PATH_H
#define TH_IPC_BASE_PATH_H

#include <stddef.h>

#include "ipc/base/checked.h"

/*
 * path from the root on: one that does not begin there is taken from the folder of the process.
 * 0; -ENAMETOOLONG: it has no room; or -errno: the folder has no name, as of one that was removed.
 */
TH_MUST_USE int th_path_absolute(const char *path, char *ret_path, size_t bytes);

#endif
