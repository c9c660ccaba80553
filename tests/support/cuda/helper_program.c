/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper_program - the process of a GPU, for tests that start it: its socket is descriptor 3.
 */
#include <unistd.h>

#include "transport/cuda/helper/helper.h"

int
main(void)
{
	_exit(gpu_helper_main(3));
}
