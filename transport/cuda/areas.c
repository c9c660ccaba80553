/* SPDX-License-Identifier: Apache-2.0 */
/*
 * areas - maps and pins the agent's host memory.
 */
#include "transport/cuda/areas.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"

#define AREA_BYTES_MAX (UINT64_C(1) << 40)
#define AREA_PAGE 4096u

void
areas_init(struct areas *areas, const struct cuda *cuda)
{
	memset(areas, 0, sizeof(*areas));
	areas->cuda = cuda;
}

void
areas_done(struct areas *areas, struct area *area)
{
	if (!area || --area->uses > 0)
		return;
	/* A failure leaves the pages pinned until this process ends, and nothing else. */
	if (area->pinned)
		areas->cuda->cuMemHostUnregister(area->data);
	munmap(area->data, area->bytes);
	free(area);
}

static int
check(uint64_t bytes, int fd, struct th_err *err)
{
	struct stat stat;
	if (fd < 0)
		return th_fail(err, TH_E_PROTOCOL, "an area came without its descriptor");
	if (bytes % AREA_PAGE != 0 || bytes > AREA_BYTES_MAX)
		return th_fail(err, TH_E_PROTOCOL, "an area of %llu bytes is none",
			(unsigned long long)bytes);
	if (fstat(fd, &stat) < 0)
		return th_fail(err, -errno, "an area's descriptor: %s", strerror(errno));
	if (stat.st_size < 0 || (uint64_t)stat.st_size < bytes)
		return th_fail(err, TH_E_PROTOCOL,
			"an area of %llu bytes has only %lld behind its descriptor",
			(unsigned long long)bytes, (long long)stat.st_size);
	return 0;
}

static int
add(struct areas *areas, uint32_t number, uint64_t bytes, int fd, struct th_err *why,
	struct th_err *err)
{
	const struct cuda *cuda = areas->cuda;
	int rc = check(bytes, fd, err);
	if (rc < 0)
		return rc;
	void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (data == MAP_FAILED)
		return th_fail(err, -errno, "an area of %llu bytes cannot be mapped: %s",
			(unsigned long long)bytes, strerror(errno));
	madvise(data, bytes, MADV_DONTDUMP); /* other people's weights */
	struct area *area = th_calloc(1, sizeof(*area));
	*area = (struct area){.data = data, .bytes = bytes, .uses = 1};
	CUresult result = cuda->cuMemHostRegister(data, bytes, CU_MEMHOSTREGISTER_PORTABLE);
	area->pinned = result == CUDA_SUCCESS;
	if (!area->pinned)
		th_fail(why, -EIO,
			"the driver does not pin %llu bytes of staging memory, so that copies "
			"through it are slow: cuMemHostRegister says %s",
			(unsigned long long)bytes, cuda_result_name(cuda, result));
	areas->areas[number] = area;
	return 0;
}

int
areas_set(struct areas *areas, uint32_t number, uint64_t bytes, int fd, struct th_err *ret_why,
	struct th_err *err)
{
	struct area *before = areas->areas[number];
	areas->areas[number] = NULL;
	areas_done(areas, before);
	memset(ret_why, 0, sizeof(*ret_why));
	return bytes ? add(areas, number, bytes, fd, ret_why, err) : 0;
}

bool
areas_pinned(const struct areas *areas, uint32_t number)
{
	return areas->areas[number] && areas->areas[number]->pinned;
}

struct area *
areas_use(struct areas *areas, uint32_t number, uint64_t at, uint64_t bytes)
{
	struct area *area = number < GPU_AREAS_MAX ? areas->areas[number] : NULL;
	if (!area || !th_range_fits(at, bytes, area->bytes))
		return NULL;
	area->uses++;
	return area;
}
