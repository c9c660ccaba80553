/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rpc - asking daemons over nng (see rpc.h).
 */
#include "tools/thctl/rpc.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/answer_pages.h"
#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/name.h"
#include "ipc/base/random.h"
#include "ipc/net/net.h"
#include "ipc/proto/convert.h"

#define ANSWER_NS INT64_C(5000000000) /* without --timeout: who looks does not wait for ever  */
#define CHOOSE_NS INT64_C(1500000000) /* one of several servers is not waited for longer*/

/* ---- an answer from its parts ---------------------------------------------------------------- */

struct parts_listing { /* starts as { 0 } */
	uint64_t generation;
	uint32_t num_versions, num_replicas, versions_max, replicas_max;
	struct ctl_version_info *versions; /* owns */
	struct ctl_replica_info *replicas; /* owns */
};

struct parts_inspection {            /* starts as { 0 } */
	struct ctl_inspection whole; /* its arrays are owned; texts stay the parts' */
	uint32_t nodes_max, members_max, transfers_max;
};

/* Room for `more` behind `used`, by doubling; the array may have moved. */
static void *
answer_parts_grow(void *array, uint32_t used, uint32_t more, uint32_t *max, size_t size)
{
	uint32_t wanted = used + more;

	if (wanted <= *max)
		return array;
	*max = th_max_u32(wanted, *max * 2);
	return th_realloc(array, *max, size);
}

/* Copies; a version that goes on from the part before becomes one again. */
static void
parts_add_listing(struct parts_listing *all, const struct ctl_listing *part)
{
	all->generation = part->generation;
	for (uint32_t v = 0; v < part->num_versions; v++) {
		const struct ctl_version_info *from = &part->versions[v];
		bool goes_on = v == 0 && all->num_versions > 0 &&
			       th_version_compare(all->versions[all->num_versions - 1].version,
				       from->version) == 0;
		if (!goes_on) {
			all->versions = answer_parts_grow(all->versions, all->num_versions, 1,
				&all->versions_max, sizeof(all->versions[0]));
			all->versions[all->num_versions] = *from;
			all->versions[all->num_versions++].num_replicas = 0;
		}
		if (from->num_replicas == 0)
			continue;
		all->replicas = answer_parts_grow(all->replicas, all->num_replicas,
			from->num_replicas, &all->replicas_max, sizeof(all->replicas[0]));
		memcpy(&all->replicas[all->num_replicas], from->replicas,
			from->num_replicas * sizeof(all->replicas[0]));
		all->num_replicas += from->num_replicas;
		all->versions[all->num_versions - 1].num_replicas += from->num_replicas;
	}
}

static void
parts_drop_listing(struct parts_listing *all)
{
	free(all->versions);
	free(all->replicas);
	*all = (struct parts_listing){0};
}

/* What was put together; points into it. */
static struct ctl_listing
parts_whole_listing(struct parts_listing *all)
{
	uint32_t next = 0;

	/* Only now: the array moved while it grew. */
	for (uint32_t v = 0; v < all->num_versions; v++) {
		all->versions[v].replicas = all->replicas == NULL ? NULL : &all->replicas[next];
		next += all->versions[v].num_replicas;
	}
	return (struct ctl_listing){
		.generation = all->generation,
		.num_versions = all->num_versions,
		.versions = all->versions,
	};
}

/* The struct has the arrays const, for its readers. */
static void *
answer_parts_writable(const void *array)
{
	void *same;

	memcpy(&same, &array, sizeof(same));
	return same;
}

static const void *
answer_parts_append(const void *array, uint32_t *used, uint32_t *max, const void *more,
	uint32_t count, size_t size)
{
	char *grown = answer_parts_writable(array);

	if (count == 0)
		return array;
	grown = answer_parts_grow(grown, *used, count, max, size);
	memcpy(grown + *used * size, more, count * size);
	*used += count;
	return grown;
}

