// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The requester of RC and UC, IBA volume 1, 9.7 and 9.8.
 *
 * The queue of requests has, from its oldest entry: s_last, the first that is
 * not complete; s_cur, whose packet of PSN s_psn is the next to be sent; s_tail,
 * the first of which nothing was ever sent; s_head. s_last_psn is the newest
 * PSN that the responder has acknowledged. To send again is to go back: s_cur to
 * s_last, s_psn behind s_last_psn. What a packet is follows from its PSN alone.
 */
#include <rdma/ib_hdrs.h>
#include <rdma/ib_pack.h>
#include <rdma/ib_verbs.h>

#include "ibtun.h"
#include "trace.h"

/* Packets that may be on their way unacknowledged. */
#define IBTUN_WINDOW		64
/* An acknowledge is asked for at least so often. */
#define IBTUN_ACK_INTERVAL	16
/*
 * IBA volume 1, 9.7.6.1.3: a time-out is up to four times what the consumer
 * says. So short ones are, for the process that is the fabric is no hardware.
 */
#define IBTUN_SHORT_TIMEOUT	16	/* 4.096 us * 2^16 */
#define IBTUN_TIMEOUT_SHIFT	2

/* Negative, zero or positive, as a is before, at or behind b. */
static int ibtun_cmp(u32 a, u32 b)
{
	return rvt_cmp_msn(a, b);
}

static void ibtun_start_timer(struct rvt_qp *qp)
{
	/* 0 is never. */
	if (qp->timeout)
		rvt_mod_retry_timer_ext(qp, qp->timeout < IBTUN_SHORT_TIMEOUT ?
					    IBTUN_TIMEOUT_SHIFT : 0);
}

static bool ibtun_is_local(const struct rvt_swqe *wqe)
{
	return wqe->wr.opcode == IB_WR_REG_MR || wqe->wr.opcode == IB_WR_LOCAL_INV;
}

static bool ibtun_is_atomic(const struct rvt_swqe *wqe)
{
	return wqe->wr.opcode == IB_WR_ATOMIC_CMP_AND_SWP ||
	       wqe->wr.opcode == IB_WR_ATOMIC_FETCH_AND_ADD;
}

/* Whether the request completes by a response with data. */
static bool ibtun_wants_response(const struct rvt_swqe *wqe)
{
	return wqe->wr.opcode == IB_WR_RDMA_READ || ibtun_is_atomic(wqe);
}

static struct rvt_swqe *ibtun_oldest(struct rvt_qp *qp)
{
	return rvt_get_swqe_ptr(qp, qp->s_last);
}

static void ibtun_complete_oldest(struct rvt_qp *qp, enum ib_wc_status status)
{
	struct rvt_swqe *wqe = ibtun_oldest(qp);
	struct ibtun_qp *own = qp->priv;

	if (ibtun_wants_response(wqe) && qp->s_num_rd_atomic)
		qp->s_num_rd_atomic--;
	if (own->sending.of == wqe)
		own->sending.of = NULL;
	if (own->reading.of == wqe)
		own->reading.of = NULL;
	rvt_send_complete(qp, wqe, status);
}

/* Ends the connection by its oldest request, if that was sent. */
static void ibtun_fail_oldest(struct rvt_qp *qp, enum ib_wc_status status)
{
	if (qp->s_last != qp->s_tail)
		ibtun_complete_oldest(qp, status);
	ibtun_fail_connection(qp, IB_WC_WR_FLUSH_ERR);
}

/* Whether there is a request of this index. */
static bool ibtun_is_posted(struct rvt_qp *qp, u32 index)
{
	/* Pairs with the barrier before rdmavt moves the head. */
	return index != smp_load_acquire(&qp->s_head);
}

static void ibtun_flush(struct rvt_qp *qp)
{
	while (ibtun_is_posted(qp, qp->s_last)) {
		struct rvt_swqe *wqe = ibtun_oldest(qp);

		if (wqe->wr.opcode == IB_WR_LOCAL_INV &&
		    !(wqe->wr.send_flags & RVT_SEND_COMPLETION_ONLY))
			atomic_dec(&qp->local_ops_pending);
		ibtun_complete_oldest(qp, IB_WC_WR_FLUSH_ERR);
	}
}

