// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The sockets of our own queries: the core opens and closes them, and replies go to the engine.
//! Nothing here waits to send: the core's schedule repeats a query that found the send buffer full.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;

use ibarr_common::IfIndex;
use ibarr_common::wire::ip2gid;
use ibarr_proto::ip2gid::client::{self, SocketId, Transmit};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tracing::debug;

use super::{Counter, Counters};
use crate::sys::udp::{Source, UdpSocket};
use crate::sys::{udp_errors, udp_options};

/// An event of a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Incoming {
    Datagram(Datagram),
    /// An ICMP error: a port is unreachable.
    Refusal(Refusal),
}

impl Incoming {
    /// The input for the core.
    pub(crate) fn input(&self) -> client::Input<'_> {
        match self {
            Self::Datagram(Datagram { socket, from, ifindex, payload }) => {
                client::Input::Datagram {
                    socket: *socket,
                    from: *from,
                    ingress: *ifindex,
                    payload: payload.as_ref(),
                }
            }
            Self::Refusal(Refusal { socket, to, quoted }) => {
                client::Input::Refused { socket: *socket, to: *to, quoted: quoted.as_ref() }
            }
        }
    }
}

/// A datagram that may be a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram {
    socket: SocketId,
    from: SocketAddr,
    ifindex: IfIndex,
    payload: Start,
}

/// An ICMP error that says that the port of a datagram is unreachable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    /// The socket that sent the datagram.
    socket: SocketId,
    to: SocketAddr,
    quoted: Start,
}

/// The first bytes of a datagram: one more than the longest legal one has, enough to classify it.
#[derive(Clone, Copy, Debug)]
struct Start {
    bytes: [u8; ip2gid::MAX_LEN + 1],
    len: usize,
}

impl AsRef<[u8]> for Start {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The open sockets, each with the task that reads it.
#[derive(Debug)]
pub(crate) struct Sockets {
    open: HashMap<SocketId, (Arc<UdpSocket>, AbortHandle)>,
    readers: JoinSet<()>,
    incoming: mpsc::Sender<Incoming>,
    counters: Arc<Counters>,
    /// Datagrams dropped by sockets that are closed now.
    dropped: u64,
}

/// Receive buffer of a socket, in bytes. 32 sockets share the replies to the queries in flight, which may all
/// arrive at once, and queries choose sockets at random. 64 sockets of each family, half of them in grace, hold
/// 256 MiB at most in each routing domain.
const HOLD: usize = 2 << 20;

impl Sockets {
    /// No sockets. A datagram that finds no room in `incoming` is dropped and counted; so is an ICMP
    /// error if less than half of `incoming` is free.
    pub(crate) fn new(incoming: mpsc::Sender<Incoming>, counters: Arc<Counters>) -> Self {
        Self { open: HashMap::new(), readers: JoinSet::new(), incoming, counters, dropped: 0 }
    }

    /// Opens `socket` on a port that the kernel picks. A failure is counted.
    ///
    /// # Errors
    /// Errors of socket(2) and bind(2), such as `EMFILE`.
    pub(crate) fn open(&mut self, socket: SocketId) -> io::Result<()> {
        self.try_open(socket).inspect_err(|error| self.counters.count(not_opened(error)))
    }

    fn try_open(&mut self, socket: SocketId) -> io::Result<()> {
        let family = socket.family();
        let udp = UdpSocket::bind_in(socket.vrf(), family, 0)?;
        // A smaller buffer loses more replies, which are counted and asked for again.
        let _ = udp_options::widen(&udp, HOLD);
        udp_errors::enable(&udp, family)?;
        let udp = Arc::new(udp);
        let reader = Reader {
            socket,
            udp: Arc::clone(&udp),
            incoming: self.incoming.clone(),
            counters: Arc::clone(&self.counters),
        };
        let reader = self.readers.spawn(reader.run());
        self.open.insert(socket, (udp, reader));
        Ok(())
    }

    /// Closes `socket`, if it is open.
    pub(crate) fn close(&mut self, socket: SocketId) {
        if let Some((udp, reader)) = self.open.remove(&socket) {
            self.dropped += u64::from(udp_options::dropped(&*udp).unwrap_or_default());
            reader.abort();
        }
        while self.readers.try_join_next().is_some() {}
    }

    /// How many datagrams the kernel has dropped at open and closed sockets, because there was no
    /// room or they were damaged.
    pub(crate) fn dropped(&self) -> u64 {
        let of_open = self.open.values().map(|(udp, _)| udp_options::dropped(&**udp));
        self.dropped + of_open.map(|dropped| u64::from(dropped.unwrap_or_default())).sum::<u64>()
    }

