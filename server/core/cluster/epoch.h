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
 *
 * What an agent brings is its word. For warm_ns after its first agent, which is as long as agents
 * of a former life are waited for, a server believes all of them: it knows nothing better. Later it
 * knows how far the lives of its cluster have come, and believes no more than EPOCH_LEAP beyond: a
 * server that is restarted once a second for eighteen hours, all of them unseen by this one. The
 * bound does not move while this life lasts, whatever it is brought. At the highest epoch there is
 * all lives have the same one, and go by their server_inc: nobody is shut out.
 */
#ifndef TH_SERVER_CORE_CLUSTER_EPOCH_H
#define TH_SERVER_CORE_CLUSTER_EPOCH_H

#include "server/core/refsrv_state.h"

#define EPOCH_LEAP (UINT32_C(1) << 16)

/* Agents of the lives before this one are still coming. */
bool epoch_learning(const struct refsrv *server);
/* Lives of servers explain that an agent brings this epoch. */
bool epoch_believed(const struct refsrv *server, uint32_t epoch);
/* The highest that is believed now. */
uint32_t epoch_bound(const struct refsrv *server);
/* An agent attaches that was attached elsewhere before, or nowhere (epoch 0). */
void epoch_seen(struct refsrv *server, uint32_t epoch);
uint64_t epoch_next_id(struct refsrv *server);
/* This life has given this number, or may still: an agent cannot bring it from another. */
bool epoch_is_own(const struct refsrv *server, uint64_t id);

#endif
