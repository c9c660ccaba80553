/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retain_rules - the rules of retention as a worker writes them: "latest,latest-1,17".
 *
 * One parser for libthc, the agent, the server and thctl, so that what one accepts the others do
 * too. Each rule names exactly one version. Pure.
 */
#ifndef TH_IPC_BASE_RETAIN_RULES_H
#define TH_IPC_BASE_RETAIN_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/ctl.h"
#include "ipc/base/err.h"
#include "ipc/base/name.h"

#define TH_RETAIN_RULES_MAX 16u

struct th_retain { /* without repeats: latest and latest-K by K, then the numbers, ascending */
	uint32_t num_rules;
	struct th_spec rules[TH_RETAIN_RULES_MAX];
};

/*
 * A list of at most TH_RETAIN_RULES_MAX rules, each as th_spec_parse takes it, one comma and
 * nothing else between them; NULL or empty: no rule. 0, TH_E_INVALID or TH_E_LIMIT (too many) with
 * a sentence that names the rule. err may be NULL.
 */
TH_MUST_USE int th_retain_parse(const char *text, struct th_retain *ret_rules, struct th_err *err);

/* One more rule, in its place. False: the list is full; a rule that is in it always fits. */
bool th_retain_add(struct th_retain *rules, const struct th_spec *rule);
/* Every rule of few is in many. */
bool th_retain_covers(const struct th_retain *many, const struct th_retain *few);
/* As a text that th_retain_parse takes; no rule: empty. */
void th_retain_write(const struct th_retain *rules, char ret_text[TH_RETAIN_MAX + 1]);

/* They name the same versions, however they were written. */
bool th_retain_equal(const struct th_retain *a, const struct th_retain *b);

#endif
