/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memlock - why memory could not be registered, in words that help.
 *
 * Registered memory is locked: its bytes count against RLIMIT_MEMLOCK once for each device, unless
 * the process has CAP_IPC_LOCK where that counts, which is in the host's own user namespace. The
 * kernel says ENOMEM for that and for much else.
 */
#ifndef TH_TRANSPORT_RDMA_DEVICE_MEMLOCK_H
#define TH_TRANSPORT_RDMA_DEVICE_MEMLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/checked.h"
#include "ipc/base/err.h"

#define MEMLOCK_REMEDY "set LimitMEMLOCK=infinity in the unit of thagentd, or give it CAP_IPC_LOCK"

struct memlock {
	uint64_t limit_bytes;  /* UINT64_MAX: none */
	uint64_t locked_bytes; /* for devices, now */
	bool exempt;           /* CAP_IPC_LOCK */
};

/* 0 or -errno. */
TH_MUST_USE int memlock_read(struct memlock *ret_memlock);
bool memlock_unlimited(const struct memlock *memlock);

/* The numbers that /proc/self/status, uid_map and the limit give. Pure. */
struct memlock memlock_parse(const char *status, const char *uid_map, uint64_t limit_bytes);

struct memlock_case {
	const char *rail;
	int code; /* of the device: -errno */
	uint64_t bytes;
	uint32_t mrs, mrs_max; /* of the device; mrs_max 0: not known */
	bool dmabuf;
	struct memlock memlock;
};

/* The sentence. Returns the code: TH_E_LIMIT where a limit bites. Pure. */
int memlock_explain(const struct memlock_case *failed, struct th_err *ret_err);

#endif
