// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Carries out a [`Survey`]: sockets, clock, the kernel's routes, and progress on standard error.

use std::io::{self, IsTerminal as _, Write as _};
use std::pin::pin;
use std::time::{Duration, Instant};

use getrandom::SysRng;
use ibarr_common::IfIndex;
use ibarr_common::wire::ip2gid::MAX_LEN;
use ibarr_proto::ip2gid::client::survey::{Finding, Input, Settings, Survey, Transmit};
use ibarr_proto::ip2gid::client::{Candidate, Route};
use ibarr_proto::ip2gid::{Family, Question};
use ibarr_proto::request::Status;
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng as _;
use tokio::time::sleep;

use crate::cli::{ask, ping, print};
use crate::control::messages::{Failure, FailureKind, Target};
use crate::sys::udp::{Source, UdpSocket};
use crate::sys::{clock, udp_errors, udp_options};
use crate::transport::rtnetlink::{self, NoRoute};

pub(super) struct Asked {
    /// One for each node, in their order.
    pub(super) findings: Vec<Finding>,
    /// Whether each had all its time: no signal has ended it.
    pub(super) is_whole: bool,
}

/// Asks each of `targets` until it has answered or has had all its tries, or a signal ends it.
pub(super) fn ask(settings: Settings, targets: &[Target]) -> Result<Asked, Failure> {
    let routes = routes(targets);
    let peers: Vec<_> = routes.iter().flatten().copied().collect();
    let (found, is_whole) = ask::block_on(survey(settings, peers))?;
    let mut found = found.into_iter();
    let finding = |route: &Option<_>| match route {
        Some(_) => found.next().unwrap_or_else(|| nothing(Status::TimedOut)),
        None => nothing(Status::Unreachable),
    };
    Ok(Asked { findings: routes.iter().map(finding).collect(), is_whole })
}

fn nothing(status: Status) -> Finding {
    Finding { status, gid: None, also: None, speaks: None, queries: 0, round_trips: Vec::new() }
}

/// The way to each node; `None` if the kernel has none.
fn routes(targets: &[Target]) -> Vec<Option<(Question, Route)>> {
    let questions: Vec<_> =
        targets.iter().map(|Target { ip, scope }| Question::new(*ip, *scope)).collect();
    let candidates = questions.iter().flatten().copied().map(Candidate::from);
    let mut found = rtnetlink::routes_of(candidates).into_iter();
    let routes = questions.into_iter().map(|question| {
        let question = question?;
        match found.next()? {
            Ok(route) => Some((question, route)),
            // The daemon of this node answers its own queries.
            Err(NoRoute::Local) => {
                Some((question, Route { ifindex: LOOPBACK, next_hop: question.target() }))
            }
            Err(_) => None,
        }
    });
    routes.collect()
}

/// The interface `lo` (`LOOPBACK_IFINDEX` of include/net/flow.h).
const LOOPBACK: IfIndex = IfIndex::MIN;

async fn survey(
    settings: Settings,
    peers: Vec<(Question, Route)>,
) -> Result<(Vec<Finding>, bool), Failure> {
    let failed = |error: io::Error| Failure {
        kind: FailureKind::Internal,
        message: format!("no socket to ask by: {error}"),
    };
    let rng =
        ChaCha12Rng::try_from_rng(&mut SysRng).map_err(|error| failed(io::Error::other(error)))?;
    let mut sockets = Sockets::default();
    for (question, _) in &peers {
        sockets.open(question.family()).map_err(failed)?;
    }
    let mut survey = Survey::new(settings, clock::now(), peers, rng);
    let mut progress = Progress::new("nodes are done");
    let mut interrupted = pin!(ping::interrupted());
    let is_whole = loop {
        survey.handle_timeout(clock::now());
        while let Some(query) = survey.poll_query(clock::now()) {
            if sockets.send(&query).is_err() {
                survey.handle_input(clock::now(), Input::NotSent { query: query.payload.as_ref() });
            }
        }
        let Some(due) = survey.poll_timeout() else { break true };
        progress.show(survey.progress());
        tokio::select! {
            () = &mut interrupted => break false,
            () = sleep(due.since(clock::now()).min(TOLD_EVERY)) => {}
            () = sockets.heard() => {}
        }
        sockets.read(&mut survey);
    };
    progress.end();
    Ok((survey.into_findings(), is_whole))
}

