/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_views - what the server shows of itself: listings for workers; inspection, drains and events
 * for operators. Part of ctl (ctl.h), whose rules of ownership hold.
 */
#ifndef TH_IPC_BASE_CTL_VIEWS_H
#define TH_IPC_BASE_CTL_VIEWS_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/ctl_base.h"

/* ---- listings ---------------------------------------------------------------------------- */

enum ctl_replica_flags { /* as enum thc_replica_flags */
	CTL_REPLICA_READY = 1u,
	CTL_REPLICA_OFFLOAD = 2u,
	CTL_REPLICA_SPOT = 4u,
	CTL_REPLICA_DRAINING = 8u,
};

struct ctl_replica_info {
	char name[TH_NAME_MAX + 1];
	char datacenter[TH_NAME_MAX + 1];
	uint32_t num_shards;
	uint32_t flags;
	uint64_t chunks_done, chunks_total;
};

struct ctl_version_info {
	struct th_version version;
	bool retained;
	uint32_t num_replicas;
	const struct ctl_replica_info *replicas; /* sorted by name */
};

struct ctl_listing {
	uint64_t generation;
	uint32_t num_versions;
	const struct ctl_version_info *versions; /* ascending; one may go on in the next part */
	struct ctl_page page;
};

/* ---- inspection, for operators ------------------------------------------------------------ */

struct ctl_node_info {
	char node[TH_NAME_MAX + 1];
	char datacenter[TH_NAME_MAX + 1];
	char address[TH_ADDRESS_MAX + 1];
	const char *state; /* "active", "suspect", "dead": static text */
	bool spot, draining;
	uint32_t members, legs_in, legs_out;
	int64_t silent_ns; /* since the last beat */
};

struct ctl_member_info {
	char model[TH_NAME_MAX + 1];
	char replica[TH_NAME_MAX + 1];
	char node[TH_NAME_MAX + 1];
	uint32_t shard, num_shards;
	uint64_t sid;
	const char *state;         /* "forming", "live", "broken": static text */
	const char *copy;          /* "none", "partial", "ready", "draining": static text */
	struct th_version version; /* of the copy */
	uint64_t bytes;
	uint32_t chunks_done, chunks_total;
};

struct ctl_transfer_info {
	char model[TH_NAME_MAX + 1];
	struct th_version version;
	uint64_t leg;
	uint32_t shard;
	char source_replica[TH_NAME_MAX + 1], source_node[TH_NAME_MAX + 1];
	char reader_replica[TH_NAME_MAX + 1], reader_node[TH_NAME_MAX + 1];
	uint32_t chunks_done, chunks_total;
	int64_t age_ns;
	struct ctl_path path;
};

#define CTL_COUNTERS_MAX 24u

struct ctl_counter {
	char name[32];
	uint64_t value;
};

struct ctl_inspection {
	uint64_t server_inc;
	int64_t uptime_ns;
	uint32_t num_nodes, num_members, num_transfers;
	const struct ctl_node_info *nodes;
	const struct ctl_member_info *members;
	const struct ctl_transfer_info *transfers;
	struct ctl_page page;
	uint32_t num_counters; /* the server's own; in every part */
	struct ctl_counter counters[CTL_COUNTERS_MAX];
	bool serving;                        /* false: a standby, or it has been replaced */
	uint32_t epoch;                      /* 0: nobody has attached */
	char server_text[TH_CTL_TEXT_BYTES]; /* why it does not serve; may be empty */
};

/* ---- administration ----------------------------------------------------------------------- */

#define CTL_BLOCKERS_MAX 64u     /* told in one answer; all are counted */
#define CTL_LOG_ENTRIES_MAX 256u /* in one answer */

struct ctl_blocker {      /* what a drain waits for */
	const char *kind; /* "transfer", "last-copy", "moving", "collecting": static text */
	char model[TH_NAME_MAX + 1], replica[TH_NAME_MAX + 1];
	uint32_t shard;
	struct th_version version;
	bool stays; /* it will not end by itself: the sentence says what to do */
	char text[TH_CTL_TEXT_BYTES];
};

struct ctl_log_entry {
	uint64_t number;
	int64_t at_ns;        /* since the start of the server */
	int64_t wall_ns;      /* time of day, since 1970; 0: not known */
	const char *severity; /* "info", "warning", "error": static text */
	char model[TH_NAME_MAX + 1], node[TH_NAME_MAX + 1]; /* empty: it is about none */
	char text[TH_CTL_TEXT_BYTES];
};

struct ctl_admin_reply {
	uint64_t server_inc;
	/*
	 * DRAIN, UNDRAIN: "active", "draining", "empty" (draining, and nothing is waited for).
	 * EVICT: "there" (look), "moving", "evicted", "gone". EVENTS: empty. Static text.
	 */
	const char *state;
	char text[TH_CTL_TEXT_BYTES];        /* in a sentence */
	uint64_t group;                      /* EVICT: which one */
	uint32_t members, legs_in, legs_out; /* of the node, or of the replica */
	uint32_t num_blockers;               /* in all */
	uint32_t num_told;                   /* of the blockers, these are given */
	const struct ctl_blocker *blockers;
	uint32_t num_lost; /* DRAIN: retained versions that went with the node since it began */
	char lost_text[TH_CTL_TEXT_BYTES]; /* the first version that was lost, in a sentence */
	uint64_t last_event;               /* number of the newest that there is */
	uint32_t num_events;
	const struct ctl_log_entry *events; /* ascending */
};

#endif
