/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_fetch - thctl fetch: a version becomes a safetensors file or directory.
 *
 * Steps: ask what the version consists of (a handle of its own, which holds nothing), make and map
 * the files beside OUT, join as a replica, replicate the absolute version straight into them,
 * rename. So a version needs no memory of its own and may be larger than what there is. One process
 * drives all shards unless --shard says that others drive the rest. Until bytes are moved a signal
 * removes what is beside OUT and ends the process, and the agent forgets it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/checked.h"
#include "ipc/base/clock.h"
#include "ipc/base/name.h"
#include "ipc/base/units.h"
#include "tools/file/checkpoint.h"
#include "tools/file/image.h"
#include "tools/file/save.h"
#include "tools/file/stamp.h"
#include "tools/thctl/member.h"

struct fetch_part {                    /* one shard */
	struct thc_manifest *manifest; /* owns */
	struct image image;
	struct save_file **files; /* owns the array: those of save, as in image                */
	struct thc_result result;
};

struct fetch {
	struct thctl *ctl;
	const char *out;
	bool directory, force;
	char replica[TH_NAME_MAX + 1];
	char version[TH_SPEC_MAX + 1]; /* the absolute one                                */
	uint64_t lineage, absolute;
	uint32_t num_shards;         /* of the version                                    */
	uint32_t first_shard, count; /* which of them are fetched here                    */
	struct fetch_part *parts;    /* owns                                              */
	struct thc_shard **shards;   /* owns: the handles, in the same order              */
	struct save save;
	struct stamp *stamps; /* owns: of the files of save, once they are in place       */
	struct stop stop;
	struct progress progress;
};

static int
cmd_fetch_check_options(struct fetch *fetch)
{
	struct thctl *ctl = fetch->ctl;
	struct th_err err;

	if (!ctl->model || !ctl->version)
		return thctl_usage(ctl, "--model and --version are needed");
	if (ctl->given & THCTL_SHARD && ctl->shard >= TH_SHARDS_MAX)
		return thctl_usage(ctl, "--shard must be less than %d", TH_SHARDS_MAX);
	fetch->out = ctl->arguments[0];
	fetch->directory = !checkpoint_is_file_name(fetch->out);
	fetch->force = ctl->given & THCTL_FORCE;
	int rc = save_check(fetch->out, fetch->directory, fetch->force, &err);
	if (rc < 0)
		return thctl_fail(ctl, rc, err.text);
	if (ctl->replica)
		return th_name_copy(fetch->replica, ctl->replica);
	member_default_replica(fetch->replica);
	return 0;
}

/* ---- what the version consists of ----------------------------------------------------------- */

static int
listing_changed(const struct thc_listing *listing, void *arg)
{
	const uint64_t *generation = arg;

	return listing->generation != *generation;
}

/*
 * The manifest of a version, as soon as there is one. The generation is taken before the look, so
 * that a version that appears in between is not slept over.
 */
static int
wait_for_manifest(struct fetch *fetch, struct thc_shard *probe, uint32_t shard, struct th_err *err,
	struct thc_manifest **ret_manifest)
{
	const struct thctl *ctl = fetch->ctl;
	bool told = false;

	for (;;) {
		struct thc_listing *listing;
		int rc = thc_list(probe, 0, thctl_left_ms(ctl), &listing);
		if (rc < 0)
			return member_failed(rc, err);
		uint64_t generation = listing->generation;
		thc_listing_free(listing);
		rc = thc_get_manifest(probe, ctl->version, shard, thctl_left_ms(ctl), ret_manifest);
		if (rc == 0)
			return 0;
		if (rc != THC_E_NOT_AVAILABLE)
			return member_failed(rc, err);
		if (!told)
			thctl_say("fetch: waiting for %s %s", ctl->model, ctl->version);
		told = true;
		rc = thc_wait(probe, listing_changed, &generation, thctl_left_ms(ctl));
		if (rc == THC_E_TIMEOUT)
			return th_fail(err, rc, "version %s of model %s did not appear in time",
				ctl->version, ctl->model);
		if (rc < 0)
			return member_failed(rc, err);
	}
}

