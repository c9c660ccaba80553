/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_up - thctl up: a server and an agent for this machine, in the foreground, until a signal.
 *
 * The daemons are children (up_child) that serve a directory (up_dir). Everything is waited for
 * by the loop: the lines that they are ready, their ends, the signals. At the end the agent goes
 * first, while its server is there to say what must not be lost.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/name.h"
#include "ipc/base/notify.h"
#include "ipc/net/net.h"
#include "ipc/sock/agent_dir.h"
#include "tools/find_daemon.h"
#include "tools/thctl/thctl.h"
#include "tools/thctl/up_child.h"
#include "tools/thctl/up_dir.h"

#define READY_NS INT64_C(30000000000) /* without --timeout */
#define SERVER_PORT "7070"            /* where others look for a server */
#define HOST_BYTES 256
#define SERVERS_BYTES 1024
#define ARGUMENTS_MAX 24

struct up {
	const struct thctl *ctl;
	struct event_loop loop;
	struct up_dir dir;
	struct up_child server, agent;
	char folder[PATH_MAX];      /* of thctl */
	char host[HOST_BYTES];      /* of --listen; "" */
	char listen[NET_URL_BYTES]; /* where the server shall listen */
	char servers
		[SERVERS_BYTES]; /* for the agent: with --join those, else the one that listens */
	char node[TH_NAME_MAX + 1]; /* "": the agent's default */
	int64_t ready_ns;           /* until then both are ready */
	bool serves;                /* both are, which was said */
	uint32_t signals;
	bool ignored[NSIG]; /* from the start: as under nohup */
};

/* ---- the command line ----------------------------------------------------------------------- */

static bool
is_loopback(const char *host)
{
	return strncmp(host, "127.", 4) == 0 || strncmp(host, "[::1]", 5) == 0 ||
	       strncmp(host, "localhost", 9) == 0;
}

/* HOST or HOST:PORT, where HOST may be [ADDRESS]. */
static int
set_listen(struct up *up, const char *text, struct th_err *err)
{
	const char *bracket = strrchr(text, ']');
	const char *port = strrchr(bracket != NULL ? bracket : text, ':');
	size_t length = port != NULL ? (size_t)(port - text) : strlen(text);

	if (length == 0 || length >= sizeof(up->host) || strchr(text, '/') != NULL)
		return th_fail(err, TH_E_INVALID, "--listen: '%s' is not HOST or HOST:PORT", text);
	memcpy(up->host, text, length);
	up->host[length] = '\0';
	if (strcmp(up->host, "0.0.0.0") == 0 || strcmp(up->host, "[::]") == 0 ||
		strcmp(up->host, "*") == 0)
		return th_fail(err, TH_E_INVALID,
			"--listen: '%s' is no address that others can connect to; name the one by "
			"which they reach this machine",
			text);
	int written = snprintf(up->listen, sizeof(up->listen), "tcp://%s:%s", up->host,
		port != NULL ? port + 1 : SERVER_PORT);
	if (written < 0 || (size_t)written >= sizeof(up->listen))
		return th_fail(err, TH_E_INVALID, "--listen: '%s' is too long", text);
	struct th_err why;
	int rc = net_url_check(up->listen, &why);
	return rc < 0 ? th_fail(err, rc, "--listen: %s", why.text) : 0;
}

static int
set_servers(struct up *up, const char *list, struct th_err *err)
{
	size_t used = 0;

	while (*list != '\0') {
		int length = (int)strcspn(list, ",");
		bool scheme = memmem(list, (size_t)length, "://", 3) != NULL;
		char *url = up->servers + used + (used > 0);
		int written = snprintf(up->servers + used, sizeof(up->servers) - used, "%s%s%.*s",
			used > 0 ? "," : "", scheme ? "" : "tcp://", length, list);
		struct th_err why;
		if (written < 0 || (size_t)written >= sizeof(up->servers) - used)
			return th_fail(err, TH_E_INVALID, "--join: the addresses are too long");
		int rc = net_url_check(url, &why);
		if (rc < 0)
			return th_fail(err, rc, "--join: %s", why.text);
		used += (size_t)written;
		list += length + (list[length] == ',');
	}
	return used > 0 ? 0 : th_fail(err, TH_E_INVALID, "--join: there is no address in it");
}

/* The machine's own agent has its name; one of a user's is told apart from it. */
static void
set_node(struct up *up)
{
	char host[HOST_NAME_MAX + 1];

	if (up->ctl->node != NULL)
		snprintf(up->node, sizeof(up->node), "%s", up->ctl->node);
	else if (geteuid() != 0 && gethostname(host, sizeof(host)) == 0) {
		host[sizeof(host) - 1] = '\0';
		snprintf(up->node, sizeof(up->node), "%s-%u", host, (unsigned)geteuid());
	}
}

