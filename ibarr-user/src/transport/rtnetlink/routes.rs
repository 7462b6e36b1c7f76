// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Asks the kernel which way leads to a peer, and for the neighbour on it.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ibarr_common::IfIndex;
use ibarr_proto::ip2gid::client::{Candidate, Route};
use ibarr_proto::ip2gid::{Family, Question};
use ibarr_proto::local_view::Input;
use ibarr_proto::local_view::neighbours::Entry;
use ibarr_proto::local_view::rules::Traffic;
use neli::consts::nl::{NlmF, Nlmsg};
use neli::consts::rtnl::{RtAddrFamily, Rta, Rtm, RtmF};
use nix::errno::Errno;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::fib::{self, Message};
use super::message::{self, ALL_SET, Frame, Malformed, rtattr};
use super::neigh::{self, get_neighbour};
use super::socket::{Received, Socket};
use crate::transport::{Counter, Counters, ROUTE_ANSWERS, ROUTE_QUESTIONS};

/// Looks up routes and neighbours in the kernel (`RTM_GETROUTE`, `RTM_GETNEIGH`), until it is dropped
/// or the receiver of the answers is.
///
/// Routes are those of the kernel's connections, which belong to user 0 and have no mark, protocol or
/// ports (`addr_resolve` of drivers/infiniband/core/addr.c).
#[derive(Debug)]
pub struct Routes {
    questions: mpsc::Sender<RouteQuery>,
    counters: Arc<Counters>,
}

/// What is looked up for a question.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RouteQuery {
    Route(Candidate),
    /// The next hop of the route. Before Linux 5.0 the kernel refuses this.
    Neighbour(Question, Route),
}

/// What the kernel says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum Answer {
    Route(RouteAnswer),
    Neighbour {
        /// The question, unchanged.
        question: Question,
        /// The entry, if there is one.
        entry: Option<Entry>,
    },
}

/// The kernel's answer to a question.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RouteAnswer {
    /// The look-up, unchanged.
    pub candidate: Candidate,
    /// The route, or why there is none.
    pub route: Result<Route, NoRoute>,
    /// The source of what this machine sends to the target, itself or another host.
    pub source: Option<IpAddr>,
}

/// Why there is no route to an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "its variants are named for what they are")]
pub enum NoRoute {
    /// The address belongs to this machine.
    #[error("an address of this machine")]
    Local,
    /// The address is broadcast, anycast or multicast.
    #[error("not the address of one host")]
    NotUnicast,
    /// A route discards packets to the address.
    #[error("blackholed or prohibited by a route")]
    Forbidden,
    /// No route leads to the address.
    #[error("no route")]
    Unreachable,
    /// No route leads from the source to the address, or the source is no address of this machine.
    #[error("no route from the source, or the source is no address of this machine")]
    NoSource,
    #[error("the kernel could not look it up: {0}")]
    Failed(Errno),
    /// The kernel's answer is malformed.
    #[error("the kernel's answer is malformed")]
    Malformed,
}

impl Routes {
    /// Opens the socket in the network namespace of this thread. Must be called within a runtime.
    ///
    /// # Errors
    /// If the kernel refuses the socket.
    pub fn start(counters: Arc<Counters>) -> io::Result<(Self, mpsc::Receiver<Answer>)> {
        let socket = open()?;
        let (question, questions) = mpsc::channel(ROUTE_QUESTIONS);
        let (sender, answers) = mpsc::channel(ROUTE_ANSWERS);
        let lookups = Lookups::new(Arc::clone(&counters));
        let of_questions = Arc::clone(&counters);
        let mut asker = Asker { socket, lookups, questions, answers: sender, counters };
        tokio::spawn(async move {
            while let Err(error) = asker.ask().await {
                tracing::error!(%error, "rtnetlink: socket for routes broken; opening it again");
                asker.socket = super::reopen(open).await;
                asker.counters.count(Counter::RtnetlinkReopened);
                asker.lookups.handle_loss();
                asker.lookups.handle_drained();
            }
        });
        Ok((Self { questions: question, counters: of_questions }, answers))
    }

    /// Asks for a route, and gets one answer. Returns whether there was room for it.
    pub fn route(&self, candidate: Candidate) -> bool {
        self.ask(RouteQuery::Route(candidate))
    }

    /// Asks for the neighbour entry of the next hop of `route`, which a question has, and gets one
    /// answer. Returns whether there was room for it.
    pub fn neighbour(&self, question: Question, route: Route) -> bool {
        self.ask(RouteQuery::Neighbour(question, route))
    }

