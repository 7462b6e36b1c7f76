// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Traces what consumers call: each function here calls rdmavt's, and tells of it.
 * What they make is listed until they destroy it.
 * Receives that a program posts do not come by: libipathverbs writes them to
 * memory that it shares with rdmavt.
 */
#include <linux/hash.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>

#include "ibtun.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

/* rdmavt's functions, the same for each HCA. */
static typeof(((struct ib_device *)NULL)->ops) ibtun_rdmavt;

static void ibtun_trace(struct ib_device *ibdev, const char *call, const char *kind, u32 object,
			const char *name, u64 value, long result)
{
	trace_ibtun_call(ibtun_from_ib(ibdev)->unit, call, kind, object, name, value, result);
}

/* A queue has no number that its program knows: one that is its own while it is there. */
static u32 ibtun_number_of(const void *queue)
{
	return hash_ptr(queue, 32);
}

static int ibtun_alloc_ucontext(struct ib_ucontext *context, struct ib_udata *udata)
{
	int err = ibtun_rdmavt.alloc_ucontext(context, udata);
	u32 number = ibtun_number_of(context);

	ibtun_trace(context->device, "alloc_ucontext", "context", number, "pid",
		    task_tgid_nr(current), err);
	if (!err)
		ibtun_object_add(context->device, "context", number, context, NULL);
	return err;
}

static void ibtun_dealloc_ucontext(struct ib_ucontext *context)
{
	ibtun_trace(context->device, "free_ucontext", "context", ibtun_number_of(context), "pid",
		    task_tgid_nr(current), 0);
	kfree(ibtun_object_take(context->device, context));
	ibtun_rdmavt.dealloc_ucontext(context);
}

static int ibtun_alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	int err = ibtun_rdmavt.alloc_pd(pd, udata);
	u32 number = ibtun_number_of(pd);

	ibtun_trace(pd->device, "alloc_pd", "pd", number, "user", !!udata, err);
	if (!err)
		ibtun_object_add(pd->device, "pd", number, pd, &pd->uobject);
	return err;
}

static int ibtun_dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	struct ibtun_object *listed = ibtun_object_take(pd->device, pd);

	ibtun_trace(pd->device, "dealloc_pd", "pd", ibtun_number_of(pd), "user", !!udata, 0);
	return ibtun_object_end(listed, ibtun_rdmavt.dealloc_pd(pd, udata));
}

#ifdef IBTUN_CORE_ALLOCATES_QP
static int ibtun_create_qp(struct ib_qp *qp, struct ib_qp_init_attr *attr, struct ib_udata *udata)
{
	int err = ibtun_rdmavt.create_qp(qp, attr, udata);

	ibtun_trace(qp->device, "create_qp", "qp", qp->qp_num, "type", attr->qp_type, err);
	if (!err)
		ibtun_object_add(qp->device, "qp", qp->qp_num, qp, &qp->uobject);
	return err;
}
#else
static struct ib_qp *ibtun_create_qp(struct ib_pd *pd, struct ib_qp_init_attr *attr,
				     struct ib_udata *udata)
{
	struct ib_qp *qp = ibtun_rdmavt.create_qp(pd, attr, udata);

	ibtun_trace(pd->device, "create_qp", "qp", IS_ERR(qp) ? 0 : qp->qp_num, "type",
		    attr->qp_type, PTR_ERR_OR_ZERO(qp));
	if (!IS_ERR(qp))
		ibtun_object_add(pd->device, "qp", qp->qp_num, qp, &qp->uobject);
	return qp;
}
#endif

static int ibtun_change_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask,
			   struct ib_udata *udata)
{
	int err = ibtun_rdmavt.modify_qp(qp, attr, mask, udata);

	ibtun_trace(qp->device, "modify_qp", "qp", qp->qp_num, "state",
		    ibqp_to_rvtqp(qp)->state, err);
	return err;
}

