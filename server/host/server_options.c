/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server_options - see server_options.h. Every key is one row of a table; the option letters are
 * keys too. Start-up only.
 */
#include "server/host/server_options.h"

#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/alloc.h"
#include "ipc/base/config.h"
#include "ipc/base/log.h"
#include "ipc/base/name.h"

#define OPTIONS_FILE "/etc/tensorhub/thserverd.conf"
#define EVENT_BYTES_LEAST (UINT64_C(16) << 20)   /* less would give up ordinary agents */
#define SNAPSHOT_BYTES_LEAST (UINT64_C(1) << 20) /* less would refuse ordinary listings */
#define LISTEN_DEFAULT "tcp://127.0.0.1:7070"

/* Visible: argp looks for it from inside libc. */
__attribute__((visibility("default"))) const char *argp_program_version = "thserverd " TH_VERSION;

/* ---- keys --------------------------------------------------------------------------------- */

enum key {
	KEY_LISTEN,
	KEY_CLUSTER,
	KEY_PEERS,
	KEY_PEERS_PROBE,
	KEY_PEERS_SILENCE,
	KEY_PEERS_RETURN,
	KEY_HTTP,
	KEY_LOG_LEVEL,
	KEY_LEASE_SUSPECT,
	KEY_LEASE_DEAD,
	KEY_LEASE_GONE,
	KEY_LEASE_WARM,
	KEY_POLL_HOLD,
	KEY_EVENTS_COALESCE,
	KEY_ROUTE_PAIR_BLOCK,
	KEY_ROUTE_CRAWL,
	KEY_ROUTE_SKIP,
	KEY_ROUTE_PIPELINING,
	KEY_RETAIN_SUCCESSOR_COPIES,
	KEY_RETAIN_GRACE,
	KEY_RETAIN_RESCUE,
	KEY_RETAIN_RESCUE_SPOT,
	KEY_RETAIN_RELEASE_AFTER,
	KEY_RETAIN_OFFLOAD_TIMEOUT,
	KEY_LIMIT_AGENTS,
	KEY_LIMIT_MEMBERS,
	KEY_LIMIT_MEMBERS_PER_AGENT,
	KEY_LIMIT_BLOB_BYTES,
	KEY_LIMIT_EVENT_BYTES,
	KEY_LIMIT_SNAPSHOT_BYTES,
	KEY_LIMIT_REQUESTS,
	KEYS,
};

static const char *const keys[KEYS + 1] = {
	[KEY_LISTEN] = "listen",
	[KEY_CLUSTER] = "cluster",
	[KEY_PEERS] = "peers",
	[KEY_PEERS_PROBE] = "peers.probe",
	[KEY_PEERS_SILENCE] = "peers.silence",
	[KEY_PEERS_RETURN] = "peers.return",
	[KEY_HTTP] = "http",
	[KEY_LOG_LEVEL] = "log.level",
	[KEY_LEASE_SUSPECT] = "lease.suspect",
	[KEY_LEASE_DEAD] = "lease.dead",
	[KEY_LEASE_GONE] = "lease.gone",
	[KEY_LEASE_WARM] = "lease.warm",
	[KEY_POLL_HOLD] = "poll.hold",
	[KEY_EVENTS_COALESCE] = "events.coalesce",
	[KEY_ROUTE_PAIR_BLOCK] = "route.pair_block",
	[KEY_ROUTE_CRAWL] = "route.crawl",
	[KEY_ROUTE_SKIP] = "route.skip",
	[KEY_ROUTE_PIPELINING] = "route.pipelining",
	[KEY_RETAIN_SUCCESSOR_COPIES] = "retain.successor_copies",
	[KEY_RETAIN_GRACE] = "retain.grace",
	[KEY_RETAIN_RESCUE] = "retain.rescue",
	[KEY_RETAIN_RESCUE_SPOT] = "retain.rescue_spot",
	[KEY_RETAIN_RELEASE_AFTER] = "retain.release_after",
	[KEY_RETAIN_OFFLOAD_TIMEOUT] = "retain.offload_timeout",
	[KEY_LIMIT_AGENTS] = "limit.agents",
	[KEY_LIMIT_MEMBERS] = "limit.members",
	[KEY_LIMIT_MEMBERS_PER_AGENT] = "limit.members_per_agent",
	[KEY_LIMIT_BLOB_BYTES] = "limit.blob_bytes",
	[KEY_LIMIT_EVENT_BYTES] = "limit.event_bytes",
	[KEY_LIMIT_SNAPSHOT_BYTES] = "limit.snapshot_bytes",
	[KEY_LIMIT_REQUESTS] = "limit.requests",
};

/* URL[,URL]: each is checked by whoever opens it, the shape here so that -t finds a mistake. what:
 * the key, and the option that is the same. */
