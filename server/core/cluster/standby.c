/* SPDX-License-Identifier: Apache-2.0 */
/*
 * standby - see standby.h. No I/O.
 */
#include "server/core/cluster/standby.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/assert.h"
#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/sim.h"
#include "server/core/cluster/agent.h"
#include "server/core/view/event_log.h"

/* ---- what is known of the others ------------------------------------------------------------- */

static const char *
name_of(const struct refsrv *server, const struct peer_server *peer)
{
	return server->config.peers[peer - server->standby.peers];
}

static int64_t
silence_ns(const struct refsrv *server)
{
	return TH_PLANT(standby_serves_at_once) ? 0 : server->config.silence_ns;
}

static bool
is_alive(const struct refsrv *server, const struct peer_server *peer)
{
	return !peer->self && peer->heard_ns != INT64_MIN &&
	       server->live_ns - peer->heard_ns < silence_ns(server);
}

/* Nobody knows where this server stands: all others are before it. */
static bool
is_before(const struct refsrv *server, const struct peer_server *peer)
{
	uint32_t me = server->config.me;

	return !peer->self &&
	       (me == REFSRV_PEER_UNKNOWN || peer - server->standby.peers < (ptrdiff_t)me);
}

static const struct peer_server *
alive_before(const struct refsrv *server)
{
	for (uint32_t i = 0; i < server->standby.num_peers; i++) {
		const struct peer_server *peer = &server->standby.peers[i];
		if (is_before(server, peer) && is_alive(server, peer))
			return peer;
	}
	return NULL;
}

static bool
is_later(uint32_t epoch, uint64_t inc, uint32_t than_epoch, uint64_t than_inc)
{
	return epoch != than_epoch ? epoch > than_epoch : inc > than_inc;
}

struct later { /* a server that serves with a higher (epoch, life) */
	const char *name;
	uint32_t epoch;
};

static bool
find_later(const struct refsrv *server, struct later *ret_later)
{
	const struct standby *standby = &server->standby;
	uint32_t epoch = standby->state == STANDBY_SERVING ? server->epoch : 0;
	uint64_t inc = server->config.server_inc;

	if (standby->state == STANDBY_SERVING && TH_PLANT(lower_epoch_not_fenced))
		return false;
	for (uint32_t i = 0; i < standby->num_peers; i++) {
		const struct peer_server *peer = &standby->peers[i];
		/* Whom nobody is attached to has nothing that could be lost. */
		if (!is_alive(server, peer) || !peer->serving || peer->epoch == 0 ||
			!is_later(peer->epoch, peer->inc, epoch, inc))
			continue;
		*ret_later = (struct later){name_of(server, peer), peer->epoch};
		return true;
	}
	return false;
}

/* One before this one has answered all questions for long. */
static const struct peer_server *
find_returned(const struct refsrv *server)
{
	if (TH_PLANT(cluster_not_given_back))
		return NULL;
	for (uint32_t i = 0; i < server->standby.num_peers; i++) {
		const struct peer_server *peer = &server->standby.peers[i];
		if (is_before(server, peer) && is_alive(server, peer) &&
			peer->since_ns != INT64_MAX &&
			server->live_ns - peer->since_ns >= server->config.return_ns)
			return peer;
	}
	return NULL;
}

/* ---- the state ------------------------------------------------------------------------------- */

static void __attribute__((format(printf, 3, 4)))
standby_become(struct refsrv *server, enum standby_state state, const char *format, ...)
{
	struct standby *standby = &server->standby;
	char text[TH_CTL_TEXT_BYTES];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (state == standby->state && strcmp(text, standby->text) == 0)
		return;
	standby->state = state;
	memcpy(standby->text, text, sizeof(text));
	standby->standing.changes++;
	event_log(server, state == STANDBY_OVER ? EVENT_ERROR : EVENT_WARN, NULL, NULL, "%s",
		state == STANDBY_SERVING ? "this reference server serves now" : text);
	if (state == STANDBY_OVER)
		agent_refuse_polls(server, text);
}

