// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! UDP sockets that report the destination address and the interface of each datagram, and can send
//! from a chosen address (`IP_PKTINFO`, RFC 3542 `IPV6_PKTINFO`).

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use ibarr_common::IfIndex;
use ibarr_proto::ip2gid::Family;
use nix::cmsg_space;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::net::if_::if_indextoname;
use nix::sys::socket::{
    self, AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
    SockaddrStorage, sockopt,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::fd;
pub use super::mmsg::{Received, Source};

use super::mmsg::{self, Inbox, Outgoing};
use super::{udp_errors, udp_options};

/// A non-blocking UDP socket of one family, driven by the runtime. An IPv6 socket receives no IPv4.
#[derive(Debug)]
pub struct UdpSocket {
    fd: AsyncFd<OwnedFd>,
    family: Family,
}

impl UdpSocket {
    /// Binds `port` on all addresses of the family, in `vrf` or in none. With port 0 the kernel picks a free one at
    /// random. Needs no capability since Linux 5.7.
    ///
    /// # Errors
    /// Errors of socket(2), setsockopt(2) and bind(2): `AddrInUse` if another socket has the port; `ENXIO` or `ENODEV`
    /// if the VRF has gone.
    pub fn bind_in(vrf: Option<IfIndex>, family: Family, port: u16) -> io::Result<Self> {
        Self::bind_prepared(family, port, |fd| {
            let Some(vrf) = vrf else { return Ok(()) };
            let name = OsString::from_vec(if_indextoname(vrf.get())?.into_bytes());
            Ok(socket::setsockopt(fd, sockopt::BindToDevice, &name)?)
        })
    }

    /// As [`bind_in`](Self::bind_in) without a VRF. The socket drops datagrams which claim to come from this
    /// host and do not, so that [`Received::is_local`] is reliable.
    ///
    /// # Errors
    /// See [`bind_in`](Self::bind_in).
    pub fn bind_server(family: Family, port: u16) -> io::Result<Self> {
        Self::bind_prepared(family, port, udp_options::refuse_from_itself)
    }

    /// Like [`bind_server`](Self::bind_server), for datagrams of the VRF `vrf`, which no other socket
    /// receives unless `net.ipv4.udp_l3mdev_accept` is set. `outside` is the socket that has the port
    /// outside of VRFs. The kernel lets both have it because both allow that, which they do
    /// only while this runs, to sockets of the same user.
    ///
    /// # Errors
    /// See [`bind_in`](Self::bind_in); `ENODEV` if there is no such VRF.
    pub fn bind_in_vrf(
        family: Family,
        port: u16,
        vrf: &str,
        outside: &OwnedFd,
    ) -> io::Result<Self> {
        // A socket of systemd belongs to root, and always allows it by the other option.
        socket::setsockopt(outside, sockopt::ReusePort, &true)?;
        let bound = Self::bind_prepared(family, port, |fd| {
            socket::setsockopt(fd, sockopt::BindToDevice, &vrf.into())?;
            socket::setsockopt(fd, sockopt::ReusePort, &true)?;
            socket::setsockopt(fd, sockopt::ReuseAddr, &true)?;
            udp_options::refuse_from_itself(fd)
        });
        socket::setsockopt(outside, sockopt::ReusePort, &false)?;
        let bound = bound?;
        socket::setsockopt(&bound, sockopt::ReusePort, &false)?;
        socket::setsockopt(&bound, sockopt::ReuseAddr, &false)?;
        Ok(bound)
    }

    /// Takes over a socket that another process has bound, and makes it like one of
    /// [`bind_server`](Self::bind_server). Datagrams that already wait in it passed no filter of
    /// ours, so [`Received::is_local`] is reliable only for later ones.
    ///
    /// # Errors
    /// Errors of fcntl(2) and setsockopt(2).
    pub fn take_over(family: Family, fd: OwnedFd) -> io::Result<Self> {
        let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
        fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        tell_addresses(&fd, family)?;
        udp_options::refuse_from_itself(&fd)?;
        Ok(Self { fd: fd::watch(fd, Interest::READABLE)?, family })
    }

    fn bind_prepared(
        family: Family,
        port: u16,
        prepare: impl FnOnce(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<Self> {
        let (domain, any): (_, SocketAddr) = match family {
            Family::V4 => (AddressFamily::Inet, (Ipv4Addr::UNSPECIFIED, port).into()),
            Family::V6 => (AddressFamily::Inet6, (Ipv6Addr::UNSPECIFIED, port).into()),
        };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket::socket(domain, SockType::Datagram, flags, None)?;
        if family == Family::V6 {
            socket::setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
        }
        tell_addresses(&fd, family)?;
        // A datagram that arrives before the bind is not for this socket.
        prepare(&fd)?;
        socket::bind(fd.as_raw_fd(), &SockaddrStorage::from(any))?;
        Ok(Self { fd: fd::watch(fd, Interest::READABLE)?, family })
    }

    /// Another descriptor of the same socket; socket options are shared.
    ///
    /// # Errors
    /// Errors of `F_DUPFD_CLOEXEC`.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.fd.get_ref().try_clone()
    }

    /// Waits for a datagram, then receives all that the socket holds, at most [`mmsg::MAX`].
    ///
    /// # Errors
    /// Errors of recvmmsg(2), except `WouldBlock`.
    pub async fn receive<const LEN: usize>(&self, inbox: &mut Inbox<LEN>) -> io::Result<()> {
        loop {
            let mut ready = self.fd.readable().await?;
            match inbox.receive(self.fd.as_fd()) {
                Ok(mmsg::MAX) => return Ok(()),
                // A datagram that arrives from now on makes the socket ready again.
                Ok(_) => {
                    ready.clear_ready();
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends the first of `datagrams`, at most [`mmsg::MAX`], and returns how many it sent. Waits
    /// while the send buffer is full. An error is about the first datagram.
    ///
    /// # Errors
    /// See [`UdpSocket::try_send`], except `WouldBlock`.
    pub async fn send_all(&self, datagrams: &[Outgoing<'_>]) -> io::Result<usize> {
        self.when_writable(|fd| mmsg::send(fd.as_fd(), datagrams)).await
    }

    /// Waits until there is a datagram or an ICMP error ([`udp_errors::enable`]) to receive. The
    /// caller must take both until nothing is left.
    ///
    /// # Errors
    /// Only if the runtime is being shut down.
    pub(crate) async fn heard(&self) -> io::Result<()> {
        let heard = self.fd.ready(Interest::READABLE | Interest::ERROR).await;
        heard.map(|mut ready| ready.retain_ready())
    }

    /// Takes the oldest ICMP error, and copies the quoted payload to `quoted`; `WouldBlock` if
    /// there is none.
    ///
    /// # Errors
    /// Errors of recvmsg(2).
    pub fn take_error(&self, quoted: &mut [u8]) -> io::Result<udp_errors::Error> {
        self.fd.try_io(Interest::ERROR, |fd| udp_errors::take(fd, quoted))
    }

    /// Receives one datagram into `buffer`; `WouldBlock` if there is none, `InvalidData` if its
    /// packet info is missing.
    ///
    /// # Errors
    /// Errors of recvmsg(2).
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<Received> {
        self.fd.try_io(Interest::READABLE, |fd| udp_errors::despite(|| recv(fd, buffer)))
    }

    /// Sends one datagram now, or not at all: `WouldBlock` if the send buffer is full.
    ///
    /// # Errors
    /// Errors of sendmsg(2): `EINVAL` for a source address that is not ours, `ENETUNREACH`, …
    pub fn try_send(&self, payload: &[u8], to: SocketAddr, source: Source) -> io::Result<()> {
        // This does not ask the runtime, which does not know yet that a new socket is writable.
        udp_errors::despite(|| send(self.fd.get_ref(), self.family, payload, to, source))
    }

    /// Calls `send` at once, and again when the socket is writable for as long as its send buffer
    /// is full.
    async fn when_writable<T>(&self, send: impl Fn(&OwnedFd) -> io::Result<T>) -> io::Result<T> {
        match send(self.fd.get_ref()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            outcome => return outcome,
        }
        // Rare, so that the wait may cost a descriptor, see `fd::watch`.
        let writable = fd::watch(self.duplicate()?, Interest::WRITABLE)?;
        writable.async_io(Interest::WRITABLE, send).await
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Asks the kernel for destination and interface of each datagram.
fn tell_addresses(fd: &OwnedFd, family: Family) -> nix::Result<()> {
    match family {
        Family::V4 => socket::setsockopt(fd, sockopt::Ipv4PacketInfo, &true),
        Family::V6 => socket::setsockopt(fd, sockopt::Ipv6RecvPacketInfo, &true),
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
            Ok(Received::new(from, to, ifindex, message.bytes))
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

pub(crate) fn socket_addr(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddrV4::from(*v4).into());
    }
    address.as_sockaddr_in6().map(|v6| SocketAddrV6::from(*v6).into())
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;
    use crate::tests::on_own_network;

    #[tokio::test(flavor = "current_thread")]
    async fn datagram_has_its_destination_and_is_answered_from_there() {
        if !on_own_network(|| ()) {
            return;
        }
        for (family, near, far) in
            [(Family::V4, "127.0.0.1", "127.0.0.7"), (Family::V6, "::1", "::1")]
        {
            let client = UdpSocket::bind_in(None, family, 0).unwrap();
            let server = UdpSocket::bind_in(None, family, 0).unwrap();
            let near = SocketAddr::new(near.parse().unwrap(), port(&client));
            let far = SocketAddr::new(far.parse().unwrap(), port(&server));
            client.try_send(b"ask", far, Source::default()).unwrap();
            let query = receive(&server, b"ask").await;
            assert_eq!((query.to, query.from), (far.ip(), near));

            let source = Source { address: Some(query.to), egress: None };
            server.try_send(b"tell", query.from, source).unwrap();
            let reply = receive(&client, b"tell").await;
            assert_eq!((reply.to, reply.from), (near.ip(), far));
            assert_eq!(reply.ifindex, query.ifindex);
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn truncated_datagram_reports_its_full_length() {
        if !on_own_network(|| ()) {
            return;
        }
        let socket = UdpSocket::bind_in(None, Family::V4, 0).unwrap();
        let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port(&socket));
        socket.try_send(&[7; 100], to, Source::default()).unwrap();
        socket.heard().await.unwrap();
        assert_eq!(socket.try_recv(&mut [0; 33]).unwrap().len, 100);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn full_send_buffer_is_waited_for() {
        // Loopback never fills the buffer of a UDP socket, but a peer that does not read fills that
        // of a Unix socket.
        let (ours, peer) = std::os::unix::net::UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let ours = fd::watch(ours.into(), Interest::READABLE).unwrap();
        let socket = UdpSocket { fd: ours, family: Family::V4 };
        let send = |fd: &OwnedFd| Ok(socket::send(fd.as_raw_fd(), b"x", MsgFlags::empty())?);
        let is_full = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        while !send(socket.fd.get_ref()).is_err_and(is_full) {}
        let mut waiting = std::pin::pin!(socket.when_writable(send));
        assert!(
            std::future::poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await
        );
        peer.set_nonblocking(true).unwrap();
        while peer.recv(&mut [0]).is_ok() {}
        assert_eq!(waiting.await.unwrap(), 1);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn socket_of_a_device_gets_its_datagrams_and_shares_the_port_once() {
        if !on_own_network(|| ()) {
            return;
        }
        let share = |fd: &OwnedFd| {
            socket::setsockopt(fd, sockopt::ReusePort, &true)?;
            Ok(socket::setsockopt(fd, sockopt::ReuseAddr, &true)?)
        };
        for (family, address) in [(Family::V4, "127.0.0.1"), (Family::V6, "::1")] {
            let outside = UdpSocket::bind_server(family, 0).unwrap();
            let to = SocketAddr::new(address.parse().unwrap(), port(&outside));
            let fd = outside.duplicate().unwrap();
            // Any device will do.
            let inside = UdpSocket::bind_in_vrf(family, to.port(), "lo", &fd).unwrap();
            let client = UdpSocket::bind_in(None, family, 0).unwrap();
            client.try_send(b"ask", to, Source::default()).unwrap();
            receive(&inside, b"ask").await;
            let other = UdpSocket::bind_prepared(family, to.port(), share);
            assert_eq!(other.unwrap_err().kind(), io::ErrorKind::AddrInUse);
            let none = UdpSocket::bind_in_vrf(family, to.port(), "no-such", &fd);
            assert_eq!(none.unwrap_err().raw_os_error(), Some(libc::ENODEV));
        }
        // A socket of systemd.
        let outside = UdpSocket::bind_prepared(Family::V4, 0, share).unwrap();
        socket::setsockopt(&outside, sockopt::ReusePort, &false).unwrap();
        let fd = outside.duplicate().unwrap();
        UdpSocket::bind_in_vrf(Family::V4, port(&outside), "lo", &fd).unwrap();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn foreign_source_address_is_refused() {
        let socket = UdpSocket::bind_in(None, Family::V4, 0).unwrap();
        let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port(&socket));
        let source = Source { address: Some("192.0.2.1".parse().unwrap()), egress: None };
        assert!(socket.try_send(b"x", to, source).is_err());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn new_socket_sends_at_once() {
        if !on_own_network(|| ()) {
            return;
        }
        let socket = UdpSocket::bind_in(None, Family::V4, 0).unwrap();
        let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port(&socket));
        socket.try_send(b"now", to, Source::default()).unwrap();
        receive(&socket, b"now").await;
    }

    #[tokio::test(flavor = "current_thread")]
    async fn each_datagram_of_a_batch_is_answered_from_its_destination() {
        const SENT: u8 = 100;
        if !on_own_network(|| ()) {
            return;
        }
        for (family, near, far) in
            [(Family::V4, "127.0.0.1", "127.0.0.7"), (Family::V6, "::1", "::1")]
        {
            let [near, far]: [IpAddr; 2] = [near, far].map(|address| address.parse().unwrap());
            let server = UdpSocket::bind_server(family, 0).unwrap();
            let clients = [(); 2].map(|()| UdpSocket::bind_in(None, family, 0).unwrap());
            let to = SocketAddr::new(far, port(&server));
            for number in 0..SENT {
                let client = &clients[usize::from(number) % 2];
                let payload = vec![number; 1 + usize::from(number)];
                client.try_send(&payload, to, Source::default()).unwrap();
            }
            let mut inbox = Inbox::<33>::default();
            let mut replies = Vec::new();
            while replies.len() < usize::from(SENT) {
                server.receive(&mut inbox).await.unwrap();
                for (received, payload) in inbox.datagrams() {
                    let (received, number) = (received.unwrap(), payload[0]);
                    let from = SocketAddr::new(near, port(&clients[usize::from(number) % 2]));
                    assert_eq!((received.from, received.to, received.is_local), (from, far, true));
                    assert_eq!(received.len, 1 + usize::from(number));
                    assert_eq!(usize::from(number), replies.len());
                    assert!(payload[..received.len.min(33)].iter().all(|&byte| byte == number));
                    replies.push((received.from, [number]));
                }
            }
            let source = Source { address: Some(far), egress: None };
            let replies: Vec<_> =
                replies.iter().map(|(to, payload)| Outgoing { to: *to, source, payload }).collect();
            assert_eq!(server.send_all(&replies).await.unwrap(), mmsg::MAX);
            assert_eq!(server.send_all(&replies[mmsg::MAX..]).await.unwrap(), 36);
            for number in 0..SENT {
                let reply = receive(&clients[usize::from(number) % 2], &[number]).await;
                assert_eq!(reply.from, to);
            }
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn failed_datagram_ends_a_batch_and_is_the_next_error() {
        if !on_own_network(|| ()) {
            return;
        }
        let socket = UdpSocket::bind_in(None, Family::V4, 0).unwrap();
        let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port(&socket));
        let from = |address: &str| Outgoing {
            to,
            source: Source { address: Some(address.parse().unwrap()), egress: None },
            payload: b"x",
        };
        let batch = ["127.0.0.1", "192.0.2.1", "127.0.0.2"].map(from);
        assert_eq!(socket.send_all(&batch).await.unwrap(), 1);
        assert!(socket.send_all(&batch[1..]).await.is_err());
        assert_eq!(socket.send_all(&batch[2..]).await.unwrap(), 1);
        let mut inbox = Inbox::<1>::default();
        socket.receive(&mut inbox).await.unwrap();
        let from: Vec<_> =
            inbox.datagrams().map(|(r, _)| r.unwrap().from.ip().to_string()).collect();
        assert_eq!(from, ["127.0.0.1", "127.0.0.2"]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn datagrams_beyond_the_receive_buffer_are_counted() {
        const SENT: usize = 2000;
        if !on_own_network(|| ()) {
            return;
        }
        let socket = UdpSocket::bind_in(None, Family::V4, 0).unwrap();
        let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port(&socket));
        let held = udp_options::widen(&socket, 300_000).unwrap();
        assert!(held >= 300_000);
        assert_eq!(udp_options::widen(&socket, 1000).unwrap(), held, "a buffer never shrinks");
        for _ in 0..SENT {
            socket.try_send(b"x", to, Source::default()).unwrap();
        }
        let mut received = 0;
        let mut inbox = Inbox::<1>::default();
        while let Ok(count) = inbox.receive(socket.as_fd()) {
            received += count;
        }
        let dropped = usize::try_from(udp_options::dropped(&socket).unwrap()).unwrap();
        assert!(dropped > 0);
        assert_eq!(received + dropped, SENT);
    }

    async fn receive(socket: &UdpSocket, expected: &[u8]) -> Received {
        let mut buffer = [0; 32];
        loop {
            socket.heard().await.unwrap();
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
