/* SPDX-License-Identifier: Apache-2.0 */
/* pci - see pci.h. */
#include "transport/rdma/device/pci.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "0000:3b:00.0" */
static bool
is_pci(const char *name)
{
	static const char form[] = "xxxx:xx:xx.x";
	for (size_t i = 0; i < sizeof(form) - 1; i++) {
		bool hex = (name[i] >= '0' && name[i] <= '9') || (name[i] >= 'a' && name[i] <= 'f');
		if (form[i] == 'x' ? !hex : name[i] != form[i])
			return false;
	}
	return name[sizeof(form) - 1] == '\0' || name[sizeof(form) - 1] == '/';
}

void
pci_find(const char *sysfs_path, char ret_pci[VERBS_PCI_BYTES])
{
	char link[PATH_MAX], path[PATH_MAX];
	ret_pci[0] = '\0';
	if ((size_t)snprintf(link, sizeof(link), "%s/device", sysfs_path) >= sizeof(link) ||
		!realpath(link, path))
		return;
	for (const char *part = path; part; part = strchr(part, '/')) {
		part++;
		if (is_pci(part)) /* the last one: bridges come before it */
			snprintf(ret_pci, VERBS_PCI_BYTES, "%.12s", part);
	}
}
