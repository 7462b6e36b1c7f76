/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ibtun: an InfiniBand HCA whose wire is a file descriptor.
 *
 * A process opens /dev/ibtun and creates one HCA with IBTUN_CREATE. The HCA
 * lives as long as the descriptor. What its ports send is read from the
 * descriptor, what is written to it is received by its ports. Everything that
 * is fabric or firmware is the process's: the subnet management agent,
 * switches, links.
 *
 * Integers are in the machine's byte order unless their type says otherwise.
 * Reserved fields must be zero. Values of port attributes are those of the
 * InfiniBand Architecture Specification, volume 1, 14.2.5.6 (PortInfo).
 */
#ifndef _UAPI_RDMA_IBTUN_H
#define _UAPI_RDMA_IBTUN_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Changes when something here does that a program would have to know. */
#define IBTUN_VERSION		1

#define IBTUN_MAX_PORTS		32
#define IBTUN_MAX_PKEYS		128
#define IBTUN_MAX_GUIDS		32
#define IBTUN_NODE_DESC_LEN	64
#define IBTUN_NAME_LEN		64

/*
 * A record of read(2) or write(2).
 *
 * read gives as many whole records as fit the buffer, at least one: it fails
 * with EMSGSIZE if not even the first fits. write takes any number of whole
 * records. It fails with EINVAL if the first is no record; otherwise it gives
 * the length of those that were. poll(2) tells when there is something to
 * read; writing never blocks.
 */
struct ibtun_record {
	__u8 version;		/* IBTUN_VERSION */
	__u8 type;		/* enum ibtun_type */
	__u8 port;		/* 1..ports */
	__u8 reserved;
	__u32 length;		/* of the record, this header included */
	__u64 time;		/* read: CLOCK_BOOTTIME, ns; write: 0 */
	/* the body follows, its form depends on the type */
};

enum ibtun_type {
	/*
	 * Both ways: a packet as on the wire, from the first byte of its LRH
	 * to the last of its payload and pad, so without ICRC and VCRC. The
	 * LRH's PktLen counts the ICRC nevertheless, as on the wire.
	 *
	 * What a port sends to itself goes out like anything else; it is for
	 * the process to write it back. So is a multicast packet that the
	 * sending port has joined the group of.
	 *
	 * What a port does not accept (its state, P_Key, Q_Key, no receive
	 * posted, ...) is dropped and counted, and no error.
	 */
	IBTUN_PACKET = 1,
	/*
	 * Read only: struct ibtun_capabilities, whenever the kernel changes
	 * what a port offers (IsSM while a subnet manager has issmN open,
	 * IsCommunicationManagementSupported while ib_cm is loaded).
	 */
	IBTUN_CAPABILITIES = 2,
};

struct ibtun_capabilities {
	__u32 cap_mask;		/* PortInfo:CapabilityMask */
	__u32 reserved;
};

/* The largest record there is: LRH, GRH, BTH, RETH, ImmDt, 4096 bytes. */
#define IBTUN_MAX_PACKET	(8 + 40 + 12 + 16 + 4 + 4096)
#define IBTUN_MAX_RECORD	(sizeof(struct ibtun_record) + IBTUN_MAX_PACKET)

/*
 * Makes the HCA. EBUSY if the descriptor has one, EPERM without
 * CAP_NET_ADMIN, EPROTONOSUPPORT for another version: version then is that of
 * the module.
 *
 * Its ports are down and have LID 0, the prefix fe80::/64 and the P_Key
 * 0xffff until IBTUN_SET_PORT and its like say otherwise.
 */
struct ibtun_create {
	__u32 version;		/* IBTUN_VERSION; out, if it is another: its own */
	__u8 ports;		/* 1..IBTUN_MAX_PORTS */
	__u8 mtu;		/* largest: 1..5 for 256..4096 bytes, 0: 5 */
	__u16 pkeys;		/* size of each P_Key table, 0: 32 */
	__u16 guids;		/* size of each GUID table, 0: 8 */
	__u16 reserved;
	__u32 queue;		/* packets that wait to be read, 0: 1024 */
	__be64 node_guid;
	__be64 system_image_guid;	/* 0: that of the node */
	__be64 port_guid[IBTUN_MAX_PORTS];
	char node_desc[IBTUN_NODE_DESC_LEN];
	char name[IBTUN_NAME_LEN];	/* out: in /sys/class/infiniband */
};

/*
 * What PortInfo says of a port. Whatever differs from before brings its event
 * to all who use the port: PORT_ACTIVE, PORT_ERR, LID_CHANGE, SM_CHANGE,
 * GID_CHANGE.
 */
