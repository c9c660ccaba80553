/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thbench_copy - see thbench_copy.h.
 */
#include "tools/bench/thbench_copy.h"

#include <pthread.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "ipc/base/alloc.h"
#include "ipc/base/assert.h"
#include "ipc/base/checked.h"

#define PART_ALIGN (64u << 10)
#define THREADS_MAX 64u
#define PAGE UINT64_C(4096)
#define LINE UINT64_C(64)
#define AHEAD UINT64_C(512)
#define APART (UINT64_C(64) << 10)
#define STREAM (8 * APART)

/* ---- sharing out ------------------------------------------------------------------------- */

struct share {
	pthread_t thread;
	void (*run)(void *arg, uint64_t at, uint64_t bytes);
	void *arg;
	uint64_t at, bytes;
};

static void *
share_main(void *arg)
{
	struct share *share = arg;

	share->run(share->arg, share->at, share->bytes);
	return NULL;
}

void
copy_parallel(uint32_t threads, uint64_t bytes, void (*run)(void *arg, uint64_t at, uint64_t bytes),
	void *arg)
{
	struct share shares[THREADS_MAX];
	uint32_t count = th_max_u32(th_min_u32(threads, THREADS_MAX), 1);
	uint64_t each = bytes / count / PART_ALIGN * PART_ALIGN;

	for (uint32_t i = 0; i < count; i++) {
		shares[i] = (struct share){.run = run,
			.arg = arg,
			.at = i * each,
			.bytes = i + 1 < count ? each : bytes - i * each};
		if (i == 0)
			continue;
		int rc = pthread_create(&shares[i].thread, NULL, share_main, &shares[i]);
		TH_ASSERT(rc == 0);
	}
	share_main(&shares[0]);
	for (uint32_t i = 1; i < count; i++)
		pthread_join(shares[i].thread, NULL);
}

/* ---- kernels: addresses are multiples of 64 ------------------------------------------------- */

struct kernels {
	const char *width;
	void (*stream)(uint8_t *to, const uint8_t *from, uint64_t bytes); /* times STREAM */
	uint64_t (*sum)(const uint8_t *from, uint64_t bytes);             /* times 4 pages */
};

static void
stream_plain(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	memcpy(to, from, bytes);
}

static uint64_t
sum_plain(const uint8_t *from, uint64_t bytes)
{
	uint64_t lanes[8] = {0}, words[8];

	for (uint64_t at = 0; at < bytes; at += sizeof(words)) {
		memcpy(words, from + at, sizeof(words));
		for (uint32_t i = 0; i < 8; i++)
			lanes[i] += words[i];
	}
	for (uint32_t i = 1; i < 8; i++)
		lanes[0] += lanes[i];
	return lanes[0];
}

#ifdef __x86_64__
/*
 * Eight places at once, each asked for a little ahead: memory gives one core more when it is asked
 * at several places, and a copy more when these are not neighbours. No other way to copy that was
 * tried is faster, of 2 to 16 places that are a page to 256 KiB apart.
 */
__attribute__((target("avx2"))) static void
stream_avx2(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes;
		at += at % APART == APART - LINE ? STREAM - APART + LINE : LINE) {
		uint8_t *out = to + at;
		const uint8_t *in = from + at;
#pragma GCC unroll 8
		for (uint64_t place = 0; place < STREAM; place += APART) {
			_mm_prefetch((const char *)in + place + AHEAD, _MM_HINT_T0);
			__m256i low = _mm256_loadu_si256((const void *)(in + place));
			__m256i high = _mm256_loadu_si256((const void *)(in + place + 32));
			_mm256_stream_si256((void *)(out + place), low);
			_mm256_stream_si256((void *)(out + place + 32), high);
		}
	}
	_mm_sfence();
}

