/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport - the shell's interface: opens the port, starts the threads, hands calls to whom they
 * concern. What the threads do is in the other files; transport_own.h says who owns what.
 */
#include "transport/transport.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "transport/leg/leg_in.h"
#include "transport/leg/leg_out.h"
#include "transport/part/sigbus.h"
#include "transport/rdma/leg/rail_pairs.h"
#include "transport/rdma/rdma.h"
#include "transport/transport_own.h"

#define BACKLOG 256
#define STALL_NS INT64_C(700000000)
#define HELLO_NS INT64_C(2000000000)
#define DEAD_NS INT64_C(5000000000)

/* CPUs that this process may use, not those of the host: containers. */
static uint32_t
cpus(void)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof(set), &set) < 0)
		return 1;
	return (uint32_t)th_max_i64(CPU_COUNT(&set), 1);
}

static void
set_defaults(struct transport_config *config)
{
	uint32_t num_cpus = cpus();
	if (config->num_movers == 0)
		config->num_movers = th_min_u32(num_cpus, 4);
	config->num_movers = th_min_u32(config->num_movers, MOVERS_MAX);
	if (config->connections == 0)
		config->connections = num_cpus <= 4 ? 2 : 4;
	config->connections = th_min_u32(config->connections, CONNECTIONS_MAX);
	if (config->far.connections == 0)
		config->far.connections = CONNECTIONS_MAX;
	config->far.connections = th_min_u32(config->far.connections, CONNECTIONS_MAX);
	if (config->hash_threads == 0)
		config->hash_threads = num_cpus < 8 ? 1 : num_cpus < 32 ? 2 : 4;
	if (config->stall_ns <= 0)
		config->stall_ns = STALL_NS;
	if (config->hello_ns <= 0)
		config->hello_ns = HELLO_NS;
	if (config->dead_ns <= 0)
		config->dead_ns = DEAD_NS;
	config->rdma = NULL;
	config->listen_host = NULL; /* borrowed for transport_open only */
	config->congestion = config->far.congestion = NULL;
}

/* named: by whoever runs the agent, so that it must be there. 0, or why it is not. */
static int
check_congestion(const char *name, bool named, struct th_err *err)
{
	if (strlen(name) >= CONGESTION_BYTES)
		return th_fail(
			err, TH_E_INVALID, "congestion control %s: the name is too long", name);
	int rc = named && name[0] != '\0' ? socket_check_congestion(name) : 0;
	if (rc < 0)
		return th_fail(err, TH_E_INVALID,
			"this host has no congestion control %s for the agent (%s); "
			"/proc/sys/net/ipv4/tcp_allowed_congestion_control names those it has",
			name, th_strerror(rc));
	return 0;
}

static int
choose_congestion(
	struct transport *transport, const struct transport_config *config, struct th_err *err)
{
	const char *near = config->congestion ? config->congestion : "cubic";
	const char *far = config->far.congestion ? config->far.congestion : "bbr";
	int rc = check_congestion(near, config->congestion != NULL, err);
	if (rc < 0)
		return rc;
	snprintf(transport->congestion, sizeof(transport->congestion), "%s", near);
	struct th_err why;
	rc = check_congestion(far, true, config->far.congestion ? err : &why);
	if (rc == 0)
		snprintf(transport->far_congestion, sizeof(transport->far_congestion), "%s", far);
	else if (!config->far.congestion)
		log_info("transport", "sends to other datacenters as within its own why='%s'",
			why.text);
	return config->far.congestion ? rc : 0;
}

/* A bound and listening socket at one of the addresses of a name. */
static int
listen_at(const struct transport *transport, const struct addrinfo *at, int *ret_fd)
{
	int one = 1;
	int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	/* Accepted connections inherit these. */
	socket_prepare(fd, transport);
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
		bind(fd, at->ai_addr, at->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0) {
		int rc = -errno;
		th_fd_close(&fd);
		return rc;
	}
	*ret_fd = fd;
	return 0;
}

