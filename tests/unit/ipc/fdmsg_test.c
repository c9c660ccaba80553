/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fdmsg_test - messages with descriptors, the peer's identity, and listeners in a runtime
 * directory.
 */
#include "ipc/sock/fdmsg.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/sock/listener.h"
#include "ipc/sock/peer.h"

static int ends[2];
static struct fdmsg msg;

static void
setup(void)
{
	cr_assert_eq(
		socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
}

static void
teardown(void)
{
	th_fd_close(&ends[0]);
	th_fd_close(&ends[1]);
}

TestSuite(fdmsg, .init = setup, .fini = teardown);

static unsigned
open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned count = 0;

	while (readdir(dir) != NULL)
		count++;
	closedir(dir);
	return count;
}

/* Sends bytes as they are, with that many copies of one descriptor. */
static void
send_raw(const void *bytes, size_t count, unsigned num_fds)
{
	union {
		char bytes[CMSG_SPACE(64 * sizeof(int))];
		struct cmsghdr align;
	} control;
	union {
		const void *constant;
		void *plain;
	} pointer = {.constant = bytes};
	struct iovec part = {pointer.plain, count};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

	if (num_fds > 0) {
		memset(&control, 0, sizeof(control));
		message.msg_control = control.bytes;
		message.msg_controllen = CMSG_SPACE(num_fds * sizeof(int));
		struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(num_fds * sizeof(int));
		for (unsigned i = 0; i < num_fds; i++)
			memcpy(CMSG_DATA(cmsg) + i * sizeof(int), &ends[0], sizeof(int));
	}
	cr_assert_eq(sendmsg(ends[0], &message, MSG_NOSIGNAL), (ssize_t)count);
}

Test(fdmsg, hello__sent__arrives_whole)
{
	const struct fdmsg_hello hello = {1, 3, 0, 4096, 0};

	cr_assert_eq(fdmsg_send(ends[0], FDMSG_HELLO, &hello, sizeof(hello), NULL, 0), 0);
	cr_assert_eq(fdmsg_recv(ends[1], &msg), 1);
	cr_assert_eq(msg.head.kind, FDMSG_HELLO);
	cr_assert_eq(msg.body_bytes, sizeof(hello));
	cr_assert_eq(memcmp(msg.body, &hello, sizeof(hello)), 0);
	cr_assert_eq(fdmsg_recv(ends[1], &msg), -EAGAIN);
	th_fd_close(&ends[0]);
	cr_assert_eq(fdmsg_recv(ends[1], &msg), 0);
}

Test(fdmsg, session__five_descriptors__arrive_close_on_exec)
{
	const struct fdmsg_session session = {
		.session = 7, .secret = "0123456789abcde", .next_op = 9};
	int fds[5] = {ends[0], ends[1], ends[0], ends[1], ends[0]};
	unsigned before = open_fds();

	cr_assert_eq(fdmsg_send(ends[0], FDMSG_SESSION, &session, sizeof(session), fds, 5), 0);
	cr_assert_eq(fdmsg_recv(ends[1], &msg), 1);
	cr_assert_eq(open_fds(), before + 5);
	for (int i = 0; i < 5; i++)
		cr_assert(fcntl(msg.fds[i], F_GETFD) & FD_CLOEXEC);
	int taken = th_fd_move(&msg.fds[2]);
	fdmsg_close_fds(&msg);
	cr_assert_eq(open_fds(), before + 1);
	th_fd_close(&taken);
}

