// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Work requests become packets, or reach their queue pair within the HCA.
 */
#include <linux/slab.h>
#include <rdma/ib_verbs.h>

#include "ibtun.h"

/* Requests sent before others get the processor. */
#define IBTUN_SEND_BATCH	64

#define IBTUN_LRH_LENGTH_MASK	0x7ff
#define IBTUN_IP_VERSION	6
#define IBTUN_NEXT_HEADER	0x1b

static int ibtun_setup_connected(struct rvt_qp *qp, struct rvt_swqe *wqe)
{
	struct ibtun_qp *own = qp->priv;

	if (wqe->length > IBTUN_MAX_MESSAGE)
		return -EINVAL;
	if (own->wire && wqe->length >> qp->log_pmtu >= IBTUN_MAX_PACKETS)
		return -EINVAL;
	/* Whatever memory there is for the result, the response is one packet. */
	if (wqe->wr.opcode == IB_WR_ATOMIC_CMP_AND_SWP ||
	    wqe->wr.opcode == IB_WR_ATOMIC_FETCH_AND_ADD)
		wqe->lpsn = wqe->psn;
	return 0;
}

/* Refuses what does not fit a packet: a UD message is one. */
int ibtun_setup_wqe(struct rvt_qp *qp, struct rvt_swqe *wqe, bool *call_send)
{
	struct ibtun_hca *hca = ibtun_from_ib(qp->ibqp.device);
	struct ibtun_hca_port *port;

	switch (qp->ibqp.qp_type) {
	case IB_QPT_SMI:
	case IB_QPT_GSI:
	case IB_QPT_UD:
		port = ibtun_port_numbered(hca, qp->port_num);
		if (!port || wqe->length > ib_mtu_enum_to_int(READ_ONCE(port->mtu)))
			return -EINVAL;
		return 0;
	default:
		return ibtun_setup_connected(qp, wqe);
	}
}

/* Whether the port's link lets a packet of this queue pair out. */
bool ibtun_may_send(const struct ibtun_hca_port *port, bool management)
{
	if (management)
		return READ_ONCE(port->phys_state) == IB_PORT_PHYS_STATE_LINK_UP;
	return READ_ONCE(port->state) == IB_PORT_ACTIVE;
}

static __be32 *ibtun_put_lrh(__be32 *to, const struct ibtun_hca_port *port,
			     const struct rdma_ah_attr *attr, bool management, u32 words)
{
	u32 lid = READ_ONCE(port->lid);
	u32 slid = lid ? lid | rdma_ah_get_path_bits(attr) : IBTUN_PERMISSIVE_LID;
	u32 vl = management ? IBTUN_VL_MANAGEMENT : 0;
	u32 lnh = rdma_ah_get_ah_flags(attr) & IB_AH_GRH ? IBTUN_LNH_GLOBAL : IBTUN_LNH_LOCAL;
	u32 length = (words + IBTUN_ICRC_WORDS) & IBTUN_LRH_LENGTH_MASK;

	*to++ = cpu_to_be32(vl << 28 | rdma_ah_get_sl(attr) << 20 | lnh << 16 |
			    (rdma_ah_get_dlid(attr) & 0xffff));
	*to++ = cpu_to_be32(length << 16 | (slid & 0xffff));
	return to;
}

/* words: those of the packet behind the LRH. */
static __be32 *ibtun_put_grh(__be32 *to, const struct ibtun_hca_port *port,
			     const struct rdma_ah_attr *attr, u32 words)
{
	const struct ib_global_route *route = rdma_ah_read_grh(attr);
	u32 payload = (words - IBTUN_GRH_WORDS + IBTUN_ICRC_WORDS) * sizeof(*to);
	union ib_gid source = {
		.global.subnet_prefix = READ_ONCE(port->rvp.gid_prefix),
		.global.interface_id = READ_ONCE(port->guid[route->sgid_index % IBTUN_MAX_GUIDS]),
	};

	*to++ = cpu_to_be32(IBTUN_IP_VERSION << 28 | route->traffic_class << 20 |
			    (route->flow_label & 0xfffff));
	*to++ = cpu_to_be32(payload << 16 | IBTUN_NEXT_HEADER << 8 | route->hop_limit);
	memcpy(to, &source, sizeof(source));
	to += sizeof(source) / sizeof(*to);
	memcpy(to, &route->dgid, sizeof(route->dgid));
	return to + sizeof(route->dgid) / sizeof(*to);
}

