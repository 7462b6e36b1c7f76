// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr trace`: reports what goes over the wire to the trace, and passes its events to those that watch.
//! A tracer that reads too slowly loses events, which are counted. Nothing waits for it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ibarr_common::ib::Lid;
use ibarr_common::map::Reason;
use ibarr_common::wire::ip2gid::{Query, Reply};
use ibarr_common::wire::sa::{Answer, Question, Request, Response as SaResponse};
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::ip2gid::{client, server};
use ibarr_proto::node::Node;
use ibarr_proto::places::{Room, User};
use ibarr_proto::sa::{PortIndex, Transmit};
use ibarr_proto::trace::{Event, Filter, Step, Subject, Tie, Trace, Verdict};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tracing::info;

use crate::bpf::{self, HandledPacket, Responder};
use crate::control::messages::{
    Body, Failure, FailureKind, Response, TraceEnd, TraceRequest, Traced, Tracing,
};
use crate::transport::queries::Incoming;
use crate::transport::rtnetlink::{self, RouteAnswer};
use crate::transport::umad::Umads;

const ROOM: Room = Room { all: 8, of_user: 4 };

#[derive(Default)]
pub(super) struct Tracers(Vec<Tracer>);

struct Tracer {
    user: User,
    only: Option<Filter>,
    packets: Packets,
    ends_at: Option<Instant>,
    /// Has room for a bounded number of events.
    events: mpsc::Sender<Response>,
    end: oneshot::Sender<Response>,
    shown: u64,
    lost: u64,
    /// Those of the lost ones that no event has told yet.
    untold: u64,
}

/// Whether a tracer is shown what the programs in the kernel do.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Packets {
    Unwanted,
    /// It has not been told yet whether the programs report.
    Wanted,
    Told,
}

impl Tracers {
    /// Whether the programs in the kernel are to report their packets: one set of them, however many
    /// traces show it.
    pub(super) fn want_packets(&self) -> bool {
        self.0.iter().any(|tracer| tracer.packets != Packets::Unwanted)
    }

    /// Tells whether the programs report.
    fn tell(&mut self, now: Instant, programs: Result<(), bpf::Blocked>) {
        let (subject, since) = (Subject::Path { sgid: None, dgid: None }, Duration::ZERO);
        let step = Step::Programs { cause: programs.err().map(|why| why.to_string()) };
        let event = Event { chain: 0, since, at: now, subject, lost: 0, step };
        for tracer in self.0.iter_mut().filter(|tracer| tracer.packets == Packets::Wanted) {
            tracer.packets = Packets::Told;
            tracer.show(&event);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.0.iter().filter_map(|tracer| tracer.ends_at).min()
    }

    /// Begins a trace. It ends after the time in the request, with its connection, or with the daemon.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        user: User,
        TraceRequest { only, for_ms, kernel }: TraceRequest,
        events: Option<mpsc::Sender<Response>>,
        end: oneshot::Sender<Response>,
        trace: &mut Trace,
    ) {
        let own = self.0.iter().filter(|tracer| tracer.user == user).count();
        let has_room = ROOM.admits(user, own, self.0.len());
        let Some(events) = events.filter(|_| has_room) else {
            let Room { all, of_user } = ROOM;
            let message = format!(
                "{own} traces of yours run already, at most {of_user}, and at most {all} of all users: end one of them"
            );
            // The caller may have disconnected.
            return drop(end.send(Failure { kind: FailureKind::Overloaded, message }.into()));
        };
        let tracing = Tracing { at: now, only, for_ms };
        // There is room for the first one, unless the caller has disconnected.
        drop(events.try_send(Body::Tracing { tracing }.into()));
        let ends_at = for_ms.map(|time| now + Duration::from(time));
        let packets = if kernel { Packets::Wanted } else { Packets::Unwanted };
        let tracer =
            Tracer { user, only, packets, ends_at, events, end, shown: 0, lost: 0, untold: 0 };
        self.0.push(tracer);
        trace.set(true);
        info!(traces = self.0.len(), "a trace of requests begins");
    }

    /// Passes on what has happened, and ends traces whose time is over.
    pub(super) fn pass_on(&mut self, now: Instant, node: &mut Node, responder: &Responder) {
        if self.0.is_empty() {
            return;
        }
        if self.want_packets()
            && let Some(programs) = node.responder().reporting()
            && (programs.is_err() || responder.is_settled())
        {
            self.tell(now, programs);
        }
        while let Some(event) = node.trace().poll() {
            self.show(&event);
        }
        let lost = node.trace().take_lost();
        for tracer in &mut self.0 {
            tracer.lose(lost);
        }
        let before = self.0.len();
        self.end(now);
        self.note_ended(before, node.trace());
    }

    /// Ends all traces with the daemon.
    pub(super) fn end_all(&mut self, now: Instant, node: &mut Node, responder: &Responder) {
        self.pass_on(now, node, responder);
        let before = self.0.len();
        for tracer in self.0.drain(..) {
            tracer.end(TraceEnd::Daemon);
        }
        self.note_ended(before, node.trace());
    }