static int
set_urls(const char *what, const char *value, uint32_t max, struct th_err *err,
	char (*ret_urls)[NET_URL_BYTES], uint32_t *ret_count)
{
	const char *at = value;
	struct th_err why;
	uint32_t count = 0;

	for (;;) {
		size_t length = strcspn(at, ",");
		char url[NET_URL_BYTES];
		int rc;

		if (count == max)
			return th_fail(err, TH_E_INVALID, "%s: more than %" PRIu32 " addresses",
				what, max);
		if (length >= sizeof(url))
			return th_fail(err, TH_E_INVALID, "%s: an address is too long", what);
		memcpy(url, at, length);
		url[length] = '\0';
		rc = net_url_check(url, &why);
		if (rc != 0)
			return th_fail(err, rc, "%s: %s", what, why.text);
		memcpy(ret_urls[count++], url, length + 1);
		if (at[length] == '\0')
			break;
		at += length + 1;
	}
	*ret_count = count;
	return 0;
}

static int
set_listen(struct options *options, const char *value, struct th_err *err)
{
	return set_urls("listen (-l)", value, OPTIONS_LISTEN_MAX, err, options->listen,
		&options->num_listen);
}

static int
set_peers(struct options *options, enum key key, const char *value, struct th_err *err)
{
	struct refsrv_config *core = &options->core;

	switch ((int)key) {
	case KEY_PEERS_PROBE:
		return config_duration(&core->probe_ns, INT64_C(20000000), keys[key], value, err);
	case KEY_PEERS_SILENCE:
		return config_duration(
			&core->silence_ns, INT64_C(100000000), keys[key], value, err);
	case KEY_PEERS_RETURN:
		return config_duration(&core->return_ns, INT64_C(100000000), keys[key], value, err);
	default:
		return set_urls("peers (--peers)", value, OPTIONS_PEERS_MAX, err, options->peers,
			&options->num_peers);
	}
}

static int
set_cluster(struct refsrv_config *core, const char *value, struct th_err *err)
{
	if (!th_name_valid(value, TH_CLUSTER_MAX))
		return th_fail(err, TH_E_INVALID,
			"cluster: a name has 1 to %d bytes of UTF-8 without control characters",
			TH_CLUSTER_MAX);
	snprintf(core->cluster, sizeof(core->cluster), "%s", value);
	return 0;
}

static int
server_options_set_log_level(const char *value, struct th_err *err)
{
	enum log_level level;

	if (log_parse_level(value, &level) < 0)
		return th_fail(err, TH_E_INVALID,
			"log.level: \"%s\" is not error, warn, info or debug", value);
	log_set_level(level);
	return 0;
}

static int
set_lease(struct refsrv_config *core, enum key key, const char *value, struct th_err *err)
{
	const char *name = keys[key];

	switch ((int)key) {
	case KEY_LEASE_SUSPECT:
		return config_duration(&core->suspect_ns, INT64_C(100000000), name, value, err);
	case KEY_LEASE_DEAD:
		return config_duration(&core->dead_ns, INT64_C(200000000), name, value, err);
	case KEY_ROUTE_CRAWL:
		return config_duration(&core->crawl_ns, INT64_C(100000000), name, value, err);
	case KEY_ROUTE_SKIP:
		return config_duration(&core->skip_ns, 0, name, value, err);
	case KEY_LEASE_WARM:
		return config_duration(&core->warm_ns, 0, name, value, err);
	case KEY_LEASE_GONE:
		return config_duration(&core->gone_ns, INT64_C(50000000), name, value, err);
	case KEY_POLL_HOLD:
		return config_duration(&core->poll_hold_ns, INT64_C(10000000), name, value, err);
	case KEY_EVENTS_COALESCE:
		return config_duration(&core->coalesce_ns, 0, name, value, err);
	default:
		return config_duration(&core->pair_block_ns, 0, name, value, err);
	}
}

static int
set_retain(struct refsrv_config *core, enum key key, const char *value, struct th_err *err)
{
	const char *name = keys[key];

	switch ((int)key) {
	case KEY_RETAIN_SUCCESSOR_COPIES:
		return config_number(&core->successor_copies, 1, 64, name, value, err);
	case KEY_RETAIN_GRACE:
		return config_duration(&core->grace_ns, 0, name, value, err);
	case KEY_RETAIN_RESCUE:
		return config_duration(&core->rescue_ns, 0, name, value, err);
	case KEY_RETAIN_RESCUE_SPOT:
		return config_bool(&core->rescue_spot, name, value, err);
	case KEY_RETAIN_RELEASE_AFTER:
		return config_duration(&core->release_ns, INT64_C(10000000), name, value, err);
	default:
		return config_duration(&core->offload_ns, INT64_C(1000000000), name, value, err);
	}
}

