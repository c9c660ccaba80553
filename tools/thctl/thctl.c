/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thctl - main program: the command line and its verbs (see thctl.h and thctl(1)).
 *
 * Options that all verbs share may stand before the verb or behind it. argp parses twice: up to the
 * verb, and what follows with the options of that verb.
 */
#include "tools/thctl/thctl.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/clock.h"
#include "ipc/base/ctl.h"
#include "ipc/base/name.h"
#include "ipc/base/units.h"
#include "ipc/net/net.h"
#include "libthc/thc.h"

#define NS_PER_MS INT64_C(1000000)

enum option_key { /* of options without a letter */
	KEY_TIMEOUT = 0x100,
	KEY_MODEL,
	KEY_VERSION,
	KEY_REPLICA,
	KEY_SHARD,
	KEY_NUM_SHARDS,
	KEY_LINEAGE,
	KEY_RETAIN,
	KEY_HOLD,
	KEY_FORCE,
	KEY_REPLICAS,
	KEY_WATCH,
	KEY_YES,
	KEY_JOIN,
	KEY_LISTEN,
	KEY_NODE,
	KEY_DATACENTER,
};

static int run_version(struct thctl *ctl);

static const struct verb verb_version = {
	.name = "version",
	.summary = "print the version of thctl and of libthc",
	.run = run_version,
};

/* What the command line promises and this version cannot do yet: said, not hidden. */
#define NOT_BUILT(verb_name)                                                                       \
	{                                                                                          \
		.name = (verb_name), .arguments_max = THCTL_ARGUMENTS_MAX                          \
	}
static const struct verb verbs_not_built[] = {
	NOT_BUILT("top"),
	NOT_BUILT("doctor"),
	NOT_BUILT("config"),
};

static const struct verb *const verbs[] = {
	&verb_up,
	&verb_status,
	&verb_ls,
	&verb_publish,
	&verb_fetch,
	&verb_wait,
	&verb_drain,
	&verb_undrain,
	&verb_evict,
	&verb_go,
	&verb_plan,
	&verb_events,
	&verb_version,
};

void
thctl_say(const char *format, ...)
{
	va_list arguments;
	char *text;

	va_start(arguments, format);
	int rc = vasprintf(&text, format, arguments);
	va_end(arguments);
	if (rc < 0)
		return;
	/* A sentence may quote what other processes sent. */
	char *harmless = output_harmless(text);
	fprintf(stderr, "thctl: %s\n", harmless);
	free(harmless);
	free(text);
}

int
thctl_usage(const struct thctl *ctl, const char *format, ...)
{
	va_list arguments;
	char *text;

	va_start(arguments, format);
	int rc = vasprintf(&text, format, arguments);
	va_end(arguments);
	if (rc >= 0) {
		thctl_say("%s: %s; try: thctl %s --help", ctl->verb->name, text, ctl->verb->name);
		free(text);
	}
	return THCTL_USAGE;
}

static int
thctl_exit_of(int code)
{
	switch (code) {
	case 0:
		return THCTL_OK;
	case TH_E_NO_AGENT:
	case TH_E_AGENT_LOST:
		return THCTL_NO_AGENT;
	case TH_E_NO_SERVER:
		return THCTL_NO_SERVER;
	case TH_E_TIMEOUT:
	case TH_E_UNKNOWN:
	case -ETIMEDOUT:
		return THCTL_TIMED_OUT;
	case TH_E_DENIED:
	case -EACCES:
	case -EPERM:
		return THCTL_DENIED;
	default:
		return THCTL_FAILED;
	}
}

/* The next command to run; NULL where nothing general can be said. */
static char *
next_step(const struct thctl *ctl, int code)
{
	const char *model = ctl->model ? ctl->model : "MODEL";
	char *text = NULL;
	int rc = 0;

	switch (code) {
	case TH_E_NO_AGENT:
	case TH_E_AGENT_LOST:
		rc = asprintf(&text,
			"thctl up, which starts one, or name the directory of one that runs with "
			"-r "
			"or THC_AGENT%s%s",
			ctl->looked[0] != '\0' ? "; looked at " : "", ctl->looked);
		break;
	case TH_E_NO_SERVER:
		rc = asprintf(
			&text, "thctl -r %s status, and see that thserverd runs", ctl->runtime_dir);
		break;
	case TH_E_TIMEOUT:
	case TH_E_UNKNOWN:
		rc = asprintf(&text, "thctl ls versions %s, or a longer --timeout", model);
		break;
	case TH_E_NOT_AVAILABLE:
	case TH_E_VERSION_LOST:
		rc = asprintf(&text, "thctl ls versions %s", model);
		break;
	case TH_E_VERSION_CONFLICT:
		rc = asprintf(&text, "another --version, or a higher --lineage");
		break;
	case TH_E_GROUP_BROKEN:
	case TH_E_GROUP_MISMATCH:
		rc = asprintf(&text, "thctl ls workers %s, then start all shards again", model);
		break;
	case TH_E_DENIED:
		rc = asprintf(&text, "ls -ld %s", ctl->runtime_dir);
		break;
	default:
		break;
	}
	return rc < 0 ? NULL : text;
}

