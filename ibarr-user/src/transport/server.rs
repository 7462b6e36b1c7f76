// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The sockets of the ip2gid port: hands peers' queries to the engine in batches, and sends its
//! replies.
//!
//! A socket reads nothing more until the replies to its last batch are sent, so a full send buffer
//! delays only this socket. The kernel's receive buffer holds queries meanwhile, and drops what
//! does not fit.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ibarr_common::IfIndex;
use ibarr_common::wire::ip2gid;
use ibarr_proto::ip2gid::Family;
use ibarr_proto::ip2gid::server::{self, Transmit};
use ibarr_proto::local_view::InterfaceName;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tracing::{debug, info, warn};

use super::holder::{self, Holder};
use super::{Counter, Counters};
use crate::causes::{Fault, fault};
use crate::logging::ids;
use crate::sys::mmsg::{self, Inbox, Outgoing};
use crate::sys::udp::{Received, Source, UdpSocket};
use crate::sys::udp_options;

/// What a socket tells the engine.
#[derive(Debug)]
pub(crate) enum Event {
    Queries(Batch),
    /// The replies to a batch, each with the error of the kernel that refused to send it, or 0.
    Sent(Vec<(Transmit, i32)>),
}

/// The datagrams of one read, at most [`BATCH`].
#[derive(Debug)]
pub(crate) struct Batch {
    /// In the order of arrival.
    pub queries: Vec<Query>,
    /// Takes the engine's replies, in any order; there may be fewer replies than queries.
    pub replies: oneshot::Sender<Vec<Transmit>>,
}

/// A datagram that may be a query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query {
    received: Received,
    buffer: [u8; CUT],
}

/// One byte more than the longest legal datagram, enough to classify it.
const CUT: usize = ip2gid::MAX_LEN + 1;

impl Query {
    /// The datagram with its first bytes, enough to classify it.
    pub(crate) fn received(&self) -> server::Received<'_> {
        let Received { from, to, ifindex: ingress, is_local, len } = self.received;
        let payload = &self.buffer[..len.min(self.buffer.len())];
        server::Received { from, to, ingress, is_local, payload }
    }
}

/// The state of a socket of the port.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// Not bound yet.
    Starting,
    /// Bound.
    Serving {
        /// The socket, for the guard and for socket options.
        socket: Arc<OwnedFd>,
        /// Receive buffer in bytes; less than [`HOLD`] if the kernel does not grant it.
        holds: usize,
        /// How many datagrams it had dropped before this daemon took it over.
        dropped_before: u32,
    },
    /// Not bound; reason and remedy.
    Blocked(Fault),
}

impl State {
    /// How many datagrams the kernel has dropped at the socket.
    pub(crate) fn dropped(&self) -> u32 {
        match self {
            Self::Serving { socket, dropped_before, .. } => {
                udp_options::dropped(socket).map_or(0, |all| all.wrapping_sub(*dropped_before))
            }
            Self::Starting | Self::Blocked(_) => 0,
        }
    }
}

/// Datagrams read before the engine is called: enough to make its turn cheap, few enough that a
/// flood of queries occupies the engine for less than 100 µs at a time.
pub(crate) const BATCH: usize = mmsg::MAX;

/// Receive buffer of a socket, in bytes: it holds the queries of 10,000 peers that ask at once
/// while the daemon is busy, and a sixth more.
pub(crate) const HOLD: usize = 96 << 20;

const _: () = assert!(HOLD / udp_options::TRUESIZE > 10_000 + 10_000 / 6);

/// Interval between attempts to bind a port that is taken.
const RETRY: Duration = Duration::from_secs(5);

/// The holder of the port is searched for once in this many attempts, because a machine can have
/// many processes.
const LOOK_EVERY: u32 = 12;

/// A VRF, and the state of the socket that has the port outside of it.
pub(crate) struct Vrf {
    pub name: InterfaceName,
    /// The socket is opened first.
    pub outside: watch::Receiver<State>,
}

impl Vrf {
    fn bind(&self, family: Family, port: u16) -> io::Result<UdpSocket> {
        let State::Serving { socket, .. } = self.outside.borrow().clone() else {
            return Err(io::Error::other("the port is not served outside of the VRF either"));
        };
        UdpSocket::bind_in_vrf(family, port, &self.name.to_string(), &socket)
    }
}

