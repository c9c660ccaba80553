/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pci - where a device lies on the PCI bus.
 */
#ifndef TH_TRANSPORT_RDMA_DEVICE_PCI_H
#define TH_TRANSPORT_RDMA_DEVICE_PCI_H

#include "transport/rdma/device/verbs.h"

/* The function on the bus that the device, or a part of a function that it is, lies in. Empty:
 * there is none. */
void pci_find(const char *sysfs_path, char ret_pci[VERBS_PCI_BYTES]);

#endif