static int ibtun_destroy_qp(struct ib_qp *qp, struct ib_udata *udata)
{
	struct ibtun_object *listed = ibtun_object_take(qp->device, qp);

	ibtun_trace(qp->device, "destroy_qp", "qp", qp->qp_num, "type", qp->qp_type, 0);
	return ibtun_object_end(listed, ibtun_rdmavt.destroy_qp(qp, udata));
}

static int ibtun_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
			   const struct ib_send_wr **bad)
{
	u64 id = wr->wr_id;
	int err = ibtun_rdmavt.post_send(qp, wr, bad);

	ibtun_trace(qp->device, "post_send", "qp", qp->qp_num, "wr_id", id, err);
	return err;
}

static int ibtun_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
			   const struct ib_recv_wr **bad)
{
	u64 id = wr->wr_id;
	int err = ibtun_rdmavt.post_recv(qp, wr, bad);

	ibtun_trace(qp->device, "post_recv", "qp", qp->qp_num, "wr_id", id, err);
	return err;
}

static int ibtun_create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *attr,
			   struct ibtun_cq_context *context)
{
	int err = ibtun_rdmavt.create_cq(cq, attr, context);

	ibtun_trace(cq->device, "create_cq", "cq", ibtun_number_of(cq), "entries", attr->cqe, err);
	if (!err)
		ibtun_object_add(cq->device, "cq", ibtun_number_of(cq), cq, &cq->uobject);
	return err;
}

static int ibtun_destroy_cq(struct ib_cq *cq, struct ib_udata *udata)
{
	struct ibtun_object *listed = ibtun_object_take(cq->device, cq);

	ibtun_trace(cq->device, "destroy_cq", "cq", ibtun_number_of(cq), "entries", cq->cqe, 0);
	return ibtun_object_end(listed, ibtun_rdmavt.destroy_cq(cq, udata));
}

static int ibtun_create_srq(struct ib_srq *srq, struct ib_srq_init_attr *attr,
			    struct ib_udata *udata)
{
	int err = ibtun_rdmavt.create_srq(srq, attr, udata);

	ibtun_trace(srq->device, "create_srq", "srq", ibtun_number_of(srq), "entries",
		    attr->attr.max_wr, err);
	if (!err)
		ibtun_object_add(srq->device, "srq", ibtun_number_of(srq), srq, &srq->uobject);
	return err;
}

static int ibtun_destroy_srq(struct ib_srq *srq, struct ib_udata *udata)
{
	struct ibtun_object *listed = ibtun_object_take(srq->device, srq);

	ibtun_trace(srq->device, "destroy_srq", "srq", ibtun_number_of(srq), "entries",
		    ibsrq_to_rvtsrq(srq)->rq.size - 1, 0);
	return ibtun_object_end(listed, ibtun_rdmavt.destroy_srq(srq, udata));
}

static int ibtun_create_ah(struct ib_ah *ah, struct rdma_ah_init_attr *attr,
			   struct ib_udata *udata)
{
	int err = ibtun_rdmavt.create_ah(ah, attr, udata);

	ibtun_trace(ah->device, "create_ah", "lid", rdma_ah_get_dlid(attr->ah_attr), "port",
		    rdma_ah_get_port_num(attr->ah_attr), err);
	if (!err)
		ibtun_object_add(ah->device, "lid", rdma_ah_get_dlid(attr->ah_attr), ah,
				 &ah->uobject);
	return err;
}

static int ibtun_destroy_ah(struct ib_ah *ah, u32 flags)
{
	struct ibtun_object *listed = ibtun_object_take(ah->device, ah);
	const struct rdma_ah_attr *attr = &ibah_to_rvtah(ah)->attr;

	ibtun_trace(ah->device, "destroy_ah", "lid", rdma_ah_get_dlid(attr), "port",
		    rdma_ah_get_port_num(attr), 0);
	return ibtun_object_end(listed, ibtun_rdmavt.destroy_ah(ah, flags));
}