static void
parts_add_inspection(struct parts_inspection *all, const struct ctl_inspection *part)
{
	struct ctl_inspection *whole = &all->whole;

	whole->server_inc = part->server_inc;
	whole->uptime_ns = part->uptime_ns;
	whole->serving = part->serving;
	whole->epoch = part->epoch;
	memcpy(whole->server_text, part->server_text, sizeof(whole->server_text));
	whole->num_counters = part->num_counters;
	memcpy(whole->counters, part->counters, sizeof(whole->counters));
	whole->nodes = answer_parts_append(whole->nodes, &whole->num_nodes, &all->nodes_max,
		part->nodes, part->num_nodes, sizeof(part->nodes[0]));
	whole->members = answer_parts_append(whole->members, &whole->num_members, &all->members_max,
		part->members, part->num_members, sizeof(part->members[0]));
	whole->transfers =
		answer_parts_append(whole->transfers, &whole->num_transfers, &all->transfers_max,
			part->transfers, part->num_transfers, sizeof(part->transfers[0]));
}

static void
parts_drop_inspection(struct parts_inspection *all)
{
	free(answer_parts_writable(all->whole.nodes));
	free(answer_parts_writable(all->whole.members));
	free(answer_parts_writable(all->whole.transfers));
	*all = (struct parts_inspection){0};
}

/* ---- questions ------------------------------------------------------------------------------- */

struct answer;

struct rpc {
	const struct thctl *ctl;
	bool worker; /* asks where workers do */
	struct net_client *client;
	int64_t deadline_ns;
	char url[NET_URL_BYTES];
	uint64_t tag;
	bool refused;               /* the last answer was a refusal */
	struct answer *answers;     /* owns */
	struct convert_arena admin; /* of the last operator's question */
};

struct answer { /* what a question's parts were put together to */
	struct answer *next;
	struct convert_arena *arenas; /* owns: one a part, each has its own limit */
	uint32_t num_arenas;
	struct parts_listing listing;
	struct parts_inspection inspection;
};

static int64_t
left_ns(const struct rpc *rpc)
{
	return th_max_i64(rpc->deadline_ns - th_now_ns(), 0);
}

/* What a failure means depends on whom we wanted. */
static int
fail_to_reach(const struct rpc *rpc, int code, const char *text, struct th_err *err)
{
	const struct thctl *ctl = rpc->ctl;

	if ((code == -EACCES || code == -EPERM) && !ctl->server && !rpc->worker)
		return th_fail(err, TH_E_DENIED,
			"%s may not be opened by this user (%s): it is the operators', which are "
			"root, the agent's user and the group of its key admin.group; or ask the "
			"server: thctl -s URL %s",
			rpc->url + strlen("ipc://"), text, ctl->verb->name);
	if (code == -EACCES || code == -EPERM)
		return th_fail(err, TH_E_DENIED, "may not connect to %s: %s", rpc->url, text);
	if (ctl->server)
		return th_fail(err, TH_E_NO_SERVER,
			"no reference server answers at %s (%s); try: thserverd -l %s", rpc->url,
			text, rpc->url);
	return th_fail(err, TH_E_NO_AGENT, "no agent answers at %s (%s)", rpc->url, text);
}

static int
set_server_url(struct rpc *rpc, const char *text, size_t length, struct th_err *err)
{
	const char *scheme = memmem(text, length, "://", 3) ? "" : "tcp://";
	int written = snprintf(rpc->url, sizeof(rpc->url), "%s%.*s", scheme,
		(int)th_min_u64(length, INT_MAX), text);

	if (written < 0 || written >= (int)sizeof(rpc->url))
		return th_fail(err, TH_E_INVALID, "the address '%s' is too long", text);
	struct th_err why;
	int rc = net_url_check(rpc->url, &why);
	return rc < 0 ? th_fail(err, rc, "-s, --server: %s", why.text) : 0;
}

static int
set_url(struct rpc *rpc, struct th_err *err)
{
	const struct thctl *ctl = rpc->ctl;
	struct stat st;

	if (ctl->server)
		return set_server_url(rpc, ctl->server, strlen(ctl->server), err);
	char *directory = realpath(ctl->runtime_dir, NULL);
	int written = snprintf(rpc->url, sizeof(rpc->url), "ipc://%s/%s",
		directory ? directory : ctl->runtime_dir, rpc->worker ? "agent.ipc" : "admin.ipc");
	free(directory);
	if (written >= (int)sizeof(rpc->url))
		return th_fail(err, TH_E_INVALID, "the address '%s' is too long", ctl->runtime_dir);
	/* nng says "not found" or "refused" for all of them. */
	if (stat(rpc->url + strlen("ipc://"), &st) < 0)
		return fail_to_reach(rpc, -errno, strerror(errno), err);
	if (access(rpc->url + strlen("ipc://"), W_OK) < 0)
		return fail_to_reach(rpc, -errno, strerror(errno), err);
	return 0;
}

