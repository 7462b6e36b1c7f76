// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The responder of RC and UC, IBA volume 1, 9.7 and 9.8.
 *
 * s_ack_queue is a ring of the reads and atomics that were asked for last. From
 * s_tail_ack_queue to r_head_ack_queue they wait to be answered, the others are
 * kept for requests that come again. One acknowledge may wait behind them: what
 * was asked for later than a read is acknowledged later than it is answered.
 */
#include <rdma/ib_hdrs.h>
#include <rdma/ib_pack.h>
#include <rdma/ib_verbs.h>

#include "ibtun.h"

/* Negative, zero or positive, as a is before, at or behind b. */
static int ibtun_cmp(u32 a, u32 b)
{
	return rvt_cmp_msn(a, b);
}

static unsigned int ibtun_ring_size(struct rvt_qp *qp)
{
	return rvt_max_atomic(ib_to_rvt(qp->ibqp.device));
}

static unsigned int ibtun_ring_next(struct rvt_qp *qp, unsigned int index)
{
	return index + 1 < ibtun_ring_size(qp) ? index + 1 : 0;
}

/* How many entries ago the entry was the newest, from 1. */
static unsigned int ibtun_ring_age(struct rvt_qp *qp, unsigned int index)
{
	unsigned int size = ibtun_ring_size(qp);

	return (qp->r_head_ack_queue + size - index) % size;
}

static void ibtun_forget_memory(struct rvt_ack_entry *entry)
{
	if (entry->rdma_sge.mr)
		rvt_put_mr(entry->rdma_sge.mr);
	entry->rdma_sge.mr = NULL;
}

/* The acknowledge waits for what is before it, and replaces one that waits. */
static void ibtun_acknowledge_later(struct rvt_qp *qp, u32 psn, u32 aeth)
{
	struct ibtun_qp *own = qp->priv;

	own->answer = true;
	own->answer_psn = psn;
	own->answer_aeth = aeth;
}

static void ibtun_nak_later(struct rvt_qp *qp, u32 syndrome)
{
	struct ibtun_qp *own = qp->priv;

	own->nak_sent = true;
	ibtun_acknowledge_later(qp, qp->r_psn, syndrome << 24 | (qp->r_msn & IB_MSN_MASK));
}

/* A NAK after which there is no connection. */
static void ibtun_refuse(struct rvt_qp *qp, u32 syndrome, enum ib_wc_status status)
{
	struct ibtun_qp *own = qp->priv;

	ibtun_nak_later(qp, syndrome);
	own->failing = true;
	own->failure = status;
}

static void ibtun_send_atomic(struct ibtun_hca *hca, struct rvt_qp *qp,
			      struct rvt_ack_entry *entry)
{
	struct ibtun_frame frame = {
		.opcode = IB_OPCODE_ATOMIC_ACKNOWLEDGE,
		.psn = entry->psn,
		.words = 3,
		.extension = {
			rvt_compute_aeth(qp),
			cpu_to_be32(entry->atomic_data >> 32),
			cpu_to_be32(entry->atomic_data),
		},
	};

	ibtun_send_frame(hca, qp, &frame, NULL);
}

/* One response of a read. Whether it was the last. */
static bool ibtun_send_response(struct ibtun_hca *hca, struct rvt_qp *qp,
				struct rvt_ack_entry *entry)
{
	struct rvt_sge_state *state = &qp->s_ack_rdma_sge;
	struct ibtun_qp *own = qp->priv;
	u32 psn = own->response_psn;
	u32 offset = ((psn - entry->psn) & IBTUN_PSN_MASK) << qp->log_pmtu;
	struct ibtun_frame frame = {
		.psn = psn,
		.length = min_t(u32, entry->rdma_sge.sge_length - offset, qp->pmtu),
	};
	bool last = !ibtun_cmp(psn, entry->lpsn);

