/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image - one shard between the network and the disk: which files it makes, and where each tensor
 * lies in them.
 *
 * When the publisher's header came along and fits the manifest, there is one file with that header,
 * which comes back equal bytewise. Otherwise the tensors are put in the order of their names, in as
 * many files as a directory shall have. Tied tensors are registered at one place, and copied to the
 * others afterwards: a file of this format has no ties. The manifest and the header come from other
 * processes: they are believed only where they agree. No I/O, no call of libthc.
 */
#ifndef TH_TOOLS_FILE_IMAGE_H
#define TH_TOOLS_FILE_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/err.h"
#include "libthc/thc.h"
#include "tools/file/safetensors.h"

#define IMAGE_FILE_BYTES_MAX UINT64_C(5000000000) /* of data, as the usual hubs cut files */
#define IMAGE_NAME_BYTES 64

struct image_file {
	char name[IMAGE_NAME_BYTES];
	uint8_t length[SAFETENSORS_LENGTH_BYTES];
	char *header; /* owns */
	size_t header_bytes;
	uint32_t first, count; /* of image.order                                            */
	uint64_t bytes;        /* of the whole file                                         */
};

struct image_place {
	uint32_t file;
	uint64_t offset; /* in the file                                                     */
};

struct image {
	uint32_t count;
	struct thc_tensor *tensors; /* owns: what thc_register wants; names are the manifest's */
	struct image_place *places; /* owns: of each tensor                                    */
	uint32_t *leaders;   /* owns: where its bytes arrive: itself, or what it is tied to */
	uint32_t *order;     /* owns: tensors as they stand in the files                */
	uint64_t file_bytes; /* of all files, headers included                          */
	uint32_t num_files;
	struct image_file *files; /* owns */
	bool carried;             /* the publisher's own header is used                        */
	char note[TH_SENTENCE_BYTES]; /* why a header that came along is not used, or empty    */
};

/*
 * manifest is borrowed until image_free. file_bytes_max: a new file is begun when the next tensor
 * would go beyond it (UINT64_MAX: one file). Nothing is bound to memory yet.
 */
int image_plan(const struct thc_manifest *manifest, uint64_t file_bytes_max, struct th_err *err,
	struct image *ret_image);
/* maps[num_files]: where each file is mapped; fills the addresses of the tensors. */
void image_bind(struct image *image, uint8_t *const *maps);
void image_free(struct image *image); /* leaves it empty; legal on a zeroed one */

/* model.safetensors.index.json of the image's files. The caller frees *ret_text. */
int image_index(const struct image *image, struct th_err *err, char **ret_text, size_t *ret_bytes);

#endif
