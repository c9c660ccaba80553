/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_test - which setting wins, and that a mistake is found with its place.
 */
#include "ipc/base/config.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const keys[] = {"listen", "lease.dead", "runtime-dir", NULL};
static char values[3][64];
static char folder[] = "/tmp/th-config-XXXXXX";

static int
set(void *to, const char *key, const char *value, struct th_err *err)
{
	(void)to;
	for (size_t i = 0; keys[i] != NULL; i++)
		if (strcmp(keys[i], key) == 0 && strcmp(value, "bad") != 0) {
			snprintf(values[i], sizeof(values[i]), "%s", value);
			return 0;
		}
	return th_fail(err, TH_E_INVALID, "%s: \"%s\" is bad", key, value);
}

static const char *
path_of(const char *name)
{
	static char path[4][128];
	static int turn;

	turn = (turn + 1) % 4;
	snprintf(path[turn], sizeof(path[turn]), "%s/%s", folder, name);
	return path[turn];
}

static void
put(const char *name, const char *text)
{
	FILE *file = fopen(path_of(name), "w");

	cr_assert_not_null(file);
	fputs(text, file);
	fclose(file);
}

static void
setup(void)
{
	cr_assert_not_null(mkdtemp(folder));
	cr_assert_eq(mkdir(path_of("conf.d"), 0700), 0);
}

static void
teardown(void)
{
	static const char *const names[] = {
		"x.conf", "conf.d/1.conf", "conf.d/2.conf", "conf.d/3.conf~", "conf.d", ""};

	for (size_t i = 0; i < TH_ARRAY_LEN(names); i++)
		remove(path_of(names[i]));
}

static int
load(const char *file, struct th_err *err)
{
	static char path[128];
	struct config config = {"thserverd", path, keys, set, NULL};

	snprintf(path, sizeof(path), "%s", path_of("x.conf"));
	*err = (struct th_err){0};
	return config_load(&config, file, err);
}

TestSuite(config, .init = setup, .fini = teardown);

Test(config, nothing_there__is_fine_unless_asked_for)
{
	struct th_err err;

	cr_assert_eq(load(NULL, &err), 0, "%s", err.text);
	cr_assert_eq(load(path_of("x.conf"), &err), -ENOENT);
	cr_assert_not_null(strstr(err.text, "x.conf"), "%s", err.text);
}

Test(config, later__wins)
{
	struct th_err err;

	put("x.conf", "listen = file\nruntime-dir = /file\n[lease]\n  dead = 1s ; why\n");
	put("conf.d/2.conf", "listen = two\n");
	put("conf.d/1.conf", "# first\nlisten = one\n[lease]\ndead = 2s\n");
	put("conf.d/3.conf~", "listen = backup\n");
	cr_assert_eq(load(NULL, &err), 0, "%s", err.text);
	cr_assert_str_eq(values[0], "two");
	cr_assert_str_eq(values[1], "2s");
	cr_assert_str_eq(values[2], "/file");
	setenv("THSERVERD_LEASE_DEAD", "3s", 1);
	setenv("THSERVERD_RUNTIME_DIR", "/env", 1);
	cr_assert_eq(load(NULL, &err), 0, "%s", err.text);
	cr_assert_str_eq(values[0], "two");
	cr_assert_str_eq(values[1], "3s");
	cr_assert_str_eq(values[2], "/env");
}

Test(config, sections__of_the_other_program__are_skipped)
{
	struct th_err err;

	put("x.conf", "[thagentd]\nserver = x\n[thagentd.leg]\nstall = 1s\n"
		      "[thserverd]\nlisten = a\n[thserverd.lease]\ndead = 4s\n");
	cr_assert_eq(load(NULL, &err), 0, "%s", err.text);
	cr_assert_str_eq(values[0], "a");
	cr_assert_str_eq(values[1], "4s");
}

static void
fails_at(const char *name, const char *text, const char *sentence)
{
	struct th_err err;

	put(name, text);
	cr_assert_eq(load(NULL, &err), TH_E_INVALID, "%s", text);
	cr_assert_not_null(strstr(err.text, sentence), "%s", err.text);
}

Test(config, mistakes__name_their_line)
{
	char line[400] = "listen = ";

	fails_at("x.conf", "listen = a\n\n# c\nlisted = b\n",
		"x.conf:4: there is no key \"listed\"");
	fails_at("x.conf", "[lease]\ndeed = 1s\n", "x.conf:2: there is no key \"lease.deed\"");
	fails_at("x.conf", "[lease]\ndead = bad\nwhat\n", "x.conf:2: lease.dead: \"bad\" is bad");
	fails_at("x.conf", "listen = a\nwhat\nlisted = b\n", "x.conf:2: neither KEY = VALUE");
	fails_at("x.conf", "listen = a\n[lease\n", "x.conf:2: neither");
	memset(line + strlen(line), 'x', 300);
	fails_at("x.conf", line, "x.conf:1: a line has at most");
	put("x.conf", "");
	fails_at("conf.d/2.conf", "listen = a\nlisted = b\n", "conf.d/2.conf:2: there is no key");
}

Test(config, environment__mistakes_name_the_variable)
{
	struct th_err err;

	setenv("THSERVERD_LISTEN", "bad", 1);
	cr_assert_eq(load(NULL, &err), TH_E_INVALID);
	cr_assert_not_null(
		strstr(err.text, "environment THSERVERD_LISTEN: listen"), "%s", err.text);
	unsetenv("THSERVERD_LISTEN");
	setenv("THSERVERD_LEASE_DAED", "1s", 1);
	setenv("THAGENTD_WHATEVER", "1s", 1);
	cr_assert_eq(load(NULL, &err), TH_E_INVALID);
	cr_assert_not_null(strstr(err.text, "THSERVERD_LEASE_DAED"), "%s", err.text);
}
