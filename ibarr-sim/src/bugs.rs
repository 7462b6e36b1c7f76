// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A node's cores, and the bugs that can be planted around them. A simulation that does not find
//! these bugs proves nothing.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use ibarr_common::ib::Lid;
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::health::{self, Cause, State};
use ibarr_proto::ip2gid::client::{self, SocketEvent};
use ibarr_proto::ip2gid::server::{self, Received, Silence, Transmit};
use ibarr_proto::local_service;
use ibarr_proto::local_view::{self, HwAddr};
use ibarr_proto::node::{self, Input, Node, Output, Room};
use ibarr_proto::request::Caller;
use ibarr_proto::responder::{self, MapUpdate};
use ibarr_proto::shares::User;
use ibarr_proto::{acm, paths};
use rand_chacha::ChaCha12Rng;

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Bug {
    /// After one answer in 64 no nudge follows.
    LostWake,
    /// One answer in 64 is sent twice.
    DoubleAnswer,
    /// What a dump says about known links is ignored; only events change them.
    StaleAfterChange,
    /// Sockets are opened and never closed.
    UnboundedTable,
    /// Timers are checked four times a second only.
    MissedDeadline,
    /// A daemon that starts makes no nudge, so the kernel repeats no pending request.
    SilentStart,
    /// Paths are kept a hundred times as long as they should be.
    StalePath,
    /// A port keeps its first LID for ever.
    StaleLid,
    /// One MAD in 16 is sent twice.
    DoubleQuery,
    /// A turn reads all requests of the kernel before it handles the first.
    LateDrain,
    /// One turn in 32,768 executes no outputs.
    ForgottenDrain,
    /// A turn reads as long as the kernel sends requests.
    EndlessRead,
    /// Each request of a user counts as one of a new user, so that no user has a bound or a rate.
    NoShares,
    /// Each fourth change of an address does not reach the map of the programs.
    StaleMap,
    /// A lost address leaves the map of the programs a turn later.
    LateMap,
    /// The programs answer for ever.
    EndlessLease,
    /// No reply to a client of ACM is sent.
    ForgottenReply,
    /// A client of ACM waits a hundred times as long as it should.
    PatientAcm,
    /// The health forgets that an SA answers again.
    ForgottenRecovery,
    /// The health does not see that an SA is silent.
    UnseenSilence,
    /// A query that is sent for the third time counts as refused, so silence yields what is remembered.
    SilentMemory,
    /// Memory answers for five seconds.
    OldMemory,
    /// A daemon that does not know its addresses yet takes a peer's query for one of another node.
    EarlySilence,
}

impl Bug {
    /// All bugs.
    pub const ALL: [Self; 23] = [
        Self::LostWake,
        Self::DoubleAnswer,
        Self::StaleAfterChange,
        Self::UnboundedTable,
        Self::MissedDeadline,
        Self::SilentStart,
        Self::StalePath,
        Self::StaleLid,
        Self::DoubleQuery,
        Self::LateDrain,
        Self::ForgottenDrain,
        Self::EndlessRead,
        Self::NoShares,
        Self::StaleMap,
        Self::LateMap,
        Self::EndlessLease,
        Self::ForgottenReply,
        Self::PatientAcm,
        Self::ForgottenRecovery,
        Self::UnseenSilence,
        Self::SilentMemory,
        Self::OldMemory,
        Self::EarlySilence,
    ];
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LostWake => "lost-wake",
            Self::DoubleAnswer => "double-answer",
            Self::StaleAfterChange => "stale-after-change",
            Self::UnboundedTable => "unbounded-table",
            Self::MissedDeadline => "missed-deadline",
            Self::SilentStart => "silent-start",
            Self::StalePath => "stale-path",
            Self::StaleLid => "stale-lid",
            Self::DoubleQuery => "double-query",
            Self::LateDrain => "late-drain",
            Self::ForgottenDrain => "forgotten-drain",
            Self::EndlessRead => "endless-read",
            Self::NoShares => "no-shares",
            Self::StaleMap => "stale-map",
            Self::LateMap => "late-map",
            Self::EndlessLease => "endless-lease",
            Self::ForgottenReply => "forgotten-reply",
            Self::PatientAcm => "patient-acm",
            Self::ForgottenRecovery => "forgotten-recovery",
            Self::UnseenSilence => "unseen-silence",
            Self::SilentMemory => "silent-memory",
            Self::OldMemory => "old-memory",
            Self::EarlySilence => "early-silence",
        })
    }
}

