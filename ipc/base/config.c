/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config - see config.h. The ini syntax is inih's. Start-up only.
 */
#include "ipc/base/config.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <ini.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/units.h"

#define KEY_BYTES 128
#define PATH_BYTES 4096

static const char *const programs[] = {"thserverd", "thagentd"};

struct config_source { /* one file while it is read */
	const struct config *config;
	const char *path;
	struct th_err *err;
	FILE *stream;
	int line;
	int bad_line; /* of the failure in *err; 0: none */
	int rc;
};

static bool
is_key(const struct config *config, const char *name)
{
	for (const char *const *key = config->keys; *key != NULL; key++)
		if (strcmp(*key, name) == 0)
			return true;
	return false;
}

/* Hands one setting over; a refusal gets the place put before its sentence. */
static int
set(const struct config *config, const char *place, const char *key, const char *value,
	struct th_err *err)
{
	struct th_err why = {0};
	int rc;

	if (!is_key(config, key))
		return th_fail(err, TH_E_INVALID, "%s: there is no key \"%s\"", place, key);
	rc = config->set(config->to, key, value, &why);
	if (rc < 0)
		return th_fail(err, rc, "%s: %s", place, why.text);
	return 0;
}

/* ---- files ---------------------------------------------------------------------------------- */

/* Like fgets for inih, but counts lines and takes no indentation for a continued value. */
static char *
config_read_line(char *line, int size, void *user)
{
	struct config_source *source = user;
	size_t blank, length;

	if (fgets(line, size, source->stream) == NULL)
		return NULL;
	source->line++;
	length = strlen(line);
	if (length == (size_t)size - 1 && line[length - 1] != '\n' && source->bad_line == 0) {
		source->bad_line = source->line;
		source->rc = th_fail(source->err, TH_E_INVALID,
			"%s:%d: a line has at most %d bytes", source->path, source->line, size - 2);
	}
	blank = strspn(line, " \t");
	memmove(line, line + blank, length - blank + 1);
	return line;
}

/*
 * The key that a name in a section stands for. False: the section is another program's.
 */
static bool
config_key_of(
	const struct config *config, const char *section, const char *name, char key[KEY_BYTES])
{
	for (size_t i = 0; i < TH_ARRAY_LEN(programs); i++) {
		size_t length = strlen(programs[i]);

		if (strncmp(section, programs[i], length) != 0 ||
			(section[length] != '\0' && section[length] != '.'))
			continue;
		if (strcmp(programs[i], config->program) != 0)
			return false;
		section += length + (section[length] == '.');
		break;
	}
	snprintf(key, KEY_BYTES, "%s%s%s", section, section[0] == '\0' ? "" : ".", name);
	return true;
}

static int
take_line(void *user, const char *section, const char *name, const char *value)
{
	struct config_source *source = user;
	char key[KEY_BYTES], place[PATH_BYTES + 16];

	if (source->bad_line != 0 || !config_key_of(source->config, section, name, key))
		return 1;
	snprintf(place, sizeof(place), "%s:%d", source->path, source->line);
	source->rc = set(source->config, place, key, value, source->err);
	if (source->rc < 0)
		source->bad_line = source->line;
	return source->rc == 0;
}

static int
load_file(const struct config *config, const char *path, bool may_be_absent, struct th_err *err)
{
	struct config_source source = {.config = config, .path = path, .err = err};
	int line, rc = 0;

	source.stream = fopen(path, "re");
	if (source.stream == NULL && errno == ENOENT && may_be_absent)
		return 0;
	if (source.stream == NULL)
		return th_fail(err, -errno, "%s: %s", path, th_strerror(-errno));
	line = ini_parse_stream(config_read_line, &source, take_line, &source);
	if (ferror(source.stream))
		rc = th_fail(err, -EIO, "%s: cannot be read", path);
	else if (line > 0 && (source.bad_line == 0 || line < source.bad_line))
		rc = th_fail(
			err, TH_E_INVALID, "%s:%d: neither KEY = VALUE nor [SECTION]", path, line);
	else if (line != 0 || source.bad_line != 0)
		rc = source.bad_line != 0 ? source.rc
					  : th_fail(err, -ENOMEM, "%s: out of memory", path);
	fclose(source.stream);
	return rc;
}

static int
is_conf(const struct dirent *entry)
{
	size_t length = strlen(entry->d_name);

	return entry->d_name[0] != '.' && length > 5 &&
	       strcmp(entry->d_name + length - 5, ".conf") == 0;
}

static int
config_by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name); /* the same order in every locale */
}

