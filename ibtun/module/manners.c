// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Warns of callers that rely on what the specification leaves open. They work
 * here, and may not with another HCA or on a real wire.
 */
#include <linux/moduleparam.h>
#include <linux/ratelimit.h>
#include <linux/sched.h>
#include <rdma/ib_verbs.h>
#include <rdma/restrack.h>

#include "ibtun.h"

static bool ibtun_manner_err;
module_param_named(manner_err, ibtun_manner_err, bool, 0644);
MODULE_PARM_DESC(manner_err, "Refuse to modify a queue pair as the module warns of; a large MTU passes");

/* So many warnings in so long a time, of all HCAs. */
static DEFINE_RATELIMIT_STATE(ibtun_warnings, 60 * HZ, 10);

static const char * const ibtun_manners[] = {
	[IBTUN_NO_TIMEOUT] = "its time-out is 0, never: one lost packet stops it for good",
	[IBTUN_LARGE_MTU] = "its path MTU is larger than its port's: a switch would drop packets",
	[IBTUN_LOST_WORK] = "it is reset before its work is complete: there will be no completions",
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

/* What a queue pair is to become, with rdmavt's locks for that held. */
int ibtun_check_modify(struct rvt_qp *qp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	struct ibtun_qp *own = qp->priv;
	unsigned long found = 0;
	unsigned int manner;

	if (mask & IB_QP_STATE && attr->qp_state == IB_QPS_RESET &&
	    qp->s_last != READ_ONCE(qp->s_head))
		found |= BIT(IBTUN_LOST_WORK);
	if (mask & IB_QP_TIMEOUT && !attr->timeout && own->wire)
		found |= BIT(IBTUN_NO_TIMEOUT);
	for_each_set_bit(manner, &found, IBTUN_MANNERS)
		ibtun_warn(qp, manner);
	return found && READ_ONCE(ibtun_manner_err) ? -EINVAL : 0;
}

/* What a connected queue pair was given. rdmavt's locks for that are held. */
void ibtun_check_path(struct rvt_qp *qp, const struct ib_qp_attr *attr, int mask)
{
	struct ibtun_hca_port *port = ibtun_port_of(qp);
	struct ibtun_qp *own = qp->priv;

	if (own->wire && mask & IB_QP_PATH_MTU && attr->path_mtu > READ_ONCE(port->mtu))
		ibtun_warn(qp, IBTUN_LARGE_MTU);
}