static void
look_serving(struct refsrv *server)
{
	struct later later;
	const struct peer_server *peer =
		server->epoch == 0 ? alive_before(server) : find_returned(server);

	if (find_later(server, &later) && server->epoch > 0) {
		TH_MARK(server_fenced_by_a_later_one);
		standby_become(server, STANDBY_OVER,
			"%s serves with epoch %" PRIu32 ", this server with %" PRIu32
			": it forgets everything, and its agents go there",
			later.name, later.epoch, server->epoch);
	} else if (find_later(server, &later)) {
		standby_become(server, STANDBY_WAITING, "standby: %s serves, with epoch %" PRIu32,
			later.name, later.epoch);
	} else if (peer != NULL && server->epoch == 0) {
		standby_become(
			server, STANDBY_WAITING, "standby: %s is alive", name_of(server, peer));
	} else if (peer != NULL) {
		TH_MARK(server_gives_the_cluster_back);
		standby_become(server, STANDBY_OVER,
			"stepping down for %s, which is before this server in the list and answers "
			"again",
			name_of(server, peer));
	}
}

/* Who has been silent since this server began has not been asked for long enough. */
static bool
may_be_alive(const struct refsrv *server, const struct peer_server *peer)
{
	return is_before(server, peer) && peer->heard_ns == INT64_MIN &&
	       server->live_ns < silence_ns(server);
}

static void
look_waiting(struct refsrv *server)
{
	const struct standby *standby = &server->standby;
	const struct peer_server *first = alive_before(server);
	struct later later;

	if (first != NULL) {
		standby_become(
			server, STANDBY_WAITING, "standby: %s is alive", name_of(server, first));
		return;
	}
	if (find_later(server, &later)) {
		standby_become(server, STANDBY_WAITING, "standby: %s serves, with epoch %" PRIu32,
			later.name, later.epoch);
		return;
	}
	for (uint32_t i = 0; i < standby->num_peers; i++) {
		const struct peer_server *peer = &standby->peers[i];
		if (peer->self || (peer->tried && !may_be_alive(server, peer)))
			continue;
		standby_become(server, STANDBY_ASKING,
			"standby: %s has not answered yet whether it serves",
			name_of(server, peer));
		return;
	}
	TH_MARK(server_begins_to_serve);
	standby_become(server, STANDBY_SERVING, "%s", "");
}

static void
peer_failed(struct peer_server *peer)
{
	peer->asked = false;
	peer->tried = true;
	peer->since_ns = INT64_MAX;
}

void
standby_look(struct refsrv *server)
{
	struct standby *standby = &server->standby;

	if (standby->num_peers == 0 || standby->state == STANDBY_OVER)
		return;
	for (uint32_t i = 0; i < standby->num_peers; i++) {
		struct peer_server *peer = &standby->peers[i];
		if (peer->asked && server->live_ns - peer->asked_ns >= 2 * server->config.probe_ns)
			peer_failed(peer);
	}
	if (standby->state == STANDBY_SERVING)
		look_serving(server);
	else
		look_waiting(server);
}

void
standby_init(struct refsrv *server)
{
	const struct refsrv_config *config = &server->config;
	struct standby *standby = &server->standby;

	TH_ASSERT(config->num_peers <= REFSRV_PEERS_MAX);
	TH_ASSERT(config->me < config->num_peers || config->me == REFSRV_PEER_UNKNOWN ||
		  config->num_peers == 0);
	standby->num_peers = config->num_peers;
	standby->state = config->num_peers == 0 ? STANDBY_SERVING : STANDBY_ASKING;
	standby->stood_ns = INT64_MIN;
	for (uint32_t i = 0; i < config->num_peers; i++) {
		struct peer_server *peer = &standby->peers[i];
		peer->self = i == config->me;
		peer->heard_ns = INT64_MIN;
		peer->since_ns = INT64_MAX;
	}
	standby_look(server);
}

void
standby_stood_still(struct refsrv *server, int64_t ns)
{
	struct standby *standby = &server->standby;

	if (standby->num_peers == 0 || ns < server->config.probe_ns)
		return;
	if (ns >= server->config.silence_ns)
		standby->stood_ns = server->live_ns;
	for (uint32_t i = 0; i < standby->num_peers; i++) {
		struct peer_server *peer = &standby->peers[i];
		/* What it was asked before says nothing of now. */
		peer->asked = false;
		peer->next_ns = server->live_ns;
		if (TH_PLANT(stopped_standby_serves) && peer->heard_ns != INT64_MIN)
			peer->heard_ns -= ns;
	}
}

/* ---- what others say ------------------------------------------------------------------------- */