	if (frame.length && (own->responding.of != entry || own->responding.offset != offset)) {
		state->sge = entry->rdma_sge;
		state->sg_list = NULL;
		state->num_sge = 1;
		state->total_len = entry->rdma_sge.sge_length;
		rvt_skip_sge(state, offset, false);
	}
	own->responding.of = entry;
	own->responding.offset = offset + frame.length;
	if (last)
		frame.opcode = offset ? IB_OPCODE_RDMA_READ_RESPONSE_LAST :
					IB_OPCODE_RDMA_READ_RESPONSE_ONLY;
	else
		frame.opcode = offset ? IB_OPCODE_RDMA_READ_RESPONSE_MIDDLE :
					IB_OPCODE_RDMA_READ_RESPONSE_FIRST;
	if (frame.opcode != IB_OPCODE_RDMA_READ_RESPONSE_MIDDLE) {
		frame.extension[0] = rvt_compute_aeth(qp);
		frame.words = 1;
	}
	ibtun_send_frame(hca, qp, &frame, state);
	own->response_psn = psn + 1;
	return last;
}

static void ibtun_send_acknowledge(struct ibtun_hca *hca, struct rvt_qp *qp)
{
	struct ibtun_qp *own = qp->priv;
	struct ibtun_frame frame = {
		.opcode = IB_OPCODE_ACKNOWLEDGE,
		.psn = own->answer_psn,
		.words = 1,
		.extension = { cpu_to_be32(own->answer_aeth) },
	};

	own->answer = false;
	ibtun_send_frame(hca, qp, &frame, NULL);
	if (own->failing)
		ibtun_fail_connection(qp, own->failure);
}

/* Whether the entry has what it takes to be sent; after a repetition it may not. */
static bool ibtun_is_sendable(const struct rvt_ack_entry *entry)
{
	return entry->opcode != IB_OPCODE_RDMA_READ_REQUEST || entry->rdma_sge.mr ||
	       !entry->rdma_sge.sge_length;
}

/* Answers what was asked, in order. Whether there is more to send at once. */
bool ibtun_send_answers(struct ibtun_hca *hca, struct rvt_qp *qp, unsigned int *budget)
{
	struct ibtun_qp *own = qp->priv;

	while (qp->s_tail_ack_queue != qp->r_head_ack_queue) {
		struct rvt_ack_entry *entry = &qp->s_ack_queue[qp->s_tail_ack_queue];
		bool done = true;

		if (!ibtun_can(qp, RVT_PROCESS_RECV_OK))
			return false;
		if (!*budget)
			return true;
		if (!ibtun_queue_has_room(hca, own))
			return false;
		--*budget;
		if (!ibtun_is_sendable(entry))
			done = true;
		else if (entry->opcode == IB_OPCODE_RDMA_READ_REQUEST)
			done = ibtun_send_response(hca, qp, entry);
		else
			ibtun_send_atomic(hca, qp, entry);
		if (!done)
			continue;
		ibtun_forget_memory(entry);
		own->responding.of = NULL;
		qp->s_tail_ack_queue = ibtun_ring_next(qp, qp->s_tail_ack_queue);
		own->response_psn = qp->s_ack_queue[qp->s_tail_ack_queue].psn;
	}
	if (own->answer && ibtun_can(qp, RVT_PROCESS_RECV_OK) && !ibtun_hold_ack(hca, qp))
		ibtun_send_acknowledge(hca, qp);
	return false;
}

/* The packets of the responses to a read of length bytes. */
static u32 ibtun_packets_of(const struct rvt_qp *qp, u32 length)
{
	return length ? ((length - 1) >> qp->log_pmtu) + 1 : 1;
}

/* Finds the memory that a RETH names. length may be 0: then there is none. */
static bool ibtun_find_memory(struct rvt_qp *qp, struct rvt_sge *sge,
			      const struct ibtun_parsed *parsed)
{
	u64 address = (u64)be32_to_cpu(parsed->extension[0]) << 32 |
		      be32_to_cpu(parsed->extension[1]);
	u32 rkey = be32_to_cpu(parsed->extension[2]);
	u32 length = be32_to_cpu(parsed->extension[3]);

	memset(sge, 0, sizeof(*sge));
	/* An R_Key of 0 is all of the kernel's memory. */
	return !length || (rkey && rvt_rkey_ok(qp, sge, length, address, rkey,
					       IB_ACCESS_REMOTE_READ));
}

/* Puts an entry at the head of the ring, if there is room; or refuses. */
static struct rvt_ack_entry *ibtun_new_entry(struct rvt_qp *qp)
{
	struct rvt_ack_entry *entry = &qp->s_ack_queue[qp->r_head_ack_queue];