static int
open_port(struct transport *transport, const struct transport_config *config, struct th_err *err)
{
	struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
	struct addrinfo *found;
	char port[8];
	const char *host = config->listen_host ? config->listen_host : "127.0.0.1";
	snprintf(port, sizeof(port), "%u", config->listen_port);
	int failed = getaddrinfo(host, port, &hints, &found);
	if (failed != 0)
		return th_fail(err, TH_E_INVALID, "data port: cannot look up '%s': %s", host,
			gai_strerror(failed));
	int rc = -EADDRNOTAVAIL;
	for (struct addrinfo *at = found; at && rc < 0; at = at->ai_next)
		rc = listen_at(transport, at, &transport->listen_fd);
	freeaddrinfo(found);
	if (rc < 0)
		return th_fail(err, rc, "data port: cannot listen at %s port %s: %s", host, port,
			th_strerror(rc));
	struct sockaddr_storage address = {0};
	socklen_t bytes = sizeof(address);
	char name[PEER_BYTES];
	if (getsockname(transport->listen_fd, (struct sockaddr *)&address, &bytes) < 0)
		return th_fail(err, -errno, "data port: %s", th_strerror(-errno));
	socket_name(&address, name);
	snprintf(transport->address, sizeof(transport->address), "%s", name);
	return 0;
}

/* Two to four cores saturate the memory of a small host; a large one has several channels more. */
static uint32_t
copy_threads(uint32_t num_cpus)
{
	return num_cpus >= 16 ? 8 : th_min_u32(num_cpus, 4);
}

/* A loop is made and ended: whether there may be rings here is known only then. */
static enum loop_engine
choose_engine(struct transport *transport)
{
	struct loop *loop;
	if (transport->config.engine != TRANSPORT_ENGINE_URING)
		return LOOP_EPOLL;
	int rc = loop_new("th-probe", LOOP_URING, NULL, NULL, &loop);
	if (rc < 0) {
		snprintf(transport->engine_why, sizeof(transport->engine_why),
			"io_uring is not to be had here: %s", th_strerror(rc));
		log_warn("transport", "uses epoll why='%s'", transport->engine_why);
		return LOOP_EPOLL;
	}
	loop_free(loop);
	transport->uring = true;
	log_info("transport", "uses io_uring");
	return LOOP_URING;
}

static int
transport_start_threads(struct transport *transport)
{
	enum loop_engine engine = choose_engine(transport);
	uint32_t num_cpus = cpus();
	for (uint32_t i = 0; i < transport->config.num_movers; i++) {
		char name[32];
		snprintf(name, sizeof(name), "th-mover-%u", i);
		int rc = loop_new(name, engine, NULL, NULL, &transport->movers[i]);
		if (rc < 0)
			return rc;
		transport->num_movers++;
	}
	transport->block_copies = block_copies_new(transport);
	int rc = local_new(transport, copy_threads(num_cpus), &transport->local);
	if (rc == 0)
		rc = hasher_new(transport, transport->config.hash_threads, &transport->hasher);
	if (rc == 0)
		rc = loop_new(
			"th-acceptor", engine, acceptor_tick, transport, &transport->acceptor);
	return rc;
}

static void
send_command(struct transport *transport, struct command *command)
{
	command->task.run = acceptor_command;
	command->transport = transport;
	loop_post(transport->acceptor, &command->task);
}

static struct command *
new_command(enum command_kind kind, uint64_t id)
{
	struct command *command = th_calloc(1, sizeof(*command));
	command->kind = kind;
	command->id = id;
	return command;
}

