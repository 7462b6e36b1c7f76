// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! UDP sockets that say to which address and over which interface a datagram came, and that can
//! send from a chosen address (`IP_PKTINFO`, RFC 3542 `IPV6_PKTINFO`).

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};

use ibarr_common::IfIndex;
use ibarr_proto::ip2gid::Family;
use nix::cmsg_space;
use nix::sys::socket::{
    self, AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
    SockaddrStorage, sockopt,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::fd;

/// A datagram as it came.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Who sent it.
    pub from: SocketAddr,
    /// The address it was sent to.
    pub to: IpAddr,
    /// The interface it came over.
    pub ifindex: IfIndex,
    /// Its length; more than the buffer if it was cut.
    pub len: usize,
}

/// What a datagram is to leave by; the kernel chooses where a field is `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Source {
    /// Source address.
    pub address: Option<IpAddr>,
    /// Interface.
    pub egress: Option<IfIndex>,
}

/// A non-blocking UDP socket of one family, driven by the runtime. One of IPv6 takes nothing of
/// IPv4.
#[derive(Debug)]
pub struct UdpSocket {
    fd: AsyncFd<OwnedFd>,
    family: Family,
}

impl UdpSocket {
    /// Binds `port` on every address of the family; port 0 is a free one that the kernel picks at
    /// random.
    ///
    /// # Errors
    /// Those of socket(2), setsockopt(2) and bind(2); `AddrInUse` names the interesting one.
    pub fn bind(family: Family, port: u16) -> io::Result<Self> {
        let (domain, any): (_, SocketAddr) = match family {
            Family::V4 => (AddressFamily::Inet, (Ipv4Addr::UNSPECIFIED, port).into()),
            Family::V6 => (AddressFamily::Inet6, (Ipv6Addr::UNSPECIFIED, port).into()),
        };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket::socket(domain, SockType::Datagram, flags, None)?;
        match family {
            Family::V4 => socket::setsockopt(&fd, sockopt::Ipv4PacketInfo, &true)?,
            Family::V6 => {
                socket::setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
                socket::setsockopt(&fd, sockopt::Ipv6RecvPacketInfo, &true)?;
            }
        }
        socket::bind(fd.as_raw_fd(), &SockaddrStorage::from(any))?;
        Ok(Self { fd: fd::watch(fd)?, family })
    }

    /// Another descriptor of the same socket: what is set on the one is set on both.
    ///
    /// # Errors
    /// Those of `F_DUPFD_CLOEXEC`.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.fd.get_ref().try_clone()
    }

    /// Waits until there is something to receive.
    ///
    /// # Errors
    /// Only if the runtime is being shut down.
    pub async fn readable(&self) -> io::Result<()> {
        self.fd.readable().await.map(|mut ready| ready.retain_ready())
    }

    /// Receives one datagram into `buffer`; `WouldBlock` if there is none. A datagram without the
    /// packet info that was asked for is an `InvalidData`.
    ///
    /// # Errors
    /// Those of recvmsg(2).
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<Received> {
        self.fd.try_io(Interest::READABLE, |fd| recv(fd, buffer))
    }

    /// Sends one datagram now, or not at all: `WouldBlock` if the send buffer is full.
    ///
    /// # Errors
    /// Those of sendmsg(2): `EINVAL` for a source address that is not ours, `ENETUNREACH`, …
    pub fn try_send(&self, payload: &[u8], to: SocketAddr, source: Source) -> io::Result<()> {
        // Not through the runtime, which does not yet know that a new socket is writable.
        send(self.fd.get_ref(), self.family, payload, to, source)
    }

    /// As [`UdpSocket::try_send`], waiting while the send buffer is full.
    ///
    /// # Errors
    /// As [`UdpSocket::try_send`], but never `WouldBlock`.
    pub async fn send(&self, payload: &[u8], to: SocketAddr, source: Source) -> io::Result<()> {
        self.fd.async_io(Interest::WRITABLE, |fd| send(fd, self.family, payload, to, source)).await
    }
}

fn recv(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = cmsg_space!(libc::in6_pktinfo);
    let mut io_vector = [IoSliceMut::new(buffer)];
    let message = socket::recvmsg::<SockaddrStorage>(
        fd.as_raw_fd(),
        &mut io_vector,
        Some(&mut control),
        MsgFlags::MSG_TRUNC,
    )?;
    let info = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            let to = Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes());
            Some((IpAddr::V4(to), u32::try_from(info.ipi_ifindex).ok()?))
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => {
            Some((IpAddr::V6(Ipv6Addr::from(info.ipi6_addr.s6_addr)), info.ipi6_ifindex))
        }
        _ => None,
    });
    let from = message.address.as_ref().and_then(socket_addr);
    let ifindex = info.and_then(|(_, ifindex)| IfIndex::new(ifindex));
    match (from, info, ifindex) {
        (Some(from), Some((to, _)), Some(ifindex)) => {
            Ok(Received { from, to, ifindex, len: message.bytes })
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "datagram without packet info")),
    }
}

