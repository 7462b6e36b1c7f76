// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! NFS over RDMA, by Debian's programs. The kernel of the other guest is the server.

use anyhow::Result;

use crate::rig::{self, Place};

/// The file, on the server and on the client.
pub(super) const FILE: &str = "/srv/export/file";
const MOUNTED: &str = "/run/mounted/file";

/// As docs/storage.md has it, with files and mounts that Debian's package makes. A file system in memory needs `fsid`.
const EXPORT: &str = "
    mkdir -p /srv/export /var/lib/nfs/v4recovery
    touch /etc/exports /var/lib/nfs/etab /var/lib/nfs/rmtab
    mount -t tmpfs none /srv/export
    mount -t nfsd none /proc/fs/nfsd
    exportfs -o rw,insecure,no_root_squash,fsid=0 10.1.0.0/24:/srv/export
    rpc.mountd --no-nfs-version 3
    rpc.nfsd --no-nfs-version 3 --rdma 4
    echo Y >/proc/fs/nfsd/v4_end_grace";

pub(super) fn export() -> Result<()> {
    shell(Place::Other, EXPORT)
}

/// The defaults of an option are the kernel's, if it is not among `more`.
pub(super) fn mount(address: &str, more: &str) -> Result<&'static str> {
    let options = format!("proto=rdma,port=20049,vers=4.2{more}");
    let mount = format!("mkdir -p /run/mounted; mount.nfs {address}:/ /run/mounted -o {options}");
    shell(Place::Here, &mount)?;
    Ok(MOUNTED)
}

pub(super) fn unmount() -> Result<()> {
    shell(Place::Here, "umount /run/mounted")
}

/// All that waits for the server fails.
pub(super) fn give_up() -> Result<()> {
    shell(Place::Here, "umount -f /run/mounted")
}

fn shell(place: Place, text: &str) -> Result<()> {
    rig::run(place, &["busybox", "sh", "-ec", text]).map(drop)
}
