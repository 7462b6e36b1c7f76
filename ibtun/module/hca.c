// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * An HCA's life, and what rdmavt asks of a driver.
 *
 * rdmavt has the verbs: protection domains, memory, queues, address handles,
 * multicast groups, the ABI to user space. It asks for little more than a way
 * to send, and the limits.
 */
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/nodemask.h>
#include <linux/numa.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <rdma/ib_mad.h>
#include <rdma/uverbs_ioctl.h>

#include "ibtun.h"
#include "trace.h"

/*
 * rdmavt has no provider of its own in rdma-core: user space finds one by the
 * driver's number, and this one's speaks plain rdmavt and asks for no PCI
 * device.
 */
#define IBTUN_DRIVER_ID		RDMA_DRIVER_QIB

#define IBTUN_MAX_QP		16384
#define IBTUN_QP_TABLE		1024
#define IBTUN_MAX_WR		16383
#define IBTUN_MAX_SGE		64
#define IBTUN_MAX_CQE		0x2ffff
#define IBTUN_MAX_ATOMIC	16
/* rdmavt wants a range of QPs that it does not give away, behind the others. */
#define IBTUN_RESERVED_QPN	0x800000

static DEFINE_IDA(ibtun_units);
/* Removals. None outlives the module. */
static struct workqueue_struct *ibtun_removals;

/* rdmavt prints the name of the PCI device that it takes us to be. */
static struct pci_dev ibtun_no_pci_device = { .dev.init_name = "ibtun" };

static struct pci_dev *ibtun_get_pci_dev(struct rvt_dev_info *rdi)
{
	return &ibtun_no_pci_device;
}

static void *ibtun_qp_priv_alloc(struct rvt_dev_info *rdi, struct rvt_qp *qp)
{
	struct ibtun_qp *own = kzalloc_node(sizeof(*own), GFP_KERNEL, rdi->dparms.node);

	if (!own)
		return ERR_PTR(-ENOMEM);
	own->qp = qp;
	INIT_WORK(&own->send, ibtun_send_work);
	INIT_DELAYED_WORK(&own->ack, ibtun_ack_work);
	INIT_LIST_HEAD(&own->waiting);
	return own;
}

static void ibtun_qp_priv_free(struct rvt_dev_info *rdi, struct rvt_qp *qp)
{
	ibtun_give_number_back(ibtun_from_rdi(rdi), qp->ibqp.qp_num);
	kfree(qp->priv);
}

static bool ibtun_schedule_send(struct rvt_qp *qp)
{
	struct ibtun_hca *hca = ibtun_from_ib(qp->ibqp.device);
	struct ibtun_qp *own = qp->priv;

	return queue_work(hca->senders, &own->send);
}

/* Called before and after rdmavt stops its timers, which schedule sends. */
static void ibtun_stop_send(struct rvt_qp *qp)
{
	struct ibtun_qp *own = qp->priv;

	ibtun_queue_forget(ibtun_from_ib(qp->ibqp.device), own);
	/* Each may start the other, but not once the queue pair is reset. */
	cancel_delayed_work_sync(&own->ack);
	cancel_work_sync(&own->send);
}

static unsigned int ibtun_free_all_qps(struct rvt_dev_info *rdi)
{
	return 0;
}

static int ibtun_get_pmtu_from_attr(struct rvt_dev_info *rdi, struct rvt_qp *qp,
				    struct ib_qp_attr *attr)
{
	if (attr->path_mtu > ibtun_from_rdi(rdi)->mtu)
		return -EINVAL;
	return attr->path_mtu;
}

static u32 ibtun_mtu_from_qp(struct rvt_dev_info *rdi, struct rvt_qp *qp, u32 pmtu)
{
	return ib_mtu_enum_to_int(pmtu);
}

static int ibtun_mtu_to_path_mtu(u32 mtu)
{
	return ib_mtu_int_to_enum(mtu);
}

/* A port goes down when the process says so. */
static int ibtun_shut_down_port(struct rvt_dev_info *rdi, ibtun_number number)
{
	return -EOPNOTSUPP;
}

