// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Sends and receives many datagrams by one system call (`recvmmsg`, `sendmmsg`), each with its own
//! packet info.
//!
//! nix wraps both calls, but sends all datagrams with the same control messages. It also passes the
//! lengths that the kernel has written to the next call, in place of the buffers' lengths.

#![expect(unsafe_code, reason = "no safe wrapper sends each datagram from an address of its own")]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use ibarr_common::IfIndex;
use libc::{c_int, iovec, mmsghdr};
use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most datagrams that one call moves.
pub const MAX: usize = 64;

/// Buffers for one call that receives: the first `LEN` bytes of each datagram.
#[derive(Debug)]
pub struct Inbox<const LEN: usize> {
    slots: Box<[Slot<LEN>]>,
    received: usize,
}

/// Origin and destination of a received datagram.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Received {
    /// Address and port of the sender.
    pub from: SocketAddr,
    pub to: IpAddr,
    /// Index of the interface that received it.
    pub ifindex: IfIndex,
    /// Whether this host seems to have sent the datagram to itself. Reliable only at a socket of
    /// [`bind_server`](super::udp::UdpSocket::bind_server).
    pub is_local: bool,
    /// Length in bytes; more than the buffer if it was truncated.
    pub len: usize,
}

impl Received {
    pub(super) fn new(from: SocketAddr, to: IpAddr, ifindex: IfIndex, len: usize) -> Self {
        // The loopback interface has the lowest index (`LOOPBACK_IFINDEX` of include/net/flow.h).
        // For IPv6, and for a sender that chose an interface, the kernel reports another interface.
        let is_local = ifindex == IfIndex::MIN || from.ip() == to;
        Self { from, to, ifindex, is_local, len }
    }
}

/// Source address and interface of a datagram to send; the kernel chooses where a field is `None`.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Source {
    pub address: Option<IpAddr>,
    /// Index of the interface that it leaves by.
    pub egress: Option<IfIndex>,
}

/// A datagram to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Destination.
    pub to: SocketAddr,
    /// Source address and interface.
    pub source: Source,
    /// Contents.
    pub payload: &'a [u8],
}

/// A datagram and the kernel's metadata. Parts of it are bytes, so that nothing is read as a value
/// that the kernel did not write.
#[derive(Clone, Copy, Debug)]
struct Slot<const LEN: usize> {
    name: [u64; NAME],
    control: [u64; CONTROL],
    payload: [u8; LEN],
    /// Length of the datagram; more than `LEN` if it was truncated.
    len: usize,
    name_len: usize,
    control_len: usize,
}

impl<const LEN: usize> Default for Slot<LEN> {
    fn default() -> Self {
        let (name, control) = ([0; _], [0; _]);
        Self { name, control, payload: [0; LEN], len: 0, name_len: 0, control_len: 0 }
    }
}

impl<const LEN: usize> Default for Inbox<LEN> {
    fn default() -> Self {
        Self { slots: vec![Slot::default(); MAX].into(), received: 0 }
    }
}

impl<const LEN: usize> Inbox<LEN> {
    /// Receives the datagrams that the socket holds, at most [`MAX`], and returns their number. The
    /// next call returns an error that happens after the first datagram.
    ///
    /// # Errors
    /// Errors of recvmmsg(2); `WouldBlock` if the socket holds nothing.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.received = 0;
        let mut vectors: [iovec; MAX] = std::array::from_fn(|_| no_vector());
        let mut headers: [mmsghdr; MAX] = std::array::from_fn(|_| no_header());
        for ((slot, vector), header) in self.slots.iter_mut().zip(&mut vectors).zip(&mut headers) {
            *vector = iovec { iov_base: slot.payload.as_mut_ptr().cast(), iov_len: LEN };
            let header = &mut header.msg_hdr;
            header.msg_name = slot.name.as_mut_ptr().cast();
            header.msg_namelen = socklen(size_of::<[u64; NAME]>());
            header.msg_iov = vector;
            header.msg_iovlen = 1;
            header.msg_control = slot.control.as_mut_ptr().cast();
            header.msg_controllen = size_of::<[u64; CONTROL]>();
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: there are `MAX` headers. Each points to a name, a vector, a payload and control
        // data of the lengths that it states, all of them alive and not borrowed elsewhere during
        // the call.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                message_count(MAX),
                flags,
                ptr::null_mut(),
            )
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        for (slot, header) in self.slots.iter_mut().zip(&headers).take(received) {
            slot.len = header.msg_len as usize;
            slot.name_len = header.msg_hdr.msg_namelen as usize;
            slot.control_len = header.msg_hdr.msg_controllen;
        }
        self.received = received;
        Ok(received)
    }

    /// The datagrams of the last call, in order of arrival. The origin is `None` if the packet info
    /// is missing.
    pub fn datagrams(&self) -> impl Iterator<Item = (Option<Received>, &[u8; LEN])> {
        self.slots.iter().take(self.received).map(|slot| (slot.received(), &slot.payload))
    }
}

