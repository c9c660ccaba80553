/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options_set - see options_set.h. Pure but for gethostname and getcwd.
 */
#include "daemon/host/config/options_set.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/config.h"
#include "ipc/base/log.h"
#include "ipc/base/name.h"
#include "ipc/base/path.h"
#include "ipc/base/units.h"
#include "ipc/proto/manifest.h"

#define RATE_MIN UINT64_C(10000000)

void
options_default(struct options *ret_options)
{
	*ret_options = (struct options){
		.runtime_dir = "/run/tensorhub",
		.datacenter = "default",
		.transport_local = true,
		.transport_rdma = true,
		.transport_tcp = true,
		.verify = true,
		.beat_ns = INT64_C(1000000000),
		.reply_ns = INT64_C(3000000000),
		.silent_ns = INT64_C(3000000000),
		.stall_ns = INT64_C(700000000),
		.dead_ns = INT64_C(5000000000),
		.drain_ns = INT64_C(30000000000),
		.offload_limit = UINT64_MAX,
		.borrow_limit = UINT64_MAX,
		.rdma = options_rdma_default(),
		.gpu = options_gpu_default(),
		.sessions_max = 512,
		.memory_objects_max = 16384,
		.tensors_max = MANIFEST_ROWS_MAX,
	};
	if (gethostname(ret_options->node, sizeof(ret_options->node) - 1) < 0)
		ret_options->node[0] = '\0';
}

/* ---- values of one kind ---------------------------------------------------------------------- */

static int
set_text(char *field, size_t size, const char *key, const char *value, struct th_err *err)
{
	if (strlen(value) == 0 || strlen(value) >= size)
		return th_fail(err, TH_E_INVALID, "%s: a value of 1 to %zu bytes is needed", key,
			size - 1);
	snprintf(field, size, "%s", value);
	return 0;
}

static int
set_name(char *field, size_t max, const char *key, const char *value, struct th_err *err)
{
	if (!th_name_valid(value, max))
		return th_fail(err, TH_E_INVALID,
			"%s: a name has 1 to %zu bytes of UTF-8 without control characters", key,
			max);
	snprintf(field, max + 1, "%s", value);
	return 0;
}

/* ---- the keys that mean more than their text ------------------------------------------------- */

/* nng takes no other, and this one is right in any folder. */
static int
set_folder(char *field, size_t size, const char *key, const char *value, struct th_err *err)
{
	char text[OPTIONS_TEXT_BYTES];
	int rc = set_text(text, sizeof(text), key, value, err);
	if (rc < 0)
		return rc;
	rc = th_path_absolute(text, field, size);
	return rc < 0 ? th_fail(err, TH_E_INVALID,
				"%s: \"%s\" cannot be told from the root on (%s); write the whole "
				"path",
				key, value, th_strerror(rc))
		      : 0;
}

static bool
is_server(const char *url)
{
	struct th_err why;
	uint32_t port;
	const char *rest = strncmp(url, "tls+", 4) == 0 ? url + 4 : url;
	if (strncmp(rest, "tcp://", 6) != 0)
		return false;
	const char *colon = strrchr(rest + 6, ':');
	return colon && colon > rest + 6 &&
	       config_number(&port, 1, UINT16_MAX, "port", colon + 1, &why) == 0;
}

static int
set_server(struct options *options, const char *key, const char *value, struct th_err *err)
{
	int rc = set_text(options->servers_text, sizeof(options->servers_text), key, value, err);
	if (rc < 0)
		return rc;
	options->num_servers = 0;
	char *at = options->servers_text, *url;
	while ((url = strsep(&at, ","))) {
		if (!is_server(url))
			return th_fail(err, TH_E_INVALID,
				"%s: \"%s\" is no address of a server; write tcp://HOST:PORT, "
				"several with commas between",
				key, url);
		if (options->num_servers == OPTIONS_SERVERS_MAX)
			return th_fail(err, TH_E_INVALID, "%s: more than %d servers", key,
				OPTIONS_SERVERS_MAX);
		options->servers[options->num_servers++] = url;
	}
	return 0;
}

static int
no_address(const char *key, const char *value, struct th_err *err)
{
	return th_fail(err, TH_E_INVALID,
		"%s: \"%s\" is neither a host nor a host and a port from 0 to 65535; write "
		"10.0.0.5, 10.0.0.5:7071 or [fd00::5]:7071",
		key, value);
}

