/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_plan - thctl plan: what reading a version into another layout would move, from two files.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/thctl/plan_tables.h"
#include "tools/thctl/thctl.h"

/* The whole of a file, which may also be a pipe. */
static int
read_whole(const char *path, struct th_err *err, char **ret_text, size_t *ret_bytes)
{
	size_t room = 1 << 16, bytes = 0;
	char *text = NULL;
	int rc = 0;
	FILE *file = fopen(path, "re");
	if (!file)
		return th_fail(err, -errno, "cannot open it: %s", strerror(errno));
	for (;;) {
		char *larger = realloc(text, room);
		if (!larger) {
			rc = th_fail(err, -ENOMEM, "no memory for %zu bytes", room);
			break;
		}
		text = larger;
		bytes += fread(text + bytes, 1, room - bytes, file);
		if (ferror(file))
			rc = th_fail(err, -EIO, "cannot read it: %s", strerror(errno));
		else if (bytes > LAYOUT_FILE_BYTES_MAX)
			rc = th_fail(err, TH_E_LIMIT, "it has more than %" PRIu64 " bytes",
				LAYOUT_FILE_BYTES_MAX);
		if (rc < 0 || bytes < room)
			break;
		room *= 2;
	}
	fclose(file);
	if (rc < 0) {
		free(text);
		return rc;
	}
	*ret_text = text;
	*ret_bytes = bytes;
	return 0;
}

static int
load(const char *path, struct th_err *err, struct layout_file *ret_file)
{
	struct th_err why = {0};
	size_t bytes = 0;
	char *text = NULL;
	int rc = read_whole(path, &why, &text, &bytes);
	if (rc == 0)
		rc = layout_file_parse(text, bytes, &why, ret_file);
	free(text);
	return rc < 0 ? th_fail(err, rc, "%s: %s", path, why.text) : 0;
}

static int
run_plan(struct thctl *ctl)
{
	struct layout_file published = {0}, view = {0};
	struct document document;
	struct th_err err = {0};
	int status;
	int rc = load(ctl->arguments[0], &err, &published);
	if (rc == 0)
		rc = load(ctl->arguments[1], &err, &view);
	bool one = (ctl->given & THCTL_SHARD) != 0;
	if (rc == 0 && one && ctl->shard >= view.num_shards) {
		status = thctl_usage(ctl, "%s has %" PRIu32 " shards, and --shard counts from 0",
			ctl->arguments[1], view.num_shards);
		goto out;
	}
	if (rc == 0)
		rc = plan_tables(&published, &view, one ? (uint32_t)ctl->shard : 0,
			one ? (uint32_t)ctl->shard + 1 : view.num_shards, &err, &document);
	status = rc < 0 ? thctl_fail(ctl, rc, err.text) : thctl_print(ctl, &document);
out:
	layout_file_free(&published);
	layout_file_free(&view);
	return status;
}

const struct verb verb_plan = {
	.name = "plan",
	.arguments = "PUBLISHED VIEW",
	.summary = "say what reading a version into another layout would move, from two files",
	.text = "Both are JSON, as thctl(1) says; nothing is asked and nothing moves. With --shard "
		"of one shard of the view, and what it reads from whom.",
	.options = THCTL_SHARD,
	.arguments_min = 2,
	.arguments_max = 2,
	.run = run_plan,
};
