/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench - main program: the command line and its verbs (see thbench.h and thbench(1)).
 */
#include "tools/bench/thbench.h"

#include <argp.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/units.h"
#include "tools/bench/thbench_raw.h"
#include "tools/find_daemon.h"
#include "tools/thctl/output.h"

#define VERBS_MAX 16u
#define ROUNDS_MAX 1000u
#define THREADS_MAX 64u
#define BLOCK_MAX (UINT64_C(1) << 30)

enum option_key { /* of options without a letter */
	KEY_BYTES = 0x100,
	KEY_ROUNDS,
	KEY_TENSOR,
	KEY_BLOCK,
	KEY_CONNECTIONS,
	KEY_THREADS,
	KEY_CURVE,
	KEY_SHAPES,
	KEY_LINK,
	KEY_READERS,
	KEY_PEERS,
	KEY_PYTHON,
};

static const struct bench_verb *const verbs[] = {
	&bench_pair,
	&bench_local,
	&bench_digest,
	&bench_cast,
	&bench_ring,
	&bench_control,
	&bench_pause,
	&bench_fanout,
	&bench_failover,
	&bench_peers,
};

struct command_line {
	struct bench_options *options;
	const struct bench_verb *verbs[VERBS_MAX];
	uint32_t num_verbs;
};

/* ---- sentences ------------------------------------------------------------------------------ */

static void
say_list(const char *format, va_list arguments)
{
	char *text;

	if (vasprintf(&text, format, arguments) < 0)
		return;
	/* It may quote what other programs printed. */
	char *harmless = output_harmless(text);
	fprintf(stderr, "thbench: %s\n", harmless);
	free(harmless);
	free(text);
}

__attribute__((format(printf, 1, 2))) static void
thbench_say(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say_list(format, arguments);
	va_end(arguments);
}

void
bench_progress(const struct bench *bench, const char *format, ...)
{
	va_list arguments;

	if (bench->options.quiet)
		return;
	va_start(arguments, format);
	say_list(format, arguments);
	va_end(arguments);
}

int
bench_go_on(struct bench *bench, struct th_err *err)
{
	if (stop_seen(&bench->stop))
		return th_fail(err, TH_E_CANCELLED, "interrupted");
	return 0;
}

double
bench_rate(uint64_t bytes, int64_t ns)
{
	return ns > 0 ? (double)bytes / (double)ns : 0.0;
}

/* ---- command line --------------------------------------------------------------------------- */

static const struct argp_option known_options[] = {
	{"bytes", KEY_BYTES, "SIZE", 0, "bytes of a shard (each verb has its own default)", 1},
	{"rounds", KEY_ROUNDS, "N", 0, "so many rounds of all that is compared", 1},
	{"tensor", KEY_TENSOR, "SIZE", 0, "bytes of a tensor (50MB)", 1},
	{"connections", KEY_CONNECTIONS, "N", 0,
		"connections of a leg and of the raw copy (the agents' default)", 1},
	{"block", KEY_BLOCK, "SIZE", 0, "block of the raw copy (1MiB)", 1},
	{"threads", KEY_THREADS, "N", 0, "threads of copies and digests (one a CPU)", 1},
	{"curve", KEY_CURVE, NULL, 0, "pair: also shards of 8 MiB to 8 GiB", 1},
	{"shapes", KEY_SHAPES, NULL, 0, "pair: also 50,000 tensors of 1 KiB, and 5 of 1 GiB", 1},
	{"readers", KEY_READERS, "N", 0, "fanout: so many readers (8)", 1},
	{"link", KEY_LINK, "SIZE", 0, "fanout, failover: bytes a second of each link (100MB)", 1},
	{"peers", KEY_PEERS, "NAME[,NAME]", 0,
		"peers: only mooncake, nixl_tcp, ray, gloo, nixl_host", 1},
	{"python", KEY_PYTHON, "PROGRAM", 0, "peers: a python that has them (python3)", 1},
	{"output", 'o', "FORMAT", 0, "table or json", 2},
	{"quiet", 'q', NULL, 0, "nothing on stderr while it runs", 2},
	{0},
};

static void
take_size(struct argp_state *state, const char *option, const char *text, uint64_t least,
	uint64_t most, uint64_t *ret_size)
{
	char from[TH_UNITS_BYTES], to[TH_UNITS_BYTES];
	uint64_t size = 0;

	if (th_parse_size(text, &size) < 0)
		argp_error(state, "--%s: '%s' is not a size like 64MiB", option, text);
	else if (size < least || size > most)
		argp_error(state, "--%s: '%s' is not from %s to %s", option, text,
			th_print_size(least, from), th_print_size(most, to));
	*ret_size = size;
}

static void
thbench_take_number(struct argp_state *state, const char *option, const char *text, uint32_t most,
	uint32_t *ret_number)
{
	char *end;
	unsigned long number = strtoul(text, &end, 10);

	/* strtoul takes signs and spaces, and turns "-1" into a very large number. */
	if (*text < '0' || *text > '9' || *end != '\0' || number == 0 || number > most)
		argp_error(state, "--%s: '%s' is not a number from 1 to %u", option, text, most);
	*ret_number = (uint32_t)number;
}

