/* SPDX-License-Identifier: Apache-2.0 */
/*
 * route - which copy a group, or one leg, reads from. Decides only; changes nothing but scratch.
 */
#ifndef TH_SERVER_CORE_ROUTE_ROUTE_H
#define TH_SERVER_CORE_ROUTE_ROUTE_H

#include "server/core/refsrv_state.h"

/*
 * The chain that fills this part: does it reach complete bytes? ADRIFT: that depends on a LEG_END
 * that is still to come. Remembered while server.mark stays: the caller begins with server.mark++.
 */
enum chain route_chain(struct refsrv *server, struct part *part);

/* Some copy of the version can serve somebody else than this group, now. */
bool route_available(
	struct refsrv *server, const struct version *version, const struct group *reader);

/* One source replica for all shards of the group; NULL: none now. Its members are all there. */
struct copy *route_choose_copy(struct refsrv *server, const struct op *op, struct version *version);

/* A source for one part that has lost its own; only_idle: one that nobody reads from. */
struct part *route_choose_part(
	struct refsrv *server, const struct op *op, struct part *dst, bool only_idle);

/* Whether this one may be given this source, of which the caller knows that it makes no circle. */
bool route_serves(
	struct refsrv *server, const struct op *op, const struct part *dst, struct part *src);

/*
 * A complete source in its datacenter, that nobody reads or only one that crawls: see
 * slow_reader.h.
 */
struct part *route_choose_relief(struct refsrv *server, const struct op *op, struct part *dst);

enum outlook {
	OUTLOOK_WAIT,     /* complete bytes, or a chain to some, exist: they may become free     */
	OUTLOOK_CHECKSUM, /* every copy there is has given bytes that did not match              */
	OUTLOOK_LOST,     /* nothing is left                                                     */
};
/* When no source was found. dst NULL: the group has not begun, all shards are asked about. */
enum outlook route_outlook(struct refsrv *server, const struct op *op,
	const struct version *version, struct part *dst);

#endif
