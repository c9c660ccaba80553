/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keep - before a copy is given up: is its version safe elsewhere?
 *
 *   keep_begin --> not retained, or another copy counts ----------------------> KEEP_FREE
 *              |-> others may count: their agents are asked (ping.h) ---------> KEEP_WAIT
 *              |-> the server is warming: others may come (rejoin.h) ---------> KEEP_WAIT
 *              '-> it is the last: an offload copy is made (offload.h) -------> KEEP_WAIT
 *                     '--nobody has memory for it--------------------------> KEEP_FAILED
 *
 * While it waits the copy stays listed and serves. Who gives up: an unpublish, an update, an
 * orderly close, and a group that has broken while its memory can still be read.
 */
#ifndef TH_SERVER_CORE_KEEP_H
#define TH_SERVER_CORE_KEEP_H

#include "server/core/state.h"

enum keep_result { KEEP_FREE, KEEP_WAIT, KEEP_FAILED };

/* From now on the copy is to be given up. */
void keep_begin(struct refsrv *server, struct copy *copy);
/* Ask again whenever the model is dirty. FAILED: copy.keep says why. */
enum keep_result keep_check(struct refsrv *server, struct copy *copy);
/* One of those who wanted to give it up is done, or does not want to any more. */
void keep_end(struct copy *copy);
bool keep_wanted(const struct copy *copy);

/* An offload of the version has failed: whoever waits for it hears why. */
void keep_offload_failed(const struct version *version, int code, const char *text);

/* ---- broken groups -------------------------------------------------------------------------- */

/* True: the copy stays until it is safe elsewhere, or for rescue_ns; then it is drained. */
bool keep_rescue(struct refsrv *server, struct group *group);
void keep_rescue_settle(struct refsrv *server, struct copy *copy);
/* A part of it is lost: it is of no use any more. */
void keep_rescue_stop(struct refsrv *server, struct copy *copy);

/* ---- closing -------------------------------------------------------------------------------- */

/* True: the CLOSE waits, and is carried out or refused later. False: now. */
bool keep_close(struct refsrv *server, struct member *member, int64_t timeout_ns);
/* The waiting CLOSE of a member is over, however. */
void keep_close_over(struct member *member);
/* The group has members that close. */
void keep_close_settle(struct refsrv *server, struct group *group);

#endif
