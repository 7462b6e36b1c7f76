// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What a port is told about itself, and the events that follow.
 */
#include <linux/log2.h>
#include <linux/nospec.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>

#include "ibtun.h"
#include "trace.h"

#define IBTUN_LAST_UNICAST_LID	(IBTUN_MULTICAST_LID - 1)
#define IBTUN_VIOLATIONS_MAX	0xffff
#define IBTUN_DEFAULT_PREFIX	0xfe80000000000000ull

ibtun_counter_name ibtun_counter_names[IBTUN_COUNTERS] = {
	[IBTUN_TX_PACKETS] = IBTUN_COUNTER_NAME("tx_packets"),
	[IBTUN_TX_BYTES] = IBTUN_COUNTER_NAME("tx_bytes"),
	[IBTUN_RX_PACKETS] = IBTUN_COUNTER_NAME("rx_packets"),
	[IBTUN_RX_BYTES] = IBTUN_COUNTER_NAME("rx_bytes"),
	[IBTUN_TX_DROP_QUEUE] = IBTUN_COUNTER_NAME("tx_drop_queue"),
	[IBTUN_TX_DROP_STATE] = IBTUN_COUNTER_NAME("tx_drop_state"),
	[IBTUN_TX_DROP_MEMORY] = IBTUN_COUNTER_NAME("tx_drop_memory"),
	[IBTUN_RX_DROP_MALFORMED] = IBTUN_COUNTER_NAME("rx_drop_malformed"),
	[IBTUN_RX_DROP_STATE] = IBTUN_COUNTER_NAME("rx_drop_state"),
	[IBTUN_RX_DROP_LID] = IBTUN_COUNTER_NAME("rx_drop_lid"),
	[IBTUN_RX_DROP_QP] = IBTUN_COUNTER_NAME("rx_drop_qp"),
	[IBTUN_RX_DROP_PKEY] = IBTUN_COUNTER_NAME("rx_drop_pkey"),
	[IBTUN_RX_DROP_QKEY] = IBTUN_COUNTER_NAME("rx_drop_qkey"),
	[IBTUN_RX_DROP_NO_RECEIVE] = IBTUN_COUNTER_NAME("rx_drop_no_receive"),
	[IBTUN_RC_UNREACHABLE] = IBTUN_COUNTER_NAME("rc_unreachable"),
	[IBTUN_RX_DROP_PATH] = IBTUN_COUNTER_NAME("rx_drop_path"),
	[IBTUN_RX_DROP_SEQUENCE] = IBTUN_COUNTER_NAME("rx_drop_sequence"),
	[IBTUN_RX_DUPLICATES] = IBTUN_COUNTER_NAME("rx_duplicates"),
	[IBTUN_RC_TIME_OUTS] = IBTUN_COUNTER_NAME("rc_time_outs"),
	[IBTUN_RC_SEQUENCE_NAKS] = IBTUN_COUNTER_NAME("rc_sequence_naks"),
	[IBTUN_RC_RNR_NAKS] = IBTUN_COUNTER_NAME("rc_rnr_naks"),
	[IBTUN_RC_LOST_RESPONSES] = IBTUN_COUNTER_NAME("rc_lost_responses"),
	[IBTUN_FAULT_DROPS] = IBTUN_COUNTER_NAME("fault_drops"),
	[IBTUN_FAULT_DUPLICATES] = IBTUN_COUNTER_NAME("fault_duplicates"),
	[IBTUN_FAULT_CORRUPTIONS] = IBTUN_COUNTER_NAME("fault_corruptions"),
	[IBTUN_FAULT_DELAYS] = IBTUN_COUNTER_NAME("fault_delays"),
};

/* Counts a packet that goes no further. Dynamic debug tells of it in the kernel log. */
void ibtun_drop(struct ibtun_hca_port *port, enum ibtun_counter counter)
{
	struct ibtun_hca *hca = container_of(port - (port->number - 1), struct ibtun_hca, port[0]);

	ibtun_count(port, counter);
	ibdev_dbg(&hca->rdi.ibdev, "port %u: %s\n", port->number,
		  IBTUN_COUNTER_TEXT(ibtun_counter_names[counter]));
}

