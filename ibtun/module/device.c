// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * /dev/ibtun: descriptors, records and ioctls.
 *
 * Nothing that comes from the process is believed: each record's lengths are
 * checked against the bytes that are there, each value against its range,
 * each reserved field against zero.
 */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <linux/uaccess.h>
#include <linux/uio.h>

#include "ibtun.h"

/*
 * Room in the queue that user data does not get: a node that floods its wire
 * is still managed.
 */
#define IBTUN_QUEUE_RESERVE	256
#define IBTUN_QUEUE_DEFAULT	1024
#define IBTUN_QUEUE_MAX		65536

struct ibtun_file {
	struct mutex creating;	/* one IBTUN_CREATE at a time */
	struct ibtun_hca *hca;	/* set once, by IBTUN_CREATE */
};

static struct ibtun_hca *ibtun_hca_of(struct file *file)
{
	struct ibtun_file *own = file->private_data;

	/* Pairs with the release in ibtun_ioctl_create. */
	return smp_load_acquire(&own->hca);
}

static struct kmem_cache *ibtun_packets;

#define IBTUN_PACKET_SIZE	(sizeof(struct ibtun_packet) + IBTUN_MAX_PACKET)

/*
 * Memory of a cache with a constructor is cleared once, and not for each
 * allocation (init_on_alloc), which takes longer than all else that a packet
 * needs. What it has later is packets.
 */
static void ibtun_packet_construct(void *object)
{
	memset(object, 0, IBTUN_PACKET_SIZE);
}

/* A record with room for words, which are not initialised. In any context. */
struct ibtun_packet *ibtun_packet_alloc(struct ibtun_hca_port *port, u8 type, u32 words)
{
	struct ibtun_packet *packet = NULL;

	if (!WARN_ON_ONCE(words * sizeof(packet->body[0]) > IBTUN_MAX_PACKET))
		packet = kmem_cache_alloc(ibtun_packets, GFP_ATOMIC);
	if (!packet)
		return NULL;
	packet->record = (struct ibtun_record) {
		.version = IBTUN_VERSION,
		.type = type,
		.port = port->number,
		.length = sizeof(packet->record) + words * sizeof(packet->body[0]),
		.time = ktime_get_boottime_ns(),
	};
	return packet;
}

void ibtun_packet_free(struct ibtun_packet *packet)
{
	kmem_cache_free(ibtun_packets, packet);
}

static bool ibtun_is_management(const struct ibtun_packet *packet)
{
	return packet->record.type != IBTUN_PACKET ||
	       be32_to_cpu(packet->body[0]) >> 28 == IBTUN_VL_MANAGEMENT;
}

/* Takes the packet. Whether it will be read, unless the process ends. */
bool ibtun_packet_queue(struct ibtun_hca *hca, struct ibtun_packet *packet)
{
	u32 limit = hca->queue_limit;
	bool taken;
	unsigned long flags;

	if (ibtun_is_management(packet))
		limit += IBTUN_QUEUE_RESERVE;
	spin_lock_irqsave(&hca->lock, flags);
	taken = !hca->closed && hca->queued < limit;
	if (taken) {
		list_add_tail(&packet->list, &hca->queue);
		hca->queued++;
	}
	spin_unlock_irqrestore(&hca->lock, flags);
	if (taken)
		wake_up_interruptible_poll(&hca->readable, EPOLLIN | EPOLLRDNORM);
	else
		ibtun_packet_free(packet);
	return taken;
}

/*
 * Whether a connection may send more now. If not, it is woken once the process
 * has read: so a process that is slow loses none of its packets.
 */
bool ibtun_queue_has_room(struct ibtun_hca *hca, struct ibtun_qp *own)
{
	unsigned long flags;
	bool room;

	spin_lock_irqsave(&hca->lock, flags);
	room = hca->closed || hca->queued <= hca->queue_limit / 2;
	if (!room && list_empty(&own->waiting))
		list_add_tail(&own->waiting, &hca->waiting);
	spin_unlock_irqrestore(&hca->lock, flags);
	return room;
}

void ibtun_queue_forget(struct ibtun_hca *hca, struct ibtun_qp *own)
{
	unsigned long flags;

	spin_lock_irqsave(&hca->lock, flags);
	list_del_init(&own->waiting);
	spin_unlock_irqrestore(&hca->lock, flags);
}