static int
server_options_set_key(struct options *options, enum key key, const char *value, struct th_err *err)
{
	struct refsrv_config *core = &options->core;
	const char *name = keys[key];

	switch (key) {
	case KEY_LISTEN:
		return set_listen(options, value, err);
	case KEY_CLUSTER:
		return set_cluster(core, value, err);
	case KEY_PEERS:
	case KEY_PEERS_PROBE:
	case KEY_PEERS_SILENCE:
	case KEY_PEERS_RETURN:
		return set_peers(options, key, value, err);
	case KEY_HTTP:
		return th_fail(err, TH_E_INVALID,
			"http: metrics over HTTP are not built yet; leave it out");
	case KEY_LOG_LEVEL:
		return server_options_set_log_level(value, err);
	case KEY_LEASE_SUSPECT:
	case KEY_LEASE_DEAD:
	case KEY_LEASE_GONE:
	case KEY_LEASE_WARM:
	case KEY_POLL_HOLD:
	case KEY_EVENTS_COALESCE:
	case KEY_ROUTE_PAIR_BLOCK:
	case KEY_ROUTE_CRAWL:
	case KEY_ROUTE_SKIP:
		return set_lease(core, key, value, err);
	case KEY_ROUTE_PIPELINING:
		return config_bool(&core->pipelining, name, value, err);
	case KEY_RETAIN_SUCCESSOR_COPIES:
	case KEY_RETAIN_GRACE:
	case KEY_RETAIN_RESCUE:
	case KEY_RETAIN_RESCUE_SPOT:
	case KEY_RETAIN_RELEASE_AFTER:
	case KEY_RETAIN_OFFLOAD_TIMEOUT:
		return set_retain(core, key, value, err);
	case KEY_LIMIT_AGENTS:
		return config_number(&core->agents_max, 1, 1u << 20, name, value, err);
	case KEY_LIMIT_MEMBERS:
		return config_number(&core->members_max, 1, 1u << 24, name, value, err);
	case KEY_LIMIT_MEMBERS_PER_AGENT:
		return config_number(&core->members_per_agent_max, 1, 1u << 16, name, value, err);
	case KEY_LIMIT_BLOB_BYTES:
		return config_size(
			&core->blob_bytes_max, TH_PART_BYTES_MAX, UINT64_MAX, name, value, err);
	case KEY_LIMIT_EVENT_BYTES:
		return config_size(
			&core->event_bytes_max, EVENT_BYTES_LEAST, UINT64_MAX, name, value, err);
	case KEY_LIMIT_SNAPSHOT_BYTES:
		return config_size(&core->snapshot_bytes_max, SNAPSHOT_BYTES_LEAST, UINT64_MAX,
			name, value, err);
	case KEY_LIMIT_REQUESTS:
		return config_number(&options->net.contexts_max, 1, 1u << 16, name, value, err);
	case KEYS:
		break;
	}
	return th_fail(err, TH_E_INVALID, "there is no such key");
}

static int
set_named(void *to, const char *name, const char *value, struct th_err *err)
{
	for (int key = 0; key < KEYS; key++)
		if (strcmp(keys[key], name) == 0)
			return server_options_set_key(to, (enum key)key, value, err);
	return th_fail(err, TH_E_INVALID, "there is no key \"%s\"", name);
}

/* ---- the command line --------------------------------------------------------------------- */

enum long_only { OPTION_PEERS = 256, OPTION_CLUSTER, OPTION_HTTP };

static const struct argp_option known[] = {
	{"config", 'c', "FILE", 0, "read this file instead of " OPTIONS_FILE, 0},
	{"listen", 'l', "URL", 0, "listen here (" LISTEN_DEFAULT "); may be repeated", 0},
	{"peers", OPTION_PEERS, "URL[,URL]", 0,
		"all servers in order of preference, this one included", 0},
	{"cluster", OPTION_CLUSTER, "NAME", 0, "refuse agents and servers of another one (none)",
		0},
	{"http", OPTION_HTTP, "HOST:PORT", 0, "not built yet", 0},
	{NULL, 'o', "KEY=VALUE", 0, "set a configuration key", 0},
	{NULL, 't', NULL, 0, "check the configuration and exit", 0},
	{0},
};

struct command_line { /* what the command line says; it wins, so it is applied last */
	const char *file;
	bool check_only;
	char *listen; /* owns: URLs with commas between them */
	struct pair {
		char *key; /* owns */
		const char *value;
	} * pairs; /* owns */
	size_t count;
};