    fn ask(&self, query: RouteQuery) -> bool {
        let is_full = matches!(self.questions.try_send(query), Err(TrySendError::Full(_)));
        if is_full {
            self.counters.count(Counter::RouteRefused);
        }
        !is_full
    }
}

struct Asker {
    socket: Socket,
    lookups: Lookups,
    questions: mpsc::Receiver<RouteQuery>,
    answers: mpsc::Sender<Answer>,
    counters: Arc<Counters>,
}

impl Asker {
    /// Ends without an error when one of the channels is closed.
    async fn ask(&mut self) -> io::Result<()> {
        let mut said = Vec::new();
        loop {
            while let Some((seq, request)) = self.lookups.poll_transmit() {
                if let Err(error) = self.socket.send(&request) {
                    let errno = Errno::from_raw(error.raw_os_error().unwrap_or_default());
                    self.lookups.handle_unsent(seq, errno, &mut said);
                }
            }
            for answer in said.drain(..) {
                if self.answers.send(answer).await.is_err() {
                    return Ok(());
                }
            }
            tokio::select! {
                readable = self.socket.readable() => {
                    readable?;
                    match self.socket.receive()? {
                        Received::Datagram(datagram) => {
                            self.lookups.handle_datagram(datagram, &mut said);
                        }
                        Received::Foreign => self.counters.count(Counter::RtnetlinkForeign),
                        Received::Truncated | Received::Overrun => self.lookups.handle_loss(),
                        Received::Drained => self.lookups.handle_drained(),
                    }
                }
                question = self.questions.recv(), if self.lookups.has_room() => match question {
                    Some(query) => self.lookups.handle_question(query),
                    None => return Ok(()),
                },
                () = self.answers.closed() => return Ok(()),
            }
        }
    }
}

/// The questions in flight, without the socket.
pub(super) struct Lookups {
    seq: u32,
    /// By the sequence number of the request.
    pending: BTreeMap<u32, Pending>,
    /// Some answers were lost; the ones still missing when the socket is empty are asked for again.
    lost: bool,
    counters: Arc<Counters>,
}

#[derive(Clone, Copy)]
struct Pending {
    query: RouteQuery,
    sent: bool,
}

impl Lookups {
    /// The socket has room for many times as many answers.
    const MAX_PENDING: usize = 64;

    pub(super) fn new(counters: Arc<Counters>) -> Self {
        Self { seq: 0, pending: BTreeMap::new(), lost: false, counters }
    }

    pub(super) fn has_room(&self) -> bool {
        self.pending.len() < Self::MAX_PENDING
    }

    pub(super) fn handle_question(&mut self, query: RouteQuery) {
        self.seq = self.seq.wrapping_add(1);
        self.pending.insert(self.seq, Pending { query, sent: false });
    }

    pub(super) fn poll_transmit(&mut self) -> Option<(u32, Vec<u8>)> {
        let (&seq, pending) = self.pending.iter_mut().find(|(_, pending)| !pending.sent)?;
        pending.sent = true;
        let request = match pending.query {
            RouteQuery::Route(candidate) => request(seq, candidate, Traffic::CONNECTIONS),
            RouteQuery::Neighbour(_, route) => get_neighbour(seq, route),
        };
        Some((seq, request))
    }

    pub(super) fn handle_unsent(&mut self, seq: u32, errno: Errno, answers: &mut Vec<Answer>) {
        let Some(Pending { query, .. }) = self.pending.get(&seq) else { return };
        let answer = query.unanswered(NoRoute::Failed(errno));
        self.finish(seq, answer, answers);
    }

    pub(super) fn handle_loss(&mut self) {
        self.lost = true;
    }

    pub(super) fn handle_drained(&mut self) {
        if !std::mem::take(&mut self.lost) {
            return;
        }
        for pending in self.pending.values_mut().filter(|pending| pending.sent) {
            pending.sent = false;
            self.counters.count(Counter::RouteAskedAgain);
        }
    }

    pub(super) fn handle_datagram(&mut self, datagram: &[u8], answers: &mut Vec<Answer>) {
        for frame in message::frames(datagram) {
            if let Ok(frame) = frame {
                self.handle_answer(&frame, answers);
            } else {
                self.counters.count(Counter::RtnetlinkMalformedHeader);
                self.lost = true;
            }
        }
    }

