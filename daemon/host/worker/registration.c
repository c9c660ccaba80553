/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registration - see registration.h. Main thread only.
 */
#include "daemon/host/worker/registration.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/host/host.h"
#include "daemon/host/memory/memory_gpu.h"
#include "daemon/host/server/source_attributes.h"
#include "daemon/host/worker/doc_channel.h"
#include "daemon/host/worker/unpack.h"
#include "ipc/base/clock.h"
#include "ipc/base/failpoint.h"
#include "ipc/base/log.h"
#include "ipc/base/units.h"
#include "ipc/proto/manifest.h"

/* ---- answers -------------------------------------------------------------------------------- */

/* Answers the open document and keeps the answer for a repeat of it. False: nobody waits for it. */
static bool
registration_tell(struct host_session *session, const struct th_err *result,
	Tensorhub__V1__RegisterTensorsReply *body)
{
	struct registration *registration = &session->registration;
	Tensorhub__V1__Reply reply;
	struct th_err copy = *result;
	/* The session was lost meanwhile, and with that the question was answered. */
	if (!registration->pending)
		return false;
	tensorhub__v1__reply__init(&reply);
	reply.request_no = registration->request_no;
	reply.code = copy.code;
	reply.text = copy.text;
	if (body && copy.code == 0) {
		reply.body_case = TENSORHUB__V1__REPLY__BODY_REGISTER_TENSORS;
		reply.register_tensors = body;
	}
	uint64_t token = registration->token;
	registration->pending = false;
	registration->token = 0;
	return documents_reply(
		session->host, token, &reply, &registration->answer, &registration->answer_bytes);
}

static void
registration_answer(struct host_session *session, const struct th_err *result,
	Tensorhub__V1__RegisterTensorsReply *body)
{
	if (result->code != 0 && session->registration.pending) {
		char label[SESSION_LABEL_BYTES];
		session->host->counters.registrations_refused++;
		log_warn("register", "refused session=%" PRIu64 " shard=%s code=%s reason=\"%s\"",
			session->id, session_label(session, label), th_errname(result->code),
			result->text);
	}
	(void)registration_tell(session, result, body);
}

static void
answer_ok(struct host_session *session)
{
	const struct th_err none = {0};
	registration_answer(session, &none, NULL);
}

static int64_t
deadline_of(const Tensorhub__V1__Request *request)
{
	return request->deadline_ns > 0 ? th_deadline_ns(th_now_ns(), request->deadline_ns)
					: INT64_MAX;
}

/* ---- documents in parts --------------------------------------------------------------------- */

static void
assembly_reset(struct assembly *assembly)
{
	free(assembly->data);
	*assembly = (struct assembly){0};
}

/* 1: complete, 0: more to come, or a code. Parts come in order; part 0 begins anew. */
static int
assembly_add(struct assembly *assembly, uint32_t part, uint32_t num_parts,
	const ProtobufCBinaryData *data, size_t bytes_max, struct th_err *err)
{
	if (part == 0) {
		assembly_reset(assembly);
		assembly->num_parts = num_parts;
	}
	if (part != assembly->next_part || num_parts != assembly->num_parts || part >= num_parts)
		return th_fail(err, TH_E_INVALID,
			"part %" PRIu32 " of %" PRIu32 " of a document, where part %" PRIu32
			" of %" PRIu32 " was due",
			part, num_parts, assembly->next_part, assembly->num_parts);
	if (data->len > bytes_max - assembly->bytes)
		return th_fail(err, TH_E_LIMIT,
			"the document is larger than %zu bytes, the limit for one shard",
			bytes_max);
	uint8_t *grown = realloc(assembly->data, assembly->bytes + data->len + 1);
	if (!grown)
		return th_fail(err, -ENOMEM, "the agent is out of memory for this document");
	if (data->len > 0)
		memcpy(grown + assembly->bytes, data->data, data->len);
	assembly->data = grown;
	assembly->bytes += data->len;
	assembly->next_part++;
	return assembly->next_part == num_parts;
}

/* ---- register ------------------------------------------------------------------------------- */