/* ---- connecting ----------------------------------------------------------------------------- */

static char dial_sentence[512];
static int dial_status;

/* May run in any thread of nng: calls only what a signal handler may. */
static void
dial_took_too_long(int number)
{
	(void)number;
	ssize_t ignored = write(STDERR_FILENO, dial_sentence, strlen(dial_sentence));
	(void)ignored;
	_exit(dial_status);
}

/*
 * nng's first attempt to connect is the only one that tells why it failed, and it has no time
 * limit: an address that swallows packets takes the kernel's two minutes. So a timer ends the
 * process.
 */
static int
rpc_dial(struct rpc *rpc, struct th_err *err)
{
	struct sigaction action = {.sa_handler = dial_took_too_long};
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
	struct th_err inner = {0};
	timer_t timer;

	int64_t left = th_max_i64(left_ns(rpc), 1);
	struct itimerspec when = {
		.it_value = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000}};
	snprintf(dial_sentence, sizeof(dial_sentence),
		"thctl: %s: nothing answers at %s in time; try: another address, or a longer "
		"--timeout\n",
		rpc->ctl->verb->name, rpc->url);
	dial_status = rpc->ctl->server ? THCTL_NO_SERVER : THCTL_NO_AGENT;
	if (sigaction(SIGALRM, &action, NULL) < 0 ||
		timer_create(CLOCK_MONOTONIC, &event, &timer) < 0)
		return th_fail(err, -errno, "cannot set a timer: %s", strerror(errno));
	timer_settime(timer, 0, &when, NULL);
	int rc = net_client_dial(rpc->client, rpc->url, true, &inner);
	timer_delete(timer);
	if (rc == TH_E_INVALID)
		return th_fail(err, rc, "%s", inner.text);
	return rc < 0 ? fail_to_reach(rpc, rc, inner.text, err) : 0;
}

static void
answer_clear(struct answer *answer)
{
	for (uint32_t i = 0; i < answer->num_arenas; i++)
		convert_arena_free(&answer->arenas[i]);
	free(answer->arenas);
	answer->arenas = NULL;
	answer->num_arenas = 0;
	parts_drop_listing(&answer->listing);
	parts_drop_inspection(&answer->inspection);
}

static struct answer *
answer_new(struct rpc *rpc)
{
	struct answer *answer = th_calloc(1, sizeof(*answer));

	answer->next = rpc->answers;
	rpc->answers = answer;
	return answer;
}

static struct convert_arena *
answer_arena(struct answer *answer)
{
	answer->arenas =
		th_realloc(answer->arenas, answer->num_arenas + 1, sizeof(answer->arenas[0]));
	answer->arenas[answer->num_arenas] = (struct convert_arena){0};
	return &answer->arenas[answer->num_arenas++];
}

void
rpc_close(struct rpc *rpc)
{
	if (!rpc)
		return;
	while (rpc->answers) {
		struct answer *answer = rpc->answers;
		rpc->answers = answer->next;
		answer_clear(answer);
		free(answer);
	}
	convert_arena_free(&rpc->admin);
	net_client_free(rpc->client);
	free(rpc);
}

/* ---- asking --------------------------------------------------------------------------------- */

/* Waits for the answer to the tag that was sent last. item's data are borrowed. */
static int
rpc_await(struct rpc *rpc, struct th_err *err, struct net_client_item *ret_item)
{
	struct pollfd wake = {.fd = net_client_fd(rpc->client), .events = POLLIN};
	struct net_client_item item;

	for (;;) {
		while (net_client_next(rpc->client, &item)) {
			if (item.kind != NET_REPLY || item.tag != rpc->tag)
				continue;
			if (item.rc == -ETIMEDOUT)
				return th_fail(
					err, TH_E_TIMEOUT, "%s did not answer in time", rpc->url);
			if (item.rc < 0)
				return fail_to_reach(rpc, item.rc, th_strerror(item.rc), err);
			*ret_item = item;
			return 0;
		}
		/* The answer comes in any case: the client gives it a time limit. */
		if (poll(&wake, 1, -1) < 0 && errno != EINTR)
			return th_fail(
				err, -errno, "cannot wait for an answer: %s", strerror(errno));
	}
}

static int
rpc_exchange(struct rpc *rpc, const uint8_t *data, size_t bytes, struct th_err *err,
	struct net_client_item *ret_item)
{
	int rc = net_client_send(rpc->client, ++rpc->tag, data, bytes, left_ns(rpc));