int
standby_hello(struct refsrv *server, const struct ctl_hello *hello, struct th_err *err)
{
	struct standby *standby = &server->standby;

	if (hello->epoch > TH_EPOCH_MAX)
		return th_fail(err, TH_E_INVALID,
			"a reference server says that it has epoch %" PRIu32 ": the highest is %u",
			hello->epoch, TH_EPOCH_MAX);
	if (standby->num_peers == 0 || !standby_serves(server) || !hello->serving ||
		!is_later(
			hello->epoch, hello->server_inc, server->epoch, server->config.server_inc))
		return 0;
	if (TH_PLANT(hello_believed))
		standby_become(
			server, STANDBY_OVER, "another reference server says that it serves");
	/* Servers that ask because they are asked would never end. */
	if (server->live_ns < standby->hint_ns)
		return 0;
	TH_MARK(server_asks_after_a_hint);
	standby->hint_ns = th_deadline_ns(server->live_ns, server->config.probe_ns);
	for (uint32_t i = 0; i < standby->num_peers; i++)
		standby->peers[i].next_ns = server->live_ns;
	return 0;
}

void
standby_probed(struct refsrv *server, uint32_t number, const struct ctl_hello_reply *reply)
{
	struct standby *standby = &server->standby;

	if (number >= standby->num_peers || standby->peers[number].self)
		return;
	struct peer_server *peer = &standby->peers[number];
	if (reply == NULL || reply->server_inc == 0 || reply->epoch > TH_EPOCH_MAX ||
		!th_cluster_fits(reply->cluster, server->config.cluster)) {
		peer_failed(peer);
		standby_look(server);
		return;
	}
	peer->asked = false;
	peer->tried = true;
	if (reply->server_inc == server->config.server_inc) {
		TH_MARK(server_finds_itself);
		peer->self = true;
		if (server->config.me == REFSRV_PEER_UNKNOWN)
			server->config.me = number;
		standby->standing.changes++;
		standby_look(server);
		return;
	}
	/* One that restarts again and again is not there. */
	if (peer->since_ns == INT64_MAX || peer->inc != reply->server_inc)
		peer->since_ns = server->live_ns;
	peer->heard_ns = server->live_ns;
	peer->inc = reply->server_inc;
	peer->epoch = reply->epoch;
	peer->serving = reply->serving;
	standby->epoch = th_max_u32(standby->epoch, reply->epoch);
	standby_look(server);
}

bool
standby_left_behind(
	struct refsrv *server, const struct agent *agent, const struct ctl_attach *attach)
{
	const struct standby *standby = &server->standby;

	if (standby->num_peers == 0 || agent == NULL || server->epoch == 0 ||
		attach->server_inc == server->config.server_inc ||
		attach->epoch <= agent->info.epoch)
		return false;
	uint32_t others = server->num_living - server->num_suspect - (agent->state == AGENT_ACTIVE);
	bool stood = standby->stood_ns != INT64_MIN &&
		     server->live_ns - standby->stood_ns < server->config.silence_ns;
	/* One agent with a bad link takes nothing from those that have been here all the time. */
	if (others > 0 && !stood)
		return false;
	TH_MARK(server_was_left_behind);
	standby_become(server, STANDBY_OVER,
		"agent %s was attached to a later server, with epoch %" PRIu32
		", this one has %" PRIu32 ": it forgets everything, and its agents begin anew",
		agent->info.node, attach->epoch, server->epoch);
	return true;
}

uint32_t
standby_epoch_heard(const struct refsrv *server)
{
	return server->standby.epoch;
}

/* ---- what is said to others ------------------------------------------------------------------ */

bool
standby_serves(const struct refsrv *server)
{
	return server->standby.state == STANDBY_SERVING;
}

bool
standby_answers(const struct ctl_request *request)
{
	if (request->kind == CTL_HELLO)
		return request->u.hello.server_inc != 0;
	return request->agent_inc == 0 &&
	       (request->kind == CTL_INSPECT ||
		       (request->kind == CTL_ADMIN && request->u.admin.verb == CTL_ADMIN_EVENTS));
}

int
standby_refuse(const struct refsrv *server, const struct ctl_request *request,
	struct ctl_reply *reply, struct th_err *err)
{
	reply->unknown_agent = request->kind != CTL_HELLO && request->agent_inc != 0;
	return th_fail(err, TH_E_NO_SERVER, "%s", server->standby.text);
}

