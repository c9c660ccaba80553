/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_tables - plans of the shards of a view as a document: what each reads, and what from whom.
 * Pure.
 */
#ifndef TH_TOOLS_THCTL_PLAN_TABLES_H
#define TH_TOOLS_THCTL_PLAN_TABLES_H

#include "tools/file/layout_file.h"
#include "tools/thctl/output.h"

/* Of shards first to end - 1. A failure, with its sentence, leaves the document empty. */
int plan_tables(const struct layout_file *published, const struct layout_file *view, uint32_t first,
	uint32_t end, struct th_err *err, struct document *ret_document);

#endif
