/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thagentd - thagentd, the agent of one host: start, the loop, the end.
 *
 * One thread does everything but moving bytes (transport/) and talking to the network library's
 * sockets (ipc/net): it waits, lets the responsible file handle what happened, and steps the core.
 */
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/host/host.h"
#include "daemon/host/memory/host_pool.h"
#include "daemon/host/memory/reserve.h"
#include "daemon/host/move/gpu_spawn.h"
#include "daemon/host/orderly_end.h"
#include "daemon/host/server/source_attributes.h"
#include "daemon/host/status/operators.h"
#include "daemon/host/worker/doc_channel.h"
#include "daemon/host/worker/fd_channel.h"
#include "daemon/host/worker/loans.h"
#include "daemon/host/worker/ring_channel.h"
#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/err.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "ipc/base/notify.h"
#include "ipc/base/random.h"
#include "ipc/base/stranger_fd.h"
#include "ipc/sock/listener.h"
#include "ipc/sock/peer.h"
#include "transport/cuda/helper/helper.h"
#include "transport/loop/crew.h"
#include "transport/part/fd_memory.h"

/* ---- the beginning --------------------------------------------------------------------------- */

struct host;

/* A handshake at the data port, and a ticket that comes before its GRANT. */
#define HELLO_NS INT64_C(2000000000)
/* What a slow host may need to reach its server first. */
#define REACH_NS INT64_C(2000000000)
/* The process of a GPU that does not forget memory is killed long before. */
#define OFFLOAD_PATIENCE_NS INT64_C(5000000000)

/* Its connection, its process and two doorbells; memory that is no memfd has one an object. */
#define SESSION_FDS 4u
/* At either end: the control connection and a usual number of others. */
#define LEG_FDS 5u

/* What fits: said once, so that a small limit is seen before it is met. */
static void
say_descriptors(const struct host *host)
{
	uint64_t limit = files_limit(), left = files_left(host->listener_fd);
	uint64_t free_fds = left > files_kept() ? left - files_kept() : 0;
	uint64_t wanted = (uint64_t)host->options.sessions_max * (SESSION_FDS + LEG_FDS);
	if (free_fds < wanted)
		log_warn("main",
			"limit.sessions=%" PRIu32 " handles, each with a transfer, take %" PRIu64
			" descriptors, and the limit of open files leaves %" PRIu64
			"; raise LimitNOFILE= of the unit, or ulimit -n",
			host->options.sessions_max, wanted, free_fds);
	log_info("main", "descriptors limit=%" PRIu64 " sessions=%" PRIu64 " or legs=%" PRIu64,
		limit, free_fds / SESSION_FDS, free_fds / LEG_FDS);
}

/* ---- the data address ------------------------------------------------------------------------ */

/* "tcp://host:port" or "tls+tcp://[v6]:port": where host begins and ends. */
static int
host_of_url(const char *url, char ret_host[OPTIONS_TEXT_BYTES], char ret_port[16])
{
	const char *begin = strstr(url, "://");
	if (!begin)
		return -EINVAL;
	begin += 3;
	const char *colon = strrchr(begin, ':');
	if (!colon || colon == begin || strlen(colon + 1) == 0 || strlen(colon + 1) > 15)
		return -EINVAL;
	size_t length = (size_t)(colon - begin);
	if (begin[0] == '[' && colon[-1] == ']') {
		begin++;
		length -= 2;
	}
	if (length == 0 || length >= OPTIONS_TEXT_BYTES)
		return -EINVAL;
	memcpy(ret_host, begin, length);
	ret_host[length] = '\0';
	snprintf(ret_port, 16, "%s", colon + 1);
	return 0;
}

/*
 * The address that packets to the server leave from is the one that peers know this host by. A
 * UDP socket is asked: connecting it only looks at the routes, so the server need not be up.
 */
