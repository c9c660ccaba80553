/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop - the one thread of thserverd: requests and time into the core, its replies out.
 */
#ifndef TH_SERVER_HOST_LOOP_H
#define TH_SERVER_HOST_LOOP_H

#include "server/host/options.h"

struct loop;

/*
 * Blocks SIGTERM, SIGINT and SIGPIPE, opens everything and listens; call it before anything
 * starts a thread. options is borrowed for good. 0, or a code with a sentence.
 */
TH_MUST_USE int loop_new(const struct options *options, struct th_err *err, struct loop **ret_loop);

/*
 * Says that it is ready, which with other servers takes until it knows whether it serves or
 * stands by. Serves until a signal says to leave, and then until the last answer is on its way. */
void loop_run(struct loop *loop);

#endif
