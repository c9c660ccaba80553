/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper - the process of one GPU: takes the agent's messages.
 *
 * The first thread takes messages and knows what is open and who uses it. It does not call the
 * driver after START: threads open and close (chores.h), for closing may wait for the GPU, and
 * lanes move bytes (gpu_copy_lanes.h). Lanes tell the agent themselves, so that an end is told at
 * once.
 */
#include "transport/cuda/helper/helper.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/alloc.h"
#include "ipc/base/fd.h"
#include "ipc/base/log.h"
#include "ipc/cuda/cuda_handle.h"
#include "transport/cuda/helper/answers.h"
#include "transport/cuda/helper/gpu_run.h"

#define MESSAGES_AT_ONCE 16
#define ANSWERS_MAX 4096u /* that wait: then no message is taken */
#define LEAVES_MAX 65536u
#define DESCRIPTORS 65536u

/* ---- how much of the GPU's memory is taken --------------------------------------------------- */

/*
 * By whomever: asked without a context, so that it can be told what a context takes. NVIDIA's
 * management library knows (libnvidia-ml.so.1, which comes with the driver); where that is not, or
 * the GPU has no memory of its own, nobody does. Of it three calls are used, in forms that it has
 * had since it first came. Names and numbers are its own (NVML API Reference Guide).
 */
#define NVML_LIBRARY "libnvidia-ml.so.1"
#define NVML_SUCCESS 0

struct nvml_memory {
	unsigned long long total, free, used;
};

struct used {
	void *library; /* owns; NULL: nobody knows */
	void *device;  /* borrows */
};

typedef int (*plain_fn)(void);
typedef int (*find_fn)(const char *uuid, void **ret_device);
typedef int (*memory_fn)(void *device, struct nvml_memory *ret_memory);

/* False: there is none. */
static bool
find_call(void *library, const char *name, void *ret_call)
{
	void *address = dlsym(library, name);
	memcpy(ret_call, &address, sizeof(address));
	return address != NULL;
}

static int
find_device(void *library, const uint8_t uuid[16], void **ret_device)
{
	plain_fn init = NULL;
	find_fn find = NULL;
	char text[CUDA_UUID_TEXT_BYTES];
	if (!find_call(library, "nvmlInit_v2", &init) ||
		!find_call(library, "nvmlDeviceGetHandleByUUID", &find) || init() != NVML_SUCCESS)
		return -1;
	return find(cuda_uuid_text(uuid, text), ret_device) == NVML_SUCCESS ? 0 : -1;
}

static void
used_end(struct used *used)
{
	plain_fn shutdown = NULL;
	if (!used->library)
		return;
	if (find_call(used->library, "nvmlShutdown", &shutdown))
		shutdown();
	dlclose(used->library);
	memset(used, 0, sizeof(*used));
}

