// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Breaks things on purpose, for the process that owns the HCA: IBTUN_FAULT.
 */
#include <linux/jiffies.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdmavt_cq.h>

#include "ibtun.h"
#include "trace.h"

#define IBTUN_FIRST_QPN		2

void ibtun_faults_end(struct ibtun_qp *own)
{
	own->drops = 0;
	own->duplicates = 0;
	own->corruptions = 0;
	own->ack_delay = 0;
	own->ack_held = false;
}

/* Whether the fault hits once more. */
static bool ibtun_hits(struct rvt_qp *qp, u32 *left, enum ibtun_counter counter)
{
	if (likely(!*left))
		return false;
	--*left;
	ibtun_count(ibtun_port_of(qp), counter);
	return true;
}

/* Whether the packet that would be sent now is lost. */
bool ibtun_is_dropped(struct rvt_qp *qp)
{
	struct ibtun_qp *own = qp->priv;

	return ibtun_hits(qp, &own->drops, IBTUN_FAULT_DROPS);
}

/* Damages a packet with so many bytes of payload. Returns what is sent besides. */
struct ibtun_packet *ibtun_damage(struct rvt_qp *qp, struct ibtun_packet *packet, u32 payload)
{
	u32 behind = packet->record.length - sizeof(packet->record) - (-payload & 3);
	struct ibtun_packet *again = NULL;
	struct ibtun_qp *own = qp->priv;

	if (payload && ibtun_hits(qp, &own->corruptions, IBTUN_FAULT_CORRUPTIONS))
		((u8 *)packet->body)[behind - 1] ^= 0xff;
	if (likely(!own->duplicates))
		return NULL;
	again = ibtun_packet_alloc(ibtun_port_of(qp), packet->record.type, 0);
	if (!again) {
		ibtun_drop(ibtun_port_of(qp), IBTUN_TX_DROP_MEMORY);
		return NULL;
	}
	again->record = packet->record;
	memcpy(again->body, packet->body, packet->record.length - sizeof(packet->record));
	ibtun_hits(qp, &own->duplicates, IBTUN_FAULT_DUPLICATES);
	return again;
}

/*
 * Whether the acknowledge that is due has to wait. Then ibtun_ack_work sends
 * it, or what has replaced it by then.
 */
bool ibtun_hold_ack(struct ibtun_hca *hca, struct rvt_qp *qp)
{
	struct ibtun_qp *own = qp->priv;
	unsigned long delay;

	if (likely(!own->ack_delay) || (own->ack_held && time_after_eq(jiffies, own->ack_due))) {
		own->ack_held = false;
		return false;
	}
	if (!own->ack_held) {
		/* The current tick is over in part. */
		delay = usecs_to_jiffies(own->ack_delay) + 1;
		own->ack_held = true;
		own->ack_due = jiffies + delay;
		ibtun_count(ibtun_port_of(qp), IBTUN_FAULT_DELAYS);
		mod_delayed_work(hca->senders, &own->ack, delay);
	}
	return true;
}

void ibtun_ack_work(struct work_struct *work)
{
	struct ibtun_qp *own = container_of(to_delayed_work(work), struct ibtun_qp, ack);

	if (own->wire)
		ibtun_send_connected(ibtun_from_ib(own->qp->ibqp.device), own->qp);
}

static int ibtun_break_qp(struct rvt_qp *qp)
{
	struct ibtun_qp *own = qp->priv;
	unsigned long flags;
	int err = -EALREADY;

	ibtun_lock(qp, &flags);
	if (qp->state != IB_QPS_ERR && qp->state != IB_QPS_RESET) {
		own->events |= BIT(IB_EVENT_QP_FATAL);
		ibtun_fail_connection(qp, IB_WC_WR_FLUSH_ERR);
		err = 0;
	}
	ibtun_unlock(qp, flags);
	return err;
}

static int ibtun_break_cq(struct ib_cq *ibcq)
{
	struct rvt_cq *cq = ibcq_to_rvtcq(ibcq);
	struct ib_event event = {
		.device = ibcq->device,
		.event = IB_EVENT_CQ_ERR,
		.element.cq = ibcq,
	};
	unsigned long flags;
	bool was_broken;

	/* To rdmavt it has overflowed. */
	spin_lock_irqsave(&cq->lock, flags);
	was_broken = cq->cq_full;
	cq->cq_full = true;
	spin_unlock_irqrestore(&cq->lock, flags);
	if (was_broken)
		return -EALREADY;
	trace_ibtun_event(ibtun_from_ib(ibcq->device)->unit, event.event, "cq", 0);
	if (ibcq->event_handler)
		ibcq->event_handler(&event, ibcq->cq_context);
	return 0;
}

