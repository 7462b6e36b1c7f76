// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Packets become completed receives.
 *
 * A packet is parsed once, against its own length, into what the rest relies
 * on. IBA volume 1: 7.7 (LRH), 8.3 (GRH), 9.2 (BTH), 9.3.2 (DETH), 9.6 (what a
 * receiver has to check).
 */
#include <linux/slab.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_pack.h>
#include <rdma/ib_verbs.h>

#include "ibtun.h"

#define IBTUN_GRH_BYTES		(IBTUN_GRH_WORDS * sizeof(__be32))

/*
 * The words between BTH and payload of each operation of RC, of which UC has
 * the first ones; -1 if there is no such operation.
 */
static const s8 ibtun_extensions[] = {
	[IB_OPCODE_SEND_FIRST] = 0,
	[IB_OPCODE_SEND_MIDDLE] = 0,
	[IB_OPCODE_SEND_LAST] = 0,
	[IB_OPCODE_SEND_LAST_WITH_IMMEDIATE] = 1,
	[IB_OPCODE_SEND_ONLY] = 0,
	[IB_OPCODE_SEND_ONLY_WITH_IMMEDIATE] = 1,
	[IB_OPCODE_RDMA_WRITE_FIRST] = 4,
	[IB_OPCODE_RDMA_WRITE_MIDDLE] = 0,
	[IB_OPCODE_RDMA_WRITE_LAST] = 0,
	[IB_OPCODE_RDMA_WRITE_LAST_WITH_IMMEDIATE] = 1,
	[IB_OPCODE_RDMA_WRITE_ONLY] = 4,
	[IB_OPCODE_RDMA_WRITE_ONLY_WITH_IMMEDIATE] = 5,
	[IB_OPCODE_RDMA_READ_REQUEST] = 4,
	[IB_OPCODE_RDMA_READ_RESPONSE_FIRST] = 1,
	[IB_OPCODE_RDMA_READ_RESPONSE_MIDDLE] = 0,
	[IB_OPCODE_RDMA_READ_RESPONSE_LAST] = 1,
	[IB_OPCODE_RDMA_READ_RESPONSE_ONLY] = 1,
	[IB_OPCODE_ACKNOWLEDGE] = 1,
	[IB_OPCODE_ATOMIC_ACKNOWLEDGE] = 3,
	[IB_OPCODE_COMPARE_SWAP] = 7,
	[IB_OPCODE_FETCH_ADD] = 7,
	[0x15] = -1,
	[IB_OPCODE_SEND_LAST_WITH_INVALIDATE] = 1,
	[IB_OPCODE_SEND_ONLY_WITH_INVALIDATE] = 1,
};

/* The words between BTH and payload; -1 for an operation that we do not know. */
static int ibtun_extension_words(u8 opcode)
{
	unsigned int operation = IBTUN_OPERATION(opcode);

	switch (IBTUN_SERVICE(opcode)) {
	case IB_OPCODE_UD:
		if (opcode == IBTUN_UD_SEND_ONLY)
			return IBTUN_DETH_WORDS;
		return opcode == IBTUN_UD_SEND_ONLY_IMM ? IBTUN_DETH_WORDS + IBTUN_IMM_WORDS : -1;
	case IB_OPCODE_UC:
		if (operation > IB_OPCODE_RDMA_WRITE_ONLY_WITH_IMMEDIATE)
			return -1;
		fallthrough;
	case IB_OPCODE_RC:
		return operation < ARRAY_SIZE(ibtun_extensions) ? ibtun_extensions[operation] : -1;
	default:
		return -1;
	}
}

static bool ibtun_is_multicast(const struct ibtun_parsed *parsed)
{
	return parsed->dlid >= IBTUN_MULTICAST_LID && parsed->dlid != IBTUN_PERMISSIVE_LID;
}