int
thctl_fail(const struct thctl *ctl, int code, const char *text)
{
	char *next = NULL;

	if (!strstr(text, "try") && !strstr(text, "thctl") && !strstr(text, "thagentd"))
		next = next_step(ctl, code);
	thctl_say("%s: %s%s%s", ctl->verb->name, text, next ? "; try: " : "", next ? next : "");
	free(next);
	return thctl_exit_of(code);
}

int64_t
thctl_left_ms(const struct thctl *ctl)
{
	if (ctl->timeout_ns < 0)
		return THC_FOREVER;
	int64_t left_ns = ctl->deadline_ns - th_now_ns();
	/* Rounded up: a started millisecond is still ours. */
	return left_ns <= 0 ? 0 : (left_ns + NS_PER_MS - 1) / NS_PER_MS;
}

int
thctl_print(const struct thctl *ctl, struct document *document)
{
	ctl->format->print(document, output_colour(STDOUT_FILENO), stdout);
	document_free(document);
	if (fflush(stdout) == 0 && !ferror(stdout))
		return THCTL_OK;
	thctl_say("%s: cannot write the output: %s", ctl->verb->name, strerror(errno));
	return THCTL_FAILED;
}

static int
run_version(struct thctl *ctl)
{
	struct document document;

	document_init(&document, "version");
	document_field(&document, "thctl", "thctl", value_text(TH_VERSION));
	document_field(&document, "libthc", "libthc", value_text(thc_version_string()));
	return thctl_print(ctl, &document);
}

/* ---- command line --------------------------------------------------------------------------- */

static const struct argp_option shared_options[] = {
	{"runtime-dir", 'r', "DIR", 0,
		"runtime directory of the agent ($THC_AGENT, else the first that is there of "
		"$XDG_RUNTIME_DIR/tensorhub, /tmp/tensorhub-UID, /run/tensorhub)",
		100},
	{"server", 's', "URL[,URL]", 0,
		"ask the reference server, of several the one that serves, not the agent", 100},
	{"output", 'o', "FORMAT", 0, "table, json or wide", 100},
	{"timeout", KEY_TIMEOUT, "DURATION", 0, "give up after so long, e.g. 500ms or 2m", 100},
	{0},
};

struct verb_option {
	uint32_t bit;
	struct argp_option option;
};

static const struct verb_option verb_options[] = {
	{THCTL_MODEL, {"model", KEY_MODEL, "M", 0, "the model", 1}},
	{THCTL_VERSION, {"version", KEY_VERSION, "V", 0, "a number, latest or latest-K", 1}},
	{THCTL_REPLICA, {"replica", KEY_REPLICA, "R", 0, "name of the replica", 1}},
	{THCTL_NUM_SHARDS, {"num-shards", KEY_NUM_SHARDS, "N", 0, "shards of the replica (1)", 1}},
	{THCTL_SHARD, {"shard", KEY_SHARD, "I", 0, "which of them, from 0", 1}},
	{THCTL_LINEAGE, {"lineage", KEY_LINEAGE, "N", 0, "run of the training (0)", 1}},
	{THCTL_RETAIN,
		{"retain", KEY_RETAIN, "RULES", 0, "versions to keep, e.g. latest,latest-1", 1}},
	{THCTL_HOLD, {"hold", KEY_HOLD, NULL, 0, "stay and serve it until a signal", 1}},
	{THCTL_FORCE, {"force", KEY_FORCE, NULL, 0, "replace OUT, or give up a last copy", 1}},
	{THCTL_REPLICAS, {"replicas", KEY_REPLICAS, "N", 0, "so many ready replicas (1)", 1}},
	{THCTL_WATCH, {"watch", KEY_WATCH, NULL, 0, "look on until it is done", 1}},
	{THCTL_YES, {"yes", KEY_YES, NULL, 0, "do not ask", 1}},
	{THCTL_JOIN, {"join", KEY_JOIN, "URL[,URL]", 0, "no server here: the agent joins it", 1}},
	{THCTL_LISTEN, {"listen", KEY_LISTEN, "HOST[:PORT]", 0,
			       "the address of this machine for others (none: loopback only)", 1}},
	{THCTL_NODE, {"node", KEY_NODE, "NAME", 0, "name in listings (HOST-UID; of root HOST)", 1}},
	{THCTL_DATACENTER,
		{"datacenter", KEY_DATACENTER, "NAME", 0, "where this machine is (default)", 1}},
	{THCTL_FOLLOW, {"follow", 'f', NULL, 0, "go on with what happens", 1}},
};

