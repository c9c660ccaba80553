/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop - see loop.h.
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
#include "server/host/loop.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/files.h"
#include "ipc/base/log.h"
#include "ipc/base/notify.h"
#include "ipc/base/random.h"
#include "ipc/proto/convert.h"
#include "server/host/peers.h"
#include "server/host/points.h"

#define NS_PER_S INT64_C(1000000000)
#define DRAIN_NS (2 * NS_PER_S) /* for answers to askers that do not read                    */
#define FILES_NS NS_PER_S
#define REPORT_NS (60 * NS_PER_S) /* malformed requests: one line for all of this time        */
#define BATCH 256                 /* requests between two looks at signals and time            */
#define STATUS_BYTES (TH_CTL_TEXT_BYTES + 16)

struct loop {
	int epoll, signals, timer;
	struct net_server *net;
	struct refsrv *core;
	struct refsrv_config config; /* of the core: another server_inc when it is renewed */
	const char
		*names[OPTIONS_PEERS_MAX]; /* for the core: borrows of the options              */
	struct peers *peers;               /* NULL: there is no other server                     */
	uint64_t changes;                  /* of the core's standing, as the log says it         */
	bool ready;       /* ... has been said                                                   */
	int64_t lost_ns;  /* the log says again by then that this server is not in its list      */
	int64_t core_ns;  /* when the core wants a tick                                          */
	int64_t armed_ns; /* what the timer is set to                                            */
	bool draining;
	int64_t drain_ns; /* ... until then at the latest                        */
	uint64_t malformed,
		malformed_told; /* ever, and when the log said so last                 */
	int64_t malformed_ns;
	struct files_watch files;
	int64_t files_ns; /* when it is looked at again                                          */
	char urls[OPTIONS_LISTEN_MAX * NET_URL_BYTES]; /* where it listens, with commas between */
};

/* ---- replies ------------------------------------------------------------------------------ */

static void
send_packed(struct loop *loop, uint64_t token, const uint8_t *data, size_t bytes)
{
	int rc = net_server_reply(loop->net, token, data, bytes);

	/* -ESTALE: the asker is gone. Anything else: it will ask again. */
	if (rc != 0 && rc != -ESTALE)
		log_warn("net", "a reply is lost reason=\"%s\"", th_strerror(rc));
}

/* What the process counts, beside what the core does. */
static int
pack_inspection(const struct loop *loop, const struct ctl_reply *reply, uint8_t **ret_data,
	size_t *ret_bytes)
{
	struct ctl_reply told = *reply;
	struct ctl_inspection *inspection = &told.u.inspect;

	TH_ASSERT(inspection->num_counters + 3 <= CTL_COUNTERS_MAX);
	inspection->counters[inspection->num_counters++] =
		(struct ctl_counter){.name = "descriptors_left", .value = files_left(loop->epoll)};
	inspection->counters[inspection->num_counters++] =
		(struct ctl_counter){.name = "descriptors_short", .value = loop->files.times};
	inspection->counters[inspection->num_counters++] =
		(struct ctl_counter){.name = "log_lines_lost", .value = log_lost()};
	return ctl_reply_pack(&told, ret_data, ret_bytes);
}

static void
send_reply(struct loop *loop, uint64_t token, const struct ctl_reply *reply)
{
	struct ctl_reply refusal;
	uint8_t *data;
	size_t bytes;
	bool inspection = reply->kind == CTL_INSPECT && reply->code == 0;
	int rc = inspection ? pack_inspection(loop, reply, &data, &bytes)
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
	send_packed(loop, token, data, bytes);
	free(data);
}

static void
refuse(struct loop *loop, const struct net_server_item *item, const struct th_err *why)
{
	uint8_t *data;
	size_t bytes;

	if (ctl_refusal_pack(item->data, item->bytes, why, &data, &bytes) != 0)
		return;
	send_packed(loop, item->token, data, bytes);
	free(data);
}

/* ---- the core ------------------------------------------------------------------------------ */

