// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The BPF responder: loads the programs, attaches them and writes their maps, as the node says. It
//! does not decide what is answered.
//!
//! Maps and links are pinned and outlive the daemon, even if it crashes: the programs answer until
//! the lease ends, and the next daemon takes both over.

mod directory;
mod error;
mod handover;
mod hooks;
mod interfaces;
mod learned;
mod left;
mod map;
mod maps;
mod names;
mod netlink;
mod own;
mod packets;
mod pins;
mod plain;
mod programs;
mod tc;
mod workbench;
mod xdp;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc as sync;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::map::{Program, Reason, ResponderCfg};
use ibarr_proto::counters::Counters;
use ibarr_proto::ip2gid::Question;
use ibarr_proto::ip2gid::client::{Cached, Learned};
use ibarr_proto::responder::{
    BY_DECISION, Event, Fault, Held, Input, MapUpdate, Output, Responder as Rules, Work,
};
use ibarr_proto::retry::Repair;
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

pub(crate) use ibarr_proto::responder::{Counter, Hook, Mode, Settings, State};

pub(crate) use self::error::Error;
pub(crate) use self::learned::{Element, PART, Part};
pub(crate) use self::left::{Detached, Left, detach, read};
pub(crate) use self::packets::{Packets, Seen};
pub(crate) use self::workbench::{Longevity, Options, Progress};

use self::handover::Handover;
use self::maps::Maps;
use self::workbench::{Order, Told};
use crate::causes::chain;
use crate::logging::ids;

/// The default directory of the pins.
pub(crate) const BPF_DIR: &str = "/sys/fs/bpf/ibarr";

/// Runs the programs, see the [module](self). If the kernel cannot run them, it reports why and
/// does nothing.
///
/// The engine's thread writes the maps; a second thread does what may take long.
pub(crate) struct Responder {
    options: Options,
    settings: Settings,
    orders: sync::SyncSender<Order>,
    /// The thread is executing an order, and accepts no other.
    is_busy: bool,
    /// Sockets that have yet to be guarded.
    unguarded: Vec<OwnedFd>,
    /// Programs that have yet to be attached or detached.
    work: Option<Work>,
    state: Programs,
    /// Set while the maps can be written.
    open: Option<Open>,
    /// Why the last load failed, so that it is logged once.
    failure: Option<Fault>,
    /// The programs were loaded once, so it is not the configuration if the pins cannot be used.
    has_loaded: bool,
    repair: Repair,
    longevity: Longevity,
    /// How many loads were tried, and how often other variants of the programs were wanted.
    loaded: u32,
    reporting: Reporting,
    /// Counters of earlier maps, and of loading.
    counters: Counters<Counter>,
    /// What our guard has dropped, except by the current maps.
    dropped_before: u64,
}

/// Whether programs report their packets.
#[derive(Default)]
struct Reporting {
    /// A trace wants it.
    is_wanted: bool,
    /// The last order to the thread.
    is_ordered: bool,
    /// Programs that report may be attached.
    may_be_attached: bool,
    /// Why they cannot. It is not tried again until the next trace.
    failure: Option<Fault>,
}

enum Programs {
    /// The thread has to load the programs, or other ones.
    Wanted,
    Loading,
    Loaded,
    /// There is no responder, for this reason. If another daemon has the pins, the programs are
    /// loaded again at the given time.
    Absent(String, Option<Instant>),
}

struct Open {
    maps: Maps,
    handover: Handover,
    /// What the guards of earlier daemons had dropped when the maps were opened.
    dropped_by_others: u64,
}

/// How long to wait before asking again for pins that another daemon has.
const RETRY: Duration = Duration::from_secs(1);

const LOADING: &str = "the programs are being loaded";

