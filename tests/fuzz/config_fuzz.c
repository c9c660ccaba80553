/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_fuzz - a configuration file of a daemon, through the whole of its options. Built twice:
 * with FUZZ_SERVER for thserverd, else for thagentd.
 *
 * What is refused has a sentence; what is taken keeps the limits that the daemon relies on.
 */
#ifdef FUZZ_SERVER
#include "server/host/server_options.h"
#else
#include "daemon/host/config/agent_options.h"
#endif

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/assert.h"
#include "ipc/base/name.h"
#include "tests/fuzz/input.h"

static struct options options;

#ifdef FUZZ_SERVER
static int
parse(int argc, char **argv, struct th_err *err)
{
	return options_parse(argc, argv, err, &options);
}

static void
check_limits(void)
{
	TH_ASSERT(options.check_only);
	TH_ASSERT(options.num_listen >= 1 && options.num_listen <= OPTIONS_LISTEN_MAX);
	TH_ASSERT(options.num_peers <= OPTIONS_PEERS_MAX);
	TH_ASSERT(options.core.me < options.num_peers || options.core.me == REFSRV_PEER_UNKNOWN ||
		  options.num_peers == 0);
	TH_ASSERT(options.core.dead_ns > options.core.suspect_ns);
	TH_ASSERT(options.core.silence_ns > options.core.probe_ns);
}
#else
static int
parse(int argc, char **argv, struct th_err *err)
{
	enum options_outcome outcome;
	int rc = options_parse(argc, argv, err, &options, &outcome);

	TH_ASSERT(outcome == OPTIONS_CHECKED);
	return rc;
}

static void
check_limits(void)
{
	TH_ASSERT(options.num_servers >= 1 && options.num_servers <= OPTIONS_SERVERS_MAX);
	for (uint32_t i = 0; i < options.num_servers; i++)
		TH_ASSERT(options.servers[i] >= options.servers_text &&
			  options.servers[i] < options.servers_text + OPTIONS_TEXT_BYTES);
	TH_ASSERT(th_name_valid(options.node, TH_NAME_MAX));
	TH_ASSERT(options.beat_ns > 0 && options.reply_ns > 0 && options.stall_ns > 0);
}
#endif

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char program[] = "daemon", check[] = "-t", from[] = "-c", path[64];
	char *argv[] = {program, check, from, path, NULL};
	struct th_err err = {0};
	int fd = memfd_create("config", MFD_CLOEXEC);

	TH_ASSERT(fd >= 0 && write(fd, data, size) == (ssize_t)size);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int rc = parse(4, argv, &err);
	TH_ASSERT((rc < 0) == (err.code != 0));
	if (rc < 0)
		TH_ASSERT(err.text[0] != '\0');
	else
		check_limits();
	close(fd);
	return 0;
}
