/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_memory - what lies behind the addresses of GPU tensors.
 *
 * cuPointerGetAttributes answers zeroes for an address that is not the driver's. The attributes
 * that its documentation does not name are asked for one by one, and only of addresses that are.
 * Those of ranges may be refused to a thread without a context (kvcache-ai/Mooncake 2034): one of
 * the framework's is current meanwhile. Where it has none, the driver is asked all the same.
 */
#include "ipc/cuda/cuda_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "ipc/cuda/context.h"

void
cuda_memory_init(struct cuda_memory *memory, int device)
{
	memset(memory, 0, sizeof(*memory));
	memory->device = device;
}

void
cuda_memory_end(struct cuda_memory *memory)
{
	free(memory->pieces);
	cuda_memory_init(memory, memory->device);
}

const char *
cuda_kind_name(enum cuda_kind kind)
{
	switch (kind) {
	case CUDA_KIND_LEGACY:
		return "cudaMalloc";
	case CUDA_KIND_CHUNK:
		return "a mapped chunk";
	case CUDA_KIND_CHUNKS:
		return "chunks of a range";
	case CUDA_KIND_POOL:
		return "a memory pool";
	case CUDA_KIND_CLOSED:
		return "not exportable";
	}
	return "unknown";
}

/* The index of the first piece that ends behind the address. */
static size_t
cuda_memory_do_find(const struct cuda_memory *memory, CUdeviceptr address)
{
	size_t from = 0, to = memory->count;
	while (from < to) {
		size_t middle = from + (to - from) / 2;
		const struct cuda_piece *piece = &memory->pieces[middle];
		if (address < piece->base || address - piece->base < piece->bytes)
			to = middle;
		else
			from = middle + 1;
	}
	return from;
}

const struct cuda_piece *
cuda_memory_find(const struct cuda_memory *memory, CUdeviceptr address)
{
	size_t index = cuda_memory_do_find(memory, address);
	if (index == memory->count || memory->pieces[index].base > address)
		return NULL;
	return &memory->pieces[index];
}

/* ---- asking the driver ---------------------------------------------------------------------- */

/* Whatever its type is, it is at most eight bytes, and little-endian. */
static CUresult
cuda_memory_ask(const struct cuda *cuda, CUpointer_attribute attribute, CUdeviceptr address,
	unsigned long long *ret_value)
{
	unsigned long long value = 0;
	CUresult result = cuda->cuPointerGetAttribute(&value, attribute, address);
	if (result == CUDA_SUCCESS)
		*ret_value = value;
	return result;
}

enum asked {
	TYPE,
	MANAGED,
	ORDINAL,
	LEGACY,
	RANGE,
	RANGE_BYTES,
	MAPPED,
	TYPES,
	POOL,
	BUFFER,
	ASKED
};

static CUresult
cuda_memory_ask_all(const struct cuda *cuda, CUdeviceptr address, unsigned long long values[ASKED])
{
	CUpointer_attribute attributes[ASKED] = {
		[TYPE] = CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		[MANAGED] = CU_POINTER_ATTRIBUTE_IS_MANAGED,
		[ORDINAL] = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		[LEGACY] = CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
		[RANGE] = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
		[RANGE_BYTES] = CU_POINTER_ATTRIBUTE_RANGE_SIZE,
		[MAPPED] = CU_POINTER_ATTRIBUTE_MAPPED,
		[TYPES] = CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
		[POOL] = CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
		[BUFFER] = CU_POINTER_ATTRIBUTE_BUFFER_ID,
	};
	void *places[ASKED];
	memset(values, 0, ASKED * sizeof(values[0]));
	for (size_t i = 0; i < ASKED; i++)
		places[i] = &values[i];
	return cuda->cuPointerGetAttributes(ASKED, attributes, places, address);
}

static int
cuda_memory_refuse(
	const struct cuda *cuda, CUresult result, CUdeviceptr address, struct th_err *err)
{
	if (result == CUDA_ERROR_NOT_INITIALIZED)
		return th_fail(err, TH_E_INVALID,
			"0x%llx cannot be GPU memory: CUDA is not initialized in this process; a "
			"child of fork() has none, start it with spawn",
			address);
	return th_fail(err, TH_E_MEMORY_KIND,
		"the CUDA driver cannot say what lies at 0x%llx: %s; where the GPU or its context "
		"in this process has failed, only a new process can use it",
		address, cuda_result_name(cuda, result));
}

