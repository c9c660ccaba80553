/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthc_cplusplus_test - thc.h is a C++ header too: its structs, macros and calls, without a warning,
 * linked against the shared and the static library. A plain main.
 */
#include <cstdio>
#include <cstring>

#include "libthc/thc.h"

static int
never(const struct thc_listing *listing, void *arg)
{
	(void)listing;
	(void)arg;
	return 0;
}

int
main()
{
	thc_open_opts opts = THC_OPEN_OPTS_INIT;
	thc_result result = THC_RESULT_INIT;
	thc_predicate predicate = never;
	thc_shard *shard = nullptr;
	void *memory = nullptr;

	bool good = opts.struct_size == sizeof(opts) && opts.num_shards == 1 &&
		    result.struct_size == sizeof(result) && predicate(nullptr, nullptr) == 0;
	good = good && thc_open(&opts, 0, &shard) == THC_E_INVALID && shard == nullptr;
	good = good && std::strstr(thc_errmsg(), "opts->model") != nullptr;
	good = good && thc_alloc(4096, 0, &memory) == 0 && thc_free(memory) == 0;
	good = good && thc_dtype_bits(THC_BF16) == 16;
	if (!good)
		std::fprintf(stderr, "unexpected: %s\n", thc_errmsg());
	return good ? 0 : 1;
}
