/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish_attributes - thc_set_attribute: the set is kept here and sent whole before a publish.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/name.h"
#include "ipc/proto/manifest.h"
#include "ipc/proto/tensorhub.pb-c.h"
#include "libthc/libthc_own.h"

static void
free_one(struct thc_attribute *attribute)
{
	union {
		const void *constant;
		void *plain;
	} name = {.constant = attribute->name}, value = {.constant = attribute->value};

	free(name.plain);
	free(value.plain);
}

void
attributes_free(struct thc_shard *shard)
{
	for (size_t i = 0; i < shard->num_attributes; i++)
		free_one(&shard->attributes[i]);
	free(shard->attributes);
	shard->attributes = NULL;
	shard->num_attributes = 0;
}

static int
encode(const struct thc_attribute *attributes, size_t count, uint8_t **ret_data, size_t *ret_bytes)
{
	struct manifest_attribute *list = calloc(count > 0 ? count : 1, sizeof(*list));

	if (list == NULL)
		return shim_fail(-ENOMEM, "out of memory for the attributes");
	for (size_t i = 0; i < count; i++)
		list[i] = (struct manifest_attribute){.name = attributes[i].name,
			.value = attributes[i].value,
			.bytes = attributes[i].bytes};
	errors_last()->text[0] = '\0';
	int rc = manifest_attributes_encode(list, count, errors_last(), ret_data, ret_bytes);
	free(list);
	if (rc < 0 && errors_last()->text[0] == '\0')
		return shim_fail(rc, "value: %s", th_strerror(rc));
	return rc;
}

/* Where name is, or would be. */
static size_t
publish_attributes_find(const struct thc_shard *shard, const char *name, bool *ret_found)
{
	size_t at = 0;

	while (at < shard->num_attributes && strcmp(shard->attributes[at].name, name) < 0)
		at++;
	*ret_found = at < shard->num_attributes && strcmp(shard->attributes[at].name, name) == 0;
	return at;
}

static void
remove_at(struct thc_shard *shard, size_t at)
{
	free_one(&shard->attributes[at]);
	shard->num_attributes--;
	memmove(&shard->attributes[at], &shard->attributes[at + 1],
		(shard->num_attributes - at) * sizeof(*shard->attributes));
}

static int
insert_at(struct thc_shard *shard, size_t at, const char *name, const void *value, size_t bytes)
{
	struct thc_attribute *more = reallocarray(
		shard->attributes, shard->num_attributes + 1, sizeof(*shard->attributes));

	if (more == NULL)
		return shim_fail(-ENOMEM, "out of memory for an attribute");
	shard->attributes = more;
	char *own_name = strdup(name);
	void *own_value = malloc(bytes > 0 ? bytes : 1);
	if (own_name == NULL || own_value == NULL) {
		free(own_name);
		free(own_value);
		return shim_fail(-ENOMEM, "out of memory for an attribute");
	}
	memcpy(own_value, value, bytes);
	memmove(&more[at + 1], &more[at], (shard->num_attributes - at) * sizeof(*more));
	more[at] = (struct thc_attribute){own_name, own_value, bytes};
	shard->num_attributes++;
	return 0;
}

/* The whole must stay within its limit: the set with this attribute, encoded. */
static int
check_whole(struct thc_shard *shard, size_t at, bool found, const struct thc_attribute *added)
{
	size_t count = shard->num_attributes + (found ? 0 : 1), bytes = 0;
	struct thc_attribute *all = calloc(count, sizeof(*all));
	uint8_t *data = NULL;

	if (all == NULL)
		return shim_fail(-ENOMEM, "out of memory for an attribute");
	for (size_t i = 0, from = 0; i < count; i++) {
		all[i] = i == at ? *added : shard->attributes[from];
		from += i == at && !found ? 0 : 1;
	}
	int rc = encode(all, count, &data, &bytes);
	free(data);
	free(all);
	return rc;
}

int
thc_set_attribute(struct thc_shard *shard, const char *name, const void *value, size_t bytes)
{
	const struct thc_attribute added = {name, value, bytes};
	bool found = false;

	if (!th_name_valid(name, TH_NAME_MAX))
		return shim_fail(THC_E_INVALID,
			"name: must be 1 to %d bytes of UTF-8 without control characters",
			TH_NAME_MAX);
	if (value != NULL && bytes > MANIFEST_ATTRIBUTE_BYTES_MAX)
		return shim_fail(THC_E_LIMIT, "bytes: an attribute has at most %u, '%s' has %zu",
			MANIFEST_ATTRIBUTE_BYTES_MAX, name, bytes);
	int rc = shard_enter(shard, 0);
	if (rc < 0)
		return rc;
	size_t at = publish_attributes_find(shard, name, &found);
	if (value != NULL)
		rc = check_whole(shard, at, found, &added);
	if (rc == 0 && value != NULL)
		rc = insert_at(shard, at, name, value, bytes);
	/* An earlier one lies behind the new one, or is what is removed. */
	if (rc == 0 && found)
		remove_at(shard, at + (value != NULL ? 1 : 0));
	if (rc == 0 && (found || value != NULL))
		shard->attributes_changed = true;
	shard_leave(shard);
	return rc;
}

static int
publish_attributes_send_part(struct thc_shard *shard, const uint8_t *data, size_t bytes,
	uint32_t part, uint32_t num_parts, int64_t deadline_ns)
{
	Tensorhub__V1__Request request = TENSORHUB__V1__REQUEST__INIT;
	Tensorhub__V1__SetAttributes set = TENSORHUB__V1__SET_ATTRIBUTES__INIT;
	Tensorhub__V1__Reply *reply = NULL;
	union {
		const uint8_t *constant;
		uint8_t *plain;
	} pointer = {.constant = data};

	set.part = part;
	set.num_parts = num_parts;
	set.data.data = pointer.plain;
	set.data.len = bytes;
	request.body_case = TENSORHUB__V1__REQUEST__BODY_SET_ATTRIBUTES;
	request.set_attributes = &set;
	int rc = documents_call(shard, &request, 0, deadline_ns, &reply);
	if (rc == 0)
		documents_free(reply);
	return rc;
}

int
attributes_send(struct thc_shard *shard, int64_t deadline_ns)
{
	uint8_t *data = NULL;
	size_t bytes = 0;

	/* The agent takes them for the next publish only, so they are sent before each. */
	if (shard->num_attributes == 0 && !shard->attributes_changed)
		return 0;
	int rc = encode(shard->attributes, shard->num_attributes, &data, &bytes);
	if (rc < 0)
		return rc;
	/* What is set meanwhile by another thread is for the next time. */
	shard->attributes_changed = false;
	uint32_t num_parts = (uint32_t)((bytes + TH_PART_BYTES_MAX - 1) / TH_PART_BYTES_MAX);
	for (uint32_t part = 0; rc == 0 && part < num_parts; part++) {
		size_t at = (size_t)part * TH_PART_BYTES_MAX;
		rc = publish_attributes_send_part(shard, data + at,
			th_min_size(bytes - at, TH_PART_BYTES_MAX), part, num_parts, deadline_ns);
	}
	free(data);
	if (rc < 0)
		shard->attributes_changed = true;
	return rc;
}