struct ibtun_port {
	__u8 port;		/* 1..ports */
	__u8 state;		/* PortState: 1 down, 2 init, 3 armed, 4 active */
	__u8 phys_state;	/* PortPhysicalState: 1..7, 5 is LinkUp */
	__u8 mtu;		/* in use: 1..5, not above that of the HCA */
	__u8 lmc;		/* 0..7 */
	__u8 sm_sl;		/* 0..15 */
	__u8 subnet_timeout;	/* 0..31 */
	__u8 width;		/* LinkWidthActive: 1, 2, 4, 8 or 16 */
	__u16 speed;		/* enum ib_port_speed of <rdma/ib_verbs.h> */
	__u16 lid;		/* 0: none, otherwise 1..0xbfff */
	__u16 sm_lid;		/* as lid */
	__u16 reserved;
	/*
	 * PortInfo:CapabilityMask. IBTUN_SET_PORT leaves the bits of
	 * IBTUN_KERNEL_CAPABILITIES as the kernel has them.
	 */
	__u32 cap_mask;
	__u32 reserved2;
	__be64 gid_prefix;
};

/* IsSM, IsCommunicationManagementSupported, IsDeviceManagementSupported */
#define IBTUN_KERNEL_CAPABILITIES	((1u << 1) | (1u << 16) | (1u << 19))

/*
 * All entries at once, those behind count become 0. Brings PKEY_CHANGE if one
 * differs from before.
 */
struct ibtun_pkeys {
	__u8 port;
	__u8 reserved;
	__u16 count;		/* at most that of the HCA */
	__u32 reserved2;
	__u16 pkey[IBTUN_MAX_PKEYS];
};

/*
 * GUIDInfo: all entries but the first, which is the port's GUID and must be
 * given as that or 0. Those behind count become 0. Brings GID_CHANGE if one
 * differs from before.
 */
struct ibtun_guids {
	__u8 port;
	__u8 reserved;
	__u16 count;		/* at most that of the HCA */
	__u32 reserved2;
	__be64 guid[IBTUN_MAX_GUIDS];
};

/* An event that nothing here has changed anything for. */
struct ibtun_event {
	__u8 port;
	__u8 event;		/* enum ibtun_event_kind */
	__u16 reserved;
	__u32 reserved2;
};

enum ibtun_event_kind {
	IBTUN_EVENT_CLIENT_REREGISTER = 1,
	IBTUN_EVENT_LID_CHANGE = 2,
	IBTUN_EVENT_SM_CHANGE = 3,
	IBTUN_EVENT_PKEY_CHANGE = 4,
	IBTUN_EVENT_GID_CHANGE = 5,
};

/* A port's counters since it was made. */
enum ibtun_counter {
	IBTUN_TX_PACKETS,
	IBTUN_TX_BYTES,
	IBTUN_RX_PACKETS,
	IBTUN_RX_BYTES,
	IBTUN_TX_DROP_QUEUE,	/* too many waited to be read */
	IBTUN_TX_DROP_STATE,	/* the port was not active */
	IBTUN_TX_DROP_MEMORY,
	IBTUN_RX_DROP_MALFORMED,	/* lengths, versions, opcodes */
	IBTUN_RX_DROP_STATE,
	IBTUN_RX_DROP_LID,	/* for another port */
	IBTUN_RX_DROP_QP,	/* no such queue pair, or not ready */
	IBTUN_RX_DROP_PKEY,
	IBTUN_RX_DROP_QKEY,
	IBTUN_RX_DROP_NO_RECEIVE,	/* none posted, or too small */
	IBTUN_RC_UNREACHABLE,	/* RC or UC that left this HCA, or whose port is down */
	IBTUN_RX_DROP_PATH,	/* RC or UC from another port than the peer's */
	IBTUN_RX_DROP_SEQUENCE,	/* RC or UC out of order, or nothing that was asked for */
	IBTUN_RX_DUPLICATES,	/* requests that have been served before */
	IBTUN_RC_TIME_OUTS,
	IBTUN_RC_SEQUENCE_NAKS,	/* received: packets were lost on the way there */
	IBTUN_RC_RNR_NAKS,	/* received: the peer had posted no receive */
	IBTUN_RC_LOST_RESPONSES,	/* packets were lost on the way back */
	IBTUN_FAULT_DROPS,	/* what IBTUN_FAULT did to packets that were sent */
	IBTUN_FAULT_DUPLICATES,
	IBTUN_FAULT_CORRUPTIONS,
	IBTUN_FAULT_DELAYS,	/* acknowledges */
	IBTUN_COUNTERS
};

/* New counters come behind those there are. */
#define IBTUN_MAX_COUNTERS	32

struct ibtun_stats {
	__u8 port;
	__u8 reserved[7];
	__u64 counter[IBTUN_MAX_COUNTERS];
};

/*
 * Breaks something on purpose. A completion queue and a shared receive queue
 * have no numbers: a queue pair that uses them says which one is meant.
 *
 * ENOENT if there is no such queue pair, or it has no shared receive queue.
 * EALREADY if the queue pair or completion queue is in error already.
 * EOPNOTSUPP for packets of a connection that does not go over the
 * descriptor, EINVAL for the queue pairs 0 and 1.
 */
