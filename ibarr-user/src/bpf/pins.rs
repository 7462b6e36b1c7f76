// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The directory on a bpffs that outlives the daemon.
//!
//! ```text
//! <bpf-dir>/v4/<map>              the maps of layout 4
//!          /links/tc-<ifindex>    links, each with the program of the last daemon
//!          /links/clsact-<ifindex>/  a filter of ours, which no link holds
//!          /links/qdisc-<ifindex>/   a clsact qdisc that we have added
//!          /netns-<inode>/        the network namespace that all of this is about
//! ```
//!
//! A bpffs holds pins and directories, so what is to be remembered is a directory. Links are outside
//! of the layouts because they are what is carried from one to the next.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use ibarr_common::IfIndex;
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use thiserror::Error;
use tracing::info;

use super::kernel::Hook;

/// The usual place of a bpffs.
const BPFFS: &str = "/sys/fs/bpf";

/// Why the pins cannot be had.
#[derive(Debug, Error)]
pub enum Error {
    /// Another daemon has them.
    #[error("{0}: another ibarr has these pins; give this one its own --bpf-dir")]
    Taken(PathBuf),
    /// There is no bpffs and none could be mounted.
    #[error("{0} is not on a bpffs; as root: mount -t bpf bpf {0}")]
    NoBpffs(PathBuf, #[source] io::Error),
    /// The file system refuses.
    #[error("{0}: cannot be made, read or removed")]
    Io(PathBuf, #[source] io::Error),
}

/// The directory, locked: nobody else changes it.
#[derive(Debug)]
pub(super) struct Pins {
    root: PathBuf,
    _lock: File,
}

impl Pins {
    /// Makes the directory, on a bpffs, and locks it.
    pub(super) fn open(root: &Path) -> Result<Self, Error> {
        make_on_bpffs(root)?;
        Self::lock(root)
    }

    /// Locks the directory if it is there.
    pub(super) fn open_existing(root: &Path) -> Result<Option<Self>, Error> {
        match fs::symlink_metadata(root) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::Io(root.to_owned(), error)),
            Ok(_) => Self::lock(root).map(Some),
        }
    }

    fn lock(root: &Path) -> Result<Self, Error> {
        let io_error = |error| Error::Io(root.to_owned(), error);
        let lock = File::open(root).map_err(io_error)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { root: root.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(Error::Taken(root.to_owned())),
            Err(TryLockError::Error(error)) => Err(io_error(error)),
        }
    }

    /// Where the maps of layout `version` are.
    pub(super) fn layout(&self, version: u32) -> PathBuf {
        layout(&self.root, version)
    }

    /// Layouts that are there.
    pub(super) fn layouts(&self) -> Result<BTreeSet<u32>, Error> {
        Ok(names(&self.root)?
            .iter()
            .filter_map(|name| name.strip_prefix('v')?.parse().ok())
            .collect())
    }

    /// Removes a layout with its maps.
    pub(super) fn remove_layout(&self, version: u32) -> Result<(), Error> {
        remove_all(&self.layout(version))
    }

    /// Whether all this is about another namespace than `ours`.
    pub(super) fn is_foreign(&self, ours: &Path) -> Result<bool, Error> {
        let is_other = |name: &String| name.starts_with("netns-") && self.root.join(name) != ours;
        Ok(names(&self.root)?.iter().any(is_other))
    }

    /// The pin of a link, or the directory that stands for a filter.
    pub(super) fn hook(&self, ifindex: IfIndex, hook: Hook) -> PathBuf {
        self.links().join(format!("{}-{ifindex}", prefix(hook)))
    }

    /// What stands for a qdisc that we have added.
    pub(super) fn qdisc(&self, ifindex: IfIndex) -> PathBuf {
        self.links().join(format!("{QDISC}-{ifindex}"))
    }

    /// What holds [`hook`](Self::hook)s and [`qdisc`](Self::qdisc)s.
    pub(super) fn links(&self) -> PathBuf {
        self.root.join("links")
    }