/* The other shards of the version that the first manifest is of. */
static int
get_other_manifests(struct fetch *fetch, struct thc_shard *probe, struct th_err *err)
{
	const struct thc_manifest *first = fetch->parts[0].manifest;

	for (uint32_t i = 1; i < fetch->count; i++) {
		struct thc_manifest **ret_manifest = &fetch->parts[i].manifest;
		int rc = thc_get_manifest(
			probe, fetch->version, i, thctl_left_ms(fetch->ctl), ret_manifest);
		if (rc < 0)
			return member_failed(rc, err);
		if ((*ret_manifest)->lineage != first->lineage ||
			(*ret_manifest)->version != first->version)
			return th_fail(err, TH_E_NOT_AVAILABLE,
				"a new lineage began while version %s was looked up",
				fetch->version);
	}
	return 0;
}

static int
get_manifests(struct fetch *fetch, struct thc_shard *probe, struct th_err *err)
{
	const struct thctl *ctl = fetch->ctl;
	struct thc_manifest *manifest;

	fetch->first_shard = ctl->given & THCTL_SHARD ? (uint32_t)ctl->shard : 0;
	int rc = wait_for_manifest(fetch, probe, fetch->first_shard, err, &manifest);
	if (rc < 0)
		return rc;
	fetch->num_shards = manifest->num_shards;
	fetch->count = ctl->given & THCTL_SHARD ? 1 : manifest->num_shards;
	fetch->parts = calloc(th_max_u32(fetch->count, 1), sizeof(fetch->parts[0]));
	fetch->shards = calloc(th_max_u32(fetch->count, 1), sizeof(fetch->shards[0]));
	if (!fetch->parts || !fetch->shards || fetch->count == 0) {
		thc_manifest_free(manifest);
		fetch->count = 0;
		return th_fail(err, -ENOMEM, "no memory for %u shards", fetch->num_shards);
	}
	fetch->parts[0].manifest = manifest;
	fetch->lineage = manifest->lineage;
	fetch->absolute = manifest->version;
	snprintf(fetch->version, sizeof(fetch->version), "%" PRIu64, manifest->version);
	if (fetch->num_shards > 1 && ctl->given & THCTL_SHARD && !ctl->replica)
		return th_fail(err, TH_E_INVALID,
			"the version has %u shards: --shard needs --replica too, the name under "
			"which "
			"other processes fetch the other shards at the same time",
			fetch->num_shards);
	if (fetch->count > 1 && !fetch->directory)
		return th_fail(err, TH_E_INVALID,
			"the version has %u shards: OUT must be a directory (not end in %s), or "
			"give "
			"--shard",
			fetch->num_shards, CHECKPOINT_SUFFIX);
	return get_other_manifests(fetch, probe, err);
}

static int
look_up(struct fetch *fetch, struct th_err *err)
{
	struct thc_shard *probe = NULL;

	int rc = member_open_probe(fetch->ctl, err, &probe);
	if (rc < 0)
		return rc;
	rc = get_manifests(fetch, probe, err);
	member_close(fetch->ctl, probe, true);
	return rc;
}

/* ---- files and membership ------------------------------------------------------------------- */

static const struct save *begun; /* for a signal; set while none is delivered */

static void
undo(void)
{
	if (begun)
		save_undo(begun);
}

static int
plan_part(struct fetch *fetch, uint32_t index, struct th_err *err)
{
	struct fetch_part *part = &fetch->parts[index];
	/* One file where one was asked for, and one a shard where there are several. */
	uint64_t file_bytes_max =
		fetch->directory && fetch->num_shards == 1 ? IMAGE_FILE_BYTES_MAX : UINT64_MAX;

	int rc = image_plan(part->manifest, file_bytes_max, err, &part->image);
	if (rc < 0)
		return rc;
	if (part->image.note[0] != '\0')
		thctl_say("fetch: the publisher's file header is not used: %s", part->image.note);
	part->files = calloc(part->image.num_files, sizeof(struct save_file *));
	if (!part->files)
		return th_fail(err, -ENOMEM, "no memory for %u files", part->image.num_files);
	return 0;
}

/* The index of a directory that holds the whole model. */
static bool
has_index(const struct fetch *fetch)
{
	return fetch->directory && fetch->num_shards == 1;
}

static int
cmd_fetch_make_file(struct fetch *fetch, uint32_t index, uint32_t number, struct th_err *err)
{
	struct fetch_part *part = &fetch->parts[index];
	const struct image_file *file = &part->image.files[number];
	struct save_file **made = &part->files[number];
	char name[IMAGE_NAME_BYTES];

	if (fetch->num_shards > 1)
		snprintf(name, sizeof(name), "shard-%05u-of-%05u" CHECKPOINT_SUFFIX,
			fetch->first_shard + index, fetch->num_shards);
	else
		snprintf(name, sizeof(name), "%s", file->name);
	int rc = save_create(&fetch->save, name, file->bytes, err, made);
	if (rc == 0)
		rc = save_put(&fetch->save, *made, 0, file->length, sizeof(file->length), err);
	if (rc == 0)
		rc = save_put(&fetch->save, *made, sizeof(file->length), file->header,
			file->header_bytes, err);
	return rc;
}