    fn note_ended(&self, before: usize, trace: &mut Trace) {
        let left = self.0.len();
        if left < before {
            trace.set(left > 0);
            info!(traces = left, "a trace of requests has ended");
        }
    }

    /// What the programs in the kernel have done.
    pub(super) fn add_packets(&mut self, packets: &bpf::Packets, node: &mut Node) {
        for &HandledPacket { at, target, by: program, ifindex, from, reason } in &packets.seen {
            let interface = ifindex.map_or("#0".to_owned(), |ifindex| name_of(node, ifindex));
            let verdict = Verdict::of(program, reason);
            let cause = (reason != Reason::Answered).then(|| reason.name().replace('_', "-"));
            let step = Step::Packet { program, interface, from, verdict, cause };
            node.trace().alone(at, target, step);
        }
        for tracer in &mut self.0 {
            if tracer.packets != Packets::Unwanted {
                tracer.lose(packets.lost);
            }
        }
    }

    fn show(&mut self, event: &Event) {
        for tracer in self.0.iter_mut().filter(|tracer| tracer.is_for(event)) {
            tracer.show(event);
        }
    }

    /// Ends those whose time is over or whose connection is closed.
    fn end(&mut self, now: Instant) {
        let is_over = |tracer: &mut Tracer| {
            tracer.events.is_closed() || tracer.ends_at.is_some_and(|end| end <= now)
        };
        for tracer in self.0.extract_if(.., is_over) {
            tracer.end(TraceEnd::Time);
        }
    }
}

impl Tracer {
    fn is_for(&self, event: &Event) -> bool {
        (self.packets != Packets::Unwanted || !matches!(event.step, Step::Packet { .. }))
            && self.only.is_none_or(|filter| filter.admits(event))
    }

    fn show(&mut self, event: &Event) {
        let event = Box::new(Event { lost: self.untold, ..event.clone() });
        match self.events.try_send(Body::Event { event }.into()) {
            Ok(()) => {
                self.shown += 1;
                self.untold = 0;
            }
            Err(TrySendError::Full(_)) => self.lose(1),
            // It is removed at the end of the turn.
            Err(TrySendError::Closed(_)) => {}
        }
    }

    fn lose(&mut self, count: u64) {
        self.lost += count;
        self.untold += count;
    }

    fn end(self, ended: TraceEnd) {
        let traced = Traced { ended, events: self.shown, lost: self.lost };
        // The caller may have disconnected.
        drop(self.end.send(Body::Traced { traced }.into()));
    }
}

pub(super) fn query(node: &mut Node, now: Instant, transmit: &client::Transmit) {
    if node.trace().is_on()
        && let Ok(query) = Query::parse(transmit.payload.as_ref())
    {
        let (tie, subject) = (Tie::Query(query.msg_id()), query.target());
        let to = transmit.to;
        node.trace().sent(now, tie, subject, |number| Step::Query { to, number });
    }
}

pub(super) fn query_not_sent(node: &mut Node, now: Instant, to: SocketAddr, why: &io::Error) {
    if node.trace().is_on() {
        let step = Step::NotSent { to, cause: why.to_string() };
        node.trace().step(now, to.ip(), step);
    }
}

pub(super) fn received(node: &mut Node, now: Instant, incoming: &Incoming) {
    if !node.trace().is_on() {
        return;
    }
    match incoming.input() {
        client::Input::Datagram { from, payload, .. } => {
            if let Ok(Reply { msg_id, gid, .. }) = Reply::parse(payload) {
                let step = |is_asked: bool| Step::Reply { from, gid, unasked: !is_asked };
                let otherwise = Some(from.ip().into());
                node.trace().came(now, Tie::Query(msg_id), otherwise, step);
            }
        }
        client::Input::Refused { to, .. } => {
            node.trace().step(now, to.ip(), Step::PortUnreachable { to });
        }
        _ => {}
    }
}

pub(super) fn route(node: &mut Node, now: Instant, answer: &rtnetlink::Answer) {
    if node.trace().is_on() {
        let (question, step) = match *answer {
            rtnetlink::Answer::Route(RouteAnswer { candidate, route: Ok(route), .. }) => {
                let client::Route { ifindex, next_hop } = route;
                let interface = name_of(node, ifindex);
                (candidate.question, Step::Route { interface, next_hop })
            }
            rtnetlink::Answer::Route(RouteAnswer { candidate, route: Err(why), .. }) => {
                (candidate.question, Step::NoRoute { cause: why.to_string() })
            }
            rtnetlink::Answer::Neighbour { question, entry } => {
                (question, Step::Neighbour { gid: entry.and_then(|entry| entry.gid()) })
            }
        };
        node.trace().step(now, question, step);
    }
}

