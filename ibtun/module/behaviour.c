// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Does on purpose what the specification allows and most HCAs do not:
 * IBTUN_SET_BEHAVIOUR. A program that notices is wrong.
 *
 * All completions pass rvt_cq_enter of rdmavt, also those that it makes by
 * itself. It has no callback for drivers. It has a trace event there, before
 * the completion is copied to where the program sees it.
 */
#include <linux/module.h>
#include <linux/tracepoint.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdmavt_cq.h>

#include "ibtun.h"
#include "trace.h"

/* Each bit is wrong in one of two neighbours. */
#define IBTUN_ODD_BITS		0xa5a5a5a5

/* NULL: there is none. rdmavt is there as long as we are. */
static struct tracepoint *ibtun_completion_event;

bool ibtun_behaves(const struct ibtun_hca *hca, u32 behaviour)
{
	return READ_ONCE(hca->behaviour) & behaviour;
}

/* IBA volume 1, 11.4.2.1: which fields have a meaning. */
static void ibtun_spoil_completion(struct ib_wc *wc, u32 index)
{
	u32 odd = index & 1 ? IBTUN_ODD_BITS : ~IBTUN_ODD_BITS;

	if (wc->status == IB_WC_SUCCESS)
		return;
	wc->opcode = odd;
	wc->byte_len = odd;
	wc->ex.invalidate_rkey = odd;
	wc->src_qp = odd;
	wc->wc_flags = odd;
	wc->pkey_index = odd;
	/* ib_core warns of more bits. */
	wc->slid = (u16)odd;
	wc->sl = odd;
	wc->dlid_path_bits = odd;
	wc->port_num = odd;
}

static void ibtun_completion_probe(void *data, struct rvt_cq *cq, struct ib_wc *wc, u32 index)
{
	struct ibtun_hca *hca = ibtun_from_rdi(cq->rdi);

	/* The event is of all drivers. */
	if (cq->rdi->ibdev.ops.owner != THIS_MODULE)
		return;
	trace_ibtun_completion(hca->unit, wc);
	if (ibtun_behaves(hca, IBTUN_BEHAVIOUR_FIELDS))
		ibtun_spoil_completion(wc, index);
}

static int ibtun_find_event(struct notifier_block *block, unsigned long action, void *data)
{
	const struct tp_module *events = data;
	int index;

	if (action != MODULE_STATE_COMING)
		return NOTIFY_OK;
	for (index = 0; index < events->mod->num_tracepoints; index++) {
		struct tracepoint *event =
			tracepoint_ptr_deref(&events->mod->tracepoints_ptrs[index]);

		if (!strcmp(event->name, "rvt_cq_enter"))
			ibtun_completion_event = event;
	}
	return NOTIFY_OK;
}

int ibtun_behaviour_init(void)
{
	struct notifier_block block = { .notifier_call = ibtun_find_event };

	/* This tells of the modules that there are. */
	register_tracepoint_module_notifier(&block);
	unregister_tracepoint_module_notifier(&block);
	if (!ibtun_completion_event)
		return 0;
	return tracepoint_probe_register(ibtun_completion_event, ibtun_completion_probe, NULL);
}

void ibtun_behaviour_exit(void)
{
	if (!ibtun_completion_event)
		return;
	tracepoint_probe_unregister(ibtun_completion_event, ibtun_completion_probe, NULL);
	tracepoint_synchronize_unregister();
}

int ibtun_set_behaviour(struct ibtun_hca *hca, const struct ibtun_behaviour *set)
{
	if (set->on & ~IBTUN_BEHAVIOURS || set->reserved)
		return -EINVAL;
	if (set->on & IBTUN_BEHAVIOUR_FIELDS && !ibtun_completion_event)
		return -EOPNOTSUPP;
	WRITE_ONCE(hca->behaviour, set->on);
	return 0;
}

/* The queue pair has been destroyed, and its number is free. */
void ibtun_give_number_back(struct ibtun_hca *hca, u32 number)
{
	struct rvt_qpn_table *table = &hca->rdi.qp_dev->qpn_table;

	/* rdmavt looks for a free number behind the last one. 0 and 1 are not given away. */
	if (number > 1 && ibtun_behaves(hca, IBTUN_BEHAVIOUR_NUMBERS))
		WRITE_ONCE(table->last, number - table->incr);
}

/* Exchanges the receive that is next with the one that was posted last. */
static void ibtun_reorder(struct rvt_srq *srq)
{
	struct rvt_rq *queue = &srq->rq;
	u32 words = (sizeof(struct rvt_rwqe) + queue->max_sge * sizeof(struct ib_sge)) /
		    sizeof(u64);
	u64 *first, *last;
	unsigned long flags;
	u32 head, tail;

	spin_lock_irqsave(&queue->kwq->c_lock, flags);
	if (srq->ip) {
		head = RDMA_READ_UAPI_ATOMIC(queue->wq->head);
		tail = RDMA_READ_UAPI_ATOMIC(queue->wq->tail);
	} else {
		/* Pairs with the release of who posts. */
		head = smp_load_acquire(&queue->kwq->head);
		tail = queue->kwq->tail;
	}
	/* A program may write anything there. */
	if (head >= queue->size || tail >= queue->size || head == tail)
		goto out;
	first = (u64 *)rvt_get_rwqe_ptr(queue, tail);
	last = (u64 *)rvt_get_rwqe_ptr(queue, head ? head - 1 : queue->size - 1);
	while (words--)
		swap(first[words], last[words]);
out:
	spin_unlock_irqrestore(&queue->kwq->c_lock, flags);
}

/* Takes the next receive, as rvt_get_rwqe does. */
int ibtun_get_receive(struct rvt_qp *qp, bool id_only)
{
	struct ibtun_hca *hca = ibtun_from_ib(qp->ibqp.device);

	if (qp->ibqp.srq && ibtun_behaves(hca, IBTUN_BEHAVIOUR_SRQ_ORDER))
		ibtun_reorder(ibsrq_to_rvtsrq(qp->ibqp.srq));
	return rvt_get_rwqe(qp, id_only);
}
