/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check - when which checker looks.
 */
#include "tests/sim/check.h"

#define SLOWLY 64u /* events */

void
check_event(void)
{
	check_risk_stands();
	if (world.events % SLOWLY == 0) {
		check_slowly();
		check_retain();
		check_risk();
		check_waits();
		check_restored();
		check_observers();
		check_follow();
	}
}
