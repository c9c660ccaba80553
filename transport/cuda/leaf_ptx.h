/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaf_ptx - the text of leaf_kernel.ptx, as the driver takes it: ends with a zero.
 */
#ifndef TH_TRANSPORT_CUDA_LEAF_PTX_H
#define TH_TRANSPORT_CUDA_LEAF_PTX_H

extern const char leaf_ptx[];

#endif