/* Registers or invalidates memory, once all before it is complete. */
static void ibtun_do_local(struct rvt_qp *qp, struct rvt_swqe *wqe)
{
	enum ib_wc_status status = IB_WC_SUCCESS;

	if (!(wqe->wr.send_flags & RVT_SEND_COMPLETION_ONLY)) {
		if (rvt_invalidate_rkey(qp, wqe->wr.ex.invalidate_rkey))
			status = IB_WC_LOC_PROT_ERR;
		atomic_dec(&qp->local_ops_pending);
	}
	ibtun_complete_oldest(qp, status);
	if (status != IB_WC_SUCCESS)
		ibtun_fail_connection(qp, IB_WC_WR_FLUSH_ERR);
}

/* The request whose packet of PSN s_psn may be sent now, or NULL. */
static struct rvt_swqe *ibtun_next_request(struct rvt_qp *qp)
{
	struct rvt_swqe *wqe;
	bool is_new;

again:
	is_new = qp->s_cur == qp->s_tail;
	if (is_new && (!ibtun_can(qp, RVT_PROCESS_NEXT_SEND_OK) ||
		       !ibtun_is_posted(qp, qp->s_tail)))
		return NULL;
	wqe = rvt_get_swqe_ptr(qp, qp->s_cur);
	if (is_new && ibtun_is_local(wqe)) {
		if (qp->s_last != qp->s_cur)
			return NULL;
		ibtun_do_local(qp, wqe);
		goto again;
	}
	if (is_new && (wqe->wr.send_flags & IB_SEND_FENCE) && qp->s_num_rd_atomic)
		return NULL;
	if (ibtun_wants_response(wqe) && qp->s_num_rd_atomic >= qp->s_max_rd_atomic)
		return NULL;
	if (qp->ibqp.qp_type == IB_QPT_RC &&
	    ibtun_cmp(is_new ? wqe->psn : qp->s_psn, qp->s_last_psn + IBTUN_WINDOW) > 0)
		return NULL;
	if (is_new) {
		qp->s_psn = wqe->psn;
		qp->s_tail = rvt_qp_swqe_incr(qp, qp->s_tail);
	}
	return wqe;
}

static u8 ibtun_opcode_of(const struct rvt_swqe *wqe, bool first, bool last)
{
	bool write = wqe->wr.opcode == IB_WR_RDMA_WRITE ||
		     wqe->wr.opcode == IB_WR_RDMA_WRITE_WITH_IMM;
	bool immediate = wqe->wr.opcode == IB_WR_SEND_WITH_IMM ||
			 wqe->wr.opcode == IB_WR_RDMA_WRITE_WITH_IMM;

	if (!last) {
		if (write)
			return first ? IB_OPCODE_RDMA_WRITE_FIRST : IB_OPCODE_RDMA_WRITE_MIDDLE;
		return first ? IB_OPCODE_SEND_FIRST : IB_OPCODE_SEND_MIDDLE;
	}
	if (wqe->wr.opcode == IB_WR_SEND_WITH_INV)
		return first ? IB_OPCODE_SEND_ONLY_WITH_INVALIDATE :
			       IB_OPCODE_SEND_LAST_WITH_INVALIDATE;
	/* The opcode with an immediate is behind the one without. */
	if (write)
		return (first ? IB_OPCODE_RDMA_WRITE_ONLY : IB_OPCODE_RDMA_WRITE_LAST) + immediate;
	return (first ? IB_OPCODE_SEND_ONLY : IB_OPCODE_SEND_LAST) + immediate;
}

static void ibtun_put_u64(__be32 *to, u64 value)
{
	to[0] = cpu_to_be32(value >> 32);
	to[1] = cpu_to_be32(value);
}