void ibtun_port_init(struct ibtun_hca *hca, u8 number, __be64 guid)
{
	struct ibtun_hca_port *port = &hca->port[number - 1];

	spin_lock_init(&port->lock);
	port->number = number;
	port->state = IB_PORT_DOWN;
	port->phys_state = IB_PORT_PHYS_STATE_POLLING;
	port->mtu = hca->mtu;
	port->width = IB_WIDTH_4X;
	port->speed = IB_SPEED_EDR;
	port->guid[0] = guid;
	port->pkey[0] = IBTUN_DEFAULT_PKEY;
	spin_lock_init(&port->rvp.lock);
	port->rvp.gid_prefix = cpu_to_be64(IBTUN_DEFAULT_PREFIX);
	port->rvp.subnet_timeout = 18;
	rvt_init_port(&hca->rdi, &port->rvp, number - 1, port->pkey);
}

static void ibtun_dispatch(struct ibtun_hca *hca, u8 number, enum ib_event_type kind)
{
	struct ib_event event = {
		.device = &hca->rdi.ibdev,
		.event = kind,
		.element.port_num = number,
	};

	trace_ibtun_event(hca->unit, kind, "port", number);
	ibdev_dbg(&hca->rdi.ibdev, "port %u: %s\n", number, ib_event_msg(kind));
	ib_dispatch_event(&event);
}

static bool ibtun_is_lid(u16 lid)
{
	return lid <= IBTUN_LAST_UNICAST_LID;
}

static bool ibtun_is_valid(const struct ibtun_hca *hca, const struct ibtun_port *set)
{
	return set->state >= IB_PORT_DOWN && set->state <= IB_PORT_ACTIVE &&
	       set->phys_state >= IB_PORT_PHYS_STATE_SLEEP &&
	       set->phys_state <= IB_PORT_PHYS_STATE_PHY_TEST &&
	       set->mtu >= IB_MTU_256 && set->mtu <= hca->mtu &&
	       set->lmc <= 7 && set->sm_sl <= 15 && set->subnet_timeout <= 31 &&
	       set->width && set->width <= IB_WIDTH_2X && is_power_of_2(set->width) &&
	       set->speed && set->speed <= IB_SPEED_NDR && is_power_of_2(set->speed) &&
	       ibtun_is_lid(set->lid) && ibtun_is_lid(set->sm_lid) &&
	       !(set->lid & ((1u << set->lmc) - 1)) && !set->reserved && !set->reserved2;
}

int ibtun_port_set(struct ibtun_hca *hca, const struct ibtun_port *set)
{
	struct ibtun_hca_port *port = ibtun_port_numbered(hca, set->port);
	bool up, down, lid, sm, gid;
	u32 kept;

	if (!port || !ibtun_is_valid(hca, set))
		return -EINVAL;
	spin_lock_irq(&port->lock);
	up = set->state == IB_PORT_ACTIVE && port->state != IB_PORT_ACTIVE;
	down = set->state != IB_PORT_ACTIVE && port->state == IB_PORT_ACTIVE;
	lid = set->lid != port->lid || set->lmc != port->lmc;
	sm = set->sm_lid != port->rvp.sm_lid || set->sm_sl != port->rvp.sm_sl;
	gid = set->gid_prefix != port->rvp.gid_prefix;
	/* Read without the lock by those who send and receive. */
	WRITE_ONCE(port->state, set->state);
	WRITE_ONCE(port->phys_state, set->phys_state);
	WRITE_ONCE(port->mtu, set->mtu);
	WRITE_ONCE(port->lmc, set->lmc);
	WRITE_ONCE(port->lid, set->lid);
	port->width = set->width;
	port->speed = set->speed;
	port->rvp.sm_lid = set->sm_lid;
	port->rvp.sm_sl = set->sm_sl;
	port->rvp.subnet_timeout = set->subnet_timeout;
	WRITE_ONCE(port->rvp.gid_prefix, set->gid_prefix);
	kept = port->rvp.port_cap_flags & IBTUN_KERNEL_CAPABILITIES;
	port->rvp.port_cap_flags = kept | (set->cap_mask & ~IBTUN_KERNEL_CAPABILITIES);
	spin_unlock_irq(&port->lock);

	/* What the port is before that it is up. */
	if (down)
		ibtun_dispatch(hca, port->number, IB_EVENT_PORT_ERR);
	if (gid)
		ibtun_dispatch(hca, port->number, IB_EVENT_GID_CHANGE);
	if (lid)
		ibtun_dispatch(hca, port->number, IB_EVENT_LID_CHANGE);
	if (sm)
		ibtun_dispatch(hca, port->number, IB_EVENT_SM_CHANGE);
	if (up)
		ibtun_dispatch(hca, port->number, IB_EVENT_PORT_ACTIVE);
	return 0;
}