static void ibtun_break_user_of_srq(struct rvt_qp *qp, u64 srq)
{
	if ((uintptr_t)qp->ibqp.srq == srq)
		ibtun_break_qp(qp);
}

static int ibtun_break_srq(struct ibtun_hca *hca, struct ib_srq *srq)
{
	struct ib_event event = {
		.device = &hca->rdi.ibdev,
		.event = IB_EVENT_SRQ_ERR,
		.element.srq = srq,
	};

	if (!srq)
		return -ENOENT;
	trace_ibtun_event(hca->unit, event.event, "srq", 0);
	if (srq->event_handler)
		srq->event_handler(&event, srq->srq_context);
	rvt_qp_iter(&hca->rdi, (uintptr_t)srq, ibtun_break_user_of_srq);
	return 0;
}

/* Faults of packets that the queue pair will send. */
static int ibtun_break_packets(struct ibtun_hca *hca, struct rvt_qp *qp,
			       const struct ibtun_fault *fault)
{
	struct ibtun_qp *own = qp->priv;
	unsigned long flags;
	int err = 0;

	ibtun_lock(qp, &flags);
	if (ibtun_is_connected(qp) && !own->wire) {
		err = -EOPNOTSUPP;
	} else if (fault->kind == IBTUN_FAULT_DROP) {
		own->drops = fault->count;
	} else if (fault->kind == IBTUN_FAULT_DUPLICATE) {
		own->duplicates = fault->count;
	} else if (fault->kind == IBTUN_FAULT_CORRUPT) {
		own->corruptions = fault->count;
	} else if (qp->ibqp.qp_type != IB_QPT_RC) {
		err = -EOPNOTSUPP;
	} else {
		own->ack_delay = fault->delay;
		/* One that waits is not to wait for the old time. */
		if (own->ack_held)
			mod_delayed_work(hca->senders, &own->ack, 0);
		own->ack_held = false;
	}
	ibtun_unlock(qp, flags);
	return err;
}

static bool ibtun_is_fault(const struct ibtun_fault *fault)
{
	u32 count = 0, delay = 0;

	switch (fault->kind) {
	case IBTUN_FAULT_QP:
	case IBTUN_FAULT_SEND_CQ:
	case IBTUN_FAULT_RECV_CQ:
	case IBTUN_FAULT_SRQ:
		break;
	case IBTUN_FAULT_DROP:
	case IBTUN_FAULT_DUPLICATE:
	case IBTUN_FAULT_CORRUPT:
		count = IBTUN_MAX_FAULTS;
		break;
	case IBTUN_FAULT_DELAY_ACKS:
		delay = IBTUN_MAX_DELAY;
		break;
	default:
		return false;
	}
	return fault->qpn >= IBTUN_FIRST_QPN && fault->qpn < IBTUN_MULTICAST_QPN &&
	       fault->count <= count && fault->delay <= delay &&
	       !memchr_inv(fault->reserved, 0, sizeof(fault->reserved));
}

static int ibtun_break(struct ibtun_hca *hca, struct rvt_qp *qp, const struct ibtun_fault *fault)
{
	switch (fault->kind) {
	case IBTUN_FAULT_QP:
		return ibtun_break_qp(qp);
	case IBTUN_FAULT_SEND_CQ:
		return ibtun_break_cq(qp->ibqp.send_cq);
	case IBTUN_FAULT_RECV_CQ:
		return ibtun_break_cq(qp->ibqp.recv_cq);
	case IBTUN_FAULT_SRQ:
		return ibtun_break_srq(hca, qp->ibqp.srq);
	default:
		return ibtun_break_packets(hca, qp, fault);
	}
}

int ibtun_fault(struct ibtun_hca *hca, const struct ibtun_fault *fault)
{
	struct rvt_qp *qp;
	int err;

	if (!ibtun_is_fault(fault))
		return -EINVAL;
	rcu_read_lock();
	qp = rvt_lookup_qpn(&hca->rdi, &hca->port[0].rvp, fault->qpn);
	/* Who destroys it waits for us; and its queues cannot go before it. */
	if (qp)
		rvt_get_qp(qp);
	rcu_read_unlock();
	if (!qp)
		return -ENOENT;
	err = ibtun_break(hca, qp, fault);
	rvt_put_qp(qp);
	return err;
}
