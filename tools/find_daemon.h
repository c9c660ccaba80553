/* SPDX-License-Identifier: Apache-2.0 */
/*
 * find_daemon - where thserverd and thagentd lie, for programs that start them.
 */
#ifndef TH_TOOLS_FIND_DAEMON_H
#define TH_TOOLS_FIND_DAEMON_H

#include <stddef.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"

/* The folder of this program; "" when the kernel does not say. */
void find_own_folder(char *ret_folder, size_t bytes);

/*
 * The daemon of this name: beside folder (as a wheel has them), where the build folder or an
 * installation has it from there, in PATH, in libexec. 0, or -ENOENT with a sentence.
 */
TH_MUST_USE int find_daemon(
	const char *folder, const char *name, char *ret_path, size_t bytes, struct th_err *err);

#endif
