/* SPDX-License-Identifier: Apache-2.0 */
/* nt_copy - see nt_copy.h. */
#include "transport/nt_copy.h"

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

#define LINE_BYTES 64u
#define PAGE_BYTES 4096u
#define PAGES 4u /* at once */

static inline void
stream_line(uint8_t *to, const uint8_t *from)
{
	__m128i a = _mm_loadu_si128((const void *)from);
	__m128i b = _mm_loadu_si128((const void *)(from + 16));
	__m128i c = _mm_loadu_si128((const void *)(from + 32));
	__m128i d = _mm_loadu_si128((const void *)(from + 48));
	_mm_stream_si128((void *)to, a);
	_mm_stream_si128((void *)(to + 16), b);
	_mm_stream_si128((void *)(to + 32), c);
	_mm_stream_si128((void *)(to + 48), d);
}

void
nt_copy(void *to, const void *from, size_t bytes)
{
	uint8_t *out = to;
	const uint8_t *in = from;
	size_t head = (size_t)(-(uintptr_t)out & (LINE_BYTES - 1));
	if (head > bytes)
		head = bytes;
	memcpy(out, in, head);
	out += head;
	in += head;
	bytes -= head;
	for (; bytes >= PAGES * PAGE_BYTES; bytes -= PAGES * PAGE_BYTES) {
		for (size_t line = 0; line < PAGE_BYTES; line += LINE_BYTES) {
			for (size_t page = 0; page < PAGES * PAGE_BYTES; page += PAGE_BYTES)
				stream_line(out + page + line, in + page + line);
		}
		out += PAGES * PAGE_BYTES;
		in += PAGES * PAGE_BYTES;
	}
	for (; bytes >= LINE_BYTES; bytes -= LINE_BYTES) {
		stream_line(out, in);
		out += LINE_BYTES;
		in += LINE_BYTES;
	}
	memcpy(out, in, bytes);
	_mm_sfence();
}
#else
void
nt_copy(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}
#endif
