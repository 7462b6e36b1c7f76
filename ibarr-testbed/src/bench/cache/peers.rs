// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The client's cache, filled by queries and replies as from the network.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroUsize;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::Query;
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::ip2gid::Question;
use ibarr_proto::ip2gid::client::{
    Client, Config, Event, Input, Output, Request, RequestId, Route, Settings, SocketEvent,
};
use ibarr_proto::request::{Caller, Freshness, UserRequest};
use rand_chacha::ChaCha12Rng;

use super::Memory;

/// A client that remembers many answers.
pub(super) struct Peers(Client);

impl Memory for Peers {
    type Question = Question;

    /// Addresses as in a cluster: all of a /15 before the next.
    fn question(number: u32) -> Result<Question> {
        let target = Ipv4Addr::from_bits(Ipv4Addr::new(10, 4, 0, 1).to_bits() + number);
        Question::new(target.into(), None).context("a target that no node can have")
    }

    fn filled(questions: &[Question], rng: ChaCha12Rng) -> Result<Self> {
        let room = NonZeroUsize::new(questions.len()).context("no entries")?;
        let settings = Settings {
            max_cached: room,
            cache_ttl: Duration::from_hours(24),
            ..Settings::default()
        };
        let mut client = Client::new(Config::new(settings)?, rng);
        for &question in questions {
            answer(&mut client, question)?;
        }
        Ok(Self(client))
    }

    fn len(&self) -> usize {
        self.0.entries().count()
    }

    fn knows(&mut self, question: Question) -> bool {
        let request = request(question, LATER);
        self.0.handle_input(LATER, Input::Recall(request));
        matches!(self.0.poll_event(), Some(Event::Answered { .. }))
    }
}

fn request(question: Question, asked_at: Instant) -> Request {
    let (id, deadline) =
        (RequestId::User(UserRequest::Control(0)), asked_at + Duration::from_secs(3));
    let (caller, freshness) = (Caller::Kernel, Freshness::Any);
    Request { id, caller, question, asked_at, deadline, freshness }
}

/// Makes `client` ask `question`, and gives it the peer's answer.
fn answer(client: &mut Client, question: Question) -> Result<()> {
    client.handle_input(START, Input::Resolve(request(question, START)));
    let gateway = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 254));
    let ifindex = IfIndex::new(4).context("4 is not 0")?;
    let mut is_answered = false;
    loop {
        is_answered |= client.poll_event().is_some();
        let query = match client.poll_transmit() {
            Some(Output::Socket(SocketEvent::Open(socket))) => {
                client.handle_input(START, Input::SocketOpened { socket });
                continue;
            }
            Some(Output::Route(candidate)) => {
                let route = Some(Route { ifindex, next_hop: gateway });
                client.handle_input(START, Input::Route { candidate, route });
                continue;
            }
            Some(Output::Neighbour(..) | Output::Socket(SocketEvent::Close(_))) => continue,
            Some(Output::Query(query)) => query,
            None => break,
        };
        let gid = Gid::new([0xfe; 16]).context("a legal GID")?;
        let reply = Query::parse(query.payload.as_ref())?.reply(Some(gid)).emit();
        let payload = reply.as_ref();
        let input =
            Input::Datagram { socket: query.socket, from: query.to, ingress: ifindex, payload };
        client.handle_input(START, input);
    }
    ensure!(is_answered, "{question} is not answered");
    Ok(())
}

const START: Instant = Instant::from_nanos(1_000_000_000);
/// While no answer is asked for again.
const LATER: Instant = Instant::from_nanos(1_400_000_000);
