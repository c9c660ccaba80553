/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_internal - what server and client share: errors of nng, notices about connections, wake-ups.
 *
 * Only ipc/net includes this and nng. Lock order: the list of links, then the object.
 */
#ifndef TH_IPC_NET_NET_INTERNAL_H
#define TH_IPC_NET_NET_INTERNAL_H

#include <nng/nng.h>
#include <stdbool.h>
#include <stdint.h>

#include "ipc/net/net.h"

/*
 * Whose faults net_common.c makes good. tests/unit/ipc/nng_repair.py sees which nng is linked: any
 * other has to do without.
 */
#define NET_NNG_REPAIRED "1.5.2"

/* The one place where an error of nng becomes -errno or TH_E_*; 0 stays 0. */
int net_code(int nng_error);
/* Fills *err with "what: the cause" and returns the code. what names the address. */
int net_fail(struct th_err *err, int nng_error, const char *what, const char *address);

/*
 * nng calls back about connections from threads of its own, also shortly after the object was
 * freed: so it is given a number, and the object is looked up. The handler runs under the list's
 * lock.
 */
struct net_link {
	struct net_link *next;
	uint64_t number;
	void (*handler)(struct net_link *link, uint32_t pipe, bool up);
};

int net_link_add(struct net_link *link, nng_socket socket); /* 0 or an error of nng */
/* No handler runs or starts when this returns. */
void net_link_remove(struct net_link *link);

/* "HOST:PORT" with brackets around IPv6; false for other families. */
bool net_print_address(const nng_sockaddr *address, char ret_text[NET_URL_BYTES]);

/* Milliseconds for nng, rounded up so that nothing times out early. */
nng_duration net_duration(int64_t ns);

/* An eventfd that stays readable while something is queued. Called under the object's lock. */
void net_wake(int fd);
void net_wake_clear(int fd);

#endif