static void ibtun_cap_mask_chg(struct rvt_dev_info *rdi, ibtun_number number)
{
}

static int ibtun_check_ah(struct ib_device *ibdev, struct rdma_ah_attr *attr)
{
	return rdma_ah_get_sl(attr) > 15 ? -EINVAL : 0;
}

static void ibtun_notify_new_ah(struct ib_device *ibdev, struct rdma_ah_attr *attr,
				struct rvt_ah *ah)
{
	/* Of a UD message one packet is sent, whatever its length. */
	ah->log_pmtu = ilog2(ib_mtu_enum_to_int(IB_MTU_4096));
}

static const struct rvt_driver_provided ibtun_driver = {
	.get_pci_dev = ibtun_get_pci_dev,
	.qp_priv_alloc = ibtun_qp_priv_alloc,
	.qp_priv_free = ibtun_qp_priv_free,
	.free_all_qps = ibtun_free_all_qps,
	.schedule_send = ibtun_schedule_send,
	.schedule_send_no_lock = ibtun_schedule_send,
	.do_send = ibtun_do_send,
	.setup_wqe = ibtun_setup_wqe,
	.stop_send_queue = ibtun_stop_send,
	.quiesce_qp = ibtun_stop_send,
	.check_modify_qp = ibtun_check_modify,
	.modify_qp = ibtun_modify_qp,
	.flush_qp_waiters = ibtun_notify_error,
	.notify_qp_reset = ibtun_notify_reset,
	.notify_error_qp = ibtun_notify_error,
	.notify_restart_rc = ibtun_notify_restart,
	.get_pmtu_from_attr = ibtun_get_pmtu_from_attr,
	.mtu_from_qp = ibtun_mtu_from_qp,
	.mtu_to_path_mtu = ibtun_mtu_to_path_mtu,
	.get_guid_be = ibtun_get_guid,
	.query_port_state = ibtun_query_port_state,
	.shut_down_port = ibtun_shut_down_port,
	.cap_mask_chg = ibtun_cap_mask_chg,
	.check_ah = ibtun_check_ah,
	.notify_new_ah = ibtun_notify_new_ah,
};

#define IBTUN_CONNECTED		(BIT(IB_QPT_UC) | BIT(IB_QPT_RC))
#define IBTUN_DATAGRAM		(BIT(IB_QPT_UD) | BIT(IB_QPT_SMI) | BIT(IB_QPT_GSI))

/* What can be sent, by whom, and how much of the request rdmavt copies. */
static const struct rvt_operation_params ibtun_operations[RVT_OPERATION_MAX] = {
	[IB_WR_SEND] = {
		.length = sizeof(struct ib_send_wr),
		.qpt_support = IBTUN_DATAGRAM | IBTUN_CONNECTED,
	},
	[IB_WR_SEND_WITH_IMM] = {
		.length = sizeof(struct ib_send_wr),
		.qpt_support = IBTUN_DATAGRAM | IBTUN_CONNECTED,
	},
	[IB_WR_RDMA_WRITE] = {
		.length = sizeof(struct ib_rdma_wr),
		.qpt_support = IBTUN_CONNECTED,
	},
	[IB_WR_RDMA_WRITE_WITH_IMM] = {
		.length = sizeof(struct ib_rdma_wr),
		.qpt_support = IBTUN_CONNECTED,
	},
	[IB_WR_RDMA_READ] = {
		.length = sizeof(struct ib_rdma_wr),
		.qpt_support = BIT(IB_QPT_RC),
		.flags = RVT_OPERATION_ATOMIC,
	},
	[IB_WR_ATOMIC_CMP_AND_SWP] = {
		.length = sizeof(struct ib_atomic_wr),
		.qpt_support = BIT(IB_QPT_RC),
		.flags = RVT_OPERATION_ATOMIC | RVT_OPERATION_ATOMIC_SGE,
	},
	[IB_WR_ATOMIC_FETCH_AND_ADD] = {
		.length = sizeof(struct ib_atomic_wr),
		.qpt_support = BIT(IB_QPT_RC),
		.flags = RVT_OPERATION_ATOMIC | RVT_OPERATION_ATOMIC_SGE,
	},
	[IB_WR_SEND_WITH_INV] = {
		.length = sizeof(struct ib_send_wr),
		.qpt_support = BIT(IB_QPT_RC),
	},
	[IB_WR_REG_MR] = {
		.length = sizeof(struct ib_reg_wr),
		.qpt_support = IBTUN_CONNECTED,
		.flags = RVT_OPERATION_LOCAL,
	},
	[IB_WR_LOCAL_INV] = {
		.length = sizeof(struct ib_send_wr),
		.qpt_support = IBTUN_CONNECTED,
		.flags = RVT_OPERATION_LOCAL,
	},
};

