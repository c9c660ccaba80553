/* SPDX-License-Identifier: Apache-2.0 */
/*
 * service - the one thread of thserverd: requests and time into the core, its replies out.
 */
#ifndef TH_SERVER_HOST_SERVICE_H
#define TH_SERVER_HOST_SERVICE_H

#include "server/host/server_options.h"

struct service;

/*
 * Ignores SIGPIPE, takes the signals of a loop (ipc/base/loop.h), opens everything and listens;
 * call it before anything starts a thread. options is borrowed for good. 0, or a code with a
 * sentence.
 */
TH_MUST_USE int service_new(
	const struct options *options, struct th_err *err, struct service **ret_service);

/*
 * Says that it is ready, which with other servers takes until it knows whether it serves or
 * stands by. Serves until a signal says to leave, and then until the last answer is on its way. */
void service_run(struct service *service);

#endif