static void
put_again_done(void *arg, const struct th_err *result)
{
	struct blob_put **again = arg;

	*again = NULL;
	if (result->code != 0)
		log_warn("register", "not put again reason=\"%s\"", result->text);
}

static void
put_again(struct host *host, struct blob_put **again, struct th_hash key, const uint8_t *data,
	size_t bytes)
{
	blob_put_cancel(*again);
	*again = bytes == 0
			 ? NULL
			 : blob_put_start(host, key, data, bytes, INT64_MAX, put_again_done, again);
}

void
registration_put_again(struct host *host)
{
	struct host_session *session, *next;

	HASH_ITER(hh, host->sessions, session, next)
	{
		struct registration *registration = &session->registration;
		const struct tensors *tensors = registration->tensors;
		if (tensors && registration->state >= REGISTRATION_ASKED)
			put_again(host, &registration->again[0], tensors->key, tensors->encoded,
				tensors->encoded_bytes);
		put_again(host, &registration->again[1], registration->kept_key,
			registration->kept.data, registration->kept.bytes);
		put_again(host, &registration->again[2], registration->filled_key,
			registration->filled.data, registration->filled.bytes);
	}
}

static void
put_never_again(struct registration *registration)
{
	for (size_t i = 0; i < TH_ARRAY_LEN(registration->again); i++) {
		blob_put_cancel(registration->again[i]);
		registration->again[i] = NULL;
	}
}

/* It is over, and the agent keeps no GPU memory of it, or an UNREGISTER hears that it does. */
static void
over(struct host_session *session, const struct th_err *result)
{
	struct registration *registration = &session->registration;
	char label[SESSION_LABEL_BYTES];
	registration->state = REGISTRATION_NONE;
	if (registration->leaves && result->code == 0)
		log_info("register", "unregistered session=%" PRIu64 " shard=%s", session->id,
			session_label(session, label));
	registration->leaves = false;
	/* Only an UNREGISTER comes here that ended well. */
	if (result->code != 0 || registration->stays.code == 0)
		registration_answer(session, result, NULL);
	else if (registration_tell(session, &registration->stays, NULL))
		registration->stays = (struct th_err){0};
}

static void
freed(void *arg, const struct th_err *result)
{
	struct host_session *session = arg;
	struct registration *registration = &session->registration;
	registration->wait = NULL;
	if (result->code != 0)
		registration->stays = *result;
	over(session, &registration->outcome);
	session_let_go(session);
}

/* False: there is no GPU memory that the agent may still keep. */
static bool
await_free(struct host_session *session)
{
	struct hold *hold = session->memory.hold;
	if (!hold)
		return false;
	session->memory.hold = NULL;
	session->registration.state = REGISTRATION_FREEING;
	session->registration.wait = gpu_wait_gone(session->host, hold, freed, session);
	return true;
}

/* Nothing is registered any more; its memory goes when nobody touches it. */
static void
registration_forget(struct host_session *session)
{
	struct registration *registration = &session->registration;
	put_never_again(registration);
	claim_remove(&session->host->claims, &session->claim);
	session->claim.intervals = NULL;
	session->claim.num_intervals = 0;
	tensors_free(registration->tensors);
	registration->tensors = NULL;
	/*
	 * Pieces of GPU memory are for one registration: an engine that goes to sleep wants them
	 * free now, and not when it has named them all.
	 */
	memory_gpu_forget_all(&session->memory);
	session_sweep_memory(session);
}

/* Forgets it, and answers who waits with result once its GPU memory is free. */
static void
abandon(struct host_session *session, const struct th_err *result)
{
	registration_forget(session);
	session->registration.outcome = *result;
	if (!await_free(session))
		over(session, result);
}

