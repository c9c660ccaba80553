/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_options - see agent_options.h: the command line. What a key means is in options_set.c.
 * Start-up only.
 */
#include "daemon/host/config/agent_options.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/host/config/options_set.h"
#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"
#include "ipc/base/config.h"

/* Of libc: it must be seen outside this program, where everything else is hidden. */
__attribute__((visibility("default"))) const char *argp_program_version = "thagentd " TH_VERSION;

#define OPTIONS_FILE "/etc/tensorhub/thagentd.conf"

enum long_only { /* options without a letter */
	OPTION_SPOT = 256,
	OPTION_CLUSTER,
	OPTION_OFFLOAD_LIMIT,
	OPTION_TRANSPORT,
	OPTION_VERIFY,
	OPTION_HTTP,
};

static const struct argp_option known[] = {
	{"config", 'c', "FILE", 0, "read this file instead of " OPTIONS_FILE, 0},
	{"server", 's', "URL[,URL]", 0, "reference servers, in order of preference", 0},
	{"runtime-dir", 'r', "DIR", 0, "where workers find the agent (/run/tensorhub)", 0},
	{"data", 'd', "HOST[:PORT]", 0, "where other agents reach this one", 0},
	{"node", 'n', "NAME", 0, "name in listings (the host name)", 0},
	{"datacenter", 'D', "NAME", 0, "where this host is (default)", 0},
	{"cluster", OPTION_CLUSTER, "NAME", 0, "refuse servers of another one (none)", 0},
	{"spot", OPTION_SPOT, NULL, 0, "this host may vanish: it retains nothing", 0},
	{"offload-limit", OPTION_OFFLOAD_LIMIT, "SIZE", 0,
		"memory for offloaded copies, 0 for none (half of what is available)", 0},
	{"transport", OPTION_TRANSPORT, "LIST", 0,
		"of local,rdma,tcp in order of preference; what is left out is forbidden", 0},
	{"verify", OPTION_VERIFY, "full|off", 0, "check every chunk's digest (full)", 0},
	{"http", OPTION_HTTP, "HOST:PORT", 0, "not built yet", 0},
	{NULL, 'o', "KEY=VALUE", 0, "set a configuration key", 0},
	{NULL, 't', NULL, 0, "check the configuration and exit", 0},
	{0},
};

struct command_value { /* what the command line says, in its order */
	const char *key;
	const char *value;
};

struct command_line {
	const char *file;
	bool check;
	struct command_value *pairs; /* owns */
	size_t count;
	struct th_err *err;
	int rc;
};

static void
agent_options_add(struct command_line *line, const char *key, const char *value)
{
	line->pairs = th_realloc(line->pairs, line->count + 1, sizeof(line->pairs[0]));
	line->pairs[line->count++] = (struct command_value){key, value};
}

/* "key=value"; argv may be written to. */
static void
add_assignment(struct command_line *line, char *text)
{
	char *equals = strchr(text, '=');
	if (!equals || equals == text) {
		line->rc = th_fail(line->err, TH_E_INVALID, "-o %s: write KEY=VALUE", text);
		return;
	}
	*equals = '\0';
	agent_options_add(line, text, equals + 1);
}

static error_t
agent_options_on_option(int key, char *value, struct argp_state *state)
{
	static const struct {
		int key;
		const char *name;
	} plain[] = {
		{'s', "server"},
		{'r', "runtime_dir"},
		{'d', "data"},
		{'n', "node"},
		{'D', "datacenter"},
		{OPTION_CLUSTER, "cluster"},
		{OPTION_OFFLOAD_LIMIT, "offload.limit"},
		{OPTION_TRANSPORT, "transport"},
		{OPTION_VERIFY, "verify"},
		{OPTION_HTTP, "http"},
	};
	struct command_line *line = state->input;
	for (size_t i = 0; i < TH_ARRAY_LEN(plain); i++) {
		if (key == plain[i].key) {
			agent_options_add(line, plain[i].name, value);
			return 0;
		}
	}
	switch (key) {
	case 'c':
		line->file = value;
		return 0;
	case 't':
		line->check = true;
		return 0;
	case 'o':
		add_assignment(line, value);
		return 0;
	case OPTION_SPOT:
		agent_options_add(line, "spot", "yes");
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "%s: there are no arguments beside the options", value);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static int
agent_options_set_key(void *to, const char *key, const char *value, struct th_err *err)
{
	return options_set(to, key, value, err);
}

int
options_parse(int argc, char **argv, struct th_err *err, struct options *ret_options,
	enum options_outcome *ret_outcome)
{
	static const struct argp argp = {known, agent_options_on_option, NULL,
		"The TensorHub agent of one host: moves the weights of its workers.", NULL, NULL,
		NULL};
	const struct config config = {
		.program = "thagentd",
		.file = OPTIONS_FILE,
		.keys = options_keys,
		.set = agent_options_set_key,
		.to = ret_options,
	};
	struct command_line line = {.err = err};
	options_default(ret_options);
	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, &line);
	int rc = line.rc;
	if (rc == 0)
		rc = config_load(&config, line.file, err);
	for (size_t i = 0; rc == 0 && i < line.count; i++)
		rc = options_set(ret_options, line.pairs[i].key, line.pairs[i].value, err);
	free(line.pairs);
	if (rc == 0)
		rc = options_check(ret_options, err);
	*ret_outcome = line.check ? OPTIONS_CHECKED : OPTIONS_RUN;
	return rc;
}
