// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Replies to clients, and how far the last one has come, in memory that outlives a killed process.
//!
//! recv(2) writes the bytes into the caller's memory before it returns, and sendmmsg(2) their number
//! (`__sys_sendmmsg` in net/socket.c), and a signal ends a process only between system calls. So the next process
//! knows for certain what was taken and sent.

#![expect(unsafe_code, reason = "the next process reads what the kernel wrote for the last one")]

use std::cell::Cell;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::mem::{offset_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use ibarr_common::wire::acm::MAX_REQUEST_LEN;
use libc::{c_int, c_void, iovec, mmsghdr, msghdr};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// What begins the page. Another layout gets another number.
const MAGIC: u64 = u64::from_be_bytes(*b"acmrply2");

/// Length of the memory in bytes.
const LEN: usize = 4096;

/// The length of what has not been moved.
const NONE: u32 = u32::MAX;

/// See the [module](self). Without a file, no other process reads it.
#[derive(Debug)]
pub struct LastReply(NonNull<Page>);

/// What a killed process has left to do for a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NextStep {
    /// Nothing, or all: the first request in the socket has no reply.
    Nothing,
    /// To take the first request out of the socket: its reply was sent.
    Request,
    /// It cannot be done: a part of the reply was sent, and the rest is lost.
    Rest,
}

#[repr(C)]
struct Page {
    magic: AtomicU64,
    /// The inode of the client's socket; 0 for none.
    client: AtomicU64,
    reply_len: AtomicU32,
    request_len: AtomicU32,
    sent: Message,
    /// Where the request goes when it is taken. Its first byte is its version, which is not 0.
    request: [AtomicU8; MAX_REQUEST_LEN],
}

/// `struct mmsghdr`.
#[repr(C)]
struct Message {
    header: Cell<msghdr>,
    len: AtomicU32,
}

const _: () = {
    assert!(size_of::<Message>() == size_of::<mmsghdr>());
    assert!(offset_of!(Message, len) == offset_of!(mmsghdr, msg_len));
    assert!(size_of::<Page>() <= LEN);
};

// SAFETY: the page belongs to the value alone, wherever that goes, and no thread has a reference to it.
unsafe impl Send for LastReply {}

impl Drop for LastReply {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and no reference to it is left.
        unsafe { libc::munmap(self.0.as_ptr().cast(), LEN) };
    }
}

impl LastReply {
    /// In memory that no other process can have.
    ///
    /// # Errors
    /// Errors of mmap(2).
    pub fn alone() -> io::Result<Self> {
        Self::map(libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)
    }

    /// In a new file for the next process.
    ///
    /// # Errors
    /// Errors of memfd_create(2) and mmap(2).
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        // `MFD_NOEXEC_SEAL`, which a kernel before 6.3 does not know and a later one may demand.
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create("ibarr-acm-reply", flags | MFdFlags::from_bits_retain(8))
            .or_else(|_| memfd_create("ibarr-acm-reply", flags))?;
        File::from(file.try_clone()?).set_len(LEN as u64)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK))?;
        let this = Self::map(libc::MAP_SHARED, file.as_raw_fd())?;
        this.page().magic.store(MAGIC, Ordering::SeqCst);
        Ok((this, file))
    }

    /// In the file of the last process.
    ///
    /// # Errors
    /// If it is no such file, or one of another version.
    pub fn inherit(file: &OwnedFd) -> io::Result<Self> {
        let seals = fcntl(file, FcntlArg::F_GET_SEALS)?;
        let cannot_shrink = SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_SHRINK);
        let len = File::from(file.try_clone()?).metadata()?.len();
        if cannot_shrink && len >= LEN as u64 {
            let this = Self::map(libc::MAP_SHARED, file.as_raw_fd())?;
            if this.page().magic.load(Ordering::SeqCst) == MAGIC {
                return Ok(this);
            }
        }
        Err(ErrorKind::InvalidData.into())
    }

    fn map(flags: c_int, fd: c_int) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping takes the place of no other one.
        let page = unsafe { libc::mmap(ptr::null_mut(), LEN, access, flags, fd, 0) };
        match NonNull::new(page) {
            Some(page) if page.as_ptr() != libc::MAP_FAILED => Ok(Self(page.cast())),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping is aligned, as long as a page, and stays as long as this value. All bytes are valid for
        // `Page`. A file has this length and cannot shrink. The processes that shared it are dead, and no other one writes to it.
        unsafe { self.0.as_ref() }
    }

    /// Sends the reply to the first request in a client's socket, of which `request_len` bytes are to be taken.
    /// Returns how much of it was sent.
    ///
    /// # Errors
    /// Errors of sendmmsg(2). Nothing was sent then.
    pub fn send(
        &self,
        socket: BorrowedFd<'_>,
        client: u64,
        request_len: usize,
        reply: &[u8],
    ) -> io::Result<usize> {
        let page = self.page();
        let as_len = |len| u32::try_from(len).map_err(|_| ErrorKind::InvalidInput);
        // If the process dies between two of these, nothing is said of any client.
        page.client.store(0, Ordering::SeqCst);
        page.reply_len.store(as_len(reply.len())?, Ordering::SeqCst);
        page.request_len.store(as_len(request_len)?, Ordering::SeqCst);
        page.sent.len.store(NONE, Ordering::SeqCst);
        page.request[0].store(0, Ordering::SeqCst);
        page.client.store(client, Ordering::SeqCst);
        let base = reply.as_ptr().cast_mut().cast();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        page.sent.moved(base, reply.len(), |message| {
            // SAFETY: there is one message. Its vector and the bytes of the reply, which are only read, are alive
            // during the call.
            unsafe { libc::sendmmsg(socket.as_raw_fd(), message, 1, flags) }
        })
    }

    /// Takes the request out of the client's socket. The reply has ended.
    ///
    /// # Errors
    /// Errors of recv(2); `UnexpectedEof` if the request is not there.
    pub fn take(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let page = self.page();
        let len = page.request_len.load(Ordering::SeqCst) as usize;
        let base = ptr::from_ref(&page.request).cast_mut().cast();
        // SAFETY: at most the length of `request` is written. It is atomic, and lives as long as the mapping.
        let taken = unsafe {
            libc::recv(socket.as_raw_fd(), base, len.min(MAX_REQUEST_LEN), libc::MSG_DONTWAIT)
        };
        let taken = usize::try_from(taken).map_err(|_| io::Error::last_os_error())?;
        page.client.store(0, Ordering::SeqCst);
        if taken == len { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }

    /// What the last process has left to do for a client.
    pub fn left(&self, client: u64) -> NextStep {
        let page = self.page();
        let [reply, sent] = [&page.reply_len, &page.sent.len].map(|len| len.load(Ordering::SeqCst));
        let is_taken = page.request[0].load(Ordering::SeqCst) != 0;
        match () {
            () if page.client.load(Ordering::SeqCst) != client || sent == NONE => NextStep::Nothing,
            () if sent != reply => NextStep::Rest,
            () if is_taken => NextStep::Nothing,
            () => NextStep::Request,
        }
    }
}

