/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_status - thctl status: is it well, and if not, why. Of this agent, or with -s of the cluster.
 *
 * Exit status 5 says that the verdict is not HEALTH_OK.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/units.h"
#include "tools/thctl/cluster_tables.h"
#include "tools/thctl/rpc.h"
#include "tools/thctl/status_tables.h"

static void
add_loans(struct document *document, const Tensorhub__V1__StatusReply *status)
{
	static const struct column columns[] = {
		{"model", "BORROWED", false},
		{"version", "VERSION", false},
		{"shard", "SHARD", false},
		{"pid", "PID", false},
		{"bytes", "SIZE", false},
		{"age", "AGE", false},
		{"lineage", "LINEAGE", true},
		{"uid", "UID", true},
	};

	document_table(document, "loans", columns, TH_ARRAY_LEN(columns));
	for (size_t i = 0; i < status->n_loans; i++) {
		const Tensorhub__V1__LoanInfo *loan = status->loans[i];
		const Tensorhub__V1__Version *version = loan->version;
		const struct value row[TH_ARRAY_LEN(columns)] = {
			value_text(loan->model),
			version ? value_number(version->version) : value_none(),
			value_number(loan->shard),
			loan->pid > 0 ? value_number((uint64_t)loan->pid) : value_none(),
			value_bytes(loan->bytes),
			value_duration(loan->age_ns),
			version ? value_number(version->lineage) : value_none(),
			value_number(loan->uid),
		};
		document_row(document, row);
	}
}

static void
add_sessions(struct document *document, const Tensorhub__V1__StatusReply *status)
{
	static const struct column columns[] = {
		{"model", "MODEL", false},
		{"replica", "REPLICA", false},
		{"shard", "SHARD", false},
		{"num_shards", "SHARDS", false},
		{"pid", "PID", false},
		{"version", "VERSION", false},
		{"state", "STATE", false},
		{"operation", "OPERATION", false},
		{"bytes", "SIZE", false},
		{"memory", "MEMORY", false},
		{"transfers_in", "IN", false},
		{"transfers_out", "OUT", false},
		{"lineage", "LINEAGE", true},
		{"uid", "UID", true},
		{"session", "SESSION", true},
		{"offload", "OFFLOAD", true},
		{"ready", "READY", true},
		{"flags", "FLAGS", true},
	};

	document_table(document, "sessions", columns, TH_ARRAY_LEN(columns));
	for (size_t i = 0; i < status->n_sessions; i++) {
		const Tensorhub__V1__SessionInfo *session = status->sessions[i];
		const Tensorhub__V1__Version *held = session->held, *ready = session->ready;
		bool observes = *session->replica == '\0';
		const struct value row[TH_ARRAY_LEN(columns)] = {
			value_text(session->model),
			value_text(session->replica),
			observes ? value_none() : value_number(session->shard),
			observes ? value_none() : value_number(session->num_shards),
			session->pid > 0 ? value_number((uint64_t)session->pid) : value_none(),
			held ? value_number(held->version) : value_none(),
			value_text(session->state),
			value_text(session->operation),
			value_bytes(session->bytes),
			gpus_paths(session),
			value_number(session->legs_in),
			value_number(session->legs_out),
			held ? value_number(held->lineage) : value_none(),
			value_number(session->uid),
			value_number(session->session),
			value_flag(session->offload),
			ready ? value_number(ready->version) : value_none(),
			cluster_flags(session->flags),
		};
		document_row(document, row);
	}
}

static void
cmd_status_add_counters(struct document *document, const Tensorhub__V1__StatusReply *status)
{
	static const struct column columns[] = {
		{"name", "COUNTER", false},
		{"value", "VALUE", false},
		{"unit", "UNIT", false},
		{"help", "MEANING", false},
	};

	document_table(document, "counters", columns, TH_ARRAY_LEN(columns));
	document_table_wide(document);
	for (size_t i = 0; i < status->n_counters; i++) {
		const Tensorhub__V1__CounterInfo *counter = status->counters[i];
		const struct value row[TH_ARRAY_LEN(columns)] = {
			value_text(counter->name),
			value_number(counter->value),
			value_text(counter->unit),
			value_text(counter->help),
		};
		document_row(document, row);
	}
}

static void
judge_agent(struct document *document, const Tensorhub__V1__StatusReply *status)
{
	if (!status->attached)
		document_warn(document, "TH_NO_SERVER", "see that thserverd runs and is reachable",
			"the agent reaches no reference server%s%s",
			*status->server_text ? ": " : "", status->server_text);
	rdma_judge(document, status->rdma);
	gpus_judge(document, status->gpus);
	for (size_t i = 0; i < status->n_sessions; i++) {
		const Tensorhub__V1__SessionInfo *session = status->sessions[i];
		if (strcmp(session->state, "broken") == 0)
			document_warn(document, "TH_GROUP_BROKEN", "thctl ls workers",
				"replica %s of model %s lost a member: shard %u must be opened "
				"again",
				session->replica, session->model, session->shard);
	}
}