int
transport_open(
	const struct transport_config *config, struct th_err *err, struct transport **ret_transport)
{
	struct transport *transport = th_calloc(1, sizeof(*transport));
	transport->config = *config;
	set_defaults(&transport->config);
	transport->listen_fd = transport->spare_fd = transport->door.fd = -1;
	transport->door_ns = INT64_MAX;
	TAILQ_INIT(&transport->strangers);
	LIST_INIT(&transport->legs_in);
	LIST_INIT(&transport->legs_out);
	sem_init(&transport->closed, 0, 0);
	transport->capped = capped_new(transport->config.far.limit);
#ifdef TH_FAULTS
	fault_init(&transport->fault);
#endif
	int rc = events_init(&transport->events);
	if (rc < 0)
		th_fail(err, rc, "data port: no event descriptor: %s", th_strerror(rc));
	if (rc == 0) {
		rc = sigbus_install();
		if (rc < 0)
			th_fail(err, rc,
				"data port: no handler of SIGBUS, which pages raise that a worker "
				"takes away: %s",
				th_strerror(rc));
	}
	if (rc == 0) {
		transport->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
		rc = choose_congestion(transport, config, err);
	}
	if (rc == 0)
		rc = open_port(transport, config, err);
	if (rc == 0 && config->rdma) {
		rc = rdma_open(config->rdma, &transport->rdma);
		if (rc < 0)
			th_fail(err, rc, "data port: cannot start RDMA: %s", th_strerror(rc));
	}
	if (rc == 0) {
		rc = transport_start_threads(transport);
		if (rc < 0)
			th_fail(err, rc, "data port: cannot start the movers: %s", th_strerror(rc));
	}
	if (rc < 0) {
		transport_close(transport);
		return rc;
	}
	acceptor_open_door(transport);
	*ret_transport = transport;
	return 0;
}

void
transport_halt(struct transport *transport)
{
	if (transport->halted)
		return;
	transport->halted = true;
	/* First those whose last events release parts that legs may watch. */
	hasher_close(transport->hasher);
	local_free(transport->local);
	block_copies_free(transport->block_copies);
	if (transport->acceptor) {
		send_command(transport, new_command(COMMAND_CLOSE, 0));
		while (sem_wait(&transport->closed) < 0 && errno == EINTR)
			continue;
		loop_free(transport->acceptor);
	}
	for (uint32_t i = 0; i < transport->num_movers; i++)
		loop_free(transport->movers[i]);
	hasher_free(transport->hasher);
	events_fini(&transport->events);
	sem_destroy(&transport->closed);
	th_fd_close(&transport->listen_fd);
	th_fd_close(&transport->spare_fd);
}

void
transport_close(struct transport *transport)
{
	if (!transport)
		return;
	transport_halt(transport);
	rdma_close(transport->rdma);
	capped_free(transport->capped);
	free(transport);
}

const char *
transport_address(const struct transport *transport)
{
	return transport->address;
}

const char *
transport_engine(const struct transport *transport, const char **ret_why)
{
	if (ret_why)
		*ret_why = transport->engine_why[0] != '\0' ? transport->engine_why : NULL;
	return transport->uring ? "io_uring" : "epoll";
}

const char *
transport_far(const struct transport *transport, uint32_t *ret_connections)
{
	*ret_connections = transport->config.far.connections;
	return transport->far_congestion;
}

struct rdma *
transport_rdma(const struct transport *transport)
{
	return transport->rdma;
}

uint32_t
transport_paths(const struct transport *transport, struct path *ret_paths, uint32_t count)
{
	if (!transport->rdma)
		return 0;
	return paths_list(rdma_paths(transport->rdma), ret_paths, count);
}

int
transport_fd(const struct transport *transport)
{
	return transport->events.fd;
}

uint32_t
transport_poll(struct transport *transport, struct transport_event *ret_events, uint32_t count)
{
	return events_take(&transport->events, ret_events, count);
}