int ibtun_port_get(struct ibtun_hca *hca, struct ibtun_port *get)
{
	struct ibtun_hca_port *port = ibtun_port_numbered(hca, get->port);

	if (!port)
		return -EINVAL;
	spin_lock_irq(&port->lock);
	*get = (struct ibtun_port) {
		.port = port->number,
		.state = port->state,
		.phys_state = port->phys_state,
		.mtu = port->mtu,
		.lmc = port->lmc,
		.sm_sl = port->rvp.sm_sl,
		.subnet_timeout = port->rvp.subnet_timeout,
		.width = port->width,
		.speed = port->speed,
		.lid = port->lid,
		.sm_lid = port->rvp.sm_lid,
		.cap_mask = port->rvp.port_cap_flags,
		.gid_prefix = port->rvp.gid_prefix,
	};
	spin_unlock_irq(&port->lock);
	return 0;
}

int ibtun_port_set_pkeys(struct ibtun_hca *hca, const struct ibtun_pkeys *set)
{
	struct ibtun_hca_port *port = ibtun_port_numbered(hca, set->port);
	unsigned int size = hca->rdi.dparms.npkeys;
	bool changed = false;
	unsigned int index;

	if (!port || set->count > size || set->reserved || set->reserved2)
		return -EINVAL;
	spin_lock_irq(&port->lock);
	for (index = 0; index < size; index++) {
		u16 pkey = index < set->count ? set->pkey[index] : 0;

		changed |= pkey != port->pkey[index];
		WRITE_ONCE(port->pkey[index], pkey);
	}
	spin_unlock_irq(&port->lock);
	if (changed)
		ibtun_dispatch(hca, port->number, IB_EVENT_PKEY_CHANGE);
	return 0;
}

int ibtun_port_set_guids(struct ibtun_hca *hca, const struct ibtun_guids *set)
{
	struct ibtun_hca_port *port = ibtun_port_numbered(hca, set->port);
	bool changed = false;
	unsigned int index;

	if (!port || set->count > hca->guids || set->reserved || set->reserved2)
		return -EINVAL;
	if (set->count && set->guid[0] && set->guid[0] != port->guid[0])
		return -EINVAL;
	spin_lock_irq(&port->lock);
	for (index = 1; index < hca->guids; index++) {
		__be64 guid = index < set->count ? set->guid[index] : 0;

		changed |= guid != port->guid[index];
		WRITE_ONCE(port->guid[index], guid);
	}
	spin_unlock_irq(&port->lock);
	if (changed)
		ibtun_dispatch(hca, port->number, IB_EVENT_GID_CHANGE);
	return 0;
}

int ibtun_port_event(struct ibtun_hca *hca, const struct ibtun_event *event)
{
	static const enum ib_event_type kinds[] = {
		[IBTUN_EVENT_CLIENT_REREGISTER] = IB_EVENT_CLIENT_REREGISTER,
		[IBTUN_EVENT_LID_CHANGE] = IB_EVENT_LID_CHANGE,
		[IBTUN_EVENT_SM_CHANGE] = IB_EVENT_SM_CHANGE,
		[IBTUN_EVENT_PKEY_CHANGE] = IB_EVENT_PKEY_CHANGE,
		[IBTUN_EVENT_GID_CHANGE] = IB_EVENT_GID_CHANGE,
	};
	unsigned int kind;

	if (!ibtun_port_numbered(hca, event->port) || !event->event ||
	    event->event >= ARRAY_SIZE(kinds) || event->reserved || event->reserved2)
		return -EINVAL;
	kind = array_index_nospec(event->event, ARRAY_SIZE(kinds));
	ibtun_dispatch(hca, event->port, kinds[kind]);
	return 0;
}

int ibtun_port_stats(struct ibtun_hca *hca, struct ibtun_stats *get)
{
	struct ibtun_hca_port *port = ibtun_port_numbered(hca, get->port);
	unsigned int index;

	BUILD_BUG_ON(IBTUN_COUNTERS > IBTUN_MAX_COUNTERS);
	if (!port)
		return -EINVAL;
	memset(get, 0, sizeof(*get));
	get->port = port->number;
	for (index = 0; index < IBTUN_COUNTERS; index++)
		get->counter[index] = atomic64_read(&port->counter[index]);
	return 0;
}