/* length: bytes there are. Whether it is a packet of just that length. */
static bool ibtun_parse(const __be32 *words, u32 length, struct ibtun_parsed *parsed)
{
	u32 left = length / sizeof(*words);
	u32 first, second, lnh, pad;
	int extension;

	if (length % sizeof(*words) || left < IBTUN_LRH_WORDS)
		return false;
	first = be32_to_cpu(words[0]);
	second = be32_to_cpu(words[1]);
	lnh = (first >> 16) & 3;
	parsed->management = first >> 28 == IBTUN_VL_MANAGEMENT;
	parsed->sl = (first >> 20) & 15;
	parsed->dlid = first & 0xffff;
	parsed->slid = second & 0xffff;
	if (((first >> 24) & 15) || ((second >> 16) & 0x7ff) != left + IBTUN_ICRC_WORDS)
		return false;
	words += IBTUN_LRH_WORDS;
	left -= IBTUN_LRH_WORDS;

	parsed->grh = NULL;
	if (lnh == IBTUN_LNH_GLOBAL) {
		u32 payload;

		if (left < IBTUN_GRH_WORDS)
			return false;
		parsed->grh = words;
		payload = be32_to_cpu(words[1]) >> 16;
		words += IBTUN_GRH_WORDS;
		left -= IBTUN_GRH_WORDS;
		if (be32_to_cpu(parsed->grh[0]) >> 28 != 6 ||
		    ((be32_to_cpu(parsed->grh[1]) >> 8) & 0xff) != 0x1b ||
		    payload != (left + IBTUN_ICRC_WORDS) * sizeof(*words))
			return false;
	} else if (lnh != IBTUN_LNH_LOCAL) {
		return false;
	}

	if (left < IBTUN_BTH_WORDS)
		return false;
	first = be32_to_cpu(words[0]);
	second = be32_to_cpu(words[2]);
	parsed->opcode = first >> 24;
	pad = (first >> 20) & 3;
	parsed->solicited = (first >> 23) & 1;
	parsed->pkey = first & 0xffff;
	parsed->qpn = be32_to_cpu(words[1]) & 0xffffff;
	parsed->ack_request = second >> 31;
	parsed->psn = second & IBTUN_PSN_MASK;
	words += IBTUN_BTH_WORDS;
	left -= IBTUN_BTH_WORDS;
	extension = ibtun_extension_words(parsed->opcode);
	if (((first >> 16) & 15) || extension < 0 || left < (u32)extension)
		return false;
	parsed->extension = words;
	parsed->immediate = parsed->opcode == IBTUN_UD_SEND_ONLY_IMM;
	if (IBTUN_SERVICE(parsed->opcode) == IB_OPCODE_UD) {
		parsed->qkey = be32_to_cpu(words[0]);
		parsed->source_qpn = be32_to_cpu(words[1]) & 0xffffff;
		if (parsed->immediate)
			parsed->imm = words[2];
	} else if (parsed->qpn <= 1 || ibtun_is_multicast(parsed)) {
		return false;
	}
	words += extension;
	left -= extension;
	parsed->payload = words;
	if (left * sizeof(*words) < pad)
		return false;
	parsed->length = left * sizeof(*words) - pad;
	/* Management has its own lane and its own size. */
	if (parsed->management != !parsed->qpn)
		return false;
	return parsed->qpn > 1 || parsed->length == IBTUN_MAD_SIZE;
}

/* Whether the port's link lets the packet in. */
static bool ibtun_may_receive(const struct ibtun_hca_port *port, const struct ibtun_parsed *parsed)
{
	u8 state = READ_ONCE(port->state);

	if (parsed->management)
		return READ_ONCE(port->phys_state) == IB_PORT_PHYS_STATE_LINK_UP;
	return state == IB_PORT_ARMED || state == IB_PORT_ACTIVE;
}

static bool ibtun_is_for(const struct ibtun_hca_port *port, const struct ibtun_parsed *parsed)
{
	/* A subnet manager reaches ports that have no LID yet. */
	if (parsed->management && (parsed->dlid == IBTUN_PERMISSIVE_LID || !READ_ONCE(port->lid)))
		return true;
	if (ibtun_is_multicast(parsed))
		return parsed->grh && parsed->qpn == IBTUN_MULTICAST_QPN;
	return ibtun_has_lid(port, parsed->dlid);
}

