/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_calls - see test_calls.h.
 */
#include "tests/support/cuda/test_calls.h"

#include <dlfcn.h>
#include <string.h>

#include "ipc/base/assert.h"

struct test_cuda test_cuda;

typedef CUresult (*find_fn)(const char *name, void **ret_address, int version,
	unsigned long long flags, CUdriverProcAddressQueryResult *ret_found);

void
test_calls_find(const struct cuda *cuda)
{
	static const struct {
		const char *name;
		int version;
		size_t offset;
	} entries[] = {
#define ENTRY(name, version, arguments) {#name, version, offsetof(struct test_cuda, name)},
		CUDA_TEST_CALLS(ENTRY)
#undef ENTRY
	};
	CUdriverProcAddressQueryResult found;
	find_fn find = NULL;
	void *address = dlsym(cuda->library, "cuGetProcAddress_v2");
	TH_ASSERT(address);
	memcpy(&find, &address, sizeof(address));
	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
		TH_ASSERT(find(entries[i].name, &address, entries[i].version,
				  CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found) == CUDA_SUCCESS);
		memcpy((char *)&test_cuda + entries[i].offset, &address, sizeof(address));
	}
}
