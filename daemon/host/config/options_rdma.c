/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options_rdma - see options_rdma.h. Pure.
 */
#include "daemon/host/config/options_rdma.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/config.h"
#include "ipc/base/units.h"
#include "transport/rdma/device/rail_places.h"
#include "transport/rdma/memory/stage.h"
#include "transport/rdma/rdma.h"

#define SLICE_STEP UINT64_C(4096)
#define SLICE_MIN (UINT64_C(64) << 10)
#define SLICE_MAX (UINT64_C(1) << 20)
#define WINDOW_MIN (UINT64_C(64) << 10)
#define WINDOW_MAX (UINT64_C(1) << 30)
#define STAGE_MAX (UINT64_C(1) << 40)

struct options_rdma
options_rdma_default(void)
{
	return (struct options_rdma){
		.mode = OPTIONS_RDMA_AUTO,
		.gid_index = -1,
		.mtu = 4096,
		.timeout = 16,
		.retries = 7,
		.depth = 16,
		.slice = UINT64_C(256) << 10,
		.window = UINT64_C(8) << 20,
		.stage = RDMA_STAGE_BYTES,
	};
}

static int
set_mode(struct options_rdma *rdma, const char *key, const char *value, struct th_err *err)
{
	if (strcmp(value, "auto") == 0)
		rdma->mode = OPTIONS_RDMA_AUTO;
	else if (strcmp(value, "on") == 0)
		rdma->mode = OPTIONS_RDMA_ON;
	else if (strcmp(value, "off") == 0)
		rdma->mode = OPTIONS_RDMA_OFF;
	else
		return th_fail(
			err, TH_E_INVALID, "%s: \"%s\" is neither auto nor on nor off", key, value);
	return 0;
}

static int
set_devices(struct options_rdma *rdma, const char *key, const char *value, struct th_err *err)
{
	char list[OPTIONS_RDMA_TEXT_BYTES], *at = list, *one;
	uint32_t count = 0;

	if (strlen(value) >= sizeof(list))
		return th_fail(err, TH_E_INVALID, "%s: at most %zu bytes", key, sizeof(list) - 1);
	memcpy(list, value, strlen(value) + 1);
	while ((one = strsep(&at, ","))) {
		if (!place_rail_valid(one))
			return th_fail(err, TH_E_INVALID,
				"%s: \"%s\" is no device and no port of one (write mlx5_0 or "
				"mlx5_0/1, with commas between)",
				key, one);
		if (++count > PLACE_RAILS_MAX)
			return th_fail(err, TH_E_INVALID, "%s: more than %u devices", key,
				PLACE_RAILS_MAX);
	}
	memset(rdma->devices, 0, sizeof(rdma->devices));
	memcpy(rdma->devices, value, strlen(value));
	return 0;
}

static int
set_rails(struct options_rdma *rdma, const char *key, const char *value, struct th_err *err)
{
	struct place_rules rules;
	struct th_err why;

	if (strlen(value) >= sizeof(rdma->rails))
		return th_fail(
			err, TH_E_INVALID, "%s: at most %zu bytes", key, sizeof(rdma->rails) - 1);
	if (value[0] == '\0')
		return th_fail(err, TH_E_INVALID,
			"%s: is empty (write node0=mlx5_0+mlx5_1,node1=mlx5_2)", key);
	if (place_parse(value, &why, &rules) < 0)
		return th_fail(err, TH_E_INVALID, "%s: %s", key, why.text);
	place_free(&rules);
	memset(rdma->rails, 0, sizeof(rdma->rails));
	memcpy(rdma->rails, value, strlen(value));
	return 0;
}

static int
set_gid_index(struct options_rdma *rdma, const char *key, const char *value, struct th_err *err)
{
	uint32_t index;
	int rc = config_number(&index, 0, 255, key, value, err);

	if (rc == 0)
		rdma->gid_index = (int32_t)index;
	return rc;
}