	if (ibtun_ring_next(qp, qp->r_head_ack_queue) == qp->s_tail_ack_queue) {
		ibtun_refuse(qp, IB_NAK_INVALID_REQUEST, IB_WC_LOC_QP_OP_ERR);
		return NULL;
	}
	ibtun_forget_memory(entry);
	memset(entry, 0, sizeof(*entry));
	return entry;
}

/* The entry has been filled in, and waits to be answered. */
static void ibtun_push_entry(struct rvt_qp *qp, struct rvt_ack_entry *entry, u8 opcode, u32 packets)
{
	struct ibtun_qp *own = qp->priv;

	entry->opcode = opcode;
	entry->psn = qp->r_psn;
	entry->lpsn = qp->r_psn + packets - 1;
	if (qp->s_tail_ack_queue == qp->r_head_ack_queue)
		own->response_psn = entry->psn;
	qp->r_head_ack_queue = ibtun_ring_next(qp, qp->r_head_ack_queue);
	qp->r_psn += packets;
	qp->r_msn++;
}

static void ibtun_take_read(struct rvt_qp *qp, const struct ibtun_parsed *parsed)
{
	u32 length = be32_to_cpu(parsed->extension[3]);
	struct rvt_ack_entry *entry;
	struct rvt_sge sge;

	if (!(qp->qp_access_flags & IB_ACCESS_REMOTE_READ) || !qp->r_max_rd_atomic ||
	    parsed->length || length > IBTUN_MAX_MESSAGE ||
	    ibtun_packets_of(qp, length) > IBTUN_MAX_PACKETS) {
		ibtun_refuse(qp, IB_NAK_INVALID_REQUEST, IB_WC_LOC_QP_OP_ERR);
		return;
	}
	entry = ibtun_new_entry(qp);
	if (!entry)
		return;
	if (!ibtun_find_memory(qp, &sge, parsed)) {
		ibtun_refuse(qp, IB_NAK_REMOTE_ACCESS_ERROR, IB_WC_LOC_PROT_ERR);
		return;
	}
	entry->rdma_sge = sge;
	ibtun_push_entry(qp, entry, IB_OPCODE_RDMA_READ_REQUEST, ibtun_packets_of(qp, length));
}

static u64 ibtun_get_u64(const __be32 *from)
{
	return (u64)be32_to_cpu(from[0]) << 32 | be32_to_cpu(from[1]);
}

static void ibtun_take_atomic(struct rvt_qp *qp, const struct ibtun_parsed *parsed)
{
	u8 operation = IBTUN_OPERATION(parsed->opcode);
	u64 address = ibtun_get_u64(parsed->extension);
	u32 rkey = be32_to_cpu(parsed->extension[2]);
	u64 swap_or_add = ibtun_get_u64(parsed->extension + 3);
	u64 compare = ibtun_get_u64(parsed->extension + 5);
	struct rvt_ack_entry *entry;
	struct rvt_sge sge;
	u64 before;

	if (!(qp->qp_access_flags & IB_ACCESS_REMOTE_ATOMIC) || !qp->r_max_rd_atomic ||
	    parsed->length || address % sizeof(u64)) {
		ibtun_refuse(qp, IB_NAK_INVALID_REQUEST, IB_WC_LOC_QP_OP_ERR);
		return;
	}
	entry = ibtun_new_entry(qp);
	if (!entry)
		return;
	if (!rkey || !rvt_rkey_ok(qp, &sge, sizeof(u64), address, rkey, IB_ACCESS_REMOTE_ATOMIC)) {
		ibtun_refuse(qp, IB_NAK_REMOTE_ACCESS_ERROR, IB_WC_LOC_PROT_ERR);
		return;
	}
	/* The offset in the region may be odd where the address is not. */
	if (sge.length < sizeof(u64) || (uintptr_t)sge.vaddr % sizeof(u64)) {
		rvt_put_mr(sge.mr);
		ibtun_refuse(qp, IB_NAK_INVALID_REQUEST, IB_WC_LOC_QP_OP_ERR);
		return;
	}
	if (operation == IB_OPCODE_COMPARE_SWAP)
		before = cmpxchg((u64 *)sge.vaddr, compare, swap_or_add);
	else
		before = (u64)atomic64_fetch_add(swap_or_add, (atomic64_t *)sge.vaddr);
	rvt_put_mr(sge.mr);
	entry->atomic_data = before;
	ibtun_push_entry(qp, entry, operation, 1);
}

