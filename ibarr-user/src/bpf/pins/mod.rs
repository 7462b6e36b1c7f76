// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The directory on a bpffs that outlives the daemon.
//!
//! ```text
//! <bpf-dir>/ibarr-pins/       the mark: what else is here is ibarr's, by the names below
//!          /v4/<map>          the maps of layout 4
//!          /links/tc-<ifindex>    links, each with the program of the last daemon
//!          /links/clsact-<ifindex>/  a filter of ours, which no link holds
//!          /links/qdisc-<ifindex>/   a clsact qdisc that we have added
//!          /netns-<inode>/    the network namespace that all of this is about
//! ```
//!
//! A bpffs holds only pins and directories, so every note is a directory. Links are outside of the
//! layouts, because they are carried over from one layout to the next.
//!
//! Only the names in this list are ever removed, and only where the mark is. The directory must
//! belong to the daemon's user, and no other user may write in it; a directory that others could
//! have made or changed is refused.

mod mount;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ibarr_common::{IfIndex, map};
use ibarr_proto::responder::Hook;
use nix::unistd::geteuid;
use thiserror::Error;
use tracing::debug;

use super::directory::{Directory, Kind};
use super::names::{self, LINKS, MARK, OurLink, Top};
use crate::sys::bpf::detach_pinned_link;
use crate::units::{SERVICE, unit_of};

/// Files that the kernel itself makes in the root of each bpffs (kernel/bpf/inode.c).
const OF_THE_KERNEL: [&str; 2] = ["maps.debug", "progs.debug"];

/// Why the directory of pins cannot be used.
#[derive(Debug, Error)]
pub enum Error {
    /// Another daemon has locked it.
    #[error("{0}: another ibarr has these pins; stop it, or name another --bpf-dir")]
    Taken(PathBuf),
    /// The path is not on a bpffs, and none could be mounted.
    #[error("{0} is not on a bpffs; as root: {remedy}", remedy = to_have_a_bpffs(.0))]
    NoBpffs(PathBuf, #[source] io::Error),
    /// It holds something that is not ours.
    #[error(
        "{path}: holds {found}, which is not ibarr's; nothing was changed; \
         name a directory of ibarr's own with --bpf-dir"
    )]
    Foreign {
        /// Path of the directory.
        path: PathBuf,
        /// Name of the first such entry.
        found: String,
    },
    /// It belongs to another user.
    #[error(
        "{path}: belongs to uid {owner}, not to uid {us} of this process: \
         remove it, or name another directory with --bpf-dir"
    )]
    Owner {
        /// Path of the directory.
        path: PathBuf,
        /// User id of the owner.
        owner: u32,
        /// User id of this process.
        us: u32,
    },
    /// Other users can change or lock it.
    #[error(
        "{path}: other users can {what} (mode {mode:04o}): {remedy}, or name another directory \
         with --bpf-dir"
    )]
    Open {
        /// Path of the directory, or of its parent.
        path: PathBuf,
        /// What other users can do.
        what: &'static str,
        mode: u32,
        remedy: &'static str,
    },
    /// Another program has changed it while this process used it.
    #[error(
        "{0}: another program has removed, replaced or covered it; find that program and stop it"
    )]
    Changed(PathBuf),
    /// The path does not end in a name.
    #[error("{0}: is not the name of a directory; name one with --bpf-dir")]
    NoName(PathBuf),
    /// A system call failed.
    #[error("{0}: cannot be made, read or removed{remedy}", remedy = remedy(.1))]
    Io(PathBuf, #[source] io::Error),
}

/// Below the run directory of a unit of the package, it is a bind of what systemd-tmpfiles or the unit makes.
fn to_have_a_bpffs(path: &Path) -> String {
    match unit_of(path).as_deref() {
        Some(SERVICE) => {
            "systemd-tmpfiles --create ibarr.conf && systemctl restart ibarr".to_owned()
        }
        Some(unit) => format!("mount -t bpf bpf /sys/fs/bpf; systemctl restart {unit}"),
        None => format!("mount -t bpf bpf {}", path.display()),
    }
}

/// Stands before the error.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::ReadOnlyFilesystem => {
            "; mount the bpffs for writing, or name another directory with --bpf-dir"
        }
        ErrorKind::PermissionDenied => {
            "; the daemon's user must own the directory (systemd-tmpfiles --create ibarr.conf)"
        }
        _ => "",
    }
}