fn send(
    fd: &OwnedFd,
    family: Family,
    payload: &[u8],
    to: SocketAddr,
    source: Source,
) -> io::Result<()> {
    let to = SockaddrStorage::from(to);
    let io_vector = [IoSlice::new(payload)];
    let ifindex = source.egress.map_or(0, IfIndex::get);
    let sent = match (family, source.address) {
        (_, None) if ifindex == 0 => {
            socket::sendmsg(fd.as_raw_fd(), &io_vector, &[], MsgFlags::empty(), Some(&to))
        }
        (Family::V4, address) => {
            let address = match address {
                Some(IpAddr::V4(address)) => address,
                _ => Ipv4Addr::UNSPECIFIED,
            };
            let info = libc::in_pktinfo {
                ipi_ifindex: i32::try_from(ifindex).unwrap_or(i32::MAX),
                ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            let control = [ControlMessage::Ipv4PacketInfo(&info)];
            socket::sendmsg(fd.as_raw_fd(), &io_vector, &control, MsgFlags::empty(), Some(&to))
        }
        (Family::V6, address) => {
            let address = match address {
                Some(IpAddr::V6(address)) => address,
                _ => Ipv6Addr::UNSPECIFIED,
            };
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr { s6_addr: address.octets() },
                ipi6_ifindex: ifindex,
            };
            let control = [ControlMessage::Ipv6PacketInfo(&info)];
            socket::sendmsg(fd.as_raw_fd(), &io_vector, &control, MsgFlags::empty(), Some(&to))
        }
    };
    sent.map(drop).map_err(io::Error::from)
}

fn socket_addr(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddrV4::from(*v4).into());
    }
    address.as_sockaddr_in6().map(|v6| SocketAddrV6::from(*v6).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_datagram_tells_where_it_was_sent_and_is_answered_from_there() {
        for (family, near, far) in
            [(Family::V4, "127.0.0.1", "127.0.0.7"), (Family::V6, "::1", "::1")]
        {
            let client = UdpSocket::bind(family, 0).unwrap();
            let server = UdpSocket::bind(family, 0).unwrap();
            let near = SocketAddr::new(near.parse().unwrap(), port(&client));
            let far = SocketAddr::new(far.parse().unwrap(), port(&server));
            client.send(b"ask", far, Source::default()).await.unwrap();
            let query = receive(&server, b"ask").await;
            assert_eq!((query.to, query.from), (far.ip(), near));

            let source = Source { address: Some(query.to), egress: None };
            server.send(b"tell", query.from, source).await.unwrap();
            let reply = receive(&client, b"tell").await;
            assert_eq!((reply.to, reply.from), (near.ip(), far));
            assert_eq!(reply.ifindex, query.ifindex);
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_longer_datagram_than_the_buffer_says_its_length() {
        let socket = UdpSocket::bind(Family::V4, 0).unwrap();
        let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port(&socket));
        socket.send(&[7; 100], to, Source::default()).await.unwrap();
        socket.readable().await.unwrap();
        assert_eq!(socket.try_recv(&mut [0; 33]).unwrap().len, 100);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_address_that_is_not_ours_is_no_source() {
        let socket = UdpSocket::bind(Family::V4, 0).unwrap();
        let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port(&socket));
        let source = Source { address: Some("192.0.2.1".parse().unwrap()), egress: None };
        assert!(socket.send(b"x", to, source).await.is_err());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_new_socket_sends_at_once() {
        let socket = UdpSocket::bind(Family::V4, 0).unwrap();
        let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port(&socket));
        socket.try_send(b"now", to, Source::default()).unwrap();
        receive(&socket, b"now").await;
    }

    async fn receive(socket: &UdpSocket, expected: &[u8]) -> Received {
        let mut buffer = [0; 32];
        loop {
            socket.readable().await.unwrap();
            match socket.try_recv(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => {
                    let received = received.unwrap();
                    assert_eq!(&buffer[..received.len], expected);
                    return received;
                }
            }
        }
    }

    fn port(socket: &UdpSocket) -> u16 {
        let address: SockaddrStorage = socket::getsockname(socket.fd.as_raw_fd()).unwrap();
        socket_addr(&address).unwrap().port()
    }
}
