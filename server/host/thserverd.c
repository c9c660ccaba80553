/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thserverd - the reference server: its one thread takes requests and time into the core, and its
 * replies out.
 *
 *   request -> unpack -> refsrv_step -> replies -> pack -> the askers
 *   timer   ----------> refsrv_tick --+-> probes -> the other servers of the list
 *   answers to probes > refsrv_probed '
 *
 * Where another server has taken over, or gets the cluster back, the core asks for its own end:
 * a new one, which knows nothing, takes its place. Connections stay.
 *
 * What cannot be unpacked is answered here with its code and sentence, and counted. The first
 * signal begins the drain: requests are refused, so that agents go elsewhere, and the process
 * ends when the last answer is on its way; whoever still waits sees the connection end. The
 * second ends it at once.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/failpoint.h"
#include "ipc/base/fd_limit.h"
#include "ipc/base/log.h"
#include "ipc/base/loop.h"
#include "ipc/base/notify.h"
#include "ipc/base/random.h"
#include "ipc/proto/convert.h"
#include "server/host/peers.h"
#include "server/host/server_options.h"

#define NS_PER_S INT64_C(1000000000)
#define DRAIN_NS (2 * NS_PER_S) /* for answers to askers that do not read                    */
#define FILES_NS NS_PER_S
#define REPORT_NS (60 * NS_PER_S) /* malformed requests: one line for all of this time        */
#define EXIT_USAGE 2
#define BATCH 256 /* requests between two looks at signals and time            */
#define STATUS_BYTES (TH_CTL_TEXT_BYTES + 16)

/* By enum ctl_request_kind, failpoints: before the core decides, when what it decided is sent. */
static const enum failpoint points_asked[] = {
	[CTL_ATTACH] = FAILPOINT_server_attach,
	[CTL_REJOIN] = FAILPOINT_server_rejoin,
	[CTL_BEAT] = FAILPOINT_server_beat,
	[CTL_POLL] = FAILPOINT_server_poll,
	[CTL_OPEN] = FAILPOINT_server_open,
	[CTL_REGISTER] = FAILPOINT_server_register,
	[CTL_MANIFEST_PUT] = FAILPOINT_server_manifest_put,
	[CTL_OP] = FAILPOINT_server_op,
	[CTL_PREPARED] = FAILPOINT_server_prepared,
	[CTL_LEG_END] = FAILPOINT_server_leg_end,
	[CTL_DRAIN_DONE] = FAILPOINT_server_drain_done,
	[CTL_CONTENT] = FAILPOINT_server_content,
	[CTL_CLOSE] = FAILPOINT_server_close,
	[CTL_ADMIN] = FAILPOINT_server_admin,
	[CTL_RESERVED] = FAILPOINT_server_reserved,
};

static const enum failpoint points_answered[] = {
	[CTL_ATTACH] = FAILPOINT_server_attached,
	[CTL_REJOINED] = FAILPOINT_server_rejoined,
	[CTL_OPEN] = FAILPOINT_server_opened,
	[CTL_REGISTER] = FAILPOINT_server_registered,
	[CTL_OP] = FAILPOINT_server_op_taken,
	[CTL_PREPARED] = FAILPOINT_server_prepared_taken,
	[CTL_LEG_END] = FAILPOINT_server_leg_ended,
	[CTL_DRAIN_DONE] = FAILPOINT_server_drained,
	[CTL_CLOSE] = FAILPOINT_server_closed,
};

struct service {
	struct event_loop loop;
	struct loop_source requests,
		answers; /* there are some; answers: of the other servers       */
	struct net_server *net;
	struct refsrv *core;
	struct refsrv_config config; /* of the core: another server_inc when it is renewed */
	const char
		*names[OPTIONS_PEERS_MAX]; /* for the core: borrows of the options              */
	struct peers *peers;               /* NULL: there is no other server                     */
	uint64_t changes;                  /* of the core's standing, as the log says it         */
	bool ready;                        /* READY has been said*/
	int64_t lost_ns; /* the log says again by then that this server is not in its list      */
	int64_t core_ns; /* when the core wants a tick                                          */
	bool draining;
	int64_t drain_ns; /* it drains until then at the latest*/
	uint64_t malformed,
		malformed_told; /* ever, and when the log said so last                 */
	int64_t malformed_ns;
	struct files_watch files;
	int64_t files_ns; /* when it is looked at again                                          */
	char urls[OPTIONS_LISTEN_MAX * NET_URL_BYTES]; /* where it listens, with commas between */
};

/* ---- replies ------------------------------------------------------------------------------ */