/* LRH, and GRH if the path has one. words: those of the whole packet. */
__be32 *ibtun_put_path(__be32 *to, const struct ibtun_hca_port *port,
		       const struct rdma_ah_attr *attr, bool management, u32 words)
{
	to = ibtun_put_lrh(to, port, attr, management, words);
	if (rdma_ah_get_ah_flags(attr) & IB_AH_GRH)
		to = ibtun_put_grh(to, port, attr, words - IBTUN_LRH_WORDS);
	return to;
}

/* Hands the packet to the process. What is lost here, a wire could lose. */
static void ibtun_hand_over(struct ibtun_hca *hca, struct ibtun_hca_port *port,
			    struct ibtun_packet *packet)
{
	u32 length = packet->record.length - sizeof(packet->record);

	if (!ibtun_packet_queue(hca, packet)) {
		ibtun_drop(port, IBTUN_TX_DROP_QUEUE);
		return;
	}
	ibtun_count(port, IBTUN_TX_PACKETS);
	ibtun_add(port, IBTUN_TX_BYTES, length);
}

/*
 * Sends a packet with so many bytes of payload, as whole as the faults of its
 * queue pair let it be. Both locks of the queue pair are held.
 */
void ibtun_transmit(struct ibtun_hca *hca, struct rvt_qp *qp, struct ibtun_packet *packet,
		    u32 payload)
{
	struct ibtun_hca_port *port = ibtun_port_of(qp);
	struct ibtun_packet *again;

	if (ibtun_is_dropped(qp)) {
		ibtun_packet_free(packet);
		return;
	}
	again = ibtun_damage(qp, packet, payload);
	ibtun_hand_over(hca, port, packet);
	if (again)
		ibtun_hand_over(hca, port, again);
}

static u16 ibtun_pkey_of(struct ibtun_hca *hca, const struct ibtun_hca_port *port,
			 const struct rvt_qp *qp, struct rvt_swqe *wqe)
{
	unsigned int index = qp->s_pkey_index;

	if (qp->ibqp.qp_type == IB_QPT_SMI)
		return IBTUN_DEFAULT_PKEY;
	if (qp->ibqp.qp_type == IB_QPT_GSI)
		index = rvt_get_swqe_pkey_index(wqe);
	return index < rvt_get_npkeys(&hca->rdi) ? READ_ONCE(port->pkey[index]) : 0;
}

static __be32 *ibtun_put_bth(__be32 *to, const struct rvt_qp *qp, struct rvt_swqe *wqe, u16 pkey,
			     u32 pad)
{
	const struct rdma_ah_attr *attr = rvt_get_swqe_ah_attr(wqe);
	bool immediate = wqe->wr.opcode == IB_WR_SEND_WITH_IMM;
	u32 opcode = immediate ? IBTUN_UD_SEND_ONLY_IMM : IBTUN_UD_SEND_ONLY;
	u32 solicited = !!(wqe->wr.send_flags & IB_SEND_SOLICITED);
	u32 lid = rdma_ah_get_dlid(attr);
	u32 qpn = rvt_get_swqe_remote_qpn(wqe);
	u32 qkey = rvt_get_swqe_remote_qkey(wqe);

	if (lid >= IBTUN_MULTICAST_LID && lid != IBTUN_PERMISSIVE_LID)
		qpn = IBTUN_MULTICAST_QPN;
	/* IBA volume 1, 10.2.5: who may not name a Q_Key gets his own. */
	if (qkey & 0x80000000)
		qkey = qp->qkey;
	/* The migration state is "migrated". */
	*to++ = cpu_to_be32(opcode << 24 | solicited << 23 | 1 << 22 | pad << 20 | pkey);
	*to++ = cpu_to_be32(qpn & 0xffffff);
	*to++ = cpu_to_be32(wqe->psn & 0xffffff);
	*to++ = cpu_to_be32(qkey);
	*to++ = cpu_to_be32(qp->ibqp.qp_num);
	if (immediate)
		*to++ = wqe->wr.ex.imm_data;
	return to;
}

