/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nt_copy - a copy that does not read the destination first and leaves the caches alone.
 *
 * For what is larger than the caches or is not needed in them: an ordinary store fetches the line
 * that it overwrites, so a copy moves 3 bytes for 2, and memcpy streams only beyond a threshold
 * that it derives from the size of the last-level cache: the host's, on a virtual machine, so
 * never. It copies at eight places at once, because memory gives one core more when asked at
 * several, and asks a little ahead, because the CPU's own prefetch ends with each page: with the
 * places an eighth of 1 MiB apart it is 1.1 times as fast as with four that are a page apart, 1.2
 * times as fast as one after the other, 1.7 times as fast as memcpy (1 GiB in chunks of 4 MiB, two
 * cores). A store of a whole line, where the CPU has one, makes a leg 1.05 times as fast as with
 * those of 16 bytes that every x86-64 has.
 *
 * Elsewhere it is memcpy. Pure; any thread; may be left by a jump (sigbus.h).
 */
#ifndef TH_TRANSPORT_HASH_NT_COPY_H
#define TH_TRANSPORT_HASH_NT_COPY_H

#include <stdbool.h>
#include <stddef.h>

/* From where on it pays: what is smaller is better left in the caches. */
#define NT_COPY_MIN (64u << 10)

/* Not overlapping, any alignment. The stores are ordered before later ones. */
void nt_copy(void *to, const void *from, size_t bytes);

/* Tests: do as on a CPU without AVX-512, or again as this one can. Not while others copy. */
void nt_copy_force_narrow(bool narrow);

#endif
