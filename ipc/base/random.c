/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random - see random.h.
 */
#include "ipc/base/random.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

#include "ipc/base/err.h"
#include "ipc/base/log.h"

void
th_random(void *ret_bytes, size_t count)
{
	uint8_t *at = ret_bytes;
	while (count > 0) {
		ssize_t got = getrandom(at, count, 0);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0) {
			log_error("random",
				"the kernel gives no random numbers (%s): allow getrandom in the "
				"filter of system calls",
				th_strerror(-errno));
			abort();
		}
		at += got;
		count -= (size_t)got;
	}
}

uint64_t
th_random_name(void)
{
	uint64_t name;
	do
		th_random(&name, sizeof(name));
	while (name == 0);
	return name;
}