static int
cuda_memory_check(const struct cuda_memory *memory, CUdeviceptr address,
	const unsigned long long values[ASKED], struct th_err *err)
{
	if (values[TYPE] == CU_MEMORYTYPE_HOST)
		return th_fail(err, TH_E_INVALID,
			"0x%llx is host memory that CUDA knows: register it as host memory, with "
			"device -1",
			address);
	if (values[TYPE] != CU_MEMORYTYPE_DEVICE)
		return th_fail(err, TH_E_INVALID,
			"0x%llx is no GPU memory of this process: it was freed, or never was; "
			"tensors stay allocated until thc_unregister has returned",
			address);
	if (values[MANAGED])
		return th_fail(err, TH_E_MEMORY_KIND,
			"0x%llx is managed memory, which moves between host and GPU and cannot be "
			"shared: allocate it with cudaMalloc",
			address);
	if (!values[MAPPED])
		return th_fail(err, TH_E_INVALID,
			"0x%llx is a reserved address without memory: wake the engine before it "
			"registers",
			address);
	if ((int)values[ORDINAL] != memory->device)
		return th_fail(err, TH_E_INVALID,
			"0x%llx lies on GPU %d, not on GPU %d: the tensor's device has to be %d",
			address, (int)values[ORDINAL], memory->device, (int)values[ORDINAL]);
	return 0;
}

/* Not a chunk of cuMemCreate: then what another process allocated for itself. */
static bool
is_foreign(const struct cuda *cuda, CUdeviceptr address)
{
	CUmemGenericAllocationHandle handle = 0;
	if (cuda->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address) != CUDA_SUCCESS)
		return true;
	cuda->cuMemRelease(handle);
	return false;
}

static int
refuse_foreign(CUdeviceptr address, struct th_err *err)
{
	return th_fail(err, TH_E_MEMORY_KIND,
		"0x%llx is memory of another process, opened here by a handle: it is registered "
		"in the process that allocated it",
		address);
}

/* The part of the memory at the address for which one handle is made. */
static int
ask_piece(const struct cuda_memory *memory, const struct cuda *cuda, CUdeviceptr address,
	struct cuda_piece *ret_piece, struct th_err *err)
{
	unsigned long long values[ASKED], base = 0, bytes = 0, rdma = 0, id = 0;
	CUresult result = cuda_memory_ask_all(cuda, address, values);
	if (result != CUDA_SUCCESS)
		return cuda_memory_refuse(cuda, result, address, err);
	int rc = cuda_memory_check(memory, address, values, err);
	if (rc < 0)
		return rc;
	struct cuda_piece piece = {.range = values[RANGE],
		.range_bytes = values[RANGE_BYTES],
		.base = values[RANGE],
		.bytes = values[RANGE_BYTES],
		.id = values[BUFFER]};
	bool exportable = values[TYPES] & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	if (!values[LEGACY] && !values[POOL] && !exportable && is_foreign(cuda, address))
		return refuse_foreign(address, err);
	if (values[LEGACY]) {
		piece.kind = CUDA_KIND_LEGACY;
	} else if (values[POOL]) {
		piece.kind = exportable ? CUDA_KIND_POOL : CUDA_KIND_CLOSED;
	} else {
		/* A physical chunk at a reserved address, whether it can be exported or not. */
		result = cuda_memory_ask(
			cuda, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, address, &base);
		if (result == CUDA_SUCCESS)
			result = cuda_memory_ask(
				cuda, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, address, &bytes);
		if (result == CUDA_SUCCESS)
			result = cuda_memory_ask(
				cuda, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, address, &id);
		if (result != CUDA_SUCCESS)
			return cuda_memory_refuse(cuda, result, address, err);
		piece.base = base;
		piece.bytes = bytes;
		piece.id = id;
		piece.mapped = true;
		bool whole = base == piece.range && bytes == piece.range_bytes;
		piece.kind = !exportable ? CUDA_KIND_CLOSED
			     : whole     ? CUDA_KIND_CHUNK
					 : CUDA_KIND_CHUNKS;
	}
	if (address < piece.base || address - piece.base >= piece.bytes)
		return th_fail(err, TH_E_INVALID,
			"the CUDA driver says that 0x%llx lies in the %llu bytes at 0x%llx, which "
			"it does not",
			address, (unsigned long long)piece.bytes, piece.base);
	/* Not every driver knows the attribute: then no NIC is given it. */
	if (cuda_memory_ask(cuda, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, address,
		    &rdma) == CUDA_SUCCESS)
		piece.rdma = rdma != 0;
	*ret_piece = piece;
	return 0;
}

/* ---- pieces --------------------------------------------------------------------------------- */

static int
cuda_memory_insert(struct cuda_memory *memory, const struct cuda_piece *piece, struct th_err *err)
{
	size_t index = cuda_memory_do_find(memory, piece->base);
	const struct cuda_piece *next = index < memory->count ? &memory->pieces[index] : NULL;
	if (next && (next->base <= piece->base || next->base - piece->base < piece->bytes))
		return th_fail(err, TH_E_STALE_MEMORY,
			"the GPU memory at 0x%llx changed while it was registered", piece->base);
	if (memory->count == memory->room) {
		size_t room = memory->room ? 2 * memory->room : 32;
		struct cuda_piece *pieces =
			reallocarray(memory->pieces, room, sizeof(*memory->pieces));
		if (!pieces)
			return th_fail(
				err, -ENOMEM, "no memory for %zu pieces of GPU memory", room);
		memory->pieces = pieces;
		memory->room = room;
	}
	memmove(&memory->pieces[index + 1], &memory->pieces[index],
		(memory->count - index) * sizeof(*memory->pieces));
	memory->pieces[index] = *piece;
	memory->count++;
	return 0;
}

