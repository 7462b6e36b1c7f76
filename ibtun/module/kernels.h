/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What differs between the kernels that the module is built for: from 5.10 on.
 */
#ifndef IBTUN_KERNELS_H
#define IBTUN_KERNELS_H

#include <linux/version.h>

/* How the kernel numbers ports. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 13, 0)
#define ibtun_number		u8
#else
#define ibtun_number		u32
#endif

/* How objects are made: by whom, by which function, and with what. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 11, 0)
#define IBTUN_HAS_USER_AH	1
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 15, 0)
#define IBTUN_CORE_ALLOCATES_QP	1
#endif
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 11, 0)
#define ibtun_cq_context	ib_udata
#else
#define ibtun_cq_context	uverbs_attr_bundle
#endif
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 17, 0)
#define IBTUN_HAS_DMAH		1
#endif

/* The operations that give a port its counters and its files. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 14, 0)
#define IBTUN_ALLOC_STATS	alloc_hw_stats
#define IBTUN_HAS_INIT_PORT	1
#else
#define IBTUN_ALLOC_STATS	alloc_hw_port_stats
#endif

/* How a counter is described. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 16, 0)
#define ibtun_counter_name	const char *const
#define IBTUN_COUNTER_NAME(text) text
#define IBTUN_COUNTER_TEXT(counter) (counter)
#else
#define ibtun_counter_name	const struct rdma_stat_desc
#define IBTUN_COUNTER_NAME(text) { .name = text }
#define IBTUN_COUNTER_TEXT(counter) ((counter).name)
#endif

/* That work runs where it was queued. It was the default before it had a name. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 17, 0)
#define IBTUN_WQ_PERCPU		0
#else
#define IBTUN_WQ_PERCPU		WQ_PERCPU
#endif

#endif
