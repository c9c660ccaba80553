/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rig_fake_gpus - shards of the rig on GPUs of fake_gpus.h.
 */
#ifndef TH_TESTS_SUPPORT_RIG_FAKE_GPUS_H
#define TH_TESTS_SUPPORT_RIG_FAKE_GPUS_H

#include "tests/support/fake_gpus.h"
#include "tests/support/transport_rig.h"

/* Sets rig_gpus. */
void rig_fake_gpus_init(uint64_t staging_bytes);
/* After the last shard and transport: nothing of them is left. */
void rig_fake_gpus_fini(void);

#endif