/* With a lifeline, and a piece of GPU memory with a descriptor of its own or without. */
Test(fdmsg, gpu_messages__sent__arrive_with_as_many_descriptors)
{
	const struct fdmsg_session session = {.session = 7};
	struct fdmsg_gpu gpu = {.token = 3, .base = 4096, .bytes = 8192, .handle = "handle"}, got;
	int fds[FDMSG_SESSION_FDS_GPU] = {ends[0], ends[1], ends[0], ends[1], ends[0], ends[1]};
	unsigned before = open_fds();

	cr_assert_eq(fdmsg_send(ends[0], FDMSG_SESSION, &session, sizeof(session), fds,
			     FDMSG_SESSION_FDS_GPU),
		0);
	cr_assert_eq(fdmsg_recv(ends[1], &msg), 1);
	cr_assert_eq(msg.head.num_fds, FDMSG_SESSION_FDS_GPU);
	cr_assert_eq(open_fds(), before + 6);
	fdmsg_close_fds(&msg);
	for (uint32_t num_fds = 0; num_fds < 2; num_fds++) {
		gpu.token++;
		cr_assert_eq(fdmsg_send(ends[0], FDMSG_GPU, &gpu, sizeof(gpu), fds, num_fds), 0);
		cr_assert_eq(fdmsg_recv(ends[1], &msg), 1);
		cr_assert_eq(msg.head.kind, FDMSG_GPU);
		cr_assert_eq(msg.head.num_fds, num_fds);
		memcpy(&got, msg.body, sizeof(got));
		cr_assert_eq(memcmp(&got, &gpu, sizeof(got)), 0);
		cr_assert_eq(msg.fds[0] >= 0, num_fds == 1);
		cr_assert_eq(msg.fds[1], -1);
		fdmsg_close_fds(&msg);
	}
	cr_assert_eq(open_fds(), before);
}

/* What is lent brings its file and its lease; a refusal brings neither. */
Test(fdmsg, loans__sent__arrive_with_as_many_descriptors)
{
	const struct fdmsg_borrow borrow = {.token = 3, .shard = 1, .lineage = 4, .version = 5};
	struct fdmsg_lent lent = {.token = 3, .bytes = 4096}, got;
	const int fds[FDMSG_LENT_FDS] = {ends[0], ends[1]};

	cr_assert_eq(fdmsg_send(ends[0], FDMSG_BORROW, &borrow, sizeof(borrow), NULL, 0), 0);
	cr_assert_eq(fdmsg_recv(ends[1], &msg), 1);
	cr_assert_eq(memcmp(msg.body, &borrow, sizeof(borrow)), 0);
	for (uint32_t num_fds = 0; num_fds <= FDMSG_LENT_FDS; num_fds += FDMSG_LENT_FDS) {
		cr_assert_eq(fdmsg_send(ends[1], FDMSG_LENT, &lent, sizeof(lent), fds, num_fds), 0);
		cr_assert_eq(fdmsg_recv(ends[0], &msg), 1);
		cr_assert_eq(msg.head.kind, FDMSG_LENT);
		memcpy(&got, msg.body, sizeof(got));
		cr_assert_eq(memcmp(&got, &lent, sizeof(got)), 0);
		cr_assert_eq(msg.fds[0] >= 0, num_fds > 0);
		cr_assert_eq(msg.fds[1] >= 0, num_fds > 0);
		fdmsg_close_fds(&msg);
	}
}

/* As many as a worker may send before it reads an answer: the agent never waits to answer them. */
Test(fdmsg, ahead__all_answers_unread__fit_into_the_socket)
{
	const struct fdmsg_gpu gpu = {.base = 4096, .bytes = 8192};
	const struct fdmsg_memory_id answer = {.id = 1};

	for (uint32_t i = 0; i < FDMSG_AHEAD; i++)
		cr_assert_eq(fdmsg_send(ends[0], FDMSG_GPU, &gpu, sizeof(gpu), &ends[0], 1), 0);
	for (uint32_t i = 0; i < FDMSG_AHEAD; i++)
		cr_assert_eq(
			fdmsg_send(ends[1], FDMSG_MEMORY_ID, &answer, sizeof(answer), NULL, 0), 0);
	for (uint32_t i = 0; i < FDMSG_AHEAD; i++) {
		cr_assert_eq(fdmsg_recv(ends[1], &msg), 1);
		cr_assert_geq(msg.fds[0], 0);
		fdmsg_close_fds(&msg);
	}
	cr_assert_eq(fdmsg_recv(ends[1], &msg), -EAGAIN);
}

