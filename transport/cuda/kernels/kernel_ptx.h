/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_ptx - the texts of the GPU's kernels, as the driver takes them: each ends with a zero.
 */
#ifndef TH_TRANSPORT_CUDA_KERNELS_KERNEL_PTX_H
#define TH_TRANSPORT_CUDA_KERNELS_KERNEL_PTX_H

extern const char gather_ptx[], leaf_ptx[]; /* gather_kernel.ptx, leaf_kernel.ptx */

#endif
