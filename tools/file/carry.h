/* SPDX-License-Identifier: Apache-2.0 */
/*
 * carry - a file's header as attributes, so that a fetched file equals the published one bytewise.
 *
 * The order of the tensors, the metadata and the spacing of a header are not part of a manifest.
 * The header travels as attribute "safetensors.header", or where that is too large for one
 * attribute as "safetensors.header.0", ".1" and so on. What arrives is hostile. Pure.
 */
#ifndef TH_TOOLS_FILE_CARRY_H
#define TH_TOOLS_FILE_CARRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/err.h"
#include "ipc/proto/manifest.h"

#define CARRY_PIECE_BYTES MANIFEST_ATTRIBUTE_BYTES_MAX
/* All attributes together: less what names and lengths of the pieces take. */
#define CARRY_BYTES_MAX ((size_t)MANIFEST_ATTRIBUTES_BYTES_MAX - 1024)
#define CARRY_NAME_BYTES 32

/* How many attributes a header of that size needs; 0 when it is too large to be carried. */
uint32_t carry_pieces(size_t header_bytes);

/* The name of piece number of count; returns name. */
char *carry_name(uint32_t number, uint32_t count, char name[CARRY_NAME_BYTES]);

struct carry_attribute {
	const char *name;
	const void *value;
	size_t bytes;
};

/*
 * Puts the header together again: 1, and *ret_header (NUL behind it, free()) holds it; 0 when no
 * header was carried; negative with a sentence when pieces are missing or too large.
 */
int carry_join(const struct carry_attribute *attributes, size_t count, struct th_err *err,
	char **ret_header, size_t *ret_bytes);

#endif