static void ibtun_put_reth(struct ibtun_frame *frame, const struct rvt_swqe *wqe, u32 offset)
{
	ibtun_put_u64(frame->extension, wqe->rdma_wr.remote_addr + offset);
	frame->extension[2] = cpu_to_be32(wqe->rdma_wr.rkey);
	frame->extension[3] = cpu_to_be32(wqe->length - offset);
	frame->words = 4;
}

static void ibtun_put_atomic(struct ibtun_frame *frame, const struct rvt_swqe *wqe)
{
	const struct ib_atomic_wr *wr = &wqe->atomic_wr;
	bool swap = wr->wr.opcode == IB_WR_ATOMIC_CMP_AND_SWP;

	frame->opcode = swap ? IB_OPCODE_COMPARE_SWAP : IB_OPCODE_FETCH_ADD;
	ibtun_put_u64(frame->extension, wr->remote_addr);
	frame->extension[2] = cpu_to_be32(wr->rkey);
	ibtun_put_u64(frame->extension + 3, swap ? wr->swap : wr->compare_add);
	ibtun_put_u64(frame->extension + 5, swap ? wr->compare_add : 0);
	frame->words = 7;
}

/* Fills in the packet of a SEND or RDMA WRITE. */
static void ibtun_put_message(struct rvt_qp *qp, struct ibtun_frame *frame, struct rvt_swqe *wqe,
			      u32 offset)
{
	bool first = !offset;
	bool last = !ibtun_cmp(qp->s_psn, wqe->lpsn);

	frame->opcode = ibtun_opcode_of(wqe, first, last);
	frame->length = min_t(u32, wqe->length - offset, qp->pmtu);
	if (first && (wqe->wr.opcode == IB_WR_RDMA_WRITE ||
		      wqe->wr.opcode == IB_WR_RDMA_WRITE_WITH_IMM))
		ibtun_put_reth(frame, wqe, 0);
	if (!last) {
		frame->ack_request = !((qp->s_psn + 1) % IBTUN_ACK_INTERVAL);
		return;
	}
	frame->ack_request = true;
	frame->solicited = wqe->wr.send_flags & IB_SEND_SOLICITED;
	switch (wqe->wr.opcode) {
	case IB_WR_SEND_WITH_IMM:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		frame->extension[frame->words++] = wqe->wr.ex.imm_data;
		break;
	case IB_WR_SEND_WITH_INV:
		frame->extension[frame->words++] = cpu_to_be32(wqe->wr.ex.invalidate_rkey);
		break;
	default:
		break;
	}
}

static void ibtun_send_request(struct ibtun_hca *hca, struct rvt_qp *qp, struct rvt_swqe *wqe)
{
	u32 offset = ((qp->s_psn - wqe->psn) & IBTUN_PSN_MASK) << qp->log_pmtu;
	struct ibtun_frame frame = { .psn = qp->s_psn };
	bool reliable = qp->ibqp.qp_type == IB_QPT_RC;
	struct ibtun_qp *own = qp->priv;

	if (ibtun_is_atomic(wqe)) {
		ibtun_put_atomic(&frame, wqe);
	} else if (wqe->wr.opcode == IB_WR_RDMA_READ) {
		frame.opcode = IB_OPCODE_RDMA_READ_REQUEST;
		ibtun_put_reth(&frame, wqe, offset);
	} else {
		ibtun_put_message(qp, &frame, wqe, offset);
	}
	if (ibtun_wants_response(wqe)) {
		qp->s_num_rd_atomic++;
		qp->s_psn = wqe->lpsn;
	}
	if (!reliable) {
		frame.opcode |= IB_OPCODE_UC;
		frame.ack_request = false;
	}
	if (frame.length && (own->sending.of != wqe || own->sending.offset != offset))
		rvt_restart_sge(&qp->s_sge, wqe, offset);
	own->sending.of = wqe;
	own->sending.offset = offset + frame.length;
	ibtun_send_frame(hca, qp, &frame, &qp->s_sge);
	qp->s_psn++;
	if (ibtun_cmp(qp->s_psn, own->sent) > 0)
		own->sent = qp->s_psn;
	if (ibtun_cmp(qp->s_psn, wqe->lpsn) > 0) {
		if (reliable) {
			qp->s_cur = rvt_qp_swqe_incr(qp, qp->s_cur);
		} else {
			qp->s_last_psn = wqe->lpsn;
			ibtun_complete_oldest(qp, IB_WC_SUCCESS);
		}
	}
	if (reliable && !(qp->s_flags & RVT_S_TIMER))
		ibtun_start_timer(qp);
}

