/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_fetch - what the steps of thctl fetch hand to each other. Private to cmd_fetch.c.
 */
#ifndef TH_TOOLS_THCTL_CMD_FETCH_H
#define TH_TOOLS_THCTL_CMD_FETCH_H

#include <stdbool.h>
#include <stdint.h>

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

#endif
