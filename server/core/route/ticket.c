/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ticket - see ticket.h. The first half of the seed is the key, the second half is hashed before
 * the leg's number. Pure.
 */
#include "server/core/route/ticket.h"

#include <string.h>

#define MESSAGE_BYTES 24u

struct sip {
	uint64_t v0, v1, v2, v3;
};

static uint64_t
rotate(uint64_t value, unsigned int bits)
{
	return (value << bits) | (value >> (64 - bits));
}

static void
sip_rounds(struct sip *s, int count)
{
	for (int i = 0; i < count; i++) {
		s->v0 += s->v1;
		s->v1 = rotate(s->v1, 13) ^ s->v0;
		s->v0 = rotate(s->v0, 32);
		s->v2 += s->v3;
		s->v3 = rotate(s->v3, 16) ^ s->v2;
		s->v0 += s->v3;
		s->v3 = rotate(s->v3, 21) ^ s->v0;
		s->v2 += s->v1;
		s->v1 = rotate(s->v1, 17) ^ s->v2;
		s->v2 = rotate(s->v2, 32);
	}
}

static void
sip_word(struct sip *s, uint64_t word)
{
	s->v3 ^= word;
	sip_rounds(s, 2);
	s->v0 ^= word;
}

struct th_ticket
ticket_make(const uint64_t seed[4], uint64_t leg)
{
	struct sip s = {
		.v0 = seed[0] ^ UINT64_C(0x736f6d6570736575),
		.v1 = seed[1] ^ UINT64_C(0x646f72616e646f6d) ^ 0xee,
		.v2 = seed[0] ^ UINT64_C(0x6c7967656e657261),
		.v3 = seed[1] ^ UINT64_C(0x7465646279746573),
	};
	struct th_ticket ticket;
	uint64_t half;

	sip_word(&s, seed[2]);
	sip_word(&s, seed[3]);
	sip_word(&s, leg);
	sip_word(&s, (uint64_t)MESSAGE_BYTES << 56);
	s.v2 ^= 0xee;
	sip_rounds(&s, 4);
	half = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
	memcpy(ticket.bytes, &half, sizeof(half));
	s.v1 ^= 0xdd;
	sip_rounds(&s, 4);
	half = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
	memcpy(ticket.bytes + sizeof(half), &half, sizeof(half));
	return ticket;
}