    fn handle_answer(&mut self, frame: &Frame<'_>, answers: &mut Vec<Answer>) {
        let Some(Pending { query, .. }) = self.pending.get(&frame.seq) else {
            return self.counters.count(Counter::RouteUnasked);
        };
        let answer = query.answered(frame).unwrap_or_else(|error| {
            tracing::debug!(%error, "rtnetlink: answer refused");
            self.counters.count(Counter::RtnetlinkMalformedMessage);
            query.unanswered(NoRoute::Malformed)
        });
        self.finish(frame.seq, answer, answers);
    }

    fn finish(&mut self, seq: u32, answer: Answer, answers: &mut Vec<Answer>) {
        self.pending.remove(&seq);
        self.counters.count(match answer {
            Answer::Route(RouteAnswer { route: Ok(_), .. }) => Counter::RouteFound,
            Answer::Route(_) => Counter::RouteNotFound,
            Answer::Neighbour { entry: Some(_), .. } => Counter::NeighbourFound,
            Answer::Neighbour { entry: None, .. } => Counter::NeighbourNotFound,
        });
        answers.push(answer);
    }
}

impl RouteQuery {
    fn answered(self, frame: &Frame<'_>) -> Result<Answer, Malformed> {
        Ok(match self {
            Self::Route(candidate) => {
                let (route, source) = route(frame, candidate)?;
                Answer::Route(RouteAnswer { candidate, route, source })
            }
            Self::Neighbour(question, _) => {
                let entry = match neigh::change(frame)? {
                    Some(Input::Neighbour(entry)) => Some(entry),
                    _ => None,
                };
                Answer::Neighbour { question, entry }
            }
        })
    }

    fn unanswered(self, why: NoRoute) -> Answer {
        match self {
            Self::Route(candidate) => {
                Answer::Route(RouteAnswer { candidate, route: Err(why), source: None })
            }
            Self::Neighbour(question, _) => Answer::Neighbour { question, entry: None },
        }
    }
}

/// Request for the route that the first of these packets has by a candidate.
pub(super) fn request(seq: u32, candidate: Candidate, packets: Traffic) -> Vec<u8> {
    let Candidate { question, egress, source } = candidate;
    // With this flag the kernel names the table, and none if it only assumes that the address is on
    // the link of the interface. IPv6 assumes nothing, and refuses the flag.
    let (bits, flags) = match question.family() {
        Family::V4 => (32, RtmF::LOOKUPTABLE),
        Family::V6 => (128, RtmF::empty()),
    };
    let (family, target) = message::octets(question.target());
    let [user, protocol, ports @ ..] = packets.0.map(|(first, _)| first);
    let protocol = match question.family() {
        // IPv4 takes UDP if none is named (`inet_rtm_getroute`), and accepts no other than TCP, UDP
        // and ICMP. Rules select ICMP the least.
        Family::V4 if protocol == 0 => ICMP,
        _ => protocol.to_be_bytes()[3],
    };
    let [source_port, port] = ports.map(|port| [port.to_be_bytes()[2], port.to_be_bytes()[3]]);
    let attributes = [
        Some(rtattr(Rta::Dst, &target)),
        source.map(|source| rtattr(Rta::Src, &message::octets(source).1)),
        egress.map(|egress| rtattr(Rta::Oif, &egress.get().to_ne_bytes())),
        Some(rtattr(Rta::Uid, &user.to_ne_bytes())),
        (protocol != 0).then(|| rtattr(Rta::from(RTA_IP_PROTO), &[protocol])),
        (source_port != [0; 2]).then(|| rtattr(Rta::from(RTA_SPORT), &source_port)),
        (port != [0; 2]).then(|| rtattr(Rta::from(RTA_DPORT), &port)),
    ];
    let message = fib::message(family)
        .rtm_dst_len(bits)
        .rtm_src_len(source.map_or(0, |_| bits))
        .rtm_flags(flags)
        .rtattrs(attributes.into_iter().flatten().collect())
        .build()
        .expect(ALL_SET);
    message::request(Rtm::Getroute, NlmF::empty(), seq, message)
}

/// Request for the route of a packet that arrives on an interface. Its number is 0.
pub(super) fn arrival(ingress: IfIndex, from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let attributes = [
        rtattr(Rta::Dst, &to.octets()),
        rtattr(Rta::Src, &from.octets()),
        rtattr(Rta::Iif, &ingress.get().to_ne_bytes()),
    ];
    let message = fib::message(RtAddrFamily::Inet).rtm_dst_len(32).rtm_src_len(32);
    let message = message.rtm_flags(RtmF::empty()).rtattrs(attributes.into_iter().collect());
    message::request(Rtm::Getroute, NlmF::empty(), 0, message.build().expect(ALL_SET))
}

