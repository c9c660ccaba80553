/* SPDX-License-Identifier: Apache-2.0 */
/*
 * event_log - see event_log.h.
 */
#include "server/core/view/event_log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/utf8.h"
#include "server/core/refsrv_state.h"

const char *
event_severity_name(enum event_severity severity)
{
	switch (severity) {
	case EVENT_INFO:
		return "info";
	case EVENT_WARN:
		return "warning";
	case EVENT_ERROR:
		return "error";
	}
	return "?";
}

/* Copies text behind what is there already; returns where it lies. */
static const char *
event_log_put(char **at, const char *text, size_t bytes)
{
	char *place = *at;

	memcpy(place, text, bytes);
	place[bytes] = '\0';
	*at += bytes + 1;
	return place;
}

void
event_log(struct refsrv *server, enum event_severity severity, const char *model, const char *node,
	const char *format, ...)
{
	struct event_log *log = &server->log;
	char text[TH_CTL_TEXT_BYTES];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (model == NULL)
		model = "";
	if (node == NULL)
		node = "";
	size_t text_bytes = th_utf8_cut(text, strlen(text));
	size_t model_bytes = strnlen(model, TH_NAME_MAX);
	size_t node_bytes = strnlen(node, TH_NAME_MAX);
	struct event_entry *entry =
		th_calloc(1, sizeof(*entry) + text_bytes + model_bytes + node_bytes + 3);
	char *at = (char *)(entry + 1);
	entry->number = ++log->last;
	entry->at_ns = server->now_ns - server->started_ns;
	entry->severity = severity;
	entry->text = event_log_put(&at, text, text_bytes);
	entry->model = event_log_put(&at, model, model_bytes);
	entry->node = event_log_put(&at, node, node_bytes);
	if (log->ring == NULL)
		log->ring = th_calloc(EVENT_LOG_MAX, sizeof(*log->ring));
	struct event_entry **slot = &log->ring[entry->number % EVENT_LOG_MAX];
	free(*slot);
	*slot = entry;
}

const struct event_entry *
event_log_after(const struct refsrv *server, uint64_t number)
{
	const struct event_log *log = &server->log;

	if (number >= log->last)
		return NULL;
	uint64_t oldest = log->last > EVENT_LOG_MAX ? log->last - EVENT_LOG_MAX + 1 : 1;
	return log->ring[th_max_u64(number + 1, oldest) % EVENT_LOG_MAX];
}

void
event_log_free(struct refsrv *server)
{
	struct event_log *log = &server->log;

	for (uint32_t i = 0; log->ring != NULL && i < EVENT_LOG_MAX; i++)
		free(log->ring[i]);
	free(log->ring);
	*log = (struct event_log){0};
}
