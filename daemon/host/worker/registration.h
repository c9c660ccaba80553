/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registration - what a session has registered, and the documents that change it.
 *
 * A registration arrives in parts, is decoded and checked (tensor_places.c), its manifest is put to
 * the server, and then the core is told; each document is answered once, and a repeat of it (the
 * same request number) with the remembered answer. Attributes go the same way.
 *
 * The end of a registration is answered when the agent keeps none of its GPU memory allocated any
 * more (gpu_hold.h): an engine that goes to sleep gives that back next. Main thread only.
 */
#ifndef TH_DAEMON_HOST_WORKER_REGISTRATION_H
#define TH_DAEMON_HOST_WORKER_REGISTRATION_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/host/worker/tensor_places.h"
#include "ipc/base/err.h"
#include "ipc/proto/tensorhub.pb-c.h"

struct host;
struct host_session;
struct blob_put;
struct gpu_wait;

enum registration_state {
	REGISTRATION_NONE,
	REGISTRATION_OPENING, /* pieces of GPU memory are being opened                          */
	REGISTRATION_PUTTING, /* the manifest is on its way to the server                        */
	REGISTRATION_ASKED,   /* the core was told                                              */
	REGISTRATION_DONE,
	REGISTRATION_LEAVING, /* UNREGISTER was posted                                          */
	REGISTRATION_FREEING, /* it is over, and its GPU memory is not free yet                 */
};

struct assembly { /* of a document that comes in parts */
	uint32_t next_part, num_parts;
	uint8_t *data; /* owns */
	size_t bytes;
};

struct registration {
	enum registration_state state;
	struct tensors *tensors; /* owns; from OPENING on */
	struct assembly rows, attributes;
	struct th_hash attributes_key; /* being put */
	struct blob_put *put;          /* borrows: the running one */
	struct gpu_wait *wait;         /* borrows; OPENING, FREEING */
	struct th_err outcome;         /* FREEING: the answer then */
	struct th_err stays;           /* a device keeps GPU memory: not told the worker yet */
	int64_t deadline_ns;           /* of the registration that is under way */
	/*
	 * What a server needs that knows nothing of this session. The attributes: of the last
	 * publish, or of the next.
	 */
	struct assembly kept;
	struct th_hash kept_key;
	/* Those of what the session was filled with: see source_attributes.h. */
	struct assembly filled;
	struct th_hash filled_key;
	uint32_t filled_tries;
	bool filled_asked;
	struct blob_put *again[3]; /* borrow: manifest, attributes, those it was filled with */

	/* The last document that changes something. */
	uint64_t request_no;
	uint64_t token; /* of who waits for its answer; 0: nobody */
	bool pending;
	bool unwanted;   /* undo the registration as soon as the core has answered it */
	bool leaves;     /* to be told by the log when it is over */
	uint8_t *answer; /* owns: the packed reply, when not pending */
	size_t answer_bytes;
};

/* A checked request of this session's worker; body is one of the three. */
void registration_document(
	struct host_session *session, uint64_t token, const Tensorhub__V1__Request *request);
/* Who asked under this token has gone away. */
void registration_forget_token(struct host_session *session, uint64_t token);

/* Another server: the blobs that belong to what is registered are put again. */
void registration_put_again(struct host *host);

void registration_registered(struct host_session *session, const struct th_err *result);
void registration_unregistered(struct host_session *session, const struct th_err *result);

/*
 * The session ends: nothing is answered or put any more. The tensors stay until registration_free,
 * and what GPU memory is waited for is waited for still.
 */
void registration_stop(struct host_session *session);
/*
 * Nobody touches the memory of an ended session any more: true when the agent keeps no GPU memory
 * of it allocated. Otherwise session_let_go is called, after which this is to be asked again.
 */
bool registration_let_go(struct host_session *session);
void registration_free(struct host_session *session);

#endif
