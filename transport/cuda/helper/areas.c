/* SPDX-License-Identifier: Apache-2.0 */
/*
 * areas - maps and pins the agent's host memory.
 */
#include "transport/cuda/helper/areas.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"
#include "ipc/base/fd.h"
#include "ipc/base/units.h"
#include "transport/cuda/helper/module.h"

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
areas_check(const struct area *area, struct th_err *err)
{
	uint64_t bytes = area->bytes, end;
	int fd = area->fd;
	struct stat stat;
	if (fd < 0)
		return th_fail(err, TH_E_LIMIT,
			"the process of a GPU has no room for another descriptor: raise its limit "
			"(LimitNOFILE=)");
	if (bytes % AREA_PAGE != 0 || area->at % AREA_PAGE != 0 || bytes > AREA_BYTES_MAX ||
		!th_add_u64(area->at, bytes, &end))
		return th_fail(err, TH_E_PROTOCOL, "there is no area of %llu bytes at %llu",
			(unsigned long long)bytes, (unsigned long long)area->at);
	if (fstat(fd, &stat) < 0)
		return th_fail(err, -errno, "an area's descriptor: %s", strerror(errno));
	/* Behind the end of a file a touch would be a SIGBUS. */
	if (stat.st_size < 0 || (uint64_t)stat.st_size < end)
		return th_fail(err, TH_E_PROTOCOL,
			"an area up to byte %llu has only %lld behind its descriptor",
			(unsigned long long)end, (long long)stat.st_size);
	return 0;
}

static void
fail_map(struct area *area, int error)
{
	char bytes[TH_UNITS_BYTES];
	th_fail(&area->err, -error,
		"the process of a GPU cannot map %s of the agent's memory: %s%s",
		th_print_size(area->bytes, bytes), strerror(error),
		error == ENOMEM ? "; raise vm.max_map_count, and LimitAS= of the agent's unit"
				: "");
}

static void
open_area(struct chore *chore)
{
	struct area *area = chore->arg;
	const struct cuda *cuda = area->areas->opening->cuda;
	if (areas_check(area, &area->err) < 0)
		return;
	void *data = mmap(
		NULL, area->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, area->fd, (off_t)area->at);
	/* What is lent to processes of the host is only read from here on. */
	if (data == MAP_FAILED && errno == EPERM)
		data = mmap(NULL, area->bytes, PROT_READ, MAP_SHARED, area->fd, (off_t)area->at);
	if (data == MAP_FAILED) {
		fail_map(area, errno);
		return;
	}
	madvise(data, area->bytes, MADV_DONTDUMP); /* other people's weights */
	area->data = data;
	CUresult result = gpu_pin(cuda, data, area->bytes, &area->on_gpu);
	area->pinned = result == CUDA_SUCCESS;
	if (!area->pinned)
		th_fail(&area->err, -EIO,
			"the driver does not pin %llu bytes of host memory, so that copies to and "
			"from it are slow: cuMemHostRegister says %s",
			(unsigned long long)area->bytes, cuda_result_name(cuda, result));
}

static void
close_area(struct chore *chore)
{
	struct area *area = chore->arg;
	const struct cuda *cuda = area->areas->closing->cuda;
	CUresult result = CUDA_SUCCESS;
	if (area->pinned)
		result = cuda->cuMemHostUnregister(area->data);
	area->held = result != CUDA_SUCCESS;
	/* The driver takes whatever comes to lie there for these pages: nothing may. */
	if (area->held)
		th_fail(&area->err, -EIO,
			"the driver does not let go of host memory: cuMemHostUnregister says %s",
			cuda_result_name(cuda, result));
	else
		munmap(area->data, area->bytes);
}

/* ---- on our own ----------------------------------------------------------------------------- */

static void
forgotten(struct area *area)
{
	struct area none = {.number = area->number, .held = area->held};
	if (area->held)
		none.err = area->err;
	area->areas->is(area->areas->arg, &none);
	free(area);
}

static void
areas_closed(struct chore *chore)
{
	forgotten(chore->arg);
}

void
areas_done(struct area *area)
{
	if (!area || --area->uses > 0)
		return;
	area->chore = (struct chore){.arg = area, .work = close_area, .over = areas_closed};
	if (area->data)
		chores_add(area->areas->closing, &area->chore);
	else
		forgotten(area);
}

static void
areas_opened(struct chore *chore)
{
	struct area *area = chore->arg;
	th_fd_close(&area->fd);
	area->ready = true;
	area->areas->is(area->areas->arg, area);
	areas_done(area);
}

bool
areas_open(struct areas *areas, const struct gpu_area *message, int fd)
{
	if (areas->areas[message->area]) {
		th_fd_close(&fd);
		return false;
	}
	struct area *area = th_calloc(1, sizeof(*area));
	area->areas = areas;
	area->number = message->area;
	area->at = message->at;
	area->bytes = message->bytes;
	area->fd = fd;
	area->uses = 2; /* the table and the chore */
	area->chore = (struct chore){.arg = area, .work = open_area, .over = areas_opened};
	areas->areas[area->number] = area;
	chores_add(areas->opening, &area->chore);
	return true;
}

bool
areas_forget(struct areas *areas, uint32_t number)
{
	struct area *area = areas->areas[number];
	areas->areas[number] = NULL;
	areas_done(area);
	return area != NULL;
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
