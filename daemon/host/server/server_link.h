/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_link - the three connections to the reference server: work, the standing POLL, the beats.
 *
 * A beat must not wait behind work, nor work behind a POLL, so each kind has a connection of its
 * own. The core's requests come through link_send; the shell asks for itself (manifests, and what
 * workers and thctl want to know) through link_ask, with numbers of the core's counter: the server
 * tells an agent's requests by them. Which server: the first of the list; the next one, round and
 * round, when this one refuses to serve, cannot be reached or has not answered for a while. Main
 * thread only.
 */
#ifndef TH_DAEMON_HOST_SERVER_SERVER_LINK_H
#define TH_DAEMON_HOST_SERVER_SERVER_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/agent_core.h"
#include "daemon/host/config/agent_options.h"
#include "ipc/base/ctl.h"
#include "ipc/base/err.h"
#include "ipc/base/loop.h"
#include "ipc/net/net.h"

#define LINK_CHANNELS 3

struct host;
struct link_request;

struct link_channel {
	struct host *host;
	struct net_client *client; /* owns */
	struct loop_source source;
	bool up;
	int64_t asked_ns; /* the first question of the core since it last said something; 0: none */
	int64_t patience_ns; /* for so long that question may stay open */
};

struct server_link {
	struct link_channel channels[LINK_CHANNELS]; /* by enum agent_channel */
	struct link_request *requests;               /* uthash, by tag */
	uint64_t last_tag;
	uint32_t server;   /* of options.servers */
	int64_t dialed_ns; /* when this one was chosen, or served last */
	int64_t lost_ns;   /* since when none has */
	bool serves;       /* it does */
	/* Why each of them does not serve, as the log has it; empty: it was not said. */
	char told[OPTIONS_SERVERS_MAX][TH_CTL_TEXT_BYTES];
};

void link_init(struct host *host); /* first of all: then it may be closed */
int link_open(struct host *host, struct th_err *err);
void link_close(struct host *host);

/* AGENT_SEND: exactly one REPLY or NO_REPLY is posted. */
void link_send(struct host *host, const struct agent_action *action);

/*
 * Asks the server; kind and u of request are the caller's. Exactly one call of answered follows,
 * never from within link_ask: rc 0 and the reply (borrowed), which may itself carry a code; or why
 * there is none. Returns a number for link_cancel.
 */
typedef void (*link_answered)(void *arg, int rc, const struct ctl_reply *reply);
uint64_t link_ask(struct host *host, const struct ctl_request *request, int64_t timeout_ns,
	link_answered answered, void *arg);
void link_cancel(struct host *host, uint64_t number); /* answered will not be called */

void link_tick(struct host *host); /* at every beat: answers what could not be sent */
/*
 * Tries the next server when this one does not answer; dials a deaf connection again. When it wants
 * to be called again.
 */
int64_t link_watch(struct host *host, int64_t now_ns);

/* The core is attached: to be told when it is not any more. */
void link_attached(struct host *host);
/*
 * It is not, for this reason; refused: this server has said no, and the next one is tried at once
 * (how soon the core asks that one limits the pace). The log gets each reason of each server once.
 */
void link_detached(struct host *host, const char *reason, bool refused);

const char *link_url(const struct host *host);
/* All servers, with commas between. */
void link_list(const struct host *host, char ret_text[OPTIONS_TEXT_BYTES]);

#endif