impl Responder {
    /// Starts to load the programs, if `settings` want any.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(
        options: Options,
        settings: Settings,
    ) -> io::Result<(Self, mpsc::Receiver<Progress>, mpsc::Receiver<Packets>)> {
        let (sender, packets) = mpsc::channel(packets::BATCHES);
        let (orders, progress) = workbench::start(sender)?;
        let mut responder = Self {
            options,
            settings,
            orders,
            is_busy: false,
            unguarded: Vec::new(),
            work: None,
            state: Programs::Wanted,
            open: None,
            failure: None,
            has_loaded: false,
            repair: Repair::default(),
            longevity: Longevity::Lease,
            loaded: 0,
            reporting: Reporting::default(),
            counters: Counters::default(),
            dropped_before: 0,
        };
        responder.go_on();
        Ok((responder, progress, packets))
    }

    /// Handles a message of the thread. Returns what the node has to know of it.
    pub(crate) fn handle_progress(
        &mut self,
        now: Instant,
        Progress(told): Progress,
    ) -> Option<Input> {
        self.is_busy = matches!(told, Told::Maps(..));
        let is_loading = matches!(self.state, Programs::Loading);
        match told {
            Told::Maps(maps, inherited) if is_loading => {
                let dropped_by_others = dropped_by_guard(&maps);
                let handover = Handover::new(inherited.mirror, inherited.elements);
                self.open = Some(Open { maps: *maps, handover, dropped_by_others });
                return Some(Input::Opened);
            }
            // The settings have changed meanwhile.
            Told::Maps(..) => {}
            Told::Opened(opened) => {
                self.loaded += 1;
                match opened {
                    Ok(longevity) => {
                        self.note_longevity(longevity);
                        self.failure = None;
                        self.has_loaded = true;
                        if is_loading {
                            self.state = Programs::Loaded;
                        }
                    }
                    Err(error) => return Some(self.not_loaded(now, error)),
                }
            }
            Told::Closed(closed) => {
                self.loaded += 1;
                warn_of(closed);
            }
            Told::Arranged(done) => {
                self.reporting.may_be_attached &= self.reporting.is_ordered;
                return Some(Input::Arranged(done));
            }
            Told::Lost(error) => {
                self.loaded += 1;
                self.counters.count(Counter::Lost);
                return Some(self.not_loaded(now, error));
            }
            Told::Guarded(guarded) => warn_of(guarded),
            Told::Reporting(changed) => {
                if let Err(error) = changed {
                    warn!("the programs report no packets: {}", chain(&error));
                    self.reporting.failure = Some(Fault::from(error));
                }
                // The guards change with the programs.
                self.loaded += 1;
                return Some(Input::Look);
            }
            Told::Read(read) => {
                if let Some(open) = &mut self.open {
                    open.handover.handle_read(now, read);
                }
            }
        }
        None
    }

    /// Carries out an output of the node. Returns its result, if that is known at once.
    pub(crate) fn carry_out(&mut self, output: Output) -> Option<Input> {
        match output {
            Output::Map(update) => {
                let open = self.open.as_mut();
                let done = open.map_or(Ok(()), |open| Ok(open.maps.write(&update)?));
                Some(Input::MapDone(done))
            }
            Output::Keys => {
                let open = self.open.as_ref();
                let keys = open.map_or(Ok(Held::default()), |open| Ok(open.maps.keys()?));
                Some(Input::Keys(keys))
            }
            Output::Program(work) => {
                self.work = Some(work);
                None
            }
            Output::Event(event) => {
                log(&event);
                None
            }
        }
    }

    /// Early calls do nothing.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if let Programs::Absent(_, Some(retry_at)) = self.state
            && retry_at <= now
        {
            self.state = Programs::Wanted;
        }
        if let Some(open) = &mut self.open {
            open.handover.handle_timeout(now);
        }
    }

    /// The next step that hands the cache on to the next daemon; one part a turn.
    pub(crate) fn next_part(&mut self) -> Option<Part> {
        self.open.as_mut()?.handover.next_part()
    }

    /// Makes an element of the map of peers' answers equal to the cache.
    pub(crate) fn compare(&mut self, now: Instant, element: &Element, cached: Option<Cached>) {
        if let Some(open) = &mut self.open {
            open.handover.compare(now, element, cached);
        }
    }

    /// Adds the next entries of the cache to the map of peers' answers.
    pub(crate) fn add(&mut self, now: Instant, entries: &[(Question, Cached)]) {
        if let Some(open) = &mut self.open {
            open.handover.add(now, entries);
        }
    }

    /// Handles a change of the cache.
    pub(crate) fn learn(&mut self, now: Instant, change: &Learned) {
        if let Some(open) = &mut self.open {
            open.handover.learn(now, change);
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next. While there is a [`next_part`](Self::next_part), the time is now.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let retry_at = match self.state {
            Programs::Absent(_, retry_at) => retry_at,
            Programs::Wanted | Programs::Loading | Programs::Loaded => None,
        };
        let handover = self.open.as_ref().and_then(|open| open.handover.poll_timeout());
        handover.into_iter().chain(retry_at).min()
    }

    /// Sends the thread its next order, if it is idle. Call it last in a turn.
    pub(crate) fn go_on(&mut self) {
        if self.is_busy {
            return;
        }
        let order = if let Programs::Wanted = self.state {
            self.unguarded.clear();
            self.reporting.is_ordered = false;
            self.reporting.may_be_attached = false;
            if self.settings.want_kernel() {
                self.state = Programs::Loading;
                Order::Open(self.options.clone())
            } else {
                self.state = Programs::Absent(BY_DECISION.to_owned(), None);
                Order::Close(self.options.dir.clone())
            }
        } else if let Some(socket) = self.unguarded.pop() {
            Order::Guard(socket)
        } else if let (Programs::Loaded, true) =
            (&self.state, self.reporting.is_ordered != self.reporting.wants())
        {
            self.reporting.is_ordered = self.reporting.wants();
            self.reporting.may_be_attached |= self.reporting.is_ordered;
            Order::Report(self.reporting.is_ordered)
        } else if let Some(work) = self.work.take() {
            Order::Arrange(work)
        } else if self.open.as_mut().is_some_and(|open| open.handover.take_read()) {
            Order::Read
        } else {
            return;
        };
        self.is_busy = true;
        // This fails only if the thread is gone, which ends the process, too.
        let _ = self.orders.try_send(order);
    }

    /// Whether all decisions have taken effect, or have failed.
    pub(crate) fn is_settled(&self, rules: &Rules) -> bool {
        let is_to_do = matches!(self.state, Programs::Wanted)
            || !self.unguarded.is_empty()
            || self.work.is_some()
            || rules.wants_work()
            || self.open.as_ref().is_some_and(|open| open.handover.inherits());
        !(self.is_busy || is_to_do)
    }

    /// Takes new settings of the administrator. Returns what the node has to know of it.
    pub(crate) fn reconfigure(&mut self, settings: Settings) -> Option<Input> {
        self.settings = settings;
        if self.open.is_some() && self.settings.want_kernel() {
            return None;
        }
        self.state = Programs::Wanted;
        Some(self.close())
    }

    /// Changes when each socket of the port has to be [guarded](Self::guard) again.
    pub(crate) fn generation(&self) -> u32 {
        self.loaded
    }

    /// Attaches the guard, so that the kernel drops what a socket of the ip2gid port would drop,
    /// without waking the daemon; or detaches it.
    pub(crate) fn guard(&mut self, socket: BorrowedFd<'_>) {
        match socket.try_clone_to_owned() {
            Ok(socket) => self.unguarded.push(socket),
            Err(error) => warn_of(Err(Error::Guard(error.into()))),
        }
    }

    /// Why the programs answer nothing at all.
    pub(crate) fn why_not<'a>(&'a self, rules: &'a Rules) -> Option<&'a str> {
        match &self.state {
            Programs::Loaded => rules.fault(),
            Programs::Wanted | Programs::Loading => {
                Some(self.failure.as_ref().map_or(LOADING, |failure| &failure.0))
            }
            Programs::Absent(reason, _) => Some(reason),
        }
    }

    /// Says whether the programs are to report their packets.
    pub(crate) fn report_packets(&mut self, on: bool) {
        if self.reporting.is_wanted != on {
            self.reporting.is_wanted = on;
            self.reporting.failure = None;
        }
    }

    /// Whether programs that report packets may be attached.
    pub(crate) fn is_reporting(&self) -> bool {
        self.reporting.may_be_attached
    }

    /// Whether all programs report their packets, or why they do not; `None` until this is known.
    pub(crate) fn reporting(&self, rules: &Rules) -> Option<Result<(), String>> {
        if let Programs::Absent(reason, _) = &self.state {
            return Some(Err(reason.clone()));
        }
        if let Some(failure) = &self.reporting.failure {
            return Some(Err(failure.0.clone()));
        }
        (self.reporting.is_ordered && self.is_settled(rules)).then_some(Ok(()))
    }

    /// How long programs continue to answer without the daemon.
    pub(crate) fn longevity(&self) -> Longevity {
        self.longevity
    }

    fn note_longevity(&mut self, longevity: Longevity) {
        if longevity == Longevity::Namespace && self.longevity != longevity {
            warn!(
                "{}: only this mount namespace has the bpffs mounted: what answers in the kernel ends \
                 with the last process in it",
                self.options.dir.display()
            );
        }
        self.longevity = longevity;
    }

    /// Counters of this daemon's responder.
    pub(crate) fn counters(&self, rules: &Rules) -> Counters<Counter> {
        let mut counters = self.counters.clone();
        rules.counters().iter().for_each(|(counter, count)| counters.add(counter, count));
        let mirror_faults = self.open.as_ref().map_or(0, |open| open.handover.faults);
        counters.add(Counter::MirrorFaults, mirror_faults);
        counters
    }

    /// Counters of the programs since the maps were made, by names such as `tc.answered`.
    pub(crate) fn counts(&self) -> Vec<(String, u64)> {
        let Some(open) = &self.open else { return Vec::new() };
        let counts = open.maps.counts().unwrap_or_else(|error| {
            warn_of(Err(error.into()));
            Vec::new()
        });
        let named = |(program, reason, count)| (counter_name(program, reason), count);
        counts.into_iter().map(named).collect()
    }

    /// What our guard has dropped; the guarded sockets count it, too.
    pub(crate) fn dropped_by_guard(&self) -> u64 {
        let now = self
            .open
            .as_ref()
            .map_or(0, |open| dropped_by_guard(&open.maps).saturating_sub(open.dropped_by_others));
        self.dropped_before + now
    }

    fn not_loaded(&mut self, now: Instant, error: Error) -> Input {
        let closed = self.close();
        let retry_at = match error {
            Error::Pins(pins::Error::Taken(_)) => Some(now + RETRY),
            Error::Pins(_) if self.has_loaded => Some(self.repair.schedule(now)),
            _ => None,
        };
        let fault = Fault::from(error);
        if self.failure.as_ref() != Some(&fault) {
            self.counters.count(Counter::NotLoaded);
            answers_in_user_space(&fault);
            self.failure = Some(fault.clone());
        }
        // Unless the settings have changed meanwhile.
        if !matches!(self.state, Programs::Wanted) {
            self.state = Programs::Absent(fault.0, retry_at);
        }
        closed
    }

    fn close(&mut self) -> Input {
        self.dropped_before = self.dropped_by_guard();
        self.work = None;
        if let Some(open) = self.open.take() {
            self.counters.add(Counter::MirrorFaults, open.handover.faults);
            end_lease(open.maps);
        }
        Input::Closed
    }
}