static int
local_address_towards(const char *url, struct th_err *err, char ret_host[OPTIONS_TEXT_BYTES])
{
	char name[OPTIONS_TEXT_BYTES], port[16];
	struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *found = NULL;
	if (host_of_url(url, name, port) < 0)
		return th_fail(err, TH_E_INVALID, "--server %s: not tcp://HOST:PORT", url);
	int rc = getaddrinfo(name, port, &hints, &found);
	if (rc != 0)
		return th_fail(err, TH_E_INVALID,
			"--server %s: %s cannot be resolved (%s), so the address of this host is "
			"not known; give it with --data HOST",
			url, name, gai_strerror(rc));
	struct sockaddr_storage local;
	socklen_t bytes = sizeof(local);
	int sock = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (sock < 0 || connect(sock, found->ai_addr, found->ai_addrlen) < 0 ||
		getsockname(sock, (struct sockaddr *)&local, &bytes) < 0)
		rc = th_fail(err, -errno,
			"there is no route to %s (%s), so the address of this host is not known; "
			"give it with --data HOST",
			url, th_strerror(-errno));
	else if (getnameinfo((struct sockaddr *)&local, bytes, ret_host, OPTIONS_TEXT_BYTES, NULL,
			 0, NI_NUMERICHOST) != 0)
		rc = th_fail(err, TH_E_INVALID,
			"the local address towards %s cannot be written; give it with --data HOST",
			url);
	th_fd_close(&sock);
	freeaddrinfo(found);
	return rc;
}

static int
open_transport(struct host *host, struct th_err *err)
{
	const struct options *options = &host->options;
	char data_host[OPTIONS_TEXT_BYTES];
	snprintf(data_host, sizeof(data_host), "%s", options->data_host);
	if (data_host[0] == '\0') {
		int rc = local_address_towards(options->servers[0], err, data_host);
		if (rc < 0)
			return rc;
	}
	struct transport_config config = {
		.listen_host = data_host,
		.listen_port = options->data_port,
		.num_movers = options->movers,
		.hash_threads = options->hash_threads,
		.connections = options->connections,
		.stall_ns = options->stall_ns,
		.dead_ns = options->dead_ns,
		.hello_ns = HELLO_NS,
		.agent_inc = host->agent_inc,
		.congestion = options->congestion[0] != '\0' ? options->congestion : NULL,
		.far = {.congestion =
				options->far_congestion[0] != '\0' ? options->far_congestion : NULL,
			.connections = options->far_connections,
			.limit = options->far_limit},
		.rate_out = options->rate_out,
		.rate_out_peer = options->rate_out_peer,
		.engine = options->io_uring ? TRANSPORT_ENGINE_URING : TRANSPORT_ENGINE_AUTO,
		.sendfile = !options->sendfile_set ? TRANSPORT_SENDFILE_AUTO
			    : options->sendfile    ? TRANSPORT_SENDFILE_YES
						   : TRANSPORT_SENDFILE_NO,
	};
	struct fabric_config *fabric = fabric_config_new(host);
	config.rdma = fabric_config_rdma(fabric);
	int rc = transport_open(&config, err, &host->transport);
	fabric_config_free(fabric);
	if (rc < 0)
		return rc;
	rc = loop_add(&host->loop, &host->transport_source, transport_fd(host->transport), EPOLLIN,
		legs_transport_ready, host);
	return rc < 0 ? th_fail(err, rc, "watching the transport: %s", th_strerror(rc)) : 0;
}

/* ---- memory for copies of others ------------------------------------------------------------- */

static void
offload_ready(void *arg, uint32_t events)
{
	struct host *host = arg;
	(void)events;
	offload_poll(host->offload);
}

static int
open_offload(struct host *host, struct th_err *err)
{
	const struct offload_config config = {.limit = host->options.offload_limit,
		.root = "",
		.patience_ns = OFFLOAD_PATIENCE_NS};
	int rc = offload_new(&config, err, &host->offload);
	if (rc < 0)
		return rc;
	rc = loop_add(&host->loop, &host->offload_source, offload_fd(host->offload), EPOLLIN,
		offload_ready, host);
	return rc < 0 ? th_fail(err, rc, "an eventfd: %s", th_strerror(rc)) : 0;
}

