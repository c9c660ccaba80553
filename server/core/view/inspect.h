/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inspect - everything the server knows, laid out for operators. Read only.
 */
#ifndef TH_SERVER_CORE_VIEW_INSPECT_H
#define TH_SERVER_CORE_VIEW_INSPECT_H

#include "server/core/refsrv_state.h"

/* The arrays are valid until the next step. */
void inspect_build(struct refsrv *server, struct ctl_inspection *ret_inspection);

/* INSPECT: what is now, or the next part of what was then. */
int inspect_request(struct refsrv *server, const struct ctl_request *request,
	struct ctl_inspection *ret_inspection, struct th_err *err);

#endif
