// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Receives the packets of SEND and RDMA WRITE, whose order the caller has
 * checked, for RC and UC. Nothing is copied before all is checked.
 */
#include <rdma/ib_pack.h>
#include <rdma/ib_verbs.h>

#include "ibtun.h"

/* What an opcode says of a packet. */
struct ibtun_part {
	bool write;
	bool starts;		/* is FIRST or ONLY */
	bool ends;		/* is LAST or ONLY */
	bool immediate;
	bool invalidate;
};

static struct ibtun_part ibtun_part_of(u8 operation)
{
	switch (operation) {
	case IB_OPCODE_SEND_FIRST:
		return (struct ibtun_part) { .starts = true };
	case IB_OPCODE_SEND_LAST:
		return (struct ibtun_part) { .ends = true };
	case IB_OPCODE_SEND_LAST_WITH_IMMEDIATE:
		return (struct ibtun_part) { .ends = true, .immediate = true };
	case IB_OPCODE_SEND_LAST_WITH_INVALIDATE:
		return (struct ibtun_part) { .ends = true, .invalidate = true };
	case IB_OPCODE_SEND_ONLY:
		return (struct ibtun_part) { .starts = true, .ends = true };
	case IB_OPCODE_SEND_ONLY_WITH_IMMEDIATE:
		return (struct ibtun_part) { .starts = true, .ends = true, .immediate = true };
	case IB_OPCODE_SEND_ONLY_WITH_INVALIDATE:
		return (struct ibtun_part) { .starts = true, .ends = true, .invalidate = true };
	case IB_OPCODE_RDMA_WRITE_FIRST:
		return (struct ibtun_part) { .write = true, .starts = true };
	case IB_OPCODE_RDMA_WRITE_MIDDLE:
		return (struct ibtun_part) { .write = true };
	case IB_OPCODE_RDMA_WRITE_LAST:
		return (struct ibtun_part) { .write = true, .ends = true };
	case IB_OPCODE_RDMA_WRITE_LAST_WITH_IMMEDIATE:
		return (struct ibtun_part) { .write = true, .ends = true, .immediate = true };
	case IB_OPCODE_RDMA_WRITE_ONLY:
		return (struct ibtun_part) { .write = true, .starts = true, .ends = true };
	case IB_OPCODE_RDMA_WRITE_ONLY_WITH_IMMEDIATE:
		return (struct ibtun_part) { .write = true, .starts = true, .ends = true,
					     .immediate = true };
	default:
		return (struct ibtun_part) { };	/* IB_OPCODE_SEND_MIDDLE */
	}
}

/*
 * On UC the rest of a message may never come, and its receive is then for the
 * next one: the memory as it was is kept in s_rdma_read_sge, which UC has no
 * other use for, and which owns the references.
 */
static bool ibtun_keeps_receive(const struct rvt_qp *qp)
{
	return qp->ibqp.qp_type == IB_QPT_UC;
}

/* Lets go of the message that is being received. */
void ibtun_abandon(struct rvt_qp *qp)
{
	struct ibtun_qp *own = qp->priv;

	if (own->receiving == IBTUN_SEND_MESSAGE && ibtun_keeps_receive(qp)) {
		qp->r_sge.num_sge = 0;
		set_bit(RVT_R_REWIND_SGE, &qp->r_aflags);
	} else if (own->receiving == IBTUN_WRITE_MESSAGE) {
		rvt_put_ss(&qp->r_sge);
	}
	own->receiving = IBTUN_NO_MESSAGE;
}

/* Finds the receive of a SEND. */
static enum ibtun_verdict ibtun_begin_send(struct rvt_qp *qp)
{
	int ret;

	if (test_and_clear_bit(RVT_R_REWIND_SGE, &qp->r_aflags)) {
		qp->r_sge = qp->s_rdma_read_sge;
		qp->r_len = qp->r_sge.total_len;
		return IBTUN_TAKEN;
	}
	ret = ibtun_get_receive(qp, false);
	if (ret < 0)
		return IBTUN_NO_OPERATION;
	if (!ret)
		return IBTUN_NO_RECEIVE;
	if (ibtun_keeps_receive(qp))
		qp->s_rdma_read_sge = qp->r_sge;
	return IBTUN_TAKEN;
}

/* Takes a receive whose completion reports an RDMA WRITE; its memory is not used. */
static enum ibtun_verdict ibtun_begin_notice(struct rvt_qp *qp)
{
	int ret;

	if (test_and_clear_bit(RVT_R_REWIND_SGE, &qp->r_aflags)) {
		rvt_put_ss(&qp->s_rdma_read_sge);
		return IBTUN_TAKEN;
	}
	ret = ibtun_get_receive(qp, true);
	if (ret < 0)
		return IBTUN_NO_OPERATION;
	return ret ? IBTUN_TAKEN : IBTUN_NO_RECEIVE;
}

/* Finds the memory of an RDMA WRITE, by its RETH. */
static enum ibtun_verdict ibtun_begin_write(struct rvt_qp *qp, const struct ibtun_parsed *parsed)
{
	u64 address = (u64)be32_to_cpu(parsed->extension[0]) << 32 |
		      be32_to_cpu(parsed->extension[1]);
	u32 rkey = be32_to_cpu(parsed->extension[2]);
	u32 length = be32_to_cpu(parsed->extension[3]);