/* A SEND or RDMA WRITE that is the next one. */
static void ibtun_take_message(struct rvt_qp *qp, const struct ibtun_parsed *parsed)
{
	struct ibtun_qp *own = qp->priv;

	switch (ibtun_take(qp, parsed)) {
	case IBTUN_TAKEN:
		qp->r_psn++;
		if (own->receiving == IBTUN_NO_MESSAGE)
			qp->r_msn++;
		if (parsed->ack_request)
			ibtun_acknowledge_later(qp, qp->r_psn - 1,
						be32_to_cpu(rvt_compute_aeth(qp)));
		break;
	case IBTUN_NO_RECEIVE:
		ibtun_drop(ibtun_port_of(qp), IBTUN_RX_DROP_NO_RECEIVE);
		ibtun_nak_later(qp, IB_RNR_NAK | qp->r_min_rnr_timer);
		break;
	case IBTUN_INVALID:
		ibtun_refuse(qp, IB_NAK_INVALID_REQUEST, IB_WC_LOC_QP_OP_ERR);
		break;
	case IBTUN_TOO_LONG:
		ibtun_refuse(qp, IB_NAK_INVALID_REQUEST, IB_WC_LOC_LEN_ERR);
		break;
	case IBTUN_NO_ACCESS:
		ibtun_refuse(qp, IB_NAK_REMOTE_ACCESS_ERROR, IB_WC_LOC_PROT_ERR);
		break;
	case IBTUN_NO_OPERATION:
		ibtun_refuse(qp, IB_NAK_REMOTE_OPERATIONAL_ERROR, IB_WC_LOC_QP_OP_ERR);
		break;
	}
}

/* The newest kept entry that has the PSN and is of the kind; -1 if there is none. */
static int ibtun_find_entry(struct rvt_qp *qp, u8 opcode, u32 psn)
{
	unsigned int index = qp->r_head_ack_queue;
	unsigned int age;

	for (age = 1; age < ibtun_ring_size(qp); age++) {
		struct rvt_ack_entry *entry;

		index = index ? index - 1 : ibtun_ring_size(qp) - 1;
		entry = &qp->s_ack_queue[index];
		if (entry->opcode == opcode && ibtun_cmp(psn, entry->psn) >= 0 &&
		    ibtun_cmp(psn, entry->lpsn) <= 0)
			return index;
	}
	return -1;
}

/* Answers again from the entry on, unless it waits to be answered anyhow. */
static void ibtun_answer_again(struct rvt_qp *qp, unsigned int index)
{
	unsigned int pending = ibtun_ring_age(qp, qp->s_tail_ack_queue);
	struct ibtun_qp *own = qp->priv;

	if (ibtun_ring_age(qp, index) < pending)
		return;
	qp->s_tail_ack_queue = index;
	own->response_psn = qp->s_ack_queue[index].psn;
	own->responding.of = NULL;
}

/* A read that comes again may ask for the end of what it asked for before. */
static void ibtun_repeat_read(struct rvt_qp *qp, const struct ibtun_parsed *parsed)
{
	u32 length = be32_to_cpu(parsed->extension[3]);
	int index = ibtun_find_entry(qp, IB_OPCODE_RDMA_READ_REQUEST, parsed->psn);
	struct rvt_ack_entry *entry;
	struct rvt_sge sge;

	if (index < 0 || parsed->length || !(qp->qp_access_flags & IB_ACCESS_REMOTE_READ))
		return;
	entry = &qp->s_ack_queue[index];
	if (length > IBTUN_MAX_MESSAGE ||
	    ibtun_cmp(parsed->psn + ibtun_packets_of(qp, length) - 1, entry->lpsn) ||
	    !ibtun_find_memory(qp, &sge, parsed))
		return;
	ibtun_forget_memory(entry);
	entry->rdma_sge = sge;
	entry->psn = parsed->psn;
	ibtun_answer_again(qp, index);
}

