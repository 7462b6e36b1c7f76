// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The objects of an HCA that consumers have made and not yet destroyed, for people
 * to read in debugfs. The kernel's `rdma resource` has most of them, but no address
 * handles, and of none the time or the program's handle.
 */
#include <linux/debugfs.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/timekeeping.h>
#include <rdma/uverbs_types.h>

#include "ibtun.h"

struct ibtun_object {
	struct hlist_node node;
	struct ibtun_hca *hca;
	const void *address;
	/* Where the core keeps what a program knows it by; NULL for the kernel's own. */
	struct ib_uobject *const *user;
	const char *kind;
	u32 number;
	pid_t creator;
	u64 created;		/* ns of the clock that traces have */
};

static struct dentry *ibtun_directory;

void ibtun_object_add(struct ib_device *ibdev, const char *kind, u32 number,
		      const void *address, void *user)
{
	struct ibtun_hca *hca = ibtun_from_ib(ibdev);
	/* Address handles are also made where nobody may sleep. */
	struct ibtun_object *object = kmalloc(sizeof(*object), GFP_ATOMIC | __GFP_NOWARN);
	unsigned long flags;

	spin_lock_irqsave(&hca->objects_lock, flags);
	if (object) {
		*object = (struct ibtun_object) {
			.hca = hca,
			.address = address,
			.user = user,
			.kind = kind,
			.number = number,
			.creator = task_tgid_nr(current),
			.created = ktime_get_boottime_ns(),
		};
		hash_add(hca->objects, &object->node, (unsigned long)address);
	} else {
		hca->unlisted++;
	}
	spin_unlock_irqrestore(&hca->objects_lock, flags);
}

/* Before the object is destroyed: afterwards its address may be another's. */
struct ibtun_object *ibtun_object_take(struct ib_device *ibdev, const void *address)
{
	struct ibtun_hca *hca = ibtun_from_ib(ibdev);
	struct ibtun_object *object;
	unsigned long flags;

	spin_lock_irqsave(&hca->objects_lock, flags);
	hash_for_each_possible(hca->objects, object, node, (unsigned long)address) {
		if (object->address == address) {
			hash_del(&object->node);
			break;
		}
	}
	spin_unlock_irqrestore(&hca->objects_lock, flags);
	return object;
}

/* After the call that destroys it, whose error this is: lists it again if it is still there. */
int ibtun_object_end(struct ibtun_object *object, int err)
{
	struct ibtun_hca *hca;
	unsigned long flags;

	if (!err || !object) {
		kfree(object);
		return err;
	}
	hca = object->hca;
	spin_lock_irqsave(&hca->objects_lock, flags);
	hash_add(hca->objects, &object->node, (unsigned long)object->address);
	spin_unlock_irqrestore(&hca->objects_lock, flags);
	return err;
}

static void ibtun_show_object(struct seq_file *file, const struct ibtun_object *object)
{
	struct ib_uobject *user = object->user ? READ_ONCE(*object->user) : NULL;
	u64 us = div_u64(object->created, NSEC_PER_USEC);
	u32 rest;
	u64 seconds = div_u64_rem(us, USEC_PER_SEC, &rest);

	seq_printf(file, "%s=%u created=%llu.%06u", object->kind, object->number, seconds, rest);
	if (user)
		seq_printf(file, " handle=%d", user->id);
	/* A context is a program's, which needs no handle for it. */
	if (user || !strcmp(object->kind, "context"))
		seq_printf(file, " pid=%d", object->creator);
	seq_putc(file, '\n');
}

static int ibtun_objects_show(struct seq_file *file, void *unused)
{
	struct ibtun_hca *hca = file->private;
	struct ibtun_object *object;
	unsigned long flags;
	unsigned int bucket;

	/* Locked: none is destroyed meanwhile. */
	spin_lock_irqsave(&hca->objects_lock, flags);
	hash_for_each(hca->objects, bucket, object, node)
		ibtun_show_object(file, object);
	if (hca->unlisted)
		seq_printf(file, "unlisted=%u\n", hca->unlisted);
	spin_unlock_irqrestore(&hca->objects_lock, flags);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(ibtun_objects);

void ibtun_debugfs_add(struct ibtun_hca *hca, const char *name)
{
	spin_lock_init(&hca->objects_lock);
	hash_init(hca->objects);
	hca->directory = debugfs_create_dir(name, ibtun_directory);
	debugfs_create_file("objects", 0400, hca->directory, hca, &ibtun_objects_fops);
}

/* Waits for those who read. */
void ibtun_debugfs_remove(struct ibtun_hca *hca)
{
	debugfs_remove_recursive(hca->directory);
}

void ibtun_debugfs_init(void)
{
	ibtun_directory = debugfs_create_dir("ibtun", NULL);
}

void ibtun_debugfs_exit(void)
{
	debugfs_remove_recursive(ibtun_directory);
}