static void
take_verb(struct argp_state *state, const char *name)
{
	struct command_line *line = state->input;

	for (size_t i = 0; i < TH_ARRAY_LEN(verbs); i++) {
		if (strcmp(verbs[i]->name, name) != 0)
			continue;
		if (line->num_verbs == VERBS_MAX)
			argp_error(state, "more than %u verbs", VERBS_MAX);
		else
			line->verbs[line->num_verbs++] = verbs[i];
		return;
	}
	argp_error(state, "there is no verb '%s'", name);
}

static error_t
thbench_parse(int key, char *text, struct argp_state *state)
{
	struct command_line *line = state->input;
	struct bench_options *options = line->options;

	switch (key) {
	case KEY_BYTES:
		take_size(state, "bytes", text, UINT64_C(1) << 20, UINT64_C(1) << 44,
			&options->bytes);
		return 0;
	case KEY_TENSOR:
		take_size(state, "tensor", text, 1024, UINT64_C(1) << 44, &options->tensor_bytes);
		return 0;
	case KEY_BLOCK:
		take_size(state, "block", text, 4096, BLOCK_MAX, &options->block);
		return 0;
	case KEY_ROUNDS:
		thbench_take_number(state, "rounds", text, ROUNDS_MAX, &options->rounds);
		return 0;
	case KEY_CONNECTIONS:
		thbench_take_number(
			state, "connections", text, RAW_CONNECTIONS_MAX, &options->connections);
		return 0;
	case KEY_THREADS:
		thbench_take_number(state, "threads", text, THREADS_MAX, &options->threads);
		return 0;
	case KEY_CURVE:
		options->curve = true;
		return 0;
	case KEY_SHAPES:
		options->shapes = true;
		return 0;
	case KEY_READERS:
		thbench_take_number(state, "readers", text, BENCH_READERS_MAX, &options->readers);
		return 0;
	case KEY_LINK:
		take_size(
			state, "link", text, UINT64_C(1) << 20, UINT64_C(1) << 40, &options->link);
		return 0;
	case KEY_PEERS:
		options->peers = text;
		return 0;
	case KEY_PYTHON:
		options->python = text;
		return 0;
	case 'o':
		options->json = strcmp(text, "json") == 0;
		if (!options->json && strcmp(text, "table") != 0)
			argp_error(state, "-o: '%s' is neither table nor json", text);
		return 0;
	case 'q':
		options->quiet = true;
		return 0;
	case ARGP_KEY_ARG:
		take_verb(state, text);
		return 0;
	case ARGP_KEY_NO_ARGS:
		argp_error(state, "a verb is missing");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static char *
help_text(void)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *to = open_memstream(&text, &bytes);

	if (!to)
		exit(1);
	fprintf(to, "Measures what TensorHub does on this machine against plain copies in the same "
		    "run.\vVerbs:\n");
	for (size_t i = 0; i < TH_ARRAY_LEN(verbs); i++)
		fprintf(to, "  %-9s %s\n", verbs[i]->name, verbs[i]->summary);
	fprintf(to, "\nServers, agents and workers are its own and end with it; see thbench(1).\n");
	fclose(to);
	return text;
}

/* ---- running -------------------------------------------------------------------------------- */

static uint32_t
count_cpus(void)
{
	cpu_set_t cpus;

	if (sched_getaffinity(0, sizeof(cpus), &cpus) < 0)
		return 1;
	return th_max_u32((uint32_t)CPU_COUNT(&cpus), 1);
}

static void
thbench_print(struct bench *bench)
{
	double load[3] = {0};
	char text[64];

	if (getloadavg(load, 3) == 3) {
		snprintf(text, sizeof(text), "%.2f %.2f %.2f", load[0], load[1], load[2]);
		report_fact_text(&bench->report, "load_after", "load when it ended", text);
	}
	if (bench->options.json)
		report_print_json(&bench->report, stdout);
	else
		report_print_table(&bench->report, stdout);
}

static int
run_verbs(struct bench *bench, const struct command_line *line)
{
	int status = 0;

	bench_machine_facts(bench);
	for (uint32_t i = 0; i < line->num_verbs && status == 0; i++) {
		struct th_err err = {0};
		int rc = line->verbs[i]->run(bench, &err);
		if (rc < 0) {
			thbench_say("%s: %s", line->verbs[i]->name,
				*err.text ? err.text : th_strerror(rc));
			status = 1;
		}
	}
	/* What was measured before a failure is worth being seen. */
	if (bench->report.num_sections > 0)
		thbench_print(bench);
	if (fflush(stdout) != 0 || ferror(stdout)) {
		thbench_say("cannot write the output: %s", strerror(errno));
		status = 1;
	}
	return status;
}

int
main(int argc, char **argv)
{
	struct bench bench = {.options = {.tensor_bytes = 50000000, .block = UINT64_C(1) << 20}};
	struct command_line line = {.options = &bench.options};
	char *help = help_text();
	const struct argp argp = {.options = known_options,
		.parser = thbench_parse,
		.args_doc = "VERB...",
		.doc = help};

	argp_program_version = "thbench " TH_VERSION;
	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, &line);
	free(help);
	find_own_folder(bench.program_dir, sizeof(bench.program_dir));
	bench.cpus = count_cpus();
	if (bench.options.threads == 0)
		bench.options.threads = bench.cpus;
	int rc = stop_begin(&bench.stop, NULL);
	if (rc < 0) {
		thbench_say("signals: %s", th_strerror(rc));
		return 1;
	}
	stop_patient(&bench.stop);
	int status = run_verbs(&bench, &line);
	stop_end(&bench.stop);
	report_free(&bench.report);
	return status;
}