static void
manifest_put_done(void *arg, const struct th_err *result)
{
	struct host_session *session = arg;
	struct registration *registration = &session->registration;
	const struct tensors *tensors = registration->tensors;
	registration->put = NULL;
	TH_FP(agent_registers);
	if (result->code != 0) {
		abandon(session, result);
		return;
	}
	registration->state = REGISTRATION_ASKED;
	struct agent_event event = {.kind = AGENT_EV_REGISTER, .session = session->id};
	event.u.reg.layout = tensors->layout;
	event.u.reg.manifest = tensors->key;
	event.u.reg.bytes = tensors->table->bytes;
	event.u.reg.num_chunks = tensors->table->num_chunks;
	event.u.reg.mapped = tensors_mapped(tensors);
	engine_post(session->host, &event);
}

static void
put_manifest(struct host_session *session)
{
	struct registration *registration = &session->registration;
	const struct tensors *tensors = registration->tensors;
	registration->state = REGISTRATION_PUTTING;
	registration->put = blob_put_start(session->host, tensors->key, tensors->encoded,
		tensors->encoded_bytes, registration->deadline_ns, manifest_put_done, session);
}

static void
gpu_opened(void *arg, const struct th_err *result)
{
	struct host_session *session = arg;
	session->registration.wait = NULL;
	if (result->code == 0)
		put_manifest(session);
	else /* Its worker registers again, with a copy in host memory in place of it. */
		abandon(session, result);
}

/* What runs for a registration that nobody wants any more. */
static void
stop_waiting(struct registration *registration)
{
	gpu_wait_cancel(registration->wait);
	registration->wait = NULL;
	blob_put_cancel(registration->put);
	registration->put = NULL;
}

/* What the worker sent makes a registration, or *err says why not. */
static int
build(struct host_session *session, struct th_err *err)
{
	struct registration *registration = &session->registration;
	struct unpacked_rows rows = {0};
	int rc = unpack_rows(registration->rows.data, registration->rows.bytes,
		session->host->options.tensors_max, err, &rows);
	if (rc == 0)
		rc = tensors_new(&rows.rows, &session->memory, err, &registration->tensors);
	if (rc == 0)
		session_cover(session);
	unpack_rows_free(&rows);
	assembly_reset(&registration->rows);
	return rc;
}

static void
on_register(struct host_session *session, const Tensorhub__V1__Request *request)
{
	struct registration *registration = &session->registration;
	const Tensorhub__V1__RegisterTensors *body = request->register_tensors;
	struct th_err err = {0};
	int rc;
	if (registration->state != REGISTRATION_NONE)
		rc = th_fail(
			&err, TH_E_STATE, "tensors are registered already; unregister them first");
	else
		rc = assembly_add(&registration->rows, body->part, body->num_parts, &body->data,
			TH_BLOB_BYTES_MAX, &err);
	if (rc == 0) {
		answer_ok(session);
		return;
	}
	if (rc < 0) {
		assembly_reset(&registration->rows);
		registration_answer(session, &err, NULL);
		return;
	}
	if (build(session, &err) < 0) {
		abandon(session, &err);
		return;
	}
	const struct tensors *tensors = registration->tensors;
	session->claim.intervals = tensors->intervals;
	session->claim.num_intervals = tensors->num_intervals;
	claim_add(&session->host->claims, &session->claim);
	registration->deadline_ns = deadline_of(request);
	if (tensors->gpus == 0) {
		put_manifest(session);
		return;
	}
	registration->state = REGISTRATION_OPENING;
	registration->wait =
		gpu_wait(session->host, &session->memory, tensors->gpus, gpu_opened, session);
}

static void
registration_leave(struct host_session *session)
{
	session->registration.state = REGISTRATION_LEAVING;
	TH_FP(agent_unregisters);
	struct agent_event event = {.kind = AGENT_EV_UNREGISTER, .session = session->id};
	engine_post(session->host, &event);
}