static int
set_data(struct options *options, const char *key, const char *value, struct th_err *err)
{
	char host[OPTIONS_TEXT_BYTES];
	uint32_t port = 0;
	int rc = set_text(host, sizeof(host), key, value, err);
	if (rc < 0)
		return rc;
	/* "[v6]:port", "v4-or-name:port", or no port; a bare v6 address has more than one colon. */
	char *begin = host, *colon = strrchr(host, ':');
	if (host[0] == '[') {
		char *end = strchr(host, ']');
		if (!end || (end[1] != '\0' && end[1] != ':'))
			return no_address(key, value, err);
		colon = end[1] == ':' ? end + 1 : NULL;
		*end = '\0';
		begin++;
	} else if (colon && strchr(host, ':') != colon) {
		colon = NULL;
	}
	if (colon) {
		*colon = '\0';
		rc = config_number(&port, 0, UINT16_MAX, key, colon + 1, err);
	}
	if (rc < 0 || begin[0] == '\0')
		return no_address(key, value, err);
	memmove(options->data_host, begin, strlen(begin) + 1);
	options->data_port = (uint16_t)port;
	return 0;
}

/* What stands first is preferred; that only matters between hosts. */
static int
set_transport(struct options *options, const char *key, const char *value, struct th_err *err)
{
	char list[OPTIONS_TEXT_BYTES];
	int rc = set_text(list, sizeof(list), key, value, err);
	if (rc < 0)
		return rc;
	bool local = false, rdma = false, tcp = false, tcp_first = false;
	char *at = list, *one;
	while ((one = strsep(&at, ","))) {
		if (strcmp(one, "local") == 0)
			local = true;
		else if (strcmp(one, "tcp") == 0)
			tcp = true;
		else if (strcmp(one, "rdma") == 0)
			rdma = true;
		else
			return th_fail(err, TH_E_INVALID,
				"%s: there is no transport \"%s\"; use local,rdma,tcp", key, one);
		tcp_first = tcp_first || (tcp && !rdma);
	}
	options->transport_local = local;
	options->transport_rdma = rdma;
	options->transport_tcp = tcp;
	options->transport_tcp_first = tcp_first && rdma;
	return 0;
}

static int
set_verify(struct options *options, const char *key, const char *value, struct th_err *err)
{
	if (strcmp(value, "full") != 0 && strcmp(value, "off") != 0)
		return th_fail(err, TH_E_INVALID, "%s: \"%s\" is neither full nor off", key, value);
	options->verify = strcmp(value, "full") == 0;
	return 0;
}

static int
set_memory_limit(uint64_t *field, const char *key, const char *value, struct th_err *err)
{
	uint64_t bytes;
	/* The largest number means the default: no host has as much. */
	if (th_parse_size(value, &bytes) < 0 || bytes == UINT64_MAX)
		return th_fail(
			err, TH_E_INVALID, "%s: \"%s\" is no size (write 64GiB)", key, value);
	*field = bytes;
	return 0;
}

/* A share of less than a connection is given anyway would be no cap. */
static int
set_rate(uint64_t *field, const char *key, const char *value, struct th_err *err)
{
	uint64_t bytes;
	if (th_parse_size(value, &bytes) < 0 || (bytes != 0 && bytes < RATE_MIN))
		return th_fail(err, TH_E_INVALID,
			"%s: \"%s\" is no number of bytes a second from 10MB on (write 2GB), or 0 "
			"for "
			"no cap",
			key, value);
	*field = bytes;
	return 0;
}

static int
set_engine(struct options *options, const char *key, const char *value, struct th_err *err)
{
	options->io_uring = strcmp(value, "io_uring") == 0;
	if (!options->io_uring && strcmp(value, "epoll") != 0 && strcmp(value, "auto") != 0)
		return th_fail(err, TH_E_INVALID,
			"%s: \"%s\" is neither auto nor epoll nor io_uring", key, value);
	return 0;
}

static int
set_sendfile(struct options *options, const char *key, const char *value, struct th_err *err)
{
	options->sendfile_set = strcmp(value, "auto") != 0;
	if (options->sendfile_set && config_bool(&options->sendfile, key, value, err) < 0)
		return th_fail(
			err, TH_E_INVALID, "%s: \"%s\" is neither auto nor yes nor no", key, value);
	return 0;
}

