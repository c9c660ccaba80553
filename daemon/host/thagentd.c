/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thagentd - thagentd, the agent of one host: start, the loop, the end.
 *
 * One thread does everything but moving bytes (transport/) and talking to the network library's
 * sockets (ipc/net): it waits, lets the responsible file handle what happened, and steps the core.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/host/host.h"
#include "daemon/host/move/gpu_spawn.h"
#include "daemon/host/orderly_end.h"
#include "daemon/host/server/source_attributes.h"
#include "daemon/host/start.h"
#include "daemon/host/worker/fd_channel.h"
#include "daemon/host/worker/ring_channel.h"
#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "ipc/base/log.h"
#include "ipc/base/notify.h"
#include "ipc/base/stranger_fd.h"
#include "transport/cuda/helper/helper.h"
#include "transport/loop/crew.h"
#include "transport/part/fd_memory.h"

static void
thagentd_beat(struct host *host, int64_t now_ns)
{
	host->next_beat_ns = now_ns + HOST_BEAT_NS;
	operations_heartbeat(host, now_ns);
	fd_memory_sweep();
	worker_resume_listener(host);
	files_look(&host->files, host->listener_fd);
	link_tick(host);
	blob_puts_resume(host, now_ns);
	attributes_resume(host);
}

/* Everything that wants to be done between two waits; true when there is more to do at once. */
static bool
thagentd_work(struct host *host)
{
	bool more = operations_run(host);
	int64_t now_ns = th_now_ns();
	if (now_ns >= host->next_beat_ns)
		thagentd_beat(host, now_ns);
	if (now_ns >= host->next_expire_ns)
		session_expire(host, now_ns);
	engine_run(host);
	host->next_listing_ns = listings_tick(host->listings, now_ns);
	host->next_link_ns = link_watch(host, now_ns);
	session_reap(host);
	return more;
}

static void
thagentd_run(struct host *host)
{
	bool more = true;
	while (!host->stopping || !stop_finished(host, th_now_ns())) {
		int64_t at_ns = th_min_i64(host->engine.next_ns, host->next_beat_ns);
		at_ns = th_min_i64(at_ns, host->next_expire_ns);
		at_ns = th_min_i64(at_ns, host->next_listing_ns);
		at_ns = th_min_i64(at_ns, host->next_link_ns);
		if (host->stopping)
			at_ns = th_min_i64(at_ns, host->stop_ns);
		loop_arm(&host->loop, at_ns);
		loop_wait(&host->loop, more);
		more = thagentd_work(host);
	}
}

static void
say_ready(const struct host *host)
{
	printf("ready data=%s runtime=%s node=%s\n", transport_address(host->transport),
		host->options.runtime_dir, host->options.node);
	fflush(stdout);
	th_notify("READY=1");
	log_info("main", "ready version=%s data=%s runtime=%s node=%s datacenter=%s server=%s",
		TH_VERSION, transport_address(host->transport), host->options.runtime_dir,
		host->options.node, host->options.datacenter, link_url(host));
}

int
main(int argc, char **argv)
{
	static struct host host;
	enum options_outcome outcome;
	struct th_err err;
	/* The process of a GPU has nothing of what follows. */
	if (argc == 2 && strcmp(argv[1], LAUNCH_OPTION) == 0) {
		launch_tidy();
		_exit(gpu_helper_main(LAUNCH_SOCK)); /* not through what libraries do at exit */
	}
	int rc = stranger_reserve();
	if (rc < 0) {
		fprintf(stderr, "thagentd: no descriptors can be opened: %s\n", th_strerror(rc));
		return EXIT_FAILURE;
	}
	if (options_parse(argc, argv, &err, &host.options, &outcome) < 0) {
		fprintf(stderr, "thagentd: %s\n", err.text);
		return 2;
	}
	if (outcome == OPTIONS_CHECKED)
		return EXIT_SUCCESS;
	/* A peer that goes away is seen in what write returns. */
	signal(SIGPIPE, SIG_IGN);
	if (start(&host, &err) < 0) {
		log_error("main", "cannot start reason=\"%s\"", err.text);
		start_undo(&host);
		net_exit(EXIT_FAILURE);
	}
	say_ready(&host);
	thagentd_run(&host);
	start_undo(&host);
	if (crew_count() > 0)
		log_warn("main", "threads are left in the memory of workers threads=%" PRIu32,
			crew_count());
	log_info("main", "stopped");
	net_exit(stop_exit_status(&host));
}
