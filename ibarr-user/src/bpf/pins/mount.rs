// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A directory on a bpffs, which is mounted if there is none.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use tracing::info;

use super::{Error, io_error};

/// The usual mount point of a bpffs.
const BPFFS: &str = "/sys/fs/bpf";
/// The source of a bpffs that this program has mounted, in the list of mounts.
const OURS: &str = "ibarr";

/// Makes the directory `path`. If it is on no bpffs, one is mounted: at the usual place if that is above it.
pub(super) fn make_on_bpffs(path: &Path) -> Result<(), Error> {
    let usual = Path::new(BPFFS);
    let is_bpffs = |path| statfs(path).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC);
    // A directory of the kernel's own, which is for a bpffs only.
    if path.starts_with(usual) && !is_bpffs(usual) {
        mount_bpffs(usual)?;
    }
    DirBuilder::new().mode(0o700).recursive(true).create(path).map_err(io_error(path))?;
    if is_bpffs(path) { Ok(()) } else { mount_bpffs(path) }
}

/// Mounts a bpffs, unless that would hide entries.
fn mount_bpffs(path: &Path) -> Result<(), Error> {
    if let Some(found) = fs::read_dir(path).map_err(io_error(path))?.next() {
        let found = found.map_err(io_error(path))?.file_name().to_string_lossy().into_owned();
        return Err(Error::Foreign { path: path.to_owned(), found });
    }
    mount(Some(OURS), path, Some("bpf"), MsFlags::empty(), Some("mode=0700"))
        .map_err(|errno| Error::NoBpffs(path.to_owned(), errno.into()))?;
    info!("mounted a bpffs at {}", path.display());
    Ok(())
}

/// Whether a file system is mounted (proc_pid_mountinfo(5)).
pub(super) fn is_mounted(device: u64, mountinfo: &str) -> bool {
    let device = format!("{}:{}", major(device), minor(device));
    mountinfo.lines().any(|line| line.split(' ').nth(2) == Some(device.as_str()))
}

/// Whether a bpffs in the mount namespace of a container stays mounted when the container ends. `None` if
/// its mount does not tell.
pub(super) fn outlives_container(device: u64, mountinfo: &str) -> Option<bool> {
    let mount = mountinfo.lines().find(|line| is_mounted(device, line))?;
    let (mount, file_system) = mount.split_once(" - ")?;
    // It gets its mounts from another mount namespace, which has it as well.
    if mount.split(' ').any(|field| field.starts_with("master:")) {
        return Some(true);
    }
    (file_system.split(' ').nth(1) == Some(OURS)).then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bpffs_is_found_among_mounts_by_its_device() {
        const MOUNTS: &str = "\
29 24 0:26 / /sys/fs/bpf rw,nosuid - bpf bpf rw,mode=700
30 24 0:27 / /proc/0:28 rw - proc proc rw
";
        assert!(is_mounted(nix::sys::stat::makedev(0, 26), MOUNTS));
        assert!(!is_mounted(nix::sys::stat::makedev(0, 28), MOUNTS));
        assert!(!is_mounted(nix::sys::stat::makedev(0, 2), MOUNTS));
    }

    #[test]
    fn missing_bpffs_of_the_unit_is_for_tmpfiles_others_are_mounted() {
        let remedy = |path| super::super::to_have_a_bpffs(Path::new(path));
        let of_unit = "systemd-tmpfiles --create ibarr.conf && systemctl restart ibarr";
        assert_eq!(remedy("/run/ibarr/bpf"), of_unit);
        let of_namespace = "mount -t bpf bpf /sys/fs/bpf; systemctl restart ibarr@blue.service";
        assert_eq!(remedy("/run/ibarr-netns/blue/bpf"), of_namespace);
        assert_eq!(remedy("/mnt/pins"), "mount -t bpf bpf /mnt/pins");
    }

    #[test]
    fn bpffs_outlives_a_container_that_got_it_from_outside() {
        const MOUNTS: &str = "\
300 290 0:43 / /sys/fs/bpf rw,relatime master:12 - bpf bpf rw,mode=700
301 290 0:44 / /mnt/own rw,relatime - bpf ibarr rw,mode=700
302 290 0:45 / /mnt/bound rw,relatime - bpf bpf rw,mode=700
303 290 0:46 / /mnt/daemon/of/host rw,relatime master:13 - bpf ibarr rw,mode=700
";
        let outlives = |minor| outlives_container(nix::sys::stat::makedev(0, minor), MOUNTS);
        assert_eq!([43, 44, 45, 46].map(outlives), [Some(true), Some(false), None, Some(true)]);
    }
}
