/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options_gpu - see options_gpu.h. Pure.
 */
#include "daemon/host/config/options_gpu.h"

#include <string.h>

#include "ipc/base/config.h"

/* With less, a few transfers would wait for each other all the time. */
#define STAGING_MIN (UINT64_C(16) << 20)
#define STAGING_MAX (UINT64_C(1) << 40)

struct options_gpu
options_gpu_default(void)
{
	return (struct options_gpu){.used = true, .staging_bytes = UINT64_C(256) << 20};
}

/* One of two words. */
static int
set_word(bool *field, const char *yes, const char *no, const char *key, const char *value,
	struct th_err *err)
{
	*field = strcmp(value, yes) == 0;
	if (!*field && strcmp(value, no) != 0)
		return th_fail(
			err, TH_E_INVALID, "%s: \"%s\" is neither %s nor %s", key, value, yes, no);
	return 0;
}

int
options_gpu_set(struct options_gpu *gpu, const char *key, const char *value, struct th_err *err)
{
	if (strcmp(key, "gpu") == 0)
		return set_word(&gpu->used, "auto", "off", key, value, err);
	if (strcmp(key, "gpu.staging") == 0)
		return config_size(&gpu->staging_bytes, STAGING_MIN, STAGING_MAX, key, value, err);
	if (strcmp(key, "gpu.digest") == 0)
		return set_word(&gpu->digest_on_cpu, "cpu", "gpu", key, value, err);
	return th_fail(err, TH_E_INVALID, "there is no key \"%s\"", key);
}