static void
send_packed(struct service *service, uint64_t token, const uint8_t *data, size_t bytes)
{
	int rc = net_server_reply(service->net, token, data, bytes);

	/* -ESTALE: the asker is gone. Anything else: it will ask again. */
	if (rc != 0 && rc != -ESTALE)
		log_warn("net", "a reply is lost reason=\"%s\"", th_strerror(rc));
}

/* What the process counts, beside what the core does. */
static int
pack_inspection(const struct service *service, const struct ctl_reply *reply, uint8_t **ret_data,
	size_t *ret_bytes)
{
	struct ctl_reply told = *reply;
	struct ctl_inspection *inspection = &told.u.inspect;

	TH_ASSERT(inspection->num_counters + 3 <= CTL_COUNTERS_MAX);
	inspection->counters[inspection->num_counters++] = (struct ctl_counter){
		.name = "descriptors_left", .value = files_left(service->loop.epoll_fd)};
	inspection->counters[inspection->num_counters++] =
		(struct ctl_counter){.name = "descriptors_short", .value = service->files.times};
	inspection->counters[inspection->num_counters++] =
		(struct ctl_counter){.name = "log_lines_lost", .value = log_lost()};
	return ctl_reply_pack(&told, ret_data, ret_bytes);
}

static void
send_reply(struct service *service, uint64_t token, const struct ctl_reply *reply)
{
	struct ctl_reply refusal;
	uint8_t *data;
	size_t bytes;
	bool inspection = reply->kind == CTL_INSPECT && reply->code == 0;
	int rc = inspection ? pack_inspection(service, reply, &data, &bytes)
			    : ctl_reply_pack(reply, &data, &bytes);

	if (rc != 0) {
		refusal = (struct ctl_reply){
			.kind = reply->kind, .request_no = reply->request_no, .code = rc};
		snprintf(refusal.text, sizeof(refusal.text), "%s",
			rc == TH_E_LIMIT ? "the answer is longer than a message may be"
					 : th_strerror(rc));
		log_warn("core", "a reply cannot be sent kind=%d reason=\"%s\"", (int)reply->kind,
			th_strerror(rc));
		rc = ctl_reply_pack(&refusal, &data, &bytes);
	}
	if (rc != 0)
		return; /* no memory: the asker asks again */
	send_packed(service, token, data, bytes);
	free(data);
}

static void
service_refuse(
	struct service *service, const struct net_server_item *item, const struct th_err *why)
{
	uint8_t *data;
	size_t bytes;

	if (ctl_refusal_pack(item->data, item->bytes, why, &data, &bytes) != 0)
		return;
	send_packed(service, item->token, data, bytes);
	free(data);
}

/* ---- the core ------------------------------------------------------------------------------ */