/* A request that was served before: its answer was lost, or is late. */
static void ibtun_receive_again(struct rvt_qp *qp, const struct ibtun_parsed *parsed)
{
	u8 operation = IBTUN_OPERATION(parsed->opcode);
	struct ibtun_qp *own = qp->priv;
	int index;

	ibtun_count(ibtun_port_of(qp), IBTUN_RX_DUPLICATES);
	switch (operation) {
	case IB_OPCODE_RDMA_READ_REQUEST:
		ibtun_repeat_read(qp, parsed);
		break;
	case IB_OPCODE_COMPARE_SWAP:
	case IB_OPCODE_FETCH_ADD:
		index = ibtun_find_entry(qp, operation, parsed->psn);
		if (index >= 0)
			ibtun_answer_again(qp, index);
		break;
	default:
		/* What waits says as much. */
		if (parsed->ack_request && !own->answer)
			ibtun_acknowledge_later(qp, qp->r_psn - 1,
						be32_to_cpu(rvt_compute_aeth(qp)));
	}
}

/* A request of RC. */
void ibtun_receive_rc(struct rvt_qp *qp, const struct ibtun_parsed *parsed)
{
	u8 operation = IBTUN_OPERATION(parsed->opcode);
	struct ibtun_qp *own = qp->priv;
	int distance = ibtun_cmp(parsed->psn, qp->r_psn);

	if (own->failing)
		return;
	if (distance < 0) {
		ibtun_receive_again(qp, parsed);
		return;
	}
	if (distance > 0) {
		ibtun_drop(ibtun_port_of(qp), IBTUN_RX_DROP_SEQUENCE);
		if (!own->nak_sent)
			ibtun_nak_later(qp, IB_NAK_PSN_ERROR);
		return;
	}
	/* A NAK of this one need not be sent any more. */
	if (own->nak_sent)
		own->answer = false;
	own->nak_sent = false;
	switch (operation) {
	case IB_OPCODE_RDMA_READ_REQUEST:
	case IB_OPCODE_COMPARE_SWAP:
	case IB_OPCODE_FETCH_ADD:
		if (own->receiving != IBTUN_NO_MESSAGE)
			ibtun_refuse(qp, IB_NAK_INVALID_REQUEST, IB_WC_LOC_QP_OP_ERR);
		else if (operation == IB_OPCODE_RDMA_READ_REQUEST)
			ibtun_take_read(qp, parsed);
		else
			ibtun_take_atomic(qp, parsed);
		break;
	default:
		ibtun_take_message(qp, parsed);
	}
}

/*
 * A packet of UC. What is lost is not sent again: a message that misses a
 * packet is dropped to its end, and its receive is for the next one.
 */
void ibtun_receive_uc(struct rvt_qp *qp, const struct ibtun_parsed *parsed)
{
	struct ibtun_qp *own = qp->priv;
	bool starts;

	switch (IBTUN_OPERATION(parsed->opcode)) {
	case IB_OPCODE_SEND_FIRST:
	case IB_OPCODE_SEND_ONLY:
	case IB_OPCODE_SEND_ONLY_WITH_IMMEDIATE:
	case IB_OPCODE_RDMA_WRITE_FIRST:
	case IB_OPCODE_RDMA_WRITE_ONLY:
	case IB_OPCODE_RDMA_WRITE_ONLY_WITH_IMMEDIATE:
		starts = true;
		break;
	default:
		starts = false;
	}
	if (starts || ibtun_cmp(parsed->psn, qp->r_psn))
		ibtun_abandon(qp);
	qp->r_psn = parsed->psn + 1;
	if (!starts && own->receiving == IBTUN_NO_MESSAGE) {
		ibtun_drop(ibtun_port_of(qp), IBTUN_RX_DROP_SEQUENCE);
		return;
	}
	switch (ibtun_take(qp, parsed)) {
	case IBTUN_TAKEN:
		break;
	case IBTUN_NO_OPERATION:
		ibtun_fail_connection(qp, IB_WC_LOC_QP_OP_ERR);
		break;
	case IBTUN_NO_RECEIVE:
		ibtun_drop(ibtun_port_of(qp), IBTUN_RX_DROP_NO_RECEIVE);
		ibtun_abandon(qp);
		break;
	default:
		ibtun_drop(ibtun_port_of(qp), IBTUN_RX_DROP_SEQUENCE);
		ibtun_abandon(qp);
	}
}
