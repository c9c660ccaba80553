/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serverd_test - the real thserverd as a process: what it prints, answers and returns.
 *
 * Every wait has an end, and each test ends the process it started.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/clock.h"
#include "ipc/base/fd.h"
#include "ipc/net/net.h"
#include "ipc/proto/convert.h"

#define MS INT64_C(1000000)
#define PATIENCE_MS 20000 /* far more than anything here needs, also under a sanitizer */
#define ARGS_MAX 16

/* nng frees on its own thread, Criterion's parent forgets children: see net_test.c. */
const char *__lsan_default_suppressions(void) __attribute__((visibility("default")));

const char *
__lsan_default_suppressions(void)
{
	return getenv("BXFI_MAP") == NULL ? "leak:libcriterion.so\n" : "leak:libnng.so\n";
}

/* ---- the process -------------------------------------------------------------------------- */

struct serverd {
	pid_t pid;
	int pidfd, out, errors;
	char url[NET_URL_BYTES];
};

/* The arguments end with NULL. */
static void
start(struct serverd *serverd, ...)
{
	char *argv[ARGS_MAX] = {(char[]){THSERVERD_PATH}};
	posix_spawn_file_actions_t actions;
	int out[2], errors[2], count = 1;
	va_list list;

	va_start(list, serverd);
	do {
		argv[count] = va_arg(list, char *);
	} while (argv[count++] != NULL);
	va_end(list);
	cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
	cr_assert_eq(pipe2(errors, O_CLOEXEC), 0);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&actions, errors[1], STDERR_FILENO);
	cr_assert_eq(posix_spawn(&serverd->pid, THSERVERD_PATH, &actions, NULL, argv, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	close(out[1]);
	close(errors[1]);
	serverd->out = out[0];
	serverd->errors = errors[0];
	serverd->pidfd = (int)syscall(SYS_pidfd_open, serverd->pid, 0);
	cr_assert_geq(serverd->pidfd, 0);
}

static bool
readable(int fd, int timeout_ms)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};

	return poll(&pfd, 1, timeout_ms) == 1;
}

/* One line, without its newline; what there is at the end of the file. */
static void
read_line(int fd, char *line, size_t size)
{
	size_t at = 0;

	while (at + 1 < size && readable(fd, PATIENCE_MS) && read(fd, line + at, 1) == 1 &&
		line[at] != '\n')
		at++;
	line[at] = '\0';
}

/* Everything until the end. */
static void
read_all(int fd, char *text, size_t size)
{
	size_t at = 0;
	ssize_t got = 1;

	while (got > 0 && at + 1 < size && readable(fd, PATIENCE_MS)) {
		got = read(fd, text + at, size - 1 - at);
		at += got > 0 ? (size_t)got : 0;
	}
	text[at] = '\0';
}

static void
ready(struct serverd *serverd)
{
	char line[512];

	read_line(serverd->out, line, sizeof(line));
	cr_assert_eq(strncmp(line, "ready listen=tcp://", 19), 0, "\"%s\"", line);
	snprintf(serverd->url, sizeof(serverd->url), "%.*s", NET_URL_BYTES - 1, line + 13);
}

