/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status_gpu_tables - see status_gpu_tables.h.
 */
#include "tools/thctl/status_gpu_tables.h"

#include <inttypes.h>
#include <string.h>

#include "ipc/base/checked.h"

void
gpus_judge(struct document *document, const Tensorhub__V1__GpusInfo *gpus)
{
	for (size_t i = 0; gpus && i < gpus->n_gpus; i++) {
		const Tensorhub__V1__GpuInfo *gpu = gpus->gpus[i];
		/* One that came back is a number in the table. */
		if (gpu->workers > 0 && gpu->pid == 0 && *gpu->why)
			document_warn(document, "TH_GPU", "nvidia-smi, and the log of thagentd",
				"%u workers share memory of GPU %s, which the agent does not "
				"reach: "
				"%s",
				gpu->workers, *gpu->pci ? gpu->pci : gpu->uuid, gpu->why);
	}
}

void
gpus_fields(struct document *document, const Tensorhub__V1__GpusInfo *gpus)
{
	size_t shared = 0;

	if (!gpus)
		return;
	for (size_t i = 0; i < gpus->n_gpus; i++)
		shared += gpus->gpus[i]->workers > 0;
	document_field(document, "gpu", shared > 0 || !gpus->used ? "gpu" : NULL,
		gpus->used ? value_textf("%zu with memory of workers", shared)
			   : value_textf("not used: %s", gpus->why));
	document_field(document, "gpu_used", NULL, value_flag(gpus->used));
	document_field(document, "gpu_stage_budget", NULL, value_bytes(gpus->stage_budget));
	document_field(document, "gpu_stage_bytes", gpus->stage_bytes > 0 ? "gpu buffers" : NULL,
		value_bytes(gpus->stage_bytes));
	document_field(document, "gpu_stage_in_use", NULL, value_bytes(gpus->stage_in_use));
	document_field(document, "gpu_stage_waits", NULL, value_number(gpus->stage_waits));
	document_field(document, "gpu_stage_copied", NULL, value_bytes(gpus->stage_copied));
}

void
gpus_table(struct document *document, const Tensorhub__V1__GpusInfo *gpus)
{
	static const struct column columns[] = {
		{"gpu", "GPU", false},
		{"name", "NAME", false},
		{"pid", "PID", false},
		{"workers", "WORKERS", false},
		{"import_bytes", "OPEN", false},
		{"pinned_bytes", "PINNED", false},
		{"context_bytes", "CONTEXT", false},
		{"running", "RUNNING", false},
		{"why", "LAST FAILURE", false},
		{"pieces", "PIECES", true},
		{"imports", "IMPORTS", true},
		{"starts", "STARTS", true},
		{"kills", "KILLS", true},
		{"ends", "ENDS", true},
		{"bytes_moved", "MOVED", true},
		{"hashes", "HASHES", true},
		{"hashes_why", "WHY CPU", true},
		{"uuid", "UUID", true},
	};

	_Static_assert(TH_ARRAY_LEN(columns) <= OUTPUT_COLUMNS_MAX, "a table has so many");
	if (!gpus || gpus->n_gpus == 0)
		return;
	document_table(document, "gpus", columns, TH_ARRAY_LEN(columns));
	for (size_t i = 0; i < gpus->n_gpus; i++) {
		const Tensorhub__V1__GpuInfo *gpu = gpus->gpus[i];
		const struct value row[TH_ARRAY_LEN(columns)] = {
			value_text(*gpu->pci ? gpu->pci : gpu->uuid),
			value_text(gpu->name),
			gpu->pid > 0 ? value_number((uint64_t)gpu->pid) : value_none(),
			value_number(gpu->workers),
			value_bytes(gpu->import_bytes),
			value_bytes(gpu->pinned_bytes),
			gpu->context_bytes > 0 ? value_bytes(gpu->context_bytes) : value_none(),
			value_number(gpu->running),
			value_text(gpu->why),
			value_number(gpu->pieces),
			value_number(gpu->imports),
			value_number(gpu->starts),
			value_number(gpu->kills),
			value_number(gpu->ends),
			value_bytes(gpu->bytes_read + gpu->bytes_written + gpu->bytes_copied),
			value_text(gpu->hashes ? "gpu" : "cpu"),
			value_text(gpu->hashes_why),
			value_text(gpu->uuid),
		};
		document_row(document, row);
	}
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Between commas: "copy" is not in "worker-copy". */
static bool
lists(const char *text, const char *path)
{
	size_t length = strlen(path);

	for (const char *at = text; *at != '\0'; at += strcspn(at, ",")) {
		at += *at == ',';
		if (strcspn(at, ",") == length && memcmp(at, path, length) == 0)
			return true;
	}
	return false;
}

struct value
gpus_paths(const Tensorhub__V1__SessionInfo *session)
{
	char text[64] = "";

	for (size_t i = 0; i < session->n_memory; i++) {
		const char *path = session->memory[i]->path;
		size_t length = strlen(text);
		if (!*path || lists(text, path) || length + strlen(path) + 2 > sizeof(text))
			continue;
		if (length > 0)
			text[length++] = ',';
		memcpy(text + length, path, strlen(path) + 1);
	}
	return text[0] ? value_textf("%s", text) : value_none();
}

static void
status_gpu_tables_add_memory(struct document *document, const Tensorhub__V1__SessionInfo *session,
	const Tensorhub__V1__MemoryInfo *memory)
{
	const struct value row[] = {
		value_text(session->model),
		value_text(session->replica),
		value_number(session->shard),
		value_text(memory->path),
		value_text(memory->kind),
		value_bytes(memory->bytes),
		value_number(memory->pieces),
		value_textf("0x%" PRIx64, memory->address),
		*memory->gpu ? value_text(memory->gpu) : value_none(),
		value_number(session->session),
	};

	document_row(document, row);
}

/* What is too much to list is one row. */
static void
add_more(struct document *document, const Tensorhub__V1__SessionInfo *session)
{
	const struct value row[] = {
		value_text(session->model),
		value_text(session->replica),
		value_number(session->shard),
		value_text("..."),
		value_text("more"),
		value_none(),
		value_number(session->memory_more),
		value_none(),
		value_none(),
		value_number(session->session),
	};

	document_row(document, row);
}

void
gpus_memory(struct document *document, const Tensorhub__V1__StatusReply *status)
{
	static const struct column columns[] = {
		{"model", "MODEL", false},
		{"replica", "REPLICA", false},
		{"shard", "SHARD", false},
		{"path", "PATH", false},
		{"kind", "KIND", false},
		{"bytes", "SIZE", false},
		{"pieces", "PIECES", false},
		{"address", "ADDRESS", false},
		{"gpu", "GPU", false},
		{"session", "SESSION", true},
	};

	document_table(document, "memory", columns, TH_ARRAY_LEN(columns));
	document_table_wide(document);
	for (size_t i = 0; i < status->n_sessions; i++) {
		const Tensorhub__V1__SessionInfo *session = status->sessions[i];
		for (size_t k = 0; k < session->n_memory; k++)
			status_gpu_tables_add_memory(document, session, session->memory[k]);
		if (session->memory_more > 0)
			add_more(document, session);
	}
}
