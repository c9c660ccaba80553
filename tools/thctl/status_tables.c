/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status_tables - see status_tables.h.
 */
#include "tools/thctl/status_tables.h"

#include <inttypes.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/units.h"

/* ---- other datacenters ----------------------------------------------------------------------- */

void
far_fields(struct document *document, const Tensorhub__V1__FarInfo *far)
{
	char limit[TH_UNITS_BYTES] = "";

	if (!far)
		return;
	if (far->limit > 0)
		(void)th_print_size_short(far->limit, limit);
	document_field(document, "far", "far",
		value_textf("%s, %s, %u connections, %s%s%s", far->transport,
			*far->congestion ? far->congestion : "congestion control as near",
			far->connections, far->limit > 0 ? limit : "no cap",
			far->limit > 0 ? "/s" : "",
			far->fallbacks_counted ? ", fallbacks counted" : ""));
	document_field(document, "far_transport", NULL, value_text(far->transport));
	document_field(document, "far_congestion", NULL, value_text(far->congestion));
	document_field(document, "far_connections", NULL, value_number(far->connections));
	document_field(document, "far_limit", NULL,
		far->limit > 0 ? value_rate(far->limit) : value_none());
	document_field(document, "far_fallbacks_counted", NULL, value_flag(far->fallbacks_counted));
}

/* ---- RDMA ------------------------------------------------------------------------------------ */

static size_t
num_up(const Tensorhub__V1__RdmaInfo *rdma)
{
	size_t up = 0;

	for (size_t i = 0; i < rdma->n_rails; i++)
		up += strcmp(rdma->rails[i]->state, "up") == 0;
	return up;
}

void
rdma_judge(struct document *document, const Tensorhub__V1__RdmaInfo *rdma)
{
	char limit[TH_UNITS_BYTES];

	if (!rdma || !rdma->used)
		return;
	for (size_t i = 0; i < rdma->n_rails; i++) {
		const Tensorhub__V1__RailInfo *rail = rdma->rails[i];
		/* A port that never was up has no cable, and that may be meant so. */
		if (strcmp(rail->state, "up") != 0 && rail->changes > 0)
			document_warn(document, "TH_RDMA_PORT", "thctl -o wide status",
				"RDMA port %s was up and is %s%s%s", rail->name, rail->state,
				*rail->why ? ": " : "", rail->why);
	}
	if (rdma->memlock_limit != UINT64_MAX && num_up(rdma) > 0)
		document_warn(document, "TH_MEMLOCK",
			"LimitMEMLOCK=infinity in the unit of thagentd",
			"the agent may lock only %s of memory for RDMA; what does not fit goes by "
			"TCP",
			th_print_size_short(rdma->memlock_limit, limit));
}

void
rdma_fields(struct document *document, const Tensorhub__V1__RdmaInfo *rdma)
{
	if (!rdma)
		return;
	document_field(document, "rdma", "rdma",
		rdma->used ? value_textf("%zu of %zu ports up", num_up(rdma), rdma->n_rails)
			   : value_textf("not used: %s", rdma->why));
	document_field(document, "rdma_used", NULL, value_flag(rdma->used));
	document_field(document, "rdma_fallbacks", rdma->fallbacks > 0 ? "without rdma" : NULL,
		value_number(rdma->fallbacks));
	document_field(document, "rdma_last_fallback", rdma->fallbacks > 0 ? "last because" : NULL,
		value_text(rdma->last_fallback));
	document_field(document, "rdma_copies", rdma->copies > 0 ? "through buffers" : NULL,
		value_number(rdma->copies));
	document_field(document, "rdma_last_copy", rdma->copies > 0 ? "last because" : NULL,
		value_text(rdma->last_copy));
	document_field(document, "rdma_stage_budget", NULL, value_bytes(rdma->stage_budget));
	document_field(document, "rdma_stage_bytes", rdma->stage_bytes > 0 ? "in buffers" : NULL,
		value_bytes(rdma->stage_bytes));
	document_field(document, "rdma_stage_on_gpus",
		rdma->stage_on_gpus > 0 ? "of it on GPUs" : NULL, value_bytes(rdma->stage_on_gpus));
	document_field(document, "rdma_stage_in_use", NULL, value_bytes(rdma->stage_in_use));
	document_field(document, "rdma_stage_refused",
		rdma->stage_refused > 0 ? "found no buffer" : NULL,
		value_number(rdma->stage_refused));
	document_field(document, "memlock_limit", NULL,
		rdma->memlock_limit == UINT64_MAX ? value_none()
						  : value_bytes(rdma->memlock_limit));
	document_field(document, "memlock_used", NULL, value_bytes(rdma->memlock_used));
}