/// Parses an answer with its source; the outer error is that it is malformed.
pub(super) fn route(
    frame: &Frame<'_>,
    candidate: Candidate,
) -> Result<(Result<Route, NoRoute>, Option<IpAddr>), Malformed> {
    if frame.kind == u16::from(Nlmsg::Error) {
        return Ok((Err(refused(Errno::from_raw(frame.errno()?), candidate)), None));
    }
    if frame.kind != u16::from(Rtm::Newroute) {
        return Err(Malformed::Header);
    }
    let message = Message::parse(frame.payload)?.ok_or(Malformed::Attributes)?;
    let source = message.attribute(libc::RTA_PREFSRC);
    let source = source.map(|source| message.ip(source)).transpose()?;
    let is_assumed =
        message.family == Family::V4 && message.attribute(libc::RTA_TABLE) == Some(&[0; 4]);
    match message.kind {
        libc::RTN_UNICAST if !is_assumed => {}
        libc::RTN_LOCAL => return Ok((Err(NoRoute::Local), source)),
        libc::RTN_BROADCAST | libc::RTN_ANYCAST | libc::RTN_MULTICAST => {
            return Ok((Err(NoRoute::NotUnicast), None));
        }
        libc::RTN_BLACKHOLE | libc::RTN_PROHIBIT => return Ok((Err(NoRoute::Forbidden), None)),
        _ => return Ok((Err(NoRoute::Unreachable), None)),
    }
    let oif = message.attribute(libc::RTA_OIF).ok_or(Malformed::AttributeMissing)?;
    let ifindex = message::ifindex(oif)?;
    let next_hop = message.gateway(&message.attributes)?.unwrap_or(candidate.question.target());
    Ok((Ok(Route { ifindex, next_hop }), source))
}

/// The error numbers of route types, from `fib_props` of net/ipv4/fib_semantics.c and
/// `ip6_rt_type_to_error` of net/ipv6/route.c.
pub(super) fn refused(errno: Errno, candidate: Candidate) -> NoRoute {
    match errno {
        // Of IPv4; stable releases before 2019 say EINVAL (`ip_route_output_key_hash_rcu`).
        Errno::ENETUNREACH if candidate.source.is_some() => NoRoute::NoSource,
        Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::EAGAIN => NoRoute::Unreachable,
        // A blackhole or prohibited route.
        Errno::EINVAL | Errno::EACCES => NoRoute::Forbidden,
        other => NoRoute::Failed(other),
    }
}

fn open() -> io::Result<Socket> {
    Socket::open(0, RECEIVE_BUFFER)
}

/// Of include/uapi/linux/rtnetlink.h.
const RTA_IP_PROTO: u16 = 27;
const RTA_SPORT: u16 = 28;
const RTA_DPORT: u16 = 29;
const ICMP: u8 = 1;

/// An answer takes less than a KiB with the kernel's overhead.
const RECEIVE_BUFFER: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_beyond_the_queue_is_refused_and_counted() {
        let (questions, mut queued) = mpsc::channel(2);
        let counters = Arc::<Counters>::default();
        let routes = Routes { questions, counters: Arc::clone(&counters) };
        let question = Question::new([10, 1, 0, 1].into(), None).unwrap();
        let route = Candidate::from(question);
        assert_eq!([routes.route(route), routes.route(route)], [true, true]);
        assert!(!routes.route(route));
        assert_eq!(counters.get(Counter::RouteRefused), 1);
        assert_eq!(queued.try_recv(), Ok(RouteQuery::Route(route)));
        assert!(routes.route(route));
    }

    #[test]
    fn unreachable_source_is_told_from_a_refusing_route() {
        let plain = Candidate::from(Question::new([10, 1, 0, 1].into(), None).unwrap());
        let sourced = Candidate { source: Some([10, 1, 0, 2].into()), ..plain };
        let of = |candidate| [Errno::ENETUNREACH, Errno::EINVAL].map(|no| refused(no, candidate));
        assert_eq!(of(plain), [NoRoute::Unreachable, NoRoute::Forbidden]);
        assert_eq!(of(sourced), [NoRoute::NoSource, NoRoute::Forbidden]);
    }
}