static int
make_index(struct fetch *fetch, struct th_err *err)
{
	struct save_file *file;
	size_t bytes;
	char *text;

	int rc = image_index(&fetch->parts[0].image, err, &text, &bytes);
	if (rc < 0)
		return rc;
	rc = save_create(&fetch->save, CHECKPOINT_INDEX, bytes, err, &file);
	if (rc == 0)
		rc = save_put(&fetch->save, file, 0, text, bytes, err);
	free(text);
	return rc;
}

static int
make_files(struct fetch *fetch, struct th_err *err)
{
	uint32_t files = has_index(fetch);
	int rc = 0;

	for (uint32_t i = 0; i < fetch->count; i++)
		files += fetch->parts[i].image.num_files;
	stop_block(&fetch->stop);
	rc = save_begin(fetch->out, fetch->directory, fetch->force, files, err, &fetch->save);
	if (rc == 0)
		begun = &fetch->save;
	stop_unblock(&fetch->stop);
	for (uint32_t i = 0; i < fetch->count && rc == 0; i++) {
		for (uint32_t j = 0; j < fetch->parts[i].image.num_files && rc == 0; j++)
			rc = cmd_fetch_make_file(fetch, i, j, err);
	}
	return rc == 0 && has_index(fetch) ? make_index(fetch, err) : rc;
}

static int
bind(struct fetch_part *part, struct th_err *err)
{
	uint8_t **maps = calloc(part->image.num_files, sizeof(maps[0]));

	if (!maps)
		return th_fail(err, -ENOMEM, "no memory for %u files", part->image.num_files);
	for (uint32_t i = 0; i < part->image.num_files; i++)
		maps[i] = part->files[i]->map;
	image_bind(&part->image, maps);
	free(maps);
	return 0;
}

static int
cmd_fetch_join(struct fetch *fetch, uint32_t index, struct th_err *err)
{
	struct fetch_part *part = &fetch->parts[index];
	struct member_options options = {
		.replica = fetch->replica,
		.shard = fetch->first_shard + index,
		.num_shards = fetch->num_shards,
		.lineage = fetch->lineage,
	};

	int rc = bind(part, err);
	if (rc == 0)
		rc = member_open(fetch->ctl, &options, err, &fetch->shards[index]);
	if (rc < 0)
		return rc;
	rc = thc_register(fetch->shards[index], part->image.tensors, part->image.count,
		sizeof(part->image.tensors[0]), thctl_left_ms(fetch->ctl));
	return rc < 0 ? member_failed(rc, err) : 0;
}

/* ---- bytes ---------------------------------------------------------------------------------- */

static int
replicate(struct fetch *fetch, struct member_set *set, struct th_err *err)
{
	struct thc_op **ops = calloc(fetch->count, sizeof(ops[0]));
	struct thc_result *results = calloc(fetch->count, sizeof(results[0]));
	int rc = 0;

	if (!ops || !results)
		rc = th_fail(err, -ENOMEM, "no memory for %u shards", fetch->count);
	for (uint32_t i = 0; i < fetch->count && rc == 0; i++) {
		rc = thc_replicate_submit(
			fetch->shards[i], fetch->version, thctl_left_ms(fetch->ctl), &ops[i]);
		if (rc < 0)
			rc = member_failed(rc, err);
	}
	progress_begin(&fetch->progress, "fetch");
	if (rc == 0)
		rc = member_drive(set, &fetch->stop, ops, &fetch->progress, results, err);
	progress_end(&fetch->progress);
	for (uint32_t i = 0; i < fetch->count && rc == 0; i++) {
		fetch->parts[i].result = results[i];
		/* The number means another version then: its manifest was never looked at. */
		if (results[i].lineage != fetch->lineage)
			rc = th_fail(err, TH_E_NOT_AVAILABLE,
				"a new lineage began while version %s was fetched: fetch it again",
				fetch->version);
	}
	for (uint32_t i = 0; i < fetch->count && ops; i++)
		thc_op_free(ops[i]);
	free(results);
	free(ops);
	return rc;
}

