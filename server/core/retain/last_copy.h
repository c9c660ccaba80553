/* SPDX-License-Identifier: Apache-2.0 */
/*
 * last_copy - before a copy is given up: is its version safe elsewhere?
 *
 *   last_copy_begin --> not retained, or another copy counts ----------------------> LAST_COPY_FREE
 *              |-> others may count: their agents are asked (agent_ping.h) --------->
 *              LAST_COPY_WAIT
 *              |-> the server is warming: others may come (rejoin.h) ---------> LAST_COPY_WAIT
 *              '-> it is the last: an offload copy is made (offload.h) -------> LAST_COPY_WAIT
 *                     '--nobody has memory for it--------------------------> LAST_COPY_FAILED
 *
 * While it waits the copy stays listed and serves. Who gives up: an unpublish, an update, an
 * orderly close, and a group that has broken while its memory can still be read.
 */
#ifndef TH_SERVER_CORE_RETAIN_LAST_COPY_H
#define TH_SERVER_CORE_RETAIN_LAST_COPY_H

#include "server/core/refsrv_state.h"

enum last_copy_result { LAST_COPY_FREE, LAST_COPY_WAIT, LAST_COPY_FAILED };

/* From now on the copy is to be given up. */
void last_copy_begin(struct refsrv *server, struct copy *copy);
/* Ask again whenever the model is dirty. FAILED: copy.keep says why. */
enum last_copy_result last_copy_check(struct refsrv *server, struct copy *copy);
/* One of those who wanted to give it up is done, or does not want to any more. */
void last_copy_end(struct copy *copy);
bool last_copy_wanted(const struct copy *copy);

/* An offload of the version has failed: whoever waits for it hears why. */
void last_copy_offload_failed(const struct version *version, int code, const char *text);

/* ---- broken groups -------------------------------------------------------------------------- */

/* True: the copy stays until it is safe elsewhere, or for rescue_ns; then it is drained. */
bool last_copy_rescue(struct refsrv *server, struct group *group);
void last_copy_rescue_settle(struct refsrv *server, struct copy *copy);
/* A part of it is lost: it is of no use any more. */
void last_copy_rescue_stop(struct refsrv *server, struct copy *copy);

/* ---- closing -------------------------------------------------------------------------------- */

/* True: the CLOSE waits, and is carried out or refused later. False: now. */
bool last_copy_close(struct refsrv *server, struct member *member, int64_t timeout_ns);
/* The waiting CLOSE of a member is over, however. */
void last_copy_close_over(struct member *member);
/* The group has members that close. */
void last_copy_close_settle(struct refsrv *server, struct group *group);

#endif