/* Whether there is more to send at once. */
bool ibtun_send_requests(struct ibtun_hca *hca, struct rvt_qp *qp, unsigned int *budget)
{
	struct rvt_swqe *wqe;

	while (*budget) {
		if (ibtun_can(qp, RVT_FLUSH_SEND)) {
			ibtun_flush(qp);
			return false;
		}
		if (!ibtun_can(qp, RVT_PROCESS_SEND_OK) || (qp->s_flags & RVT_S_WAIT_RNR))
			return false;
		if (qp->s_cur == READ_ONCE(qp->s_head) || !ibtun_queue_has_room(hca, qp->priv))
			return false;
		wqe = ibtun_next_request(qp);
		if (!wqe)
			return ibtun_can(qp, RVT_FLUSH_SEND);
		ibtun_send_request(hca, qp, wqe);
		--*budget;
	}
	return true;
}

static bool ibtun_is_outstanding(const struct rvt_qp *qp)
{
	return qp->s_last != qp->s_tail;
}

/* Something was heard: the time-out begins anew, or is not needed. */
static void ibtun_made_progress(struct rvt_qp *qp)
{
	struct ibtun_qp *own = qp->priv;

	own->recovering = false;
	qp->s_retry = qp->s_retry_cnt;
	qp->s_rnr_retry = qp->s_rnr_retry_cnt;
	if (qp->s_flags & RVT_S_WAIT_RNR)
		return;
	if (!ibtun_is_outstanding(qp))
		rvt_stop_rc_timers(qp);
	else
		ibtun_start_timer(qp);
}

static void ibtun_trace_retry(struct rvt_qp *qp, const char *reason)
{
	trace_ibtun_retry(ibtun_from_ib(qp->ibqp.device)->unit, qp->ibqp.qp_num,
			  (qp->s_last_psn + 1) & IBTUN_PSN_MASK, reason);
}

/* Sends all again that is not acknowledged. */
static void ibtun_go_back(struct rvt_qp *qp)
{
	qp->s_cur = qp->s_last;
	qp->s_psn = qp->s_last_psn + 1;
	qp->s_num_rd_atomic = 0;
}

/* The same, unless it was tried often enough. */
static void ibtun_retry(struct rvt_qp *qp, const char *reason)
{
	struct ibtun_qp *own = qp->priv;

	if (!qp->s_retry) {
		ibtun_fail_oldest(qp, IB_WC_RETRY_EXC_ERR);
		return;
	}
	ibtun_trace_retry(qp, reason);
	qp->s_retry--;
	own->recovering = true;
	ibtun_go_back(qp);
}

void ibtun_time_out(struct rvt_qp *qp)
{
	if (!ibtun_is_outstanding(qp) || !ibtun_can(qp, RVT_PROCESS_SEND_OK))
		return;
	ibtun_count(ibtun_port_of(qp), IBTUN_RC_TIME_OUTS);
	ibtun_retry(qp, "time-out");
}

/*
 * The responder has got everything up to psn. Whether we have: if a response is
 * missing, it is asked for again.
 */
