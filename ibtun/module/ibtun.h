/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the parts of ibtun share.
 *
 * device.c is the character device: descriptors, records, ioctls. hca.c makes
 * and unmakes an HCA on rdmavt. port.c holds what a port is told about itself.
 * send.c and receive.c turn work requests into packets and back. fault.c breaks
 * things on purpose, behaviour.c does what few HCAs do, manners.c warns of callers
 * that rely on too much, calls.c traces calls, objects.c lists what they made.
 * Connections over the wire:
 * connection.c has what both ends share, requester.c asks, responder.c answers,
 * message.c receives SEND and RDMA WRITE.
 */
#ifndef IBTUN_H
#define IBTUN_H

#include <linux/atomic.h>
#include <linux/hashtable.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_vt.h>
#include <rdma/rdmavt_qp.h>

#include <rdma/ibtun.h>

#include "kernels.h"

/* Of the wire, IBA volume 1, chapters 5 to 9. Lengths in 32-bit words. */
#define IBTUN_LRH_WORDS		2
#define IBTUN_GRH_WORDS		10
#define IBTUN_BTH_WORDS		3
#define IBTUN_DETH_WORDS	2
#define IBTUN_IMM_WORDS		1
#define IBTUN_ICRC_WORDS	1
/* Longest header behind the BTH: that of an atomic request. */
#define IBTUN_EXTENSION_WORDS	7

#define IBTUN_LNH_LOCAL		2
#define IBTUN_LNH_GLOBAL	3
#define IBTUN_UD_SEND_ONLY	0x64
#define IBTUN_UD_SEND_ONLY_IMM	0x65
#define IBTUN_VL_MANAGEMENT	15
#define IBTUN_MULTICAST_LID	0xc000
#define IBTUN_PERMISSIVE_LID	0xffff
#define IBTUN_MULTICAST_QPN	0xffffff
#define IBTUN_DEFAULT_PKEY	0xffff
#define IBTUN_MAD_SIZE		256
#define IBTUN_MAX_MESSAGE	0x80000000u
#define IBTUN_PSN_MASK		0xffffff
/* Of a BTH's opcode: the transport service, and what it does there. */
#define IBTUN_SERVICE(opcode)	((opcode) & 0xe0)
#define IBTUN_OPERATION(opcode)	((opcode) & 0x1f)
/* A message, or the responses to a read, are fewer packets: half the PSNs are behind. */
#define IBTUN_MAX_PACKETS	BIT(22)

/* Packets for a connection that one turn of work sends. */
#define IBTUN_CONNECTION_BATCH	16

/* A record on its way to the process. */
struct ibtun_packet {
	struct list_head list;
	struct ibtun_record record;
	__be32 body[];
};

struct ibtun_hca_port {
	struct rvt_ibport rvp;
	spinlock_t lock;	/* writers of all below, and rvp.port_cap_flags */
	u8 number;
	u8 state;
	u8 phys_state;
	u8 mtu;
	u8 lmc;
	u8 width;
	u16 speed;
	u16 lid;
	u16 pkey[IBTUN_MAX_PKEYS];
	__be64 guid[IBTUN_MAX_GUIDS];
	atomic64_t counter[IBTUN_COUNTERS];
};

struct ibtun_hca {
	struct rvt_dev_info rdi;	/* first, as rdmavt wants it */
	int unit;
	u8 mtu;			/* largest that a port may use */
	u16 guids;		/* entries of each GUID table */
	u32 behaviour;		/* enum ibtun_behaviours */
	struct workqueue_struct *senders;
	struct work_struct removal;

	spinlock_t lock;	/* the queue */
	struct list_head queue;
	u32 queued;
	u32 queue_limit;
	struct list_head waiting;	/* connections that wait for room */
	bool closed;		/* nobody reads any more */
	wait_queue_head_t readable;
	struct mutex reading;	/* one record goes to one reader */

	spinlock_t objects_lock;	/* both below */
	DECLARE_HASHTABLE(objects, 8);	/* struct ibtun_object, by address */
	u32 unlisted;			/* those for which there was no memory */
	struct dentry *directory;

	u8 ports;
	struct ibtun_hca_port port[];
};

