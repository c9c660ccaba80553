/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpus_here - see gpus_here.h.
 */
#include "tests/support/cuda/gpus_here.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/assert.h"

static struct machine machine;

bool
gpus_here_are_real(void)
{
	const char *real = getenv("TH_GPU_HARDWARE");
	return real && strcmp(real, "1") == 0;
}

void
gpus_here_path(const char *name, char ret_path[PATH_MAX])
{
	char own[PATH_MAX / 2];
	ssize_t bytes = readlink("/proc/self/exe", own, sizeof(own));
	TH_ASSERT(bytes > 0 && (size_t)bytes < sizeof(own));
	own[bytes] = '\0';
	char *slash = strrchr(own, '/');
	TH_ASSERT(slash);
	*slash = '\0';
	int length = snprintf(ret_path, PATH_MAX, "%s/../support/cuda/%s", own, name);
	TH_ASSERT(length > 0 && length < PATH_MAX);
}

/* Who asks for it by its name has it then: this process, because it is there already, and who is
 * started, because the folder comes first. */
static void
load_library(void)
{
	char path[PATH_MAX], folders[2 * PATH_MAX];
	const char *others = getenv("LD_LIBRARY_PATH");
	gpus_here_path(CUDA_LIBRARY, path);
	if (!dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
		fprintf(stderr, "the test cannot load the driver of its own GPUs: %s\n", dlerror());
		abort();
	}
	*strrchr(path, '/') = '\0';
	int length = snprintf(folders, sizeof(folders), "%s%s%s", path,
		others && *others ? ":" : "", others ? others : "");
	TH_ASSERT(length > 0 && (size_t)length < sizeof(folders));
	setenv("LD_LIBRARY_PATH", folders, 1);
}

static void
expect_one(void)
{
	static struct cuda cuda; /* stays open: who asks next gets the same */
	struct th_err err = {0};
	char name[128] = "";
	int count = 0;
	const char *why = "the CUDA driver is here and shows none to this process";
	if (cuda_open(&cuda, &err) < 0) {
		why = err.text;
	} else {
		CUresult result = cuda.cuInit(0);
		if (result == CUDA_SUCCESS)
			result = cuda.cuDeviceGetCount(&count);
		if (result != CUDA_SUCCESS)
			why = cuda_result_name(&cuda, result);
	}
	if (count == 0) {
		fprintf(stderr, "no GPU can be used: %s\n", why);
		abort();
	}
	(void)cuda.cuDeviceGetName(name, (int)sizeof(name), 0);
	fprintf(stderr, "%d GPU, %s: what is held and called is not counted here\n", count, name);
}

struct machine *
gpus_here_open(unsigned num_devices, uint64_t bytes)
{
	if (gpus_here_are_real()) {
		expect_one();
		return NULL;
	}
	load_library();
	machine_new(&machine, num_devices, bytes);
	return &machine;
}

void
gpus_here_close(void)
{
	if (machine.page)
		machine_remove(&machine);
}
