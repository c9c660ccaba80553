/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blob - the store of manifests and attributes: opaque bytes, named by their XXH3-128.
 *
 * Members and versions hold references. What nobody refers to stays until the room is needed,
 * oldest first, so that a job that starts again need not send its manifests again. An unfinished
 * upload belongs to its agent. All sizes together stay under blob_bytes_max.
 */
#ifndef TH_SERVER_CORE_MODEL_BLOB_H
#define TH_SERVER_CORE_MODEL_BLOB_H

#include "server/core/refsrv_state.h"

int blob_put(struct refsrv *server, struct agent *agent, const struct ctl_blob_part *part,
	struct th_err *err);
/* At most TH_PART_BYTES_MAX from an offset; the bytes are borrowed until the next step. */
int blob_get(struct refsrv *server, const struct ctl_blob_get *get, struct ctl_blob_part *ret_part,
	struct th_err *err);

bool blob_exists(struct refsrv *server, struct th_hash key);
/* It may be acquired, although it has not been put yet. */
void blob_expect(struct refsrv *server, struct th_hash key);
/* The blob must exist; a key of zero means none and is ignored, in both. */
void blob_acquire(struct refsrv *server, struct th_hash key);
void blob_release(struct refsrv *server, struct th_hash key);

void blob_drop_uploads(struct refsrv *server, struct agent *agent);
void blob_free_all(struct refsrv *server);

#endif
