/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_pins - which host memory this life of a GPU's process has pinned, slice by slice.
 *
 * A slice becomes an area of the process when the first request names bytes of it, and stays one
 * until its memory leaves, the process ends, or another slice needs its number: then the one that
 * was not named for the longest time goes. A number is used again only when the process has said
 * that nothing is pinned by it.
 *
 *   NONE -> OPENS   told, and owed an answer
 *        -> OPEN
 *        -> CLOSES  not to be used: to be told, then owed an answer
 *        -> NONE
 *
 * One that the process does not map goes from OPENS to CLOSES. What was said for it fails
 * (gpu_jobs.c), and for what names it later it is tried again.
 */
#include <errno.h>
#include <stdlib.h>

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/clock.h"
#include "ipc/base/log.h"
#include "transport/cuda/agent/gpus_own.h"

_Static_assert(GPU_AREAS_MAX < UINT16_MAX, "a number and one, for none");

enum pin_state { PIN_NONE, PIN_OPENS, PIN_OPEN, PIN_CLOSES };

struct pin {
	TAILQ_ENTRY(pin) entry; /* in the list of its state */
	enum pin_state state;
	struct gpus_host *host; /* borrows: it waits for its pins */
	uint64_t slice, bytes;
	int64_t since_ns; /* OPENS, CLOSES */
	bool said;        /* CLOSES: to the process */
	bool leaves;      /* OPENS: nobody wants it any more */
	bool pinned;
};

static uint64_t
slice_bytes(const struct gpus_host *host, uint64_t slice)
{
	return th_min_u64(host->slice_bytes, host->bytes - slice * host->slice_bytes);
}

static uint32_t
number_of(const struct gpu *gpu, const struct pin *pin)
{
	return (uint32_t)(pin - gpu->pins);
}

/* ---- telling ------------------------------------------------------------------------------- */

static struct pin *
gpu_pins_find_free(struct gpu *gpu)
{
	struct pin *pin = TAILQ_FIRST(&gpu->free_pins);
	if (pin)
		TAILQ_REMOVE(&gpu->free_pins, pin, entry);
	else if (gpu->num_pins < GPU_AREAS_MAX)
		pin = &gpu->pins[gpu->num_pins++];
	return pin;
}

static void
gpu_pins_give_back(struct gpu *gpu, struct pin *pin)
{
	pin->state = PIN_NONE;
	pin->host = NULL;
	TAILQ_INSERT_HEAD(&gpu->free_pins, pin, entry);
}

static void
begin_closing(struct gpu *gpu, struct pin *pin)
{
	TAILQ_REMOVE(&gpu->open_pins, pin, entry);
	pin->state = PIN_CLOSES;
	pin->since_ns = th_now_ns();
	pin->said = false;
	TAILQ_INSERT_TAIL(&gpu->closing_pins, pin, entry);
}

static int
say_area(struct gpu *gpu, const struct pin *pin, uint64_t bytes)
{
	const struct gpu_area message = {.kind = GPU_AREA,
		.area = number_of(gpu, pin),
		.at = bytes > 0 ? pin->slice * pin->host->slice_bytes : 0,
		.bytes = bytes};
	int rc = process_say(
		&gpu->process, &message, sizeof(message), bytes > 0 ? pin->host->fd : -1);
	return gpu_said(gpu, rc) ? 0 : -EAGAIN;
}

static int
open_slice(struct gpu *gpu, struct gpus_host *host, uint64_t slice, struct pin **ret_pin)
{
	struct pin *pin = gpu_pins_find_free(gpu);
	if (!pin) {
		/* One place is found at a time: whoever waits for it is heard again then. */
		if (TAILQ_EMPTY(&gpu->closing_pins) && !TAILQ_EMPTY(&gpu->open_pins))
			begin_closing(gpu, TAILQ_FIRST(&gpu->open_pins));
		(void)pins_say(gpu);
		return -EAGAIN;
	}
	*pin = (struct pin){.host = host, .slice = slice, .bytes = slice_bytes(host, slice)};
	/* Before: it may have got it, whatever becomes of it. */
	__atomic_fetch_or(&host->told, UINT32_C(1) << gpu->index, __ATOMIC_RELAXED);
	if (say_area(gpu, pin, pin->bytes) < 0) {
		gpu_pins_give_back(gpu, pin);
		return -EAGAIN;
	}
	pin->state = PIN_OPENS;
	pin->since_ns = th_now_ns();
	TAILQ_INSERT_TAIL(&gpu->opening_pins, pin, entry);
	if (!host->areas[gpu->index])
		host->areas[gpu->index] = th_calloc(host->num_slices, sizeof(uint16_t));
	host->areas[gpu->index][slice] = (uint16_t)(number_of(gpu, pin) + 1);
	host->num_pins[gpu->index]++;
	*ret_pin = pin;
	return 0;
}

int
pins_need(struct gpu *gpu, struct gpus_host *host, uint64_t at, struct gpu_run *ret_run)
{
	const uint16_t *areas = host->areas[gpu->index];
	uint64_t slice = at / host->slice_bytes;
	TH_ASSERT(at < host->bytes);
	struct pin *pin = areas && areas[slice] > 0 ? &gpu->pins[areas[slice] - 1] : NULL;
	if (pin && pin->state == PIN_CLOSES)
		return -EAGAIN;
	if (!pin && open_slice(gpu, host, slice, &pin) < 0)
		return -EAGAIN;
	if (pin->state == PIN_OPEN) {
		TAILQ_REMOVE(&gpu->open_pins, pin, entry);
		TAILQ_INSERT_TAIL(&gpu->open_pins, pin, entry);
	}
	ret_run->area = number_of(gpu, pin);
	ret_run->area_at = at % host->slice_bytes;
	return 0;
}