/* ---- the runtime directory ------------------------------------------------------------------- */

static int
runtime_path(
	const struct host *host, const char *file, char *ret_path, size_t size, struct th_err *err)
{
	int length = snprintf(ret_path, size, "%s/%s", host->options.runtime_dir, file);
	if (length < 0 || (size_t)length >= size)
		return th_fail(err, TH_E_INVALID, "--runtime-dir: the path is too long: %s",
			host->options.runtime_dir);
	return 0;
}

static int
open_documents(struct host *host, struct th_err *err)
{
	char path[NET_URL_BYTES], url[NET_URL_BYTES], real[NET_URL_BYTES];
	int rc = runtime_path(host, "agent.ipc", path, sizeof(path) - 16, err);
	if (rc == 0)
		rc = listener_clear(path, err);
	if (rc == 0)
		rc = net_server_new(NULL, err, &host->documents);
	if (rc < 0)
		return rc;
	snprintf(url, sizeof(url), "ipc://%.200s", path);
	rc = net_server_listen(host->documents, url, 0660, err, real);
	if (rc < 0)
		return rc;
	host->sockets[host->num_sockets++] = "agent.ipc";
	rc = runtime_path(host, OPERATORS_FILE, path, sizeof(path) - 16, err);
	if (rc == 0)
		rc = operators_listen(host->documents, path, host->options.admin_group, err);
	if (rc < 0)
		return rc;
	host->sockets[host->num_sockets++] = OPERATORS_FILE;
	rc = loop_add(&host->loop, &host->documents_source, net_server_fd(host->documents), EPOLLIN,
		documents_ready, host);
	return rc < 0 ? th_fail(err, rc, "watching %s: %s", url, th_strerror(rc)) : 0;
}

static int
open_listener(struct host *host, struct th_err *err)
{
	char path[OPTIONS_TEXT_BYTES + 16];
	int rc = runtime_path(host, "agent.fds", path, sizeof(path), err);
	if (rc < 0)
		return rc;
	rc = listener_open(path, SOCK_SEQPACKET, (gid_t)-1, err);
	if (rc < 0)
		return rc;
	host->listener_fd = rc;
	host->sockets[host->num_sockets++] = "agent.fds";
	rc = loop_add(&host->loop, &host->listener_source, host->listener_fd, EPOLLIN,
		worker_connects, host);
	return rc < 0 ? th_fail(err, rc, "watching %s: %s", path, th_strerror(rc)) : 0;
}

/* ---- the core -------------------------------------------------------------------------------- */

static int
open_core(struct host *host, struct th_err *err)
{
	const struct options *options = &host->options;
	struct agent_config config = {0};
	agent_config_default(&config);
	config.agent_inc = host->agent_inc;
	config.secret = host->secret;
	config.beat_ns = options->beat_ns;
	config.reply_ns = options->reply_ns;
	config.server_silent_ns = options->silent_ns;
	config.start_ns = options->stall_ns;
	config.sessions_max = options->sessions_max;
	config.attach.offload_bytes = options->offload_limit;
	config.attach.spot = options->spot;
	config.server_loss_reset = options->server_loss_reset;
	snprintf(config.attach.node, sizeof(config.attach.node), "%s", options->node);
	snprintf(config.attach.datacenter, sizeof(config.attach.datacenter), "%s",
		options->datacenter);
	snprintf(config.attach.cluster, sizeof(config.attach.cluster), "%s", options->cluster);
	snprintf(config.attach.data_address, sizeof(config.attach.data_address), "%s",
		transport_address(host->transport));
	host->engine.core = agent_core_new(&config, th_now_ns());
	return host->engine.core ? 0 : th_fail(err, -ENOMEM, "out of memory");
}

