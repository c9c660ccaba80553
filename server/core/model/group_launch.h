/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group_launch - a group that is started again replaces what is left of it.
 *
 * The members of one launch give one launch_id. The first OPEN of another launch breaks the group
 * of the old one, whose members may be alive, or dead and not yet noticed. Without launch_ids the
 * new members would be refused until the old ones are gone.
 */
#ifndef TH_SERVER_CORE_MODEL_GROUP_LAUNCH_H
#define TH_SERVER_CORE_MODEL_GROUP_LAUNCH_H

#include "server/core/refsrv_state.h"

/* 0, or TH_E_GROUP_MISMATCH: this launch was replaced, or only one side has a launch_id. */
int group_launch_check(const struct model *model, const struct agent *agent,
	const struct ctl_open *open, struct th_err *err);
/* True: it was of another launch, and is broken now. */
bool group_launch_replaces(struct refsrv *server, struct group *group, const struct agent *agent,
	const struct ctl_open *open);
/* A group that has just been listed in its model. */
void group_launch_new(struct group *group, const struct ctl_open *open);
void group_launch_free(struct group *group);

#endif
