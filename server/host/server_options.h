/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_options - what the operator wants of thserverd, checked before anything is opened.
 *
 * Precedence: option > environment > conf.d > file > default. Read-only after the start.
 */
#ifndef TH_SERVER_HOST_SERVER_OPTIONS_H
#define TH_SERVER_HOST_SERVER_OPTIONS_H

#include <stdbool.h>

#include "ipc/base/err.h"
#include "ipc/net/net.h"
#include "server/core/refsrv.h"

#define OPTIONS_LISTEN_MAX 16
#define OPTIONS_PEERS_MAX 8

struct options {
	char listen[OPTIONS_LISTEN_MAX][NET_URL_BYTES];
	uint32_t num_listen;
	/* The ordered list of servers, this one included; 0 when there is no other. */
	char peers[OPTIONS_PEERS_MAX][NET_URL_BYTES];
	uint32_t num_peers;
	struct refsrv_config core; /* without server_inc, seed and the names of peers          */
	struct net_server_options net;
	bool check_only; /* -t                                                                    */
};

/* 0, or a code with a sentence. Prints help, version and usage errors itself and exits. */
TH_MUST_USE int options_parse(
	int argc, char **argv, struct th_err *err, struct options *ret_options);

#endif
