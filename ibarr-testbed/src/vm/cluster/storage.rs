// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! NVMe over RDMA: the other kernel exports a RAM disk, ours writes and reads it. Both sides of the connection
//! are in kernels.

use std::env;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::FAR;
use crate::rig::{self, Place, eventually};

/// The exported subsystem's name.
const NAME: &str = "ibarr-test";
const BLOCK: &str = "/dev/nvme0n1";

/// Size of the file: less than the RAM disk (16 MiB).
const SIZE: usize = 4 << 20;

/// Exports a RAM disk, and listens at an address (Documentation of nvmet: its configfs).
const EXPORT: &str = "
    mount -t configfs none /sys/kernel/config
    cd /sys/kernel/config/nvmet
    mkdir -p subsystems/$NAME/namespaces/1 ports/1
    echo 1 >subsystems/$NAME/attr_allow_any_host
    echo /dev/ram0 >subsystems/$NAME/namespaces/1/device_path
    echo 1 >subsystems/$NAME/namespaces/1/enable
    echo ipv4 >ports/1/addr_adrfam
    echo rdma >ports/1/addr_trtype
    echo 4420 >ports/1/addr_trsvcid
    echo $ADDRESS >ports/1/addr_traddr
    ln -s /sys/kernel/config/nvmet/subsystems/$NAME ports/1/subsystems/$NAME";

const REMOVE: &str = "
    cd /sys/kernel/config/nvmet
    rm ports/1/subsystems/$NAME
    rmdir ports/1 subsystems/$NAME/namespaces/1 subsystems/$NAME";

/// Writes a file to the disk of the other kernel, and compares it there and after it is read back.
pub(super) fn file() -> Result<()> {
    script(EXPORT)?;
    let connect =
        format!("transport=rdma,traddr={},trsvcid=4420,nqn={NAME},nr_io_queues=1", FAR[0]);
    fs::write("/dev/nvme-fabrics", connect).context("/dev/nvme-fabrics")?;
    eventually(|| {
        ensure!(Path::new(BLOCK).exists(), "there is no {BLOCK}");
        Ok(())
    })?;
    let mut content = vec![0; SIZE];
    File::open("/dev/urandom")?.read_exact(&mut content)?;
    let file = env::temp_dir().join("file").display().to_string();
    fs::write(&file, &content)?;
    rig::run(
        Place::Here,
        &["busybox", "dd", &format!("if={file}"), &format!("of={BLOCK}"), "bs=64k", "conv=fsync"],
    )?;
    let wanted = sum(Place::Here, &file)?;
    ensure!(sum(Place::Other, "/dev/ram0")? == wanted, "the other kernel has other bytes");
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    ensure!(sum(Place::Here, BLOCK)? == wanted, "other bytes are read back");
    fs::write("/sys/class/nvme/nvme0/delete_controller", "1").context("delete_controller")?;
    script(REMOVE)
}

fn script(text: &str) -> Result<()> {
    let variables = format!("set -e; NAME={NAME}; ADDRESS={}", FAR[0]);
    rig::run(Place::Other, &["busybox", "sh", "-c", &format!("{variables}{text}")]).map(drop)
}

/// The checksum of the first bytes of a file.
fn sum(place: Place, file: &str) -> Result<String> {
    let words = format!("head -c {SIZE} {file} | sha256sum");
    rig::run(place, &["busybox", "sh", "-c", &words])
}
