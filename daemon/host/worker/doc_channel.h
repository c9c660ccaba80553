/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doc_channel - what workers ask on agent.ipc, and operators on admin.ipc.
 *
 * Registrations and attributes belong to a session and need its secret; questions about the cluster
 * go on to the server as the agent's own and come back; the status is answered here. A worker asks
 * about the model of its session alone. Main thread only.
 */
#ifndef TH_DAEMON_HOST_WORKER_DOC_CHANNEL_H
#define TH_DAEMON_HOST_WORKER_DOC_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/err.h"
#include "ipc/proto/tensorhub.pb-c.h"

struct host;

/* Before anything else of this file. */
void documents_init(struct host *host);

/* Of the loop: arg is the host. */
void documents_ready(void *arg, uint32_t events);

/* Packs and sends; false: nobody waits for it any more. The packed bytes are handed over when
 * ret_data is not NULL (free()). */
bool documents_reply(struct host *host, uint64_t token, const Tensorhub__V1__Reply *reply,
	uint8_t **ret_data, size_t *ret_bytes);
bool documents_send(struct host *host, uint64_t token, const uint8_t *data, size_t bytes);
void documents_refuse(
	struct host *host, uint64_t token, uint64_t request_no, int code, const char *text);

/* protobuf-c has char * for texts that it only reads when it packs. */
char *documents_text(const char *constant);

void documents_close(struct host *host);

#endif