/* Copies all that the request points to, and pads it with zeros. */
static void ibtun_put_payload(void *to, struct rvt_qp *qp, struct rvt_swqe *wqe, u32 pad)
{
	struct rvt_sge_state *state = &qp->s_sge;
	u32 left = wqe->length;

	memset(to + left, 0, pad);
	/* A queue pair with a max_send_sge of 0 has no room for an entry. */
	if (!left)
		return;
	state->sge = wqe->sg_list[0];
	state->sg_list = wqe->sg_list + 1;
	state->num_sge = wqe->wr.num_sge;
	state->total_len = wqe->length;
	while (left) {
		u32 length = rvt_get_sge_length(&state->sge, left);

		memcpy(to, state->sge.vaddr, length);
		/* The references go when the request completes. */
		rvt_update_sge(state, length, false);
		to += length;
		left -= length;
	}
}

/* Makes a packet of a UD request. */
static void ibtun_send_packet(struct ibtun_hca *hca, struct rvt_qp *qp, struct rvt_swqe *wqe)
{
	struct ibtun_hca_port *port = ibtun_port_numbered(hca, qp->port_num);
	const struct rdma_ah_attr *attr = rvt_get_swqe_ah_attr(wqe);
	bool management = qp->ibqp.qp_type == IB_QPT_SMI;
	bool global = rdma_ah_get_ah_flags(attr) & IB_AH_GRH;
	u32 pad = -wqe->length & 3;
	u32 words = IBTUN_LRH_WORDS + IBTUN_BTH_WORDS + IBTUN_DETH_WORDS +
		    (wqe->length + pad) / sizeof(__be32);
	struct ibtun_packet *packet;
	u16 pkey = ibtun_pkey_of(hca, port, qp, wqe);
	__be32 *to;

	if (!ibtun_may_send(port, management)) {
		ibtun_drop(port, IBTUN_TX_DROP_STATE);
		return;
	}
	if (global)
		words += IBTUN_GRH_WORDS;
	if (wqe->wr.opcode == IB_WR_SEND_WITH_IMM)
		words += IBTUN_IMM_WORDS;
	packet = ibtun_packet_alloc(port, IBTUN_PACKET, words);
	if (!packet) {
		ibtun_drop(port, IBTUN_TX_DROP_MEMORY);
		return;
	}
	to = ibtun_put_path(packet->body, port, attr, management, words);
	to = ibtun_put_bth(to, qp, wqe, pkey, pad);
	ibtun_put_payload(to, qp, wqe, pad);
	ibtun_transmit(hca, qp, packet, wqe->length);
}

static bool ibtun_has_requests(struct rvt_qp *qp)
{
	/* Pairs with the barrier before rdmavt moves the head. */
	return qp->s_last != smp_load_acquire(&qp->s_head);
}

/* Whether requests are left for a next time. */
static bool ibtun_send_datagrams(struct ibtun_hca *hca, struct rvt_qp *qp)
{
	unsigned int budget = IBTUN_SEND_BATCH;
	unsigned long flags;
	bool more = false;

	/*
	 * rdmavt wants both to complete a request. Held all the time: a batch
	 * is short, and nobody else sends for this queue pair meanwhile.
	 */
	spin_lock_irqsave(&qp->r_lock, flags);
	spin_lock(&qp->s_lock);
	while (ibtun_can(qp, RVT_PROCESS_OR_FLUSH_SEND)) {
		enum ib_wc_status status = IB_WC_WR_FLUSH_ERR;
		struct rvt_swqe *wqe;

		if (!ibtun_has_requests(qp))
			break;
		if (!budget--) {
			more = true;
			break;
		}
		wqe = rvt_get_swqe_ptr(qp, qp->s_last);
		if (ibtun_can(qp, RVT_PROCESS_NEXT_SEND_OK)) {
			ibtun_send_packet(hca, qp, wqe);
			status = IB_WC_SUCCESS;
		} else if (!ibtun_can(qp, RVT_FLUSH_SEND)) {
			break;
		}
		rvt_send_complete(qp, wqe, status);
	}
	spin_unlock(&qp->s_lock);
	spin_unlock_irqrestore(&qp->r_lock, flags);
	return more;
}

/*
 * The port that the path of a connected queue pair leads to, if that and the
 * queue pair of the number are of this HCA: another may have one of the same
 * number. Otherwise NULL.
 */
struct ibtun_hca_port *ibtun_port_here(struct ibtun_hca *hca, struct rvt_qp *qp)
{
	const struct rdma_ah_attr *attr = &qp->remote_ah_attr;
	struct ibtun_hca_port *from = ibtun_port_numbered(hca, qp->port_num);
	struct ibtun_hca_port *to = NULL;
	struct rvt_qp *remote;
	unsigned int index;