/* The index of a P_Key by which the general service may be reached; or -1. */
static int ibtun_find_pkey(struct ibtun_hca *hca, const struct ibtun_hca_port *port, u16 pkey)
{
	unsigned int index;

	for (index = 0; index < rvt_get_npkeys(&hca->rdi); index++)
		if (ibtun_pkeys_match(READ_ONCE(port->pkey[index]), pkey))
			return index;
	return -1;
}

/* Whether the queue pair may have the packet; says in wc by which P_Key. */
static bool ibtun_has_rights(struct ibtun_hca *hca, struct ibtun_hca_port *port,
			     const struct rvt_qp *qp, const struct ibtun_parsed *parsed,
			     struct ib_wc *wc)
{
	u32 qkey = qp->qkey;
	int index;

	if (qp->ibqp.qp_type == IB_QPT_SMI)
		return true;
	if (qp->ibqp.qp_type == IB_QPT_GSI) {
		index = ibtun_find_pkey(hca, port, parsed->pkey);
		qkey = IB_QP1_QKEY;
	} else {
		index = qp->s_pkey_index;
		if (index >= rvt_get_npkeys(&hca->rdi) ||
		    !ibtun_pkeys_match(READ_ONCE(port->pkey[index]), parsed->pkey))
			index = -1;
	}
	if (index < 0) {
		ibtun_drop(port, IBTUN_RX_DROP_PKEY);
		return false;
	}
	if (qkey != parsed->qkey) {
		ibtun_drop(port, IBTUN_RX_DROP_QKEY);
		return false;
	}
	wc->pkey_index = index;
	return true;
}

static bool ibtun_is_datagram(const struct rvt_qp *qp)
{
	return qp->ibqp.qp_type == IB_QPT_UD || qp->ibqp.qp_type == IB_QPT_GSI ||
	       qp->ibqp.qp_type == IB_QPT_SMI;
}

/* Finds room for the packet. Whether qp->r_sge has it. */
static bool ibtun_get_room(struct rvt_qp *qp, u32 length)
{
	if (qp->r_flags & RVT_R_REUSE_SGE) {
		qp->r_flags &= ~RVT_R_REUSE_SGE;
	} else {
		int ret = ibtun_get_receive(qp, false);

		if (ret < 0)
			rvt_rc_error(qp, IB_WC_LOC_QP_OP_ERR);
		if (ret <= 0)
			return false;
	}
	if (length > qp->r_len) {
		/* Left for a packet that it is large enough for. */
		qp->r_flags |= RVT_R_REUSE_SGE;
		return false;
	}
	return true;
}

static void ibtun_complete(struct rvt_qp *qp, struct ib_wc *wc, bool solicited)
{
	int last;

	if (rvt_cq_enter(ibcq_to_rvtcq(qp->ibqp.recv_cq), wc, solicited))
		return;
	spin_lock(&qp->s_lock);
	last = rvt_error_qp(qp, IB_WC_LOC_QP_OP_ERR);
	spin_unlock(&qp->s_lock);
	if (last)
		ibtun_tell_qp(qp, IB_EVENT_QP_LAST_WQE_REACHED);
}

/* With qp->r_lock held. */
static void ibtun_deliver_locked(struct ibtun_hca *hca, struct ibtun_hca_port *port,
				 struct rvt_qp *qp, const struct ibtun_parsed *parsed)
{
	struct ib_wc wc = {
		.status = IB_WC_SUCCESS,
		.opcode = IB_WC_RECV,
		.qp = &qp->ibqp,
		.src_qp = parsed->source_qpn,
		.byte_len = parsed->length + IBTUN_GRH_BYTES,
		.slid = parsed->slid,
		.sl = parsed->sl,
		.port_num = port->number,
	};