pub(super) fn mad_sent(node: &mut Node, now: Instant, umads: &Umads, transmit: &Transmit) {
    let &Transmit { port, sa, transaction, is_probe, .. } = transmit;
    if node.trace().is_on()
        && let Some(name) = umads.port_name(port)
        && let Ok(Request { question, .. }) = Request::parse(transmit.mad.as_ref())
    {
        let subject: Subject = match question {
            Question::Path(question) | Question::Paths(question, _) => question.into(),
            Question::Known(query) => query.into(),
            Question::ClassPortInfo => return,
        };
        let (tie, lid) = (Tie::Mad(port, transaction), sa.lid);
        let step = |number| Step::Mad { port: name, lid, number, probe: is_probe };
        node.trace().sent(now, tie, subject, step);
    }
}

pub(super) fn mad(
    node: &mut Node,
    now: Instant,
    umads: &Umads,
    port: PortIndex,
    lid: Option<Lid>,
    mad: &[u8],
) {
    if node.trace().is_on()
        && let Some(name) = umads.port_name(port)
        && let Ok(SaResponse { tid, answer, .. }) = SaResponse::parse(mad)
    {
        let refusal = match answer {
            Answer::Path(_) => None,
            Answer::Refused(refusal) => Some(refusal.to_string()),
            Answer::ClassPortInfo(_) => return,
        };
        let tie = Tie::Mad(port, tid.transaction());
        let step = |_| Step::MadAnswer { port: name, lid, refusal };
        node.trace().came(now, tie, None, step);
    }
}

/// A query of a peer, and its reply or why there is none.
pub(super) fn peer(
    node: &mut Node,
    now: Instant,
    received: &server::Received<'_>,
    answer: &Result<server::Transmit, server::Silence>,
) {
    if node.trace().is_on()
        && let Ok(query) = Query::parse(received.payload)
    {
        let (gid, cause) = match answer {
            Ok(server::Transmit { payload, .. }) => {
                (Reply::parse(payload.as_ref()).ok().and_then(|reply| reply.gid), None)
            }
            Err(server::Silence::Counted(counter)) => (None, Some(*counter)),
            Err(server::Silence::NotYet) => return,
        };
        let step = Step::Peer { from: received.from, gid, cause };
        node.trace().alone(now, query.target(), step);
    }
}

/// Adds that the kernel has refused to send a reply.
pub(super) fn not_sent(
    node: &mut Node,
    now: Instant,
    reply: &server::Transmit,
    why: server::Counter,
) {
    let step = Step::Peer { from: reply.to, gid: None, cause: Some(why) };
    node.trace().alone(now, reply.from, step);
}

/// The name of an interface, or `#` and its index if it is gone.
pub(super) fn name_of(node: &Node, ifindex: IfIndex) -> String {
    let name = node.view().interface_name(ifindex);
    name.map_or_else(|| format!("#{ifindex}"), |name| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(chain: u64) -> Event {
        let (since, at) = (Duration::ZERO, Instant::BOOT);
        let subject = Subject::Address { ip: [10, 0, 0, 1].into() };
        Event { chain, since, at, subject, lost: 0, step: Step::Nudge }
    }

    fn tracer(events: mpsc::Sender<Response>, end: oneshot::Sender<Response>) -> Tracer {
        let (user, packets) = (User::ROOT, Packets::Unwanted);
        Tracer {
            user,
            only: None,
            packets,
            ends_at: None,
            events,
            end,
            shown: 0,
            lost: 0,
            untold: 0,
        }
    }

    #[test]
    fn tracer_that_does_not_read_is_told_how_many_it_has_lost() {
        let (events, mut read) = mpsc::channel(2);
        let (end, mut ended) = oneshot::channel();
        let mut tracer = Tracer { ends_at: Some(Instant::BOOT), ..tracer(events, end) };
        for chain in 1..=5 {
            tracer.show(&event(chain));
        }
        let shown = |read: &mut mpsc::Receiver<Response>| match read.try_recv().unwrap().body {
            Body::Event { event } => (event.chain, event.lost),
            other => panic!("{other:?}"),
        };
        assert_eq!([shown(&mut read), shown(&mut read)], [(1, 0), (2, 0)]);
        tracer.show(&event(6));
        tracer.show(&event(7));
        tracer.show(&event(8));
        assert_eq!([shown(&mut read), shown(&mut read)], [(6, 3), (7, 0)]);
        let mut tracers = Tracers(vec![tracer]);
        tracers.end(Instant::BOOT);
        assert!(tracers.0.is_empty());
        let expected = Traced { ended: TraceEnd::Time, events: 4, lost: 4 };
        assert_eq!(ended.try_recv().unwrap().body, Body::Traced { traced: expected });
    }

    #[test]
    fn tracer_whose_connection_is_closed_ends() {
        let (events, read) = mpsc::channel(2);
        let (end, _) = oneshot::channel();
        let mut tracers = Tracers(vec![tracer(events, end)]);
        tracers.end(Instant::BOOT);
        assert_eq!(tracers.0.len(), 1);
        drop(read);
        tracers.end(Instant::BOOT);
        assert!(tracers.0.is_empty());
    }
}