uint32_t
standby_probes(struct refsrv *server, const struct refsrv_probe **ret_probes)
{
	struct standby *standby = &server->standby;
	bool serves = standby_serves(server);
	uint32_t count = 0;

	*ret_probes = standby->probes;
	if (standby->state == STANDBY_OVER)
		return 0;
	for (uint32_t i = 0; i < standby->num_peers; i++) {
		struct peer_server *peer = &standby->peers[i];
		if (peer->self || peer->asked || server->live_ns < peer->next_ns)
			continue;
		peer->asked = true;
		peer->asked_ns = server->live_ns;
		peer->next_ns = th_deadline_ns(server->live_ns, server->config.probe_ns);
		struct refsrv_probe *probe = &standby->probes[count++];
		*probe = (struct refsrv_probe){
			.peer = i,
			.hello =
				{
					.protocol_min = TH_PROTOCOL_MIN,
					.protocol_max = TH_PROTOCOL_MAX,
					.server_inc = server->config.server_inc,
					.epoch = serves ? server->epoch : standby->epoch,
					.serving = serves,
				},
		};
		memcpy(probe->hello.cluster, server->config.cluster, sizeof(probe->hello.cluster));
	}
	return count;
}

/* The earliest of those that lie ahead. */
static int64_t
ahead(const struct refsrv *server, int64_t next_ns, int64_t from_ns, int64_t ns)
{
	int64_t at_ns = th_deadline_ns(from_ns, ns);

	return at_ns > server->live_ns ? th_min_i64(next_ns, at_ns) : next_ns;
}

int64_t
standby_next_ns(const struct refsrv *server)
{
	const struct refsrv_config *config = &server->config;
	const struct standby *standby = &server->standby;
	int64_t next_ns = INT64_MAX;

	if (standby->num_peers == 0 || standby->state == STANDBY_OVER)
		return INT64_MAX;
	for (uint32_t i = 0; i < standby->num_peers; i++) {
		const struct peer_server *peer = &standby->peers[i];
		if (peer->self)
			continue;
		if (peer->asked)
			next_ns = ahead(server, next_ns, peer->asked_ns, 2 * config->probe_ns);
		else
			next_ns = th_min_i64(next_ns, peer->next_ns);
		next_ns = ahead(server, next_ns, th_max_i64(0, peer->heard_ns), config->silence_ns);
		if (peer->since_ns != INT64_MAX)
			next_ns = ahead(server, next_ns, peer->since_ns, config->return_ns);
	}
	return next_ns == INT64_MAX ? next_ns
				    : th_deadline_ns(server->now_ns, next_ns - server->live_ns);
}

void
standby_describe(const struct refsrv *server, struct ctl_inspection *inspection)
{
	const struct standby *standby = &server->standby;

	inspection->serving = standby_serves(server);
	inspection->epoch = inspection->serving ? server->epoch : standby->epoch;
	memcpy(inspection->server_text, standby->text, sizeof(inspection->server_text));
}

const struct refsrv_standing *
refsrv_standing(struct refsrv *server)
{
	struct standby *standby = &server->standby;
	struct refsrv_standing *standing = &standby->standing;

	if (standby->state == STANDBY_SERVING)
		standing->state = REFSRV_SERVING;
	else if (standby->state != STANDBY_OVER)
		standing->state =
			standby->state == STANDBY_WAITING ? REFSRV_STANDBY : REFSRV_ASKING;
	standing->epoch = standby->state == STANDBY_SERVING ? server->epoch : standby->epoch;
	standing->me = server->config.me;
	memcpy(standing->text, standby->text, sizeof(standing->text));
	return standing;
}

void
standby_check(const struct refsrv *server)
{
	const struct standby *standby = &server->standby;
	struct later later;

	if (standby->num_peers == 0)
		TH_ASSERT(standby->state == STANDBY_SERVING);
	/* Who does not serve holds nothing, and nobody waits for it. */
	if (standby->state == STANDBY_ASKING || standby->state == STANDBY_WAITING)
		TH_ASSERT(server->agents == NULL && server->models == NULL && server->epoch == 0);
	if (standby->state == STANDBY_OVER)
		TH_ASSERT(server->polls == NULL);
	/* It is over as soon as it knows of a later one. */
	if (standby->state == STANDBY_SERVING)
		TH_ASSERT(!find_later(server, &later));
	TH_ASSERT((standby->state == STANDBY_SERVING) == (standby->text[0] == '\0'));
}