Test(fdmsg, recv__malformed__is_eproto_and_closes_descriptors)
{
	static uint8_t packet[FDMSG_BYTES_MAX + 64];
	const struct fdmsg_head good = {
		FDMSG_MAGIC, FDMSG_MEMORY, 1, sizeof(struct fdmsg_memory), 0};
	const size_t whole = sizeof(good) + sizeof(struct fdmsg_memory);
	const struct {
		struct fdmsg_head head;
		size_t bytes;
		unsigned fds;
	} bad[] = {
		{{1, FDMSG_MEMORY, 1, sizeof(struct fdmsg_memory), 0}, whole, 1},
		{{FDMSG_MAGIC, 0, 1, 0, 0}, sizeof(good), 1},
		{{FDMSG_MAGIC, FDMSG_LENT + 1, 1, 0, 0}, sizeof(good), 1},
		{{FDMSG_MAGIC, FDMSG_LENT, 3, sizeof(struct fdmsg_lent), 0},
			sizeof(good) + sizeof(struct fdmsg_lent), 3},
		{{FDMSG_MAGIC, FDMSG_BORROW, 1, sizeof(struct fdmsg_borrow), 0},
			sizeof(good) + sizeof(struct fdmsg_borrow), 1},
		{{FDMSG_MAGIC, FDMSG_GPU, 2, sizeof(struct fdmsg_gpu), 0},
			sizeof(good) + sizeof(struct fdmsg_gpu), 2},
		{{FDMSG_MAGIC, FDMSG_GPU, 0, sizeof(struct fdmsg_gpu), 0},
			sizeof(good) + sizeof(struct fdmsg_gpu), 1},
		{{FDMSG_MAGIC, FDMSG_GPU, 1, sizeof(struct fdmsg_gpu), 0},
			sizeof(good) + sizeof(struct fdmsg_gpu), 0},
		{{FDMSG_MAGIC, FDMSG_GPU, 1, sizeof(struct fdmsg_gpu) - 1, 0},
			sizeof(good) + sizeof(struct fdmsg_gpu) - 1, 1},
		{{FDMSG_MAGIC, FDMSG_SESSION, 4, sizeof(struct fdmsg_session), 0},
			sizeof(good) + sizeof(struct fdmsg_session), 4},
		{{FDMSG_MAGIC, FDMSG_SESSION, 7, sizeof(struct fdmsg_session), 0},
			sizeof(good) + sizeof(struct fdmsg_session), 7},
		{{FDMSG_MAGIC, FDMSG_SESSION, 6, sizeof(struct fdmsg_session), 0},
			sizeof(good) + sizeof(struct fdmsg_session), 5},
		{{FDMSG_MAGIC, UINT16_MAX, 1, 0, 0}, sizeof(good), 1},
		{{FDMSG_MAGIC, FDMSG_MEMORY, 1, sizeof(struct fdmsg_memory), 1}, whole, 1},
		{{FDMSG_MAGIC, FDMSG_MEMORY, 1, sizeof(struct fdmsg_memory) - 1, 0}, whole, 1},
		{{FDMSG_MAGIC, FDMSG_MEMORY, 1, UINT32_MAX, 0}, whole, 1},
		{good, whole - 1, 1},
		{good, whole + 1, 1},
		{good, whole, 0},
		{good, whole, 2},
		{good, whole, 5},
		{good, whole, 6},
		{good, whole, 60},
		{{FDMSG_MAGIC, FDMSG_MEMORY, 0, sizeof(struct fdmsg_memory), 0}, whole, 1},
		{{FDMSG_MAGIC, FDMSG_HELLO, 1, sizeof(struct fdmsg_hello), 0},
			sizeof(good) + sizeof(struct fdmsg_hello), 1},
		{good, 1, 1},
		{good, 15, 1},
		{good, sizeof(packet), 1},
	};
	unsigned before = open_fds();

	for (size_t i = 0; i < TH_ARRAY_LEN(bad); i++) {
		memcpy(packet, &bad[i].head, sizeof(bad[i].head));
		send_raw(packet, bad[i].bytes, bad[i].fds);
		cr_assert_eq(fdmsg_recv(ends[1], &msg), -EPROTO, "case %zu", i);
		cr_assert_eq(open_fds(), before, "case %zu", i);
	}
	memcpy(packet, &good, sizeof(good));
	send_raw(packet, whole, 1);
	cr_assert_eq(fdmsg_recv(ends[1], &msg), 1);
	fdmsg_close_fds(&msg);
}

