/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpus_rig - see gpus_rig.h.
 */
#include "tests/support/cuda/gpus_rig.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/fd.h"

#define PAGE UINT64_C(4096)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned happened;

void
rig_happens(void)
{
	pthread_mutex_lock(&lock);
	happened++;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

void
rig_wait(unsigned count)
{
	pthread_mutex_lock(&lock);
	while (happened < count)
		pthread_cond_wait(&changed, &lock);
	happened -= count;
	pthread_mutex_unlock(&lock);
}

static void
done(struct gpu_request *request)
{
	(void)request;
	rig_happens();
}

void
rig_submit(struct gpu_request *request)
{
	request->done = done;
	gpu_submit(request);
}

int
rig_carry(struct gpu_request *request)
{
	rig_submit(request);
	rig_wait(1);
	return request->code;
}

struct gpu_request
rig_read(const struct gpu_span *from, uint8_t *data)
{
	return (struct gpu_request){.op = GPU_READ,
		.from = from,
		.num_from = 1,
		.data = data,
		.bytes = (uint32_t)from->bytes};
}

struct gpu_request
rig_write(const struct gpu_span *to, const uint8_t *data)
{
	return (struct gpu_request){.op = GPU_WRITE,
		.to = to,
		.num_to = 1,
		.data = (uint8_t *)(uintptr_t)data,
		.bytes = (uint32_t)to->bytes};
}

struct gpu_request
rig_copy(const struct gpu_span *to, const struct gpu_span *from)
{
	return (struct gpu_request){.op = GPU_COPY,
		.to = to,
		.num_to = 1,
		.from = from,
		.num_from = 1,
		.bytes = (uint32_t)from->bytes,
		.hashes = true};
}

struct gpu_request
rig_hash(const struct gpu_span *from)
{
	return (struct gpu_request){
		.op = GPU_HASH, .from = from, .num_from = 1, .bytes = (uint32_t)from->bytes};
}

uint64_t
rig_add(struct gpu_space *space, uint64_t at, uint64_t bytes)
{
	struct cuda_handle handle = {.kind = CUDA_KIND_LEGACY, .bytes = bytes, .id = at};
	struct th_err err = {0};
	memcpy(handle.uuid, gpu_space_uuid(space), 16);
	int rc = gpu_space_add(space, &handle, RIG_BASE + at, -1, NULL, &err);
	if (rc < 0)
		fprintf(stderr, "%s\n", err.text);
	TH_ASSERT(rc == 0);
	return RIG_BASE + at;
}

static void
gone(void *arg)
{
	(void)arg;
	rig_happens();
}

struct rig_host
rig_host_new(struct gpus *gpus, uint64_t pages)
{
	struct rig_host made = {.bytes = pages * PAGE, .fd = memfd_create("host", MFD_CLOEXEC)};
	TH_ASSERT(ftruncate(made.fd, (off_t)made.bytes) == 0);
	made.data = mmap(NULL, made.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd, 0);
	TH_ASSERT(made.data != MAP_FAILED);
	made.host = gpus_host_new(gpus, &(struct gpus_host_memory){.fd = made.fd,
						.data = made.data,
						.bytes = made.bytes,
						.slice_bytes = PAGE,
						.gone = gone});
	return made;
}

void
rig_host_end(struct rig_host *host)
{
	(void)munmap(host->data, host->bytes);
	th_fd_close(&host->fd);
}

static void
settled(void *arg, const struct th_err *result)
{
	*(struct th_err *)arg = *result;
	rig_happens();
}

int
rig_settle(struct gpu_space *space, struct th_err *ret_err)
{
	gpu_space_settle(space, settled, ret_err);
	rig_wait(1);
	return ret_err->code;
}

struct gpu_status
rig_status(struct gpus *gpus)
{
	struct gpu_status status = {0};
	TH_ASSERT(gpus_status(gpus, &status, 1) <= 1);
	return status;
}

void
rig_wait_until(bool (*is_so)(const struct gpu_status *status), struct gpus *gpus)
{
	int64_t until_ns = th_now_ns() + RIG_PATIENCE_NS;
	for (;;) {
		struct gpu_status status = rig_status(gpus);
		if (is_so(&status))
			return;
		TH_ASSERT(th_now_ns() < until_ns);
		usleep(500);
	}
}

bool
rig_no_imports(const struct gpu_status *status)
{
	return status->imports == 0 && status->spaces == 0;
}

bool
rig_no_process(const struct gpu_status *status)
{
	return status->pid == 0;
}

bool
rig_same(struct th_hash a, struct th_hash b)
{
	return a.lo == b.lo && a.hi == b.hi;
}