/* How far the memory of a request or response has been gone through. */
struct ibtun_cursor {
	const void *of;		/* NULL: not known */
	u32 offset;
};

/* The message that a responder is in the middle of. */
enum ibtun_message {
	IBTUN_NO_MESSAGE,
	IBTUN_SEND_MESSAGE,
	IBTUN_WRITE_MESSAGE,
};

/*
 * Of a queue pair, what rdmavt keeps for us in rvt_qp.priv. What concerns
 * connections is under r_lock and s_lock, both held.
 */
struct ibtun_qp {
	struct rvt_qp *qp;
	struct work_struct send;
	struct list_head waiting;	/* in hca->waiting, under hca->lock */
	bool wire;			/* connected over the wire */
	unsigned long warned;		/* BIT(enum ibtun_manner) */
	unsigned long events;		/* BIT(enum ib_event_type), to be told unlocked */

	/* faults: packets that are still to be broken */
	u32 drops;
	u32 duplicates;
	u32 corruptions;
	u32 ack_delay;			/* us */
	bool ack_held;			/* until: */
	unsigned long ack_due;		/* jiffies */
	struct delayed_work ack;

	/* requester */
	u32 sent;			/* the PSN behind all that were ever sent */
	bool recovering;		/* went back, and has heard nothing since */
	struct ibtun_cursor sending;	/* in s_sge */
	struct ibtun_cursor reading;	/* in s_rdma_read_sge */

	/* responder */
	enum ibtun_message receiving;
	bool nak_sent;			/* since r_psn last moved */
	bool failing;			/* with failure, once all else is answered */
	enum ib_wc_status failure;
	bool answer;			/* an acknowledge is due: */
	u32 answer_psn;
	u32 answer_aeth;
	u32 response_psn;		/* of the tail of s_ack_queue */
	struct ibtun_cursor responding;	/* in s_ack_rdma_sge */
};

/* A packet of a connection, without its path. */
struct ibtun_frame {
	u8 opcode;
	bool ack_request;
	bool solicited;
	u8 words;			/* of the extension */
	u32 psn;
	u32 length;			/* of the payload */
	__be32 extension[IBTUN_EXTENSION_WORDS];
};

/* A well-formed packet. */
struct ibtun_parsed {
	const __be32 *grh;	/* NULL: has none */
	const void *payload;
	u32 length;		/* of the payload, without pad */
	u32 dlid;
	u32 slid;
	u8 sl;
	u8 opcode;
	bool management;	/* came on VL 15 */
	bool solicited;
	u16 pkey;
	u32 qpn;
	/* UD */
	bool immediate;
	__be32 imm;
	u32 qkey;
	u32 source_qpn;
	/* RC, UC */
	bool ack_request;
	u32 psn;
	const __be32 *extension;
};

static inline struct ibtun_hca *ibtun_from_rdi(struct rvt_dev_info *rdi)
{
	return container_of(rdi, struct ibtun_hca, rdi);
}

static inline struct ibtun_hca *ibtun_from_ib(struct ib_device *ibdev)
{
	return ibtun_from_rdi(ib_to_rvt(ibdev));
}

/* The port called number, from 1; NULL if there is none. */
static inline struct ibtun_hca_port *ibtun_port_numbered(struct ibtun_hca *hca, u32 number)
{
	return number >= 1 && number <= hca->ports ? &hca->port[number - 1] : NULL;
}

static inline void ibtun_add(struct ibtun_hca_port *port, enum ibtun_counter counter, u64 n)
{
	atomic64_add(n, &port->counter[counter]);
}

static inline void ibtun_count(struct ibtun_hca_port *port, enum ibtun_counter counter)
{
	ibtun_add(port, counter, 1);
}

/* Whether a unicast LID is one of the port's. */
static inline bool ibtun_has_lid(const struct ibtun_hca_port *port, u32 lid)
{
	u16 base = READ_ONCE(port->lid);

	return base && lid >= base && lid < base + (1u << READ_ONCE(port->lmc));
}

