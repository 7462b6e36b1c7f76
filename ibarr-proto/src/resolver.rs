// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which GID has this IP address, for whoever asks on this node: an address of our own is known,
//! any other is the [`client`]'s business.

use std::collections::VecDeque;
use std::net::IpAddr;

use ibarr_common::ib::Gid;
use ibarr_common::{IfIndex, Instant};
use rand_core::CryptoRng;

use crate::ip2gid::Question;
use crate::ip2gid::client::{self, Client, RequestId, SocketId, Transmit};
use crate::ip2gid::server::Local;

/// See the [module](self). Drained like every core: after each `handle_…` call the `poll_…` until
/// they say `None`, then wait until [`poll_timeout`](Self::poll_timeout).
#[derive(Debug)]
pub struct Resolver<R> {
    client: Client<R>,
    /// Of requests that needed no client.
    answers: VecDeque<Event>,
}

/// A fact for the outside.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// A request has its answer; each gets exactly one.
    Answered {
        /// Of the request.
        id: RequestId,
        /// The answer.
        outcome: Outcome,
    },
    /// As [`client::Event::OpenSocket`].
    OpenSocket {
        /// Its name.
        socket: SocketId,
    },
    /// As [`client::Event::CloseSocket`].
    CloseSocket {
        /// Its name.
        socket: SocketId,
    },
}

/// What became of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// The address has a GID.
    Found {
        /// The GID.
        gid: Gid,
        /// Who said so.
        source: Source,
    },
    /// It has none: its host says so, or it is ours and has none.
    NotFound,
    /// Its host did not answer within the deadline.
    TimedOut,
    /// There is no route to it.
    Unreachable,
    /// Too much is being asked at once; nothing has been sent.
    Overloaded,
}

/// Where an answer is from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Source {
    /// The address is ours.
    Local,
    /// It was remembered.
    Cache,
    /// A peer has just said so.
    Peer,
}

impl<R: CryptoRng> Resolver<R> {
    /// Asks peers through `client`.
    pub fn new(client: Client<R>) -> Self {
        Self { client, answers: VecDeque::new() }
    }

    /// Somebody wants to know. Answered by one [`Event::Answered`], at once where `view` or the
    /// cache knows.
    pub fn resolve(&mut self, now: Instant, view: &impl Local, id: RequestId, question: Question) {
        match own(view, question) {
            Some(outcome) => self.answers.push_back(Event::Answered { id, outcome }),
            None => self.client.handle_input(now, client::Input::Resolve { id, question }),
        }
    }

    /// Something happened to the client's sockets, routes or datagrams.
    pub fn handle_input(&mut self, now: Instant, input: client::Input<'_>) {
        self.client.handle_input(now, input);
    }

    /// May be called at any time; early calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.client.handle_timeout(now);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.client.poll_timeout()
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.client.poll_transmit()
    }

    /// The next question whose route the kernel is to be asked for.
    pub fn poll_route(&mut self) -> Option<Question> {
        self.client.poll_route()
    }

    /// The next fact for the outside.
    pub fn poll_event(&mut self) -> Option<Event> {
        if let Some(answer) = self.answers.pop_front() {
            return Some(answer);
        }
        Some(match self.client.poll_event()? {
            client::Event::Answered { id, outcome } => {
                Event::Answered { id, outcome: outcome.into() }
            }
            client::Event::OpenSocket { socket } => Event::OpenSocket { socket },
            client::Event::CloseSocket { socket } => Event::CloseSocket { socket },
        })
    }

    /// What peers are asked through.
    pub fn client(&self) -> &Client<R> {
        &self.client
    }

    /// What peers are asked through.
    pub fn client_mut(&mut self) -> &mut Client<R> {
        &mut self.client
    }
}

impl From<client::Outcome> for Outcome {
    fn from(outcome: client::Outcome) -> Self {
        match outcome {
            client::Outcome::Found { gid, source, .. } => {
                let source = match source {
                    client::Source::Cache => Source::Cache,
                    client::Source::Peer => Source::Peer,
                };
                Self::Found { gid, source }
            }
            client::Outcome::NotFound => Self::NotFound,
            client::Outcome::TimedOut => Self::TimedOut,
            client::Outcome::Unreachable => Self::Unreachable,
            client::Outcome::Overloaded => Self::Overloaded,
        }
    }
}

/// What we know of our own addresses; `None` if the question is not about one.
fn own(view: &impl Local, question: Question) -> Option<Outcome> {
    let target = question.target();
    // Without an interface a link-local address could be anybody's.
    let ingress = match question.egress() {
        Some(egress) => egress,
        None if is_scoped(target) => return None,
        None => ANY_INTERFACE,
    };
    match view.gid_of(target, ingress) {
        Some(gid) => Some(Outcome::Found { gid, source: Source::Local }),
        None if !is_scoped(target) && view.is_ours(target) => Some(Outcome::NotFound),
        None => None,
    }
}

/// An unscoped address has the same GID whichever interface a question about it comes by.
const ANY_INTERFACE: IfIndex = match IfIndex::new(1) {
    Some(loopback) => loopback,
    None => unreachable!(),
};

fn is_scoped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha12Rng;
    use rand_core::SeedableRng;

    use super::*;

    struct View;

    impl Local for View {
        fn gid_of(&self, address: IpAddr, ingress: IfIndex) -> Option<Gid> {
            let scoped = is_scoped(address) && ingress.get() == 4;
            (scoped || address == ip("10.1.0.1")).then(|| gid("fe80::1"))
        }

        fn is_ours(&self, address: IpAddr) -> bool {
            address == ip("10.1.0.1") || address == ip("192.0.2.1")
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn gid(text: &str) -> Gid {
        text.parse().unwrap()
    }

    fn first_event(target: &str, egress: Option<u32>) -> Option<Event> {
        let rng = ChaCha12Rng::seed_from_u64(1);
        let mut resolver = Resolver::new(Client::new(client::Config::default(), rng));
        let question = Question::new(ip(target), egress.and_then(IfIndex::new)).unwrap();
        resolver.resolve(Instant::BOOT, &View, RequestId(7), question);
        assert_eq!(resolver.poll_transmit(), None);
        resolver.poll_event()
    }

    #[test]
    fn an_address_of_ours_is_answered_without_the_network() {
        let found = Outcome::Found { gid: gid("fe80::1"), source: Source::Local };
        let answered = |outcome| Some(Event::Answered { id: RequestId(7), outcome });
        assert_eq!(first_event("10.1.0.1", None), answered(found));
        assert_eq!(first_event("10.1.0.1", Some(9)), answered(found));
        assert_eq!(first_event("192.0.2.1", None), answered(Outcome::NotFound));
        assert_eq!(first_event("fe80::5", Some(4)), answered(found));
    }

    #[test]
    fn any_other_address_is_asked_for() {
        for (target, egress) in [("10.2.0.5", None), ("fe80::5", Some(5)), ("fe80::5", None)] {
            let event = first_event(target, egress);
            assert!(!matches!(event, Some(Event::Answered { .. })), "{target}: {event:?}");
        }
    }
}
