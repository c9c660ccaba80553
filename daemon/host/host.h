/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host - the process thagentd as one struct: what the files of this folder share.
 *
 * Everything here belongs to the main thread. Other threads (nng, movers) only queue something
 * and write an eventfd that the loop watches.
 */
#ifndef TH_DAEMON_HOST_HOST_H
#define TH_DAEMON_HOST_HOST_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/host/config/agent_options.h"
#include "daemon/host/engine.h"
#include "daemon/host/memory/memory_claims.h"
#include "daemon/host/memory/nic_regions.h"
#include "daemon/host/move/gpu_service.h"
#include "daemon/host/move/legs.h"
#include "daemon/host/move/rdma_service.h"
#include "daemon/host/server/blob_parts.h"
#include "daemon/host/server/listing_cache.h"
#include "daemon/host/server/server_link.h"
#include "daemon/host/worker/session.h"
#include "ipc/base/fd_limit.h"
#include "ipc/base/loop.h"
#include "ipc/net/net.h"
#include "ipc/sock/fdmsg.h"
#include "transport/transport.h"

#define HOST_BEAT_NS INT64_C(1000000000)

struct blob_get;
struct forward;
struct loan;
struct offload;
struct reservation;

struct host_counters {
	uint64_t sessions_opened, sessions_lost, sessions_ended, protocol_violations;
	uint64_t hellos_refused, opens_refused, connections_refused, descriptors_refused;
	uint64_t memory_mapped, memory_refused;
	uint64_t registrations, registrations_refused;
	uint64_t documents, documents_refused, documents_denied;
	uint64_t submissions, submissions_refused, completions;
	uint64_t legs_refused;
	uint64_t reservations, reservations_refused;
	uint64_t loans, loans_refused;
	uint64_t server_requests, server_unanswered, server_switches, server_redials;
};

struct host {
	struct options options;
	struct event_loop loop;
	struct engine engine;
	struct server_link link;
	struct transport *transport; /* owns */
	struct loop_source transport_source;
	struct fabric fabric;
	struct regions regions;
	struct gpu_service gpu;
	struct legs legs;

	struct net_server *documents; /* owns */
	struct loop_source documents_source;

	int lock_fd, listener_fd, own_pidfd; /* own */
	const char *sockets[3]; /* that this process has made in the runtime directory */
	uint32_t num_sockets;
	struct loop_source listener_source;
	bool listener_paused; /* out of descriptors: tried again at the next beat */
	int spare_fd;         /* owns: given up for a word to a worker when there is no other */
	struct files_watch files;
	int64_t refused_told_ns; /* when the log said last that a connection was refused */
	uint64_t refused_untold; /* since then */
	int64_t denied_told_ns;  /* when it said last that a worker asked what operators may */
	struct fdmsg *message;   /* owns: room for one received message */

	struct host_session *sessions; /* uthash, by id, in order of connecting */
	uint64_t last_session;
	struct host_session *first_busy,
		*last_busy; /* rings with more submissions, first come first served */
	struct host_session *dead;
	uint32_t num_internal;   /* of sessions: those without a worker */
	struct offload *offload; /* owns: memory for copies of others */
	struct loop_source offload_source;
	struct reservation *reservations; /* utlist */
	struct loan *loans;               /* utlist */
	struct loan *dead_loans;
	uint64_t last_loan;
	struct claim_table claims;
	struct blob_put *puts;     /* utlist */
	struct blob_get *gets;     /* utlist */
	struct forward *forwards;  /* utlist */
	struct listings *listings; /* owns */

	uint64_t agent_inc;
	struct th_secret secret; /* shows the server that a request is this agent's */
	int64_t start_ns, next_beat_ns, next_expire_ns, next_listing_ns, next_link_ns;
	bool attached;
	uint64_t server_inc;
	uint32_t server_epoch;
	uint64_t put_inc; /* of the server that has our manifests, or is being sent them */
	char server_text[TH_CTL_TEXT_BYTES]; /* why not attached */
	int64_t away_ns; /* while not attached: since then; at first when it should have been */
	struct host_counters counters;

	bool draining;    /* an operator drains this node */
	bool stopping;    /* SIGTERM came: nothing new, what runs may end until stop_ns */
	bool left;        /* the core waits for nothing more: the sessions are being closed */
	bool left_behind; /* something was lost at the end */
	int64_t stop_ns, farewell_ns;
};

#endif
