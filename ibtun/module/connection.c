// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What both ends of a connection over the wire share: its packets, its locks,
 * and when it begins and ends.
 *
 * A connection is decided once, when its queue pair becomes ready to receive:
 * rdmavt carries it if the peer is of the same HCA, the wire does otherwise.
 * All of requester and responder runs with both locks of the queue pair held,
 * r_lock outside s_lock, for a few packets at a time. What the consumer has to
 * be told of an event waits in own->events until they are free.
 */
#include <linux/moduleparam.h>
#include <rdma/ib_pack.h>
#include <rdma/ib_verbs.h>

#include "ibtun.h"
#include "trace.h"

static bool ibtun_loopback = true;
module_param_named(loopback, ibtun_loopback, bool, 0644);
MODULE_PARM_DESC(loopback, "Carry connections within an HCA in the kernel, not over the wire");

/* With r_lock, s_hlock and s_lock held. */
void ibtun_modify_qp(struct rvt_qp *qp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	struct ibtun_hca *hca = ibtun_from_ib(qp->ibqp.device);
	struct ibtun_qp *own = qp->priv;

	if (!ibtun_is_connected(qp))
		return;
	if (mask & IB_QP_SQ_PSN)
		own->sent = qp->s_psn;
	if ((mask & IB_QP_STATE) && attr->qp_state == IB_QPS_RTR)
		own->wire = !READ_ONCE(ibtun_loopback) ||
			    ibtun_behaves(hca, IBTUN_BEHAVIOUR_SRQ_ORDER) ||
			    !ibtun_port_here(hca, qp);
	ibtun_check_path(qp, attr, mask);
}

/* The queue pair will be used again. rdmavt has let go of all memory. */
void ibtun_notify_reset(struct rvt_qp *qp)
{
	struct ibtun_qp *own = qp->priv;
	unsigned int index;

	ibtun_faults_end(own);
	own->wire = false;
	own->warned = 0;
	own->events = 0;
	own->sent = 0;
	own->recovering = false;
	own->sending.of = NULL;
	own->reading.of = NULL;
	own->receiving = IBTUN_NO_MESSAGE;
	own->nak_sent = false;
	own->failing = false;
	own->answer = false;
	own->responding.of = NULL;
	for (index = 0; qp->s_ack_queue && index < rvt_max_atomic(ib_to_rvt(qp->ibqp.device));
	     index++)
		qp->s_ack_queue[index].opcode = 0;
}

/* Before rdmavt lets go of the memory that the queue pair holds. */
void ibtun_notify_error(struct rvt_qp *qp)
{
	struct ibtun_hca *hca = ibtun_from_ib(qp->ibqp.device);

	ibtun_queue_forget(hca, qp->priv);
	ibtun_abandon(qp);
}

/* rdmavt's timer: nothing has been heard for too long. */
void ibtun_notify_restart(struct rvt_qp *qp, u32 psn, int wait)
{
	struct ibtun_qp *own = qp->priv;

	if (own->wire)
		ibtun_time_out(qp);
}

/* With no lock held that the consumer could want. */
void ibtun_tell_qp(struct rvt_qp *qp, enum ib_event_type kind)
{
	struct ib_event event = {
		.device = qp->ibqp.device,
		.event = kind,
		.element.qp = &qp->ibqp,
	};

	trace_ibtun_event(ibtun_from_ib(event.device)->unit, kind, "qp", qp->ibqp.qp_num);
	if (qp->ibqp.event_handler)
		qp->ibqp.event_handler(&event, qp->ibqp.qp_context);
}

void ibtun_fail_connection(struct rvt_qp *qp, enum ib_wc_status status)
{
	struct ibtun_qp *own = qp->priv;

	if (rvt_error_qp(qp, status))
		own->events |= BIT(IB_EVENT_QP_LAST_WQE_REACHED);
}

void ibtun_lock(struct rvt_qp *qp, unsigned long *flags)
	__acquires(&qp->r_lock) __acquires(&qp->s_lock)
{
	spin_lock_irqsave(&qp->r_lock, *flags);
	spin_lock(&qp->s_lock);
}

void ibtun_unlock(struct rvt_qp *qp, unsigned long flags)
	__releases(&qp->s_lock) __releases(&qp->r_lock)
{
	struct ibtun_qp *own = qp->priv;
	unsigned long events = own->events;
	unsigned int kind;

	own->events = 0;
	spin_unlock(&qp->s_lock);
	spin_unlock_irqrestore(&qp->r_lock, flags);
	for_each_set_bit(kind, &events, BITS_PER_LONG)
		ibtun_tell_qp(qp, kind);
}

/* Copies length bytes, going through the memory. The requests keep the references. */
static void ibtun_gather(void *to, struct rvt_sge_state *from, u32 length)
{
	while (length) {
		u32 part = rvt_get_sge_length(&from->sge, length);

		memcpy(to, from->sge.vaddr, part);
		rvt_update_sge(from, part, false);
		to += part;
		length -= part;
	}
}

/* Makes a packet of the frame and its payload. What is lost here, a wire could lose. */
void ibtun_send_frame(struct ibtun_hca *hca, struct rvt_qp *qp, const struct ibtun_frame *frame,
		      struct rvt_sge_state *from)
{
	const struct rdma_ah_attr *attr = &qp->remote_ah_attr;
	struct ibtun_hca_port *port = ibtun_port_of(qp);
	bool global = rdma_ah_get_ah_flags(attr) & IB_AH_GRH;
	u32 pad = -frame->length & 3;
	u32 words = IBTUN_LRH_WORDS + (global ? IBTUN_GRH_WORDS : 0) + IBTUN_BTH_WORDS +
		    frame->words + (frame->length + pad) / sizeof(__be32);
	struct ibtun_packet *packet = NULL;
	unsigned int index = qp->s_pkey_index;
	u16 pkey = 0;
	__be32 *to;

