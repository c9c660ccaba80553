/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chain_split - when a chain of readers becomes a tree.
 *
 * With K chunks and N readers that come at once, a chain takes K + N - 1 chunk times: every network
 * sends each byte once. A tree in which each node has two readers takes 2 (K + log2 N), for what
 * has two readers sends at half the speed. So the tree is better only when N is above K, and each
 * reader that is not needed for it goes to the end of a chain (route.h).
 *
 * Nobody says how many will come. A chain therefore grows until the tree would save more chunk
 * times than config.fan_gain, counted from what its first reader has got already. Then it is cut in
 * the middle and the lower half is hung to its head, which has two readers from now on; the same
 * with the halves, until they are short. Who is moved reads from one that it depended on before,
 * goes on at its prefix, and takes its own readers along.
 */
#ifndef TH_SERVER_CORE_ROUTE_CHAIN_SPLIT_H
#define TH_SERVER_CORE_ROUTE_CHAIN_SPLIT_H

#include "server/core/refsrv_state.h"

/* This part has got a leg: its chain is one longer. */
void chain_split_look(struct refsrv *server, struct part *newest);

#endif