static void
server_options_add(struct command_line *line, const char *key, const char *value)
{
	line->pairs = th_realloc(line->pairs, line->count + 1, sizeof(line->pairs[0]));
	line->pairs[line->count++] = (struct pair){th_strdup(key), value};
}

static void
add_listen(struct command_line *line, const char *url)
{
	size_t had = line->listen == NULL ? 0 : strlen(line->listen) + 1;

	line->listen = th_realloc(line->listen, had + strlen(url) + 1, 1);
	if (had > 0)
		line->listen[had - 1] = ',';
	memcpy(line->listen + had, url, strlen(url) + 1);
}

static error_t
server_options_on_option(int key, char *value, struct argp_state *state)
{
	struct command_line *line = state->input;
	const char *equals;

	switch (key) {
	case 'c':
		line->file = value;
		return 0;
	case 'l':
		add_listen(line, value);
		return 0;
	case 't':
		line->check_only = true;
		return 0;
	case OPTION_PEERS:
		server_options_add(line, keys[KEY_PEERS], value);
		return 0;
	case OPTION_CLUSTER:
		server_options_add(line, keys[KEY_CLUSTER], value);
		return 0;
	case OPTION_HTTP:
		server_options_add(line, keys[KEY_HTTP], value);
		return 0;
	case 'o':
		equals = strchr(value, '=');
		if (equals == NULL || equals == value)
			argp_error(state, "-o %s: write KEY=VALUE", value);
		server_options_add(line, value, equals + 1);
		line->pairs[line->count - 1].key[equals - value] = '\0';
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "%s: there are no arguments beside the options", value);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static bool
listens_at(const struct options *options, const char *url)
{
	for (uint32_t i = 0; i < options->num_listen; i++) {
		if (strcmp(options->listen[i], url) == 0)
			return true;
	}
	return false;
}

/*
 * Which of the list is this server? Perhaps another name or address of it is listed: then its own
 * answer to a question to all of them will tell.
 */
static int
check_peers(struct options *options, struct th_err *err)
{
	struct refsrv_config *core = &options->core;

	core->me = REFSRV_PEER_UNKNOWN;
	for (uint32_t i = 0; i < options->num_peers; i++) {
		for (uint32_t j = 0; j < i; j++) {
			if (strcmp(options->peers[i], options->peers[j]) == 0)
				return th_fail(err, TH_E_INVALID, "peers: %s stands there twice",
					options->peers[i]);
		}
		if (!listens_at(options, options->peers[i]))
			continue;
		if (core->me != REFSRV_PEER_UNKNOWN)
			return th_fail(err, TH_E_INVALID,
				"peers: %s and %s are both this server; name each server once",
				options->peers[core->me], options->peers[i]);
		core->me = i;
	}
	if (options->num_peers == 1 && core->me == 0)
		options->num_peers = 0; /* there is no other */
	for (uint32_t i = 0; options->num_peers > 0 && i < options->num_listen; i++) {
		if (strcmp(strrchr(options->listen[i], ':'), ":0") == 0)
			return th_fail(err, TH_E_INVALID,
				"listen: %s: a server with peers must be found by them; write a "
				"port "
				"instead of 0",
				options->listen[i]);
	}
	if (core->silence_ns <= core->probe_ns)
		return th_fail(err, TH_E_INVALID, "peers.silence must be longer than peers.probe");
	return 0;
}

static int
server_options_check(struct options *options, struct th_err *err)
{
	if (options->core.dead_ns <= options->core.suspect_ns)
		return th_fail(err, TH_E_INVALID, "lease.dead must be longer than lease.suspect");
	return check_peers(options, err);
}

int
options_parse(int argc, char **argv, struct th_err *err, struct options *ret_options)
{
	static const struct argp argp = {known, server_options_on_option, NULL,
		"The TensorHub reference server: knows who holds which weights.", NULL, NULL, NULL};
	struct options options = {.num_listen = 1, .listen = {LISTEN_DEFAULT}};
	struct config config = {"thserverd", OPTIONS_FILE, keys, set_named, &options};
	struct command_line line = {0};
	int rc;

	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, &line);
	options.check_only = line.check_only;
	refsrv_config_default(&options.core);
	net_server_options_default(&options.net);
	rc = config_load(&config, line.file, err);
	for (size_t i = 0; rc == 0 && i < line.count; i++)
		rc = set_named(&options, line.pairs[i].key, line.pairs[i].value, err);
	if (rc == 0 && line.listen != NULL)
		rc = set_listen(&options, line.listen, err);
	if (rc == 0)
		rc = server_options_check(&options, err);
	for (size_t i = 0; i < line.count; i++)
		free(line.pairs[i].key);
	free(line.pairs);
	free(line.listen);
	if (rc == 0)
		*ret_options = options;
	return rc;
}