static int
cmd_fetch_interrupted(struct fetch *fetch, struct th_err *err)
{
	return stop_seen(&fetch->stop) ? th_fail(err, TH_E_CANCELLED, "interrupted") : 0;
}

/* Tied tensors have arrived at one place; the file has one for each. */
static int
copy_ties(struct fetch *fetch, struct fetch_part *part, struct th_err *err)
{
	const struct image *image = &part->image;
	int rc = 0;

	for (uint32_t i = 0; i < image->count && rc == 0; i++) {
		const struct image_place *from = &image->places[image->leaders[i]];
		const struct image_place *to = &image->places[i];
		if (from == to)
			continue;
		rc = cmd_fetch_interrupted(fetch, err);
		if (rc == 0)
			rc = save_copy(&fetch->save, part->files[to->file], to->offset,
				part->files[from->file], from->offset, image->tensors[i].bytes,
				err);
	}
	return rc;
}

static bool
go_on_writing(uint64_t done_bytes, void *arg)
{
	struct fetch *fetch = arg;
	uint64_t total_bytes = 0;

	for (uint32_t i = 0; i < fetch->save.num_files; i++)
		total_bytes += fetch->save.files[i].bytes;
	progress_draw(&fetch->progress, done_bytes, total_bytes);
	return !stop_seen(&fetch->stop);
}

/* From here on others may find OUT, and it must stay what it is while it is held. */
static int
take_stamps(struct fetch *fetch, struct th_err *err)
{
	int rc = 0;

	fetch->stamps = calloc(fetch->save.num_files, sizeof(fetch->stamps[0]));
	if (!fetch->stamps)
		return th_fail(err, -ENOMEM, "no memory for %u files", fetch->save.num_files);
	for (uint32_t i = 0; i < fetch->save.num_files && rc == 0; i++)
		rc = stamp_take(fetch->save.files[i].fd, fetch->out, err, &fetch->stamps[i]);
	return rc;
}

static int
cmd_fetch_look_at_files(void *arg, struct th_err *err)
{
	const struct fetch *fetch = arg;
	int rc = 0;

	for (uint32_t i = 0; i < fetch->save.num_files && rc == 0; i++)
		rc = stamp_check(&fetch->stamps[i], fetch->save.files[i].fd, fetch->out, err);
	return rc;
}

static int
finish_files(struct fetch *fetch, struct th_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < fetch->count && rc == 0; i++)
		rc = copy_ties(fetch, &fetch->parts[i], err);
	if (rc < 0)
		return rc;
	progress_begin(&fetch->progress, "write");
	rc = save_sync(&fetch->save, go_on_writing, fetch, err);
	progress_end(&fetch->progress);
	if (rc == 0)
		rc = take_stamps(fetch, err);
	if (rc == 0)
		rc = cmd_fetch_interrupted(fetch, err);
	if (rc < 0)
		return rc;
	stop_block(&fetch->stop);
	rc = save_commit(&fetch->save, err);
	stop_unblock(&fetch->stop);
	return rc;
}

/* ---- the end -------------------------------------------------------------------------------- */

static int
print_fetched(const struct fetch *fetch, int64_t fetch_ns)
{
	const struct thctl *ctl = fetch->ctl;
	const struct thc_result *last = &fetch->parts[0].result;
	struct document document;
	char size[TH_UNITS_BYTES];
	char time[TH_UNITS_BYTES];
	char rate[TH_UNITS_BYTES];
	uint64_t bytes = 0;
	uint64_t moved = 0;
	uint64_t reused = 0;

	for (uint32_t i = 0; i < fetch->count; i++) {
		for (uint32_t j = 0; j < fetch->parts[i].image.count; j++)
			bytes += fetch->parts[i].image.tensors[j].bytes;
		moved += fetch->parts[i].result.bytes_moved;
		reused += fetch->parts[i].result.bytes_reused;
	}
	double seconds = (double)th_max_i64(fetch_ns, 1) / 1e9;
	thctl_say("fetch: %s in %s (%s/s) from %s over %s", th_print_size_short(bytes, size),
		th_print_duration_short(fetch_ns, time),
		th_print_size_short((uint64_t)((double)bytes / seconds), rate), last->source,
		last->transport);
	document_init(&document, "fetched");
	if (asprintf(&document.headline, "fetched %s %s", ctl->model, fetch->version) < 0)
		document.headline = NULL;
	document_field(&document, "model", NULL, value_text(ctl->model));
	document_field(&document, "lineage", NULL, value_number(fetch->lineage));
	document_field(&document, "version", NULL, value_number(fetch->absolute));
	document_field(&document, "replica", NULL, value_text(fetch->replica));
	document_field(&document, "num_shards", NULL, value_number(fetch->num_shards));
	document_field(&document, "out", NULL, value_text(fetch->out));
	document_field(&document, "same_header", NULL, value_flag(fetch->parts[0].image.carried));
	document_field(&document, "bytes", NULL, value_bytes(bytes));
	document_field(&document, "bytes_moved", NULL, value_bytes(moved));
	document_field(&document, "bytes_reused", NULL, value_bytes(reused));
	document_field(&document, "fetch_ns", NULL, value_duration(fetch_ns));
	document_field(&document, "wait_ns", NULL, value_duration((int64_t)last->wait_ns));
	document_field(&document, "transfer_ns", NULL, value_duration((int64_t)last->transfer_ns));
	document_field(&document, "verify_ns", NULL, value_duration((int64_t)last->verify_ns));
	document_field(&document, "source", NULL, value_text(last->source));
	document_field(&document, "transport", NULL, value_text(last->transport));
	return thctl_print(ctl, &document);
}

