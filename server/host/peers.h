/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers - the connections of thserverd to the other servers of its list: asks each whether it is
 * there, as the core wants it, and says what it answered. Decides nothing. One thread.
 */
#ifndef TH_SERVER_HOST_PEERS_H
#define TH_SERVER_HOST_PEERS_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/ctl.h"
#include "ipc/base/err.h"
#include "server/host/server_options.h"

struct peers;

/* Begins to connect to all of the list. 0, or a code with a sentence. */
TH_MUST_USE int peers_new(
	const struct options *options, struct th_err *err, struct peers **ret_peers);

/* Readable while peers_next would give something. Owned by peers. */
int peers_fd(const struct peers *peers);

/* Asks this server of the list; peers_next tells what came of it, soon (twice peers.probe). */
void peers_probe(struct peers *peers, uint32_t peer, const struct ctl_hello *hello);

struct peers_item {
	uint32_t peer;
	bool answered; /* false: it did not answer, or not to the question: reply is not set */
	struct ctl_hello_reply reply;
};

/* The next probe that has ended; false: none now. */
bool peers_next(struct peers *peers, struct peers_item *ret_item);

#endif