__attribute__((target("avx2"))) static uint64_t
sum_avx2(const uint8_t *from, uint64_t bytes)
{
	__m256i w = _mm256_setzero_si256(), x = w, y = w, z = w;

	for (uint64_t at = 0; at < bytes; at += at % PAGE == PAGE - 32 ? 3 * PAGE + 32 : 32) {
		const void *a = from + at, *b = from + at + PAGE;
		const void *c = from + at + 2 * PAGE, *d = from + at + 3 * PAGE;
		w = _mm256_add_epi64(w, _mm256_loadu_si256(a));
		x = _mm256_add_epi64(x, _mm256_loadu_si256(b));
		y = _mm256_add_epi64(y, _mm256_loadu_si256(c));
		z = _mm256_add_epi64(z, _mm256_loadu_si256(d));
	}
	__m256i sum = _mm256_add_epi64(_mm256_add_epi64(w, x), _mm256_add_epi64(y, z));
	return (uint64_t)_mm256_extract_epi64(sum, 0) + (uint64_t)_mm256_extract_epi64(sum, 1) +
	       (uint64_t)_mm256_extract_epi64(sum, 2) + (uint64_t)_mm256_extract_epi64(sum, 3);
}

__attribute__((target("avx512f"))) static void
stream_avx512(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes;
		at += at % APART == APART - LINE ? STREAM - APART + LINE : LINE) {
		uint8_t *out = to + at;
		const uint8_t *in = from + at;
#pragma GCC unroll 8
		for (uint64_t place = 0; place < STREAM; place += APART) {
			_mm_prefetch((const char *)in + place + AHEAD, _MM_HINT_T0);
			_mm512_stream_si512((void *)(out + place), _mm512_loadu_si512(in + place));
		}
	}
	_mm_sfence();
}

__attribute__((target("avx512f"))) static uint64_t
sum_avx512(const uint8_t *from, uint64_t bytes)
{
	__m512i w = _mm512_setzero_si512(), x = w, y = w, z = w;
	uint64_t words[8];

	for (uint64_t at = 0; at < bytes; at += at % PAGE == PAGE - 64 ? 3 * PAGE + 64 : 64) {
		w = _mm512_add_epi64(w, _mm512_loadu_si512(from + at));
		x = _mm512_add_epi64(x, _mm512_loadu_si512(from + at + PAGE));
		y = _mm512_add_epi64(y, _mm512_loadu_si512(from + at + 2 * PAGE));
		z = _mm512_add_epi64(z, _mm512_loadu_si512(from + at + 3 * PAGE));
	}
	/* The intrinsic that adds lanes does so with signs, where an overflow is undefined. */
	_mm512_storeu_si512(
		words, _mm512_add_epi64(_mm512_add_epi64(w, x), _mm512_add_epi64(y, z)));
	for (uint32_t i = 1; i < 8; i++)
		words[0] += words[i];
	return words[0];
}
#endif

static const struct kernels *
kernels(void)
{
	static const struct kernels plain = {"plain", stream_plain, sum_plain};
#ifdef __x86_64__
	static const struct kernels avx2 = {"AVX2", stream_avx2, sum_avx2};
	static const struct kernels avx512 = {"AVX-512", stream_avx512, sum_avx512};

	if (__builtin_cpu_supports("avx512f"))
		return &avx512;
	if (__builtin_cpu_supports("avx2"))
		return &avx2;
#endif
	return &plain;
}

const char *
copy_width(void)
{
	return kernels()->width;
}

/* ---- a copy ------------------------------------------------------------------------------ */

struct copy {
	enum copy_kind kind;
	uint8_t *to;
	const uint8_t *from;
};

static _Atomic uint64_t sink; /* or the compiler finds that nobody wants the sum */

static void
copy_part(void *arg, uint64_t at, uint64_t bytes)
{
	const struct copy *copy = arg;
	uint64_t whole = bytes / (4 * PAGE) * (4 * PAGE);

	switch (copy->kind) {
	case COPY_STREAM:
		whole = bytes / STREAM * STREAM;
		kernels()->stream(copy->to + at, copy->from + at, whole);
		memcpy(copy->to + at + whole, copy->from + at + whole, bytes - whole);
		break;
	case COPY_MEMCPY:
		memcpy(copy->to + at, copy->from + at, bytes);
		break;
	case COPY_READ:
		sink += kernels()->sum(copy->from + at, whole);
		sink += sum_plain(copy->from + at + whole, (bytes - whole) / 64 * 64);
		break;
	}
}

void
copy_run(enum copy_kind kind, void *to, const void *from, uint64_t bytes, uint32_t threads)
{
	struct copy copy = {.kind = kind, .to = to, .from = from};

	copy_parallel(threads, bytes, copy_part, &copy);
}
