/* SPDX-License-Identifier: Apache-2.0 */
/*
 * epoch - which life of the server this is, and numbers that no other life has given.
 *
 * The epoch is one more than the highest that an agent brings. An agent that attaches later may
 * bring one that is as high or higher: then this life rises above it. What has been numbered by
 * then lies in the lower epoch; so that it does not meet the numbers of the life that had that
 * epoch before, each life begins at another place in its epoch, drawn from its server_inc.
 *
 *   id = epoch << 40 | place of this life (39 bits), counted on from there
 */
#ifndef TH_SERVER_CORE_EPOCH_H
#define TH_SERVER_CORE_EPOCH_H

#include "server/core/state.h"

/* An agent attaches that was attached elsewhere before, or nowhere (epoch 0). */
void epoch_seen(struct refsrv *server, uint32_t epoch);
uint64_t epoch_next_id(struct refsrv *server);
/* This life has given this number, or may still: an agent cannot bring it from another. */
bool epoch_is_own(const struct refsrv *server, uint64_t id);

#endif
