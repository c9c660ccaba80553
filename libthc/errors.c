/* SPDX-License-Identifier: Apache-2.0 */
/*
 * errors - the codes of thc.h, the sentence of a thread's last failure, deadlines, and the structs
 * of callers that were built against another header.
 */
#include <limits.h>
#include <string.h>

#include "ipc/base/clock.h"
#include "ipc/base/utf8.h"
#include "ipc/proto/manifest.h"
#include "libthc/libthc_own.h"

/* A code travels from the server to the caller unchanged: the two lists are one. */
#define SAME(name, number, text)                                                                   \
	_Static_assert((int)THC_E_##name == (int)TH_E_##name, "codes of thc.h and err.h");
TH_ERRORS(SAME)
#undef SAME
_Static_assert((int)THC_DIMS_MAX == (int)MANIFEST_DIMS_MAX, "thc.h and manifest.h");
_Static_assert((int)THC_NAME_MAX == (int)TH_NAME_MAX, "thc.h and ctl.h");
_Static_assert((int)THC_REPLICA_READY == (int)CTL_REPLICA_READY &&
		       (int)THC_REPLICA_OFFLOAD == (int)CTL_REPLICA_OFFLOAD &&
		       (int)THC_REPLICA_SPOT == (int)CTL_REPLICA_SPOT &&
		       (int)THC_REPLICA_DRAINING == (int)CTL_REPLICA_DRAINING,
	"thc.h and ctl.h");

#define STRING(x) #x
#define VERSION_STRING(major, minor) STRING(major) "." STRING(minor) ".0"

static _Thread_local struct th_err last;

struct th_err *
errors_last(void)
{
	return &last;
}

void
errors_clean(char *text, size_t room)
{
	text[room - 1] = '\0';
	th_utf8_clean(text, strlen(text));
}

int
errors_from_agent(int code, const char *text)
{
	bool known = th_is_errno(code) || (code <= THC_E_INVALID && code >= THC_E_EVICTED);
	if (!known)
		return shim_fail(THC_E_PROTOCOL, "the agent answered with the unknown code %d: %s",
			code, text);
	return shim_fail(code, "%s", text[0] != '\0' ? text : th_strerror(code));
}

const char *
thc_strerror(int code)
{
	return code == THC_OK ? "success" : th_strerror(code);
}

const char *
thc_errmsg(void)
{
	return last.text;
}

const char *
thc_version_string(void)
{
	return VERSION_STRING(THC_VERSION_MAJOR, THC_VERSION_MINOR);
}

uint32_t
thc_dtype_bits(enum thc_dtype dtype)
{
	return manifest_dtype_bits((uint32_t)dtype);
}

int
deadline_of(int64_t timeout_ms, int64_t *ret_deadline_ns)
{
	const int64_t most = INT64_MAX / 1000000;

	if (timeout_ms < 0 && timeout_ms != THC_FOREVER)
		return shim_fail(THC_E_INVALID,
			"timeout_ms: is %lld; give 0 or more, or THC_FOREVER",
			(long long)timeout_ms);
	if (timeout_ms == THC_FOREVER || timeout_ms > most)
		*ret_deadline_ns = INT64_MAX;
	else
		*ret_deadline_ns = th_deadline_ns(th_now_ns(), timeout_ms * 1000000);
	return 0;
}

int64_t
deadline_with_grace(int64_t deadline_ns)
{
	return th_deadline_ns(deadline_ns, GRACE_NS);
}

int64_t
deadline_left(int64_t deadline_ns)
{
	if (deadline_ns == INT64_MAX)
		return TH_FOREVER;
	return th_max_i64(deadline_ns - th_now_ns(), 0);
}

int
deadline_poll_ms(int64_t deadline_ns)
{
	int64_t left = deadline_left(deadline_ns);

	if (left < 0)
		return -1;
	return (int)th_min_i64((left + 999999) / 1000000, INT_MAX);
}

/* A header that grows adds whole fields; the largest struct is a result, below 400 bytes. */
#define STRUCT_BYTES_MAX 4096

int
struct_size_check(const char *what, size_t size, size_t least)
{
	if (size < least)
		return shim_fail(THC_E_INVALID,
			"%s: is %zu, less than %zu; begin with the _INIT macro of thc.h, or give "
			"sizeof",
			what, size, least);
	if (size > STRUCT_BYTES_MAX || size % sizeof(uint64_t) != 0)
		return shim_fail(THC_E_INVALID,
			"%s: is %zu, which no thc.h has; begin with the _INIT macro of thc.h, or "
			"give sizeof",
			what, size);
	return 0;
}

int
struct_take(const char *what, const void *from, size_t size, size_t least, void *ret_struct,
	size_t own_size)
{
	const uint8_t *bytes = from;
	int rc = struct_size_check(what, size, least);

	if (rc < 0)
		return rc;
	for (size_t i = own_size; i < size; i++)
		if (bytes[i] != 0)
			return shim_fail(THC_E_INVALID,
				"%s: is %zu, and beyond the %zu bytes that libthc %s knows there "
				"is something set: it needs a newer library",
				what, size, own_size, thc_version_string());
	memset(ret_struct, 0, own_size);
	memcpy(ret_struct, from, th_min_size(size, own_size));
	return 0;
}
