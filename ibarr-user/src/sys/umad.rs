// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The umad device of a port, `/dev/infiniband/umadN` ([`ibarr_common::wire::umad`]).
//!
//! A Unix socket (`SOCK_SEQPACKET`) may take the place of the device. Then the process that listens
//! on it stands in for the kernel: the messages are the same, and one agent exists from the start.

#![expect(unsafe_code, reason = "the device's requests have no safe wrapper")]

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::thread;

use bytes::BytesMut;
use ibarr_common::wire::umad::{AgentId, MAX_LEN, MAX_TABLE_LEN, Register2Wire};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::{read, write};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::fd;

/// A device with an agent that asks the SA, not registered with a runtime yet.
#[derive(Debug)]
pub struct Opened {
    fd: OwnedFd,
    agent: AgentId,
    /// Of a stand-in, where no agent is registered.
    for_tables: OnceLock<AgentId>,
}

impl Opened {
    /// Opens the device and registers the agent. Blocks for as long as the driver does.
    ///
    /// # Errors
    /// `ENOENT`; `ENXIO` while the device is being removed; `EACCES`; errors of the registration.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        match file {
            Ok(file) => Self::register(file.into()),
            // A device that is being removed also gives ENXIO, but is not a socket.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) && is_socket(path) => {
                Self::connect(path)
            }
            Err(error) => Err(error),
        }
    }

    fn connect(path: &Path) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        let agent = AgentId(0);
        Ok(Self { fd, agent, for_tables: agent.into() })
    }

    fn register(fd: OwnedFd) -> io::Result<Self> {
        let agent = register(&fd, Register2Wire::SA_CLIENT)?;
        Ok(Self { fd, agent, for_tables: OnceLock::new() })
    }
}

fn register(fd: &impl AsRawFd, mut request: Register2Wire) -> Result<AgentId, Errno> {
    // SAFETY: REGISTER_AGENT2 reads and writes one `ib_user_mad_reg_req2` at its argument, which is
    // alive, has that layout, and is not used elsewhere during the call.
    unsafe { ioctl::register_agent_2(fd.as_raw_fd(), &raw mut request) }?;
    Ok(AgentId(request.agent))
}

fn is_socket(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// A device registered with a runtime.
#[derive(Debug)]
pub struct Device {
    fd: AsyncFd<OwnedFd>,
    agent: AgentId,
    /// The agent of questions whose answers are tables.
    for_tables: OnceLock<AgentId>,
    _last: Last,
}

/// A second descriptor of a device, which a thread closes after the first: the last close(2) waits until the kernel has
/// ended all that the agents have begun.
#[derive(Debug)]
struct Last(Option<OwnedFd>);

impl Drop for Last {
    fn drop(&mut self) {
        let last = self.0.take();
        // If there is no thread, it is closed here.
        drop(thread::Builder::new().name("umad".to_owned()).spawn(move || drop(last)));
    }
}

impl Device {
    /// Registers the device with the runtime. Must be called within one.
    ///
    /// # Errors
    /// Errors of dup(2) and epoll_ctl(2).
    pub fn adopt(opened: Opened) -> io::Result<Self> {
        let Opened { fd, agent, for_tables } = opened;
        let last = Last(Some(fd.try_clone()?));
        let fd = fd::watch(fd, Interest::READABLE)?;
        Ok(Self { fd, agent, for_tables, _last: last })
    }

    /// The kernel's id of our agent.
    pub fn agent(&self) -> AgentId {
        self.agent
    }

    /// The kernel's id of our agent for tables, if it is registered.
    pub fn agent_for_tables(&self) -> Option<AgentId> {
        self.for_tables.get().copied()
    }

    /// Registers the agent for tables, for which the kernel puts together what comes in several MADs. Called once at most.
    /// Blocks for as long as the driver does.
    ///
    /// # Errors
    /// Errors of the registration.
    pub fn register_for_tables(&self) -> io::Result<()> {
        if self.for_tables.get().is_none() {
            let agent = register(self.fd.get_ref(), Register2Wire::SA_CLIENT_OF_TABLES)?;
            self.for_tables.get_or_init(|| agent);
        }
        Ok(())
    }

    /// Waits for a message, and reads it into a buffer that is as long as one with a MAD can be. Cancel safe.
    ///
    /// # Errors
    /// `EIO`, `ENODEV` when the device is gone; `UnexpectedEof` when the stand-in has closed its
    /// socket.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.next(|fd| Ok(read(fd, buffer)?)).await
    }

    /// The same, into a buffer that is made as long as a message can be.
    ///
    /// # Errors
    /// Also `ENOSPC` for a table of more than 64 paths, which stays in the device.
    pub async fn read_any(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        self.next(|fd| {
            // A table may have been asked for while this waited.
            let longest = if self.for_tables.get().is_some() { MAX_TABLE_LEN } else { MAX_LEN };
            buffer.resize(longest, 0);
            Ok(read(fd, buffer)?)
        })
        .await
    }

    async fn next(&self, mut read: impl FnMut(&OwnedFd) -> io::Result<usize>) -> io::Result<usize> {
        loop {
            // For a removed device the kernel only reports an error condition.
            let mut guard = self.fd.ready(Interest::READABLE | Interest::ERROR).await?;
            match guard.try_io(|fd| read(fd.get_ref())) {
                Ok(Ok(0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(result) => return result,
                Err(_would_block) => {}
            }
        }
    }

    /// Sends one message. The kernel queues it, so this does not block.
    ///
    /// # Errors
    /// Errors of write(2).
    pub fn write(&self, message: &[u8]) -> io::Result<()> {
        write(self.fd.get_ref(), message)?;
        Ok(())
    }
}

/// include/uapi/rdma/ib_user_mad.h.
mod ioctl {
    use ibarr_common::wire::umad::Register2Wire;

    nix::ioctl_readwrite!(register_agent_2, 0x1b, 4, Register2Wire);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctl_number_equals_the_kernels() {
        // Computed from the kernel's header on x86-64; most architectures have the same numbers.
        let number = nix::request_code_readwrite!(0x1b, 4, size_of::<Register2Wire>());
        assert_eq!(number, 0xc028_1b04);
    }

    #[test]
    fn file_that_is_not_a_umad_device_is_refused() {
        let error = Opened::open(Path::new("/nowhere/umad0")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let error = Opened::open(Path::new("/dev/null")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }
}