/* With hca->lock held. */
static void ibtun_wake_waiting(struct ibtun_hca *hca)
{
	struct ibtun_qp *own, *next;

	if (!hca->closed && hca->queued > hca->queue_limit / 4)
		return;
	list_for_each_entry_safe(own, next, &hca->waiting, waiting) {
		list_del_init(&own->waiting);
		queue_work(hca->senders, &own->send);
	}
}

void ibtun_queue_purge(struct ibtun_hca *hca)
{
	struct ibtun_packet *packet, *next;
	LIST_HEAD(purged);

	spin_lock_irq(&hca->lock);
	hca->closed = true;
	list_splice_init(&hca->queue, &purged);
	hca->queued = 0;
	ibtun_wake_waiting(hca);
	spin_unlock_irq(&hca->lock);
	list_for_each_entry_safe(packet, next, &purged, list)
		ibtun_packet_free(packet);
}

/* The next packet if it is not longer than room; -EMSGSIZE if it is. */
static struct ibtun_packet *ibtun_dequeue(struct ibtun_hca *hca, size_t room)
{
	struct ibtun_packet *packet;

	spin_lock_irq(&hca->lock);
	packet = list_first_entry_or_null(&hca->queue, struct ibtun_packet, list);
	if (packet && packet->record.length > room) {
		packet = ERR_PTR(-EMSGSIZE);
	} else if (packet) {
		list_del(&packet->list);
		hca->queued--;
		ibtun_wake_waiting(hca);
	}
	spin_unlock_irq(&hca->lock);
	return packet;
}

static int ibtun_wait_readable(struct ibtun_hca *hca, bool nonblock)
{
	if (!list_empty_careful(&hca->queue))
		return 0;
	if (nonblock)
		return -EAGAIN;
	return wait_event_interruptible(hca->readable, !list_empty_careful(&hca->queue));
}

static ssize_t ibtun_read_iter(struct kiocb *iocb, struct iov_iter *to)
{
	struct ibtun_hca *hca = ibtun_hca_of(iocb->ki_filp);
	bool nonblock = (iocb->ki_filp->f_flags & O_NONBLOCK) || (iocb->ki_flags & IOCB_NOWAIT);
	struct ibtun_packet *packet;
	ssize_t done = 0;
	int err;

	if (!hca)
		return -ENXIO;
	do {
		err = ibtun_wait_readable(hca, nonblock);
		if (err)
			return err;
		if (mutex_lock_interruptible(&hca->reading))
			return -ERESTARTSYS;
		for (;;) {
			size_t length;

			packet = ibtun_dequeue(hca, iov_iter_count(to));
			if (IS_ERR_OR_NULL(packet))
				break;
			length = packet->record.length;
			if (copy_to_iter(&packet->record, length, to) != length)
				err = -EFAULT;
			ibtun_packet_free(packet);
			if (err)
				break;
			done += length;
		}
		mutex_unlock(&hca->reading);
		/* Another reader may have been quicker. */
	} while (!packet && !done);
	if (done)
		return done;
	return err ? err : PTR_ERR(packet);
}

/* Takes one record from the process; its length, or why there is none. */
static ssize_t ibtun_write_record(struct ibtun_hca *hca, struct iov_iter *from, __be32 *body)
{
	struct ibtun_hca_port *port;
	struct ibtun_record record;
	size_t length;

	if (iov_iter_count(from) < sizeof(record))
		return -EINVAL;
	if (!copy_from_iter_full(&record, sizeof(record), from))
		return -EFAULT;
	port = ibtun_port_numbered(hca, record.port);
	if (record.version != IBTUN_VERSION || record.type != IBTUN_PACKET || !port ||
	    record.reserved || record.time || record.length < sizeof(record) ||
	    record.length > IBTUN_MAX_RECORD || record.length % sizeof(body[0]))
		return -EINVAL;
	length = record.length - sizeof(record);
	if (length > iov_iter_count(from))
		return -EINVAL;
	if (!copy_from_iter_full(body, length, from))
		return -EFAULT;
	ibtun_receive(hca, port, body, length);
	return record.length;
}

