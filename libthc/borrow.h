/* SPDX-License-Identifier: Apache-2.0 */
/*
 * borrow - what this process has borrowed, for the handlers of fork and for what arrives.
 */
#ifndef TH_LIBTHC_BORROW_H
#define TH_LIBTHC_BORROW_H

#include <stdbool.h>

struct thc_shard;

/* Around a fork; and in its child: what is lent is the parent's. */
void lent_lock(void);
void lent_unlock(void);
void lent_forked(void);

bool borrow_take_answer(struct thc_shard *shard); /* LENT came; false: out of order */

#endif
