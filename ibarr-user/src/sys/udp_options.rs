// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What a UDP socket is told, and asked, besides addresses: how much it may hold, how much it could
//! not hold, and what it is never given.

#![expect(unsafe_code, reason = "nix has no name for two of the options")]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use ibarr_proto::ip2gid::Family;
use libc::{sock_filter, sock_fprog};
use nix::sys::socket::{
    AddressFamily, SockaddrLike as _, SockaddrStorage, getsockname, getsockopt, setsockopt, sockopt,
};

/// What the longest datagram of ours costs a receive buffer (`truesize` of its `sk_buff`): IPoIB
/// receives into buffers of the link's MTU, whatever comes. With an MTU of 4 KiB such a buffer takes
/// 8 KiB and its `sk_buff` 256 bytes; with one of 2 KiB both together take 4,352 bytes.
pub const TRUESIZE: usize = 8192 + 256;

/// Has the kernel hold `wish` bytes of what the socket receives, or as much as it grants; never less
/// than before. Gives what it holds now.
///
/// Memory is used only while datagrams wait, and `net.ipv4.udp_mem` bounds that of all sockets.
///
/// # Errors
/// Those of getsockopt(2): none, for a socket.
pub fn widen(socket: &impl AsFd, wish: usize) -> io::Result<usize> {
    if getsockopt(socket, sockopt::RcvBuf)? < wish {
        // The kernel doubles what it is told (`__sock_set_rcvbuf` in net/core/sock.c).
        let told = wish / 2;
        // Without CAP_NET_ADMIN up to `net.core.rmem_max`; what is granted is asked for below.
        let forced = setsockopt(socket, sockopt::RcvBufForce, &told);
        let _ = forced.or_else(|_| setsockopt(socket, sockopt::RcvBuf, &told));
    }
    Ok(getsockopt(socket, sockopt::RcvBuf)?)
}

/// How many datagrams the kernel has not given to the socket: there was no room, the checksum was
/// wrong, or a filter did not want them. It wraps around.
///
/// # Errors
/// Those of getsockopt(2): `ENOPROTOOPT` before Linux 4.12.
pub fn dropped(socket: &impl AsFd) -> io::Result<u32> {
    /// `SK_MEMINFO_VARS` and `SK_MEMINFO_DROPS` of include/uapi/linux/sock_diag.h.
    const VARS: usize = 9;
    const DROPS: usize = 8;
    let mut memory = [0u32; VARS];
    let mut len = option_len(size_of_val(&memory));
    // SAFETY: `memory` has `len` bytes, any of which are a `u32`; both are borrowed by nobody else.
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

/// Never gives the socket a datagram whose source is its destination, unless it came in by the
/// loopback interface. So such a datagram is this host's own. IPv4 sees to that itself, unless
/// `accept_local` is set (`fib_validate_source`); IPv6 does not, and names the interface that has the
/// address instead of the one that it came in by (`ip6_rcv_core`).
///
/// It takes the place of any other filter. One that is attached later takes the place of this one,
/// and has to see to it, too.
///
/// # Errors
/// Those of `SO_ATTACH_FILTER`.
pub fn refuse_from_itself(socket: &impl AsFd) -> io::Result<()> {
    let name: SockaddrStorage = getsockname(socket.as_fd().as_raw_fd())?;
    let family = match name.family() {
        Some(AddressFamily::Inet6) => Family::V6,
        _ => Family::V4,
    };
    let mut program = from_itself(family);
    let program = sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the kernel reads a `sock_fprog` and as many instructions as it says, which are alive
    // during the call, and keeps a copy.
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

/// The filter: keeps a datagram at the first word of its addresses that differs.
fn from_itself(family: Family) -> Vec<sock_filter> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const JUMP_IF: u32 = libc::BPF_JMP | libc::BPF_JEQ;
    /// `LOOPBACK_IFINDEX` of include/net/flow.h.
    const LO: u32 = 1;
    // Where the source is in the IP header, and its words; the destination is behind it.
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

#[expect(clippy::cast_possible_truncation, reason = "codes of classic BPF have 8 bits")]
const fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

#[expect(clippy::cast_possible_truncation, reason = "a few dozen bytes")]
const fn option_len(len: usize) -> libc::socklen_t {
    len as libc::socklen_t
}