/* host->options is filled. After 0 the agent serves; after a failure call start_undo. */
static int
start(struct host *host, struct th_err *err)
{
	host->lock_fd = host->listener_fd = host->own_pidfd = host->spare_fd = -1;
	host->listener_source.fd = host->documents_source.fd = host->transport_source.fd = -1;
	host->offload_source.fd = host->gpu.source.fd = -1;
	host->gpu.fd = host->gpu.lifeline[0] = host->gpu.lifeline[1] = -1;
	host->agent_inc = th_random_name();
	th_random(host->secret.bytes, sizeof(host->secret.bytes));
	host->start_ns = th_now_ns();
	host->next_beat_ns = host->start_ns;
	host->away_ns = host->start_ns + REACH_NS;
	host->next_expire_ns = host->next_listing_ns = host->next_link_ns = INT64_MAX;
	/* What is closed again though it was not opened. */
	legs_init(host);
	link_init(host);
	documents_init(host);
	snprintf(host->server_text, sizeof(host->server_text), "not reached yet");
	host->message = th_calloc(1, sizeof(*host->message));
	host->message->close_fd = stranger_close;
	files_raise();
	/* Where hwloc would look for libraries of GPUs and displays. Before there are threads. */
	(void)setenv("HWLOC_PLUGINS_PATH", "/nonexistent", 1);
	/* The loop first: it blocks the signals, and all later threads inherit that. */
	int rc = loop_open(&host->loop, stop_signal, host, err);
	if (rc == 0) {
		host->own_pidfd = peer_own_pidfd();
		if (host->own_pidfd < 0)
			rc = th_fail(err, host->own_pidfd, "pidfd_open: %s",
				th_strerror(host->own_pidfd));
	}
	if (rc == 0) {
		host->lock_fd = listener_lock_dir(host->options.runtime_dir, err);
		rc = host->lock_fd < 0 ? host->lock_fd : 0;
	}
	if (rc == 0)
		rc = legs_open(host, err);
	if (rc == 0)
		rc = gpu_open(host, err);
	if (rc == 0)
		rc = open_transport(host, err);
	if (rc == 0)
		rc = fabric_start(host, err);
	if (rc == 0)
		rc = open_offload(host, err);
	if (rc == 0)
		rc = open_core(host, err);
	if (rc == 0)
		rc = link_open(host, err);
	if (rc == 0)
		rc = open_documents(host, err);
	if (rc == 0)
		rc = open_listener(host, err);
	if (rc == 0) {
		worker_take_spare(host);
		say_descriptors(host);
	}
	return rc;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Legal after any failure of start. */
static void
start_undo(struct host *host)
{
	/* Whatever is there by another's hand stays. */
	while (host->num_sockets > 0) {
		char path[OPTIONS_TEXT_BYTES + 16];
		struct th_err err;
		if (runtime_path(host, host->sockets[--host->num_sockets], path, sizeof(path),
			    &err) == 0)
			(void)unlink(path);
	}
	loop_remove(&host->loop, &host->listener_source);
	th_fd_close(&host->listener_fd);
	/* The movers first: they read and write the memory of the sessions. */
	loop_remove(&host->loop, &host->transport_source);
	if (host->transport)
		transport_halt(host->transport);
	legs_close(host);
	reserves_free(host);
	session_free_all(host);
	loans_free(host);
	/* It deregisters what they had, and only then is that freed. */
	transport_close(host->transport);
	host->transport = NULL;
	fabric_free(host);
	gpu_close(host);
	loop_remove(&host->loop, &host->offload_source);
	offload_free(host->offload);
	documents_close(host);
	blobs_close(host);
	link_close(host);
	listings_free(host->listings);
	engine_free(host);
	th_fd_close(&host->spare_fd);
	th_fd_close(&host->own_pidfd);
	th_fd_close(&host->lock_fd);
	loop_close(&host->loop);
	free(host->message);
}

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
	loans_reap(host);
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
