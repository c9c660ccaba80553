/* SPDX-License-Identifier: Apache-2.0 */
/*
 * execute - what the control core wants done, into calls of the files of this folder.
 *
 * Main thread only; called by engine.c, in the order of the actions.
 */
#ifndef TH_DAEMON_HOST_EXECUTE_H
#define TH_DAEMON_HOST_EXECUTE_H

#include "daemon/core/agent_core.h"

struct host;

void execute(struct host *host, const struct agent_action *action);

#endif