/* What a completion says of a request. */
static const enum ib_wc_opcode ibtun_completions[RVT_OPERATION_MAX] = {
	[IB_WR_SEND] = IB_WC_SEND,
	[IB_WR_SEND_WITH_IMM] = IB_WC_SEND,
	[IB_WR_SEND_WITH_INV] = IB_WC_SEND,
	[IB_WR_RDMA_WRITE] = IB_WC_RDMA_WRITE,
	[IB_WR_RDMA_WRITE_WITH_IMM] = IB_WC_RDMA_WRITE,
	[IB_WR_RDMA_READ] = IB_WC_RDMA_READ,
	[IB_WR_ATOMIC_CMP_AND_SWP] = IB_WC_COMP_SWAP,
	[IB_WR_ATOMIC_FETCH_AND_ADD] = IB_WC_FETCH_ADD,
	[IB_WR_REG_MR] = IB_WC_REG_MR,
	[IB_WR_LOCAL_INV] = IB_WC_LOCAL_INV,
};

static struct rdma_hw_stats *ibtun_alloc_stats(struct ib_device *ibdev, ibtun_number number)
{
	/* Old kernels also ask for those of the device, of which there are none. */
	if (!number)
		return NULL;
	return rdma_alloc_hw_stats_struct(ibtun_counter_names, IBTUN_COUNTERS,
					  RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

static int ibtun_get_stats(struct ib_device *ibdev, struct rdma_hw_stats *stats,
			   ibtun_number number, int index)
{
	struct ibtun_hca_port *port = ibtun_port_numbered(ibtun_from_ib(ibdev), number);
	unsigned int counter;

	if (!port)
		return -EINVAL;
	for (counter = 0; counter < IBTUN_COUNTERS; counter++)
		stats->value[counter] = atomic64_read(&port->counter[counter]);
	return IBTUN_COUNTERS;
}

/* The node's description is the process's, which answers for it to the SM. */
static int ibtun_modify_device(struct ib_device *ibdev, int mask, struct ib_device_modify *modify)
{
	return -EOPNOTSUPP;
}

/* A port has no files of its own, and rdmavt insists on being told so. */
#ifdef IBTUN_HAS_INIT_PORT
static int ibtun_init_port(struct ib_device *ibdev, ibtun_number number, struct kobject *kobj)
{
	return 0;
}
#else
static const struct attribute_group *ibtun_no_port_groups[] = { NULL };
#endif

static const struct ib_device_ops ibtun_ops = {
	.owner = THIS_MODULE,
	.driver_id = IBTUN_DRIVER_ID,
	.IBTUN_ALLOC_STATS = ibtun_alloc_stats,
	.get_hw_stats = ibtun_get_stats,
	.enable_driver = ibtun_trace_calls,
	.modify_device = ibtun_modify_device,
	.modify_port = ibtun_modify_port,
	.query_gid = ibtun_query_gid,
#ifdef IBTUN_HAS_INIT_PORT
	.init_port = ibtun_init_port,
#else
	.port_groups = ibtun_no_port_groups,
#endif
};

static bool ibtun_movable;
module_param_named(movable, ibtun_movable, bool, 0644);
MODULE_PARM_DESC(movable, "New HCAs can be moved to network namespaces, and programs cannot map queues");

/* A program that has mapped nothing has nothing to give back. */
static void ibtun_disassociate(struct ib_ucontext *context)
{
}

/* rdmavt frees what is mapped by way of the context, which a move ends. */
static int ibtun_refuse_mmap(struct ib_ucontext *context, struct vm_area_struct *vma)
{
	return -EOPNOTSUPP;
}

static const struct ib_device_ops ibtun_movable_ops = {
	.disassociate_ucontext = ibtun_disassociate,
	.mmap = ibtun_refuse_mmap,
};

/* rdmavt's own, which it would use after a move has ended them. We send by none. */
static void ibtun_end_agents(struct rvt_dev_info *rdi)
{
	unsigned int index;

	for (index = 0; index < rdi->dparms.nports; index++) {
		ib_unregister_mad_agent(rdi->ports[index]->send_agent);
		rdi->ports[index]->send_agent = NULL;
	}
}

static void ibtun_init_limits(struct rvt_driver_params *params, const struct ibtun_create *create)
{
	params->props = (struct ib_device_attr) {
		.sys_image_guid = create->system_image_guid,
		.max_mr_size = ~0ull,
		.page_size_cap = PAGE_SIZE,
		/* A GUID begins with its vendor's number (IBA 4.1.1, EUI-64). */
		.vendor_id = be64_to_cpu(create->node_guid) >> 40,
		.max_qp = IBTUN_MAX_QP,
		.max_qp_wr = IBTUN_MAX_WR,
		.device_cap_flags = IB_DEVICE_BAD_PKEY_CNTR | IB_DEVICE_BAD_QKEY_CNTR |
				    IB_DEVICE_SYS_IMAGE_GUID | IB_DEVICE_RC_RNR_NAK_GEN |
				    IB_DEVICE_PORT_ACTIVE_EVENT | IB_DEVICE_SRQ_RESIZE |
				    IB_DEVICE_MEM_MGT_EXTENSIONS,
		.max_send_sge = IBTUN_MAX_SGE,
		.max_recv_sge = IBTUN_MAX_SGE,
		.max_sge_rd = IBTUN_MAX_SGE,
		.max_cq = 0xffff,
		.max_cqe = IBTUN_MAX_CQE,
		.max_pd = 0xffff,
		.max_ah = 0xffff,
		.max_mr = 0xffff,
		.max_qp_rd_atom = IBTUN_MAX_ATOMIC,
		.max_qp_init_rd_atom = 255,
		.atomic_cap = IB_ATOMIC_GLOB,
		.max_mcast_grp = 16384,
		.max_mcast_qp_attach = 16,
		.max_total_mcast_qp_attach = 16 * 16384,
		.max_srq = 1024,
		.max_srq_wr = 0x1ffff,
		.max_srq_sge = 255,
		.max_fast_reg_page_list_len = 256,
		.max_pkeys = create->pkeys,
	};
	params->lkey_table_size = 16;	/* bits */
	params->qp_table_size = IBTUN_QP_TABLE;
	params->sge_copy_mode = RVT_SGE_COPY_MEMCPY;
	params->qpn_start = 1;
	params->qpn_inc = 1;
	params->qos_shift = 1;
	params->qpn_res_start = IBTUN_RESERVED_QPN;
	params->qpn_res_end = IBTUN_RESERVED_QPN;
	params->nports = create->ports;
	params->npkeys = create->pkeys;
	/* rdmavt asks for memory of this node: there must be one. */
	params->node = first_online_node;
	params->psn_mask = 0xffffff;
	params->psn_modify_mask = 0xffffff;
	params->core_cap_flags = RDMA_CORE_PORT_IBA_IB;
	params->max_mad_size = IB_MGMT_MAD_SIZE;
	params->max_rdma_atomic = IBTUN_MAX_ATOMIC;
}

static void ibtun_hca_free(struct ibtun_hca *hca)
{
	ibtun_debugfs_remove(hca);
	if (hca->senders)
		destroy_workqueue(hca->senders);
	mutex_destroy(&hca->reading);
	ida_free(&ibtun_units, hca->unit);
	rvt_dealloc_device(&hca->rdi);
}

static void ibtun_removal_work(struct work_struct *work)
{
	struct ibtun_hca *hca = container_of(work, struct ibtun_hca, removal);

	rvt_unregister_device(&hca->rdi);
	ibtun_queue_purge(hca);
	ibtun_hca_free(hca);
}

/*
 * Ends an HCA that nobody reads from any more. Who uses it is told now;
 * unregistering waits for them, and so is not for the process to wait for: a
 * fabric that was killed could not end while a verbs program lives.
 */
void ibtun_hca_remove(struct ibtun_hca *hca)
{
	struct ib_event event = {
		.device = &hca->rdi.ibdev,
		.event = IB_EVENT_DEVICE_FATAL,
		.element.port_num = 1,
	};

	ibtun_queue_purge(hca);
	trace_ibtun_event(hca->unit, event.event, "port", 1);
	ib_dispatch_event(&event);
	queue_work(ibtun_removals, &hca->removal);
}

/* Fills in create->name. */
struct ibtun_hca *ibtun_hca_create(struct ibtun_create *create)
{
	struct ibtun_hca *hca;
	struct rvt_dev_info *rdi;
	unsigned int number;
	int err;

	rdi = rvt_alloc_device(struct_size(hca, port, create->ports), create->ports);
	if (!rdi)
		return ERR_PTR(-ENOMEM);
	hca = ibtun_from_rdi(rdi);
	hca->unit = ida_alloc(&ibtun_units, GFP_KERNEL);
	if (hca->unit < 0) {
		err = hca->unit;
		rvt_dealloc_device(rdi);
		return ERR_PTR(err);
	}
	hca->ports = create->ports;
	hca->mtu = create->mtu;
	hca->guids = create->guids;
	hca->queue_limit = create->queue;
	spin_lock_init(&hca->lock);
	INIT_LIST_HEAD(&hca->queue);
	INIT_LIST_HEAD(&hca->waiting);
	init_waitqueue_head(&hca->readable);
	mutex_init(&hca->reading);
	INIT_WORK(&hca->removal, ibtun_removal_work);
	err = dev_set_name(&rdi->ibdev.dev, "ibtun%d", hca->unit);
	if (err)
		goto free;
	strscpy(create->name, dev_name(&rdi->ibdev.dev), sizeof(create->name));
	ibtun_debugfs_add(hca, create->name);
	hca->senders = alloc_workqueue("%s", WQ_HIGHPRI | WQ_MEM_RECLAIM | IBTUN_WQ_PERCPU, 0,
				       create->name);
	if (!hca->senders) {
		err = -ENOMEM;
		goto free;
	}

	rdi->ibdev.node_guid = create->node_guid;
	rdi->ibdev.phys_port_cnt = create->ports;
	rdi->ibdev.num_comp_vectors = 1;
	strscpy(rdi->ibdev.node_desc, create->node_desc, sizeof(rdi->ibdev.node_desc));
	ibtun_init_limits(&rdi->dparms, create);
	rdi->driver_f = ibtun_driver;
	rdi->post_parms = ibtun_operations;
	rdi->wc_opcode = ibtun_completions;
	for (number = 1; number <= create->ports; number++)
		ibtun_port_init(hca, number, create->port_guid[number - 1]);
	ib_set_device_ops(&rdi->ibdev, &ibtun_ops);
	if (ibtun_movable)
		ib_set_device_ops(&rdi->ibdev, &ibtun_movable_ops);
	err = rvt_register_device(rdi);
	if (err)
		goto free;
	if (rdi->ibdev.ops.disassociate_ucontext)
		ibtun_end_agents(rdi);
	return hca;
free:
	ibtun_hca_free(hca);
	return ERR_PTR(err);
}

int ibtun_hca_init(void)
{
	ibtun_removals = alloc_workqueue("ibtun_removals", WQ_UNBOUND, 0);
	if (!ibtun_removals)
		return -ENOMEM;
	ibtun_debugfs_init();
	return 0;
}

void ibtun_hca_exit(void)
{
	destroy_workqueue(ibtun_removals);
	ibtun_debugfs_exit();
	ida_destroy(&ibtun_units);
}
