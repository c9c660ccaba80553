/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs_libraries - libibverbs.so.1 as it may be and should not: compiled once for each LIBRARY.
 * Which call is of which version is in verbs_libraries.map.
 *
 *   1  whole: there is no device, and no other call does anything
 *   2  of rdma-core 33: no memory of others (dma-buf) can be registered
 *   3  a call is there in its form of IBVERBS_1.0 alone
 */
#include <errno.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))
#define NOTHING(name)                                                                              \
	EXPORT int name(void);                                                                     \
	EXPORT int name(void)                                                                      \
	{                                                                                          \
		return -1;                                                                         \
	}

EXPORT void *ibv_get_device_list(int *num_devices);

EXPORT void *
ibv_get_device_list(int *num_devices)
{
	*num_devices = 0;
	errno = ENOSYS;
	return NULL;
}

NOTHING(_ibv_query_gid_table)
NOTHING(ibv_ack_async_event)
NOTHING(ibv_ack_cq_events)
NOTHING(ibv_close_device)
NOTHING(ibv_create_comp_channel)
NOTHING(ibv_create_cq)
NOTHING(ibv_create_qp)
NOTHING(ibv_dealloc_pd)
NOTHING(ibv_dereg_mr)
NOTHING(ibv_destroy_comp_channel)
NOTHING(ibv_destroy_cq)
NOTHING(ibv_destroy_qp)
NOTHING(ibv_free_device_list)
NOTHING(ibv_get_async_event)
NOTHING(ibv_get_cq_event)
NOTHING(ibv_get_device_name)
NOTHING(ibv_modify_qp)
NOTHING(ibv_open_device)
NOTHING(ibv_query_device)
NOTHING(ibv_reg_mr_iova2)
#if LIBRARY != 2
NOTHING(ibv_reg_dmabuf_mr)
#endif
#if LIBRARY != 3
NOTHING(ibv_alloc_pd)
#else
NOTHING(alloc_pd_former)
__asm__(".symver alloc_pd_former, ibv_alloc_pd@IBVERBS_1.0");
#endif
