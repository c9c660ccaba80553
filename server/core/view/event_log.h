/* SPDX-License-Identifier: Apache-2.0 */
/*
 * event_log - what has happened, in sentences for operators: the last EVENT_LOG_MAX of them.
 *
 * Numbered from 1 without a gap, so that whoever reads on knows what he has missed. It decides
 * nothing and nobody waits for it.
 */
#ifndef TH_SERVER_CORE_VIEW_EVENT_LOG_H
#define TH_SERVER_CORE_VIEW_EVENT_LOG_H

#include <stdint.h>

struct refsrv;

#define EVENT_LOG_MAX 4096u /* a bad day of a large cluster; at most 5 MiB                  */

enum event_severity { EVENT_INFO = 1, EVENT_WARN, EVENT_ERROR };

struct event_entry {
	uint64_t number;
	int64_t at_ns; /* since the start of the server */
	enum event_severity severity;
	const char *model,
		*node; /* empty: it is about none; they lie behind the entry, like text */
	const char *text;
};

struct event_log {                 /* part of struct refsrv */
	struct event_entry **ring; /* owns; by number modulo EVENT_LOG_MAX; NULL: nothing yet */
	uint64_t last;             /* number of the newest; 0: none */
};

/* model, node: NULL or empty when it is about none. The sentence is cut at TH_CTL_TEXT_BYTES. */
void event_log(struct refsrv *server, enum event_severity severity, const char *model,
	const char *node, const char *format, ...) __attribute__((format(printf, 5, 6)));

/* The oldest that is kept and has a number above this one; NULL: there is none. */
const struct event_entry *event_log_after(const struct refsrv *server, uint64_t number);

const char *event_severity_name(enum event_severity severity);

void event_log_free(struct refsrv *server);

#endif