impl FromStr for Bug {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|bug| bug.to_string() == name);
        found.ok_or_else(|| {
            format!(
                "unknown bug {name:?}: known are {}",
                Self::ALL.map(|bug| bug.to_string()).join(", ")
            )
        })
    }
}

/// The causes of an SA that does not answer.
pub(crate) const SILENCES: [Cause; 2] = [Cause::SaSilent, Cause::SaBusy];

/// A [`Node`] with its planted bug.
pub(crate) struct Core {
    node: Node,
    bug: Option<Bug>,
    answers: u64,
    again: VecDeque<Output>,
    /// Updates of maps, until the next turn.
    late: VecDeque<Output>,
    swallows: bool,
    hwaddrs: BTreeMap<IfIndex, HwAddr>,
    lid: Option<Lid>,
    mads: u64,
    users: u64,
    /// How often each query was sent.
    sends: BTreeMap<Vec<u8>, u32>,
    /// What the health has said last of an SA that does not answer.
    silence: Option<(Cause, String)>,
}

impl Core {
    pub(crate) fn new(
        now: Instant,
        mut config: node::Config,
        rng: ChaCha12Rng,
        bug: Option<Bug>,
    ) -> Self {
        plant(&mut config, bug);
        let mut node = Node::new(config, rng);
        node.handle_input(now, Input::Health(health::Input::Start));
        Self {
            node,
            bug,
            answers: 0,
            again: VecDeque::new(),
            late: VecDeque::new(),
            swallows: bug == Some(Bug::SilentStart),
            hwaddrs: BTreeMap::new(),
            lid: None,
            mads: 0,
            users: 0,
            sends: BTreeMap::new(),
            silence: None,
        }
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    pub(crate) fn handle_input<'a>(&mut self, now: Instant, input: impl Into<Input<'a>>) {
        match input.into() {
            Input::View(input) if self.bug == Some(Bug::StaleAfterChange) => {
                let input = self.as_it_was(input);
                self.node.handle_input(now, Input::View(input));
            }
            Input::Paths(paths::Input::Port { port, name, mut facts })
                if self.bug == Some(Bug::StaleLid) =>
            {
                facts.lid = facts.lid.map(|lid| *self.lid.get_or_insert(lid));
                let input = paths::Input::Port { port, name, facts };
                self.node.handle_input(now, Input::Paths(input));
            }
            Input::Resolve(mut request) if self.bug == Some(Bug::NoShares) => {
                request.request.caller = Caller::Control(self.another_user());
                self.node.handle_input(now, Input::Resolve(request));
            }
            Input::ResolvePath(mut request) if self.bug == Some(Bug::NoShares) => {
                request.caller = Caller::Control(self.another_user());
                self.node.handle_input(now, Input::ResolvePath(request));
            }
            input => self.node.handle_input(now, input),
        }
    }

    fn another_user(&mut self) -> User {
        self.users += 1;
        User(self.users)
    }

    pub(crate) fn reconfigure(&mut self, now: Instant, mut config: node::Config) {
        plant(&mut config, self.bug);
        self.node.reconfigure(now, config);
    }

    pub(crate) fn flush(&mut self) {
        self.node.flush();
    }

    pub(crate) fn answer(&mut self, received: &Received<'_>) -> Result<Transmit, Silence> {
        let answer = self.node.answer(received);
        match &answer {
            Err(Silence::NotYet) if self.bug == Some(Bug::EarlySilence) => {
                return Err(Silence::Counted(server::Counter::DestinationNotOurs));
            }
            Ok(reply) => drop(self.node.handle_sent(reply, 0)),
            Err(_) => {}
        }
        answer
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.again.append(&mut self.late);
        self.node.handle_timeout(now);
    }

    pub(crate) fn poll_timeout(&mut self) -> Option<Instant> {
        let at = self.node.poll_timeout()?;
        if self.bug != Some(Bug::MissedDeadline) {
            return Some(at);
        }
        Some(Instant::from_nanos(at.as_nanos().next_multiple_of(250_000_000)))
    }