static bool ibtun_acknowledge(struct rvt_qp *qp, u32 psn)
{
	struct ibtun_qp *own = qp->priv;
	u32 before = qp->s_last_psn;
	bool whole = true;

	while (ibtun_is_outstanding(qp) && ibtun_cmp(psn, qp->s_last_psn) > 0) {
		struct rvt_swqe *wqe = ibtun_oldest(qp);

		if (ibtun_wants_response(wqe)) {
			whole = false;
			break;
		}
		if (ibtun_cmp(psn, wqe->lpsn) < 0) {
			qp->s_last_psn = psn;
			break;
		}
		qp->s_last_psn = wqe->lpsn;
		ibtun_complete_oldest(qp, IB_WC_SUCCESS);
	}
	/* What was to be sent again may have arrived after all. */
	if (ibtun_cmp(qp->s_psn, qp->s_last_psn) <= 0)
		qp->s_psn = qp->s_last_psn + 1;
	if (qp->s_last_psn != before)
		ibtun_made_progress(qp);
	if (!whole && !own->recovering) {
		ibtun_count(ibtun_port_of(qp), IBTUN_RC_LOST_RESPONSES);
		ibtun_retry(qp, "lost-response");
	}
	return whole;
}

/* The response to the oldest request is here, whole. */
static void ibtun_complete_response(struct rvt_qp *qp)
{
	qp->s_last_psn = ibtun_oldest(qp)->lpsn;
	ibtun_complete_oldest(qp, IB_WC_SUCCESS);
	if (ibtun_cmp(qp->s_psn, qp->s_last_psn) <= 0)
		qp->s_psn = qp->s_last_psn + 1;
	ibtun_made_progress(qp);
}

static void ibtun_receive_read(struct rvt_qp *qp, const struct ibtun_parsed *parsed)
{
	u8 operation = IBTUN_OPERATION(parsed->opcode);
	struct rvt_swqe *wqe = ibtun_oldest(qp);
	struct ibtun_qp *own = qp->priv;
	u32 offset = ((parsed->psn - wqe->psn) & IBTUN_PSN_MASK) << qp->log_pmtu;
	bool last = !ibtun_cmp(parsed->psn, wqe->lpsn);
	bool ends = operation == IB_OPCODE_RDMA_READ_RESPONSE_LAST ||
		    operation == IB_OPCODE_RDMA_READ_RESPONSE_ONLY;

	if (last != ends || parsed->length != min_t(u32, wqe->length - offset, qp->pmtu)) {
		ibtun_fail_oldest(qp, IB_WC_LOC_LEN_ERR);
		return;
	}
	if (parsed->length) {
		if (own->reading.of != wqe || own->reading.offset != offset)
			rvt_restart_sge(&qp->s_rdma_read_sge, wqe, offset);
		rvt_copy_sge(qp, &qp->s_rdma_read_sge, (void *)parsed->payload, parsed->length,
			     false, false);
		own->reading.of = wqe;
		own->reading.offset = offset + parsed->length;
	}
	if (last) {
		ibtun_complete_response(qp);
		return;
	}
	qp->s_last_psn = parsed->psn;
	/* It was about to be asked for again. */
	if (ibtun_cmp(qp->s_psn, qp->s_last_psn) <= 0)
		qp->s_psn = qp->s_last_psn + 1;
	ibtun_made_progress(qp);
}

static void ibtun_receive_atomic(struct rvt_qp *qp, const struct ibtun_parsed *parsed)
{
	struct rvt_swqe *wqe = ibtun_oldest(qp);
	u64 value = (u64)be32_to_cpu(parsed->extension[1]) << 32 |
		    be32_to_cpu(parsed->extension[2]);

	*(u64 *)wqe->sg_list[0].vaddr = value;
	ibtun_complete_response(qp);
}

/* IBA volume 1, 9.9.3.1.2: how each NAK completes the request. */
static enum ib_wc_status ibtun_nak_status(u32 syndrome)
{
	switch (syndrome) {
	case IB_NAK_INVALID_REQUEST:
		return IB_WC_REM_INV_REQ_ERR;
	case IB_NAK_REMOTE_ACCESS_ERROR:
		return IB_WC_REM_ACCESS_ERR;
	case IB_NAK_REMOTE_OPERATIONAL_ERROR:
		return IB_WC_REM_OP_ERR;
	default:
		return IB_WC_BAD_RESP_ERR;
	}
}