/* used_end is called either way. */
static void
used_begin(struct used *used, const uint8_t uuid[16])
{
	memset(used, 0, sizeof(*used));
	used->library = dlopen(NVML_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (used->library && find_device(used->library, uuid, &used->device) < 0)
		used_end(used);
}

/* -1: not known. */
static int64_t
used_bytes(const struct used *used)
{
	struct nvml_memory memory = {0};
	memory_fn get = NULL;
	if (!used->library || !find_call(used->library, "nvmlDeviceGetMemoryInfo", &get) ||
		get(used->device, &memory) != NVML_SUCCESS || memory.used > INT64_MAX)
		return -1;
	return (int64_t)memory.used;
}

/* ---- what is open and who uses it ------------------------------------------------------------ */

enum { GOES_ON = -1 }; /* not ended yet */

struct helper_leave { /* that has not been answered */
	struct helper_leave *next;
	uint64_t worker, piece;
	struct th_err failed;
};

struct packet {
	size_t bytes;
	struct wire_fd with; /* owns */
};

struct helper {
	int sock, wake_fd;
	int end; /* GOES_ON, or the status to leave with */
	bool started;
	struct cuda cuda;
	CUcontext context;
	struct chores opening, closing, unpinning;
	struct imports imports;
	struct areas areas;
	struct answers answers;
	struct copies *copies;
	struct gpu_hash *hash;     /* owns; NULL: the CPU makes digests */
	struct gpu_gather *gather; /* owns; NULL: each range is a call of the driver */
	struct helper_leave *leaves, **last_leave; /* own */
	unsigned num_leaves;
	struct run *parked;         /* own: what they need is not open yet */
	_Atomic unsigned running;   /* that the agent has not been told the end of */
	_Atomic bool lost;          /* the driver does not work any more */
	_Atomic(struct run *) over; /* own: from the lanes */
	_Alignas(16) uint8_t message[GPU_MESSAGE_BYTES_MAX];
};

/* ---- how it ends ---------------------------------------------------------------------------- */

static void
helper_end(struct helper *helper, int status, const char *why)
{
	if (helper->end != GOES_ON)
		return;
	helper->end = status;
	if (status != 0)
		log_error("gpu", "the process of a GPU ends why='%s'", why);
}

static void
copy_text(char *to, const struct th_err *err)
{
	snprintf(to, GPU_TEXT_BYTES, "%.*s", (int)GPU_TEXT_BYTES - 1, err->text);
}

/* ---- START ---------------------------------------------------------------------------------- */

/* Not TH_E_NOT_AVAILABLE: there may be such a GPU all the same. */
static int
helper_refuse(struct helper *helper, CUresult result, const char *call, struct th_err *err)
{
	const char *name = cuda_result_name(&helper->cuda, result);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		return th_fail(err, -ENOMEM,
			"the GPU has no room for the agent's context, which takes some 500 MiB: %s "
			"says %s",
			call, name);
	if (result == CUDA_ERROR_DEVICE_UNAVAILABLE)
		return th_fail(err, TH_E_MEMORY_KIND,
			"the GPU lets one process only use it (compute mode), and another one "
			"does: %s says %s; nvidia-smi -c DEFAULT changes it",
			call, name);
	return th_fail(
		err, TH_E_MEMORY_KIND, "the agent cannot use the GPU: %s says %s", call, name);
}

static int
open_gpu(struct helper *helper, const uint8_t uuid[16], int *ret_device, struct th_err *err)
{
	struct cuda *cuda = &helper->cuda;
	int rc = cuda_open(cuda, err);
	if (rc < 0)
		return rc;
	CUresult result = cuda->cuInit(0);
	if (result != CUDA_SUCCESS)
		return helper_refuse(helper, result, "cuInit", err);
	int device = import_device(cuda, uuid, err);
	if (device < 0)
		return device;
	/* Who waits sleeps. It is the primary one, for only one context of a process may open a
	 * worker's legacy handles. */
	result = cuda->cuDevicePrimaryCtxSetFlags(device, CU_CTX_SCHED_BLOCKING_SYNC);
	if (result != CUDA_SUCCESS)
		return helper_refuse(helper, result, "cuDevicePrimaryCtxSetFlags", err);
	result = cuda->cuDevicePrimaryCtxRetain(&helper->context, device);
	if (result != CUDA_SUCCESS)
		return helper_refuse(helper, result, "cuDevicePrimaryCtxRetain", err);
	result = cuda->cuCtxSetCurrent(helper->context);
	if (result != CUDA_SUCCESS)
		return helper_refuse(helper, result, "cuCtxSetCurrent", err);
	*ret_device = device;
	return 0;
}

static void
helper_describe(const struct helper *helper, int device, struct gpu_ready *ready)
{
	const struct cuda *cuda = &helper->cuda;
	cuda->cuDeviceGetName(ready->name, sizeof(ready->name), device);
	cuda->cuDeviceGetPCIBusId(ready->pci, sizeof(ready->pci), device);
	ready->name[sizeof(ready->name) - 1] = ready->pci[sizeof(ready->pci) - 1] = 0;
}

/* Where it cannot, the CPU makes digests, and ready says why. */
static void
open_hash(struct helper *helper, int device, uint32_t flags, struct gpu_ready *ready)
{
	struct th_err why = {0};
	if (flags & GPU_HASH_ON_CPU)
		th_fail(&why, TH_E_NOT_AVAILABLE, "digests are made by the CPU: so it is set");
	else
		ready->hashes_on_gpu =
			gpu_hash_open(&helper->cuda, device, &helper->hash, &why) == 0;
	copy_text(ready->text, &why);
}

/* It has nothing to do with who makes digests. */
static void
open_gather(struct helper *helper, int device, struct gpu_ready *ready)
{
	struct th_err why = {0};
	(void)(gpu_gather_open(&helper->cuda, device, &helper->gather, &why) == 0);
	copy_text(ready->gather_text, &why);
}

static void copy_done(void *arg, struct copy_run *copy);
static void tell_area(void *arg, const struct area *area);
static void tell_opened(void *arg, const struct imports_told *told);
static void tell_closed(void *arg, const struct imports_told *told);

static int
helper_start_threads(struct helper *helper, struct th_err *err)
{
	int rc = chores_start(&helper->opening, &helper->cuda, helper->context, helper->wake_fd);
	if (rc == 0)
		rc = chores_start(
			&helper->closing, &helper->cuda, helper->context, helper->wake_fd);
	/* Of its own: workers' memory is not kept while many GBs of the host's are unpinned. */
	if (rc == 0)
		rc = chores_start(
			&helper->unpinning, &helper->cuda, helper->context, helper->wake_fd);
	if (rc < 0)
		return th_fail(err, rc, "the process of a GPU has no thread: %s", strerror(-rc));
	return 0;
}

static void
make_parts(struct helper *helper, int device)
{
	const struct imports_config imports = {.cuda = &helper->cuda,
		.device = device,
		.opening = &helper->opening,
		.closing = &helper->closing,
		.opened = tell_opened,
		.closed = tell_closed,
		.arg = helper};
	const struct copies_config copies = {.cuda = &helper->cuda,
		.context = helper->context,
		.hash = helper->hash,
		.gather = helper->gather,
		.done = copy_done,
		.arg = helper};
	imports_init(&helper->imports, &imports);
	areas_init(&helper->areas, &helper->opening, &helper->unpinning, tell_area, helper);
	helper->copies = copies_new(&copies);
}

static void
take_start(struct helper *helper, const struct gpu_start *start)
{
	struct gpu_ready ready = {.kind = GPU_READY};
	struct th_err err = {0};
	struct used used;
	int device = 0;
	used_begin(&used, start->uuid);
	int64_t before = used_bytes(&used);
	ready.code = open_gpu(helper, start->uuid, &device, &err);
	if (ready.code == 0)
		ready.code = helper_start_threads(helper, &err);
	if (ready.code == 0) {
		open_hash(helper, device, start->flags, &ready);
		open_gather(helper, device, &ready);
		make_parts(helper, device);
		helper_describe(helper, device, &ready);
		/* What others took or gave meanwhile is in it: nobody tells it for one process. */
		int64_t after = used_bytes(&used);
		ready.context_bytes =
			before >= 0 && after > before ? (uint64_t)(after - before) : 0;
		helper->started = true;
	} else {
		copy_text(ready.text, &err);
	}
	used_end(&used);
	answers_send(&helper->answers, &ready, sizeof(ready));
	if (ready.code != 0)
		helper_end(helper, 1, err.text);
}

/* ---- AREA, OPEN ----------------------------------------------------------------------------- */

static void
tell_area(void *arg, const struct area *area)
{
	struct helper *helper = arg;
	struct gpu_area_is is = {.kind = GPU_AREA_IS, .area = area->number, .pinned = area->pinned};
	/* Its pages are the agent's when nothing reaches them: only the process's end helps. */
	if (area->held) {
		helper_end(helper, 3, area->err.text);
		return;
	}
	if (area->bytes > 0 && !area->data)
		is.code = area->err.code;
	copy_text(is.text, &area->err);
	answers_send(&helper->answers, &is, sizeof(is));
}

static void
take_open_own(struct helper *helper, const struct gpu_open *open, const struct packet *packet)
{
	if (open->own != 1 || packet->with.fd >= 0 || packet->with.lost ||
		open->piece == IMPORTS_ALL ||
		!imports_open_own(&helper->imports, open->worker, open->piece, open->handle.bytes))
		helper_end(helper, 2, "memory of its own that no agent asks for");
}

static void
take_area(struct helper *helper, const struct gpu_area *area, struct packet *packet)
{
	bool opens = packet->with.fd >= 0 || packet->with.lost;
	bool good = area->area < GPU_AREAS_MAX && (area->bytes > 0) == opens;
	if (good && opens)
		good = areas_open(&helper->areas, area, th_fd_move(&packet->with.fd));
	else if (good)
		good = areas_forget(&helper->areas, area->area);
	if (!good)
		helper_end(helper, 2, "an area that no agent sends");
}

static void
take_open(struct helper *helper, const struct gpu_open *open, struct packet *packet)
{
	struct th_err err = {0};
	if (open->own != 0) {
		take_open_own(helper, open, packet);
		return;
	}
	if (packet->with.lost)
		th_fail(&err, TH_E_LIMIT,
			"the process of a GPU has no room for another descriptor: raise its limit "
			"(LimitNOFILE=)");
	if (open->piece == IMPORTS_ALL ||
		!imports_open(&helper->imports, open->worker, open->piece, &open->handle,
			th_fd_move(&packet->with.fd), err.code ? &err : NULL))
		helper_end(helper, 2, "a piece is opened twice");
}

static void
tell_opened(void *arg, const struct imports_told *told)
{
	struct helper *helper = arg;
	struct gpu_opened opened = {.kind = GPU_OPENED,
		.code = told->is_lost ? -EIO : told->err.code,
		.worker = told->worker,
		.piece = told->piece};
	copy_text(opened.text, &told->err);
	answers_send_fd(&helper->answers, &opened, sizeof(opened), told->fd);
	if (told->is_lost)
		helper->lost = true;
}

/* ---- LEAVE ---------------------------------------------------------------------------------- */

/* Answers those of which nothing is there any more, in the order in which they came. */
static void
answer_leaves(struct helper *helper)
{
	struct helper_leave **link = &helper->leaves;
	while (*link) {
		struct helper_leave *leave = *link;
		if (imports_has(&helper->imports, leave->worker, leave->piece)) {
			link = &leave->next;
			continue;
		}
		struct gpu_left left = {.kind = GPU_LEFT,
			.code = leave->failed.code,
			.worker = leave->worker,
			.piece = leave->piece};
		copy_text(left.text, &leave->failed);
		answers_send(&helper->answers, &left, sizeof(left));
		*link = leave->next;
		helper->num_leaves--;
		free(leave);
	}
	helper->last_leave = link;
}

static void
tell_closed(void *arg, const struct imports_told *told)
{
	struct helper *helper = arg;
	if (told->is_lost)
		helper->lost = true;
	if (told->err.code == 0)
		return;
	/* The driver does not let go of something: whoever waits for it hears so. */
	for (struct helper_leave *leave = helper->leaves; leave; leave = leave->next)
		if (leave->failed.code == 0 && leave->worker == told->worker &&
			(leave->piece == IMPORTS_ALL || leave->piece == told->piece))
			leave->failed = told->err;
}

static void
take_leave(struct helper *helper, const struct gpu_leave *message)
{
	if (helper->num_leaves == LEAVES_MAX) {
		helper_end(helper, 2, "it is told to leave more than it has");
		return;
	}
	struct helper_leave *leave = th_calloc(1, sizeof(*leave));
	leave->worker = message->worker;
	leave->piece = message->piece;
	*helper->last_leave = leave;
	helper->last_leave = &leave->next;
	helper->num_leaves++;
	imports_leave(&helper->imports, message->worker, message->piece);
	answer_leaves(helper);
}

/* ---- RUN ------------------------------------------------------------------------------------ */

static void
tell_done(struct helper *helper, const struct run *run)
{
	struct gpu_done done = {.kind = GPU_DONE, .code = run->copy.code, .run = run->message.run};
	memcpy(done.digests, run->copy.digests, sizeof(done.digests));
	memcpy(done.text, run->copy.text, sizeof(done.text));
	helper->running--; /* before: the agent may send the next one at once */
	answers_send(&helper->answers, &done, sizeof(done));
}

/* On a lane's thread. */
static void
copy_done(void *arg, struct copy_run *copy)
{
	struct helper *helper = arg;
	struct run *run = (struct run *)copy;
	const uint64_t one = 1;
	tell_done(helper, run);
	if (copy->lost)
		helper->lost = true;
	run->next = helper->over;
	while (!atomic_compare_exchange_weak(&helper->over, &run->next, run))
		continue;
	if (write(helper->wake_fd, &one, sizeof(one)) < 0)
		return; /* it is readable already */
}

/* It has failed before it began. */
static void
helper_give_up(struct helper *helper, struct run *run)
{
	tell_done(helper, run);
	run_free(run, &helper->imports);
}

static void
take_run(struct helper *helper, size_t bytes)
{
	struct th_err err = {0};
	struct run *run = run_new(helper->message, bytes, &err);
	if (!run) {
		helper_end(helper, 2, err.text);
		return;
	}
	if (helper->running == GPU_RUNS_MAX) {
		free(run);
		helper_end(helper, 2, "more RUNs are under way than an agent sends");
		return;
	}
	helper->running++;
	int rc = run_hold(run, &helper->imports, &helper->areas);
	if (rc == 0)
		rc = run_place(run);
	if (rc < 0) {
		helper_give_up(helper, run);
		answer_leaves(helper);
	} else if (rc > 0) {
		run->next = helper->parked;
		helper->parked = run;
	} else {
		copies_add(helper->copies, &run->copy);
	}
}

/* Something has been opened. */
static void
try_parked(struct helper *helper)
{
	struct run **link = &helper->parked;
	while (*link) {
		struct run *run = *link;
		int rc = run_place(run);
		if (rc > 0) {
			link = &run->next;
			continue;
		}
		*link = run->next;
		if (rc < 0)
			helper_give_up(helper, run);
		else
			copies_add(helper->copies, &run->copy);
	}
}

/* What the other threads have done. */
static void
helper_collect(struct helper *helper)
{
	struct run *run = atomic_exchange(&helper->over, NULL), *next;
	bool any = run != NULL;
	for (; run; run = next) {
		next = run->next;
		run_free(run, &helper->imports);
	}
	if (chores_collect(&helper->opening)) {
		try_parked(helper);
		any = true;
	}
	any |= chores_collect(&helper->closing);
	(void)chores_collect(&helper->unpinning);
	if (any)
		answer_leaves(helper);
}

/* ---- messages ------------------------------------------------------------------------------- */

/* 1; 0: none now; -1: no more come, or it is none. */
static int
helper_receive(struct helper *helper, struct packet *ret_packet)
{
	int got = wire_receive(
		helper->sock, helper->message, sizeof(helper->message), &ret_packet->with);
	if (got == -EAGAIN)
		return 0;
	if (got == 0) {
		helper_end(helper, 0, "");
		return -1;
	}
	ret_packet->bytes = (size_t)got;
	if (ret_packet->bytes <= sizeof(helper->message) && !ret_packet->with.more)
		return 1;
	helper_end(helper, 2, "a message is longer than any, or has two descriptors");
	return -1;
}

/* Which messages have which size, and may have a descriptor. */
static bool
is_whole(const struct helper *helper, uint32_t kind, const struct packet *packet)
{
	bool has_fd = packet->with.fd >= 0 || packet->with.lost;
	switch (kind) {
	case GPU_START:
		return !helper->started && !has_fd && packet->bytes == sizeof(struct gpu_start);
	case GPU_AREA:
		return helper->started && packet->bytes == sizeof(struct gpu_area);
	case GPU_OPEN:
		return helper->started && packet->bytes == sizeof(struct gpu_open);
	case GPU_LEAVE:
		return helper->started && !has_fd && packet->bytes == sizeof(struct gpu_leave);
	case GPU_RUN:
		return helper->started && !has_fd; /* run_new looks at the rest */
	default:
		return false;
	}
}

static void
helper_take(struct helper *helper, struct packet *packet)
{
	uint32_t kind = 0;
	if (packet->bytes >= sizeof(kind))
		memcpy(&kind, helper->message, sizeof(kind));
	if (!is_whole(helper, kind, packet)) {
		helper_end(helper, 2, "a message that no agent sends");
		return;
	}
	const void *message = helper->message;
	switch (kind) {
	case GPU_START:
		take_start(helper, message);
		break;
	case GPU_AREA:
		take_area(helper, message, packet);
		break;
	case GPU_OPEN:
		take_open(helper, message, packet);
		break;
	case GPU_LEAVE:
		take_leave(helper, message);
		break;
	default:
		take_run(helper, packet->bytes);
	}
}

static void
take_some(struct helper *helper)
{
	for (int i = 0; i < MESSAGES_AT_ONCE && helper->end == GOES_ON; i++) {
		struct packet packet;
		int rc = helper_receive(helper, &packet);
		if (rc > 0)
			helper_take(helper, &packet);
		th_fd_close(&packet.with.fd);
		if (rc <= 0)
			return;
	}
}

/* ---- the process ---------------------------------------------------------------------------- */

static void
helper_settle(void)
{
	struct rlimit limit;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, "thagentd-gpu");
	/* Its memory is other people's weights. */
	setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
	/* A descriptor for each message that waits, and the driver's own. */
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < DESCRIPTORS) {
		/* Not all that may be: libraries have loops over all descriptors. */
		limit.rlim_cur = limit.rlim_max < DESCRIPTORS ? limit.rlim_max : DESCRIPTORS;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	/* A service's stop tells all its processes: the agent says when this one ends. */
	signal(SIGTERM, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
}

static void
helper_step(struct helper *helper)
{
	bool full = helper->answers.waiting >= ANSWERS_MAX;
	uint64_t count;
	struct pollfd fds[2] = {{.fd = helper->sock, .events = full ? 0 : POLLIN},
		{.fd = helper->wake_fd, .events = POLLIN}};
	int pause_ms = answers_wait(&helper->answers, &fds[0].events);
	if (poll(fds, 2, pause_ms) < 0 && errno != EINTR)
		helper_end(helper, 1, "it cannot wait");
	if (fds[1].revents & POLLIN && read(helper->wake_fd, &count, sizeof(count)) < 0)
		return;
	if (helper->started)
		helper_collect(helper);
	if (fds[0].revents & POLLOUT || pause_ms >= 0)
		answers_flush(&helper->answers);
	if (fds[0].revents & POLLIN)
		take_some(helper);
	else if (fds[0].revents & (POLLHUP | POLLERR))
		helper_end(helper, 0, "");
	if (helper->lost) {
		answers_flush(&helper->answers);
		helper_end(helper, 3, "the driver does not work any more");
	}
}

/* Somebody may try it by hand. */
static bool
helper_is_ours(int sock)
{
	int type = 0;
	socklen_t bytes = sizeof(type);
	return getsockopt(sock, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_SEQPACKET;
}

int
gpu_helper_main(int sock)
{
	if (!helper_is_ours(sock)) {
		log_error("gpu", "the agent starts the process of a GPU by itself, there is "
				 "nothing to do by hand");
		return 2;
	}
	struct helper *helper = th_calloc(1, sizeof(*helper));
	helper_settle();
	helper->sock = sock;
	helper->end = GOES_ON;
	helper->last_leave = &helper->leaves;
	helper->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (helper->wake_fd < 0) {
		log_error("gpu", "the process of a GPU ends why='no eventfd: %s'", strerror(errno));
		return 1;
	}
	answers_init(&helper->answers, sock, helper->wake_fd);
	while (helper->end == GOES_ON)
		helper_step(helper);
	return helper->end;
}
