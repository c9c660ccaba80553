/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net - control messages over the nng library: a server that answers and a client that asks.
 *
 * Only this folder knows nng. No policy: no retry, no choice of server, no meaning of bytes.
 * Threads of nng only queue and write an eventfd; every function here is for the one thread that
 * owns the object, and the descriptors are for its epoll (level triggered, readable while
 * something is queued).
 *
 * Block the signals that a signalfd takes before the first call: nng starts threads then, and they
 * inherit the mask. A process that used net must not fork without exec, and ends by net_exit.
 *
 * Sockets of nng live as long as the process: nng_close of 1.5.2 can hang for ever when a
 * receive was outstanding. _free closes connections, listeners, dialers and contexts and leaves
 * the empty socket.
 */
#ifndef TH_IPC_NET_NET_H
#define TH_IPC_NET_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"

#define NET_MESSAGE_BYTES_MAX (1u << 20) /* a longer one ends the connection that sends it */
#define NET_URL_BYTES 256

/*
 * Ends the process with this status, without destructors: those of nng may hang. Standard output
 * is flushed first.
 */
void net_exit(int status) __attribute__((noreturn));

/* tcp://HOST:PORT or ipc:///PATH: 0, or TH_E_INVALID with a sentence. Opens nothing. */
TH_MUST_USE int net_url_check(const char *url, struct th_err *err);

/* ---- server --------------------------------------------------------------------------------- */

struct net_server;

struct net_server_options {
	uint32_t contexts;     /* requests that can be open at once, at the start               */
	uint32_t contexts_max; /* as many at most: each standing POLL holds one*/
};

enum net_server_item_kind {
	NET_REQUEST = 1, /* answer it once with net_server_reply                              */
	NET_GONE,        /* the asker of this token went away before it was answered: forget it */
	NET_CLOSED,      /* a connection ended: peer.pipe. A request that had just come in by it
			  * may still follow                                                    */
};

struct net_peer {
	uint32_t pipe; /* of the connection: never 0, not used again soon                      */
	uint32_t listener; /* it came by: 0 is that of the first net_server_listen, 1 of the next...
			    * UINT32_MAX: the connection has ended, and it cannot be told   */
	bool local; /* came over ipc: the three numbers are the kernel's word               */
	uint32_t uid, gid;
	int32_t pid;
};

struct net_server_item {
	enum net_server_item_kind kind;
	uint64_t token; /* never 0, never used twice; NET_CLOSED: 0                            */
	struct net_peer peer; /* NET_CLOSED: only pipe is set                                   */
	const uint8_t *data;  /* NET_REQUEST: borrowed until the next call of net_server_next   */
	size_t bytes;
};

void net_server_options_default(struct net_server_options *ret_options);

/* options NULL: the defaults. 0, -ENOMEM, -EMFILE... */
TH_MUST_USE int net_server_new(const struct net_server_options *options, struct th_err *err,
	struct net_server **ret_server);
/* Closes all connections: whoever waits for an answer sees that at once. NULL is fine. */
void net_server_free(struct net_server *server);

/*
 * tcp://HOST:PORT (port 0: any) or ipc:///PATH. permissions: of the ipc socket, e.g. 0660; 0
 * leaves them to the umask. ret_url: where it really listens. 0, -EADDRINUSE, -EADDRNOTAVAIL,
 * -EACCES..., TH_E_INVALID for an address that cannot be used.
 */
TH_MUST_USE int net_server_listen(struct net_server *server, const char *url, unsigned permissions,
	struct th_err *err, char ret_url[NET_URL_BYTES]);

/* Readable while net_server_next would give something. Owned by the server. */
int net_server_fd(const struct net_server *server);

/* The next thing that happened; false: nothing now. */
bool net_server_next(struct net_server *server, struct net_server_item *ret_item);

/*
 * Answers token; data is copied. 0, also when the asker is gone in the meantime; -ESTALE for a
 * token that was answered or reported as gone; -EMSGSIZE, -ENOMEM (the request stays open).
 */
TH_MUST_USE int net_server_reply(
	struct net_server *server, uint64_t token, const uint8_t *data, size_t bytes);

/*
 * Nothing is queued and every answer was handed to its connection: nothing is left to wait for
 * before leaving. (An asker that sees the connection end right after its answer may still count the
 * answer as lost.) After false the descriptor becomes readable when it is worth asking again.
 */
bool net_server_quiet(struct net_server *server);

struct net_server_counters {
	uint64_t requests, replies, gone, dropped; /* dropped: a received message of no bytes   */
	uint32_t connections, contexts, contexts_open;
};

void net_server_counters(struct net_server *server, struct net_server_counters *ret_counters);

/* ---- client --------------------------------------------------------------------------------- */

struct net_client;

struct net_client_options {
	uint32_t outstanding_max; /* requests without an answer at once: 1024                  */
};

enum net_client_item_kind {
	NET_REPLY = 1, /* rc 0: data is the answer; else there will be none                   */
	NET_UP,        /* connected                                                            */
	NET_DOWN,      /* the connection is gone; nng dials again by itself                    */
};

struct net_client_item {
	enum net_client_item_kind kind;
	uint64_t tag; /* NET_REPLY: as given to net_client_send                                */
	/*
	 * NET_REPLY: 0; -ETIMEDOUT; -ECONNRESET: the connection was lost, whether the other side
	 * acted is not known; -ECANCELED: net_client_dial; -EMSGSIZE...
	 */
	int rc;
	const uint8_t *data; /* borrowed until the next call of net_client_next                */
	size_t bytes;
};

TH_MUST_USE int net_client_new(const struct net_client_options *options, struct th_err *err,
	struct net_client **ret_client);
void net_client_free(struct net_client *client); /* no completions after this; NULL is fine   */

/*
 * Talk to url from now on: what is open ends with -ECANCELED. wait false: returns at once, connects
 * in the background, again and again; where it does that already, to this url and not for long, it
 * goes on. wait true (tools only, blocks):
 * the first attempt is made now and its failure returned. TH_E_INVALID: not a URL.
 */
TH_MUST_USE int net_client_dial(
	struct net_client *client, const char *url, bool wait, struct th_err *err);

/*
 * Asks; data is copied. Exactly one NET_REPLY with the tag follows. timeout_ns counts from now,
 * also while there is no connection; TH_FOREVER: none. 0, -ENOMEM, -EMSGSIZE, TH_E_LIMIT (too
 * many open).
 */
TH_MUST_USE int net_client_send(struct net_client *client, uint64_t tag, const uint8_t *data,
	size_t bytes, int64_t timeout_ns);

int net_client_fd(const struct net_client *client);
bool net_client_next(struct net_client *client, struct net_client_item *ret_item);

#endif
