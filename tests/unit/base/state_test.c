/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_test - a state is left by the ways of its table, and by no other.
 */
#include "ipc/base/state.h"

#include <criterion/criterion.h>
#include <signal.h>

enum { LAMP_OFF, LAMP_ON, LAMP_BROKEN };

static const struct th_states lamp = {
	"lamp", {
			[LAMP_OFF] = {"off", TH_STATE(LAMP_ON)},
			[LAMP_ON] = {"on", TH_STATE(LAMP_OFF) | TH_STATE(LAMP_BROKEN)},
			[LAMP_BROKEN] = {"broken", 0},
		}};

Test(state, ways_of_the_table__are_taken)
{
	th_state_check(&lamp, LAMP_OFF, LAMP_ON, "switch");
	th_state_check(&lamp, LAMP_ON, LAMP_OFF, "switch");
	th_state_check(&lamp, LAMP_ON, LAMP_BROKEN, "age");
}

Test(state, no_way__aborts, .signal = SIGABRT)
{
	th_state_check(&lamp, LAMP_BROKEN, LAMP_ON, "hope");
}

Test(state, no_way_to_itself_unless_it_is_listed__aborts, .signal = SIGABRT)
{
	th_state_check(&lamp, LAMP_ON, LAMP_ON, "switch");
}

Test(state, no_state__aborts, .signal = SIGABRT)
{
	th_state_check(&lamp, LAMP_ON, TH_STATES_MAX, "switch");
}
