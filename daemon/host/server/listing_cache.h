/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listing_cache - the listings of models, fetched from the server once for all who ask.
 *
 * A thousand workers that wait for the same version cost the server one LIST per change: who asks
 * while one is being fetched shares the next (the running one may be older than the question), and
 * who knows of a change from a watch is content with what was fetched since. Every answer is the
 * model's state at a moment after the change that the asker knows of; without one, after the
 * question came.
 *
 * Long ones go to their askers in parts, as they came; a part that is asked for later than 10 s
 * after the one before it is gone. Knows neither sockets nor the server: see listings_io. Main
 * thread only.
 */
#ifndef TH_DAEMON_HOST_SERVER_LISTING_CACHE_H
#define TH_DAEMON_HOST_SERVER_LISTING_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/ctl.h"

typedef void (*listings_answered)(void *ctx, int rc, const struct ctl_reply *reply);

struct listings_io {
	void *arg;
	/* To the server: exactly one call of answered follows, never from within. */
	void (*ask)(void *arg, const struct ctl_request *request, int64_t timeout_ns,
		listings_answered answered, void *ctx);
	/* To the asker with this token; it may be gone. data is borrowed. */
	void (*send)(void *arg, uint64_t token, const uint8_t *data, size_t bytes);
	void (*refuse)(void *arg, uint64_t token, uint64_t request_no, int code, const char *text);
};

struct listings_counters {
	uint64_t fetched; /* from the server, long ones once */
	uint64_t given;   /* to askers */
};

struct listings;

struct listings *listings_new(const struct listings_io *io);
/* No answer of the server may come any more; who still waits is not answered. NULL: nothing. */
void listings_free(struct listings *listings);

/* A LIST of no group: answered by send or refuse, once, no later than timeout_ns. */
void listings_ask(struct listings *listings, int64_t now_ns, uint64_t token, uint64_t request_no,
	const struct ctl_list *list, int64_t timeout_ns);
void listings_forget_token(struct listings *listings, uint64_t token);

/* Whether there is a server, which, and why not. What another one said is forgotten. */
void listings_server(
	struct listings *listings, bool attached, uint64_t server_inc, const char *text);

/* What is too late or too old ends; returns when to call again at the latest. */
int64_t listings_tick(struct listings *listings, int64_t now_ns);

void listings_counters(const struct listings *listings, struct listings_counters *ret_counters);

#endif
