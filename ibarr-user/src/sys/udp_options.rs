// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Options of UDP sockets that do not concern addresses: the size of the receive buffer, the number
//! of dropped datagrams, and a filter.

#![expect(unsafe_code, reason = "nix lacks two of the options")]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use ibarr_proto::ip2gid::Family;
use libc::{sock_filter, sock_fprog};
use nix::sys::socket::{
    AddressFamily, SockaddrLike as _, SockaddrStorage, getsockname, getsockopt, setsockopt, sockopt,
};

/// The receive buffer space that our longest datagram takes (`truesize` of its `sk_buff`), in
/// bytes. IPoIB receives every packet into a buffer of the link's MTU. With an MTU of 4 KiB the
/// buffer takes 8 KiB and its `sk_buff` 256 bytes; with 2 KiB both together take 4,352 bytes.
pub const TRUESIZE: usize = 8192 + 256;

/// Enlarges the receive buffer to `wish` bytes, or to as much as the kernel grants; never shrinks
/// it. Returns the size in bytes.
///
/// Memory is used only while datagrams wait; `net.ipv4.udp_mem` bounds the sum over all sockets.
///
/// # Errors
/// Errors of getsockopt(2): none for a socket.
pub fn widen(socket: &impl AsFd, wish: usize) -> io::Result<usize> {
    if getsockopt(socket, sockopt::RcvBuf)? < wish {
        // The kernel doubles the given value (`__sock_set_rcvbuf` in net/core/sock.c).
        let told = wish / 2;
        // Without CAP_NET_ADMIN the limit is `net.core.rmem_max`; the granted size is read below.
        let forced = setsockopt(socket, sockopt::RcvBufForce, &told);
        let _ = forced.or_else(|_| setsockopt(socket, sockopt::RcvBuf, &told));
    }
    Ok(getsockopt(socket, sockopt::RcvBuf)?)
}

/// How many datagrams the kernel has dropped at this socket, because there was no room, the
/// checksum was wrong, or a filter rejected them. The counter wraps.
///
/// # Errors
/// Errors of getsockopt(2): `ENOPROTOOPT` before Linux 4.12.
pub fn dropped(socket: &impl AsFd) -> io::Result<u32> {
    /// `SK_MEMINFO_VARS` and `SK_MEMINFO_DROPS` of include/uapi/linux/sock_diag.h.
    const VARS: usize = 9;
    const DROPS: usize = 8;
    let mut memory = [0u32; VARS];
    let mut len = option_len(size_of_val(&memory));
    // SAFETY: `memory` has `len` bytes, for which any bit pattern is a `u32`; nothing else borrows
    // either.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            memory.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(memory[DROPS])
}

/// Makes the socket drop datagrams whose source is their destination, unless they arrive on the
/// loopback interface. Such a datagram on another interface is not from this host. IPv4 already
/// drops it, unless `accept_local` is set (`fib_validate_source`); IPv6 does not, and reports the
/// interface that has the address instead of the one that received the datagram (`ip6_rcv_core`).
///
/// This replaces any other filter of the socket. A filter attached later replaces this one, and has
/// to include the same rule.
///
/// # Errors
/// Errors of `SO_ATTACH_FILTER`.
pub fn refuse_from_itself(socket: &impl AsFd) -> io::Result<()> {
    let name: SockaddrStorage = getsockname(socket.as_fd().as_raw_fd())?;
    let family = match name.family() {
        Some(AddressFamily::Inet6) => Family::V6,
        _ => Family::V4,
    };
    attach(socket, from_itself(family))
}

/// Makes a packet socket keep only UDP datagrams from this port to the same one, without IP options.
///
/// # Errors
/// Errors of `SO_ATTACH_FILTER`.
pub(crate) fn keep_only(socket: &impl AsFd, family: Family, port: u16) -> io::Result<()> {
    let ports = match family {
        Family::V4 => 20,
        Family::V6 => 40,
    };
    let both = u32::from(port) << 16 | u32::from(port);
    attach(
        socket,
        vec![
            instruction(LOAD, 0, 0, (libc::SKF_NET_OFF + ports).cast_unsigned()),
            instruction(JUMP_IF | libc::BPF_K, 1, 0, both),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        ],
    )
}

fn attach(socket: &impl AsFd, mut program: Vec<sock_filter>) -> io::Result<()> {
    let program = sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the kernel reads a `sock_fprog` and as many instructions as it states, which are
    // alive during the call, and keeps a copy.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            option_len(size_of::<sock_fprog>()),
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The filter: accepts a datagram at the first word in which its two addresses differ.
fn from_itself(family: Family) -> Vec<sock_filter> {
    /// `LOOPBACK_IFINDEX` of include/net/flow.h.
    const LO: u32 = 1;
    // Offset of the source in the IP header, and its length in words; the destination follows it.
    let (source, words) = match family {
        Family::V4 => (12, 1),
        Family::V6 => (8, 4),
    };
    let at = |offset: i32| (libc::SKF_NET_OFF + offset).cast_unsigned();
    let mut program = vec![
        instruction(LOAD, 0, 0, (libc::SKF_AD_OFF + libc::SKF_AD_IFINDEX).cast_unsigned()),
        instruction(JUMP_IF | libc::BPF_K, 4 * words + 1, 0, LO),
    ];
    for word in 0..words {
        let offset = source + 4 * i32::from(word);
        program.extend([
            instruction(LOAD, 0, 0, at(offset)),
            instruction(libc::BPF_MISC | libc::BPF_TAX, 0, 0, 0),
            instruction(LOAD, 0, 0, at(offset + 4 * i32::from(words))),
            instruction(JUMP_IF | libc::BPF_X, 0, 4 * (words - word - 1) + 1, 0),
        ]);
    }
    let end = |keep| instruction(libc::BPF_RET | libc::BPF_K, 0, 0, keep);
    program.extend([end(0), end(u32::MAX)]);
    program
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const JUMP_IF: u32 = libc::BPF_JMP | libc::BPF_JEQ;

#[expect(clippy::cast_possible_truncation, reason = "codes of classic BPF have 8 bits")]
const fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

#[expect(clippy::cast_possible_truncation, reason = "a few dozen bytes")]
const fn option_len(len: usize) -> libc::socklen_t {
    len as libc::socklen_t
}
