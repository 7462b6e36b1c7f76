// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! ICMP errors about the datagrams that a UDP socket has sent (`IP_RECVERR`, ip(7)).

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

use ibarr_proto::ip2gid::Family;
use nix::cmsg_space;
use nix::sys::socket::{self, ControlMessageOwned, MsgFlags, SockaddrStorage, setsockopt, sockopt};

/// One entry of a socket's error queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Error {
    /// ICMP reports that nothing listens on the port, or a firewall rejects the datagram.
    pub is_port_unreachable: bool,
    /// Destination of the quoted datagram.
    pub to: Option<SocketAddr>,
    /// Length in bytes of the quoted payload, or of the buffer if that is shorter.
    pub len: usize,
}

/// Makes the kernel queue ICMP errors for `socket`. The errors share the receive buffer with the
/// datagrams.
///
/// # Errors
/// Errors of setsockopt(2): none for a socket of `family`.
pub(crate) fn enable(socket: &impl AsFd, family: Family) -> io::Result<()> {
    match family {
        Family::V4 => setsockopt(socket, sockopt::Ipv4RecvErr, &true)?,
        Family::V6 => setsockopt(socket, sockopt::Ipv6RecvErr, &true)?,
    }
    Ok(())
}

/// Takes the oldest entry of the error queue, and copies the quoted payload to `quoted`.
///
/// # Errors
/// Errors of recvmsg(2); `WouldBlock` if the queue is empty.
pub(crate) fn take(socket: &impl AsFd, quoted: &mut [u8]) -> io::Result<Error> {
    // The kernel adds the packet info.
    let mut control =
        cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6, libc::in6_pktinfo, [u64; 8]);
    let mut vector = [IoSliceMut::new(quoted)];
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let fd = socket.as_fd().as_raw_fd();
    let message = socket::recvmsg::<SockaddrStorage>(fd, &mut vector, Some(&mut control), flags)?;
    let to = message.address.as_ref().and_then(|to| match to.as_sockaddr_in() {
        Some(to) => Some(SocketAddrV4::from(*to).into()),
        None => to.as_sockaddr_in6().map(|to| SocketAddrV6::from(*to).into()),
    });
    let is_port_unreachable = message.cmsgs()?.any(|control| match control {
        ControlMessageOwned::Ipv4RecvErr(error, _) => {
            let said = (error.ee_origin, error.ee_type, error.ee_code);
            said == (libc::SO_EE_ORIGIN_ICMP, ICMP_DEST_UNREACH, ICMP_PORT_UNREACH)
        }
        ControlMessageOwned::Ipv6RecvErr(error, _) => {
            let said = (error.ee_origin, error.ee_type, error.ee_code);
            said == (libc::SO_EE_ORIGIN_ICMP6, ICMPV6_DEST_UNREACH, ICMPV6_PORT_UNREACH)
        }
        _ => false,
    });
    Ok(Error { is_port_unreachable, to, len: message.bytes })
}

/// Repeats `call` once if its error may be about an earlier datagram. The kernel reports an ICMP
/// error by the next call on the socket, whatever that call does, and only by that one
/// (`sock_error` of include/net/sock.h).
/// # Errors
/// Errors of `call`.
pub(crate) fn despite<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match call() {
        Err(error) if may_be_of_another(&error) => call(),
        result => result,
    }
}

/// The errors that `icmp_err_convert` (net/ipv4/icmp.c) and `icmpv6_err_convert` (net/ipv6/icmp.c)
/// make of ICMP.
fn may_be_of_another(error: &io::Error) -> bool {
    let Some(number) = error.raw_os_error() else { return false };
    matches!(
        number,
        libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::ENOPROTOOPT
            | libc::EMSGSIZE
            | libc::EOPNOTSUPP
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::EPROTO
            | libc::EACCES
    )
}

/// RFC 792.
const ICMP_DEST_UNREACH: u8 = 3;
const ICMP_PORT_UNREACH: u8 = 3;
/// RFC 4443.
const ICMPV6_DEST_UNREACH: u8 = 1;
const ICMPV6_PORT_UNREACH: u8 = 4;

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{IpAddr, UdpSocket};

    use super::*;
    use crate::tests::on_own_network;

    /// A socket that receives errors, and a port of `address` on which nothing listens.
    fn rig(address: &str) -> (UdpSocket, SocketAddr) {
        let address: IpAddr = address.parse().unwrap();
        let socket = UdpSocket::bind((address, 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        enable(&socket, Family::of(address)).unwrap();
        let closed = UdpSocket::bind((address, 0)).unwrap().local_addr().unwrap();
        (socket, closed)
    }

    #[test]
    fn port_unreachable_quotes_the_datagram_and_its_destination() {
        if !on_own_network(|| ()) {
            return;
        }
        for address in ["127.0.0.1", "::1"] {
            let (socket, closed) = rig(address);
            socket.send_to(b"anybody there?", closed).unwrap();
            let mut quoted = [0; 33];
            let error = take(&socket, &mut quoted).unwrap();
            let expected = Error { is_port_unreachable: true, to: Some(closed), len: 14 };
            assert_eq!((error, &quoted[..14]), (expected, &b"anybody there?"[..]));
            assert_eq!(take(&socket, &mut quoted).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
    }

    /// Without `despite`, every second datagram is not sent, and every second receive fails.
    #[test]
    fn pending_error_blocks_no_send_and_no_receive() {
        if !on_own_network(|| ()) {
            return;
        }
        for address in ["127.0.0.1", "::1"] {
            let (socket, closed) = rig(address);
            let own = socket.local_addr().unwrap();
            let mut buffer = [0; 33];
            for number in 0..10 {
                socket.send_to(b"x", closed).unwrap();
                assert_eq!(socket.send_to(&[number], own).unwrap_err().kind(), REFUSED);
                assert_eq!(socket.send_to(&[number], own).unwrap(), 1);
                despite(|| socket.send_to(b"x", closed)).unwrap();
                assert_eq!(despite(|| socket.recv(&mut buffer)).unwrap(), 1);
                assert_eq!(buffer[0], number);
                for _ in 0..2 {
                    assert!(take(&socket, &mut buffer).unwrap().is_port_unreachable);
                }
                assert_eq!(socket.recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
            }
        }
    }

    const REFUSED: ErrorKind = ErrorKind::ConnectionRefused;
}