impl<const LEN: usize> Slot<LEN> {
    fn received(&self) -> Option<Received> {
        let name = self.name.as_bytes().get(..self.name_len)?;
        let control = self.control.as_bytes().get(..self.control_len)?;
        let (from, to, ifindex) = match c_int::from(family(*name.first_chunk()?)) {
            libc::AF_INET => {
                let (name, _) = Ipv4Name::ref_from_prefix(name).ok()?;
                let (info, _) = Ipv4Info::ref_from_prefix(control).ok()?;
                if (info.level, info.kind) != (libc::IPPROTO_IP, libc::IP_PKTINFO) {
                    return None;
                }
                let from = SocketAddr::from((name.address, name.port.get()));
                (from, IpAddr::from(info.destination), u32::try_from(info.ifindex).ok()?)
            }
            libc::AF_INET6 => {
                let (name, _) = Ipv6Name::ref_from_prefix(name).ok()?;
                let (info, _) = Ipv6Info::ref_from_prefix(control).ok()?;
                if (info.level, info.kind) != (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) {
                    return None;
                }
                let (address, port) = (Ipv6Addr::from(name.address), name.port.get());
                let from = SocketAddrV6::new(address, port, name.flow_info, name.scope_id);
                (from.into(), IpAddr::from(info.address), info.ifindex)
            }
            _ => return None,
        };
        Some(Received::new(from, to, IfIndex::new(ifindex)?, self.len))
    }
}

/// Sends the first of `datagrams`, at most [`MAX`], and returns how many it sent. An error is about
/// the first datagram alone; the others have not been tried.
///
/// # Errors
/// Errors of sendmmsg(2); `WouldBlock` if there is no room for the first.
pub fn send(socket: BorrowedFd<'_>, datagrams: &[Outgoing<'_>]) -> io::Result<usize> {
    let mut names = [[0; NAME]; MAX];
    let mut controls = [[0; CONTROL]; MAX];
    let mut vectors: [iovec; MAX] = std::array::from_fn(|_| no_vector());
    let mut headers: [mmsghdr; MAX] = std::array::from_fn(|_| no_header());
    let parts = names.iter_mut().zip(&mut controls).zip(&mut vectors).zip(&mut headers);
    for (datagram, (((name, control), vector), header)) in datagrams.iter().zip(parts) {
        let header = &mut header.msg_hdr;
        header.msg_namelen = socklen(write_name(datagram.to, name));
        header.msg_name = name.as_mut_ptr().cast();
        let control_len = write_info(datagram, control);
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = control_len;
        let payload = datagram.payload;
        *vector = iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() };
        header.msg_iov = vector;
        header.msg_iovlen = 1;
    }
    let count = datagrams.len().min(MAX);
    // SAFETY: there are at least `count` headers. Each of these points to a name, a vector, a
    // payload and control data of the lengths that it states, all of them alive during the call,
    // which writes to the headers alone.
    let sent = unsafe {
        let flags = libc::MSG_DONTWAIT;
        libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), message_count(count), flags)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Words of an IPv4 or IPv6 address, aligned as the kernel needs it.
const NAME: usize = 4;
/// Words of an IPv4 or IPv6 packet info.
const CONTROL: usize = 5;

/// `struct sockaddr_in`.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Ipv4Name {
    family: u16,
    port: U16,
    address: [u8; 4],
    zero: [u8; 8],
}

/// `struct sockaddr_in6`.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Ipv6Name {
    family: u16,
    port: U16,
    flow_info: u32,
    address: [u8; 16],
    scope_id: u32,
}

/// `struct cmsghdr` with a `struct in_pktinfo`.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Ipv4Info {
    len: usize,
    level: c_int,
    kind: c_int,
    ifindex: c_int,
    /// Source address of the reply (`ipi_spec_dst`).
    source: [u8; 4],
    destination: [u8; 4],
    padding: [u8; PADDING],
}