	if (rc < 0)
		return th_fail(err, rc, "cannot ask %s: %s", rpc->url, th_strerror(rc));
	return rpc_await(rpc, err, ret_item);
}

static int
rpc_ask(struct rpc *rpc, struct ctl_request *request, struct convert_arena *arena,
	struct th_err *err, struct ctl_reply *ret_reply)
{
	struct net_client_item item;
	struct ctl_reply reply;
	uint8_t *data;
	size_t bytes;

	/* A number seen before would get the answer of then. */
	request->request_no = th_random_name();
	int rc = ctl_request_pack(request, &data, &bytes);
	if (rc < 0)
		return th_fail(err, rc, "cannot make the request: %s", th_strerror(rc));
	rc = rpc_exchange(rpc, data, bytes, err, &item);
	free(data);
	if (rc < 0)
		return rc;
	rc = ctl_reply_unpack(item.data, item.bytes, request->kind, arena, err, &reply);
	if (rc < 0)
		return rc;
	rpc->refused = reply.code < 0;
	if (rpc->refused)
		return th_fail(err, reply.code, "%s",
			reply.text[0] != '\0' ? reply.text : th_strerror(reply.code));
	*ret_reply = reply;
	return 0;
}

/*
 * Of several servers: the one that serves, and when none does, the first that says so. Each gets
 * its part of the time: one of them may be a host that is gone.
 */
static int
choose_server(struct rpc *rpc, struct th_err *err)
{
	struct ctl_request hello = {
		.kind = CTL_HELLO, .u.hello = {TH_PROTOCOL_MIN, TH_PROTOCOL_MAX, 0, 0, false}};
	const char *list = rpc->ctl->server, *at = list;
	int64_t deadline_ns = rpc->deadline_ns;
	char standby[NET_URL_BYTES] = "";
	struct th_err why = {0};

	for (;;) {
		size_t length = strcspn(at, ",");
		struct convert_arena arena = {0};
		struct ctl_reply reply;

		int rc = set_server_url(rpc, at, length, err);
		if (rc == 0)
			rc = net_client_dial(rpc->client, rpc->url, false, err);
		if (rc < 0)
			return rc; /* not an address */
		rpc->deadline_ns = th_min_i64(deadline_ns, th_now_ns() + CHOOSE_NS);
		rpc->refused = false;
		rc = rpc_ask(rpc, &hello, &arena, &why, &reply);
		convert_arena_free(&arena);
		rpc->deadline_ns = deadline_ns;
		if (rc == 0)
			return 0;
		if (rpc->refused && !standby[0])
			memcpy(standby, rpc->url, sizeof(standby));
		if (at[length] == '\0')
			break;
		at += length + 1;
	}
	if (!standby[0])
		return th_fail(err, TH_E_NO_SERVER,
			"no reference server of %s answers; try: thserverd", list);
	memcpy(rpc->url, standby, sizeof(rpc->url));
	return rpc_dial(rpc, err);
}

static int
open_as(const struct thctl *ctl, bool worker, struct th_err *err, struct rpc **ret_rpc)
{
	struct rpc *rpc = th_calloc(1, sizeof(*rpc));

	rpc->ctl = ctl;
	rpc->worker = worker;
	rpc->deadline_ns =
		ctl->timeout_ns < 0 ? th_deadline_ns(th_now_ns(), ANSWER_NS) : ctl->deadline_ns;
	int rc = net_client_new(NULL, err, &rpc->client);
	if (rc == 0 && ctl->server && strchr(ctl->server, ',')) {
		rc = choose_server(rpc, err);
	} else if (rc == 0) {
		rc = set_url(rpc, err);
		if (rc == 0)
			rc = rpc_dial(rpc, err);
	}
	if (rc < 0) {
		rpc_close(rpc);
		return rc;
	}
	*ret_rpc = rpc;
	return 0;
}

int
rpc_open(const struct thctl *ctl, struct th_err *err, struct rpc **ret_rpc)
{
	return open_as(ctl, false, err, ret_rpc);
}

int
rpc_open_worker(const struct thctl *ctl, struct th_err *err, struct rpc **ret_rpc)
{
	return open_as(ctl, true, err, ret_rpc);
}

const char *
rpc_url(const struct rpc *rpc)
{
	return rpc->url;
}

