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
#include "ipc/base/fd.h"

#define AREA_BYTES_MAX (UINT64_C(1) << 40)
#define AREA_PAGE 4096u

void
areas_init(struct areas *areas, struct chores *opening, struct chores *closing,
	void (*is)(void *arg, const struct area *area), void *arg)
{
	memset(areas, 0, sizeof(*areas));
	areas->opening = opening;
	areas->closing = closing;
	areas->is = is;
	areas->arg = arg;
}

/* ---- on the threads ------------------------------------------------------------------------- */

static int
check(uint64_t bytes, int fd, struct th_err *err)
{
	struct stat stat;
	if (fd < 0)
		return th_fail(err, TH_E_PROTOCOL, "an area came without its descriptor");
	if (bytes % AREA_PAGE != 0 || bytes > AREA_BYTES_MAX)
		return th_fail(err, TH_E_PROTOCOL, "there is no area of %llu bytes",
			(unsigned long long)bytes);
	if (fstat(fd, &stat) < 0)
		return th_fail(err, -errno, "an area's descriptor: %s", strerror(errno));
	/* Behind the end of a file a touch would be a SIGBUS. */
	if (stat.st_size < 0 || (uint64_t)stat.st_size < bytes)
		return th_fail(err, TH_E_PROTOCOL,
			"an area of %llu bytes has only %lld behind its descriptor",
			(unsigned long long)bytes, (long long)stat.st_size);
	return 0;
}

static void
open_area(struct chore *chore)
{
	struct area *area = chore->arg;
	const struct cuda *cuda = area->areas->opening->cuda;
	if (check(area->bytes, area->fd, &area->err) < 0)
		return;
	void *data = mmap(NULL, area->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, area->fd, 0);
	if (data == MAP_FAILED) {
		th_fail(&area->err, -errno, "an area of %llu bytes cannot be mapped: %s",
			(unsigned long long)area->bytes, strerror(errno));
		return;
	}
	madvise(data, area->bytes, MADV_DONTDUMP); /* other people's weights */
	area->data = data;
	CUresult result = cuda->cuMemHostRegister(data, area->bytes, CU_MEMHOSTREGISTER_PORTABLE);
	area->pinned = result == CUDA_SUCCESS;
	if (!area->pinned)
		th_fail(&area->err, -EIO,
			"the driver does not pin %llu bytes of staging memory, so that copies "
			"through it are slow: cuMemHostRegister says %s",
			(unsigned long long)area->bytes, cuda_result_name(cuda, result));
}

static void
close_area(struct chore *chore)
{
	struct area *area = chore->arg;
	/* A failure leaves the pages pinned until this process ends, and nothing else. */
	if (area->pinned)
		area->areas->closing->cuda->cuMemHostUnregister(area->data);
	munmap(area->data, area->bytes);
}

/* ---- on our own ----------------------------------------------------------------------------- */

static void
closed(struct chore *chore)
{
	free(chore->arg);
}

void
areas_done(struct area *area)
{
	if (!area || --area->uses > 0)
		return;
	area->chore = (struct chore){.arg = area, .work = close_area, .over = closed};
	if (area->data)
		chores_add(area->areas->closing, &area->chore);
	else
		free(area);
}

static void
opened(struct chore *chore)
{
	struct area *area = chore->arg;
	th_fd_close(&area->fd);
	area->ready = true;
	area->areas->is(area->areas->arg, area);
	areas_done(area);
}

void
areas_set(struct areas *areas, uint32_t number, uint64_t bytes, int fd)
{
	struct area *before = areas->areas[number];
	areas->areas[number] = NULL;
	areas_done(before);
	if (bytes == 0) {
		const struct area none = {.number = number};
		areas->is(areas->arg, &none);
		return;
	}
	struct area *area = th_calloc(1, sizeof(*area));
	area->areas = areas;
	area->number = number;
	area->bytes = bytes;
	area->fd = fd;
	area->uses = 2; /* the table and the chore */
	area->chore = (struct chore){.arg = area, .work = open_area, .over = opened};
	areas->areas[number] = area;
	chores_add(areas->opening, &area->chore);
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
