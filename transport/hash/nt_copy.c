/* SPDX-License-Identifier: Apache-2.0 */
/* nt_copy - see nt_copy.h. */
#include "transport/hash/nt_copy.h"

#include <stdint.h>
#include <string.h>

static bool forced_narrow;

void
nt_copy_force_narrow(bool narrow)
{
	forced_narrow = narrow;
}

#ifdef __SSE2__
#include <emmintrin.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define LINE_BYTES 64u
#define AHEAD_BYTES 512u /* the CPU's own prefetch stops at each page */
#define PLACES 8u

static inline void
stream_line(uint8_t *to, const uint8_t *from)
{
	_mm_prefetch((const char *)from + AHEAD_BYTES, _MM_HINT_T0);
	__m128i a = _mm_loadu_si128((const void *)from);
	__m128i b = _mm_loadu_si128((const void *)(from + 16));
	__m128i c = _mm_loadu_si128((const void *)(from + 32));
	__m128i d = _mm_loadu_si128((const void *)(from + 48));
	_mm_stream_si128((void *)to, a);
	_mm_stream_si128((void *)(to + 16), b);
	_mm_stream_si128((void *)(to + 32), c);
	_mm_stream_si128((void *)(to + 48), d);
}

/* PLACES pieces of apart bytes each, which follow one another. */
static void
stream_places(uint8_t *to, const uint8_t *from, size_t apart)
{
	for (size_t at = 0; at < apart; at += LINE_BYTES) {
#pragma GCC unroll 8
		for (size_t place = 0; place < PLACES; place++)
			stream_line(to + place * apart + at, from + place * apart + at);
	}
}

#ifdef __x86_64__
__attribute__((target("avx512f"))) static void
stream_places_avx512(uint8_t *to, const uint8_t *from, size_t apart)
{
	for (size_t at = 0; at < apart; at += LINE_BYTES) {
#pragma GCC unroll 8
		for (size_t place = 0; place < PLACES; place++) {
			const uint8_t *in = from + place * apart + at;
			_mm_prefetch((const char *)in + AHEAD_BYTES, _MM_HINT_T0);
			_mm512_stream_si512(
				(void *)(to + place * apart + at), _mm512_loadu_si512(in));
		}
	}
}
#endif

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
	size_t apart = bytes / PLACES / LINE_BYTES * LINE_BYTES;
#ifdef __x86_64__
	if (!forced_narrow && __builtin_cpu_supports("avx512f"))
		stream_places_avx512(out, in, apart);
	else
#endif
		stream_places(out, in, apart);
	out += PLACES * apart;
	in += PLACES * apart;
	bytes -= PLACES * apart;
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