static const char *
features(const Tensorhub__V1__RailInfo *rail)
{
	if (rail->relaxed_ordering)
		return rail->dma_buf ? "relaxed,dma-buf" : "relaxed";
	return rail->dma_buf ? "dma-buf" : "";
}

static void
add_rails(struct document *document, const Tensorhub__V1__RdmaInfo *rdma)
{
	static const struct column columns[] = {
		{"port", "PORT", false},
		{"state", "STATE", false},
		{"address", "ADDRESS", false},
		{"gbit_per_second", "GBIT/S", false},
		{"node", "NODE", false},
		{"bytes_in", "IN", false},
		{"reads", "READS", false},
		{"bytes_registered", "REGISTERED", false},
		{"why", "WHY", false},
		{"pci", "PCI", true},
		{"address_type", "TYPE", true},
		{"link", "LINK", true},
		{"mtu", "MTU", true},
		{"depth", "DEPTH", true},
		{"registrations", "REGIONS", true},
		{"features", "FEATURES", true},
	};

	_Static_assert(TH_ARRAY_LEN(columns) <= OUTPUT_COLUMNS_MAX, "a table has so many");
	document_table(document, "rdma_ports", columns, TH_ARRAY_LEN(columns));
	for (size_t i = 0; i < rdma->n_rails; i++) {
		const Tensorhub__V1__RailInfo *rail = rdma->rails[i];
		const struct value row[TH_ARRAY_LEN(columns)] = {
			value_text(rail->name),
			value_text(rail->state),
			value_text(rail->address),
			rail->bits_per_second > 0
				? value_number(rail->bits_per_second / UINT64_C(1000000000))
				: value_none(),
			rail->on_node ? value_number(rail->node) : value_none(),
			value_bytes(rail->bytes_in),
			value_number(rail->reads),
			value_bytes(rail->bytes_registered),
			value_text(rail->why),
			value_text(rail->pci),
			value_text(rail->address_type),
			value_text(rail->link),
			rail->mtu > 0 ? value_number(rail->mtu) : value_none(),
			value_number(rail->depth),
			value_number(rail->registrations),
			value_text(features(rail)),
		};
		document_row(document, row);
	}
}

static void
add_paths(struct document *document, const Tensorhub__V1__RdmaInfo *rdma)
{
	static const struct column columns[] = {
		{"port", "PORT", false},
		{"host", "HOST", false},
		{"peer", "THEIR PORT", false},
		{"state", "STATE", false},
		{"bytes", "IN", false},
		{"legs", "TRANSFERS", false},
		{"failures", "FAILURES", false},
		{"paused_ns", "PAUSED", false},
		{"why", "LAST FAILURE", false},
	};

	document_table(document, "rdma_paths", columns, TH_ARRAY_LEN(columns));
	document_table_wide(document);
	for (size_t i = 0; i < rdma->n_paths; i++) {
		const Tensorhub__V1__PathInfo *path = rdma->paths[i];
		bool paused = path->paused_ns > 0;
		const struct value row[TH_ARRAY_LEN(columns)] = {
			value_text(path->rail),
			value_text(path->host),
			value_text(path->peer),
			value_text(paused ? "paused" : "used"),
			value_bytes(path->bytes),
			value_number(path->legs),
			value_number(path->failures),
			paused ? value_duration(path->paused_ns) : value_none(),
			value_text(path->why),
		};
		document_row(document, row);
	}
}

void
rdma_tables(struct document *document, const Tensorhub__V1__RdmaInfo *rdma)
{
	if (!rdma || rdma->n_rails == 0)
		return;
	add_rails(document, rdma);
	add_paths(document, rdma);
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

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
status_tables_add_memory(struct document *document, const Tensorhub__V1__SessionInfo *session,
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
			status_tables_add_memory(document, session, session->memory[k]);
		if (session->memory_more > 0)
			add_more(document, session);
	}
}
