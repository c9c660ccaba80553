/* SPDX-License-Identifier: Apache-2.0 */
/*
 * err - the error codes of all programs, and the sentence that goes with a failure.
 *
 * A function returns 0 or a positive count, -errno for a failure of the operating system, or a
 * TH_E_* code for a fact of the protocol. The numbers are those of thc.h (libthc asserts that they
 * are equal), so a code travels from the server to the caller of libthc unchanged.
 *
 * The sentence (struct th_err) is filled at the origin only; whoever passes a failure on passes
 * the sentence on. It says what failed, where, why and what to do.
 */
#ifndef TH_IPC_BASE_ERR_H
#define TH_IPC_BASE_ERR_H

#include <stdbool.h>
#include <stddef.h>

/* name, number, text */
#define TH_ERRORS(X)                                                                               \
	X(INVALID, -5001, "invalid argument")                                                      \
	X(STATE, -5002, "the call does not fit the state of the handle")                           \
	X(TIMEOUT, -5003, "the deadline passed before anything changed")                           \
	X(NOT_AVAILABLE, -5004, "no such version now")                                             \
	X(VERSION_LOST, -5005, "the version existed and its last copy is gone")                    \
	X(VERSION_CONFLICT, -5006, "the version was published before with other content")          \
	X(LAYOUT, -5007, "source and destination have different layouts")                          \
	X(DIRTY, -5008, "the buffers were partly overwritten")                                     \
	X(GROUP_BROKEN, -5009, "a member of the model-parallel group is gone")                     \
	X(GROUP_MISMATCH, -5010, "the members of the group disagree")                              \
	X(NOMEM_RETAIN, -5011, "last copy of a retained version and nowhere to offload it")        \
	X(LIMIT, -5012, "a configured limit was reached")                                          \
	X(CHECKSUM, -5013, "bytes did not match the published digest from any source")             \
	X(CONTRACT, -5014, "published memory was changed before unpublish")                        \
	X(NO_AGENT, -5015, "no agent at the endpoint")                                             \
	X(AGENT_LOST, -5016, "the agent died or froze")                                            \
	X(NO_SERVER, -5017, "the agent reaches no reference server")                               \
	X(DENIED, -5018, "not allowed")                                                            \
	X(PROTOCOL, -5019, "protocol versions do not overlap")                                     \
	X(FORKED, -5020, "the handle was inherited across fork()")                                 \
	X(CANCELLED, -5021, "cancelled")                                                           \
	X(MEMORY_KIND, -5022, "this memory cannot be shared or copied")                            \
	X(STALE_MEMORY, -5023, "the pages behind a registered tensor changed")                     \
	X(NO_PATH, -5024, "no allowed transport reaches any source")                               \
	X(UNKNOWN, -5025, "the operation had begun and its outcome is not known yet")              \
	X(EVICTED, -5026, "this replica was taken out by an operator or a drain")

enum th_error {
#define TH_ERROR_ENUM(name, number, text) TH_E_##name = (number),
	TH_ERRORS(TH_ERROR_ENUM)
#undef TH_ERROR_ENUM
};

#define TH_SENTENCE_BYTES 512

/* A failure with its sentence. code 0 means no failure and an empty sentence. */
struct th_err {
	int code;
	char text[TH_SENTENCE_BYTES];
};

/* Whether it is -errno: those of Linux lie in 1..4095, and all TH_E_* are below. */
static inline bool
th_is_errno(int code)
{
	return code < 0 && code >= -4095;
}

/* What another process is told, to which our errno says nothing: a TH_E_* is, else instead. */
static inline int
th_code_or(int code, int instead)
{
	return code <= TH_E_INVALID ? code : instead;
}

/* Static text of a TH_E_* code or a negative errno; "unknown error" for anything else. */
const char *th_strerror(int code);

/* Short name of a code for logs: "TIMEOUT", "ENOMEM"... ; "?" for anything else. */
const char *th_errname(int code);

/*
 * Fills *err (which may be NULL) with code and the formatted sentence, cut at TH_SENTENCE_BYTES on
 * a UTF-8 boundary and without what a terminal must not be given (th_utf8_clean), and returns code:
 * `return th_fail(err, TH_E_LIMIT, "...", ...)`.
 */
int th_fail(struct th_err *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