impl Reporting {
    fn wants(&self) -> bool {
        self.is_wanted && self.failure.is_none()
    }
}

fn log(event: &Event) {
    match event {
        Event::Revoked(fault) => answers_in_user_space(fault),
        Event::Detaches(fault) => warn!("detaching all: {fault}"),
        Event::Withheld => debug!("no lease: the last dump of addresses is too old"),
        Event::Lost(interface) => warn!(
            message_id = ids::PROGRAM_REMOVED,
            %interface,
            "the program is not attached any more: another process has removed it"
        ),
        Event::Attached(interface, hook) => info!(
            message_id = ids::KERNEL_ANSWERS,
            %interface,
            %hook,
            "peers are answered in the kernel"
        ),
        Event::NotAttached(interface, reason) => warn!(
            message_id = ids::USER_ANSWERS,
            cause = reason,
            %interface,
            "the daemon answers peers in user space: {reason}"
        ),
        Event::NotSettled(fault) => warn!("{fault}"),
    }
}

fn answers_in_user_space(fault: &Fault) {
    warn!(
        message_id = ids::USER_ANSWERS,
        cause = fault.0,
        "the daemon answers peers in user space: {fault}"
    );
}

/// Since the maps were made, as far as it can be read.
fn dropped_by_guard(maps: &Maps) -> u64 {
    let counts = maps.counts().unwrap_or_default();
    let dropped =
        |&(program, reason, _): &_| program == Program::Guard && reason != Reason::Answered;
    counts.into_iter().filter(dropped).map(|(.., count)| count).sum()
}

/// The name of a counter of the programs, like `tc.lease-over`.
pub(crate) fn counter_name(program: Program, reason: Reason) -> String {
    format!("{program}.{}", reason.name().replace('_', "-"))
}

/// Makes the programs answer nothing more.
fn end_lease(mut maps: Maps) {
    if let Err(error) = maps.write(&MapUpdate::Cfg(ResponderCfg::default())) {
        debug!("the lease is not taken back: {}", chain(&error));
    }
}

fn warn_of(result: Result<(), Error>) {
    if let Err(error) = result {
        warn!("{}", chain(&error));
    }
}