    pub(crate) fn poll(&mut self, now: Instant, room: Room) -> Option<Output> {
        if room.local_service
            && let Some(again) = self.again.pop_front()
        {
            return Some(again);
        }
        loop {
            let output = self.node.poll(room)?;
            match (self.bug, &output) {
                (Some(bug), Output::LocalService(local_service::Transmit::Message(message)))
                    if is_answer(message.as_ref()) =>
                {
                    self.answers += 1;
                    let is_64th = self.answers.is_multiple_of(64);
                    self.swallows = bug == Bug::LostWake && is_64th;
                    if bug == Bug::DoubleAnswer && is_64th {
                        self.again.push_back(output.clone());
                    }
                }
                (Some(_), Output::LocalService(local_service::Transmit::Nudge(_)))
                    if self.swallows =>
                {
                    let done = local_service::Input::Nudged(local_service::Nudged::Done);
                    self.node.handle_input(now, Input::LocalService(done));
                    continue;
                }
                (
                    Some(Bug::UnboundedTable),
                    Output::Client(client::Output::Socket(SocketEvent::Close(_))),
                )
                | (Some(Bug::ForgottenReply), Output::Acm(acm::Output::Reply(_))) => continue,
                (
                    Some(Bug::LateMap),
                    Output::Responder(responder::Output::Map(MapUpdate::NoAddress(_))),
                ) => {
                    self.late.push_back(output);
                    self.node.handle_input(now, responder::Input::MapDone(Ok(())));
                    continue;
                }
                (Some(Bug::DoubleQuery), Output::Sa(_)) => {
                    self.mads += 1;
                    if self.mads.is_multiple_of(16) {
                        self.again.push_back(output.clone());
                    }
                }
                (Some(Bug::SilentMemory), Output::Client(client::Output::Query(transmit))) => {
                    let &client::Transmit { socket, to, ref payload, .. } = transmit;
                    let sends = self.sends.entry(payload.as_ref().to_vec()).or_default();
                    *sends += 1;
                    if *sends == 3 {
                        let refused =
                            client::Input::Refused { socket, to, quoted: payload.as_ref() };
                        self.node.handle_input(now, Input::Client(refused));
                    }
                }
                _ => {}
            }
            return Some(output);
        }
    }

    pub(crate) fn assess(&mut self, now: Instant) -> Vec<health::Event> {
        self.node.assess(now);
        let silence = self.told().find(|(cause, _)| SILENCES.contains(cause));
        self.silence = silence;
        std::iter::from_fn(|| self.node.poll_health()).collect()
    }

    /// The reasons that make a subsystem worse than ok.
    pub(crate) fn told(&self) -> impl Iterator<Item = (Cause, String)> {
        let reasons = self.node.health().report().flat_map(|report| report.reasons);
        let bad = reasons.filter(|(_, reason)| reason.state > State::Ok);
        let told = bad.map(|(cause, reason)| (cause, reason.why.clone()));
        let is_unseen = self.bug == Some(Bug::UnseenSilence);
        let seen = told.filter(move |(cause, _)| !is_unseen || !SILENCES.contains(cause));
        seen.chain(self.silence.clone().filter(|_| self.bug == Some(Bug::ForgottenRecovery)))
    }

    /// Replaces the hardware address in a dump by the one of the last event.
    fn as_it_was(&mut self, input: local_view::Input) -> local_view::Input {
        match input {
            local_view::Input::ListedLink(mut link) => {
                link.hwaddr = *self.hwaddrs.entry(link.ifindex).or_insert(link.hwaddr);
                local_view::Input::ListedLink(link)
            }
            local_view::Input::Link(link) => {
                self.hwaddrs.insert(link.ifindex, link.hwaddr);
                input
            }
            other => other,
        }
    }
}

fn plant(config: &mut node::Config, bug: Option<Bug>) {
    match bug {
        Some(Bug::StalePath) => config.paths.ttl *= 100,
        Some(Bug::PatientAcm) => config.acm.patience *= 100,
        Some(Bug::OldMemory) => {
            let mut settings = config.client.settings().clone();
            settings.fresh_for = Duration::from_secs(5);
            config.client = client::Config::new(settings).unwrap_or_default();
        }
        _ => {}
    }
}

/// Whether `bytes` answer an address request.
fn is_answer(bytes: &[u8]) -> bool {
    bytes.len() == 36
}
