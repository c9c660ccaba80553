/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_publish - thctl publish: a safetensors file or directory becomes a version, held until a
 * signal.
 *
 * The files are mapped and the agent reads them there, so that a checkpoint needs no memory of its
 * own and may be larger than what there is. Until the version is being published a signal just ends
 * the process, and the agent forgets it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/name.h"
#include "ipc/base/retain_rules.h"
#include "tools/file/carry.h"
#include "tools/file/checkpoint.h"
#include "tools/thctl/member.h"

struct publish {
	struct thctl *ctl;
	char replica[TH_NAME_MAX + 1];
	uint64_t version;
	struct checkpoint checkpoint;
	struct thc_shard *shard;
};

static int
cmd_publish_check_options(struct publish *publish)
{
	struct thctl *ctl = publish->ctl;
	struct th_spec spec;
	struct th_retain rules;
	struct th_err err;

	if (!ctl->model || !ctl->version)
		return thctl_usage(ctl, "--model and --version are needed");
	if (th_spec_parse(ctl->version, &spec) < 0 || spec.relative)
		return thctl_usage(ctl, "--version must be a number, not '%s'", ctl->version);
	publish->version = spec.number;
	if (ctl->retain && th_retain_parse(ctl->retain, &rules, &err) < 0)
		return thctl_usage(ctl, "--%s", err.text);
	if (ctl->num_shards == 0 || ctl->num_shards > TH_SHARDS_MAX)
		return thctl_usage(ctl, "--num-shards must be 1 to %d", TH_SHARDS_MAX);
	if (ctl->shard >= ctl->num_shards)
		return thctl_usage(ctl, "--shard must be less than --num-shards (%" PRIu64 ")",
			ctl->num_shards);
	if (ctl->num_shards > 1 && (!ctl->replica || !(ctl->given & THCTL_SHARD)))
		return thctl_usage(ctl,
			"several shards need --shard, and the --replica that they have in common");
	if (ctl->replica)
		return th_name_copy(publish->replica, ctl->replica);
	member_default_replica(publish->replica);
	return 0;
}

static int
open_shard(struct publish *publish, struct th_err *err)
{
	struct member_options options = {
		.replica = publish->replica,
		.shard = (uint32_t)publish->ctl->shard,
		.num_shards = (uint32_t)publish->ctl->num_shards,
		.lineage = publish->ctl->lineage,
		.retain = publish->ctl->retain,
	};

	return member_open(publish->ctl, &options, err, &publish->shard);
}

static int
register_tensors(struct publish *publish, struct th_err *err)
{
	const struct checkpoint *checkpoint = &publish->checkpoint;
	size_t count = 0;

	struct thc_tensor *tensors = calloc(checkpoint->count, sizeof(tensors[0]));
	if (!tensors)
		return th_fail(err, -ENOMEM, "no memory for %u tensors", checkpoint->count);
	for (uint32_t i = 0; i < checkpoint->num_files; i++) {
		const struct checkpoint_file *file = &checkpoint->files[i];
		for (uint32_t j = 0; j < file->header.count; j++) {
			const struct safetensors_tensor *from = &file->header.tensors[j];
			struct thc_tensor *to = &tensors[count++];
			union {
				const uint8_t *in;
				uint8_t *out; /* what is published is only read */
			} data = {.in = file->data + from->offset};
			*to = (struct thc_tensor){
				.name = from->name,
				.data = data.out,
				.bytes = from->bytes,
				.dtype = (enum thc_dtype)from->dtype,
				.device = THC_HOST,
				.ndim = from->ndim,
			};
			memcpy(to->local_shape, from->shape, sizeof(to->local_shape));
		}
	}
	int rc = thc_register(
		publish->shard, tensors, count, sizeof(tensors[0]), thctl_left_ms(publish->ctl));
	free(tensors);
	return rc < 0 ? member_failed(rc, err) : 0;
}

/* Only of a single file: the headers of several say nothing about how they would be cut again. */
static int
set_header(struct publish *publish, struct th_err *err)
{
	const struct checkpoint_file *file = &publish->checkpoint.files[0];
	char name[CARRY_NAME_BYTES];

	if (publish->checkpoint.num_files != 1)
		return 0;
	uint32_t pieces = carry_pieces(file->text_bytes);
	if (pieces == 0)
		thctl_say(
			"publish: the header of %s has %zu bytes and stays behind: a fetched file "
			"has the same tensors, but a header of its own",
			file->path, file->text_bytes);
	for (uint32_t i = 0; i < pieces; i++) {
		size_t at = (size_t)i * CARRY_PIECE_BYTES;
		int rc = thc_set_attribute(publish->shard, carry_name(i, pieces, name),
			file->text + at, th_min_size(CARRY_PIECE_BYTES, file->text_bytes - at));
		if (rc < 0)
			return member_failed(rc, err);
	}
	return 0;
}

