/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sigbus - see sigbus.h. The place to go back to is the thread's own, so threads do not meet.
 *
 * The jump restores no signal mask: the handler is installed with SA_NODEFER, so there is nothing
 * to restore, and a guarded call costs no system call.
 */
#include "transport/part/sigbus.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "transport/hash/nt_copy.h"

static __thread sigjmp_buf *volatile way_back; /* NULL: not within a guarded call */
static struct sigaction before;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int installed;

static void
on_fault(int number, siginfo_t *info, void *context)
{
	(void)info;
	(void)context;
	if (way_back)
		siglongjmp(*way_back, 1);
	/* Not ours: the access is made again under the action that there was, and faults again. */
	(void)sigaction(number, &before, NULL);
}

static void
install(void)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
	sigemptyset(&action.sa_mask);
	installed = sigaction(SIGBUS, &action, &before) < 0 ? -errno : 0;
}

int
sigbus_install(void)
{
	pthread_once(&once, install);
	return installed;
}

void
sigbus_mask(sigset_t *ret_mask)
{
	sigfillset(ret_mask);
	sigdelset(ret_mask, SIGBUS);
}

/* The whole body of a guarded call; returns from it. */
#define GUARDED(touch)                                                                             \
	do {                                                                                       \
		sigjmp_buf here;                                                                   \
		if (sigsetjmp(here, 0) != 0) {                                                     \
			way_back = NULL;                                                           \
			return TH_E_STALE_MEMORY;                                                  \
		}                                                                                  \
		way_back = &here;                                                                  \
		touch;                                                                             \
		way_back = NULL;                                                                   \
		return 0;                                                                          \
	} while (0)

int
sigbus_copy(void *to, const void *from, size_t bytes)
{
	GUARDED(memcpy(to, from, bytes));
}

/* Calls of their own: what they count is not what the jump finds again. */
static void __attribute__((noinline)) gather(uint8_t *to, const struct iovec *from, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		memcpy(to, from[i].iov_base, from[i].iov_len);
		to += from[i].iov_len;
	}
}

int
sigbus_gather(uint8_t *to, const struct iovec *from, uint32_t count)
{
	GUARDED(gather(to, from, count));
}

static void __attribute__((noinline))
scatter(const struct iovec *to, uint32_t count, const uint8_t *from)
{
	for (uint32_t i = 0; i < count; i++) {
		if (to[i].iov_len >= NT_COPY_MIN)
			nt_copy(to[i].iov_base, from, to[i].iov_len);
		else
			memcpy(to[i].iov_base, from, to[i].iov_len);
		from += to[i].iov_len;
	}
}

int
sigbus_scatter(const struct iovec *to, uint32_t count, const uint8_t *from)
{
	GUARDED(scatter(to, count, from));
}

int
sigbus_digest(struct digest *digest, const void *data, size_t bytes)
{
	GUARDED(digest_update(digest, data, bytes));
}

int
sigbus_nt_copy(void *to, const void *from, size_t bytes)
{
	GUARDED(nt_copy(to, from, bytes));
}

int
sigbus_digest_copy(struct digest *digest, void *to, const void *from, size_t bytes)
{
	GUARDED(digest_copy(digest, to, from, bytes));
}
