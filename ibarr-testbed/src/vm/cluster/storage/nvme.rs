// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! NVMe over RDMA: the other kernel exports a RAM disk to ours. Both sides of the connection
//! are in kernels.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::rig::{self, Place, eventually};

/// The exported subsystem's name.
const NAME: &str = "ibarr-test";
const BLOCK: &str = "/dev/nvme0n1";
/// The exported RAM disk, on the server.
pub(super) const DISK: &str = "/dev/ram0";

/// Exports a RAM disk (Documentation of nvmet: its configfs).
const EXPORT: &str = "
    mount -t configfs none /sys/kernel/config
    cd /sys/kernel/config/nvmet
    mkdir -p subsystems/$NAME/namespaces/1 ports/1
    echo 1 >subsystems/$NAME/attr_allow_any_host
    echo $DISK >subsystems/$NAME/namespaces/1/device_path
    echo 1 >subsystems/$NAME/namespaces/1/enable
    echo ipv4 >ports/1/addr_adrfam
    echo rdma >ports/1/addr_trtype
    echo 4420 >ports/1/addr_trsvcid
    echo 0.0.0.0 >ports/1/addr_traddr
    ln -s /sys/kernel/config/nvmet/subsystems/$NAME ports/1/subsystems/$NAME";

const REMOVE: &str = "
    cd /sys/kernel/config/nvmet
    rm ports/1/subsystems/$NAME
    rmdir ports/1 subsystems/$NAME/namespaces/1 subsystems/$NAME";

/// Exports the RAM disk at all addresses of the server.
pub(super) fn listen() -> Result<()> {
    script(EXPORT)
}

/// Returns the disk of the client.
pub(super) fn connect(address: &str) -> Result<&'static str> {
    let options = "transport=rdma,trsvcid=4420,nr_io_queues=1,reconnect_delay=1,keep_alive_tmo=5";
    fs::write("/dev/nvme-fabrics", format!("{options},traddr={address},nqn={NAME}"))
        .context("/dev/nvme-fabrics")?;
    eventually(|| {
        ensure!(Path::new(BLOCK).exists(), "there is no {BLOCK}");
        Ok(())
    })?;
    Ok(BLOCK)
}

pub(super) fn disconnect() -> Result<()> {
    fs::write("/sys/class/nvme/nvme0/delete_controller", "1").context("delete_controller")
}

pub(super) fn remove() -> Result<()> {
    script(REMOVE)
}

fn script(text: &str) -> Result<()> {
    let variables = format!("set -e; NAME={NAME}; DISK={DISK}");
    rig::run(Place::Other, &["busybox", "sh", "-c", &format!("{variables}{text}")]).map(drop)
}

/// The checksum of the first bytes of a file, as the disk has them.
pub(super) fn sum(place: Place, file: &str, size: usize) -> Result<String> {
    let words = format!("echo 3 >/proc/sys/vm/drop_caches; head -c {size} {file} | sha256sum");
    rig::run(place, &["busybox", "sh", "-c", &words])
}