static int
print_published(const struct publish *publish)
{
	const struct thctl *ctl = publish->ctl;
	struct document document;

	document_init(&document, "published");
	if (asprintf(&document.headline, "published %s %" PRIu64, ctl->model, publish->version) < 0)
		document.headline = NULL;
	document_field(&document, "model", NULL, value_text(ctl->model));
	document_field(&document, "lineage", NULL, value_number(ctl->lineage));
	document_field(&document, "version", NULL, value_number(publish->version));
	document_field(&document, "replica", NULL, value_text(publish->replica));
	document_field(&document, "shard", NULL, value_number(ctl->shard));
	document_field(&document, "num_shards", NULL, value_number(ctl->num_shards));
	document_field(&document, "tensors", NULL, value_number(publish->checkpoint.count));
	document_field(&document, "bytes", NULL, value_bytes(publish->checkpoint.data_bytes));
	return thctl_print(ctl, &document);
}

static int
cmd_publish_look_at_files(void *arg, struct th_err *err)
{
	const struct publish *publish = arg;

	return checkpoint_check(&publish->checkpoint, err);
}

static void
say_strays(const struct checkpoint *checkpoint)
{
	if (checkpoint->num_strays == 1)
		thctl_say("publish: %s is not in %s and stays behind", checkpoint->stray,
			CHECKPOINT_INDEX);
	else if (checkpoint->num_strays > 1)
		thctl_say("publish: %u safetensors files are not in %s and stay behind, one is %s",
			checkpoint->num_strays, CHECKPOINT_INDEX, checkpoint->stray);
}

/* From here on signals are events: what was begun is undone before the process ends. */
static int
publish_and_hold(struct publish *publish, struct th_err *err)
{
	struct thctl *ctl = publish->ctl;
	struct member_set set = {
		.shards = &publish->shard,
		.count = 1,
		.look = cmd_publish_look_at_files,
		.look_arg = publish,
	};
	struct thc_op *op = NULL;
	struct stop stop;

	int rc = stop_begin(&stop, NULL);
	if (rc < 0)
		return thctl_fail(ctl, rc, "cannot take signals");
	stop_patient(&stop);
	rc = thc_publish_submit(publish->shard, publish->version, thctl_left_ms(ctl), &op);
	if (rc < 0)
		rc = member_failed(rc, err);
	else
		rc = member_drive(&set, &stop, &op, NULL, NULL, err);
	int status = rc < 0 ? thctl_fail(ctl, rc, err->text) : print_published(publish);
	return member_finish(ctl, &set, &stop, status, true, err);
}

static int
run_publish(struct thctl *ctl)
{
	struct publish publish = {.ctl = ctl};
	struct th_err err = {0};

	int rc = cmd_publish_check_options(&publish);
	if (rc != 0)
		return rc;
	rc = checkpoint_open(ctl->arguments[0], &err, &publish.checkpoint);
	say_strays(&publish.checkpoint);
	if (rc == 0)
		rc = open_shard(&publish, &err);
	if (rc == 0)
		rc = register_tensors(&publish, &err);
	if (rc == 0)
		rc = set_header(&publish, &err);
	int status = rc < 0 ? thctl_fail(ctl, rc, err.text) : publish_and_hold(&publish, &err);
	member_close(ctl, publish.shard, true);
	checkpoint_close(&publish.checkpoint);
	return status;
}

const struct verb verb_publish = {
	.name = "publish",
	.arguments = "PATH",
	.summary = "publish a safetensors file or directory, and hold it",
	.text = "Prints `published MODEL VERSION' when others can see it. PATH is the content of "
		"this "
		"shard: nothing is split. SIGINT or SIGTERM gives the copy up and ends.",
	.options = THCTL_MODEL | THCTL_VERSION | THCTL_REPLICA | THCTL_NUM_SHARDS | THCTL_SHARD |
		   THCTL_LINEAGE | THCTL_RETAIN,
	.arguments_min = 1,
	.arguments_max = 1,
	.agent_only = true,
	.run = run_publish,
};
