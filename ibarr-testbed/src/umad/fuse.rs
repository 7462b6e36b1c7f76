// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A file whose system calls come to this process: a FUSE file system of one regular file, mounted on a
//! file. It has the part of the protocol that a device for MADs needs (include/uapi/linux/fuse.h); numbers
//! are in the machine's byte order.
//!
//! Existing libraries have directories, caches and inodes, and eight times as much code.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::PollFlags;
use nix::unistd::{getgid, getuid};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// A mounted file. It is unmounted when it is dropped, and open files then get `ENOTCONN`.
#[derive(Debug)]
pub struct Fuse {
    kernel: File,
    path: PathBuf,
    buffer: Vec<u8>,
}

/// The relevant part of a system call.
#[derive(Debug, Eq, PartialEq)]
pub enum Call<'a> {
    /// open(2). The reply is [`Reply::Opened`].
    Open,
    /// The last close(2) of a file.
    Release {
        /// The number from the reply to [`Call::Open`].
        file: u64,
    },
    /// read(2). The reply is [`Reply::Bytes`].
    Read {
        /// The number of the open file.
        file: u64,
        /// The size of the buffer in bytes.
        size: usize,
    },
    /// write(2). The reply is [`Reply::Written`].
    Write {
        /// The number of the open file.
        file: u64,
        /// The written bytes.
        bytes: &'a [u8],
    },
    /// ioctl(2). The reply is [`Reply::Ioctl`].
    Ioctl {
        /// The number of the open file.
        file: u64,
        /// The request number, which includes the length of the argument.
        request: u32,
        /// The bytes of the argument.
        argument: &'a [u8],
    },
    /// poll(2), select(2) or epoll(7). The reply is [`Reply::Ready`].
    Poll {
        /// The number of the open file.
        file: u64,
        /// A number for [`Fuse::wake`], if the caller waits.
        waiter: Option<u64>,
    },
}

/// The answer to a [`Call`].
#[derive(Debug)]
pub enum Reply {
    /// The number of the open file.
    Opened(u64),
    /// The bytes that are read.
    Bytes(Vec<u8>),
    /// The number of written bytes.
    Written(usize),
    /// The new bytes of the argument.
    Ioctl(Vec<u8>),
    /// The events that are ready.
    Ready(PollFlags),
    /// Success without data.
    Done,
}

impl Fuse {
    /// Mounts a file at `path`, which must be an existing file.
    ///
    /// # Errors
    /// There is no FUSE, or the process may not mount.
    pub fn mount(path: &Path) -> io::Result<Self> {
        let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
        let fuse =
            OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/fuse")?;
        let options = format!(
            "fd={},rootmode=100600,user_id={},group_id={},allow_other",
            fuse.as_raw_fd(),
            getuid(),
            getgid()
        );
        let options = CString::new(options)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("umad"), path, Some("fuse"), flags, Some(options.as_c_str()))?;
        Ok(Self { kernel: fuse, path: path.to_owned(), buffer: vec![0; BUFFER] })
    }

    /// Handles the next call: `serve` makes its reply. False if there is none now.
    ///
    /// # Errors
    /// The file was unmounted, or the kernel speaks another protocol.
    pub fn serve(
        &mut self,
        serve: impl FnOnce(Call<'_>) -> Result<Reply, Errno>,
    ) -> io::Result<bool> {
        let len = match self.kernel.read(&mut self.buffer) {
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            // The call was interrupted before we read it.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(true),
            Err(error) => return Err(error),
        };
        let bytes = self.buffer.get(..len).unwrap_or_default();
        let (header, body) = InHeader::read_from_prefix(bytes).map_err(|_| malformed())?;
        let reply = match header.opcode {
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => return Ok(true),
            opcode::INIT => Ok(init(body)?),
            opcode::GETATTR => Ok(attributes()),
            opcode::OPEN => serve(Call::Open).map(encode),
            opcode::RELEASE => {
                let (file, _) = u64::read_from_prefix(body).map_err(|_| malformed())?;
                serve(Call::Release { file }).map(encode)
            }
            opcode::READ => {
                let (read, _) = ReadIn::read_from_prefix(body).map_err(|_| malformed())?;
                let size = usize::try_from(read.size).unwrap_or(usize::MAX);
                serve(Call::Read { file: read.file, size }).map(encode)
            }
            opcode::WRITE => {
                let (write, bytes) = ReadIn::read_from_prefix(body).map_err(|_| malformed())?;
                serve(Call::Write { file: write.file, bytes }).map(encode)
            }
            opcode::IOCTL => {
                let (ioctl, argument) = IoctlIn::read_from_prefix(body).map_err(|_| malformed())?;
                let IoctlIn { file, request, .. } = ioctl;
                serve(Call::Ioctl { file, request, argument }).map(encode)
            }
            opcode::POLL => {
                let (poll, _) = PollIn::read_from_prefix(body).map_err(|_| malformed())?;
                let waits = poll.flags & POLL_SCHEDULE_NOTIFY != 0;
                let waiter = waits.then_some(poll.waiter);
                serve(Call::Poll { file: poll.file, waiter }).map(encode)
            }
            _ => Err(Errno::ENOSYS),
        };
        let (error, body) = match reply {
            Ok(body) => (0, body),
            Err(errno) => (-(errno as i32), Vec::new()),
        };
        match self.say(header.unique, error, &body) {
            // The caller has ended.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(true),
            said => said.map(|()| true),
        }
    }

    /// Makes `waiter` poll again.
    ///
    /// # Errors
    /// The file was unmounted.
    pub fn wake(&mut self, waiter: u64) -> io::Result<()> {
        match self.say(0, NOTIFY_POLL, waiter.as_bytes()) {
            // The caller does not wait any more.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            said => said,
        }
    }

    fn say(&mut self, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
        let len = u32::try_from(size_of::<OutHeader>() + body.len()).map_err(|_| malformed())?;
        let header = OutHeader { len, error, unique };
        // The kernel accepts all bytes or none.
        self.kernel.write_all(&[header.as_bytes(), body].concat())
    }
}