uint64_t
pins_room(const struct gpus_host *host, uint64_t at)
{
	return slice_bytes(host, at / host->slice_bytes) - at % host->slice_bytes;
}

bool
pins_say(struct gpu *gpu)
{
	struct pin *pin;
	TAILQ_FOREACH(pin, &gpu->closing_pins, entry)
	{
		if (pin->said)
			continue;
		if (say_area(gpu, pin, 0) < 0)
			return false;
		pin->said = true;
	}
	return true;
}

/* ---- hearing ------------------------------------------------------------------------------- */

/* It is not the process's any more. */
static void
gpu_pins_drop(struct gpu *gpu, struct pin *pin)
{
	struct gpus_host *host = pin->host;
	if (pin->pinned)
		gpu->pinned_bytes -= pin->bytes;
	host->areas[gpu->index][pin->slice] = 0;
	gpu_pins_give_back(gpu, pin);
	if (--host->num_pins[gpu->index] == 0 && host->leaves[gpu->index])
		host_left(host);
}

static void
hear_open(struct gpu *gpu, struct pin *pin, const struct gpu_area_is *area)
{
	bool mapped = area->code == 0;
	TAILQ_REMOVE(&gpu->opening_pins, pin, entry);
	TAILQ_INSERT_TAIL(&gpu->open_pins, pin, entry);
	pin->state = PIN_OPEN;
	pin->pinned = mapped && area->pinned == 1;
	if (pin->pinned)
		gpu->pinned_bytes += pin->bytes;
	else if (mapped && !gpu->says_unpinned)
		log_warn("gpu", "memory is not pinned, so copies are slower: %s", area->text);
	gpu->says_unpinned |= mapped && !pin->pinned;
	if (!mapped)
		log_warn("gpu", "a GPU does not reach memory of the agent gpu=%s pci=%s why='%s'",
			gpu->status.name, gpu->status.pci, area->text);
	if (!mapped || pin->leaves)
		begin_closing(gpu, pin);
}

void
pins_hear(struct gpu *gpu, const struct gpu_area_is *area)
{
	struct pin *pin = area->area < gpu->num_pins ? &gpu->pins[area->area] : NULL;
	if (pin && pin->state == PIN_OPENS) {
		if (opens_hear_turn(gpu, pin->since_ns))
			hear_open(gpu, pin, area);
	} else if (pin && pin->state == PIN_CLOSES && pin->said) {
		if (area->code < 0) { /* then it may have it still */
			gpu_kill(gpu, "it did not let go of the agent's memory: %s", area->text);
			return;
		}
		gpu->pin_closed_ns = th_now_ns();
		TAILQ_REMOVE(&gpu->closing_pins, pin, entry);
		gpu_pins_drop(gpu, pin);
	} else {
		gpu_kill(gpu, "it pinned what it was not asked to pin");
	}
}

/* ---- the end ------------------------------------------------------------------------------- */

void
pins_forget(struct gpu *gpu, struct gpus_host *host)
{
	const uint16_t *areas = host->areas[gpu->index];
	TH_ASSERT(!host->leaves[gpu->index]);
	host->leaves[gpu->index] = true;
	for (uint32_t i = 0; i < host->num_slices && host->num_pins[gpu->index] > 0; i++) {
		struct pin *pin = areas[i] > 0 ? &gpu->pins[areas[i] - 1] : NULL;
		if (pin && pin->state == PIN_OPEN)
			begin_closing(gpu, pin);
		else if (pin)
			pin->leaves = true;
	}
	if (host->num_pins[gpu->index] == 0)
		host_left(host);
}

static void
gpu_pins_drop_all(struct gpu *gpu, struct pin_list *list)
{
	struct pin *pin;
	while ((pin = TAILQ_FIRST(list))) {
		TAILQ_REMOVE(list, pin, entry);
		gpu_pins_drop(gpu, pin);
	}
}

void
pins_died(struct gpu *gpu)
{
	gpu_pins_drop_all(gpu, &gpu->opening_pins);
	gpu_pins_drop_all(gpu, &gpu->open_pins);
	gpu_pins_drop_all(gpu, &gpu->closing_pins);
	gpu->says_unpinned = false;
}

/* One is done after the other. */
static int64_t
deadline(const struct gpu *gpu, const struct pin_list *list, int64_t last_ns)
{
	const struct pin *pin = TAILQ_FIRST(list);
	if (!pin)
		return INT64_MAX;
	return th_deadline_ns(th_max_i64(pin->since_ns, last_ns), gpu->gpus->config.hang_ns);
}

int64_t
pins_opening_ns(const struct gpu *gpu)
{
	const struct pin *pin = TAILQ_FIRST(&gpu->opening_pins);
	return pin ? pin->since_ns : INT64_MAX;
}

int64_t
pins_deadline(const struct gpu *gpu)
{
	return th_min_i64(deadline(gpu, &gpu->opening_pins, gpu->opened_ns),
		deadline(gpu, &gpu->closing_pins, gpu->pin_closed_ns));
}

void
pins_init(struct gpu *gpu)
{
	TAILQ_INIT(&gpu->opening_pins);
	TAILQ_INIT(&gpu->open_pins);
	TAILQ_INIT(&gpu->closing_pins);
	TAILQ_INIT(&gpu->free_pins);
	gpu->pins = th_calloc(GPU_AREAS_MAX, sizeof(gpu->pins[0]));
}

void
pins_end(struct gpu *gpu)
{
	pins_died(gpu);
	free(gpu->pins);
}