Test(fdmsg, send__full_or_gone__says_so_without_a_signal)
{
	const struct fdmsg_forget forget = {.id = 1};
	int rc = 0;

	for (int i = 0; i < 100000 && rc == 0; i++)
		rc = fdmsg_send(ends[0], FDMSG_FORGET, &forget, sizeof(forget), NULL, 0);
	cr_assert_eq(rc, -EAGAIN);
	th_fd_close(&ends[1]);
	rc = fdmsg_send(ends[0], FDMSG_FORGET, &forget, sizeof(forget), NULL, 0);
	/* Reset, because what was sent was not read; a broken pipe otherwise. */
	cr_assert(rc == -ECONNRESET || rc == -EPIPE);
	rc = fdmsg_send(ends[0], FDMSG_FORGET, &forget, sizeof(forget), NULL, 0);
	cr_assert_eq(rc, -EPIPE);
}

/* ---- peer ---------------------------------------------------------------------------------- */

Test(fdmsg, peer__identify__this_process)
{
	struct peer peer;

	cr_assert_eq(peer_identify(ends[0], &peer), 0);
	cr_assert_eq(peer.uid, getuid());
	cr_assert_eq(peer.gid, getgid());
	cr_assert_eq(peer.pid, getpid());
	cr_assert_geq(peer.pidfd, 0);
	cr_assert_not(peer_pidfd_ended(peer.pidfd));
	peer_fini(&peer);
	cr_assert_eq(peer.pidfd, -1);
	cr_assert_eq(peer_identify(-1, &peer), -EBADF);
}

Test(fdmsg, peer__process_ends__its_pidfd_says_so, .timeout = 10)
{
	int go[2];

	cr_assert_eq(pipe(go), 0);
	pid_t child = fork();
	if (child == 0) {
		char byte;
		(void)close(go[1]);
		_exit((int)read(go[0], &byte, 1));
	}
	int pidfd = peer_pidfd_by_pid(child);
	cr_assert_geq(pidfd, 0);
	cr_assert(fcntl(pidfd, F_GETFD) & FD_CLOEXEC);
	cr_assert_not(peer_pidfd_ended(pidfd));
	cr_assert_eq(kill(child, SIGKILL), 0);
	cr_assert_eq(waitpid(child, NULL, 0), child);
	cr_assert(peer_pidfd_ended(pidfd));
	th_fd_close(&pidfd);
	cr_assert_lt(peer_pidfd_by_pid(child), 0);
	th_fd_close(&go[0]);
	th_fd_close(&go[1]);
	int own = peer_own_pidfd();
	cr_assert_geq(own, 0);
	cr_assert_not(peer_pidfd_ended(own));
	th_fd_close(&own);
}

/* ---- listener ------------------------------------------------------------------------------ */

static char dir[64];

static void
setup_dir(void)
{
	strcpy(dir, "/tmp/thc-listener-XXXXXX");
	cr_assert_not_null(mkdtemp(dir));
}

static void
teardown_dir(void)
{
	char command[128];

	(void)snprintf(command, sizeof(command), "rm -rf %s", dir);
	cr_assert_eq(system(command), 0);
}

TestSuite(listener, .init = setup_dir, .fini = teardown_dir);

static const char *
in_dir(const char *name)
{
	static char path[256];

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

static int
connect_to(const char *path, int type)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int sock = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	strcpy(address.sun_path, path);
	if (connect(sock, (const struct sockaddr *)&address, sizeof(address)) < 0) {
		int code = -errno;
		th_fd_close(&sock);
		return code;
	}
	return sock;
}

