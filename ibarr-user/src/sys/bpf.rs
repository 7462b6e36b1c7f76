// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! BPF link operations that aya lacks.

#![expect(unsafe_code, reason = "bpf(2) has no safe wrapper for this")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use nix::errno::Errno;
use nix::libc;

/// Detaches the program of a pinned link before it returns; the link stays, without effect.
/// Removing the last pin instead would detach the program only a moment later (`bpf_link_put` in
/// kernel/bpf/syscall.c).
///
/// # Errors
/// Errors of bpf(2): `ENOENT` if nothing is pinned there, `EOPNOTSUPP` before Linux 5.9.
pub(crate) fn detach_pinned_link(pin: &Path) -> io::Result<()> {
    let link = open_pin(pin)?;
    let request = LinkDetach { link_fd: link.as_raw_fd().cast_unsigned() };
    // SAFETY: BPF_LINK_DETACH reads the given number of bytes at its argument. They are one
    // `LinkDetach`, alive here; the call touches nothing else of ours.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_LINK_DETACH, &raw const request, size_of_val(&request))
    };
    Errno::result(result)?;
    Ok(())
}

/// Whether bpf(2) is refused whatever it is asked. It is asked for something that no kernel knows, which is `EINVAL`
/// where the call gets through.
pub(crate) fn is_forbidden() -> bool {
    const UNKNOWN: libc::c_int = libc::c_int::MAX;
    // SAFETY: the length is 0, so bpf(2) reads and writes nothing at its argument.
    let result = unsafe { libc::syscall(libc::SYS_bpf, UNKNOWN, ptr::null::<u8>(), 0) };
    matches!(Errno::result(result), Err(Errno::EPERM | Errno::EACCES | Errno::ENOSYS))
}

/// A tcx or XDP link: its program and its interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LinkInfo {
    /// Id of the attached program.
    pub program: u32,
    /// Index of the interface that the program is attached to; 0 after it was detached or the
    /// interface was removed.
    pub ifindex: u32,
}

/// Reads the state of a pinned tcx or XDP link.
///
/// # Errors
/// Errors of bpf(2): `ENOENT` if nothing is pinned there, `EINVAL` if it is not a link.
pub(crate) fn pinned_link_info(pin: &Path) -> io::Result<LinkInfo> {
    let link = open_pin(pin)?;
    let mut info = InterfaceLink::default();
    let request = ObjectInfo {
        bpf_fd: link.as_raw_fd().cast_unsigned(),
        info_len: InterfaceLink::LEN,
        info: (&raw mut info).expose_provenance() as u64,
    };
    // SAFETY: BPF_OBJ_GET_INFO_BY_FD reads the given number of bytes at its argument, one
    // `ObjectInfo`, and writes at most `info_len` bytes to `info`, one `InterfaceLink`, for which
    // all bit patterns are valid. Both are alive here.
    let result = unsafe {
        let (request, len) = (&raw const request, size_of_val(&request));
        libc::syscall(libc::SYS_bpf, BPF_OBJ_GET_INFO_BY_FD, request, len)
    };
    Errno::result(result)?;
    if !matches!(info.kind, BPF_LINK_TYPE_XDP | BPF_LINK_TYPE_TCX) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(LinkInfo { program: info.prog_id, ifindex: info.ifindex })
}

fn open_pin(pin: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    let request =
        ObjectGet { pathname: path.as_ptr().expose_provenance() as u64, bpf_fd: 0, file_flags: 0 };
    // SAFETY: BPF_OBJ_GET reads the given number of bytes at its argument, one `ObjectGet`, and a
    // NUL-terminated string at its `pathname`. Both are alive here.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_OBJ_GET, &raw const request, size_of_val(&request))
    };
    let fd = i32::try_from(Errno::result(result)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Of `enum bpf_cmd` in include/uapi/linux/bpf.h.
const BPF_OBJ_GET: libc::c_int = 7;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const BPF_LINK_DETACH: libc::c_int = 34;

/// Of `enum bpf_link_type`.
const BPF_LINK_TYPE_XDP: u32 = 6;
const BPF_LINK_TYPE_TCX: u32 = 11;

/// The part of `union bpf_attr` that `BPF_OBJ_GET` reads.
#[repr(C)]
struct ObjectGet {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// The part of `union bpf_attr` that `BPF_LINK_DETACH` reads.
#[repr(C)]
struct LinkDetach {
    link_fd: u32,
}

/// The part of `union bpf_attr` that `BPF_OBJ_GET_INFO_BY_FD` reads.
#[repr(C)]
struct ObjectInfo {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The first bytes of `struct bpf_link_info`. The part that begins with `ifindex` is a union,
/// aligned to 8 bytes; both kinds of link that we use have the index there.
#[derive(Default)]
#[repr(C)]
struct InterfaceLink {
    kind: u32,
    id: u32,
    prog_id: u32,
    reserved: u32,
    ifindex: u32,
    attach_type: u32,
}

impl InterfaceLink {
    const LEN: u32 = 24;
}

const _: () = assert!(size_of::<InterfaceLink>() == InterfaceLink::LEN as usize);