/* Whether the kernel has it is asked at the start. */
static int
options_set_congestion(
	char field[OPTIONS_NAME_BYTES], const char *key, const char *value, struct th_err *err)
{
	size_t length = strlen(value);
	bool plain = strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789_-") == length;
	if (length == 0 || length >= OPTIONS_NAME_BYTES || !plain)
		return th_fail(err, TH_E_INVALID,
			"%s: \"%s\" is no name of a congestion control (write cubic, bbr)", key,
			value);
	snprintf(field, OPTIONS_NAME_BYTES, "%s", value);
	return 0;
}

const char *
options_far_name(enum options_far far)
{
	static const char *const names[] = {[OPTIONS_FAR_TCP] = "tcp",
		[OPTIONS_FAR_RDMA] = "rdma",
		[OPTIONS_FAR_AUTO] = "auto"};
	return names[far];
}

static int
set_far_transport(enum options_far *field, const char *key, const char *value, struct th_err *err)
{
	for (enum options_far i = OPTIONS_FAR_TCP; i <= OPTIONS_FAR_AUTO; i++) {
		if (strcmp(value, options_far_name(i)) == 0) {
			*field = i;
			return 0;
		}
	}
	return th_fail(
		err, TH_E_INVALID, "%s: \"%s\" is neither auto nor tcp nor rdma", key, value);
}

static int
options_set_log_level(const char *key, const char *value, struct th_err *err)
{
	enum log_level level;
	if (log_parse_level(value, &level) < 0)
		return th_fail(err, TH_E_INVALID, "%s: \"%s\" is not error, warn, info or debug",
			key, value);
	log_set_level(level);
	return 0;
}

static int
set_server_loss(struct options *options, const char *key, const char *value, struct th_err *err)
{
	options->server_loss_reset = strcmp(value, "reset") == 0;
	if (!options->server_loss_reset && strcmp(value, "rejoin") != 0)
		return th_fail(
			err, TH_E_INVALID, "%s: \"%s\" is neither rejoin nor reset", key, value);
	return 0;
}

/* ---- all keys -------------------------------------------------------------------------------- */

const char *const options_keys[] = {
	"server",
	"runtime_dir",
	"admin.group",
	"data",
	"node",
	"datacenter",
	"cluster",
	"spot",
	"offload.limit",
	"offload_limit", /* an older name of it */
	"borrow.limit",
	"transport",
	"verify",
	"verify.threads",
	"http",
	"log.level",
	"server.beat",
	"server.reply",
	"server.silent",
	"server_loss",
	"leg.stall",
	"leg.connections",
	"movers",
	"rdma",
	"rdma.devices",
	"rdma.rails",
	"rdma.gid_index",
	"rdma.link_local",
	"rdma.roce_v1",
	"rdma.mtu",
	"rdma.service_level",
	"rdma.traffic_class",
	"rdma.pkey_index",
	"rdma.timeout",
	"rdma.retries",
	"rdma.depth",
	"rdma.slice",
	"rdma.window",
	"rdma.stage",
	"gpu",
	"gpu.staging",
	"gpu.digest",
	"tcp.congestion",
	"tcp.engine",
	"tcp.sendfile",
	"tcp.timeout",
	"far.transport",
	"far.congestion",
	"far.connections",
	"far.limit",
	"rate.out",
	"rate.out.peer",
	"drain.timeout",
	"drain", /* its older name */
	"limit.sessions",
	"limit.memory_objects",
	"limit.tensors",
	NULL,
};