Test(listener, open__new_path__has_mode_and_accepts)
{
	struct th_err err = {0};
	struct stat st;
	int listener = listener_open(in_dir("agent.fds"), SOCK_SEQPACKET, (gid_t)-1, &err);

	cr_assert_geq(listener, 0, "%s", err.text);
	cr_assert_eq(stat(in_dir("agent.fds"), &st), 0);
	cr_assert_eq(st.st_mode & 0777, 0660);
	cr_assert_eq(listener_accept(listener), -EAGAIN);
	int client = connect_to(in_dir("agent.fds"), SOCK_SEQPACKET);
	int sock = listener_accept(listener);
	cr_assert_geq(sock, 0);
	cr_assert(fcntl(sock, F_GETFD) & FD_CLOEXEC);
	cr_assert(fcntl(sock, F_GETFL) & O_NONBLOCK);
	th_fd_close(&sock);
	th_fd_close(&client);
	th_fd_close(&listener);
}

Test(listener, open__live_listener__is_refused_and_left_alone)
{
	const int types[] = {SOCK_SEQPACKET, SOCK_STREAM};

	for (size_t i = 0; i < TH_ARRAY_LEN(types); i++) {
		struct th_err err = {0};
		int first = listener_open(in_dir("s"), types[i], (gid_t)-1, &err);
		cr_assert_geq(first, 0);
		cr_assert_eq(
			listener_open(in_dir("s"), SOCK_SEQPACKET, (gid_t)-1, &err), TH_E_STATE);
		cr_assert_not_null(strstr(err.text, "another agent serves"));
		cr_assert_not_null(strstr(err.text, dir));
		int client = connect_to(in_dir("s"), types[i]);
		cr_assert_geq(client, 0);
		th_fd_close(&client);
		th_fd_close(&first);
	}
}

Test(listener, open__stale_socket__is_replaced)
{
	struct th_err err = {0};
	int first = listener_open(in_dir("s"), SOCK_STREAM, (gid_t)-1, &err);

	th_fd_close(&first); /* its file stays, as after a crash */
	cr_assert_eq(access(in_dir("s"), F_OK), 0);
	int second = listener_open(in_dir("s"), SOCK_SEQPACKET, (gid_t)-1, &err);
	cr_assert_geq(second, 0, "%s", err.text);
	th_fd_close(&second);
	cr_assert_eq(listener_clear(in_dir("s"), &err), 0);
	cr_assert_eq(access(in_dir("s"), F_OK), -1);
	cr_assert_eq(listener_clear(in_dir("s"), &err), 0);
}

Test(listener, open__no_socket_or_long_path__is_refused)
{
	struct th_err err = {0};
	char path[200];
	FILE *file = fopen(in_dir("s"), "w");

	cr_assert_not_null(file);
	fclose(file);
	cr_assert_eq(listener_open(in_dir("s"), SOCK_STREAM, (gid_t)-1, &err), -EEXIST);
	cr_assert_eq(access(in_dir("s"), F_OK), 0);
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	cr_assert_eq(listener_open(path, SOCK_STREAM, (gid_t)-1, &err), TH_E_INVALID);
	cr_assert_not_null(strstr(err.text, "shorter"));
	cr_assert_eq(listener_open(in_dir("no/s"), SOCK_STREAM, (gid_t)-1, &err), -ENOENT);
}

Test(listener, lock_dir__second_agent__is_refused_until_the_first_ends)
{
	struct th_err err = {0};
	const char *path = in_dir("run");
	int first = listener_lock_dir(path, &err);

	cr_assert_geq(first, 0, "%s", err.text);
	cr_assert_eq(listener_lock_dir(path, &err), TH_E_STATE);
	cr_assert_not_null(strstr(err.text, "another agent serves"));
	th_fd_close(&first);
	first = listener_lock_dir(path, &err);
	cr_assert_geq(first, 0);
	th_fd_close(&first);
	cr_assert_eq(listener_lock_dir("/proc/none", &err), -ENOENT);
}

static unsigned closed_by_hook;

static void
close_hook(int fd)
{
	closed_by_hook++;
	th_fd_close(&fd);
}