static int
cmd_up_set(struct up *up, struct th_err *err)
{
	const struct thctl *ctl = up->ctl;
	int rc = 0;

	up->ready_ns =
		ctl->timeout_ns >= 0 ? ctl->deadline_ns : th_deadline_ns(th_now_ns(), READY_NS);
	snprintf(up->listen, sizeof(up->listen), "tcp://127.0.0.1:0");
	if (ctl->listen != NULL)
		rc = set_listen(up, ctl->listen, err);
	if (rc == 0 && ctl->join != NULL)
		rc = set_servers(up, ctl->join, err);
	set_node(up);
	return rc;
}

/* ---- start ---------------------------------------------------------------------------------- */

static void
up_signal(void *arg, int number)
{
	struct up *up = arg;

	if (!up->ignored[number])
		up->signals++;
}

/* Before the loop takes the signals. */
static void
see_ignored(struct up *up)
{
	static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction action;

	for (size_t i = 0; i < TH_ARRAY_LEN(numbers); i++)
		up->ignored[numbers[i]] =
			sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

static bool
one_has_ended(const struct up *up)
{
	return up->server.life == UP_ENDED || up->agent.life == UP_ENDED;
}

static int
await_ready(struct up *up, const struct up_child *child, struct th_err *err)
{
	loop_arm(&up->loop, up->ready_ns);
	while (child->life == UP_STARTING && up->signals == 0 && !one_has_ended(up) &&
		th_now_ns() < up->ready_ns)
		loop_wait(&up->loop, false);
	if (up->signals > 0)
		return th_fail(err, TH_E_CANCELLED, "a signal came before all was ready");
	if (one_has_ended(up))
		return th_fail(err, -ECHILD, "it cannot be started");
	if (child->life == UP_STARTING)
		return th_fail(err, TH_E_TIMEOUT,
			"the %s (pid %d) was not ready in time; try a longer --timeout",
			child->name, (int)child->pid);
	return 0;
}

static int
start_server(struct up *up, struct th_err *err)
{
	char program[PATH_MAX];
	const char *const argv[] = {program, "-c", "/dev/null", "-l", up->listen, NULL};

	int rc = find_daemon(up->folder, "thserverd", program, sizeof(program), err);
	if (rc == 0)
		rc = up_child_start(&up->server, "server", argv, &up->loop, err);
	if (rc == 0)
		rc = await_ready(up, &up->server, err);
	if (rc == 0)
		up_child_value(&up->server, "listen", up->servers, sizeof(up->servers));
	return rc;
}

static int
start_agent(struct up *up, struct th_err *err)
{
	char program[PATH_MAX];
	const char *argv[ARGUMENTS_MAX] = {
		program, "-c", "/dev/null", "-s", up->servers, "-r", up->dir.path};
	size_t used = 7;

	if (up->host[0] != '\0') {
		argv[used++] = "-d";
		argv[used++] = up->host;
	}
	if (up->node[0] != '\0') {
		argv[used++] = "-n";
		argv[used++] = up->node;
	}
	if (up->ctl->datacenter != NULL) {
		argv[used++] = "-D";
		argv[used++] = up->ctl->datacenter;
	}
	/* Half of the memory of a machine is root's to give. */
	if (geteuid() != 0) {
		argv[used++] = "--offload-limit";
		argv[used++] = "0";
	}
	int rc = find_daemon(up->folder, "thagentd", program, sizeof(program), err);
	if (rc == 0)
		rc = up_child_start(&up->agent, "agent", argv, &up->loop, err);
	return rc == 0 ? await_ready(up, &up->agent, err) : rc;
}

/* ---- what to do next ------------------------------------------------------------------------ */

static void
warn_of_strangers(const struct up *up, const char *data)
{
	const char *listens = "";

	if (up->ctl->join == NULL && !is_loopback(up->servers + strlen("tcp://")))
		listens = up->servers;
	if (is_loopback(data) && *listens == '\0')
		return;
	thctl_say("up: other machines reach %s%s%s, and there are no keys: whoever does may read "
		  "and replace weights; keep it inside a trusted network",
		listens, *listens != '\0' ? " and " : "", data);
}

static int
cmd_up_print(const struct up *up)
{
	const struct thctl *ctl = up->ctl;
	struct document document;
	struct agent_dir found;
	char data[HOST_BYTES], node[TH_NAME_MAX + 1], looked[AGENT_DIR_LOOKED_BYTES];
	bool here = ctl->join == NULL && is_loopback(up->servers + strlen("tcp://"));

	up_child_value(&up->agent, "data", data, sizeof(data));
	up_child_value(&up->agent, "node", node, sizeof(node));
	agent_dir_find(&found, looked);
	/* Whoever looks by himself, as this user, comes to another one, or to none. */
	bool told = strcmp(found.path, up->dir.path) != 0;
	document_init(&document, "up");
	document_field(&document, "server", "server", value_text(up->servers));
	document_field(&document, "runtime_dir", "agent", value_text(up->dir.path));
	document_field(&document, "environment", told ? "workers" : NULL,
		told ? value_textf("export THC_AGENT=%s", up->dir.path) : value_none());
	document_field(&document, "next", "next",
		value_text("thctl publish --model M --version 1 FILE.safetensors; in Python: "
			   "tensorhub.open(\"M\", replica=\"R\")"));
	document_field(&document, "join", "join",
		value_textf("thctl up --join %s%s", up->servers,
			here ? " -r DIR --node NAME (other machines: start this with --listen)"
			     : ""));
	document_field(&document, "data_address", NULL, value_text(data));
	document_field(&document, "node", NULL, value_text(node));
	warn_of_strangers(up, data);
	return thctl_print(ctl, &document);
}

static int
serve(struct up *up, struct th_err *err)
{
	int rc = up->ctl->join == NULL ? start_server(up, err) : 0;

	if (rc == 0)
		rc = start_agent(up, err);
	if (rc < 0)
		return rc;
	up_dir_sign(&up->dir, up->servers);
	if (cmd_up_print(up) != THCTL_OK)
		return th_fail(err, -EPIPE, "nobody would know that it serves");
	up->serves = true;
	th_notify("READY=1");
	while (up->signals == 0 && !one_has_ended(up))
		loop_wait(&up->loop, false);
	if (up->signals > 0)
		return 0;
	return th_fail(err, -ECHILD,
		"the %s has ended by itself; nothing that was started here runs on",
		up->server.life == UP_ENDED ? up->server.name : up->agent.name);
}

/* ---- the end -------------------------------------------------------------------------------- */

/* False when a signal wants it at once. */
static bool
end_child(struct up *up, struct up_child *child, uint32_t signals)
{
	up_child_signal(child, SIGTERM);
	while (up_child_runs(child) && up->signals == signals)
		loop_wait(&up->loop, false);
	return !up_child_runs(child);
}

static void
end_at_once(struct up *up, struct up_child *child)
{
	up_child_signal(child, SIGKILL);
	while (up_child_runs(child))
		loop_wait(&up->loop, false);
}

/* False: ended at once, or the agent has left behind what was to be kept. */
static bool
cmd_up_end(struct up *up)
{
	uint32_t signals = up->signals;
	bool drains = up_child_runs(&up->agent);

	th_notify("STOPPING=1");
	if (up->serves && drains)
		thctl_say("up: draining; a second Ctrl-C ends it at once");
	if (!end_child(up, &up->agent, signals) || !end_child(up, &up->server, signals)) {
		end_at_once(up, &up->agent);
		end_at_once(up, &up->server);
		thctl_say("up: ended at once; what ran was cut off");
		return false;
	}
	if (drains && up->agent.status != 0)
		up_child_say_end(&up->agent);
	return up->agent.status == 0;
}

static int
cmd_up_run(struct up *up, struct th_err *err)
{
	int rc = serve(up, err);

	/* Of what ended by itself, before the other one says anything. */
	if (up->server.life == UP_ENDED)
		up_child_say_end(&up->server);
	if (up->agent.life == UP_ENDED)
		up_child_say_end(&up->agent);
	bool kept = cmd_up_end(up);
	up_child_fini(&up->agent);
	up_child_fini(&up->server);
	up_dir_leave(&up->dir);
	if (rc < 0)
		return thctl_fail(up->ctl, rc, err->text);
	return kept ? THCTL_OK : THCTL_FAILED;
}

static int
run_up(struct thctl *ctl)
{
	static struct up up;
	struct th_err err = {0};

	up.ctl = ctl;
	if (cmd_up_set(&up, &err) < 0)
		return thctl_usage(ctl, "%s", err.text);
	find_own_folder(up.folder, sizeof(up.folder));
	see_ignored(&up);
	int rc = loop_open(&up.loop, up_signal, &up, &err);
	if (rc == 0)
		rc = up_dir_take(ctl->looked[0] == '\0' ? ctl->runtime_dir : NULL, &up.dir, &err);
	if (rc < 0) {
		int status = thctl_fail(ctl, rc, err.text);
		return rc == TH_E_STATE ? THCTL_TAKEN : status;
	}
	return cmd_up_run(&up, &err);
}

const struct verb verb_up = {
	.name = "up",
	.summary = "a server and an agent of this machine, until Ctrl-C",
	.text = "Prints where both are and what to do next. With --join the agent alone.",
	.options = THCTL_JOIN | THCTL_LISTEN | THCTL_NODE | THCTL_DATACENTER,
	.agent_only = true,
	.run = run_up,
};