struct ibtun_fault {
	__u32 qpn;		/* 2..0xfffffe */
	__u8 kind;		/* enum ibtun_fault_kind */
	__u8 reserved[3];
	__u32 count;		/* packets; 0..IBTUN_MAX_FAULTS, 0 ends it */
	__u32 delay;		/* microseconds; 0..IBTUN_MAX_DELAY, 0 ends it */
};

#define IBTUN_MAX_FAULTS	1000000
#define IBTUN_MAX_DELAY		10000000

enum ibtun_fault_kind {
	/*
	 * These take neither count nor delay.
	 *
	 * The queue pair goes into the error state, all its work is flushed,
	 * and its consumer gets QP_FATAL.
	 */
	IBTUN_FAULT_QP = 1,
	/*
	 * The completion queue of sends, or of receives, takes no more
	 * completions. Its consumer gets CQ_ERR, at once and for each
	 * completion that is lost.
	 */
	IBTUN_FAULT_SEND_CQ = 2,
	IBTUN_FAULT_RECV_CQ = 3,
	/*
	 * The consumer of the shared receive queue gets SRQ_ERR. All queue
	 * pairs that use it go into error as with IBTUN_FAULT_QP.
	 */
	IBTUN_FAULT_SRQ = 4,
	/*
	 * These take a count: what happens to so many packets that the queue
	 * pair sends next. For what it shall not receive, break its peer. A
	 * new count replaces what is left of the old one. Of several kinds
	 * each has its own count, and a packet that is dropped counts for no
	 * other. All end when the queue pair is reset.
	 *
	 * The packet is not sent.
	 */
	IBTUN_FAULT_DROP = 5,
	/* The packet is sent twice. */
	IBTUN_FAULT_DUPLICATE = 6,
	/*
	 * All bits of the last byte of the packet's payload are inverted. Its
	 * headers stay as they are, and as no record has an ICRC, the receiver
	 * takes the wrong byte for data. Packets without payload stay whole
	 * and do not count.
	 */
	IBTUN_FAULT_CORRUPT = 7,
	/*
	 * This takes a delay: an RC queue pair sends each acknowledge, be it
	 * positive or negative, at least so much later. The kernel rounds up
	 * to its ticks. Acknowledges that become due meanwhile are one.
	 * Responses of reads and atomics are not delayed.
	 */
	IBTUN_FAULT_DELAY_ACKS = 8,
};

/*
 * What the HCA does that the specification allows and most HCAs do not, from
 * now on; nothing at first. A program that it breaks relies on too much.
 *
 * EOPNOTSUPP for IBTUN_BEHAVIOUR_FIELDS if rdmavt has no trace events.
 */
struct ibtun_behaviour {
	__u32 on;		/* enum ibtun_behaviours: all, the others are off */
	__u32 reserved;
};

enum ibtun_behaviours {
	/*
	 * A completion whose status is not success says nothing but its
	 * wr_id, status, qp_num and vendor_err. The other fields get bits
	 * that are the opposite ones in each second entry of the queue.
	 */
	IBTUN_BEHAVIOUR_FIELDS = 0x1,
	/* The queue pair that is made next gets the number of the last that was destroyed. */
	IBTUN_BEHAVIOUR_NUMBERS = 0x2,
	/*
	 * A shared receive queue is not taken in the order of its posts: the
	 * receive that was posted last is taken, and the first takes its
	 * place. Connections that become ready to receive meanwhile go over
	 * the descriptor.
	 */
	IBTUN_BEHAVIOUR_SRQ_ORDER = 0x4,
};

#define IBTUN_BEHAVIOURS	0x7

#define IBTUN_IOC_MAGIC		0xb7

#define IBTUN_CREATE	_IOWR(IBTUN_IOC_MAGIC, 0x00, struct ibtun_create)
/* The others: ENXIO before IBTUN_CREATE, EINVAL for a value out of range. */
#define IBTUN_SET_PORT	_IOW(IBTUN_IOC_MAGIC, 0x01, struct ibtun_port)
/* .port says which. */
#define IBTUN_GET_PORT	_IOWR(IBTUN_IOC_MAGIC, 0x02, struct ibtun_port)
#define IBTUN_SET_PKEYS	_IOW(IBTUN_IOC_MAGIC, 0x03, struct ibtun_pkeys)
#define IBTUN_SET_GUIDS	_IOW(IBTUN_IOC_MAGIC, 0x04, struct ibtun_guids)
#define IBTUN_EVENT	_IOW(IBTUN_IOC_MAGIC, 0x05, struct ibtun_event)
/* .port says which. */
#define IBTUN_GET_STATS	_IOWR(IBTUN_IOC_MAGIC, 0x06, struct ibtun_stats)
#define IBTUN_FAULT	_IOW(IBTUN_IOC_MAGIC, 0x07, struct ibtun_fault)
#define IBTUN_SET_BEHAVIOUR	_IOW(IBTUN_IOC_MAGIC, 0x08, struct ibtun_behaviour)

#endif /* _UAPI_RDMA_IBTUN_H */