static int
make_core(struct service *service, struct th_err *err)
{
	struct refsrv_config *config = &service->config;
	struct timespec now;

	config->server_inc = th_random_name();
	th_random(config->seed, sizeof(config->seed));
	/* None makes more than one change a microsecond: its successor counts from above. */
	if (clock_gettime(CLOCK_REALTIME, &now) < 0 || now.tv_sec < 0)
		return th_fail(err, -errno, "no time of day: %s", th_strerror(-errno));
	config->generation_first = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
	config->wall_ns = (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
	service->core = refsrv_new(config, th_now_ns());
	service->core_ns = th_now_ns();
	service->changes = UINT64_MAX;
	return service->core == NULL ? th_fail(err, -ENOMEM, "out of memory") : 0;
}

static void
ready(struct service *service, const char *state)
{
	bool peers = service->peers != NULL;

	service->ready = true;
	printf("ready listen=%s%s%s\n", service->urls, peers ? " state=" : "", peers ? state : "");
	fflush(stdout);
	th_notify("READY=1");
	log_info("main", "ready version=%s listen=%s", TH_VERSION, service->urls);
}

/* A server that others stand by for says at each change what it is, and why. */
static void
tell_standing(struct service *service)
{
	const struct refsrv_standing *standing = refsrv_standing(service->core);
	const char *state = standing->state == REFSRV_SERVING   ? "serving"
			    : standing->state == REFSRV_STANDBY ? "standby"
								: "asking";
	char status[STATUS_BYTES];

	if (standing->changes == service->changes)
		return;
	service->changes = standing->changes;
	service->config.me = standing->me; /* it stays true for the next life */
	log_info("peers", "%s epoch=%" PRIu32 "%s%s%s", state, standing->epoch,
		standing->text[0] != '\0' ? " why=\"" : "", standing->text,
		standing->text[0] != '\0' ? "\"" : "");
	snprintf(status, sizeof(status), "STATUS=%s",
		standing->text[0] != '\0' ? standing->text : "serving");
	th_notify(status);
	if (!service->ready && standing->state != REFSRV_ASKING)
		ready(service, state);
}

static void
renew(struct service *service)
{
	struct th_err err = {0};

	log_warn("peers", "beginning anew, empty why=\"%s\"", refsrv_standing(service->core)->text);
	refsrv_free(service->core);
	if (make_core(service, &err) != 0) {
		log_error("main", "cannot go on: %s", err.text);
		net_exit(EXIT_FAILURE);
	}
}

static void
service_take_out(struct service *service, const struct refsrv_out *out)
{
	service->core_ns = out->next_ns;
	for (uint32_t i = 0; i < out->num_replies; i++)
		send_reply(service, out->replies[i].token, &out->replies[i].reply);
	if (service->peers == NULL)
		return;
	for (uint32_t i = 0; i < out->num_probes; i++)
		peers_probe(service->peers, out->probes[i].peer, &out->probes[i].hello);
	if (out->renew)
		renew(service);
	tell_standing(service);
}

/* ---- requests ----------------------------------------------------------------------------- */

/* One line at once, then at most one a minute: a broken peer must not fill the log. */
static void
count_malformed(struct service *service, int64_t now_ns, const struct th_err *why)
{
	service->malformed++;
	if (service->malformed_told != 0 && now_ns < service->malformed_ns + REPORT_NS)
		return;
	service->malformed_told = service->malformed;
	service->malformed_ns = now_ns;
	log_warn("net", "malformed request count=%" PRIu64 " reason=\"%s\"", service->malformed,
		why->text);
}

static void
on_closed(struct service *service, const struct net_server_item *item)
{
	struct refsrv_out out;

	if (service->draining)
		return;
	refsrv_gone(service->core, th_now_ns(), item->peer.pipe, &out);
	service_take_out(service, &out);
}

static void
service_on_request(struct service *service, int64_t now_ns, const struct net_server_item *item)
{
	struct convert_arena arena = {0};
	struct ctl_request request;
	struct refsrv_out out;
	struct th_err why = {0};

	if (service->draining) {
		th_fail(&why, TH_E_NO_SERVER, "this server is shutting down");
		service_refuse(service, item, &why);
		return;
	}
	if (ctl_request_unpack(item->data, item->bytes, &arena, &why, &request) != 0) {
		count_malformed(service, now_ns, &why);
		service_refuse(service, item, &why);
	} else {
		TH_FP_OF(points_asked, request.kind);
		request.connection = item->peer.pipe;
		refsrv_step(service->core, now_ns, item->token, &request, &out);
		service_take_out(service, &out);
		TH_FP_OF(points_answered, request.kind);
	}
	convert_arena_free(&arena);
}

/* True: there may be more, but others wait as well. */
static bool
on_net(struct service *service)
{
	struct net_server_item item;

	for (int i = 0; i < BATCH; i++) {
		if (!net_server_next(service->net, &item))
			return false;
		if (item.kind == NET_REQUEST)
			service_on_request(service, th_now_ns(), &item);
		else if (item.kind == NET_CLOSED)
			on_closed(service, &item);
		else
			refsrv_forget(service->core, item.token);
	}
	return true;
}

/* Who has a list of servers must be in it, or it does not know whom it stands by for. */
static void
service_tell_lost(struct service *service, int64_t now_ns)
{
	const struct refsrv_standing *standing = refsrv_standing(service->core);

	if (standing->me != REFSRV_PEER_UNKNOWN || standing->state == REFSRV_ASKING ||
		now_ns < service->lost_ns)
		return;
	service->lost_ns = now_ns + REPORT_NS;
	log_warn("peers",
		"none of --peers has answered as this server: name it there by the address at "
		"which it listens listen=%s",
		service->urls);
}

static void
on_peers(struct service *service)
{
	struct peers_item item;
	struct refsrv_out out;

	while (peers_next(service->peers, &item)) {
		if (service->draining)
			continue;
		refsrv_probed(service->core, th_now_ns(), item.peer,
			item.answered ? &item.reply : NULL, &out);
		service_take_out(service, &out);
		service_tell_lost(service, th_now_ns());
	}
}

/* ---- time and signals --------------------------------------------------------------------- */

static void
on_time(struct service *service, int64_t now_ns)
{
	struct refsrv_out out;

	if (service->draining || now_ns < service->core_ns)
		return;
	if (now_ns >= service->files_ns) {
		files_look(&service->files, service->loop.epoll_fd);
		service->files_ns = now_ns + FILES_NS;
	}
	refsrv_tick(service->core, now_ns, &out);
	service_take_out(service, &out);
}

static void
service_on_signal(void *arg, int number)
{
	struct service *service = arg;

	if (number == SIGHUP)
		return; /* there is nothing to read again; it must not end the server */
	if (service->draining) {
		log_warn("main", "a second signal: leaving at once signal=%d", number);
		net_exit(EXIT_FAILURE);
	}
	log_info("main", "draining signal=%d", number);
	th_notify("STOPPING=1");
	service->draining = true;
	service->drain_ns = th_now_ns() + DRAIN_NS;
}

/* Whatever it was, service_run looks for all that there may be. */
static void
on_wake(void *arg, uint32_t events)
{
	(void)arg;
	(void)events;
}

/*
 * Says that it is ready, which with other servers takes until it knows whether it serves or
 * stands by. Serves until a signal says to leave, and then until the last answer is on its way.
 */
static void
service_run(struct service *service)
{
	bool more = false;

	if (service->peers == NULL)
		ready(service, "");
	for (;;) {
		/*
		 * A second signal may be there before the last answer is: it is looked for first,
		 * and the end is only after what had come in was answered.
		 */
		loop_arm(&service->loop, service->draining ? service->drain_ns : service->core_ns);
		loop_wait(&service->loop, more);
		on_time(service, th_now_ns());
		if (service->peers != NULL)
			on_peers(service);
		more = on_net(service);
		if (service->draining && !more &&
			(net_server_quiet(service->net) || th_now_ns() >= service->drain_ns))
			return;
	}
}

/* ---- start -------------------------------------------------------------------------------- */

static int
service_watch(struct service *service, struct loop_source *source, int fd, struct th_err *err)
{
	int rc = loop_add(&service->loop, source, fd, EPOLLIN, on_wake, NULL);

	return rc < 0 ? th_fail(err, rc, "epoll: %s", th_strerror(rc)) : 0;
}

static int
listen_all(struct service *service, const struct options *options, struct th_err *err)
{
	char url[NET_URL_BYTES];
	size_t at = 0;
	int rc;

	for (uint32_t i = 0; i < options->num_listen; i++) {
		rc = net_server_listen(service->net, options->listen[i], 0, err, url);
		if (rc != 0)
			return rc;
		if (at > 0)
			service->urls[at++] = ',';
		memcpy(service->urls + at, url, strlen(url) + 1);
		at += strlen(url);
	}
	return 0;
}

static int
make_peers(struct service *service, const struct options *options, struct th_err *err)
{
	int rc;

	if (options->num_peers == 0)
		return 0;
	for (uint32_t i = 0; i < options->num_peers; i++)
		service->names[i] = options->peers[i];
	service->config.num_peers = options->num_peers;
	service->config.peers = service->names;
	rc = peers_new(options, err, &service->peers);
	return rc == 0 ? service_watch(service, &service->answers, peers_fd(service->peers), err)
		       : rc;
}

/*
 * Ignores SIGPIPE, takes the signals of a loop (ipc/base/loop.h), opens everything and listens;
 * call it before anything starts a thread. options is borrowed for good. 0, or a code with a
 * sentence: a failure ends the process, nothing is undone.
 */
TH_MUST_USE static int
service_new(const struct options *options, struct th_err *err, struct service **ret_service)
{
	static struct service service;
	int rc;

	/* A connection is a descriptor: thousands of agents need more than the soft limit. */
	files_raise();
	service.config = options->core;
	/* A peer that goes away is seen in what write returns. */
	signal(SIGPIPE, SIG_IGN);
	rc = loop_open(&service.loop, service_on_signal, &service, err);
	if (rc == 0)
		rc = net_server_new(&options->net, err, &service.net);
	if (rc == 0)
		rc = listen_all(&service, options, err);
	if (rc == 0)
		rc = service_watch(&service, &service.requests, net_server_fd(service.net), err);
	if (rc == 0)
		rc = make_peers(&service, options, err);
	if (rc == 0)
		rc = make_core(&service, err);
	if (rc == 0)
		*ret_service = &service;
	return rc;
}

int
main(int argc, char **argv)
{
	static struct options options;
	struct th_err err = {0};
	struct service *service;

	if (options_parse(argc, argv, &err, &options) < 0) {
		fprintf(stderr, "thserverd: %s\n", err.text);
		return EXIT_USAGE;
	}
	if (options.check_only) {
		printf("the configuration is good\n");
		return EXIT_SUCCESS;
	}
	if (service_new(&options, &err, &service) < 0) {
		log_error("main", "cannot start: %s", err.text);
		net_exit(EXIT_FAILURE);
	}
	service_run(service);
	log_info("main", "leaving");
	net_exit(EXIT_SUCCESS);
}
