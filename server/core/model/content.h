/* SPDX-License-Identifier: Apache-2.0 */
/*
 * content - whose bytes a version is made of.
 *
 * Each publish of a version makes a content: for each shard a hash over the digests of its chunks,
 * which comes when the publisher's agent has hashed the shard. It comes from there only: what a
 * reader says of its bytes is compared with it and never taken for it, and until it has come no
 * reader's operation succeeds. Replicas belong to the content that they read. The content that was
 * published first, among those of which a copy lives, is the version: it is listed and read. A
 * later one is unlisted until it is complete:
 *
 *   provisional --the same as the first--------> its copies join the first as sources
 *        |-------the first is gone-------------> it is the first
 *        |-------the first can never be known--> it is the first, and takes its readers over
 *        '-------another hash than the first---> refused: never listed, its members are told
 *
 * A first of which only copies of broken groups are left refuses nobody: it goes, and the next one
 * follows it.
 *
 * The first publisher may die before its digests are known. Its readers have a beginning of its
 * bytes then, and nobody will say what the whole was. When all of a second one is known they go on
 * from it: trainers of one job publish equal bytes. Should these not have been equal, the digests
 * of what such a reader has in the end are not those of the second, and its operation fails.
 *
 * So a reader is bound to one content from GO on, and whatever a later publisher brings hurts
 * neither it nor the first. An agent that makes no digests (--verify off) says so with no hash:
 * such a shard counts as the same as any.
 */
#ifndef TH_SERVER_CORE_MODEL_CONTENT_H
#define TH_SERVER_CORE_MODEL_CONTENT_H

#include "server/core/refsrv_state.h"

/* The last of its version. attributes: by shard; it takes its own references to the blobs. */
struct content *content_new(
	struct refsrv *server, struct version *version, const struct th_hash *attributes);
/*
 * Of a copy that a former server life knew: before all that were published in this one. shards: by
 * shard, what is known: what a holder says here was compared when it was received. published: it
 * was not received, and of two that differ it is right. refused: others had published other bytes
 * before it.
 */
struct content *content_rejoin(struct refsrv *server, struct version *version,
	const struct content_shard *shards, bool published, bool refused);
/* Compares all contents of the version, as far as they are known. */
void content_settle(struct refsrv *server, struct version *version);
void content_join(struct content *content, struct copy *copy);
/* The copy is going. Its content may be freed, and another one become the version. */
void content_leave(struct refsrv *server, struct copy *copy);
/* A group that has a copy of it is broken or has failed: what can be known may be less now. */
void content_reconsider(struct refsrv *server, struct version *version);

/* The copy has the bytes that the version is made of. */
bool content_listed(const struct copy *copy);
/* Who reads the one may get to read the other: that they are the same may still turn out. */
bool content_undecided(const struct content *other, const struct content *begun);

/* CONTENT: the publisher's agent has hashed a part. */
int content_report(struct refsrv *server, const struct agent *agent,
	const struct ctl_content *report, struct th_err *err);
/* A reader has filled its part, with these digests; false: they are not those of its content. */
bool content_arrived(struct part *part, struct th_hash hash);

/* Of a part that has arrived: is it what its publisher says? */
enum content_verdict {
	CONTENT_SAME,
	CONTENT_OTHER,
	CONTENT_AWAITED, /* the publisher's agent has not said it yet */
	CONTENT_NEVER,   /* its publisher is gone, so nobody will say it */
};
enum content_verdict content_judge(struct refsrv *server, const struct part *part);

/* What the next call of a refused copy's group answers, once. */
void content_describe_refusal(const struct copy *copy, char *ret_text, size_t bytes);

#endif