impl Message {
    /// Has a system call move bytes, and returns how many.
    fn moved(
        &self,
        base: *mut c_void,
        len: usize,
        call: impl FnOnce(*mut mmsghdr) -> c_int,
    ) -> io::Result<usize> {
        let mut vector = iovec { iov_base: base, iov_len: len };
        // SAFETY: zero is valid for each field: null pointers and lengths of nothing.
        let empty = unsafe { zeroed() };
        self.header.set(msghdr { msg_iov: &raw mut vector, msg_iovlen: 1, ..empty });
        if call(ptr::from_ref(self).cast_mut().cast()) == 1 {
            Ok(self.len.load(Ordering::SeqCst) as usize)
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use nix::sys::socket::{setsockopt, sockopt};

    use super::*;

    const CLIENT: u64 = 7;

    /// A daemon and its client, whose request waits; and what the next daemon will read.
    fn rig() -> (LastReply, UnixStream, UnixStream, LastReply) {
        let (last, file) = LastReply::create().unwrap();
        let next = LastReply::inherit(&file).unwrap();
        let (here, mut there) = UnixStream::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        there.write_all(b"request").unwrap();
        (last, here, there, next)
    }

    #[test]
    fn next_process_knows_what_the_last_one_has_sent_and_taken() {
        let (last, here, mut there, next) = rig();
        assert_eq!(next.left(CLIENT), NextStep::Nothing);
        assert_eq!(last.send(here.as_fd(), CLIENT, 7, b"reply").unwrap(), 5);
        assert_eq!((next.left(CLIENT), next.left(8)), (NextStep::Request, NextStep::Nothing));
        there.write_all(b"second").unwrap();
        next.take(here.as_fd()).unwrap();
        assert_eq!(next.left(CLIENT), NextStep::Nothing);
        let (mut request, mut reply) = ([0; 8], [0; 8]);
        assert_eq!((&here).read(&mut request).unwrap(), 6);
        assert_eq!((&request[..6], there.read(&mut reply).unwrap()), (&b"second"[..], 5));
        assert_eq!(&reply[..5], b"reply");
        // It was killed after it had taken the request.
        last.page().client.store(CLIENT, Ordering::SeqCst);
        assert_eq!(next.left(CLIENT), NextStep::Nothing);
    }

    #[test]
    fn reply_that_found_no_room_is_not_sent_and_a_part_is_never_whole() {
        let (last, here, mut there, next) = rig();
        setsockopt(&here, sockopt::SndBuf, &4096).unwrap();
        let reply = vec![9; 60_000];
        let sent = last.send(here.as_fd(), CLIENT, 7, &reply).unwrap();
        assert!((1..reply.len()).contains(&sent), "{sent}");
        assert_eq!(next.left(CLIENT), NextStep::Rest);
        let none = last.send(here.as_fd(), CLIENT, 7, &reply).unwrap_err();
        assert_eq!((none.kind(), next.left(CLIENT)), (ErrorKind::WouldBlock, NextStep::Nothing));
        there.read_exact(&mut vec![0; sent]).unwrap();
        drop(there);
        assert!(last.send(here.as_fd(), CLIENT, 7, &reply).is_err(), "and no signal");
        assert_eq!(next.left(CLIENT), NextStep::Nothing);
    }

    #[test]
    fn file_that_is_of_another_kind_is_refused() {
        let (_last, file) = LastReply::create().unwrap();
        LastReply::inherit(&file).unwrap().page().magic.store(MAGIC + 1, Ordering::SeqCst);
        let memfd = memfd_create("short", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        let socket = OwnedFd::from(UnixStream::pair().unwrap().0);
        let ordinary = OwnedFd::from(tempfile::tempfile().unwrap());
        for other in [file, memfd, socket, ordinary] {
            assert!(LastReply::inherit(&other).is_err());
        }
    }
}
