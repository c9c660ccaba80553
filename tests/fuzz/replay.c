/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay FOLDER - runs a fuzz target once on each input of a corpus, where no fuzzer is linked: all
 * that was ever found stays a test of every build. The last path that it prints is of the input
 * that ended it. A folder without inputs is a failure.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/input.h"

/* Of exactly its length: the sanitizer sees who reads behind the end. */
static uint8_t *
read_input(const char *path, size_t *ret_bytes)
{
	FILE *file = fopen(path, "re");
	uint8_t *data = NULL;
	long bytes;

	if (file == NULL)
		return NULL;
	if (fseek(file, 0, SEEK_END) == 0 && (bytes = ftell(file)) >= 0 &&
		fseek(file, 0, SEEK_SET) == 0) {
		data = malloc(bytes > 0 ? (size_t)bytes : 1);
		*ret_bytes = (size_t)bytes;
		if (data != NULL && fread(data, 1, (size_t)bytes, file) != (size_t)bytes) {
			free(data);
			data = NULL;
		}
	}
	fclose(file);
	return data;
}

static int
no_dot(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static int
replay_one(const char *folder, const char *name)
{
	char path[4096];
	size_t bytes = 0;
	uint8_t *data;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	printf("%s\n", path);
	fflush(stdout);
	data = read_input(path, &bytes);
	if (data == NULL) {
		fprintf(stderr, "replay: %s cannot be read: %s\n", path, strerror(errno));
		return -1;
	}
	LLVMFuzzerTestOneInput(data, bytes);
	free(data);
	return 0;
}

int
main(int argc, char **argv)
{
	struct dirent **entries = NULL;
	int count, rc = 0;

	if (argc != 2) {
		fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
		return 2;
	}
	count = scandir(argv[1], &entries, no_dot, alphasort);
	if (count <= 0) {
		fprintf(stderr,
			"replay: %s has no inputs: a target without a corpus tests "
			"nothing\n",
			argv[1]);
		return 1;
	}
	for (int i = 0; i < count; i++) {
		if (rc == 0)
			rc = replay_one(argv[1], entries[i]->d_name);
		free(entries[i]);
	}
	free(entries);
	if (rc == 0)
		printf("%d inputs\n", count);
	return rc == 0 ? 0 : 1;
}