	if (!(qp->qp_access_flags & IB_ACCESS_REMOTE_WRITE) || length > IBTUN_MAX_MESSAGE)
		return IBTUN_INVALID;
	qp->r_sge.sg_list = NULL;
	qp->r_sge.num_sge = 0;
	qp->r_sge.total_len = length;
	qp->r_len = length;
	if (!length)
		return IBTUN_TAKEN;
	/* An R_Key of 0 is all of the kernel's memory. */
	if (!rkey || !rvt_rkey_ok(qp, &qp->r_sge.sge, length, address, rkey,
				  IB_ACCESS_REMOTE_WRITE))
		return IBTUN_NO_ACCESS;
	qp->r_sge.num_sge = 1;
	return IBTUN_TAKEN;
}

/* The message is here: tells the consumer, if there is a receive for it. */
static void ibtun_finish(struct rvt_qp *qp, const struct ibtun_parsed *parsed,
			 struct ibtun_part part)
{
	struct ib_wc wc = {
		.status = IB_WC_SUCCESS,
		.opcode = part.write ? IB_WC_RECV_RDMA_WITH_IMM : IB_WC_RECV,
		.qp = &qp->ibqp,
		.src_qp = qp->remote_qpn,
		.byte_len = qp->r_rcv_len,
		.slid = parsed->slid,
		.sl = parsed->sl,
		.port_num = qp->port_num,
	};

	if (!part.write && ibtun_keeps_receive(qp)) {
		qp->r_sge.num_sge = 0;
		rvt_put_ss(&qp->s_rdma_read_sge);
	} else {
		rvt_put_ss(&qp->r_sge);
	}
	if (part.write && !part.immediate)
		return;
	if (!test_and_clear_bit(RVT_R_WRID_VALID, &qp->r_aflags))
		return;
	wc.wr_id = qp->r_wr_id;
	if (part.immediate) {
		/* Behind the RETH, if there is one. */
		wc.ex.imm_data = parsed->extension[part.write && part.starts ? 4 : 0];
		wc.wc_flags = IB_WC_WITH_IMM;
	} else if (part.invalidate) {
		wc.ex.invalidate_rkey = be32_to_cpu(parsed->extension[0]);
		wc.wc_flags = IB_WC_WITH_INVALIDATE;
	}
	rvt_recv_cq(qp, &wc, parsed->solicited);
}

/* IBA volume 1, 9.7.4.1.6: only the last packet may be short. */
static bool ibtun_has_length(const struct rvt_qp *qp, const struct ibtun_parsed *parsed,
			     struct ibtun_part part)
{
	if (!part.ends)
		return parsed->length == qp->pmtu;
	return parsed->length <= qp->pmtu && (part.starts || parsed->length);
}

/* Whether the packet fits what remains of the message. */
static enum ibtun_verdict ibtun_check_rest(struct rvt_qp *qp, const struct ibtun_parsed *parsed,
					   struct ibtun_part part, u32 received)
{
	/* Neither sum nor lengths can wrap: a message has at most 2^31 bytes. */
	u32 with = received + parsed->length;

	if (with > qp->r_len)
		return part.write ? IBTUN_INVALID : IBTUN_TOO_LONG;
	if (part.write && part.ends && with != qp->r_len)
		return IBTUN_INVALID;
	if (part.invalidate && rvt_invalidate_rkey(qp, be32_to_cpu(parsed->extension[0])))
		return IBTUN_NO_ACCESS;
	return part.write && part.immediate ? ibtun_begin_notice(qp) : IBTUN_TAKEN;
}

/*
 * Takes a packet that is the next one. Whatever else than IBTUN_TAKEN it
 * returns, it has changed nothing, unless the message cannot go on.
 */
enum ibtun_verdict ibtun_take(struct rvt_qp *qp, const struct ibtun_parsed *parsed)
{
	struct ibtun_part part = ibtun_part_of(IBTUN_OPERATION(parsed->opcode));
	enum ibtun_message kind = part.write ? IBTUN_WRITE_MESSAGE : IBTUN_SEND_MESSAGE;
	struct ibtun_qp *own = qp->priv;
	enum ibtun_verdict verdict;
	u32 received = part.starts ? 0 : qp->r_rcv_len;
	bool release = part.write || !ibtun_keeps_receive(qp);

	if (own->receiving != (part.starts ? IBTUN_NO_MESSAGE : kind) ||
	    !ibtun_has_length(qp, parsed, part))
		return IBTUN_INVALID;
	if (part.starts) {
		verdict = part.write ? ibtun_begin_write(qp, parsed) : ibtun_begin_send(qp);
		if (verdict != IBTUN_TAKEN)
			return verdict;
		own->receiving = kind;
	}
	verdict = ibtun_check_rest(qp, parsed, part, received);
	if (verdict != IBTUN_TAKEN) {
		/* A write begins anew; of a send this is the end. */
		if (part.starts && part.write)
			ibtun_abandon(qp);
		return verdict;
	}
	if (parsed->length)
		rvt_copy_sge(qp, &qp->r_sge, (void *)parsed->payload, parsed->length, release,
			     part.write && rvt_is_user_qp(qp));
	qp->r_rcv_len = received + parsed->length;
	if (part.ends) {
		own->receiving = IBTUN_NO_MESSAGE;
		ibtun_finish(qp, parsed, part);
	}
	return IBTUN_TAKEN;
}