/* Whether who sends with one P_Key may reach who has the other. */
static inline bool ibtun_pkeys_match(u16 a, u16 b)
{
	return (a & 0x7fff) && !((a ^ b) & 0x7fff) && ((a | b) & 0x8000);
}

static inline bool ibtun_can(const struct rvt_qp *qp, int what)
{
	return ib_rvt_state_ops[qp->state] & what;
}

static inline bool ibtun_is_connected(const struct rvt_qp *qp)
{
	return qp->ibqp.qp_type == IB_QPT_RC || qp->ibqp.qp_type == IB_QPT_UC;
}

static inline struct ibtun_hca_port *ibtun_port_of(const struct rvt_qp *qp)
{
	return ibtun_port_numbered(ibtun_from_ib(qp->ibqp.device), qp->port_num);
}

/* device.c */
struct ibtun_packet *ibtun_packet_alloc(struct ibtun_hca_port *port, u8 type, u32 words);
void ibtun_packet_free(struct ibtun_packet *packet);
bool ibtun_packet_queue(struct ibtun_hca *hca, struct ibtun_packet *packet);
void ibtun_queue_purge(struct ibtun_hca *hca);
bool ibtun_queue_has_room(struct ibtun_hca *hca, struct ibtun_qp *own);
void ibtun_queue_forget(struct ibtun_hca *hca, struct ibtun_qp *own);

/* hca.c */
struct ibtun_hca *ibtun_hca_create(struct ibtun_create *create);
void ibtun_hca_remove(struct ibtun_hca *hca);
int ibtun_hca_init(void);
void ibtun_hca_exit(void);

/* port.c */
void ibtun_port_init(struct ibtun_hca *hca, u8 number, __be64 guid);
int ibtun_port_set(struct ibtun_hca *hca, const struct ibtun_port *set);
int ibtun_port_get(struct ibtun_hca *hca, struct ibtun_port *get);
int ibtun_port_set_pkeys(struct ibtun_hca *hca, const struct ibtun_pkeys *set);
int ibtun_port_set_guids(struct ibtun_hca *hca, const struct ibtun_guids *set);
int ibtun_port_event(struct ibtun_hca *hca, const struct ibtun_event *event);
int ibtun_port_stats(struct ibtun_hca *hca, struct ibtun_stats *get);
extern ibtun_counter_name ibtun_counter_names[IBTUN_COUNTERS];
void ibtun_drop(struct ibtun_hca_port *port, enum ibtun_counter counter);
int ibtun_query_port_state(struct rvt_dev_info *rdi, ibtun_number number,
			   struct ib_port_attr *attr);
int ibtun_modify_port(struct ib_device *ibdev, ibtun_number number, int mask,
		      struct ib_port_modify *modify);
int ibtun_get_guid(struct rvt_dev_info *rdi, struct rvt_ibport *rvp, int index, __be64 *guid);
int ibtun_query_gid(struct ib_device *ibdev, ibtun_number number, int index, union ib_gid *gid);

/* send.c */
void ibtun_do_send(struct rvt_qp *qp);
void ibtun_send_work(struct work_struct *work);
int ibtun_setup_wqe(struct rvt_qp *qp, struct rvt_swqe *wqe, bool *call_send);
bool ibtun_may_send(const struct ibtun_hca_port *port, bool management);
struct ibtun_hca_port *ibtun_port_here(struct ibtun_hca *hca, struct rvt_qp *qp);
__be32 *ibtun_put_path(__be32 *to, const struct ibtun_hca_port *port,
		       const struct rdma_ah_attr *attr, bool management, u32 words);
void ibtun_transmit(struct ibtun_hca *hca, struct rvt_qp *qp, struct ibtun_packet *packet,
		    u32 payload);

/* receive.c */
void ibtun_receive(struct ibtun_hca *hca, struct ibtun_hca_port *port, const __be32 *words,
		   u32 length);

/* manners.c */
enum ibtun_manner {
	IBTUN_NO_TIMEOUT,
	IBTUN_LARGE_MTU,
	IBTUN_LOST_WORK,
	IBTUN_MANNERS
};

int ibtun_check_modify(struct rvt_qp *qp, struct ib_qp_attr *attr, int mask,
		       struct ib_udata *udata);