static ssize_t ibtun_write_iter(struct kiocb *iocb, struct iov_iter *from)
{
	struct ibtun_hca *hca = ibtun_hca_of(iocb->ki_filp);
	ssize_t done = 0, length = 0;
	struct ibtun_packet *packet;

	if (!hca)
		return -ENXIO;
	packet = kmem_cache_alloc(ibtun_packets, GFP_KERNEL);
	if (!packet)
		return -ENOMEM;
	while (iov_iter_count(from)) {
		length = ibtun_write_record(hca, from, packet->body);
		if (length < 0)
			break;
		done += length;
		cond_resched();
		if (signal_pending(current))
			break;
	}
	ibtun_packet_free(packet);
	return done ? done : length;
}

static __poll_t ibtun_poll(struct file *file, poll_table *wait)
{
	struct ibtun_hca *hca = ibtun_hca_of(file);

	if (!hca)
		return EPOLLERR;
	poll_wait(file, &hca->readable, wait);
	if (list_empty_careful(&hca->queue))
		return EPOLLOUT | EPOLLWRNORM;
	return EPOLLIN | EPOLLRDNORM | EPOLLOUT | EPOLLWRNORM;
}

static bool ibtun_is_zero(const void *bytes, size_t length)
{
	return !memchr_inv(bytes, 0, length);
}

static int ibtun_check_create(struct ibtun_create *create)
{
	unsigned int index;

	if (create->version != IBTUN_VERSION)
		return -EPROTONOSUPPORT;
	if (!create->mtu)
		create->mtu = IB_MTU_4096;
	if (!create->pkeys)
		create->pkeys = 32;
	if (!create->guids)
		create->guids = 8;
	if (!create->queue)
		create->queue = IBTUN_QUEUE_DEFAULT;
	if (!create->system_image_guid)
		create->system_image_guid = create->node_guid;
	if (!create->ports || create->ports > IBTUN_MAX_PORTS || create->mtu > IB_MTU_4096 ||
	    create->pkeys > IBTUN_MAX_PKEYS || create->guids > IBTUN_MAX_GUIDS ||
	    create->reserved || create->queue > IBTUN_QUEUE_MAX || !create->node_guid ||
	    !ibtun_is_zero(create->name, sizeof(create->name)))
		return -EINVAL;
	for (index = 0; index < IBTUN_MAX_PORTS; index++) {
		bool used = index < create->ports;

		if (used != !!create->port_guid[index])
			return -EINVAL;
	}
	/* The kernel takes it for a string. */
	if (strnlen(create->node_desc, sizeof(create->node_desc)) == sizeof(create->node_desc))
		return -EINVAL;
	return 0;
}

static long ibtun_ioctl_create(struct ibtun_file *own, void __user *argument)
{
	struct ibtun_create create;
	struct ibtun_hca *hca;
	long err;

	if (!capable(CAP_NET_ADMIN))
		return -EPERM;
	if (copy_from_user(&create, argument, sizeof(create)))
		return -EFAULT;
	err = ibtun_check_create(&create);
	if (err == -EPROTONOSUPPORT) {
		struct ibtun_create __user *user = argument;

		return put_user((u32)IBTUN_VERSION, &user->version) ? -EFAULT : err;
	}
	if (err)
		return err;
	mutex_lock(&own->creating);
	if (own->hca) {
		err = -EBUSY;
		goto out;
	}
	hca = ibtun_hca_create(&create);
	if (IS_ERR(hca)) {
		err = PTR_ERR(hca);
		goto out;
	}
	if (copy_to_user(argument, &create, sizeof(create))) {
		ibtun_hca_remove(hca);
		err = -EFAULT;
		goto out;
	}
	/* Whoever sees it sees it whole. */
	smp_store_release(&own->hca, hca);
out:
	mutex_unlock(&own->creating);
	return err;
}

/* What an ioctl other than IBTUN_CREATE reads or writes. */
union ibtun_argument {
	struct ibtun_port port;
	struct ibtun_pkeys pkeys;
	struct ibtun_guids guids;
	struct ibtun_event event;
	struct ibtun_stats stats;
	struct ibtun_fault fault;
	struct ibtun_behaviour behaviour;
};