/// Serves `port` for one family, by the `inherited` socket if there is one, or in a VRF, until `batches`
/// is closed or `state` has no receiver. A port that is taken is reported once, and tried again.
pub(crate) async fn serve(
    family: Family,
    port: u16,
    mut inherited: Option<OwnedFd>,
    vrf: Option<Vrf>,
    batches: mpsc::Sender<Event>,
    state: watch::Sender<State>,
    counters: Arc<Counters>,
) {
    let (mut tries, mut held, mut said) = (0u32, None, None);
    while !batches.is_closed() {
        let is_inherited = inherited.is_some();
        let socket = match (inherited.take(), &vrf) {
            (Some(fd), _) => UdpSocket::take_over(family, fd),
            (None, Some(vrf)) => vrf.bind(family, port),
            (None, None) => UdpSocket::bind_server(family, port),
        };
        let bound = socket.and_then(|socket| {
            let holds = udp_options::widen(&socket, HOLD)?;
            let dropped_before =
                if is_inherited { udp_options::dropped(&socket).unwrap_or_default() } else { 0 };
            let socket_to_ask = Arc::new(socket.duplicate()?);
            let serving = State::Serving { socket: socket_to_ask, holds, dropped_before };
            Ok((socket, serving))
        });
        match bound {
            Ok((socket, serving)) => {
                info!(
                    message_id = ids::SERVING,
                    ?family,
                    udp_port = port,
                    is_inherited,
                    "serving ip2gid"
                );
                state.send_replace(serving);
                let error = pump(&socket, is_inherited, &batches, &state, &counters).await;
                debug!(?family, udp_port = port, ?error, "the server socket ended");
                return;
            }
            Err(error) => {
                let mut reason = match &vrf {
                    Some(vrf) => fault!("UDP port {port} in VRF {}: {error}", vrf.name),
                    None => explain(&error, port),
                };
                if matches!(&*state.borrow(), State::Starting) {
                    state.send_replace(State::Blocked(reason.clone()));
                }
                if error.kind() == ErrorKind::AddrInUse && vrf.is_none() {
                    if tries % LOOK_EVERY == 0 {
                        held = holder_of(family, port).await;
                    }
                    tries += 1;
                    reason = held.as_ref().map_or(reason, |holder| holder.explain(port));
                }
                if said.as_ref() != Some(&reason) {
                    warn!(
                        message_id = ids::NOT_SERVING,
                        cause = %reason,
                        ?family,
                        udp_port = port,
                        "not serving ip2gid: {reason}"
                    );
                    said = Some(reason.clone());
                }
                state.send_replace(State::Blocked(reason));
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// The holder of the port, as far as it is visible.
async fn holder_of(family: Family, port: u16) -> Option<Holder> {
    match spawn_blocking(move || holder::find(family, port)).await.ok()? {
        Ok(holder) => holder,
        Err(error) => {
            debug!(%error, "cannot search for the holder of the port");
            None
        }
    }
}

/// Why the port could not be bound, with the remedy.
fn explain(error: &io::Error, port: u16) -> Fault {
    Fault::new(match error.kind() {
        ErrorKind::AddrInUse if port == ip2gid::PORT => format!(
            "UDP port {port} is taken: it is RoCEv2's own, and rdma_rxe holds it while it is \
             loaded (rmmod rdma_rxe), or another ibarr runs (ss -lunp sport = {port})"
        ),
        ErrorKind::AddrInUse => {
            format!("UDP port {port} is taken (ss -lunp sport = {port} shows the holder)")
        }
        ErrorKind::PermissionDenied => {
            format!("UDP port {port} needs CAP_NET_BIND_SERVICE, or choose a udp-port above 1023")
        }
        _ if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            "the kernel has this protocol disabled".to_owned()
        }
        _ => format!("UDP port {port}: {error}"),
    })
}

/// `has_waited`: datagrams in the socket may be older than its filter.
async fn pump(
    socket: &UdpSocket,
    mut has_waited: bool,
    batches: &mpsc::Sender<Event>,
    state: &watch::Sender<State>,
    counters: &Counters,
) -> io::Result<()> {
    let mut inbox = Inbox::default();
    loop {
        let received = tokio::select! {
            biased;
            () = state.closed() => return Ok(()),
            received = socket.receive(&mut inbox) => received,
        };
        if let Err(error) = received {
            // The error is about one datagram, or about an earlier one that was sent here.
            counters.count(Counter::ReceiveFailed);
            debug!(%error, "datagram not received");
            tokio::task::yield_now().await;
            continue;
        }
        let mut queries = queries(&inbox, counters);
        if has_waited {
            // Without the filter, only the loopback interface shows that this host has sent it.
            for Query { received, .. } in &mut queries {
                received.is_local &= received.ifindex == IfIndex::MIN;
            }
            // A batch that is not full has emptied the socket.
            has_waited = inbox.datagrams().count() == mmsg::MAX;
        }
        let (replies, answer) = oneshot::channel();
        if batches.send(Event::Queries(Batch { queries, replies })).await.is_err() {
            return Ok(());
        }
        let Ok(replies) = answer.await else { return Ok(()) };
        if !replies.is_empty() {
            let errors = send(socket, &replies).await;
            let sent = replies.into_iter().zip(errors).collect();
            if batches.send(Event::Sent(sent)).await.is_err() {
                return Ok(());
            }
        }
    }
}

fn queries(inbox: &Inbox<CUT>, counters: &Counters) -> Vec<Query> {
    let mut queries = Vec::with_capacity(BATCH);
    for (received, payload) in inbox.datagrams() {
        match received {
            Some(received) => queries.push(Query { received, buffer: *payload }),
            None => counters.count(Counter::ReceiveFailed),
        }
    }
    queries
}

/// Sends as many replies as possible. Returns the error of each, or 0.
async fn send(socket: &UdpSocket, replies: &[Transmit]) -> Vec<i32> {
    let datagrams: Vec<_> = replies
        .iter()
        .map(|reply| {
            let source = Source { address: Some(reply.from), egress: reply.egress };
            Outgoing { to: reply.to, source, payload: reply.payload.as_ref() }
        })
        .collect();
    let mut errors = vec![0; datagrams.len()];
    let mut done = 0;
    while let Some(left @ [first, ..]) = datagrams.get(done..) {
        done += match socket.send_all(left).await {
            Ok(sent) => sent.max(1),
            Err(error) => {
                debug!(to = %first.to, source = ?first.source, %error, "reply not sent");
                errors[done] = error.raw_os_error().unwrap_or(libc::EIO);
                1
            }
        }
    }
    errors
}