void
transport_counters(const struct transport *transport, struct transport_counters *ret_counters)
{
	const struct transport_counters *from = &transport->counters;
	*ret_counters = (struct transport_counters){
		.bytes_in = __atomic_load_n(&from->bytes_in, __ATOMIC_RELAXED),
		.bytes_out = __atomic_load_n(&from->bytes_out, __ATOMIC_RELAXED),
		.bytes_in_rdma = __atomic_load_n(&from->bytes_in_rdma, __ATOMIC_RELAXED),
		.bytes_in_copy = __atomic_load_n(&from->bytes_in_copy, __ATOMIC_RELAXED),
		.bytes_staged = __atomic_load_n(&from->bytes_staged, __ATOMIC_RELAXED),
		.rdma_fallbacks = __atomic_load_n(&from->rdma_fallbacks, __ATOMIC_RELAXED),
		.rdma_paths_broken = __atomic_load_n(&from->rdma_paths_broken, __ATOMIC_RELAXED),
		.rdma_declines = __atomic_load_n(&from->rdma_declines, __ATOMIC_RELAXED),
		.gpu_fallbacks = __atomic_load_n(&from->gpu_fallbacks, __ATOMIC_RELAXED),
		.bytes_out_file = __atomic_load_n(&from->bytes_out_file, __ATOMIC_RELAXED),
		.bytes_reused = __atomic_load_n(&from->bytes_reused, __ATOMIC_RELAXED),
		.bytes_donated = __atomic_load_n(&from->bytes_donated, __ATOMIC_RELAXED),
		.donor_failures = __atomic_load_n(&from->donor_failures, __ATOMIC_RELAXED),
		.bytes_local = __atomic_load_n(&from->bytes_local, __ATOMIC_RELAXED),
		.chunks_verified = __atomic_load_n(&from->chunks_verified, __ATOMIC_RELAXED),
		.chunks_refetched = __atomic_load_n(&from->chunks_refetched, __ATOMIC_RELAXED),
		.checksum_failures = __atomic_load_n(&from->checksum_failures, __ATOMIC_RELAXED),
		.legs_in = __atomic_load_n(&from->legs_in, __ATOMIC_RELAXED),
		.legs_out = __atomic_load_n(&from->legs_out, __ATOMIC_RELAXED),
		.legs_failed = __atomic_load_n(&from->legs_failed, __ATOMIC_RELAXED),
		.legs_fenced = __atomic_load_n(&from->legs_fenced, __ATOMIC_RELAXED),
		.strangers_refused = __atomic_load_n(&from->strangers_refused, __ATOMIC_RELAXED),
		.tickets_refused = __atomic_load_n(&from->tickets_refused, __ATOMIC_RELAXED),
	};
}

int
transport_pull(struct transport *transport, uint64_t leg, const char *address,
	const struct th_ticket *ticket, struct xfer_part *part, struct xfer_part *donor,
	unsigned flags)
{
	struct leg_in *leg_in;
	int rc = leg_in_new(transport, leg, address, ticket, part, donor, flags, &leg_in);
	if (rc < 0)
		return rc;
	struct command *command = new_command(COMMAND_PULL, leg);
	command->leg_in = leg_in;
	send_command(transport, command);
	return 0;
}

void
transport_drop_donor(struct transport *transport, uint64_t leg)
{
	send_command(transport, new_command(COMMAND_DROP_DONOR, leg));
}

int
transport_copy(
	struct transport *transport, uint64_t leg, struct xfer_part *source, struct xfer_part *part)
{
	return local_copy(transport->local, leg, source, part);
}

void
transport_stop(struct transport *transport, uint64_t leg)
{
	local_stop(transport->local, leg);
	block_copy_stop(transport->block_copies, false, leg);
	send_command(transport, new_command(COMMAND_STOP, leg));
}

void
transport_expect(struct transport *transport, uint64_t leg, const struct th_ticket *ticket,
	struct xfer_part *part, unsigned flags)
{
	struct command *command = new_command(COMMAND_EXPECT, leg);
	command->leg_out = leg_out_new(transport, leg, ticket, part, flags);
	send_command(transport, command);
}

void
transport_refuse(
	struct transport *transport, const struct th_ticket *ticket, int code, const char *text)
{
	struct command *command = new_command(COMMAND_REFUSE, 0);
	command->ticket = *ticket;
	command->code = code;
	snprintf(command->text, sizeof(command->text), "%s", text);
	send_command(transport, command);
}

void
transport_fence(struct transport *transport, uint64_t leg)
{
	send_command(transport, new_command(COMMAND_FENCE, leg));
}

int
transport_hash(struct transport *transport, uint64_t tag, struct xfer_part *part)
{
	return hasher_add(transport->hasher, tag, part);
}

void
transport_hash_stop(struct transport *transport, uint64_t tag)
{
	hasher_stop(transport->hasher, tag);
	block_copy_stop(transport->block_copies, true, tag);
}