static int
add_at(struct cuda_memory *memory, const struct cuda *cuda, CUdeviceptr address,
	struct cuda_piece *ret_piece, struct th_err *err)
{
	int rc = ask_piece(memory, cuda, address, ret_piece, err);
	return rc == 0 ? cuda_memory_insert(memory, ret_piece, err) : rc;
}

/* The bytes from `at` on that lie in the piece; 0: it does not go on where they do. */
static uint64_t
cuda_memory_part_of(const struct cuda_piece *piece, CUdeviceptr at, CUdeviceptr end)
{
	uint64_t rest = piece->bytes - (at - piece->base);
	if (rest >= end - at)
		return end - at;
	return piece->mapped ? rest : 0;
}

/* One context for all pieces that are new: to enter one is as many calls as to ask for one. */
int
cuda_memory_add(struct cuda_memory *memory, const struct cuda *cuda, CUdeviceptr address,
	uint64_t bytes, struct th_err *err)
{
	CUdeviceptr at = address, end = 0;
	struct cuda_context context;
	bool entered = false, asked = false;
	int rc = 0;
	if (__builtin_add_overflow(address, bytes, &end))
		return th_fail(err, TH_E_INVALID, "0x%llx has no %llu bytes behind it", address,
			(unsigned long long)bytes);
	while (rc == 0 && at < end) {
		const struct cuda_piece *known = cuda_memory_find(memory, at);
		struct cuda_piece piece;
		if (known) {
			piece = *known;
		} else {
			struct th_err none;
			if (!asked)
				entered = cuda_context_enter(
						  cuda, memory->device, at, &context, &none) == 0;
			asked = true;
			rc = add_at(memory, cuda, at, &piece, err);
		}
		uint64_t part = rc == 0 ? cuda_memory_part_of(&piece, at, end) : 0;
		if (rc == 0 && part == 0)
			rc = th_fail(err, TH_E_INVALID,
				"the %llu bytes at 0x%llx end %llu bytes behind their allocation: "
				"the address or the shape is another tensor's",
				(unsigned long long)bytes, address,
				(unsigned long long)(end - piece.base - piece.bytes));
		at += part;
	}
	if (entered)
		cuda_context_leave(&context);
	return rc;
}

/* No attribute tells whose pool it is. It is an imported one that is there and gives no handle; one
 * that was destroyed before its memory takes no access either. */
int
cuda_memory_check_pool(
	const struct cuda *cuda, int device, const struct cuda_piece *piece, struct th_err *err)
{
	const CUmemAccessDesc as_it_is = {
		{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemoryPool pool = NULL;
	int fd = -1;
	if (piece->kind != CUDA_KIND_POOL ||
		cuda->cuPointerGetAttribute(
			&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, piece->base) != CUDA_SUCCESS)
		return 0;
	CUresult result = cuda->cuMemPoolExportToShareableHandle(
		&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (result == CUDA_SUCCESS)
		th_fd_close(&fd);
	if (result == CUDA_ERROR_INVALID_VALUE &&
		cuda->cuMemPoolSetAccess(pool, &as_it_is, 1) == CUDA_SUCCESS)
		return refuse_foreign(piece->base, err);
	return 0;
}

static bool
cuda_memory_is_same(const struct cuda *cuda, const struct cuda_piece *piece, CUresult *ret_result)
{
	unsigned long long id = 0;
	*ret_result = cuda_memory_ask(cuda,
		piece->mapped ? CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID
			      : CU_POINTER_ATTRIBUTE_BUFFER_ID,
		piece->base, &id);
	return *ret_result == CUDA_SUCCESS && id == piece->id;
}

const struct cuda_piece *
cuda_memory_stale(const struct cuda_memory *memory, const struct cuda *cuda, CUresult *ret_result)
{
	const struct cuda_piece *stale = NULL;
	struct cuda_context context;
	struct th_err none;
	if (memory->count == 0)
		return NULL;
	/* As when they were added: the answer must not depend on the thread that asks. */
	bool entered = cuda_context_enter(
			       cuda, memory->device, memory->pieces[0].base, &context, &none) == 0;
	for (size_t i = 0; i < memory->count && !stale; i++)
		if (!cuda_memory_is_same(cuda, &memory->pieces[i], ret_result))
			stale = &memory->pieces[i];
	if (entered)
		cuda_context_leave(&context);
	return stale;
}