/* From here on signals are events: what was begun is undone before the process ends. */
static int
cmd_fetch_move(struct fetch *fetch, struct th_err *err)
{
	struct thctl *ctl = fetch->ctl;
	struct member_set set = {
		.shards = fetch->shards,
		.count = fetch->count,
		.look = cmd_fetch_look_at_files,
		.look_arg = fetch,
	};

	stop_patient(&fetch->stop);
	int64_t begun_ns = th_now_ns();
	int rc = replicate(fetch, &set, err);
	int64_t fetch_ns = th_now_ns() - begun_ns;
	if (rc == 0)
		rc = finish_files(fetch, err);
	int status = rc < 0 ? thctl_fail(ctl, rc, err->text) : print_fetched(fetch, fetch_ns);
	return member_finish(ctl, &set, &fetch->stop, status, ctl->given & THCTL_HOLD, err);
}

static int
join_and_move(struct fetch *fetch, struct th_err *err)
{
	int rc = stop_begin(&fetch->stop, undo);

	if (rc < 0)
		return thctl_fail(fetch->ctl, rc, "cannot take signals");
	for (uint32_t i = 0; i < fetch->count && rc == 0; i++)
		rc = plan_part(fetch, i, err);
	if (rc == 0)
		rc = make_files(fetch, err);
	for (uint32_t i = 0; i < fetch->count && rc == 0; i++)
		rc = cmd_fetch_join(fetch, i, err);
	return rc < 0 ? thctl_fail(fetch->ctl, rc, err->text) : cmd_fetch_move(fetch, err);
}

/* The handles first: what they have registered lies in the mappings. */
static void
end_parts(struct fetch *fetch)
{
	for (uint32_t i = 0; i < fetch->count; i++)
		member_close(fetch->ctl, fetch->shards[i], true);
	stop_block(&fetch->stop);
	begun = NULL;
	save_end(&fetch->save);
	stop_unblock(&fetch->stop);
	for (uint32_t i = 0; i < fetch->count; i++) {
		struct fetch_part *part = &fetch->parts[i];
		image_free(&part->image);
		free(part->files);
		thc_manifest_free(part->manifest);
	}
	free(fetch->stamps);
	free(fetch->parts);
	free(fetch->shards);
}

static int
run_fetch(struct thctl *ctl)
{
	struct fetch fetch = {.ctl = ctl};
	struct th_err err = {0};

	int rc = cmd_fetch_check_options(&fetch);
	if (rc != 0)
		return rc;
	rc = look_up(&fetch, &err);
	int status = rc < 0 ? thctl_fail(ctl, rc, err.text) : join_and_move(&fetch, &err);
	end_parts(&fetch);
	return status;
}

const struct verb verb_fetch = {
	.name = "fetch",
	.arguments = "OUT",
	.summary = "replicate a version into a safetensors file or directory",
	.text = "OUT ending in .safetensors is a file, otherwise a directory. A version of several "
		"shards "
		"is fetched into a directory with one file a shard; with --shard (and --replica) "
		"this "
		"process fetches one of them, others at the same time the rest. OUT appears whole "
		"or "
		"not at all.",
	.options = THCTL_MODEL | THCTL_VERSION | THCTL_REPLICA | THCTL_SHARD | THCTL_HOLD |
		   THCTL_FORCE,
	.arguments_min = 1,
	.arguments_max = 1,
	.agent_only = true,
	.run = run_fetch,
};
