/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_options - what the operator wants: command line, environment, configuration files,
 * defaults.
 *
 * Precedence: option > environment > conf.d > file > default (ipc/base/config). Checked completely
 * before anything is opened. Read-only afterwards.
 */
#ifndef TH_DAEMON_HOST_CONFIG_AGENT_OPTIONS_H
#define TH_DAEMON_HOST_CONFIG_AGENT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/host/config/options_gpu.h"
#include "daemon/host/config/options_rdma.h"
#include "ipc/base/ctl.h"
#include "ipc/base/err.h"

#define OPTIONS_SERVERS_MAX 16
#define OPTIONS_TEXT_BYTES 1024
#define OPTIONS_GROUP_BYTES 64
#define OPTIONS_NAME_BYTES 16 /* of a congestion control, as the kernel has it */

enum options_far { OPTIONS_FAR_TCP, OPTIONS_FAR_RDMA, OPTIONS_FAR_AUTO /* as near */ };
const char *options_far_name(enum options_far far);

struct options {
	char servers_text[OPTIONS_TEXT_BYTES]; /* as given; NULs where the commas were            */
	const char *servers[OPTIONS_SERVERS_MAX];
	uint32_t num_servers;
	char runtime_dir[OPTIONS_TEXT_BYTES];
	char admin_group[OPTIONS_GROUP_BYTES]; /* of operators; empty: none */
	char data_host[OPTIONS_TEXT_BYTES]; /* empty: the local address towards the server        */
	uint16_t data_port;                 /* 0: any                                             */
	char node[TH_NAME_MAX + 1];
	char datacenter[TH_NAME_MAX + 1];
	char cluster[TH_CLUSTER_MAX + 1]; /* empty: none */
	bool transport_local, transport_rdma, transport_tcp;
	bool transport_tcp_first; /* RDMA only for those who accept nothing else               */
	struct options_rdma rdma;
	struct options_gpu gpu;
	bool verify;
	bool spot;       /* this host may vanish: what it has is not retained by it         */
	int64_t beat_ns; /* between two beats to the server                                   */
	bool server_loss_reset; /* handles end with their server                                */
	int64_t reply_ns;  /* a request to the server is sent again after this                   */
	int64_t silent_ns; /* no answer for this long: no server                                 */
	int64_t stall_ns;  /* a leg without a byte for this long is stalled                      */
	int64_t dead_ns;   /* a host that acknowledges nothing for this long is gone            */
	int64_t drain_ns;  /* how long SIGTERM waits for transfers, and for copies to move       */
	uint64_t offload_limit; /* memory for copies of others; UINT64_MAX: half of what is free  */
	uint64_t borrow_limit;  /* of that, what may be lent; UINT64_MAX: half of it            */
	uint32_t movers, connections; /* 0: chosen                                              */
	char congestion[OPTIONS_NAME_BYTES]; /* of TCP; empty: cubic where there is one          */
	/* Of transfers between datacenters. */
	enum options_far far_transport;
	char far_congestion[OPTIONS_NAME_BYTES]; /* empty: bbr where there is one                 */
	uint32_t far_connections;                /* 0: as many as one may have                    */
	uint64_t far_limit;                      /* bytes a second that come; 0: no cap           */
	uint64_t rate_out, rate_out_peer; /* bytes a second; 0: no cap                        */
	uint32_t hash_threads;       /* 0: chosen                                              */
	bool io_uring;               /* if it is to be had                               */
	bool sendfile_set, sendfile; /* set: not by itself                               */
	uint32_t sessions_max, memory_objects_max, tensors_max;
};

enum options_outcome { OPTIONS_RUN, OPTIONS_CHECKED /* -t: all is well, do not start */ };

/*
 * 0, or a code with a sentence that names the option. Prints help and usage errors itself and
 * exits.
 */
int options_parse(int argc, char **argv, struct th_err *err, struct options *ret_options,
	enum options_outcome *ret_outcome);

#endif