static long ibtun_ioctl_hca(struct ibtun_hca *hca, unsigned int command,
			    union ibtun_argument *argument)
{
	switch (command) {
	case IBTUN_SET_PORT:
		return ibtun_port_set(hca, &argument->port);
	case IBTUN_GET_PORT:
		return ibtun_port_get(hca, &argument->port);
	case IBTUN_SET_PKEYS:
		return ibtun_port_set_pkeys(hca, &argument->pkeys);
	case IBTUN_SET_GUIDS:
		return ibtun_port_set_guids(hca, &argument->guids);
	case IBTUN_EVENT:
		return ibtun_port_event(hca, &argument->event);
	case IBTUN_GET_STATS:
		return ibtun_port_stats(hca, &argument->stats);
	case IBTUN_FAULT:
		return ibtun_fault(hca, &argument->fault);
	case IBTUN_SET_BEHAVIOUR:
		return ibtun_set_behaviour(hca, &argument->behaviour);
	default:
		return -ENOTTY;
	}
}

static long ibtun_ioctl(struct file *file, unsigned int command, unsigned long address)
{
	struct ibtun_file *own = file->private_data;
	struct ibtun_hca *hca = ibtun_hca_of(file);
	void __user *user = (void __user *)address;
	size_t size = _IOC_SIZE(command);
	union ibtun_argument *argument;
	long err;

	if (command == IBTUN_CREATE)
		return ibtun_ioctl_create(own, user);
	if (_IOC_TYPE(command) != IBTUN_IOC_MAGIC || size > sizeof(*argument))
		return -ENOTTY;
	if (!hca)
		return -ENXIO;
	argument = kzalloc(sizeof(*argument), GFP_KERNEL);
	if (!argument)
		return -ENOMEM;
	err = -EFAULT;
	if (copy_from_user(argument, user, size))
		goto out;
	err = ibtun_ioctl_hca(hca, command, argument);
	if (!err && (_IOC_DIR(command) & _IOC_READ) && copy_to_user(user, argument, size))
		err = -EFAULT;
out:
	kfree(argument);
	return err;
}

static int ibtun_open(struct inode *inode, struct file *file)
{
	struct ibtun_file *own = kzalloc(sizeof(*own), GFP_KERNEL);

	if (!own)
		return -ENOMEM;
	mutex_init(&own->creating);
	file->private_data = own;
	return stream_open(inode, file);
}

static int ibtun_release(struct inode *inode, struct file *file)
{
	struct ibtun_file *own = file->private_data;

	if (own->hca)
		ibtun_hca_remove(own->hca);
	kfree(own);
	return 0;
}

static const struct file_operations ibtun_fops = {
	.owner = THIS_MODULE,
	.open = ibtun_open,
	.release = ibtun_release,
	.read_iter = ibtun_read_iter,
	.write_iter = ibtun_write_iter,
	.poll = ibtun_poll,
	.unlocked_ioctl = ibtun_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice ibtun_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "ibtun",
	.fops = &ibtun_fops,
	.mode = 0600,
};

static int __init ibtun_init(void)
{
	int err = -ENOMEM;

	ibtun_packets = kmem_cache_create_usercopy("ibtun_packet", IBTUN_PACKET_SIZE, 0, 0,
						   offsetof(struct ibtun_packet, record),
						   IBTUN_MAX_RECORD, ibtun_packet_construct);
	if (!ibtun_packets)
		return err;
	err = ibtun_hca_init();
	if (err)
		goto no_hca;
	err = ibtun_behaviour_init();
	if (err)
		goto no_behaviour;
	err = misc_register(&ibtun_device);
	if (!err)
		return 0;
	ibtun_behaviour_exit();
no_behaviour:
	ibtun_hca_exit();
no_hca:
	kmem_cache_destroy(ibtun_packets);
	return err;
}
module_init(ibtun_init);

static void __exit ibtun_exit(void)
{
	misc_deregister(&ibtun_device);
	ibtun_hca_exit();
	ibtun_behaviour_exit();
	kmem_cache_destroy(ibtun_packets);
}
module_exit(ibtun_exit);

MODULE_DESCRIPTION("InfiniBand HCA whose wire is a file descriptor");
MODULE_AUTHOR("The ibarr authors");
MODULE_LICENSE("Dual BSD/GPL");