static void
fill_agent(struct document *document, const Tensorhub__V1__StatusReply *status)
{
	char up[TH_UNITS_BYTES];
	bool several = strchr(status->servers, ',') != NULL, all = !status->own_only;

	document->has_verdict = true;
	if (asprintf(&document->headline, "thagentd %s on %s  up %s  dc=%s", status->version,
		    status->node, th_print_duration_short(status->uptime_ns, up),
		    status->datacenter) < 0)
		document->headline = NULL;
	judge_agent(document, status);
	document_field(document, "node", NULL, value_text(status->node));
	document_field(document, "datacenter", NULL, value_text(status->datacenter));
	document_field(document, "version", NULL, value_text(status->version));
	document_field(document, "pid", NULL, value_number((uint64_t)th_max_i64(status->pid, 0)));
	document_field(document, "uptime_ns", NULL, value_duration(status->uptime_ns));
	document_field(document, "server", "server", value_text(status->server));
	document_field(document, "servers", several ? "of" : NULL, value_text(status->servers));
	document_field(
		document, "epoch", several ? "epoch" : NULL, value_number(status->server_epoch));
	document_field(document, "attached", "attached", value_flag(status->attached));
	document_field(document, "server_text", NULL, value_text(status->server_text));
	document_field(document, "draining", status->draining ? "draining" : NULL,
		value_flag(status->draining));
	document_field(document, "leaving", status->leaving ? "leaving" : NULL,
		value_flag(status->leaving));
	document_field(document, "server_inc", NULL,
		value_textf("%016" PRIx64, (uint64_t)status->server_inc));
	document_field(document, "data_address", "data", value_text(status->data_address));
	document_field(document, "transports", "transports", value_text(status->transports));
	far_fields(document, status->far);
	rdma_fields(document, status->rdma);
	gpus_fields(document, status->gpus);
	document_field(document, "verify", "verify", value_text(status->verify));
	document_field(document, "own_only", NULL, value_flag(status->own_only));
	document_field(document, "mapped_bytes", all ? "memory" : NULL,
		all ? value_bytes(status->mapped_bytes) : value_none());
	document_field(document, "offload_used", all ? "offload" : NULL,
		all ? value_bytes(status->offload_used) : value_none());
	document_field(document, "offload_limit", all ? "offload limit" : NULL,
		all ? value_bytes(status->offload_limit) : value_none());
	add_sessions(document, status);
	add_loans(document, status);
	gpus_memory(document, status);
	gpus_table(document, status->gpus);
	rdma_tables(document, status->rdma);
	cmd_status_add_counters(document, status);
}

static void
fill_cluster(const char *url, struct document *document, const struct ctl_inspection *inspection)
{
	char up[TH_UNITS_BYTES];

	document->has_verdict = true;
	if (asprintf(&document->headline, "thserverd at %s  up %s  %u nodes  %u workers%s", url,
		    th_print_duration_short(inspection->uptime_ns, up), inspection->num_nodes,
		    inspection->num_members, inspection->serving ? "" : "  standby") < 0)
		document->headline = NULL;
	if (!inspection->serving)
		document_warn(document, "TH_STANDBY", "thctl -s with the list of all servers",
			"this server serves nobody: %s", inspection->server_text);
	cluster_judge(document, inspection);
	document_field(document, "server", NULL, value_text(url));
	document_field(document, "serving", NULL, value_flag(inspection->serving));
	document_field(document, "epoch", "epoch", value_number(inspection->epoch));
	document_field(document, "server_text", NULL, value_text(inspection->server_text));
	document_field(
		document, "server_inc", NULL, value_textf("%016" PRIx64, inspection->server_inc));
	document_field(document, "uptime_ns", NULL, value_duration(inspection->uptime_ns));
	cluster_nodes(document, inspection);
	cluster_workers(document, inspection, NULL);
	cluster_transfers(document, inspection, NULL);
	cluster_counters(document, inspection);
}

static int
run_status(struct thctl *ctl)
{
	struct document document;
	struct rpc *rpc = NULL;
	struct th_err err = {0};
	Tensorhub__V1__Reply *reply = NULL;
	struct ctl_inspection inspection;

	document_init(&document, ctl->server ? "cluster" : "status");
	int rc = rpc_open(ctl, &err, &rpc);
	if (rc == TH_E_DENIED && !ctl->server)
		rc = rpc_open_worker(ctl, &err, &rpc);
	if (rc == 0)
		rc = ctl->server ? rpc_inspection(rpc, &err, &inspection)
				 : rpc_status(rpc, &err, &reply);
	if (rc < 0) {
		rpc_close(rpc);
		return thctl_fail(ctl, rc, err.text);
	}
	if (ctl->server)
		fill_cluster(rpc_url(rpc), &document, &inspection);
	else
		fill_agent(&document, reply->status);
	if (!ctl->server && reply->status->own_only)
		thctl_say("status: shown is what belongs to this user; all is shown to operators: "
			  "root, the agent's user and the group of its key admin.group");
	bool degraded = document.num_warnings > 0;
	int status = thctl_print(ctl, &document);
	tensorhub__v1__reply__free_unpacked(reply, NULL);
	rpc_close(rpc);
	return status == THCTL_OK && degraded ? THCTL_DEGRADED : status;
}

const struct verb verb_status = {
	.name = "status",
	.summary = "health of this agent, or with -s of the cluster",
	.text = "The verdict comes first. Exit status 5 when it is not HEALTH_OK.",
	.run = run_status,
};