/* The exit status; -signal when one ended it. */
static int
ended(struct serverd *serverd)
{
	int status;

	if (!readable(serverd->pidfd, PATIENCE_MS)) {
		kill(serverd->pid, SIGKILL);
		waitpid(serverd->pid, &status, 0);
		cr_assert_fail("the server does not end");
	}
	cr_assert_eq(waitpid(serverd->pid, &status, 0), serverd->pid);
	th_fd_close(&serverd->pidfd);
	th_fd_close(&serverd->out);
	th_fd_close(&serverd->errors);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int
stop(struct serverd *serverd, int signal)
{
	cr_assert_eq(kill(serverd->pid, signal), 0);
	return ended(serverd);
}

static void
start_ready(struct serverd *serverd, const char *url)
{
	start(serverd, "-l", url, NULL);
	ready(serverd);
}

/* ---- an agent ----------------------------------------------------------------------------- */

struct asker {
	struct net_client *client;
	struct convert_arena arena;
	uint64_t inc, number, attach_no;
};

static void
asker_new(struct asker *asker, const char *url, uint64_t inc)
{
	struct th_err err = {0};

	*asker = (struct asker){.inc = inc};
	cr_assert_eq(net_client_new(NULL, &err, &asker->client), 0, "%s", err.text);
	cr_assert_eq(net_client_dial(asker->client, url, false, &err), 0, "%s", err.text);
}

static void
asker_free(struct asker *asker)
{
	net_client_free(asker->client);
	convert_arena_free(&asker->arena);
}

static void
send_request(struct asker *asker, struct ctl_request *request)
{
	uint8_t *data;
	size_t bytes;

	request->agent_inc = asker->inc;
	request->attach_no = asker->attach_no;
	request->request_no = ++asker->number;
	cr_assert_eq(ctl_request_pack(request, &data, &bytes), 0);
	cr_assert_eq(
		net_client_send(asker->client, request->request_no, data, bytes, PATIENCE_MS * MS),
		0);
	free(data);
}

static struct net_client_item
next_reply(struct asker *asker)
{
	struct net_client_item item;

	for (;;) {
		while (net_client_next(asker->client, &item))
			if (item.kind == NET_REPLY)
				return item;
		cr_assert(readable(net_client_fd(asker->client), PATIENCE_MS), "no reply");
	}
}

static struct ctl_reply
ask(struct asker *asker, struct ctl_request *request)
{
	struct net_client_item item;
	struct ctl_reply reply;
	struct th_err err = {0};

	send_request(asker, request);
	item = next_reply(asker);
	cr_assert_eq(item.rc, 0, "rc %d", item.rc);
	cr_assert_eq(item.tag, request->request_no);
	cr_assert_eq(
		ctl_reply_unpack(item.data, item.bytes, request->kind, &asker->arena, &err, &reply),
		0, "%s", err.text);
	cr_assert_eq(reply.request_no, request->request_no);
	return reply;
}

static uint64_t
hello(struct asker *asker)
{
	struct ctl_request request = {
		.kind = CTL_HELLO, .u.hello = {TH_PROTOCOL_MIN, TH_PROTOCOL_MAX}};
	struct ctl_reply reply = ask(asker, &request);

	cr_assert_eq(reply.code, 0, "%s", reply.text);
	cr_assert_neq(reply.u.hello.server_inc, 0);
	return reply.u.hello.server_inc;
}

static void
attach(struct asker *asker)
{
	struct ctl_request request = {.kind = CTL_ATTACH,
		.u.attach = {.node = "n", .datacenter = "d", .data_address = "127.0.0.1:1"}};
	struct ctl_reply reply = ask(asker, &request);

	cr_assert_eq(reply.code, 0, "%s", reply.text);
	cr_assert(reply.u.attach.fresh);
	asker->attach_no = reply.u.attach.attach_no;
}

/* ---- tests -------------------------------------------------------------------------------- */

Test(serverd, an_agent__is_served, .timeout = 60)
{
	struct ctl_request request = {
		.kind = CTL_OPEN, .u.open = {.model = "m", .replica = "r", .num_shards = 1}};
	struct serverd serverd;
	struct asker asker;
	struct ctl_reply reply;
	int64_t begin_ns;

	start_ready(&serverd, "tcp://127.0.0.1:0");
	asker_new(&asker, serverd.url, 7);
	hello(&asker);
	attach(&asker);
	reply = ask(&asker, &request);
	cr_assert_eq(reply.code, 0, "%s", reply.text);
	cr_assert_neq(reply.u.open.sid, 0);
	request = (struct ctl_request){.kind = CTL_POLL};
	begin_ns = th_now_ns();
	reply = ask(&asker, &request); /* held until something happens, or a second has passed */
	cr_assert_eq(reply.code, 0, "%s", reply.text);
	cr_assert(reply.u.poll.num_events > 0 || th_now_ns() - begin_ns > 900 * MS);
	asker_free(&asker);
	cr_assert_eq(stop(&serverd, SIGTERM), 0);
}

Test(serverd, a_stranger__must_attach_and_an_operator_need_not, .timeout = 60)
{
	struct ctl_request request = {.kind = CTL_BEAT};
	struct serverd serverd;
	struct asker asker, operator;
	struct ctl_reply reply;

	start_ready(&serverd, "tcp://127.0.0.1:0");
	asker_new(&asker, serverd.url, 7);
	reply = ask(&asker, &request);
	cr_assert_eq(reply.code, TH_E_NO_SERVER);
	cr_assert(reply.unknown_agent);
	attach(&asker);
	request = (struct ctl_request){.kind = CTL_BEAT};
	cr_assert_eq(ask(&asker, &request).code, 0);
	asker_new(&operator, serverd.url, 0);
	request = (struct ctl_request){.kind = CTL_INSPECT};
	reply = ask(&operator, & request);
	cr_assert_eq(reply.code, 0, "%s", reply.text);
	cr_assert_eq(reply.u.inspect.num_nodes, 1);
	cr_assert_str_eq(reply.u.inspect.nodes[0].node, "n");
	asker_free(&operator);
	asker_free(&asker);
	cr_assert_eq(stop(&serverd, SIGINT), 0);
}

Test(serverd, malformed_requests__are_answered_and_hurt_nobody, .timeout = 60)
{
	static const uint8_t junk[] = {0xff, 0xff, 0xff, 0xff};
	struct ctl_request request = {
		.kind = CTL_OPEN, .u.open = {.model = "", .replica = "r", .num_shards = 1}};
	struct serverd serverd;
	struct asker asker;
	struct ctl_reply reply;
	struct net_client_item item;
	char line[1024];

	start_ready(&serverd, "tcp://127.0.0.1:0");
	asker_new(&asker, serverd.url, 7);
	attach(&asker);
	for (int i = 0; i < 20; i++) {
		cr_assert_eq(
			net_client_send(asker.client, 1, junk, sizeof(junk), PATIENCE_MS * MS), 0);
		item = next_reply(&asker);
		cr_assert_eq(item.rc, 0);
		cr_assert_eq(ctl_reply_unpack(
				     item.data, item.bytes, CTL_BEAT, &asker.arena, NULL, &reply),
			0);
		cr_assert_eq(reply.code, -EPROTO);
		cr_assert_neq(reply.text[0], '\0');
		reply = ask(&asker, &request);
		cr_assert_eq(reply.code, TH_E_INVALID);
		cr_assert_not_null(strstr(reply.text, "model"), "%s", reply.text);
	}
	hello(&asker);
	read_line(serverd.errors, line, sizeof(line));
	cr_assert_not_null(strstr(line, "info main ready"), "%s", line);
	read_line(serverd.errors, line, sizeof(line));
	cr_assert_not_null(strstr(line, "warn net malformed request count=1"), "%s", line);
	asker_free(&asker);
	cr_assert_eq(kill(serverd.pid, SIGTERM), 0);
	read_line(serverd.errors, line, sizeof(line)); /* and nothing more of it in this minute */
	cr_assert_not_null(strstr(line, "info main draining"), "%s", line);
	cr_assert_eq(ended(&serverd), 0);
}

static void
restarted_after(int signal, int status)
{
	struct ctl_request request = {.kind = CTL_POLL};
	struct serverd serverd, second;
	struct asker asker;
	struct ctl_reply reply;
	struct net_client_item item;
	uint64_t first_inc;

	start_ready(&serverd, "tcp://127.0.0.1:0");
	asker_new(&asker, serverd.url, 7);
	first_inc = hello(&asker);
	attach(&asker);
	send_request(&asker, &request);
	cr_assert_eq(stop(&serverd, signal), status);
	item = next_reply(
		&asker); /* a server that drains may still have seen it: then it says no */
	if (item.rc == 0) {
		cr_assert_eq(ctl_reply_unpack(
				     item.data, item.bytes, CTL_POLL, &asker.arena, NULL, &reply),
			0);
		cr_assert_eq(reply.code, TH_E_NO_SERVER);
	} else {
		cr_assert_eq(item.rc, -ECONNRESET, "rc %d", item.rc);
	}
	start_ready(&second, serverd.url);
	cr_assert_str_eq(second.url, serverd.url);
	cr_assert_neq(hello(&asker), first_inc); /* over a connection that nng made again */
	request = (struct ctl_request){.kind = CTL_BEAT};
	reply = ask(&asker, &request);
	cr_assert(reply.unknown_agent, "a server that comes back knows nothing");
	attach(&asker);
	asker_free(&asker);
	cr_assert_eq(stop(&second, SIGTERM), 0);
}

Test(serverd, restart__after_an_orderly_end, .timeout = 60)
{
	restarted_after(SIGTERM, 0);
}

Test(serverd, restart__after_a_kill, .timeout = 60)
{
	restarted_after(SIGKILL, -SIGKILL);
}

Test(serverd, two_signals__leave_at_once, .timeout = 60)
{
	struct serverd serverd;
	int status;

	start_ready(&serverd, "tcp://127.0.0.1:0");
	cr_assert_eq(kill(serverd.pid, SIGSTOP), 0);
	cr_assert_eq(waitpid(serverd.pid, &status, WUNTRACED), serverd.pid);
	kill(serverd.pid, SIGTERM); /* both wait for it when it goes on */
	kill(serverd.pid, SIGINT);
	cr_assert_eq(stop(&serverd, SIGCONT), 1);
}

Test(serverd, hang_up__is_ignored, .timeout = 60)
{
	struct serverd serverd;

	start_ready(&serverd, "tcp://127.0.0.1:0");
	cr_assert_eq(kill(serverd.pid, SIGHUP), 0);
	cr_assert_eq(stop(&serverd, SIGTERM), 0);
}

Test(serverd, port_in_use__exits_1_and_says_what_to_do, .timeout = 60)
{
	struct serverd serverd, second;
	char text[2048];

	start_ready(&serverd, "tcp://127.0.0.1:0");
	start(&second, "-l", serverd.url, NULL);
	read_all(second.errors, text, sizeof(text));
	cr_assert_eq(ended(&second), 1);
	cr_assert_not_null(strstr(text, serverd.url), "%s", text);
	cr_assert_not_null(strstr(text, "choose another address"), "%s", text);
	cr_assert_eq(stop(&serverd, SIGTERM), 0);
}

Test(serverd, listens__on_several_addresses, .timeout = 60)
{
	struct serverd serverd;
	struct asker asker;
	char *comma;

	start(&serverd, "-l", "tcp://127.0.0.1:0", "--listen", "tcp://127.0.0.2:0", NULL);
	ready(&serverd);
	comma = strchr(serverd.url, ',');
	cr_assert_not_null(comma, "%s", serverd.url);
	*comma = '\0';
	for (const char *url = serverd.url; url != NULL;
		url = url == comma + 1 ? NULL : comma + 1) {
		asker_new(&asker, url, 7);
		hello(&asker);
		asker_free(&asker);
	}
	cr_assert_eq(stop(&serverd, SIGTERM), 0);
}

/* Ends with this status and has this in what it wrote to standard error. */
static void
refuses(const char *sentence, const char *option, const char *value)
{
	struct serverd serverd;
	char text[4096];

	start(&serverd, option, value, NULL);
	read_all(serverd.errors, text, sizeof(text));
	cr_assert_eq(ended(&serverd), 2, "%s %s: %s", option, value, text);
	cr_assert_not_null(strstr(text, sentence), "%s %s: %s", option, value, text);
}

Test(serverd, options__mistakes_are_named, .timeout = 60)
{
	refuses("lease.deed", "-o", "lease.deed=1s");
	refuses("no duration", "-o", "lease.dead=1");
	refuses("longer than lease.suspect", "-o", "lease.dead=1s");
	refuses("KEY=VALUE", "-o", "lease.dead");
	refuses("limit.agents", "-o", "limit.agents=0");
	refuses("neither yes nor no", "-o", "route.pipelining=maybe");
	refuses("log.level", "-o", "log.level=loud");
	refuses("tcp://HOST:PORT", "-l", "127.0.0.1:7070");
	refuses("TLS", "-l", "tls+tcp://127.0.0.1:7070");
	refuses("not built yet", "--http", "127.0.0.1:9090");
	refuses("tcp://HOST:PORT", "--peers", "tcp://a:1,b:1");
	refuses("stands there twice", "--peers", "tcp://a:1,tcp://b:1,tcp://a:1");
	refuses("more than 8", "--peers",
		"ipc:///1,ipc:///2,ipc:///3,ipc:///4,ipc:///5,ipc:///6,"
		"ipc:///7,ipc:///8,ipc:///9");
	refuses("more than 16", "-o",
		"listen=ipc:///1,ipc:///2,ipc:///3,ipc:///4,ipc:///5,ipc:///6,ipc:///7,ipc:///8,"
		"ipc:///9,ipc:///10,ipc:///11,ipc:///12,ipc:///13,ipc:///14,ipc:///15,ipc:///16,"
		"ipc:///17");
	refuses("no duration", "-o", "route.skip=never");
	refuses("no duration", "-o", "peers.return=soon");
	refuses("longer than peers.probe", "-o", "peers.silence=500ms");
	refuses("No such file", "-c", "/nonexistent/thserverd.conf");
	refuses("arguments", "more", NULL);
	refuses("--frobnicate", "--frobnicate", NULL);
}

/* ---- several servers ---------------------------------------------------------------------- */

static void
reads(int fd, const char *text)
{
	char line[1024];

	do {
		read_line(fd, line, sizeof(line));
		cr_assert_neq(line[0], '\0', "it never says: %s", text);
	} while (strstr(line, text) == NULL);
}

Test(serverd, peers__the_second_serves_when_the_first_has_gone, .timeout = 120)
{
	struct ctl_request request = {
		.kind = CTL_HELLO, .u.hello = {TH_PROTOCOL_MIN, TH_PROTOCOL_MAX, 0, 0, false}};
	char folder[] = "/tmp/th-peers-XXXXXX", urls[2][NET_URL_BYTES], list[2 * NET_URL_BYTES];
	char line[1024];
	struct serverd first, second;
	struct asker asker;
	struct ctl_reply reply;

	cr_assert_not_null(mkdtemp(folder));
	snprintf(urls[0], sizeof(urls[0]), "ipc://%s/0", folder);
	snprintf(urls[1], sizeof(urls[1]), "ipc://%s/1", folder);
	snprintf(list, sizeof(list), "%s,%s", urls[0], urls[1]);
	start(&first, "-l", urls[0], "--peers", list, NULL);
	read_line(first.out, line, sizeof(line));
	cr_assert_not_null(strstr(line, " state=serving"), "%s", line);
	start(&second, "-l", urls[1], "--peers", list, NULL);
	read_line(second.out, line, sizeof(line));
	cr_assert_not_null(strstr(line, " state=standby"), "%s", line);
	asker_new(&asker, urls[1], 7);
	reply = ask(&asker, &request);
	cr_assert_eq(reply.code, TH_E_NO_SERVER);
	cr_assert_not_null(strstr(reply.text, urls[0]), "%s", reply.text);
	cr_assert_eq(stop(&first, SIGKILL), -SIGKILL);
	reads(second.errors, "does not answer");
	reads(second.errors, "peers serving");
	attach(&asker);
	asker_free(&asker);
	cr_assert_eq(stop(&second, SIGTERM), 0);
	for (int i = 0; i < 2; i++)
		unlink(urls[i] + strlen("ipc://"));
	rmdir(folder);
}

/* Its own address is listed under another name: it finds itself by asking. */
Test(serverd, peers__a_server_finds_itself_or_says_that_it_cannot, .timeout = 120)
{
	char folder[] = "/tmp/th-peers-XXXXXX", list[NET_URL_BYTES], url[NET_URL_BYTES];
	struct serverd serverd;

	cr_assert_not_null(mkdtemp(folder));
	snprintf(url, sizeof(url), "ipc://%s/0", folder);
	snprintf(list, sizeof(list), "ipc://%s/../%s/0", folder, folder + strlen("/tmp/"));
	start(&serverd, "-l", url, "--peers", list, NULL);
	reads(serverd.out, "state=serving");
	cr_assert_eq(stop(&serverd, SIGTERM), 0);
	snprintf(list, sizeof(list), "ipc://%s/nobody", folder);
	start(&serverd, "-l", url, "--peers", list, NULL);
	reads(serverd.errors, "none of --peers has answered as this server");
	cr_assert_eq(stop(&serverd, SIGTERM), 0);
	unlink(url + strlen("ipc://"));
	rmdir(folder);
}

static void
put(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	cr_assert_not_null(file);
	fputs(text, file);
	fclose(file);
}

Test(serverd, configuration__is_read_and_mistakes_name_their_line, .timeout = 60)
{
	char path[] = "/tmp/th-serverd-XXXXXX", text[1024];
	struct serverd serverd;

	close(mkstemp(path));
	put(path, "# a server\nlisten = tcp://127.0.0.1:0\n\n[lease]\ndeed = 10s\n");
	snprintf(text, sizeof(text), "%s:5: there is no key \"lease.deed\"", path);
	refuses(text, "-c", path);
	put(path, "listen = tcp://127.0.0.1:0\n[lease]\ndead = 10s\nsuspect = 500ms\n");
	start(&serverd, "-t", "-c", path, NULL);
	cr_assert_eq(ended(&serverd), 0);
	start(&serverd, "-c", path, NULL);
	ready(&serverd);
	cr_assert_eq(strncmp(serverd.url, "tcp://127.0.0.1:", 16), 0);
	cr_assert_eq(stop(&serverd, SIGTERM), 0);
	put(path, "listen = tcp://127.0.0.1:0\npeers = tcp://127.0.0.1:0,tcp://a:1\n");
	refuses("write a port instead of 0", "-c", path);
	put(path, "listen = ipc:///a,ipc:///b\npeers = ipc:///c,ipc:///a,ipc:///b\n");
	refuses("ipc:///a and ipc:///b are both this server", "-c", path);
	setenv("THSERVERD_LEASE_DEAD", "soon", 1);
	refuses("environment THSERVERD_LEASE_DEAD", "-c", path);
	unlink(path);
}

Test(serverd, version_and_help__are_there, .timeout = 60)
{
	struct serverd serverd;
	char text[4096];

	start(&serverd, "--version", NULL);
	read_all(serverd.out, text, sizeof(text));
	cr_assert_eq(ended(&serverd), 0);
	cr_assert_eq(strncmp(text, "thserverd ", 10), 0, "%s", text);
	start(&serverd, "--help", NULL);
	read_all(serverd.out, text, sizeof(text));
	cr_assert_eq(ended(&serverd), 0);
	cr_assert_not_null(strstr(text, "--listen"), "%s", text);
}

Test(serverd, systemd__is_told, .timeout = 60)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct serverd serverd;
	char text[64];

	snprintf(address.sun_path, sizeof(address.sun_path), "/tmp/th-notify-%d", (int)getpid());
	unlink(address.sun_path);
	cr_assert_eq(bind(sock, (struct sockaddr *)&address, sizeof(address)), 0);
	setenv("NOTIFY_SOCKET", address.sun_path, 1);
	start_ready(&serverd, "tcp://127.0.0.1:0");
	cr_assert(readable(sock, PATIENCE_MS));
	cr_assert_eq(recv(sock, text, sizeof(text), 0), 7);
	cr_assert_arr_eq(text, "READY=1", 7);
	cr_assert_eq(stop(&serverd, SIGTERM), 0);
	cr_assert(readable(sock, PATIENCE_MS));
	cr_assert_eq(recv(sock, text, sizeof(text), 0), 10);
	cr_assert_arr_eq(text, "STOPPING=1", 10);
	unlink(address.sun_path);
	close(sock);
}