	if (index < rvt_get_npkeys(&hca->rdi))
		pkey = READ_ONCE(port->pkey[index]);
	if (!ibtun_may_send(port, false)) {
		ibtun_drop(port, IBTUN_TX_DROP_STATE);
	} else {
		packet = ibtun_packet_alloc(port, IBTUN_PACKET, words);
		if (!packet)
			ibtun_drop(port, IBTUN_TX_DROP_MEMORY);
	}
	if (!packet) {
		if (frame->length)
			rvt_skip_sge(from, frame->length, false);
		return;
	}
	to = ibtun_put_path(packet->body, port, attr, false, words);
	*to++ = cpu_to_be32(frame->opcode << 24 | frame->solicited << 23 | 1 << 22 | pad << 20 |
			    pkey);
	*to++ = cpu_to_be32(qp->remote_qpn);
	*to++ = cpu_to_be32((u32)frame->ack_request << 31 | (frame->psn & IBTUN_PSN_MASK));
	memcpy(to, frame->extension, frame->words * sizeof(*to));
	to += frame->words;
	if (frame->length) {
		memset((void *)to + frame->length, 0, pad);
		ibtun_gather(to, from, frame->length);
	}
	ibtun_transmit(hca, qp, packet, frame->length);
}

void ibtun_send_connected(struct ibtun_hca *hca, struct rvt_qp *qp)
{
	unsigned int budget = IBTUN_CONNECTION_BATCH;
	struct ibtun_qp *own = qp->priv;
	unsigned long flags;
	bool more;

	ibtun_lock(qp, &flags);
	more = ibtun_send_answers(hca, qp, &budget);
	more |= ibtun_send_requests(hca, qp, &budget);
	ibtun_unlock(qp, flags);
	if (more)
		queue_work(hca->senders, &own->send);
}

/* IBA volume 1, 9.6.1: whether the packet came by the path of the connection. */
static bool ibtun_is_from_peer(struct ibtun_hca *hca, const struct ibtun_hca_port *port,
			       const struct rvt_qp *qp, const struct ibtun_parsed *parsed)
{
	const struct rdma_ah_attr *attr = &qp->remote_ah_attr;
	const struct ib_global_route *route;
	__be64 guid;

	if (!(rdma_ah_get_ah_flags(attr) & IB_AH_GRH))
		return !parsed->grh && parsed->slid == rdma_ah_get_dlid(attr);
	/* Across routers the SLID is the last one's. */
	if (!parsed->grh)
		return false;
	route = rdma_ah_read_grh(attr);
	guid = READ_ONCE(port->guid[route->sgid_index % IBTUN_MAX_GUIDS]);
	return !memcmp(parsed->grh + 2, &route->dgid, sizeof(route->dgid)) &&
	       !memcmp(parsed->grh + 8, &guid, sizeof(guid));
}

static void ibtun_deliver_locked(struct ibtun_hca *hca, struct ibtun_hca_port *port,
				 struct rvt_qp *qp, const struct ibtun_parsed *parsed)
{
	u8 operation = IBTUN_OPERATION(parsed->opcode);
	unsigned int index = qp->s_pkey_index;
	bool reliable = qp->ibqp.qp_type == IB_QPT_RC;
	struct ibtun_qp *own = qp->priv;

	if (!ibtun_is_connected(qp) || !own->wire || !ibtun_can(qp, RVT_PROCESS_RECV_OK) ||
	    qp->port_num != port->number ||
	    reliable != (IBTUN_SERVICE(parsed->opcode) == IB_OPCODE_RC)) {
		ibtun_drop(port, IBTUN_RX_DROP_QP);
		return;
	}
	if (!ibtun_is_from_peer(hca, port, qp, parsed)) {
		ibtun_drop(port, IBTUN_RX_DROP_PATH);
		return;
	}
	if (index >= rvt_get_npkeys(&hca->rdi) ||
	    !ibtun_pkeys_match(READ_ONCE(port->pkey[index]), parsed->pkey)) {
		ibtun_drop(port, IBTUN_RX_DROP_PKEY);
		return;
	}
	if (qp->state == IB_QPS_RTR && !(qp->r_flags & RVT_R_COMM_EST)) {
		qp->r_flags |= RVT_R_COMM_EST;
		own->events |= BIT(IB_EVENT_COMM_EST);
	}
	if (operation >= IB_OPCODE_RDMA_READ_RESPONSE_FIRST &&
	    operation <= IB_OPCODE_ATOMIC_ACKNOWLEDGE)
		ibtun_receive_response(qp, parsed);
	else if (reliable)
		ibtun_receive_rc(qp, parsed);
	else
		ibtun_receive_uc(qp, parsed);
}

/* The caller holds what keeps the queue pair. */
void ibtun_deliver_connected(struct ibtun_hca *hca, struct ibtun_hca_port *port,
			     struct rvt_qp *qp, const struct ibtun_parsed *parsed)
{
	unsigned int budget = IBTUN_CONNECTION_BATCH;
	struct ibtun_qp *own = qp->priv;
	unsigned long flags;

	ibtun_lock(qp, &flags);
	ibtun_deliver_locked(hca, port, qp, parsed);
	if (own->wire && ibtun_send_answers(hca, qp, &budget))
		queue_work(hca->senders, &own->send);
	ibtun_unlock(qp, flags);
}
