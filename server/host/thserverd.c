/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thserverd - thserverd, the reference server: options, the service, the end.
 */
#include <stdio.h>
#include <stdlib.h>

#include "ipc/base/log.h"
#include "server/host/server_options.h"
#include "server/host/service.h"

#define EXIT_USAGE 2

int
main(int argc, char **argv)
{
	static struct options options;
	struct th_err err = {0};
	struct service *service;

	if (options_parse(argc, argv, &err, &options) < 0) {
		fprintf(stderr, "thserverd: %s\n", err.text);
		return EXIT_USAGE;
	}
	if (options.check_only) {
		printf("the configuration is good\n");
		return EXIT_SUCCESS;
	}
	if (service_new(&options, &err, &service) < 0) {
		log_error("main", "cannot start: %s", err.text);
		net_exit(EXIT_FAILURE);
	}
	service_run(service);
	log_info("main", "leaving");
	net_exit(EXIT_SUCCESS);
}
