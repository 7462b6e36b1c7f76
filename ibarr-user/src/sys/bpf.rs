// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What aya does not do about BPF links.

#![expect(unsafe_code, reason = "bpf(2) has no safe wrapper for this")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;

/// Detaches the program of a pinned link, before this returns: the link is left without effect.
/// Removing the last pin of a link detaches it a moment later (`bpf_link_put` in
/// kernel/bpf/syscall.c).
///
/// # Errors
/// Those of bpf(2): `ENOENT` if nothing is pinned there, `EOPNOTSUPP` before Linux 5.9.
pub fn detach_pinned_link(pin: &Path) -> io::Result<()> {
    let link = open_pin(pin)?;
    let request = LinkDetach { link_fd: link.as_raw_fd().cast_unsigned() };
    // SAFETY: BPF_LINK_DETACH reads as many bytes as it is told from its argument, which is one
    // `LinkDetach` that is alive here, and touches nothing else of ours.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_LINK_DETACH, &raw const request, size_of_val(&request))
    };
    Errno::result(result)?;
    Ok(())
}

fn open_pin(pin: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    let request =
        ObjectGet { pathname: path.as_ptr().expose_provenance() as u64, bpf_fd: 0, file_flags: 0 };
    // SAFETY: BPF_OBJ_GET reads as many bytes as it is told from its argument, which is one
    // `ObjectGet`, and a string that ends with NUL at its `pathname`. Both are alive here.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_OBJ_GET, &raw const request, size_of_val(&request))
    };
    let fd = i32::try_from(Errno::result(result)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Of `enum bpf_cmd` in include/uapi/linux/bpf.h.
const BPF_OBJ_GET: libc::c_int = 7;
const BPF_LINK_DETACH: libc::c_int = 34;

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
