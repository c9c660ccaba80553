/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core_check - what must hold in a core between two steps: rigs, the simulator and the fuzz targets
 * ask after each. Both look into the cores' state and change nothing; a breach aborts the process
 * with a sentence.
 */
#ifndef TH_TESTS_SUPPORT_CORE_CORE_CHECK_H
#define TH_TESTS_SUPPORT_CORE_CORE_CHECK_H

struct agent_core;
struct refsrv;

void agent_core_check(const struct agent_core *agent);
void refsrv_check(const struct refsrv *server);

#endif