/// `struct cmsghdr` with a `struct in6_pktinfo`.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Ipv6Info {
    len: usize,
    level: c_int,
    kind: c_int,
    address: [u8; 16],
    ifindex: u32,
    padding: [u8; PADDING],
}

/// Padding after either packet info, up to a word boundary.
const PADDING: usize = size_of::<usize>() - 4;

const _: () = {
    assert!(size_of::<Ipv4Name>() == size_of::<libc::sockaddr_in>());
    assert!(size_of::<Ipv6Name>() == size_of::<libc::sockaddr_in6>());
    assert!(size_of::<Ipv6Name>() <= size_of::<[u64; NAME]>());
    assert!(size_of::<Ipv4Info>() - PADDING == size_of::<libc::cmsghdr>() + 12);
    assert!(size_of::<libc::in_pktinfo>() == 12);
    assert!(size_of::<Ipv6Info>() - PADDING == size_of::<libc::cmsghdr>() + 20);
    assert!(size_of::<libc::in6_pktinfo>() == 20);
    assert!(size_of::<Ipv6Info>() <= size_of::<[u64; CONTROL]>());
};

/// Returns the length written.
fn write_name(to: SocketAddr, name: &mut [u64; NAME]) -> usize {
    match to {
        SocketAddr::V4(to) => write(
            name.as_mut_bytes(),
            &Ipv4Name {
                family: family_number(libc::AF_INET),
                port: to.port().into(),
                address: to.ip().octets(),
                zero: [0; 8],
            },
        ),
        SocketAddr::V6(to) => write(
            name.as_mut_bytes(),
            &Ipv6Name {
                family: family_number(libc::AF_INET6),
                port: to.port().into(),
                flow_info: to.flowinfo(),
                address: to.ip().octets(),
                scope_id: to.scope_id(),
            },
        ),
    }
}

/// Returns the length written, 0 if the kernel chooses address and interface.
fn write_info(datagram: &Outgoing<'_>, control: &mut [u64; CONTROL]) -> usize {
    let Source { address, egress } = datagram.source;
    if address.is_none() && egress.is_none() {
        return 0;
    }
    let ifindex = egress.map_or(0, IfIndex::get);
    if datagram.to.is_ipv4() {
        let source = match address {
            Some(IpAddr::V4(address)) => address,
            _ => Ipv4Addr::UNSPECIFIED,
        };
        let info = Ipv4Info {
            len: size_of::<Ipv4Info>() - PADDING,
            level: libc::IPPROTO_IP,
            kind: libc::IP_PKTINFO,
            ifindex: c_int::try_from(ifindex).unwrap_or(c_int::MAX),
            source: source.octets(),
            destination: [0; 4],
            padding: [0; PADDING],
        };
        return write(control.as_mut_bytes(), &info);
    }
    let address = match address {
        Some(IpAddr::V6(address)) => address,
        _ => Ipv6Addr::UNSPECIFIED,
    };
    let info = Ipv6Info {
        len: size_of::<Ipv6Info>() - PADDING,
        level: libc::IPPROTO_IPV6,
        kind: libc::IPV6_PKTINFO,
        address: address.octets(),
        ifindex,
        padding: [0; PADDING],
    };
    write(control.as_mut_bytes(), &info)
}

/// Writes `value`, which must fit, and returns its length.
fn write<T: IntoBytes + Immutable>(to: &mut [u8], value: &T) -> usize {
    let bytes = value.as_bytes();
    to.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
    bytes.len()
}

fn family(bytes: [u8; 2]) -> u16 {
    u16::from_ne_bytes(bytes)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "2 or 10")]
const fn family_number(family: c_int) -> u16 {
    family as u16
}

#[expect(clippy::cast_possible_truncation, reason = "a few dozen bytes")]
const fn socklen(len: usize) -> libc::socklen_t {
    len as libc::socklen_t
}

#[expect(clippy::cast_possible_truncation, reason = "at most `MAX`")]
const fn message_count(count: usize) -> libc::c_uint {
    count as libc::c_uint
}

fn no_vector() -> iovec {
    iovec { iov_base: ptr::null_mut(), iov_len: 0 }
}

fn no_header() -> mmsghdr {
    // SAFETY: null pointers and lengths of zero are an empty message.
    unsafe { std::mem::zeroed() }
}
