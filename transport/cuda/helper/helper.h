/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper - the process of one GPU: the only one of the agent's that has a context there.
 *
 * It speaks gpu_wire.h with the agent, and does what it is told until the socket ends. It may be
 * killed at any moment. It ends itself, with a line in the log, for a message that no agent sends,
 * and when the driver does not work any more. It takes the whole process: threads, descriptor
 * limit, signals.
 */
#ifndef TH_TRANSPORT_CUDA_HELPER_HELPER_H
#define TH_TRANSPORT_CUDA_HELPER_HELPER_H

/* The status to leave with, at once and by _exit: threads still run. 0: the agent closed sock. */
int gpu_helper_main(int sock);

#endif
