/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify - see notify.h. The protocol of sd_notify(3): one datagram to a unix socket.
 */
#include "ipc/base/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "ipc/base/err.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"

void
th_notify(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t length = path ? strlen(path) : 0;
	if (length == 0)
		return;
	if (length >= sizeof(address.sun_path) || (path[0] != '/' && path[0] != '@')) {
		log_warn("main", "NOTIFY_SOCKET is no socket path path=%s", path);
		return;
	}
	memcpy(address.sun_path, path, length);
	if (path[0] == '@')
		address.sun_path[0] = '\0'; /* an abstract name */
	int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
	if (sock < 0 || sendto(sock, state, strlen(state), MSG_NOSIGNAL,
				(const struct sockaddr *)&address, bytes) < 0)
		log_warn("main", "cannot notify path=%s reason=\"%s\"", path, th_strerror(-errno));
	th_fd_close(&sock);
}
