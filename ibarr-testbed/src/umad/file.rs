// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The file of a device: a FUSE file, or a socket that takes its place.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use anyhow::{Context as _, Result};
use ibarr_common::Instant;
use ibarr_common::wire::umad::{MAX_LEN, Register2Wire};
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use zerocopy::IntoBytes as _;

use super::device::{Device, FileId, request};
use super::fuse::{Call, Fuse, Reply};

pub(super) enum DeviceFile {
    Mounted {
        fuse: Fuse,
        /// Pollers that wait until a file is ready.
        waiters: BTreeMap<FileId, u64>,
    },
    Listening {
        listener: UnixListener,
        files: BTreeMap<FileId, UnixStream>,
    },
}

impl DeviceFile {
    pub(super) fn mount(path: &Path) -> Result<Self> {
        File::create(path).with_context(|| path.display().to_string())?;
        let fuse = Fuse::mount(path).with_context(|| {
            format!(
                "cannot mount FUSE on {}: it needs /dev/fuse and the right to mount (root)",
                path.display()
            )
        })?;
        Ok(Self::Mounted { fuse, waiters: BTreeMap::new() })
    }

    pub(super) fn listen(path: &Path) -> Result<Self> {
        // Remove the file on which FUSE could not be mounted.
        let _ = fs::remove_file(path);
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
            .context("cannot make a socket")?;
        // The Rust type is a stream; the kernel's socket has packets.
        bind(listener.as_raw_fd(), &UnixAddr::new(path)?)
            .and_then(|()| listen(&listener, Backlog::new(8)?))
            .with_context(|| format!("cannot listen at {}", path.display()))?;
        Ok(Self::Listening { listener: listener.into(), files: BTreeMap::new() })
    }

    /// Handles system calls on the file, or packets and connections of the socket.
    pub(super) fn serve(&mut self, now: Instant, device: &mut Device) -> Result<()> {
        match self {
            Self::Mounted { fuse, waiters } => {
                while fuse.serve(|call| answer(device, waiters, now, &call))? {}
                Ok(())
            }
            Self::Listening { listener, files } => {
                // A connection that cannot be accepted is closed already.
                while let Ok((socket, _)) = listener.accept() {
                    socket.set_nonblocking(true)?;
                    files.extend(open(device).map(|file| (file, socket)));
                }
                keep(files, device, |device, file, socket| take(now, device, file, socket));
                Ok(())
            }
        }
    }

    /// Delivers data to the sockets, or wakes pollers.
    pub(super) fn deliver(&mut self, device: &mut Device) -> Result<()> {
        match self {
            Self::Mounted { fuse, waiters } => {
                let ready = |file: FileId| device.poll(file).intersects(READ_OR_LOST);
                for (_, waiter) in waiters.extract_if(.., |file, _| ready(*file)) {
                    fuse.wake(waiter).context("cannot wake a poller")?;
                }
            }
            Self::Listening { files, .. } => keep(files, device, give),
        }
        Ok(())
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (own, files) = match self {
            Self::Mounted { fuse, .. } => (fuse.as_fd(), None),
            Self::Listening { listener, files } => (listener.as_fd(), Some(files.values())),
        };
        [own].into_iter().chain(files.into_iter().flatten().map(AsFd::as_fd))
    }
}

fn answer(
    device: &mut Device,
    waiters: &mut BTreeMap<FileId, u64>,
    now: Instant,
    call: &Call<'_>,
) -> Result<Reply, Errno> {
    match *call {
        Call::Open => device.open().map(|file| Reply::Opened(file.0)),
        Call::Release { file } => {
            device.close(FileId(file));
            waiters.remove(&FileId(file));
            Ok(Reply::Done)
        }
        Call::Read { file, size } => device.read(FileId(file), size).map(Reply::Bytes),
        Call::Write { file, bytes } => device.write(now, FileId(file), bytes).map(Reply::Written),
        Call::Ioctl { file, request, argument } => {
            device.ioctl(FileId(file), request, argument).map(Reply::Ioctl)
        }
        Call::Poll { file, waiter } => {
            if let Some(waiter) = waiter {
                waiters.insert(FileId(file), waiter);
            }
            Ok(Reply::Ready(device.poll(FileId(file))))
        }
    }
}

/// Opens the device and registers an agent, as a daemon does before it reads or writes.
fn open(device: &mut Device) -> Option<FileId> {
    let file = device.open().ok()?;
    let argument = Register2Wire::SA_CLIENT;
    device.ioctl(file, request::REGISTER_AGENT_2, argument.as_bytes()).ok()?;
    Some(file)
}

/// Closes connections that have ended.
fn keep(
    files: &mut BTreeMap<FileId, UnixStream>,
    device: &mut Device,
    mut serve: impl FnMut(&mut Device, FileId, &mut UnixStream) -> Option<()>,
) {
    files.retain(|&file, socket| {
        let stays = serve(device, file, socket).is_some();
        if !stays {
            device.close(file);
        }
        stays
    });
}

/// `None` if the connection has ended.
fn take(now: Instant, device: &mut Device, file: FileId, socket: &mut UnixStream) -> Option<()> {
    let mut buffer = [0; MAX_LEN];
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => return None,
            Ok(len) => device.write(now, file, buffer.get(..len)?).ok()?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Some(()),
            Err(_) => return None,
        };
    }
}

/// `None` if the connection has ended.
fn give(device: &mut Device, file: FileId, socket: &mut UnixStream) -> Option<()> {
    loop {
        match device.read(file, MAX_LEN) {
            // A client that does not read loses further MADs.
            Ok(bytes) => drop(socket.write(&bytes)),
            Err(Errno::EAGAIN) => return Some(()),
            Err(_) => return None,
        }
    }
}

const READ_OR_LOST: PollFlags = PollFlags::POLLIN.union(PollFlags::POLLERR);