	if (!(ib_rvt_state_ops[qp->state] & RVT_PROCESS_RECV_OK) || !ibtun_is_datagram(qp) ||
	    qp->port_num != port->number) {
		ibtun_drop(port, IBTUN_RX_DROP_QP);
		return;
	}
	if (!ibtun_has_rights(hca, port, qp, parsed, &wc))
		return;
	if (!ibtun_get_room(qp, wc.byte_len)) {
		ibtun_drop(port, IBTUN_RX_DROP_NO_RECEIVE);
		return;
	}
	if (parsed->grh) {
		rvt_copy_sge(qp, &qp->r_sge, (void *)parsed->grh, IBTUN_GRH_BYTES, true, false);
		wc.wc_flags |= IB_WC_GRH;
	} else {
		rvt_skip_sge(&qp->r_sge, IBTUN_GRH_BYTES, true);
	}
	rvt_copy_sge(qp, &qp->r_sge, (void *)parsed->payload, parsed->length, true, false);
	rvt_put_ss(&qp->r_sge);
	if (!test_and_clear_bit(RVT_R_WRID_VALID, &qp->r_aflags))
		return;
	wc.wr_id = qp->r_wr_id;
	if (parsed->immediate) {
		wc.ex.imm_data = parsed->imm;
		wc.wc_flags |= IB_WC_WITH_IMM;
	}
	if (ibtun_has_lid(port, parsed->dlid))
		wc.dlid_path_bits = parsed->dlid & ((1u << READ_ONCE(port->lmc)) - 1);
	ibtun_complete(qp, &wc, parsed->solicited);
}

static void ibtun_deliver(struct ibtun_hca *hca, struct ibtun_hca_port *port, struct rvt_qp *qp,
			  const struct ibtun_parsed *parsed)
{
	unsigned long flags;

	spin_lock_irqsave(&qp->r_lock, flags);
	ibtun_deliver_locked(hca, port, qp, parsed);
	spin_unlock_irqrestore(&qp->r_lock, flags);
}

static void ibtun_deliver_multicast(struct ibtun_hca *hca, struct ibtun_hca_port *port,
				    const struct ibtun_parsed *parsed)
{
	struct rvt_mcast_qp *member;
	struct rvt_mcast *group;
	union ib_gid mgid;

	memcpy(&mgid, parsed->grh + 6, sizeof(mgid));
	group = rvt_mcast_find(&port->rvp, &mgid, parsed->dlid);
	if (!group) {
		ibtun_drop(port, IBTUN_RX_DROP_QP);
		return;
	}
	rcu_read_lock();
	list_for_each_entry_rcu(member, &group->qp_list, list)
		ibtun_deliver(hca, port, member->qp, parsed);
	rcu_read_unlock();
	/* Who leaves the group waits for those who deliver to it. */
	if (atomic_dec_return(&group->refcount) <= 1)
		wake_up(&group->wait);
}

/* Receives what may be anything, length bytes of it. */
void ibtun_receive(struct ibtun_hca *hca, struct ibtun_hca_port *port, const __be32 *words,
		   u32 length)
{
	struct ibtun_parsed parsed;
	struct rvt_qp *qp;

	if (!ibtun_parse(words, length, &parsed)) {
		ibtun_drop(port, IBTUN_RX_DROP_MALFORMED);
		return;
	}
	if (!ibtun_may_receive(port, &parsed)) {
		ibtun_drop(port, IBTUN_RX_DROP_STATE);
		return;
	}
	if (!ibtun_is_for(port, &parsed)) {
		ibtun_drop(port, IBTUN_RX_DROP_LID);
		return;
	}
	ibtun_count(port, IBTUN_RX_PACKETS);
	ibtun_add(port, IBTUN_RX_BYTES, length);
	if (ibtun_is_multicast(&parsed)) {
		ibtun_deliver_multicast(hca, port, &parsed);
		return;
	}
	rcu_read_lock();
	qp = rvt_lookup_qpn(&hca->rdi, &port->rvp, parsed.qpn);
	if (!qp)
		ibtun_drop(port, IBTUN_RX_DROP_QP);
	else if (IBTUN_SERVICE(parsed.opcode) == IB_OPCODE_UD)
		ibtun_deliver(hca, port, qp, &parsed);
	else
		ibtun_deliver_connected(hca, port, qp, &parsed);
	rcu_read_unlock();
}