void ibtun_check_path(struct rvt_qp *qp, const struct ib_qp_attr *attr, int mask);

/* calls.c */
int ibtun_trace_calls(struct ib_device *ibdev);

/* objects.c */
struct ibtun_object;

void ibtun_object_add(struct ib_device *ibdev, const char *kind, u32 number,
		      const void *address, void *user);
struct ibtun_object *ibtun_object_take(struct ib_device *ibdev, const void *address);
int ibtun_object_end(struct ibtun_object *object, int err);
void ibtun_debugfs_add(struct ibtun_hca *hca, const char *name);
void ibtun_debugfs_remove(struct ibtun_hca *hca);
void ibtun_debugfs_init(void);
void ibtun_debugfs_exit(void);

/* behaviour.c */
int ibtun_set_behaviour(struct ibtun_hca *hca, const struct ibtun_behaviour *set);
bool ibtun_behaves(const struct ibtun_hca *hca, u32 behaviour);
void ibtun_give_number_back(struct ibtun_hca *hca, u32 number);
int ibtun_get_receive(struct rvt_qp *qp, bool id_only);
int ibtun_behaviour_init(void);
void ibtun_behaviour_exit(void);

/* fault.c */
int ibtun_fault(struct ibtun_hca *hca, const struct ibtun_fault *fault);
void ibtun_faults_end(struct ibtun_qp *own);
bool ibtun_is_dropped(struct rvt_qp *qp);
struct ibtun_packet *ibtun_damage(struct rvt_qp *qp, struct ibtun_packet *packet, u32 payload);
void ibtun_ack_work(struct work_struct *work);
bool ibtun_hold_ack(struct ibtun_hca *hca, struct rvt_qp *qp);

/* connection.c */
void ibtun_lock(struct rvt_qp *qp, unsigned long *flags);
void ibtun_unlock(struct rvt_qp *qp, unsigned long flags);
void ibtun_modify_qp(struct rvt_qp *qp, struct ib_qp_attr *attr, int mask,
		     struct ib_udata *udata);
void ibtun_notify_reset(struct rvt_qp *qp);
void ibtun_notify_error(struct rvt_qp *qp);
void ibtun_notify_restart(struct rvt_qp *qp, u32 psn, int wait);
void ibtun_send_connected(struct ibtun_hca *hca, struct rvt_qp *qp);
void ibtun_deliver_connected(struct ibtun_hca *hca, struct ibtun_hca_port *port,
			     struct rvt_qp *qp, const struct ibtun_parsed *parsed);
void ibtun_send_frame(struct ibtun_hca *hca, struct rvt_qp *qp, const struct ibtun_frame *frame,
		      struct rvt_sge_state *from);
void ibtun_tell_qp(struct rvt_qp *qp, enum ib_event_type kind);
void ibtun_fail_connection(struct rvt_qp *qp, enum ib_wc_status status);

/* requester.c: both locks of the queue pair held */
bool ibtun_send_requests(struct ibtun_hca *hca, struct rvt_qp *qp, unsigned int *budget);
void ibtun_receive_response(struct rvt_qp *qp, const struct ibtun_parsed *parsed);
void ibtun_time_out(struct rvt_qp *qp);

/* responder.c: both locks of the queue pair held */
bool ibtun_send_answers(struct ibtun_hca *hca, struct rvt_qp *qp, unsigned int *budget);
void ibtun_receive_rc(struct rvt_qp *qp, const struct ibtun_parsed *parsed);
void ibtun_receive_uc(struct rvt_qp *qp, const struct ibtun_parsed *parsed);

/* message.c: both locks of the queue pair held */
enum ibtun_verdict {
	IBTUN_TAKEN,
	IBTUN_NO_RECEIVE,
	IBTUN_INVALID,		/* opcode or length */
	IBTUN_TOO_LONG,		/* for the receive */
	IBTUN_NO_ACCESS,
	IBTUN_NO_OPERATION,	/* the receive is faulty */
};

enum ibtun_verdict ibtun_take(struct rvt_qp *qp, const struct ibtun_parsed *parsed);
void ibtun_abandon(struct rvt_qp *qp);

#endif /* IBTUN_H */