/* For programs, whose memory has a handle, and the kernel, whose has none. */
static struct ib_mr *ibtun_made_mr(struct ib_pd *pd, const char *call, struct ib_mr *mr,
				   const char *name, u64 value, bool user)
{
	ibtun_trace(pd->device, call, "lkey", IS_ERR(mr) ? 0 : mr->lkey, name, value,
		    PTR_ERR_OR_ZERO(mr));
	if (!IS_ERR(mr))
		ibtun_object_add(pd->device, "lkey", mr->lkey, mr, user ? &mr->uobject : NULL);
	return mr;
}

static struct ib_mr *ibtun_get_dma_mr(struct ib_pd *pd, int access)
{
	return ibtun_made_mr(pd, "get_dma_mr", ibtun_rdmavt.get_dma_mr(pd, access), "access",
			     access, false);
}

static struct ib_mr *ibtun_alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 pages)
{
	return ibtun_made_mr(pd, "alloc_mr", ibtun_rdmavt.alloc_mr(pd, type, pages), "pages",
			     pages, false);
}

#ifdef IBTUN_HAS_DMAH
static struct ib_mr *ibtun_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 address,
				       int access, struct ib_dmah *dmah, struct ib_udata *udata)
{
	return ibtun_made_mr(pd, "reg_user_mr",
			     ibtun_rdmavt.reg_user_mr(pd, start, length, address, access, dmah,
						      udata),
			     "length", length, true);
}
#else
static struct ib_mr *ibtun_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 address,
				       int access, struct ib_udata *udata)
{
	return ibtun_made_mr(pd, "reg_user_mr",
			     ibtun_rdmavt.reg_user_mr(pd, start, length, address, access, udata),
			     "length", length, true);
}
#endif

static int ibtun_dereg_mr(struct ib_mr *mr, struct ib_udata *udata)
{
	struct ibtun_object *listed = ibtun_object_take(mr->device, mr);

	ibtun_trace(mr->device, "dereg_mr", "lkey", mr->lkey, "length", mr->length, 0);
	return ibtun_object_end(listed, ibtun_rdmavt.dereg_mr(mr, udata));
}

/*
 * Called before anybody can use the HCA, in each namespace: rdmavt has given it
 * its functions, which we wrap once.
 */
int ibtun_trace_calls(struct ib_device *ibdev)
{
	if (ibdev->ops.post_send == ibtun_post_send) {
		/* rdmavt never forgets that a port had its QPs 0 and 1. */
		ib_to_rvt(ibdev)->qp_dev->qpn_table.flags = 0;
		return 0;
	}
	ibtun_rdmavt = ibdev->ops;
	ibdev->ops.alloc_ucontext = ibtun_alloc_ucontext;
	ibdev->ops.dealloc_ucontext = ibtun_dealloc_ucontext;
	ibdev->ops.alloc_pd = ibtun_alloc_pd;
	ibdev->ops.dealloc_pd = ibtun_dealloc_pd;
	ibdev->ops.create_qp = ibtun_create_qp;
	ibdev->ops.modify_qp = ibtun_change_qp;
	ibdev->ops.destroy_qp = ibtun_destroy_qp;
	ibdev->ops.post_send = ibtun_post_send;
	ibdev->ops.post_recv = ibtun_post_recv;
	ibdev->ops.create_cq = ibtun_create_cq;
	ibdev->ops.destroy_cq = ibtun_destroy_cq;
	ibdev->ops.create_srq = ibtun_create_srq;
	ibdev->ops.destroy_srq = ibtun_destroy_srq;
	ibdev->ops.create_ah = ibtun_create_ah;
#ifdef IBTUN_HAS_USER_AH
	ibdev->ops.create_user_ah = ibtun_create_ah;
#endif
	ibdev->ops.destroy_ah = ibtun_destroy_ah;
	ibdev->ops.get_dma_mr = ibtun_get_dma_mr;
	ibdev->ops.alloc_mr = ibtun_alloc_mr;
	ibdev->ops.reg_user_mr = ibtun_reg_user_mr;
	ibdev->ops.dereg_mr = ibtun_dereg_mr;
	return 0;
}