int
options_set(struct options *o, const char *key, const char *value, struct th_err *err)
{
#define IS(name) (strcmp(key, (name)) == 0)
	if (IS("server"))
		return set_server(o, "server (-s)", value, err);
	if (IS("runtime_dir"))
		return set_folder(
			o->runtime_dir, sizeof(o->runtime_dir), "runtime_dir (-r)", value, err);
	if (IS("admin.group"))
		return set_text(o->admin_group, sizeof(o->admin_group), key, value, err);
	if (IS("data"))
		return set_data(o, "data (-d)", value, err);
	if (IS("node"))
		return set_name(o->node, TH_NAME_MAX, key, value, err);
	if (IS("datacenter"))
		return set_name(o->datacenter, TH_NAME_MAX, key, value, err);
	if (IS("cluster"))
		return set_name(o->cluster, TH_CLUSTER_MAX, key, value, err);
	if (IS("spot"))
		return config_bool(&o->spot, key, value, err);
	if (IS("offload.limit") || IS("offload_limit"))
		return set_memory_limit(&o->offload_limit, key, value, err);
	if (IS("borrow.limit"))
		return set_memory_limit(&o->borrow_limit, key, value, err);
	if (IS("transport"))
		return set_transport(o, key, value, err);
	if (IS("verify"))
		return set_verify(o, key, value, err);
	if (IS("verify.threads"))
		return config_number(&o->hash_threads, 0, 16, key, value, err);
	if (IS("http"))
		return th_fail(err, TH_E_INVALID,
			"%s: metrics over HTTP are not built yet; leave it out", key);
	if (IS("log.level"))
		return options_set_log_level(key, value, err);
	if (IS("server.beat"))
		return config_duration(&o->beat_ns, 20000000, key, value, err);
	if (IS("server.reply"))
		return config_duration(&o->reply_ns, 100000000, key, value, err);
	if (IS("server.silent"))
		return config_duration(&o->silent_ns, 100000000, key, value, err);
	if (IS("server_loss"))
		return set_server_loss(o, key, value, err);
	if (IS("leg.stall"))
		return config_duration(&o->stall_ns, 50000000, key, value, err);
	if (IS("drain.timeout") || IS("drain"))
		return config_duration(&o->drain_ns, 0, key, value, err);
	if (IS("leg.connections"))
		return config_number(&o->connections, 0, 16, key, value, err);
	if (IS("movers"))
		return config_number(&o->movers, 0, 16, key, value, err);
	if (IS("rdma") || strncmp(key, "rdma.", 5) == 0)
		return options_rdma_set(&o->rdma, key, value, err);
	if (IS("gpu") || strncmp(key, "gpu.", 4) == 0)
		return options_gpu_set(&o->gpu, key, value, err);
	if (IS("tcp.congestion"))
		return options_set_congestion(o->congestion, key, value, err);
	if (IS("tcp.engine"))
		return set_engine(o, key, value, err);
	if (IS("tcp.sendfile"))
		return set_sendfile(o, key, value, err);
	if (IS("tcp.timeout"))
		return config_duration(&o->dead_ns, 1000000000, key, value, err);
	if (IS("far.transport"))
		return set_far_transport(&o->far_transport, key, value, err);
	if (IS("far.congestion"))
		return options_set_congestion(o->far_congestion, key, value, err);
	if (IS("far.connections"))
		return config_number(&o->far_connections, 0, 16, key, value, err);
	if (IS("far.limit"))
		return set_rate(&o->far_limit, key, value, err);
	if (IS("rate.out"))
		return set_rate(&o->rate_out, key, value, err);
	if (IS("rate.out.peer"))
		return set_rate(&o->rate_out_peer, key, value, err);
	if (IS("limit.sessions"))
		return config_number(&o->sessions_max, 1, 65536, key, value, err);
	if (IS("limit.memory_objects"))
		return config_number(&o->memory_objects_max, 1, 131072, key, value, err);
	if (IS("limit.tensors"))
		return config_number(&o->tensors_max, 1, MANIFEST_ROWS_MAX, key, value, err);
#undef IS
	return th_fail(err, TH_E_INVALID, "there is no key \"%s\"", key);
}

int
options_check(const struct options *options, struct th_err *err)
{
	if (options->num_servers == 0)
		return th_fail(err, TH_E_INVALID,
			"the reference server is not named; give --server tcp://HOST:PORT");
	if (!th_name_valid(options->node, TH_NAME_MAX))
		return th_fail(err, TH_E_INVALID,
			"this host has no usable name; give one with --node NAME");
	if (options->rdma.mode == OPTIONS_RDMA_ON && !options->transport_rdma)
		return th_fail(err, TH_E_INVALID,
			"rdma=on, and --transport leaves rdma out; name it there, or say "
			"rdma=auto");
	if (options->far_transport == OPTIONS_FAR_RDMA && !options->transport_rdma)
		return th_fail(err, TH_E_INVALID,
			"far.transport=rdma, and --transport leaves rdma out; name it there, or "
			"say far.transport=tcp");
	return options_rdma_check(&options->rdma, err);
}