    /// Sends now or not at all; a query that was not sent is counted.
    ///
    /// # Errors
    /// See [`UdpSocket::try_send`].
    pub(crate) fn send(&self, transmit: &Transmit) -> io::Result<()> {
        let &Transmit { socket, to, egress, source, ref payload } = transmit;
        let source = Source { address: source, egress };
        let open = self.open.get(&socket).ok_or(ErrorKind::NotConnected.into());
        let sent = open.and_then(|(udp, _)| udp.try_send(payload.as_ref(), to, source));
        sent.inspect_err(|error| {
            self.counters.count(not_sent(error));
            debug!(%to, ?source, %error, "query not sent");
        })
    }
}

fn not_sent(error: &io::Error) -> Counter {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Counter::QueryForbidden,
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => Counter::QueryNoRoute,
        Some(libc::ENOBUFS | libc::ENOMEM | libc::EAGAIN) => Counter::QueryNoRoom,
        Some(libc::EMSGSIZE) => Counter::QueryTooLong,
        _ => Counter::QueryNotSent,
    }
}

fn not_opened(error: &io::Error) -> Counter {
    match error.raw_os_error() {
        Some(libc::EADDRINUSE | libc::EAGAIN) => Counter::SocketNoPort,
        Some(libc::EMFILE | libc::ENFILE) => Counter::SocketNoDescriptor,
        _ => Counter::SocketNotOpened,
    }
}

struct Reader {
    socket: SocketId,
    udp: Arc<UdpSocket>,
    incoming: mpsc::Sender<Incoming>,
    counters: Arc<Counters>,
}

/// The most ICMP errors that are read before the next datagram.
const REFUSALS: usize = 16;

impl Reader {
    async fn run(self) {
        while self.udp.heard().await.is_ok() {
            for _ in 0..REFUSALS {
                if self.read_error().is_none() {
                    break;
                }
            }
            self.read();
            // There are many readers: the others and the engine need their turn.
            tokio::task::coop::consume_budget().await;
        }
    }

    fn read(&self) {
        let mut buffer = [0; ip2gid::MAX_LEN + 1];
        match self.udp.try_recv(&mut buffer) {
            Ok(received) => {
                let len = received.len.min(buffer.len());
                let (from, ifindex) = (received.from, received.ifindex);
                let payload = Start { bytes: buffer, len };
                let datagram = Datagram { socket: self.socket, from, ifindex, payload };
                if self.incoming.try_send(Incoming::Datagram(datagram)).is_err() {
                    self.counters.count(Counter::ReplyDropped);
                }
            }
            Err(error) => self.note(&error),
        }
    }

    /// `None` if the error queue is empty.
    fn read_error(&self) -> Option<()> {
        let mut buffer = [0; ip2gid::MAX_LEN + 1];
        let error = match self.udp.take_error(&mut buffer) {
            Ok(error) => error,
            Err(error) => {
                self.note(&error);
                return None;
            }
        };
        if let (true, Some(to)) = (error.is_port_unreachable, error.to) {
            let len = error.len.min(buffer.len());
            let quoted = Start { bytes: buffer, len };
            let refusal = Incoming::Refusal(Refusal { socket: self.socket, to, quoted });
            // Any host can send ICMP errors, so they never take the room of replies.
            let has_room = self.incoming.capacity() > self.incoming.max_capacity() / 2;
            if !has_room || self.incoming.try_send(refusal).is_err() {
                self.counters.count(Counter::RefusalDropped);
            }
        }
        Some(())
    }

