// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Warns of callers that rely on what the specification leaves open. They work
 * here, and may not with another HCA or on a real wire.
 */
#include <linux/ratelimit.h>
#include <linux/sched.h>
#include <rdma/ib_verbs.h>
#include <rdma/restrack.h>

#include "ibtun.h"

/* So many warnings in so long a time, of all HCAs. */
static DEFINE_RATELIMIT_STATE(ibtun_warnings, 60 * HZ, 10);

static const char * const ibtun_manners[] = {
	[IBTUN_NO_TIMEOUT] = "its time-out is 0, never: one lost packet stops it for good",
	[IBTUN_LARGE_MTU] = "its path MTU is larger than its port's: a switch would drop packets",
};

/* In any context. */
static void ibtun_warn(struct rvt_qp *qp, enum ibtun_manner manner)
{
	const struct rdma_restrack_entry *owner = &qp->ibqp.res;
	struct ibtun_qp *own = qp->priv;

	if (own->warned & BIT(manner))
		return;
	own->warned |= BIT(manner);
	if (!__ratelimit(&ibtun_warnings))
		return;
	if (rdma_is_kernel_res(owner))
		ibdev_warn(qp->ibqp.device, "%s, QP %u: %s\n", owner->kern_name ?: "kernel",
			   qp->ibqp.qp_num, ibtun_manners[manner]);
	else
		ibdev_warn(qp->ibqp.device, "%s[%d], QP %u: %s\n",
			   owner->task ? owner->task->comm : "?",
			   owner->task ? task_pid_nr(owner->task) : 0, qp->ibqp.qp_num,
			   ibtun_manners[manner]);
}

/* What a connected queue pair was given. rdmavt's locks for that are held. */
void ibtun_check_attributes(struct rvt_qp *qp, const struct ib_qp_attr *attr, int mask)
{
	struct ibtun_hca_port *port = ibtun_port_of(qp);
	struct ibtun_qp *own = qp->priv;

	if (!own->wire)
		return;
	if ((mask & IB_QP_TIMEOUT) && !attr->timeout)
		ibtun_warn(qp, IBTUN_NO_TIMEOUT);
	if ((mask & IB_QP_PATH_MTU) && attr->path_mtu > READ_ONCE(port->mtu))
		ibtun_warn(qp, IBTUN_LARGE_MTU);
}
