/* SPDX-License-Identifier: Apache-2.0 */
/*
 * splitmix - numbers that look random and come again: a seed gives the same ones everywhere. Who
 * sees one can compute the others, so a secret comes from random.h, in a shell.
 *
 * After the reference code of splitmix64, which is in the public domain. Pure.
 */
#ifndef TH_IPC_BASE_SPLITMIX_H
#define TH_IPC_BASE_SPLITMIX_H

#include <stdint.h>

/* The next number of the sequence. */
static inline uint64_t
th_splitmix64(uint64_t *state)
{
	uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

#endif