	rcu_read_lock();
	remote = rvt_lookup_qpn(&hca->rdi, &from->rvp, qp->remote_qpn);
	if (remote)
		to = ibtun_port_numbered(hca, remote->port_num);
	rcu_read_unlock();
	if (!to)
		return NULL;
	if (!(rdma_ah_get_ah_flags(attr) & IB_AH_GRH))
		return ibtun_has_lid(to, rdma_ah_get_dlid(attr)) ? to : NULL;
	if (rdma_ah_read_grh(attr)->dgid.global.subnet_prefix != READ_ONCE(to->rvp.gid_prefix))
		return NULL;
	for (index = 0; index < hca->guids; index++) {
		__be64 guid = READ_ONCE(to->guid[index]);

		if (guid && rdma_ah_read_grh(attr)->dgid.global.interface_id == guid)
			return to;
	}
	return NULL;
}

/* Whether rdmavt can carry what the queue pair sends. */
static bool ibtun_is_reachable(struct ibtun_hca *hca, struct rvt_qp *qp)
{
	struct ibtun_hca_port *from = ibtun_port_numbered(hca, qp->port_num);
	struct ibtun_hca_port *to = ibtun_port_here(hca, qp);

	return to && READ_ONCE(from->state) == IB_PORT_ACTIVE &&
	       READ_ONCE(to->state) == IB_PORT_ACTIVE;
}

/* What a wire would do to a request that nobody acknowledges, without the wait. */
static void ibtun_fail_unreachable(struct ibtun_hca *hca, struct rvt_qp *qp)
{
	struct ibtun_hca_port *port = ibtun_port_numbered(hca, qp->port_num);
	bool reliable = qp->ibqp.qp_type == IB_QPT_RC;
	unsigned long flags;
	int last = 0;

	spin_lock_irqsave(&qp->r_lock, flags);
	spin_lock(&qp->s_lock);
	while (ibtun_can(qp, RVT_PROCESS_NEXT_SEND_OK) && !(qp->s_flags & RVT_S_ANY_WAIT) &&
	       ibtun_has_requests(qp)) {
		ibtun_count(port, IBTUN_RC_UNREACHABLE);
		rvt_send_complete(qp, rvt_get_swqe_ptr(qp, qp->s_last),
				  reliable ? IB_WC_RETRY_EXC_ERR : IB_WC_SUCCESS);
		if (reliable)
			last = rvt_error_qp(qp, IB_WC_WR_FLUSH_ERR);
	}
	spin_unlock(&qp->s_lock);
	spin_unlock_irqrestore(&qp->r_lock, flags);
	if (last)
		ibtun_tell_qp(qp, IB_EVENT_QP_LAST_WQE_REACHED);
}

void ibtun_send_work(struct work_struct *work)
{
	struct ibtun_qp *own = container_of(work, struct ibtun_qp, send);
	struct rvt_qp *qp = own->qp;
	struct ibtun_hca *hca = ibtun_from_ib(qp->ibqp.device);

	if (!ibtun_is_connected(qp)) {
		if (ibtun_send_datagrams(hca, qp))
			queue_work(hca->senders, work);
		return;
	}
	if (own->wire) {
		ibtun_send_connected(hca, qp);
		return;
	}
	/* rdmavt's loopback flushes as well as it sends. */
	if (ibtun_can(qp, RVT_PROCESS_NEXT_SEND_OK) && !ibtun_is_reachable(hca, qp))
		ibtun_fail_unreachable(hca, qp);
	else
		rvt_ruc_loopback(qp);
}

/*
 * rdmavt calls this for a single request to an idle queue pair, in any
 * context. A datagram leaves at once. So do the first packets of a program's
 * message to the wire: a program holds no lock of a consumer's, which the
 * events of a connection that ends could want.
 */
void ibtun_do_send(struct rvt_qp *qp)
{
	struct ibtun_hca *hca = ibtun_from_ib(qp->ibqp.device);
	struct ibtun_qp *own = qp->priv;

	if (ibtun_is_connected(qp) && own->wire && rvt_is_user_qp(qp))
		ibtun_send_connected(hca, qp);
	else if (ibtun_is_connected(qp) || ibtun_send_datagrams(hca, qp))
		queue_work(hca->senders, &own->send);
}