int ibtun_query_port_state(struct rvt_dev_info *rdi, ibtun_number number,
			   struct ib_port_attr *attr)
{
	struct ibtun_hca *hca = ibtun_from_rdi(rdi);
	struct ibtun_hca_port *port = ibtun_port_numbered(hca, number);
	unsigned long flags;
	u64 pkeys, qkeys;

	if (!port)
		return -EINVAL;
	pkeys = atomic64_read(&port->counter[IBTUN_RX_DROP_PKEY]);
	qkeys = atomic64_read(&port->counter[IBTUN_RX_DROP_QKEY]);
	spin_lock_irqsave(&port->lock, flags);
	attr->state = port->state;
	attr->phys_state = port->phys_state;
	attr->lid = port->lid;
	attr->lmc = port->lmc;
	attr->max_mtu = hca->mtu;
	attr->active_mtu = port->mtu;
	attr->gid_tbl_len = hca->guids;
	attr->active_width = port->width;
	attr->active_speed = port->speed;
	attr->max_vl_num = 1;
	attr->bad_pkey_cntr = min_t(u64, pkeys, IBTUN_VIOLATIONS_MAX);
	attr->qkey_viol_cntr = min_t(u64, qkeys, IBTUN_VIOLATIONS_MAX);
	spin_unlock_irqrestore(&port->lock, flags);
	return 0;
}

/* In place of rdmavt's, which has no lock, so that no change is lost. */
int ibtun_modify_port(struct ib_device *ibdev, ibtun_number number, int mask,
		      struct ib_port_modify *modify)
{
	struct ibtun_hca *hca = ibtun_from_ib(ibdev);
	struct ibtun_hca_port *port = ibtun_port_numbered(hca, number);
	struct ibtun_capabilities *told;
	struct ibtun_packet *packet;
	u32 before, after;

	if (!port)
		return -EINVAL;
	if (mask & (IB_PORT_SHUTDOWN | IB_PORT_INIT_TYPE | IB_PORT_RESET_QKEY_CNTR))
		return -EOPNOTSUPP;
	packet = ibtun_packet_alloc(port, IBTUN_CAPABILITIES,
				    sizeof(*told) / sizeof(packet->body[0]));
	if (!packet)
		return -ENOMEM;
	/* Queued under the lock, so that the last packet has the last state. */
	spin_lock_irq(&port->lock);
	before = port->rvp.port_cap_flags;
	after = (before | modify->set_port_cap_mask) & ~modify->clr_port_cap_mask;
	port->rvp.port_cap_flags = after;
	told = (struct ibtun_capabilities *)packet->body;
	*told = (struct ibtun_capabilities) { .cap_mask = after };
	if (before == after)
		ibtun_packet_free(packet);
	else if (!ibtun_packet_queue(hca, packet))
		ibtun_drop(port, IBTUN_TX_DROP_QUEUE);
	spin_unlock_irq(&port->lock);
	return 0;
}

int ibtun_get_guid(struct rvt_dev_info *rdi, struct rvt_ibport *rvp, int index, __be64 *guid)
{
	struct ibtun_hca_port *port = container_of(rvp, struct ibtun_hca_port, rvp);

	if (index < 0 || index >= ibtun_from_rdi(rdi)->guids)
		return -EINVAL;
	*guid = READ_ONCE(port->guid[index]);
	return 0;
}

/*
 * In place of rdmavt's, to which an entry without a GUID is a GID: the SM has
 * assigned none (IBA 14.2.5.5, GUIDInfo), and ib_core lists what is not zero.
 * The last entry keeps its prefix, which ib_core takes for that of the port
 * (config_non_roce_gid_cache).
 */
int ibtun_query_gid(struct ib_device *ibdev, ibtun_number number, int index, union ib_gid *gid)
{
	struct ibtun_hca *hca = ibtun_from_ib(ibdev);
	struct ibtun_hca_port *port = ibtun_port_numbered(hca, number);
	__be64 guid;
	int err;

	if (!port)
		return -EINVAL;
	err = ibtun_get_guid(&hca->rdi, &port->rvp, index, &guid);
	if (err)
		return err;
	gid->global.subnet_prefix = guid || index == hca->guids - 1 ? port->rvp.gid_prefix : 0;
	gid->global.interface_id = guid;
	return 0;
}
