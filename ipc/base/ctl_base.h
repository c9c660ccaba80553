/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_base - the limits and the few types that all of ctl is made of (ctl.h).
 */
#ifndef TH_IPC_BASE_CTL_BASE_H
#define TH_IPC_BASE_CTL_BASE_H

#include <stdint.h>

#define TH_FOREVER INT64_C(-1)
#define TH_NAME_MAX 255                /* bytes of a model, replica, node or tensor name */
#define TH_ADDRESS_MAX 127             /* bytes of "host:port" */
#define TH_SPEC_MAX 31                 /* "latest-18446744073709551615" and a NUL */
#define TH_RETAIN_MAX 511              /* bytes of a list of retention rules: see retain_rules.h */
#define TH_CLUSTER_MAX 63              /* bytes of the name of a cluster */
#define TH_SHARDS_MAX 1024             /* shards of one group */
#define TH_PART_BYTES_MAX (512u << 10) /* of a manifest or attribute blob in one message */
#define TH_BLOB_BYTES_MAX (64u << 20)  /* of a whole manifest or attribute blob */
#define TH_EVENTS_MAX 64               /* events in one POLL reply */
#define TH_CTL_TEXT_BYTES 512          /* of a sentence */
#define CTL_REASON_BYTES 128           /* of the reason in a result: thc_result.reason */
#define TH_PROTOCOL_MIN 2u             /* range of the agent-server protocol this program speaks */
#define TH_PROTOCOL_MAX 2u
#define TH_NO_VERSION UINT64_MAX
#define TH_EPOCH_MAX ((1u << 23) - 1) /* of server lives: the upper bits of every id */
#define TH_EPOCH_SHIFT 40

struct th_hash { /* 128 bits; all zero means none */
	uint64_t lo, hi;
};

struct th_ticket { /* random, made by the server, single use */
	uint8_t bytes[16];
};

struct th_secret { /* random, made by who says it; all zero: none */
	uint8_t bytes[16];
};

struct th_version {
	uint64_t lineage, version; /* ordered by (lineage, version); version TH_NO_VERSION = none */
};

struct ctl_path {      /* how the bytes of a leg go, as its reader's agent says */
	char name[16]; /* "rdma", "tcp", "local"; empty: not said */
	char why[160]; /* not a better one; empty: there is nothing to explain */
	uint64_t rate; /* bytes a second since the leg's start */
};

/*
 * A long answer travels in parts, all of one snapshot that the other side keeps for a while; what
 * changes meanwhile does not touch it. When it is gone the answer is TH_E_NOT_AVAILABLE, and one
 * begins again.
 */
struct ctl_page {
	uint64_t snapshot; /* request: 0 begins with what is now. Reply: 0, this is all of it */
	uint64_t next; /* request: entries that came so far. Reply: for the next request; 0: end */
};

#endif
