/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state - see state.h. Any thread.
 */
#include "ipc/base/state.h"

#include <stdio.h>

#include "ipc/base/assert.h"

static const char *
name(const struct th_states *states, unsigned state)
{
	return state < TH_STATES_MAX && states->list[state].name ? states->list[state].name : "?";
}

void
th_state_refuse(const struct th_states *states, unsigned from, unsigned to, const char *why)
{
	char text[256];

	snprintf(text, sizeof(text), "%s: no way from %s to %s (%s)", states->object,
		name(states, from), name(states, to), why);
	th_assert_fail(__FILE__, __LINE__, text);
}
