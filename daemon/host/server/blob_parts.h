/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blob_parts - manifests and attributes to the reference server and back, in parts.
 *
 * A blob is named by its hash, so a put can be begun again from the start, at any server, as often
 * as it takes; it waits while the agent is not attached. A get fails at the first failure. Main
 * thread only.
 */
#ifndef TH_DAEMON_HOST_SERVER_BLOB_PARTS_H
#define TH_DAEMON_HOST_SERVER_BLOB_PARTS_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/base/ctl.h"
#include "ipc/base/err.h"

struct host;
struct blob_put;

/*
 * data must stay until done is called or the put is cancelled. done is called once, never from
 * within blob_put_start: code 0, or why the server does not take it, or TH_E_NO_SERVER at the
 * deadline.
 */
typedef void (*blob_put_done)(void *arg, const struct th_err *result);
struct blob_put *blob_put_start(struct host *host, struct th_hash key, const uint8_t *data,
	size_t bytes, int64_t deadline_ns, blob_put_done done, void *arg);
void blob_put_cancel(struct blob_put *put); /* done will not be called; NULL: nothing */

/*
 * At every beat, and when the agent has attached: goes on with what waits, ends what is too late.
 */
void blob_puts_resume(struct host *host, int64_t now_ns);

/* data is borrowed; NULL with a code. Checked against the key. */
typedef void (*blob_got)(void *arg, const struct th_err *result, const uint8_t *data, size_t bytes);
void blob_get(struct host *host, struct th_hash key, blob_got got, void *arg);

void blobs_close(struct host *host);

#endif