static int
make_core(struct loop *loop, struct th_err *err)
{
	struct refsrv_config *config = &loop->config;
	struct timespec now;

	config->server_inc = th_random_name();
	th_random(config->seed, sizeof(config->seed));
	/* None makes more than one change a microsecond: its successor counts from above. */
	if (clock_gettime(CLOCK_REALTIME, &now) < 0 || now.tv_sec < 0)
		return th_fail(err, -errno, "no time of day: %s", th_strerror(-errno));
	config->generation_first = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
	config->wall_ns = (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
	loop->core = refsrv_new(config, th_now_ns());
	loop->core_ns = th_now_ns();
	loop->changes = UINT64_MAX;
	return loop->core == NULL ? th_fail(err, -ENOMEM, "out of memory") : 0;
}

static void
ready(struct loop *loop, const char *state)
{
	bool peers = loop->peers != NULL;

	loop->ready = true;
	printf("ready listen=%s%s%s\n", loop->urls, peers ? " state=" : "", peers ? state : "");
	fflush(stdout);
	th_notify("READY=1");
	log_info("main", "ready version=%s listen=%s", TH_VERSION, loop->urls);
}

/* A server that others stand by for says at each change what it is, and why. */
static void
tell_standing(struct loop *loop)
{
	const struct refsrv_standing *standing = refsrv_standing(loop->core);
	const char *state = standing->state == REFSRV_SERVING   ? "serving"
			    : standing->state == REFSRV_STANDBY ? "standby"
								: "asking";
	char status[STATUS_BYTES];

	if (standing->changes == loop->changes)
		return;
	loop->changes = standing->changes;
	loop->config.me = standing->me; /* it stays true for the next life */
	log_info("peers", "%s epoch=%" PRIu32 "%s%s%s", state, standing->epoch,
		standing->text[0] != '\0' ? " why=\"" : "", standing->text,
		standing->text[0] != '\0' ? "\"" : "");
	snprintf(status, sizeof(status), "STATUS=%s",
		standing->text[0] != '\0' ? standing->text : "serving");
	th_notify(status);
	if (!loop->ready && standing->state != REFSRV_ASKING)
		ready(loop, state);
}

static void
renew(struct loop *loop)
{
	struct th_err err = {0};

	log_warn("peers", "beginning anew, empty why=\"%s\"", refsrv_standing(loop->core)->text);
	refsrv_free(loop->core);
	if (make_core(loop, &err) != 0) {
		log_error("main", "cannot go on: %s", err.text);
		net_exit(EXIT_FAILURE);
	}
}

static void
take_out(struct loop *loop, const struct refsrv_out *out)
{
	loop->core_ns = out->next_ns;
	for (uint32_t i = 0; i < out->num_replies; i++)
		send_reply(loop, out->replies[i].token, &out->replies[i].reply);
	if (loop->peers == NULL)
		return;
	for (uint32_t i = 0; i < out->num_probes; i++)
		peers_probe(loop->peers, out->probes[i].peer, &out->probes[i].hello);
	if (out->renew)
		renew(loop);
	tell_standing(loop);
}

/* ---- requests ----------------------------------------------------------------------------- */

/* One line at once, then at most one a minute: a broken peer must not fill the log. */
static void
count_malformed(struct loop *loop, int64_t now_ns, const struct th_err *why)
{
	loop->malformed++;
	if (loop->malformed_told != 0 && now_ns < loop->malformed_ns + REPORT_NS)
		return;
	loop->malformed_told = loop->malformed;
	loop->malformed_ns = now_ns;
	log_warn("net", "malformed request count=%" PRIu64 " reason=\"%s\"", loop->malformed,
		why->text);
}

static void
on_closed(struct loop *loop, const struct net_server_item *item)
{
	struct refsrv_out out;

	if (loop->draining)
		return;
	refsrv_gone(loop->core, th_now_ns(), item->peer.pipe, &out);
	take_out(loop, &out);
}

static void
on_request(struct loop *loop, int64_t now_ns, const struct net_server_item *item)
{
	struct convert_arena arena = {0};
	struct ctl_request request;
	struct refsrv_out out;
	struct th_err why = {0};

	if (loop->draining) {
		th_fail(&why, TH_E_NO_SERVER, "this server is shutting down");
		refuse(loop, item, &why);
		return;
	}
	if (ctl_request_unpack(item->data, item->bytes, &arena, &why, &request) != 0) {
		count_malformed(loop, now_ns, &why);
		refuse(loop, item, &why);
	} else {
		TH_FP_OF(points_asked, request.kind);
		request.connection = item->peer.pipe;
		refsrv_step(loop->core, now_ns, item->token, &request, &out);
		take_out(loop, &out);
		TH_FP_OF(points_answered, request.kind);
	}
	convert_arena_free(&arena);
}

/* True: there may be more, but others wait as well. */
static bool
on_net(struct loop *loop)
{
	struct net_server_item item;

	for (int i = 0; i < BATCH; i++) {
		if (!net_server_next(loop->net, &item))
			return false;
		if (item.kind == NET_REQUEST)
			on_request(loop, th_now_ns(), &item);
		else if (item.kind == NET_CLOSED)
			on_closed(loop, &item);
		else
			refsrv_forget(loop->core, item.token);
	}
	return true;
}

/* Who has a list of servers must be in it, or it does not know whom it stands by for. */
static void
tell_lost(struct loop *loop, int64_t now_ns)
{
	const struct refsrv_standing *standing = refsrv_standing(loop->core);

	if (standing->me != REFSRV_PEER_UNKNOWN || standing->state == REFSRV_ASKING ||
		now_ns < loop->lost_ns)
		return;
	loop->lost_ns = now_ns + REPORT_NS;
	log_warn("peers",
		"none of --peers has answered as this server: name it there by the address at "
		"which it listens listen=%s",
		loop->urls);
}

static void
on_peers(struct loop *loop)
{
	struct peers_item item;
	struct refsrv_out out;

	while (peers_next(loop->peers, &item)) {
		if (loop->draining)
			continue;
		refsrv_probed(loop->core, th_now_ns(), item.peer,
			item.answered ? &item.reply : NULL, &out);
		take_out(loop, &out);
		tell_lost(loop, th_now_ns());
	}
}

/* ---- time and signals --------------------------------------------------------------------- */

static void
arm(struct loop *loop)
{
	int64_t at_ns = loop->draining ? loop->drain_ns : loop->core_ns;
	struct itimerspec when = {0};

	if (at_ns == loop->armed_ns)
		return;
	loop->armed_ns = at_ns;
	if (at_ns != INT64_MAX) {
		at_ns = th_max_i64(at_ns, 1); /* 0 would disarm it */
		when.it_value.tv_sec = at_ns / NS_PER_S;
		when.it_value.tv_nsec = at_ns % NS_PER_S;
	}
	if (timerfd_settime(loop->timer, TFD_TIMER_ABSTIME, &when, NULL) < 0)
		TH_ASSERT(!"timerfd_settime");
}

static void
on_timer(struct loop *loop)
{
	struct refsrv_out out;
	uint64_t expirations;

	loop->armed_ns = -1;
	if (read(loop->timer, &expirations, sizeof(expirations)) < 0 && errno != EAGAIN)
		log_warn("main", "the timer fails reason=\"%s\"", th_strerror(-errno));
	if (loop->draining)
		return;
	if (th_now_ns() >= loop->files_ns) {
		files_look(&loop->files, loop->epoll);
		loop->files_ns = th_now_ns() + FILES_NS;
	}
	refsrv_tick(loop->core, th_now_ns(), &out);
	take_out(loop, &out);
}

static void
on_signal(struct loop *loop)
{
	struct signalfd_siginfo info;

	while (read(loop->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		if (loop->draining) {
			log_warn("main", "a second signal: leaving at once signal=%u",
				info.ssi_signo);
			net_exit(EXIT_FAILURE);
		}
		log_info("main", "draining signal=%u", info.ssi_signo);
		th_notify("STOPPING=1");
		loop->draining = true;
		loop->drain_ns = th_now_ns() + DRAIN_NS;
	}
}

void
loop_run(struct loop *loop)
{
	struct epoll_event events[4];
	bool more = false;
	int count;

	if (loop->peers == NULL)
		ready(loop, "");
	for (;;) {
		/*
		 * A second signal may be there before the last answer is: look for it first, and
		 * leave only after what had come in was answered.
		 */
		arm(loop);
		count = epoll_wait(loop->epoll, events, TH_ARRAY_LEN(events), more ? 0 : -1);
		for (int i = 0; i < count; i++) {
			if (events[i].data.fd == loop->signals)
				on_signal(loop);
			else if (events[i].data.fd == loop->timer)
				on_timer(loop);
		}
		if (loop->peers != NULL)
			on_peers(loop);
		more = on_net(loop);
		if (loop->draining && !more &&
			(net_server_quiet(loop->net) || th_now_ns() >= loop->drain_ns))
			return;
	}
}

/* ---- start -------------------------------------------------------------------------------- */

static int
watch(struct loop *loop, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

	return epoll_ctl(loop->epoll, EPOLL_CTL_ADD, fd, &event);
}

static int
open_descriptors(struct loop *loop, struct th_err *err)
{
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	loop->epoll = epoll_create1(EPOLL_CLOEXEC);
	loop->signals = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
	loop->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	sigaddset(&signals, SIGPIPE);
	if (loop->epoll < 0 || loop->signals < 0 || loop->timer < 0 ||
		sigprocmask(SIG_BLOCK, &signals, NULL) < 0 || watch(loop, loop->signals) < 0 ||
		watch(loop, loop->timer) < 0)
		return th_fail(err, -errno, "opening descriptors: %s", th_strerror(-errno));
	return 0;
}

static int
listen_all(struct loop *loop, const struct options *options, struct th_err *err)
{
	char url[NET_URL_BYTES];
	size_t at = 0;
	int rc;

	for (uint32_t i = 0; i < options->num_listen; i++) {
		rc = net_server_listen(loop->net, options->listen[i], 0, err, url);
		if (rc != 0)
			return rc;
		if (at > 0)
			loop->urls[at++] = ',';
		memcpy(loop->urls + at, url, strlen(url) + 1);
		at += strlen(url);
	}
	return 0;
}

static int
make_peers(struct loop *loop, const struct options *options, struct th_err *err)
{
	int rc;

	if (options->num_peers == 0)
		return 0;
	for (uint32_t i = 0; i < options->num_peers; i++)
		loop->names[i] = options->peers[i];
	loop->config.num_peers = options->num_peers;
	loop->config.peers = loop->names;
	rc = peers_new(options, err, &loop->peers);
	if (rc == 0 && watch(loop, peers_fd(loop->peers)) < 0)
		rc = th_fail(err, -errno, "epoll: %s", th_strerror(-errno));
	return rc;
}

/* A failure ends the process: nothing is undone. */
int
loop_new(const struct options *options, struct th_err *err, struct loop **ret_loop)
{
	static struct loop loop = {.armed_ns = -1};
	int rc;

	/* A connection is a descriptor: thousands of agents need more than the soft limit. */
	files_raise();
	loop.config = options->core;
	rc = open_descriptors(&loop, err);
	if (rc == 0)
		rc = net_server_new(&options->net, err, &loop.net);
	if (rc == 0)
		rc = listen_all(&loop, options, err);
	if (rc == 0 && watch(&loop, net_server_fd(loop.net)) < 0)
		rc = th_fail(err, -errno, "epoll: %s", th_strerror(-errno));
	if (rc == 0)
		rc = make_peers(&loop, options, err);
	if (rc == 0)
		rc = make_core(&loop, err);
	if (rc == 0)
		*ret_loop = &loop;
	return rc;
}
