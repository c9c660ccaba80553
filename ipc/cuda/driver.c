/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver - finds libcuda.so.1 and fills the table of its calls.
 */
#include "ipc/cuda/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

/* Of CUDA 12.0. */
typedef CUresult (*get_address_fn)(const char *name, void **ret_address, int version,
	unsigned long long flags, CUdriverProcAddressQueryResult *ret_found);

struct driver_entry {
	const char *name;
	int version;
	size_t offset; /* in struct cuda */
};

static const struct driver_entry entries[] = {
#define CUDA_ENTRY(name, version, arguments) {#name, version, offsetof(struct cuda, name)},
	CUDA_CALLS(CUDA_ENTRY)
#undef CUDA_ENTRY
};

#define MAJOR(version) ((version) / 1000)
#define MINOR(version) ((version) % 1000 / 10)

/* 0 where it cannot be told. */
static int
version_of(void *library)
{
	CUresult (*get_version)(int *) = NULL;
	void *address = dlsym(library, "cuDriverGetVersion");
	int version = 0;
	memcpy(&get_version, &address, sizeof(address));
	if (!get_version || get_version(&version) != CUDA_SUCCESS)
		return 0;
	return version;
}

static int
fail_old(int version, struct th_err *err)
{
	return th_fail(err, -ENOSYS,
		"the CUDA driver (" CUDA_LIBRARY ") is of CUDA %d.%d: %d.%d or newer is needed, "
		"update the driver to 525 or newer",
		MAJOR(version), MINOR(version), MAJOR(CUDA_VERSION_MIN), MINOR(CUDA_VERSION_MIN));
}

static int
driver_fill(struct cuda *cuda, struct th_err *err)
{
	get_address_fn get_address = NULL;
	void *address = dlsym(cuda->library, "cuGetProcAddress_v2");
	cuda->version = version_of(cuda->library);
	if (!address)
		return fail_old(cuda->version, err);
	memcpy(&get_address, &address, sizeof(address));
	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
		const struct driver_entry *entry = &entries[i];
		CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
		address = NULL;
		/* Not the streams per thread, whatever the program around us was compiled for. */
		CUresult result = get_address(entry->name, &address, entry->version,
			CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);
		if (result == CUDA_ERROR_STUB_LIBRARY)
			return th_fail(err, -ENODEV,
				CUDA_LIBRARY " is the stub of the CUDA toolkit, which only links: "
					     "take its folder out of LD_LIBRARY_PATH");
		if (result != CUDA_SUCCESS || !address)
			return th_fail(err, -ENOSYS,
				CUDA_LIBRARY " of CUDA %d.%d has no %s in the form of CUDA %d.%d "
					     "(result %d, query %d): update the driver",
				MAJOR(cuda->version), MINOR(cuda->version), entry->name,
				MAJOR(entry->version), MINOR(entry->version), (int)result,
				(int)found);
		memcpy((char *)cuda + entry->offset, &address, sizeof(address));
	}
	if (cuda->version < CUDA_VERSION_MIN)
		return fail_old(cuda->version, err);
	return 0;
}

int
cuda_open(struct cuda *ret_cuda, struct th_err *err)
{
	struct cuda cuda;
	memset(&cuda, 0, sizeof(cuda));
	cuda.library = dlopen(CUDA_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
	cuda.was_loaded = cuda.library != NULL;
	if (!cuda.library) /* it starts threads of its own: once in, it stays */
		cuda.library = dlopen(CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!cuda.library) {
		const char *why = dlerror();
		return th_fail(err, -ENOENT, "no CUDA driver can be loaded: %s",
			why ? why : CUDA_LIBRARY " is not there");
	}
	int rc = driver_fill(&cuda, err);
	if (rc < 0) {
		cuda_close(&cuda);
		return rc;
	}
	*ret_cuda = cuda;
	return 0;
}

void
cuda_close(struct cuda *cuda)
{
	if (cuda->library)
		dlclose(cuda->library);
	memset(cuda, 0, sizeof(*cuda));
}

const char *
cuda_result_name(const struct cuda *cuda, CUresult result)
{
	const char *name = NULL;
	if (cuda->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
		return "an unknown CUDA error";
	return name;
}
