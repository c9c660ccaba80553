/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpus - the processors near a device, as the kernel lists them. Any thread; reads a file.
 */
#ifndef TH_TRANSPORT_RDMA_DEVICE_CPUS_H
#define TH_TRANSPORT_RDMA_DEVICE_CPUS_H

#include <sched.h>
#include <stdbool.h>

/* "0-3,8": the kernel's form. False: it is not that, or names none that fits a cpu_set_t. */
bool cpus_parse(const char *list, cpu_set_t *ret_set);
/* Of a PCI address, "0000:3b:00.0". False: it is not known. */
bool cpus_near(const char *pci, cpu_set_t *ret_set);

#endif