static void
thctl_parse_number(
	struct argp_state *state, const char *option, const char *text, uint64_t *ret_number)
{
	char *end;

	errno = 0;
	unsigned long long number = strtoull(text, &end, 10);
	/* strtoull takes signs and spaces, and turns "-1" into a very large number. */
	if (*text < '0' || *text > '9' || *end != '\0' || errno != 0)
		argp_error(state, "--%s: '%s' is not a number", option, text);
	else
		*ret_number = number;
}

static void
parse_name(struct argp_state *state, const char *option, const char *text, const char **ret_name)
{
	if (!th_name_valid(text, TH_NAME_MAX))
		argp_error(state, "--%s: a name has 1 to %d bytes, no control characters", option,
			TH_NAME_MAX);
	*ret_name = text;
}

static error_t
parse_shared(int key, char *text, struct argp_state *state)
{
	struct thctl *ctl = state->input;

	switch (key) {
	case 'r':
		ctl->runtime_dir = text;
		return 0;
	case 's':
		ctl->server = text;
		return 0;
	case 'o':
		ctl->format = output_find(text);
		if (!ctl->format)
			argp_error(state, "-o: '%s' is not table, json or wide", text);
		return 0;
	case KEY_TIMEOUT:
		if (th_parse_duration(text, &ctl->timeout_ns) < 0)
			argp_error(
				state, "--timeout: '%s' is not a duration like 500ms or 2m", text);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void
mark_given(struct thctl *ctl, int key)
{
	for (size_t i = 0; i < TH_ARRAY_LEN(verb_options); i++) {
		if (verb_options[i].option.key == key)
			ctl->given |= verb_options[i].bit;
	}
}

static error_t
parse_verb_option(int key, char *text, struct argp_state *state)
{
	struct thctl *ctl = state->input;

	mark_given(ctl, key);
	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = ctl;
		return 0;
	case KEY_MODEL:
		parse_name(state, "model", text, &ctl->model);
		return 0;
	case KEY_VERSION: {
		struct th_spec spec;
		if (th_spec_parse(text, &spec) < 0)
			argp_error(
				state, "--version: '%s' is not a number, latest or latest-K", text);
		ctl->version = text;
		return 0;
	}
	case KEY_REPLICA:
		parse_name(state, "replica", text, &ctl->replica);
		return 0;
	case KEY_SHARD:
		thctl_parse_number(state, "shard", text, &ctl->shard);
		return 0;
	case KEY_NUM_SHARDS:
		thctl_parse_number(state, "num-shards", text, &ctl->num_shards);
		return 0;
	case KEY_LINEAGE:
		thctl_parse_number(state, "lineage", text, &ctl->lineage);
		return 0;
	case KEY_JOIN:
		ctl->join = text;
		return 0;
	case KEY_LISTEN:
		ctl->listen = text;
		return 0;
	case KEY_NODE:
		parse_name(state, "node", text, &ctl->node);
		return 0;
	case KEY_DATACENTER:
		parse_name(state, "datacenter", text, &ctl->datacenter);
		return 0;
	case KEY_RETAIN:
		ctl->retain = text;
		return 0;
	case KEY_REPLICAS:
		thctl_parse_number(state, "replicas", text, &ctl->replicas);
		return 0;
	case KEY_HOLD:
	case KEY_FORCE:
	case KEY_WATCH:
	case KEY_YES:
	case 'f':
		return 0;
	case ARGP_KEY_ARG:
		if (ctl->num_arguments == ctl->verb->arguments_max)
			argp_error(state, "'%s' is one argument too many", text);
		else
			ctl->arguments[ctl->num_arguments++] = text;
		return 0;
	case ARGP_KEY_END:
		if (ctl->num_arguments < ctl->verb->arguments_min)
			argp_error(state, "%s is missing", ctl->verb->arguments);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp shared_argp = {.options = shared_options, .parser = parse_shared};
static const struct argp_child shared_child[] = {{.argp = &shared_argp, .group = 100}, {0}};

/* Parses what follows the verb. argp ends the process itself for --help and usage errors. */
static void
parse_verb(struct thctl *ctl, int argc, char **argv)
{
	struct argp_option options[TH_ARRAY_LEN(verb_options) + 1] = {{0}};
	size_t used = 0;

	for (size_t i = 0; i < TH_ARRAY_LEN(verb_options); i++) {
		if (ctl->verb->options & verb_options[i].bit)
			options[used++] = verb_options[i].option;
	}
	char *doc = NULL;
	if (asprintf(&doc, "%s.%s%s", ctl->verb->summary, ctl->verb->text ? "\v" : "",
		    ctl->verb->text ? ctl->verb->text : "") < 0)
		exit(THCTL_FAILED);
	struct argp argp = {
		.options = options,
		.parser = parse_verb_option,
		.args_doc = ctl->verb->arguments,
		.doc = doc,
		.children = shared_child,
	};
	/* For a verb --version is the version of a model. */
	argp_program_version = NULL;
	argp_parse(&argp, argc, argv, 0, NULL, ctl);
	free(doc);
}

static void
find_verb(struct thctl *ctl, const char *name, struct argp_state *state)
{
	for (size_t i = 0; i < TH_ARRAY_LEN(verbs); i++) {
		if (strcmp(verbs[i]->name, name) == 0)
			ctl->verb = verbs[i];
	}
	for (size_t i = 0; i < TH_ARRAY_LEN(verbs_not_built); i++) {
		if (strcmp(verbs_not_built[i].name, name) == 0) {
			thctl_say("%s is not built yet; see thctl --help for what is", name);
			exit(THCTL_FAILED);
		}
	}
	if (!ctl->verb)
		argp_error(state, "no verb '%s'", name);
}

static error_t
parse_main(int key, char *text, struct argp_state *state)
{
	struct thctl *ctl = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = ctl;
		return 0;
	case ARGP_KEY_ARG: {
		char *name;
		find_verb(ctl, text, state);
		if (asprintf(&name, "thctl %s", text) < 0)
			exit(THCTL_FAILED);
		/* The verb stands at next - 1; its place is taken by the name for messages. */
		char **rest = &state->argv[state->next - 1];
		rest[0] = name;
		parse_verb(ctl, state->argc - state->next + 1, rest);
		free(name);
		state->next = state->argc;
		return 0;
	}
	case ARGP_KEY_NO_ARGS:
		argp_usage(state);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* The list of verbs in --help comes from the table, so that it cannot be wrong. */
static char *
main_help(int key, const char *text, void *input)
{
	char *list = NULL;
	size_t bytes = 0;

	(void)input;
	if (key != ARGP_KEY_HELP_POST_DOC) {
		union {
			const char *in;
			char *out; /* the type of a filter; argp does not write to it */
		} same = {.in = text};
		return same.out;
	}
	FILE *to = open_memstream(&list, &bytes);
	if (!to)
		return NULL;
	fputs("Verbs:\n", to);
	for (size_t i = 0; i < TH_ARRAY_LEN(verbs); i++)
		fprintf(to, "  %-9s %s\n", verbs[i]->name, verbs[i]->summary);
	fputs("\nthctl VERB --help says more. Exit status: 0 ok, 1 failed, 2 usage, 3 no agent, "
	      "4 no server, 5 degraded, 6 timed out, 7 denied, 8 taken.\n",
		to);
	return fclose(to) == 0 ? list : NULL;
}

int
main(int argc, char **argv)
{
	static const struct argp argp = {
		.parser = parse_main,
		.args_doc = "VERB [ARGUMENT...]",
		.doc = "See and use the versions of model weights that agents and servers know.\v",
		.children = shared_child,
		.help_filter = main_help,
	};
	const char *agent = getenv("THC_AGENT");
	struct agent_dir found;
	struct thctl ctl = {
		.runtime_dir = agent && *agent ? agent : NULL,
		.format = &output_table,
		.timeout_ns = TH_FOREVER,
		.num_shards = 1,
		.replicas = 1,
	};

	argp_err_exit_status = THCTL_USAGE;
	argp_program_version = "thctl " TH_VERSION;
	argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &ctl);
	if (!ctl.runtime_dir) {
		agent_dir_find(&found, ctl.looked);
		ctl.runtime_dir = found.path;
	}
	ctl.deadline_ns = th_deadline_ns(th_now_ns(), ctl.timeout_ns);
	if (ctl.verb->agent_only && ctl.server)
		return thctl_usage(&ctl, "works through an agent only: -s cannot be given");
	/* Not by return: threads of nng may be there, and their end can hang. */
	net_exit(ctl.verb->run(&ctl));
}