impl AsFd for Fuse {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernel.as_fd()
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // It may be unmounted already.
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
    }
}

fn init(body: &[u8]) -> io::Result<Vec<u8>> {
    let (init, _) = InitIn::read_from_prefix(body).map_err(|_| malformed())?;
    if init.major != MAJOR || init.minor < MINOR {
        return Err(malformed());
    }
    let mut out = InitOut::new_zeroed();
    (out.major, out.minor) = (MAJOR, MINOR);
    out.max_write = MAX_WRITE;
    (out.max_background, out.congestion_threshold) = (64, 48);
    Ok(out.as_bytes().to_vec())
}

/// The attributes of a file that only its owner may open. The kernel may cache them for ever.
fn attributes() -> Vec<u8> {
    let mut attributes = Attributes::new_zeroed();
    attributes.valid_s = u64::MAX;
    (attributes.inode, attributes.links) = (1, 1);
    attributes.mode = libc::S_IFREG | 0o600;
    (attributes.user, attributes.group) = (getuid().as_raw(), getgid().as_raw());
    attributes.block_size = 4096;
    attributes.as_bytes().to_vec()
}

fn encode(reply: Reply) -> Vec<u8> {
    let u32_of = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
    match reply {
        Reply::Opened(file) => OpenOut { file, flags: OPEN_FLAGS, padding: 0 }.as_bytes().to_vec(),
        Reply::Bytes(bytes) => bytes,
        Reply::Written(len) => [u32_of(len), 0].as_bytes().to_vec(),
        Reply::Ioctl(bytes) => [&[0; 16], bytes.as_slice()].concat(),
        Reply::Ready(ready) => {
            let ready = u32::from(ready.bits().cast_unsigned());
            [ready, 0].as_bytes().to_vec()
        }
        Reply::Done => Vec::new(),
    }
}

fn malformed() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the kernel speaks another FUSE protocol than we do")
}

/// The major version of the protocol.
const MAJOR: u32 = 7;
const MINOR: u32 = 23;
const MAX_WRITE: u32 = 4096;
/// Size of the buffer. The kernel refuses one below 8 KiB.
const BUFFER: usize = 16 * 1024;
/// FOPEN_DIRECT_IO, FOPEN_NONSEEKABLE, FOPEN_STREAM: each system call of the user becomes one call here.
const OPEN_FLAGS: u32 = 1 | 1 << 2 | 1 << 4;
const POLL_SCHEDULE_NOTIFY: u32 = 1;
const NOTIFY_POLL: i32 = 1;

mod opcode {
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const INIT: u32 = 26;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const IOCTL: u32 = 39;
    pub(super) const POLL: u32 = 40;
    pub(super) const BATCH_FORGET: u32 = 42;
}

#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct InHeader {
    len: u32,
    opcode: u32,
    unique: u64,
    node: u64,
    user: u32,
    group: u32,
    pid: u32,
    extensions: u32,
}

#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
#[repr(C)]
struct OutHeader {
    len: u32,
    error: i32,
    unique: u64,
}

#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct InitIn {
    major: u32,
    minor: u32,
    max_readahead: u32,
    flags: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
struct InitOut {
    major: u32,
    minor: u32,
    max_readahead: u32,
    flags: u32,
    max_background: u16,
    congestion_threshold: u16,
    max_write: u32,
    time_granularity: u32,
    unused: [u32; 9],
}

#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
struct Attributes {
    valid_s: u64,
    valid_ns: u32,
    padding: u32,
    inode: u64,
    size: u64,
    blocks: u64,
    times_s: [u64; 3],
    times_ns: [u32; 3],
    mode: u32,
    links: u32,
    user: u32,
    group: u32,
    device: u32,
    block_size: u32,
    flags: u32,
}

#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
#[repr(C)]
struct OpenOut {
    file: u64,
    flags: u32,
    padding: u32,
}

/// The header of reads and of writes.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ReadIn {
    file: u64,
    offset: u64,
    size: u32,
    how: u32,
    lock_owner: u64,
    flags: u32,
    padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct IoctlIn {
    file: u64,
    flags: u32,
    request: u32,
    argument: u64,
    in_size: u32,
    out_size: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct PollIn {
    file: u64,
    waiter: u64,
    flags: u32,
    events: u32,
}

const _: () = {
    assert!(size_of::<InHeader>() == 40);
    assert!(size_of::<OutHeader>() == 16);
    assert!(size_of::<InitOut>() == 64);
    assert!(size_of::<Attributes>() == 104);
    assert!(size_of::<ReadIn>() == 40);
    assert!(size_of::<IoctlIn>() == 32);
    assert!(size_of::<PollIn>() == 24);
};