static int
set_mtu(struct options_rdma *rdma, const char *key, const char *value, struct th_err *err)
{
	static const char *const sizes[] = {"256", "512", "1024", "2048", "4096"};

	for (size_t i = 0; i < TH_ARRAY_LEN(sizes); i++) {
		if (strcmp(value, sizes[i]) == 0) {
			rdma->mtu = 256u << i;
			return 0;
		}
	}
	return th_fail(err, TH_E_INVALID,
		"%s: \"%s\" is no packet size of RDMA: 256, 512, 1024, 2048 or 4096", key, value);
}

/* Whole pages, so that no slice but the last of a chunk begins or ends within one. */
static int
set_slice(struct options_rdma *rdma, const char *key, const char *value, struct th_err *err)
{
	uint64_t bytes;
	int rc = config_size(&bytes, SLICE_MIN, SLICE_MAX, key, value, err);

	if (rc == 0 && bytes % SLICE_STEP != 0)
		return th_fail(err, TH_E_INVALID, "%s: \"%s\" is no multiple of 4KiB", key, value);
	if (rc == 0)
		rdma->slice = bytes;
	return rc;
}

/* Less than one transfer needs would be none without saying so. */
static int
set_stage(struct options_rdma *rdma, const char *key, const char *value, struct th_err *err)
{
	uint64_t bytes;
	char low[TH_UNITS_BYTES], high[TH_UNITS_BYTES];
	if (th_parse_size(value, &bytes) < 0 ||
		(bytes != 0 && (bytes < SLAB_BYTES || bytes > STAGE_MAX)))
		return th_fail(err, TH_E_INVALID,
			"%s: \"%s\" is neither 0 (none) nor a size from %s to %s", key, value,
			th_print_size(SLAB_BYTES, low), th_print_size(STAGE_MAX, high));
	rdma->stage = bytes;
	return 0;
}

int
options_rdma_set(struct options_rdma *rdma, const char *key, const char *value, struct th_err *err)
{
#define IS(name) (strcmp(key, (name)) == 0)
	if (IS("rdma"))
		return set_mode(rdma, key, value, err);
	if (IS("rdma.devices"))
		return set_devices(rdma, key, value, err);
	if (IS("rdma.rails"))
		return set_rails(rdma, key, value, err);
	if (IS("rdma.gid_index"))
		return set_gid_index(rdma, key, value, err);
	if (IS("rdma.link_local"))
		return config_bool(&rdma->link_local, key, value, err);
	if (IS("rdma.roce_v1"))
		return config_bool(&rdma->roce_v1, key, value, err);
	if (IS("rdma.mtu"))
		return set_mtu(rdma, key, value, err);
	if (IS("rdma.service_level"))
		return config_number(&rdma->service_level, 0, 15, key, value, err);
	if (IS("rdma.traffic_class"))
		return config_number(&rdma->traffic_class, 0, 255, key, value, err);
	if (IS("rdma.pkey_index"))
		return config_number(&rdma->pkey_index, 0, 65535, key, value, err);
	if (IS("rdma.timeout"))
		return config_number(&rdma->timeout, 8, 22, key, value, err);
	if (IS("rdma.retries"))
		return config_number(&rdma->retries, 0, 7, key, value, err);
	if (IS("rdma.depth"))
		return config_number(&rdma->depth, 1, 16, key, value, err);
	if (IS("rdma.slice"))
		return set_slice(rdma, key, value, err);
	if (IS("rdma.window"))
		return config_size(&rdma->window, WINDOW_MIN, WINDOW_MAX, key, value, err);
	if (IS("rdma.stage"))
		return set_stage(rdma, key, value, err);
#undef IS
	return th_fail(err, TH_E_INVALID, "there is no key \"%s\"", key);
}

int
options_rdma_check(const struct options_rdma *rdma, struct th_err *err)
{
	char slice[TH_UNITS_BYTES], window[TH_UNITS_BYTES];

	if (rdma->window < rdma->slice)
		return th_fail(err, TH_E_INVALID,
			"rdma.window is %s and rdma.slice %s: not even one fits; raise the window",
			th_print_size(rdma->window, window), th_print_size(rdma->slice, slice));
	return 0;
}