static void ibtun_receive_rnr(struct rvt_qp *qp, u32 aeth)
{
	ibtun_count(ibtun_port_of(qp), IBTUN_RC_RNR_NAKS);
	if (qp->s_flags & RVT_S_WAIT_RNR)
		return;
	if (!qp->s_rnr_retry) {
		ibtun_fail_oldest(qp, IB_WC_RNR_RETRY_EXC_ERR);
		return;
	}
	/* 7 is for ever. */
	if (qp->s_rnr_retry_cnt < 7)
		qp->s_rnr_retry--;
	ibtun_trace_retry(qp, "rnr-nak");
	ibtun_go_back(qp);
	rvt_stop_rc_timers(qp);
	rvt_add_rnr_timer(qp, aeth);
}

/* A NAK, whose PSN is that of the request it is about. */
static void ibtun_receive_nak(struct rvt_qp *qp, u32 psn, u32 aeth)
{
	u32 syndrome = aeth >> 24;

	if (!ibtun_acknowledge(qp, psn - 1) || !ibtun_is_outstanding(qp))
		return;
	if ((syndrome >> 5) == IB_RNR_NAK >> 5) {
		ibtun_receive_rnr(qp, aeth);
	} else if (syndrome == IB_NAK_PSN_ERROR) {
		ibtun_count(ibtun_port_of(qp), IBTUN_RC_SEQUENCE_NAKS);
		ibtun_retry(qp, "sequence-nak");
	} else {
		ibtun_fail_oldest(qp, ibtun_nak_status(syndrome));
	}
}

/* Whether the oldest request waits for this response. */
static bool ibtun_is_awaited(struct rvt_qp *qp, u8 operation, u32 psn)
{
	struct rvt_swqe *wqe;

	if (!ibtun_is_outstanding(qp) || ibtun_cmp(psn, qp->s_last_psn + 1))
		return false;
	wqe = ibtun_oldest(qp);
	if (operation == IB_OPCODE_ATOMIC_ACKNOWLEDGE)
		return ibtun_is_atomic(wqe);
	return wqe->wr.opcode == IB_WR_RDMA_READ;
}

void ibtun_receive_response(struct rvt_qp *qp, const struct ibtun_parsed *parsed)
{
	u8 operation = IBTUN_OPERATION(parsed->opcode);
	struct ibtun_hca *hca = ibtun_from_ib(qp->ibqp.device);
	struct ibtun_qp *own = qp->priv;
	u32 aeth;

	/* Of what was never sent, or heard already. */
	if (!ibtun_can(qp, RVT_PROCESS_SEND_OK) || !ibtun_is_outstanding(qp) ||
	    ibtun_cmp(parsed->psn, qp->s_last_psn) <= 0 || ibtun_cmp(parsed->psn, own->sent) >= 0) {
		ibtun_drop(ibtun_port_of(qp), IBTUN_RX_DROP_SEQUENCE);
		return;
	}
	if (operation == IB_OPCODE_ACKNOWLEDGE) {
		aeth = be32_to_cpu(parsed->extension[0]);
		if (aeth >> 29)
			ibtun_receive_nak(qp, parsed->psn, aeth);
		else
			ibtun_acknowledge(qp, parsed->psn);
	} else {
		/* A response acknowledges all that was asked before. */
		ibtun_acknowledge(qp, parsed->psn - 1);
		if (!ibtun_is_awaited(qp, operation, parsed->psn))
			ibtun_drop(ibtun_port_of(qp), IBTUN_RX_DROP_SEQUENCE);
		else if (operation == IB_OPCODE_ATOMIC_ACKNOWLEDGE)
			ibtun_receive_atomic(qp, parsed);
		else
			ibtun_receive_read(qp, parsed);
	}
	if (qp->s_cur != READ_ONCE(qp->s_head))
		queue_work(hca->senders, &own->send);
}
