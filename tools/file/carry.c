/* SPDX-License-Identifier: Apache-2.0 */
/*
 * carry - splitting and joining of a carried header (see carry.h).
 */
#include "tools/file/carry.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BASE_NAME "safetensors.header"

uint32_t
carry_pieces(size_t header_bytes)
{
	if (header_bytes == 0 || header_bytes > CARRY_BYTES_MAX)
		return 0;
	return (uint32_t)((header_bytes + CARRY_PIECE_BYTES - 1) / CARRY_PIECE_BYTES);
}

char *
carry_name(uint32_t number, uint32_t count, char name[CARRY_NAME_BYTES])
{
	if (count == 1)
		snprintf(name, CARRY_NAME_BYTES, "%s", BASE_NAME);
	else
		snprintf(name, CARRY_NAME_BYTES, "%s.%u", BASE_NAME, number);
	return name;
}

static const struct carry_attribute *
carry_find(const struct carry_attribute *attributes, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++) {
		if (strcmp(attributes[i].name, name) == 0)
			return &attributes[i];
	}
	return NULL;
}

/*
 * A gap in the numbers would end the search early, so the pieces are also counted by their names.
 */
static uint32_t
count_pieces(const struct carry_attribute *attributes, size_t count)
{
	uint32_t pieces = 0;

	for (size_t i = 0; i < count; i++) {
		if (strncmp(attributes[i].name, BASE_NAME ".", sizeof(BASE_NAME)) == 0)
			pieces++;
	}
	return pieces;
}

static int
carry_append(const struct carry_attribute *piece, struct th_err *err, char **header, size_t *bytes)
{
	if (piece->bytes > CARRY_BYTES_MAX - *bytes)
		return th_fail(err, TH_E_LIMIT, "the header that came along is over %zu bytes",
			CARRY_BYTES_MAX);
	char *grown = realloc(*header, *bytes + piece->bytes + 1);
	if (!grown)
		return th_fail(err, -ENOMEM, "no memory for the header that came along");
	if (piece->bytes > 0)
		memcpy(grown + *bytes, piece->value, piece->bytes);
	*bytes += piece->bytes;
	grown[*bytes] = '\0';
	*header = grown;
	return 0;
}

int
carry_join(const struct carry_attribute *attributes, size_t count, struct th_err *err,
	char **ret_header, size_t *ret_bytes)
{
	char name[CARRY_NAME_BYTES];
	char *header = NULL;
	size_t bytes = 0;
	int rc = 0;

	const struct carry_attribute *whole = carry_find(attributes, count, BASE_NAME);
	uint32_t pieces = whole ? 1 : count_pieces(attributes, count);
	if (pieces == 0)
		return 0;
	for (uint32_t i = 0; i < pieces && rc == 0; i++) {
		const struct carry_attribute *piece = whole;
		if (!piece) {
			snprintf(name, sizeof(name), "%s.%u", BASE_NAME, i);
			piece = carry_find(attributes, count, name);
		}
		rc = piece ? carry_append(piece, err, &header, &bytes)
			   : th_fail(err, TH_E_INVALID, "attribute '%s' is missing", name);
	}
	if (rc < 0) {
		free(header);
		return rc;
	}
	*ret_header = header;
	*ret_bytes = bytes;
	return 1;
}
