/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_attributes - those of what a session was filled with, kept for another server.
 *
 * A server that knows nothing is told the attributes of a version by every agent that holds it, so
 * that they outlive their publisher. They come from the server while the bytes come from a peer, or
 * from another session of this host that has them; at most as long as one publish may make them.
 * Main thread only.
 */
#ifndef TH_DAEMON_HOST_SERVER_SOURCE_ATTRIBUTES_H
#define TH_DAEMON_HOST_SERVER_SOURCE_ATTRIBUTES_H

#include "ipc/base/ctl.h"
#include "ipc/proto/manifest.h"

/* Encoded: the values, their names and lengths. */
#define ATTRIBUTES_DOCUMENT_MAX (MANIFEST_ATTRIBUTES_BYTES_MAX + (1u << 20))

struct host;
struct host_session;

/* Those of this key from now on; none: nothing. */
void attributes_keep(struct host_session *session, struct th_hash key);
/* At every beat: asks again for what has not come. */
void attributes_resume(struct host *host);
/* The session ends. */
void attributes_forget(struct host_session *session);

#endif
