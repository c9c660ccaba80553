/* SPDX-License-Identifier: Apache-2.0 */
/* cpus - see cpus.h. */
#include "transport/rdma/device/cpus.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#define LIST_BYTES 4096

/* A number of the list, and past it. */
static bool
cpus_take_number(const char **at, unsigned long *ret_number)
{
	char *end;
	if (!isdigit((unsigned char)**at))
		return false;
	*ret_number = strtoul(*at, &end, 10);
	*at = end;
	return true;
}

bool
cpus_parse(const char *list, cpu_set_t *ret_set)
{
	const char *at = list;
	CPU_ZERO(ret_set);
	for (;;) {
		unsigned long first, last;
		if (!cpus_take_number(&at, &first))
			return false;
		last = first;
		if (*at == '-') {
			at++;
			if (!cpus_take_number(&at, &last) || last < first)
				return false;
		}
		for (; first <= last && first < CPU_SETSIZE; first++)
			CPU_SET(first, ret_set);
		if (*at != ',')
			break;
		at++;
	}
	return (*at == '\0' || *at == '\n') && CPU_COUNT(ret_set) > 0;
}

bool
cpus_near(const char *pci, cpu_set_t *ret_set)
{
	char path[128], list[LIST_BYTES];
	if (pci[0] == '\0')
		return false;
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/local_cpulist", pci);
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	bool found = fgets(list, sizeof(list), file) && cpus_parse(list, ret_set);
	fclose(file);
	return found;
}
