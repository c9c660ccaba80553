/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_attributes - see source_attributes.h. Main thread only.
 */
#include "daemon/host/server/source_attributes.h"

#include <inttypes.h>
#include <stdlib.h>

#include "daemon/host/host.h"
#include "daemon/host/server/blob_parts.h"
#include "ipc/base/alloc.h"
#include "ipc/base/checked.h"
#include "ipc/base/log.h"
#include "ipc/base/name.h"

/* With a beat between them: a server that was just told of the version may not have them yet. */
#define TRIES_MAX 16u

struct fetch { /* owned by its blob_get */
	struct host *host;
	uint64_t session;
	struct th_hash key;
};

static bool
source_attributes_wanted(const struct registration *registration)
{
	return !th_hash_none(registration->filled_key) && registration->filled.bytes == 0;
}

static void
source_attributes_take(struct registration *registration, const uint8_t *data, size_t bytes)
{
	registration->filled.data = th_memdup(data, bytes);
	registration->filled.bytes = bytes;
}

static void
got(void *arg, const struct th_err *result, const uint8_t *data, size_t bytes)
{
	struct fetch *fetch = arg;
	struct host_session *session = session_find(fetch->host, fetch->session);
	struct registration *registration = session ? &session->registration : NULL;
	/* It may have ended, or have been filled with something else since. */
	if (registration && th_hash_equal(registration->filled_key, fetch->key)) {
		registration->filled_asked = false;
		if (result->code == 0 && source_attributes_wanted(registration) &&
			bytes <= ATTRIBUTES_DOCUMENT_MAX)
			source_attributes_take(registration, data, bytes);
		else if (registration->filled_tries == TRIES_MAX)
			log_warn("register",
				"attributes not kept session=%" PRIu64 " reason=\"%s\"",
				session->id, result->code != 0 ? result->text : "too large");
	}
	free(fetch);
}

static const struct assembly *
of_another(const struct host *host, struct th_hash key)
{
	const struct host_session *session;
	for (session = host->sessions; session; session = session->hh.next) {
		const struct registration *one = &session->registration;
		if (one->filled.bytes > 0 && th_hash_equal(one->filled_key, key))
			return &one->filled;
		if (one->kept.bytes > 0 && th_hash_equal(one->kept_key, key))
			return &one->kept;
	}
	return NULL;
}

static void
fetch(struct host_session *session)
{
	struct registration *registration = &session->registration;
	const struct assembly *found = of_another(session->host, registration->filled_key);
	if (found) {
		source_attributes_take(registration, found->data, found->bytes);
		return;
	}
	struct fetch *fetch = th_calloc(1, sizeof(*fetch));
	*fetch = (struct fetch){session->host, session->id, registration->filled_key};
	registration->filled_asked = true;
	registration->filled_tries++;
	blob_get(session->host, registration->filled_key, got, fetch);
}

void
attributes_forget(struct host_session *session)
{
	struct registration *registration = &session->registration;
	/* What is being put again is borrowed from here. */
	blob_put_cancel(registration->again[2]);
	registration->again[2] = NULL;
	free(registration->filled.data);
	registration->filled = (struct assembly){0};
	registration->filled_key = (struct th_hash){0};
	registration->filled_tries = 0;
	registration->filled_asked = false;
}

void
attributes_keep(struct host_session *session, struct th_hash key)
{
	if (th_hash_equal(session->registration.filled_key, key))
		return;
	attributes_forget(session);
	session->registration.filled_key = key;
	if (!th_hash_none(key))
		fetch(session);
}

void
attributes_resume(struct host *host)
{
	struct host_session *session, *next;
	if (!host->attached)
		return;
	HASH_ITER(hh, host->sessions, session, next)
	{
		const struct registration *registration = &session->registration;
		if (source_attributes_wanted(registration) && !registration->filled_asked &&
			registration->filled_tries < TRIES_MAX)
			fetch(session);
	}
}