/* conf.d beside file. */
static int
load_folder(const struct config *config, const char *file, struct th_err *err)
{
	char folder[PATH_BYTES - 256], path[PATH_BYTES];
	const char *slash = strrchr(file, '/');
	struct dirent **entries = NULL;
	int count, rc = 0;

	if (strlen(file) >= sizeof(folder) - sizeof("conf.d"))
		return th_fail(err, -ENAMETOOLONG, "%s: the path is too long", file);
	snprintf(folder, sizeof(folder), "%.*sconf.d", slash == NULL ? 0 : (int)(slash - file) + 1,
		file);
	count = scandir(folder, &entries, is_conf, config_by_name);
	if (count < 0 && (errno == ENOENT || errno == ENOTDIR))
		return 0;
	if (count < 0)
		return th_fail(err, -errno, "%s: %s", folder, th_strerror(-errno));
	for (int i = 0; i < count; i++) {
		if (rc == 0) {
			snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
			rc = load_file(config, path, false, err);
		}
		free(entries[i]);
	}
	free(entries);
	return rc;
}

/* ---- environment ---------------------------------------------------------------------------- */

/* "thserverd" and "lease.dead" are THSERVERD_LEASE_DEAD. */
static void
variable_of(const char *program, const char *key, char variable[KEY_BYTES])
{
	snprintf(variable, KEY_BYTES, "%s_%s", program, key);
	for (char *at = variable; *at != '\0'; at++)
		*at = isalnum((unsigned char)*at) ? (char)toupper((unsigned char)*at) : '_';
}

static int
load_environment(const struct config *config, struct th_err *err)
{
	char prefix[KEY_BYTES], variable[KEY_BYTES], place[KEY_BYTES + 16];
	int rc = 0;

	variable_of(config->program, "", prefix);
	for (char **entry = environ; rc == 0 && *entry != NULL; entry++) {
		const char *equals = strchr(*entry, '=');
		const char *const *key = config->keys;
		size_t length;

		if (strncmp(*entry, prefix, strlen(prefix)) != 0 || equals == NULL)
			continue;
		length = (size_t)(equals - *entry);
		for (; *key != NULL; key++) {
			variable_of(config->program, *key, variable);
			if (strlen(variable) == length && strncmp(*entry, variable, length) == 0)
				break;
		}
		if (*key == NULL)
			return th_fail(err, TH_E_INVALID,
				"environment: there is no key for the variable %.*s",
				(int)th_min_size(length, KEY_BYTES), *entry);
		snprintf(place, sizeof(place), "environment %s", variable);
		rc = set(config, place, *key, equals + 1, err);
	}
	return rc;
}

int
config_load(const struct config *config, const char *file, struct th_err *err)
{
	const char *path = file == NULL ? config->file : file;
	int rc;

	rc = load_file(config, path, file == NULL, err);
	if (rc == 0)
		rc = load_folder(config, path, err);
	if (rc == 0)
		rc = load_environment(config, err);
	return rc;
}

/* ---- values of one kind ---------------------------------------------------------------------- */

int
config_number(uint32_t *field, uint32_t low, uint32_t high, const char *key, const char *value,
	struct th_err *err)
{
	char *end;
	unsigned long long number = strtoull(value, &end, 10);
	if (value[0] < '0' || value[0] > '9' || *end != '\0' || number < low || number > high)
		return th_fail(err, TH_E_INVALID,
			"%s: \"%s\" is no number from %" PRIu32 " to %" PRIu32, key, value, low,
			high);
	*field = (uint32_t)number;
	return 0;
}

int
config_duration(
	int64_t *field, int64_t low_ns, const char *key, const char *value, struct th_err *err)
{
	int64_t ns;
	char text[TH_UNITS_BYTES];
	if (th_parse_duration(value, &ns) < 0 || ns < low_ns)
		return th_fail(err, TH_E_INVALID,
			"%s: \"%s\" is no duration of at least %s (write 500ms, 3s)", key, value,
			th_print_duration(low_ns, text));
	*field = ns;
	return 0;
}

int
config_bool(bool *field, const char *key, const char *value, struct th_err *err)
{
	bool yes = strcmp(value, "yes") == 0 || strcmp(value, "true") == 0;

	if (!yes && strcmp(value, "no") != 0 && strcmp(value, "false") != 0)
		return th_fail(err, TH_E_INVALID, "%s: \"%s\" is neither yes nor no", key, value);
	*field = yes;
	return 0;
}

int
config_size(uint64_t *field, uint64_t low, uint64_t high, const char *key, const char *value,
	struct th_err *err)
{
	uint64_t bytes;
	char low_text[TH_UNITS_BYTES], high_text[TH_UNITS_BYTES];
	bool is_size = th_parse_size(value, &bytes) == 0;
	if (high == UINT64_MAX && (!is_size || bytes < low))
		return th_fail(err, TH_E_INVALID, "%s: \"%s\" is no size of at least %s", key,
			value, th_print_size(low, low_text));
	if (!is_size || bytes < low || bytes > high)
		return th_fail(err, TH_E_INVALID, "%s: \"%s\" is no size from %s to %s", key, value,
			th_print_size(low, low_text), th_print_size(high, high_text));
	*field = bytes;
	return 0;
}