/* close() of a stranger's descriptor may take for ever: each goes the receiver's way. */
Test(fdmsg, close_fd__refused_and_unread_messages__every_descriptor_goes_there)
{
	const uint8_t bytes[8] = {0};
	unsigned before = open_fds();

	msg.close_fd = close_hook;
	send_raw(bytes, sizeof(bytes), 60);
	cr_assert_eq(fdmsg_recv(ends[1], &msg), -EPROTO);
	cr_assert_eq(closed_by_hook, 60);
	send_raw(bytes, sizeof(bytes), 60);
	send_raw(bytes, sizeof(bytes), 0);
	send_raw(bytes, 1, 3);
	fdmsg_discard(ends[1], close_hook);
	cr_assert_eq(closed_by_hook, 123);
	cr_assert_eq(open_fds(), before);
	cr_assert_eq(send(ends[0], bytes, 1, MSG_NOSIGNAL), -1);
	cr_assert_eq(errno, EPIPE);
	fdmsg_discard(ends[1], close_hook); /* again is harmless */
	cr_assert_eq(closed_by_hook, 123);
}

/* What was said before is still heard. */
Test(fdmsg, discard__last_words__arrive)
{
	const struct fdmsg_forget forget = {3, 0};

	cr_assert_eq(fdmsg_send(ends[1], FDMSG_FORGET, &forget, sizeof(forget), NULL, 0), 0);
	send_raw("unread", 6, 1);
	fdmsg_discard(ends[1], NULL);
	th_fd_close(&ends[1]);
	cr_assert_eq(fdmsg_recv(ends[0], &msg), 1);
	cr_assert_eq(msg.head.kind, FDMSG_FORGET);
	cr_assert_eq(fdmsg_recv(ends[0], &msg), 0);
}

/* The kernel cuts off what the table has no room for, and the message comes without. */
static void
leave_room(unsigned room)
{
	struct rlimit limit;

	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = limit.rlim_max;
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	int lowest = fcntl(ends[0], F_DUPFD_CLOEXEC, 0);
	cr_assert_geq(lowest, 0);
	cr_assert_eq(close(lowest), 0);
	limit.rlim_cur = (rlim_t)lowest + room;
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

Test(fdmsg, recv__no_room_for_descriptors__is_emfile_and_keeps_the_message)
{
	const struct fdmsg_memory memory = {.token = 7, .kind = FDMSG_FILE, .bytes = 4096};
	const struct fdmsg_session session = {.session = 7};
	const struct fdmsg_forget forget = {.id = 9};
	int fds[5] = {ends[0], ends[1], ends[0], ends[1], ends[0]};
	struct fdmsg_memory got;

	cr_assert_eq(fdmsg_send(ends[0], FDMSG_MEMORY, &memory, sizeof(memory), fds, 1), 0);
	cr_assert_eq(fdmsg_send(ends[0], FDMSG_SESSION, &session, sizeof(session), fds, 5), 0);
	cr_assert_eq(fdmsg_send(ends[0], FDMSG_FORGET, &forget, sizeof(forget), NULL, 0), 0);
	cr_assert_eq(fdmsg_send(ends[0], FDMSG_MEMORY, &memory, sizeof(memory), fds, 1), 0);
	leave_room(0);
	cr_assert_eq(fdmsg_recv(ends[1], &msg), -EMFILE);
	cr_assert_eq(msg.head.kind, FDMSG_MEMORY);
	memcpy(&got, msg.body, sizeof(got));
	cr_assert_eq(got.token, 7);
	cr_assert_eq(msg.fds[0], -1);
	leave_room(3); /* of five */
	cr_assert_eq(fdmsg_recv(ends[1], &msg), -EMFILE);
	for (int i = 0; i < 5; i++)
		cr_assert_eq(msg.fds[i], -1);
	cr_assert_eq(fdmsg_recv(ends[1], &msg), 1, "what has none needs no room");
	cr_assert_eq(fdmsg_recv(ends[1], &msg), 1, "those that came were closed");
	cr_assert_geq(msg.fds[0], 0);
	fdmsg_close_fds(&msg);
}

Test(fdmsg, peer__no_room_for_its_pidfd__is_refused)
{
	struct peer peer;

	leave_room(0);
	cr_assert_eq(peer_identify(ends[0], &peer), -EMFILE);
}
