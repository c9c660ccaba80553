/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bucket - a token bucket: a cap on bytes a second, for requests of any size. It knows no clock.
 *
 * Of any span of time it lets through no more than its rate times (span + BUCKET_NS), and the
 * request that empties it: a request is never cut, and the next one waits for what it took beyond.
 */
#ifndef TH_TRANSPORT_TCP_BUCKET_H
#define TH_TRANSPORT_TCP_BUCKET_H

#include <stdint.h>

#define BUCKET_NS INT64_C(50000000) /* what it holds, as time: who comes late loses nothing */

struct bucket {
	uint64_t rate;   /* bytes a second, not 0 */
	int64_t paid_ns; /* all that was taken is paid for by then */
};

/* 0: these bytes are taken. Else when to ask again, which is after now. */
int64_t bucket_take(struct bucket *bucket, uint64_t bytes, int64_t now_ns);
/* So many that were taken are not needed. */
void bucket_give(struct bucket *bucket, uint64_t bytes);

#endif