/// A socket for each version of IP that is needed.
#[derive(Default)]
struct Sockets {
    v4: Option<UdpSocket>,
    v6: Option<UdpSocket>,
}

/// Room for the replies of half a second.
const HOLD: usize = 2000 * udp_options::TRUESIZE;

/// The most datagrams, and the most ICMP errors, that a turn reads from a socket.
const READS: usize = 64;

impl Sockets {
    fn open(&mut self, family: Family) -> io::Result<()> {
        let socket = match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        };
        if socket.is_none() {
            let udp = UdpSocket::bind_in(None, family, 0)?;
            // A smaller buffer loses more replies, which are asked for again.
            let _ = udp_options::widen(&udp, HOLD);
            udp_errors::enable(&udp, family)?;
            *socket = Some(udp);
        }
        Ok(())
    }

    fn send(&self, query: &Transmit) -> io::Result<()> {
        let socket = match Family::of(query.to.ip()) {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        };
        let socket = socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let source = Source { address: None, egress: query.egress };
        socket.try_send(query.payload.as_ref(), query.to, source)
    }

    async fn heard(&self) {
        let heard = async |socket: &Option<UdpSocket>| match socket {
            // An error is read, too.
            Some(socket) => drop(socket.heard().await),
            None => std::future::pending().await,
        };
        tokio::select! {
            () = heard(&self.v4) => {}
            () = heard(&self.v6) => {}
        }
    }

    fn read(&self, survey: &mut Survey) {
        let mut buffer = [0; MAX_LEN + 1];
        for socket in self.v4.iter().chain(&self.v6) {
            for _ in 0..READS {
                let Ok(error) = socket.take_error(&mut buffer) else { break };
                if let (true, Some(to)) = (error.is_port_unreachable, error.to) {
                    let quoted = buffer.get(..error.len).unwrap_or(&buffer);
                    survey.handle_input(clock::now(), Input::Refused { to, quoted });
                }
            }
            for _ in 0..READS {
                let Ok(received) = socket.try_recv(&mut buffer) else { break };
                let payload = buffer.get(..received.len).unwrap_or(&buffer);
                survey.handle_input(clock::now(), Input::Datagram { from: received.from, payload });
            }
        }
    }
}

/// Says on standard error how far it is: on one line of a terminal, or now and then in a file.
pub(super) struct Progress {
    what: &'static str,
    is_terminal: bool,
    next: Instant,
}

/// Between two lines in a file.
const TOLD_EVERY: Duration = Duration::from_secs(5);
/// Between two states of the line of a terminal.
const DRAWN_EVERY: Duration = Duration::from_millis(200);

impl Progress {
    pub(super) fn new(what: &'static str) -> Self {
        let is_terminal = io::stderr().is_terminal();
        let first = if is_terminal { DRAWN_EVERY } else { TOLD_EVERY };
        Self { what, is_terminal, next: Instant::now() + first }
    }

    pub(super) fn show(&mut self, (done, all): (usize, usize)) {
        if Instant::now() < self.next {
            return;
        }
        let text = format!("{done} of {all} {}", self.what);
        if self.is_terminal {
            drop(write!(io::stderr(), "\r{text}\x1b[K"));
            self.next = Instant::now() + DRAWN_EVERY;
        } else {
            print::error_line(&text);
            self.next = Instant::now() + TOLD_EVERY;
        }
    }

    pub(super) fn end(&self) {
        if self.is_terminal {
            drop(write!(io::stderr(), "\r\x1b[K"));
        }
    }
}