    /// The [`hook`](Self::hook)s that are there.
    pub(super) fn hooks(&self) -> Result<BTreeSet<(IfIndex, Hook)>, Error> {
        let hook = |(name, ifindex): (String, IfIndex)| {
            Some((ifindex, Hook::ALL.into_iter().find(|&hook| prefix(hook) == name)?))
        };
        Ok(self.indexed()?.into_iter().filter_map(hook).collect())
    }

    /// The interfaces with a [`qdisc`](Self::qdisc).
    pub(super) fn qdiscs(&self) -> Result<Vec<IfIndex>, Error> {
        let of_qdisc = self.indexed()?.into_iter().filter(|(name, _)| name == QDISC);
        Ok(of_qdisc.map(|(_, ifindex)| ifindex).collect())
    }

    fn indexed(&self) -> Result<Vec<(String, IfIndex)>, Error> {
        let indexed = |name: &String| {
            let (name, ifindex) = name.rsplit_once('-')?;
            Some((name.to_owned(), IfIndex::new(ifindex.parse().ok()?)?))
        };
        Ok(names(&self.links())?.iter().filter_map(indexed).collect())
    }

    /// Removes all of it, which detaches the links.
    pub(super) fn remove(self) -> Result<(), Error> {
        // A link is gone with its pin: nothing answers any more when the maps go.
        remove_all(&self.links())?;
        for name in names(&self.root)? {
            remove_all(&self.root.join(name))?;
        }
        self.remove_if_empty()
    }

    /// Removes the directory if there is nothing in it.
    pub(super) fn remove_if_empty(self) -> Result<(), Error> {
        match fs::remove_dir(&self.root) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            // The root of a bpffs that was mounted for us, which the administrator may unmount.
            Err(error) if error.kind() == ErrorKind::ResourceBusy => Ok(()),
            removed => ok_if_absent(removed).map_err(|error| Error::Io(self.root, error)),
        }
    }
}

/// Where the maps of layout `version` are.
pub(super) fn layout(root: &Path, version: u32) -> PathBuf {
    root.join(format!("v{version}"))
}

/// What stands for the network namespace of this process.
pub(super) fn namespace(root: &Path) -> Result<PathBuf, Error> {
    let path = Path::new("/proc/thread-self/ns/net");
    let inode = fs::metadata(path).map_err(|error| Error::Io(path.to_owned(), error))?.ino();
    Ok(root.join(format!("netns-{inode}")))
}

/// Makes a directory; `true` if it was not there.
pub(super) fn make(path: &Path) -> Result<bool, Error> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(Error::Io(path.to_owned(), error)),
    }
}

/// Removes a pin or a directory with all in it, if it is there.
pub(super) fn remove_all(path: &Path) -> Result<(), Error> {
    let is_dir = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
    let removed = if is_dir { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    ok_if_absent(removed).map_err(|error| Error::Io(path.to_owned(), error))
}

const QDISC: &str = "qdisc";

const fn prefix(hook: Hook) -> &'static str {
    match hook {
        Hook::Tcx => "tc",
        Hook::Clsact => "clsact",
        Hook::XdpNative => "xdp-native",
        Hook::XdpGeneric => "xdp-generic",
    }
}

fn make_on_bpffs(root: &Path) -> Result<(), Error> {
    let usual = Path::new(BPFFS);
    // A directory of the kernel's own, where only a bpffs belongs.
    if root.starts_with(usual) && !is_bpffs(usual) {
        mount_bpffs(usual)?;
    }
    DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(root)
        .map_err(|error| Error::Io(root.to_owned(), error))?;
    if is_bpffs(root) { Ok(()) } else { mount_bpffs(root) }
}

fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC)
}

fn mount_bpffs(path: &Path) -> Result<(), Error> {
    mount(Some("bpf"), path, Some("bpf"), MsFlags::empty(), Some("mode=0700"))
        .map_err(|errno| Error::NoBpffs(path.to_owned(), errno.into()))?;
    info!("mounted a bpffs at {}", path.display());
    Ok(())
}

/// Of a directory; none if it is not there.
fn names(directory: &Path) -> Result<Vec<String>, Error> {
    let io_error = |error| Error::Io(directory.to_owned(), error);
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(io_error)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        // Of what we make, every name is UTF-8.
        names.extend(entry.map_err(io_error)?.file_name().into_string());
    }
    Ok(names)
}

fn ok_if_absent(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