void
registration_registered(struct host_session *session, const struct th_err *result)
{
	struct registration *registration = &session->registration;
	char label[SESSION_LABEL_BYTES];
	char size[TH_UNITS_BYTES];
	if (registration->state != REGISTRATION_ASKED)
		return;
	TH_FP(agent_registered);
	bool unwanted = registration->unwanted;
	registration->unwanted = false;
	if (result->code != 0) {
		const struct th_err none = {0};
		/* Of UNREGISTER: nothing is registered. */
		abandon(session, unwanted ? &none : result);
		return;
	}
	if (unwanted) {
		registration_leave(session);
		return;
	}
	const struct tensors *tensors = registration->tensors;
	Tensorhub__V1__Hash layout;
	Tensorhub__V1__RegisterTensorsReply body;
	tensorhub__v1__hash__init(&layout);
	tensorhub__v1__register_tensors_reply__init(&body);
	layout.lo = tensors->layout.lo;
	layout.hi = tensors->layout.hi;
	body.layout = &layout;
	body.bytes = tensors->table->bytes;
	registration->state = REGISTRATION_DONE;
	session->host->counters.registrations++;
	log_info("register",
		"registered session=%" PRIu64 " shard=%s tensors=%" PRIu32
		" bytes=%s chunks=%" PRIu32 " layout=%016" PRIx64 "%016" PRIx64,
		session->id, session_label(session, label), tensors->manifest.num_rows,
		th_print_size_short(tensors->table->bytes, size), tensors->table->num_chunks,
		tensors->layout.hi, tensors->layout.lo);
	registration_answer(session, result, &body);
}

/* ---- unregister ----------------------------------------------------------------------------- */

static void
on_unregister(struct host_session *session)
{
	const struct th_err none = {0};
	/*
	 * Its worker asks when it does not know: its answer must differ from that of what stays
	 * registered. And pieces may have been shared for what was to be, or stay of what failed.
	 */
	if (session->registration.state != REGISTRATION_DONE)
		abandon(session, &none);
	else
		registration_leave(session);
}

void
registration_unregistered(struct host_session *session, const struct th_err *result)
{
	struct registration *registration = &session->registration;
	if (registration->state != REGISTRATION_LEAVING)
		return;
	if (result->code != 0) {
		registration->state = REGISTRATION_DONE;
		registration_answer(session, result, NULL);
		return;
	}
	registration->leaves = true;
	abandon(session, result);
}

/* ---- attributes ----------------------------------------------------------------------------- */

static void
post_attributes(struct host_session *session)
{
	struct agent_event event = {.kind = AGENT_EV_ATTRIBUTES,
		.session = session->id,
		.u.attributes = session->registration.attributes_key};
	engine_post(session->host, &event);
	struct registration *registration = &session->registration;
	blob_put_cancel(registration->again[1]);
	registration->again[1] = NULL;
	assembly_reset(&registration->kept);
	registration->kept = registration->attributes;
	registration->kept_key = registration->attributes_key;
	registration->attributes = (struct assembly){0};
}

static void
attributes_put_done(void *arg, const struct th_err *result)
{
	struct host_session *session = arg;
	session->registration.put = NULL;
	if (result->code == 0)
		post_attributes(session);
	assembly_reset(&session->registration.attributes);
	registration_answer(session, result, NULL);
}

static void
on_attributes(struct host_session *session, const Tensorhub__V1__Request *request)
{
	struct registration *registration = &session->registration;
	struct assembly *assembly = &registration->attributes;
	const Tensorhub__V1__SetAttributes *body = request->set_attributes;
	struct manifest_attribute *attributes = NULL;
	size_t count = 0;
	struct th_err err = {0};
	int rc = assembly_add(
		assembly, body->part, body->num_parts, &body->data, ATTRIBUTES_DOCUMENT_MAX, &err);
	if (rc == 0) {
		answer_ok(session);
		return;
	}
	if (rc > 0)
		rc = manifest_attributes_decode(
			assembly->data, assembly->bytes, &err, &attributes, &count);
	free(attributes);
	if (rc < 0) {
		assembly_reset(assembly);
		registration_answer(session, &err, NULL);
		return;
	}
	if (count == 0) {
		registration->attributes_key = (struct th_hash){0};
		post_attributes(session);
		answer_ok(session);
		return;
	}
	registration->attributes_key = manifest_key(assembly->data, assembly->bytes);
	registration->put =
		blob_put_start(session->host, registration->attributes_key, assembly->data,
			assembly->bytes, deadline_of(request), attributes_put_done, session);
}

/* ---- dispatch ------------------------------------------------------------------------------- */