    fn note(&self, error: &io::Error) {
        if error.kind() != ErrorKind::WouldBlock {
            self.counters.count(Counter::ReceiveFailed);
            debug!(%error, "datagram not received");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, UdpSocket as Peer};

    use ibarr_common::Instant;
    use ibarr_common::wire::ip2gid::{MsgId, Query, Version};
    use ibarr_proto::ip2gid::Question;
    use ibarr_proto::ip2gid::client::{
        Client, Config, Input, Output, Request, RequestId, Route, SocketEvent,
    };
    use ibarr_proto::request::{Caller, Freshness, UserRequest};
    use rand_chacha::ChaCha12Rng;
    use rand_core::SeedableRng as _;

    use super::*;
    use crate::tests::on_own_network;

    /// A socket id for the family of `target`; only a client gives one out.
    fn name(target: IpAddr) -> SocketId {
        let mut client = Client::new(Config::default(), ChaCha12Rng::seed_from_u64(1));
        let question = Question::new(target, None).unwrap();
        let (now, ifindex) = (Instant::from_nanos(1), IfIndex::MIN);
        let (id, deadline) = (RequestId::User(UserRequest::Control(1)), Instant::from_nanos(2));
        let (caller, asked_at, freshness) = (Caller::Kernel, now, Freshness::Any);
        let asked = Input::Resolve(Request { id, caller, question, asked_at, deadline, freshness });
        let route = Some(Route { ifindex, next_hop: target });
        for input in [asked, Input::Route { candidate: question.into(), route }] {
            client.handle_input(now, input);
        }
        match client.poll_transmit() {
            Some(Output::Socket(SocketEvent::Open(socket))) => socket,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn refused_queries_are_reported_and_no_reply_is_lost() {
        const ROUNDS: u32 = 100;
        if !on_own_network(|| ()) {
            return;
        }
        for (host, target) in [("127.0.0.1", "10.2.0.5"), ("::1", "fd00:2::5")] {
            let [host, target]: [IpAddr; 2] = [host, target].map(|text| text.parse().unwrap());
            let (sender, mut incoming) = mpsc::channel(1024);
            let counters = Arc::new(Counters::default());
            let mut sockets = Sockets::new(sender, Arc::clone(&counters));
            let socket = name(target);
            sockets.open(socket).unwrap();
            let live = Peer::bind((host, 0)).unwrap();
            let gone = Peer::bind((host, 0)).unwrap().local_addr().unwrap();
            let send = |to, number| {
                let payload = Query::new(Version::V1, MsgId(number), target).unwrap().emit();
                let query = Transmit { socket, to, egress: None, source: None, payload };
                sockets.send(&query).unwrap();
                payload
            };
            for number in 0..ROUNDS {
                let refused = send(gone, number);
                let asked = send(live.local_addr().unwrap(), number);
                let mut buffer = [0; 64];
                let (len, from) = live.recv_from(&mut buffer).unwrap();
                assert_eq!(&buffer[..len], asked.as_ref());
                live.send_to(b"reply", from).unwrap();
                let (mut replies, mut refusals) = (0, 0);
                while (replies, refusals) != (1, 1) {
                    match incoming.recv().await.unwrap().input() {
                        Input::Datagram { payload, .. } => {
                            assert_eq!(payload, b"reply");
                            replies += 1;
                        }
                        Input::Refused { socket: of, to, quoted } => {
                            assert_eq!((of, to, quoted), (socket, gone, refused.as_ref()));
                            refusals += 1;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            for counter in [Counter::QueryNotSent, Counter::ReceiveFailed, Counter::RefusalDropped]
            {
                assert_eq!(counters.get(counter), 0, "{counter:?}");
            }
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn each_refusal_of_the_kernel_is_counted_by_its_cause() {
        let counters = Arc::new(Counters::default());
        let mut sockets = Sockets::new(mpsc::channel(1).0, Arc::clone(&counters));
        let target: IpAddr = "127.0.0.1".parse().unwrap();
        let payload = Query::new(Version::V1, MsgId(1), target).unwrap().emit();
        let (socket, to) = (name(target), SocketAddr::new(target, 9));
        sockets.open(socket).unwrap();
        // An address of documentation, like one that has gone.
        let source = Some("192.0.2.1".parse().unwrap());
        let refused = sockets.send(&Transmit { socket, to, egress: None, source, payload });
        // Linux says EINVAL or, lately, ENETUNREACH.
        assert_eq!(counters.get(not_sent(&refused.unwrap_err())), 1);
        let of = |errno| not_sent(&io::Error::from_raw_os_error(errno));
        let causes = [libc::EPERM, libc::EHOSTUNREACH, libc::ENOBUFS, libc::EMSGSIZE, libc::ENODEV];
        assert_eq!(
            causes.map(of),
            [
                Counter::QueryForbidden,
                Counter::QueryNoRoute,
                Counter::QueryNoRoom,
                Counter::QueryTooLong,
                Counter::QueryNotSent
            ]
        );
        let of = |errno| not_opened(&io::Error::from_raw_os_error(errno));
        assert_eq!(
            [libc::EADDRINUSE, libc::EMFILE, libc::ENFILE, libc::ENODEV].map(of),
            [
                Counter::SocketNoPort,
                Counter::SocketNoDescriptor,
                Counter::SocketNoDescriptor,
                Counter::SocketNotOpened
            ]
        );
    }

    #[tokio::test(flavor = "current_thread")]
    async fn icmp_errors_take_at_most_half_of_the_channel() {
        if !on_own_network(|| ()) {
            return;
        }
        let host: IpAddr = "127.0.0.1".parse().unwrap();
        let target: IpAddr = "10.2.0.5".parse().unwrap();
        let (sender, mut incoming) = mpsc::channel(8);
        let counters = Arc::new(Counters::default());
        let mut sockets = Sockets::new(sender, Arc::clone(&counters));
        let socket = name(target);
        sockets.open(socket).unwrap();
        let to = Peer::bind((host, 0)).unwrap().local_addr().unwrap();
        for number in 0..20 {
            let payload = Query::new(Version::V1, MsgId(number), target).unwrap().emit();
            let query = Transmit { socket, to, egress: None, source: None, payload };
            sockets.send(&query).unwrap();
        }
        while counters.get(Counter::RefusalDropped) < 16 {
            tokio::task::yield_now().await;
        }
        assert_eq!(incoming.len(), 4);
        while incoming.try_recv().is_ok() {}
    }
}
