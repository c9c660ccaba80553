/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slow_reader - readers behind a slow one.
 *
 * A reader of a replica that is still filling is at most as fast as that. When both have got no
 * chunk for config.crawl_ns although complete bytes are being read, it is moved to a complete
 * replica of its datacenter that nobody reads, or one other that crawls too: were it the source
 * that is slow, then it has two readers instead of one, and never more.
 */
#ifndef TH_SERVER_CORE_ROUTE_SLOW_READER_H
#define TH_SERVER_CORE_ROUTE_SLOW_READER_H

#include "server/core/refsrv_state.h"

/* It is being filled, and has had no new chunk for long, on the server's live clock. */
bool slow_reader_is(const struct refsrv *server, const struct part *part);

/* A beat has said how far this leg is. */
void slow_reader_look(struct refsrv *server, struct leg *leg);

#endif