/// The directory, locked: no other daemon changes it.
#[derive(Debug)]
pub(super) struct Pins {
    parent: Directory,
    name: String,
    directory: Directory,
    _lock: File,
    /// Entries that this process has made, to be removed if the programs cannot be loaded.
    made: Vec<String>,
    /// What the next daemon needs.
    needed: Vec<(String, Option<(u64, u64)>)>,
    /// The directories that stand for filters and qdiscs. They are undone even if others have removed the directories.
    notes: RefCell<BTreeSet<String>>,
}

impl Pins {
    /// Makes the directory on a bpffs, locks it and marks it.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        mount::make_on_bpffs(path)?;
        let Some(candidate) = Candidate::find(path)? else {
            return Err(Error::Io(path.to_owned(), ErrorKind::NotFound.into()));
        };
        candidate.check_access(false)?;
        let mut pins = candidate.lock()?;
        if let Some(found) = pins.foreign()? {
            return Err(Error::Foreign { path: path.to_owned(), found });
        }
        pins.make(MARK)?;
        Ok(pins)
    }

    /// Locks the directory if it exists and has pins of ours. An empty directory of ours is
    /// removed.
    pub(super) fn open_existing(path: &Path) -> Result<Option<Self>, Error> {
        let Some(candidate) = Candidate::find(path)? else { return Ok(None) };
        if !candidate.is_on_bpffs()? {
            return match candidate.directory.names().map_err(io_error(path))?.into_iter().next() {
                // A mount point where nothing is mounted.
                None => Ok(None),
                Some(found) => Err(Error::Foreign { path: path.to_owned(), found }),
            };
        }
        candidate.check_access(true)?;
        let pins = candidate.lock()?;
        if let Some(found) = pins.foreign()? {
            return Err(Error::Foreign { path: path.to_owned(), found });
        }
        if pins.names()?.is_empty() {
            pins.remove_directory()?;
            return Ok(None);
        }
        Ok(Some(pins))
    }

    /// The name of an entry that is not ours, if there is one.
    ///
    /// The mark tells that the directory is ours. Daemons older than the mark left only names that
    /// the head of this file lists, and these are accepted, too.
    fn foreign(&self) -> Result<Option<String>, Error> {
        let names = self.names()?;
        if self.kind(MARK)? == Some(Kind::Directory) {
            return Ok(None);
        }
        let mut is_ours = false;
        for name in &names {
            let Some(top) = Top::of(name) else { return Ok(Some(name.clone())) };
            if self.kind(name)? != Some(Kind::Directory) {
                return Ok(Some(name.clone()));
            }
            let io_error = io_error(self.path());
            let child = self.directory.child(name).map_err(io_error)?;
            for below in child.names().map_err(io_error)? {
                let kind = child.kind(&below).map_err(io_error)?;
                if !kind.is_some_and(|kind| top.holds(&below, kind)) {
                    return Ok(Some(format!("{name}/{below}")));
                }
                // A name that others would hardly choose.
                is_ours |= below == map::GID_CACHE;
            }
            is_ours |= top == Top::Namespace;
        }
        Ok(if is_ours { None } else { names.into_iter().next() })
    }

    /// Makes the directories that a daemon needs and that are missing.
    pub(super) fn make_all(&mut self, namespace: &str, version: u32) -> Result<(), Error> {
        [LINKS, namespace, &names::layout(version)].into_iter().try_for_each(|name| self.make(name))
    }

    /// Notes what [`check`](Self::check) is to find.
    pub(super) fn note(&mut self, namespace: &str, version: u32) -> Result<(), Error> {
        let layout = names::layout(version);
        let maps = map::NAMES.map(|map| format!("{layout}/{map}"));
        for name in [MARK, LINKS, namespace].map(str::to_owned).into_iter().chain(maps) {
            let identity = self.directory.identity(&name).map_err(io_error(self.path()))?;
            self.needed.push((name, identity));
        }
        for link in self.links()? {
            self.notes.borrow_mut().extend(link.note());
        }
        Ok(())
    }

    /// Fails if the next daemon and `ibarr detach` would not find the pins where they look for them.
    pub(super) fn check(&self) -> Result<(), Error> {
        let identity = |name: &str| self.directory.identity(name).map_err(io_error(self.path()));
        let there =
            Candidate::find(self.path())?.map(|candidate| candidate.directory.identity("."));
        let there = there.transpose().map_err(io_error(self.path()))?;
        if there != Some(identity(".")?) {
            return Err(Error::Changed(self.path().to_owned()));
        }
        for (name, known) in &self.needed {
            if identity(name)? != *known {
                return Err(Error::Changed(self.path().join(name)));
            }
        }
        for note in self.notes.borrow().iter() {
            let name = format!("{LINKS}/{note}");
            if identity(&name)?.is_none() {
                return Err(Error::Changed(self.path().join(name)));
            }
        }
        Ok(())
    }

    fn make(&mut self, name: &str) -> Result<(), Error> {
        if self.directory.make(name).map_err(io_error(&self.path().join(name)))? {
            self.made.push(name.to_owned());
        }
        Ok(())
    }

    /// Removes what this process has made, and the directory if it is empty then.
    pub(super) fn undo(self) -> Result<(), Error> {
        let mut left = Vec::new();
        for name in self.made.iter().rev() {
            self.remove_known(name, &mut left)?;
        }
        self.remove_directory()
    }

    /// Path of the maps of layout `version`.
    pub(super) fn layout(&self, version: u32) -> PathBuf {
        layout(self.path(), version)
    }

    /// The layouts that exist.
    pub(super) fn layouts(&self) -> Result<BTreeSet<u32>, Error> {
        let names = self.names()?;
        let version = |name: &String| match Top::of(name) {
            Some(Top::Layout(version)) => Some(version),
            _ => None,
        };
        Ok(names.iter().filter_map(version).collect())
    }

    /// Removes a layout with its maps.
    pub(super) fn remove_layout(&self, version: u32) -> Result<(), Error> {
        let mut left = Vec::new();
        self.remove_known(&names::layout(version), &mut left)?;
        if !left.is_empty() {
            debug!(?left, "not ours, and left alone");
        }
        Ok(())
    }

    /// Whether the pins are about another namespace than the one named `ours`.
    pub(super) fn is_elsewhere(&self, ours: &str) -> Result<bool, Error> {
        for name in self.names()? {
            let is_other = Top::of(&name) == Some(Top::Namespace) && name != ours;
            if is_other && self.kind(&name)? == Some(Kind::Directory) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The pin of a link, or the directory that stands for a filter.
    pub(super) fn hook(&self, ifindex: IfIndex, hook: Hook) -> PathBuf {
        self.path().join(LINKS).join(names::hook(ifindex, hook))
    }

    /// Makes the directory that stands for a filter; `true` if it did not exist.
    pub(super) fn make_filter(&self, ifindex: IfIndex) -> Result<bool, Error> {
        self.make_link(&names::hook(ifindex, Hook::Clsact))
    }

    /// Makes the directory that stands for a qdisc that we have added; `true` if it did not exist.
    pub(super) fn make_qdisc(&self, ifindex: IfIndex) -> Result<bool, Error> {
        self.make_link(&names::qdisc(ifindex))
    }

    fn make_link(&self, name: &str) -> Result<bool, Error> {
        let io_error = io_error(self.path());
        let made = self.directory.child(LINKS).and_then(|links| links.make(name));
        self.notes.borrow_mut().insert(name.to_owned());
        made.map_err(io_error)
    }

    /// The hooks with a link or filter of ours.
    pub(super) fn hooks(&self) -> Result<BTreeSet<(IfIndex, Hook)>, Error> {
        let hook = |link| match link {
            OurLink::Hook(ifindex, hook) => Some((ifindex, hook)),
            OurLink::Qdisc(_) => None,
        };
        Ok(self.links()?.into_iter().filter_map(hook).collect())
    }

    /// The interfaces with a qdisc that we have added.
    pub(super) fn qdiscs(&self) -> Result<BTreeSet<IfIndex>, Error> {
        let qdisc = |link| match link {
            OurLink::Qdisc(ifindex) => Some(ifindex),
            OurLink::Hook(..) => None,
        };
        Ok(self.links()?.into_iter().filter_map(qdisc).collect())
    }

    fn links(&self) -> Result<Vec<OurLink>, Error> {
        let notes = self.notes.borrow();
        let mut found: Vec<_> = notes.iter().filter_map(|name| OurLink::of(name)).collect();
        let Some(links) = self.open_links()? else { return Ok(found) };
        let io_error = io_error(links.path());
        for name in links.names().map_err(io_error)? {
            if let Some(link) = OurLink::of(&name)
                && links.kind(&name).map_err(io_error)? == Some(link.kind())
            {
                found.push(link);
            }
        }
        Ok(found)
    }

    fn open_links(&self) -> Result<Option<Directory>, Error> {
        if self.kind(LINKS)? != Some(Kind::Directory) {
            return Ok(None);
        }
        self.directory.child(LINKS).map(Some).map_err(io_error(&self.path().join(LINKS)))
    }

    /// Detaches a link and removes its pin, or removes the directory of a filter.
    pub(super) fn remove_hook(&self, ifindex: IfIndex, hook: Hook) -> Result<(), Error> {
        self.remove_link(&names::hook(ifindex, hook))
    }

    /// Removes the directory of a qdisc that we have added.
    pub(super) fn remove_qdisc(&self, ifindex: IfIndex) -> Result<(), Error> {
        self.remove_link(&names::qdisc(ifindex))
    }

    fn remove_link(&self, name: &str) -> Result<(), Error> {
        self.notes.borrow_mut().remove(name);
        let Some(links) = self.open_links()? else { return Ok(()) };
        let io_error = io_error(links.path());
        match links.kind(name).map_err(io_error)? {
            Some(kind) if Top::Links.holds(name, kind) => {
                remove_link(&links, name, kind).map(drop).map_err(io_error)
            }
            _ => Ok(()),
        }
    }

    /// Removes all that is ours, which detaches the links; returns what it has left.
    pub(super) fn remove(self) -> Result<Vec<PathBuf>, Error> {
        let mut left = Vec::new();
        // Links first: nothing answers any more when the maps are removed.
        self.remove_known(LINKS, &mut left)?;
        for name in self.names()? {
            if name != MARK {
                self.remove_known(&name, &mut left)?;
            }
        }
        // The mark last, so that another attempt can continue from any point.
        self.remove_known(MARK, &mut left)?;
        self.remove_directory()?;
        left.sort();
        left.dedup();
        Ok(left)
    }

    /// Removes a directory in this one with all known contents, if it exists.
    fn remove_known(&self, name: &str, left: &mut Vec<PathBuf>) -> Result<(), Error> {
        let path = self.path().join(name);
        let io_error = io_error(&path);
        let Some(kind) = self.kind(name)? else { return Ok(()) };
        let (Some(top), Kind::Directory) = (Top::of(name), kind) else {
            left.push(path);
            return Ok(());
        };
        let child = self.directory.child(name).map_err(io_error)?;
        for below in child.names().map_err(io_error)? {
            let is_gone = match child.kind(&below).map_err(io_error)? {
                None => true,
                Some(kind) if !top.holds(&below, kind) => false,
                Some(kind) => remove_link(&child, &below, kind).map_err(io_error)?,
            };
            if !is_gone {
                left.push(path.join(below));
            }
        }
        self.directory.remove_empty(name).map_err(io_error)?;
        Ok(())
    }

    /// Removes the directory itself if it is empty and belongs to the user of this process.
    fn remove_directory(&self) -> Result<(), Error> {
        let io_error = io_error(self.path());
        if self.directory.access().map_err(io_error)?.uid != geteuid().as_raw() {
            return Ok(());
        }
        // Another directory may be in its candidate.
        let [there, ours] = [self.parent.identity(&self.name), self.directory.identity(".")];
        if there.map_err(io_error)? != ours.map_err(io_error)? {
            return Ok(());
        }
        match self.parent.remove_empty(&self.name) {
            // It is the root of a bpffs, which the administrator may unmount, or in a directory of
            // the administrator's.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ResourceBusy
                        | ErrorKind::PermissionDenied
                        | ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                Ok(())
            }
            removed => removed.map(drop).map_err(io_error),
        }
    }

    /// Whether the bpffs stays mounted when this process ends. `None` if this cannot be found out.
    pub(super) fn outlive_us(&self) -> Option<bool> {
        let device = self.directory.device().ok()?;
        let mounts = fs::read_to_string("/proc/1/mountinfo").ok()?;
        // A container ends with its init process, and mounts outside of it cannot be listed.
        if std::process::id() == 1 {
            mount::outlives_container(device, &mounts)
        } else {
            Some(mount::is_mounted(device, &mounts))
        }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The entries, except those of the kernel.
    fn names(&self) -> Result<Vec<String>, Error> {
        let mut names = self.directory.names().map_err(io_error(self.path()))?;
        names.retain(|name| !OF_THE_KERNEL.contains(&name.as_str()));
        Ok(names)
    }

    fn kind(&self, name: &str) -> Result<Option<Kind>, Error> {
        self.directory.kind(name).map_err(io_error(&self.path().join(name)))
    }
}

/// Path of the maps of layout `version`.
pub(super) fn layout(root: &Path, version: u32) -> PathBuf {
    root.join(names::layout(version))
}

/// The name that stands for the network namespace of this process.
pub(super) fn namespace() -> Result<String, Error> {
    let path = Path::new("/proc/thread-self/ns/net");
    let inode = fs::metadata(path).map_err(io_error(path))?.ino();
    Ok(names::namespace(inode))
}

/// A directory and its parent, not checked yet.
struct Candidate {
    parent: Directory,
    name: String,
    directory: Directory,
}

impl Candidate {
    fn find(path: &Path) -> Result<Option<Self>, Error> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str()))
        else {
            return Err(Error::NoName(path.to_owned()));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let opened = Directory::open(parent).and_then(|parent| {
            let directory = parent.child(name)?;
            Ok(Self { parent, name: name.to_owned(), directory })
        });
        match opened {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some).map_err(io_error(path)),
        }
    }

    fn is_on_bpffs(&self) -> Result<bool, Error> {
        self.directory.is_bpffs().map_err(io_error(self.directory.path()))
    }

    /// Whether no other user can have made the directory, or can change, replace or lock it.
    ///
    /// With `may_be_given`, root also accepts a directory of another user in a candidate where only
    /// root can have made it.
    fn check_access(&self, may_be_given: bool) -> Result<(), Error> {
        const WRITE: u32 = 0o022;
        const READ: u32 = 0o004;
        const STICKY: u32 = 0o1000;
        let us = geteuid().as_raw();
        let access = |of: &Directory| of.access().map_err(io_error(of.path()));
        let open = |of: &Directory, mode, what, remedy| {
            Err(Error::Open { path: of.path().to_owned(), what, mode, remedy })
        };

        let around = access(&self.parent)?;
        let is_shared = around.mode & WRITE != 0;
        if is_shared && around.mode & STICKY == 0 || around.uid != us && around.uid != 0 {
            let remedy = "make it root's, mode 0755 or 1777";
            return open(&self.parent, around.mode, "rename what is in it", remedy);
        }
        let own = access(&self.directory)?;
        let path = self.directory.path().to_owned();
        if own.uid != us && !(may_be_given && us == 0 && !is_shared) {
            return Err(Error::Owner { path, owner: own.uid, us });
        }
        if own.mode & WRITE != 0 {
            let remedy = "look at what is in it, then chmod 0700";
            return open(&self.directory, own.mode, "write in it", remedy);
        }
        if own.mode & READ != 0 {
            return open(&self.directory, own.mode, "lock it", "chmod 0700");
        }
        Ok(())
    }

    fn lock(self) -> Result<Pins, Error> {
        let Self { parent, name, directory } = self;
        let io_error = io_error(directory.path());
        let lock = File::from(directory.try_clone().map_err(io_error)?);
        match lock.try_lock() {
            Ok(()) => Ok(Pins {
                parent,
                name,
                directory,
                _lock: lock,
                made: Vec::new(),
                needed: Vec::new(),
                notes: RefCell::default(),
            }),
            Err(TryLockError::WouldBlock) => Err(Error::Taken(directory.path().to_owned())),
            Err(TryLockError::Error(error)) => Err(io_error(error)),
        }
    }
}

/// Removes an entry of ours: a pin, whose link is detached first, or an empty directory. `false` if
/// the directory is not empty.
fn remove_link(directory: &Directory, name: &str, kind: Kind) -> io::Result<bool> {
    if kind == Kind::Directory {
        return directory.remove_empty(name);
    }
    if OurLink::of(name).is_some()
        && let Err(error) = detach_pinned_link(&directory.path_by_descriptor(name))
    {
        // Then the link is detached with its last pin, a moment later.
        debug!(name, %error, "link not detached at once");
    }
    directory.remove_pin(name)?;
    Ok(true)
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> Error + Copy + '_ {
    |error| Error::Io(path.to_owned(), error)
}
