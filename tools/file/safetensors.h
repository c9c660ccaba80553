/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors - the header of a safetensors file: read with suspicion, written canonically.
 *
 * A file is: u64 little-endian header length, the header (JSON, may end in spaces), the data. The
 * header maps each name to its dtype, shape and place in the data; the places cover the data
 * without overlap and without a hole. A header comes from a file or from another process (as an
 * attribute), so it is hostile either way. Pure: no I/O, no thread.
 */
#ifndef TH_TOOLS_FILE_SAFETENSORS_H
#define TH_TOOLS_FILE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "ipc/base/err.h"
#include "ipc/proto/manifest.h"

#define SAFETENSORS_LENGTH_BYTES 8
#define SAFETENSORS_HEADER_BYTES_MAX UINT64_C(100000000) /* as the format's own library */

struct safetensors_tensor {
	char *name;     /* owned by the header                                              */
	uint32_t dtype; /* enum thc_dtype                                                   */
	uint32_t ndim;
	uint64_t shape[MANIFEST_DIMS_MAX];
	uint64_t offset, bytes; /* within the data                                          */
};

struct safetensors_header {
	uint32_t count;
	struct safetensors_tensor *tensors; /* as they lie in the data                      */
	uint64_t data_bytes;                /* where the last one ends                      */
};

/*
 * The length of the header from the first 8 bytes of a file of file_bytes bytes. TH_E_INVALID with
 * a sentence when it cannot be.
 */
int safetensors_header_length(const uint8_t length[SAFETENSORS_LENGTH_BYTES], uint64_t file_bytes,
	struct th_err *err, uint64_t *ret_bytes);

/*
 * text needs no NUL. TH_E_INVALID with a sentence that names the tensor for anything that the
 * format or a manifest does not allow; TH_E_LIMIT for more tensors than a shard can have.
 */
int safetensors_parse(
	const char *text, size_t bytes, struct th_err *err, struct safetensors_header *ret_header);
void safetensors_free(struct safetensors_header *header); /* leaves it empty */

/*
 * Gives each tensor the place behind the one before (offset is set) and makes the header for them,
 * padded so that the data begin at a multiple of 8. TH_E_INVALID for a tensor that the format
 * cannot hold. *ret_text is freed by the caller with free().
 */
int safetensors_format(struct safetensors_tensor *tensors, uint32_t count, struct th_err *err,
	char **ret_text, size_t *ret_bytes);

#endif