static void
registration_begin(struct host_session *session, uint64_t token, uint64_t request_no)
{
	struct registration *registration = &session->registration;
	free(registration->answer);
	registration->answer = NULL;
	registration->request_no = request_no;
	registration->token = token;
	registration->pending = true;
}

/* True: request is a repeat of the last one and was dealt with. */
static bool
repeated(struct host_session *session, uint64_t token, uint64_t request_no)
{
	struct registration *registration = &session->registration;
	if (request_no == 0 || request_no != registration->request_no)
		return false;
	if (registration->pending) {
		/* One answer a document: it goes to who asked last. */
		if (registration->token != 0)
			documents_refuse(session->host, registration->token, request_no,
				TH_E_CANCELLED, "the same request was sent again");
		registration->token = token;
	} else {
		documents_send(
			session->host, token, registration->answer, registration->answer_bytes);
	}
	return true;
}

/*
 * UNREGISTER while another document is under way: its worker has given up waiting for that, and
 * undoes what may have come of it. True: it is answered when that is over.
 */
static bool
registration_undone(
	struct host_session *session, uint64_t token, const Tensorhub__V1__Request *request)
{
	struct registration *registration = &session->registration;
	const enum registration_state state = registration->state;
	const struct th_err none = {0};
	struct th_err cancelled;
	th_fail(&cancelled, TH_E_CANCELLED, "UNREGISTER came before its end");
	(void)registration_tell(session, &cancelled, NULL);
	if (state == REGISTRATION_NONE || state == REGISTRATION_DONE) {
		stop_waiting(registration); /* attributes */
		assembly_reset(&registration->attributes);
		return false;
	}
	registration_begin(session, token, request->request_no);
	if (state == REGISTRATION_OPENING || state == REGISTRATION_PUTTING) {
		stop_waiting(registration);
		abandon(session, &none);
	} else if (state == REGISTRATION_ASKED) {
		registration->unwanted = true;
	} else if (state == REGISTRATION_FREEING) {
		registration->outcome = none;
	}
	return true;
}

void
registration_document(
	struct host_session *session, uint64_t token, const Tensorhub__V1__Request *request)
{
	struct registration *registration = &session->registration;
	if (repeated(session, token, request->request_no))
		return;
	if (registration->pending) {
		if (request->body_case != TENSORHUB__V1__REQUEST__BODY_UNREGISTER_TENSORS) {
			documents_refuse(session->host, token, request->request_no, TH_E_STATE,
				"another registration of this handle is under way; wait for its "
				"end");
			return;
		}
		if (registration_undone(session, token, request))
			return;
	}
	registration_begin(session, token, request->request_no);
	if (request->body_case == TENSORHUB__V1__REQUEST__BODY_REGISTER_TENSORS)
		on_register(session, request);
	else if (request->body_case == TENSORHUB__V1__REQUEST__BODY_UNREGISTER_TENSORS)
		on_unregister(session);
	else
		on_attributes(session, request);
}

void
registration_forget_token(struct host_session *session, uint64_t token)
{
	if (session->registration.token == token)
		session->registration.token = 0;
}

void
registration_stop(struct host_session *session)
{
	struct registration *registration = &session->registration;
	if (registration->state != REGISTRATION_FREEING)
		stop_waiting(registration);
	put_never_again(registration);
	if (registration->pending) {
		struct th_err err;
		th_fail(&err, TH_E_AGENT_LOST, "the agent has ended this session");
		registration_answer(session, &err, NULL);
	}
}

bool
registration_let_go(struct host_session *session)
{
	registration_forget(session);
	/* What an earlier one had goes first. */
	return !session->registration.wait && !await_free(session);
}

void
registration_free(struct host_session *session)
{
	struct registration *registration = &session->registration;
	stop_waiting(registration);
	put_never_again(registration);
	assembly_reset(&registration->rows);
	assembly_reset(&registration->kept);
	assembly_reset(&registration->attributes);
	attributes_forget(session);
	tensors_free(registration->tensors);
	free(registration->answer);
	*registration = (struct registration){0};
}