static int
one_part(struct rpc *rpc, struct pages *pages, struct ctl_request *request, struct answer *answer,
	struct th_err *err)
{
	struct ctl_reply reply;
	int rc = rpc_ask(rpc, request, answer_arena(answer), err, &reply);

	if (rc < 0) {
		if (!pages_restart(pages, rc))
			return rc;
		answer_clear(answer);
		return 1;
	}
	if (request->kind == CTL_LIST) {
		const struct ctl_listing *part = &reply.u.list;
		uint64_t entries = 0;
		for (uint32_t v = 0; v < part->num_versions; v++)
			entries += part->versions[v].num_replicas;
		rc = pages_take(pages, part->page, entries, part->generation, err);
		if (rc >= 0)
			parts_add_listing(&answer->listing, part);
		return rc;
	}
	const struct ctl_inspection *part = &reply.u.inspect;
	rc = pages_take(pages, part->page,
		(uint64_t)part->num_nodes + part->num_members + part->num_transfers,
		part->server_inc, err);
	if (rc >= 0)
		parts_add_inspection(&answer->inspection, part);
	return rc;
}

int
rpc_listing(struct rpc *rpc, const char *model, struct th_err *err, struct ctl_listing *ret_listing)
{
	struct answer *answer = answer_new(rpc);
	struct pages pages = {0};
	int rc;

	do {
		struct ctl_request request = {.kind = CTL_LIST};
		if (th_name_copy(request.u.list.model, model) != 0)
			return th_fail(err, TH_E_INVALID, "'%s' is no name of a model", model);
		request.u.list.page = pages.ask;
		rc = one_part(rpc, &pages, &request, answer, err);
	} while (rc > 0);
	if (rc == 0)
		*ret_listing = parts_whole_listing(&answer->listing);
	return rc;
}

int
rpc_inspection(struct rpc *rpc, struct th_err *err, struct ctl_inspection *ret_inspection)
{
	struct answer *answer = answer_new(rpc);
	struct pages pages = {0};
	int rc;

	do {
		struct ctl_request request = {.kind = CTL_INSPECT, .u.inspect = pages.ask};
		rc = one_part(rpc, &pages, &request, answer, err);
	} while (rc > 0);
	if (rc == 0)
		*ret_inspection = answer->inspection.whole;
	return rc;
}

int
rpc_admin(struct rpc *rpc, const struct ctl_admin *admin, struct th_err *err,
	struct ctl_admin_reply *ret_reply)
{
	struct ctl_request request = {.kind = CTL_ADMIN, .u.admin = *admin};
	struct ctl_reply reply;

	rpc->deadline_ns = th_deadline_ns(th_now_ns(), ANSWER_NS);
	convert_arena_free(&rpc->admin);
	int rc = rpc_ask(rpc, &request, &rpc->admin, err, &reply);
	if (rc == 0)
		*ret_reply = reply.u.admin;
	return rc;
}

int
rpc_status(struct rpc *rpc, struct th_err *err, Tensorhub__V1__Reply **ret_reply)
{
	Tensorhub__V1__Request request;
	Tensorhub__V1__Status status;
	struct net_client_item item;

	tensorhub__v1__request__init(&request);
	tensorhub__v1__status__init(&status);
	request.request_no = th_random_name();
	request.body_case = TENSORHUB__V1__REQUEST__BODY_STATUS;
	request.status = &status;
	size_t bytes = tensorhub__v1__request__get_packed_size(&request);
	uint8_t *data = th_calloc(bytes, 1);
	tensorhub__v1__request__pack(&request, data);
	int rc = rpc_exchange(rpc, data, bytes, err, &item);
	free(data);
	if (rc < 0)
		return rc;
	Tensorhub__V1__Reply *reply = tensorhub__v1__reply__unpack(NULL, item.bytes, item.data);
	if (!reply)
		return th_fail(
			err, -EPROTO, "%s answered with something else than a reply", rpc->url);
	if (reply->code < 0)
		rc = th_fail(err, reply->code, "%s",
			*reply->text ? reply->text : th_strerror(reply->code));
	else if (reply->body_case != TENSORHUB__V1__REPLY__BODY_STATUS)
		rc = th_fail(err, -EPROTO, "%s answered something else than was asked", rpc->url);
	if (rc < 0) {
		tensorhub__v1__reply__free_unpacked(reply, NULL);
		return rc;
	}
	*ret_reply = reply;
	return 0;
}
