// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The BPF responder: loads the programs, attaches them and writes their maps, as the node says. It
//! does not decide what is answered.
//!
//! Maps and links are pinned and outlive the daemon, even if it crashes: the programs answer until
//! the lease ends, and the next daemon takes both over.

mod directory;
mod error;
mod hooks;
mod interfaces;
mod learned;
mod left;
mod loader;
mod map;
mod maps;
mod names;
mod own;
mod packets;
mod pins;
mod plain;
mod programs;
mod rights;
mod tc;
mod xdp;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc as sync;

use ibarr_common::Instant;
use ibarr_common::map::{Program, Reason, ResponderCfg};
use ibarr_proto::ip2gid::client::mirror;
use ibarr_proto::node::Node;
use ibarr_proto::responder::{Event, Input, MapElements, MapUpdate, Output};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

pub(crate) use ibarr_proto::responder::{Blocked, Counter, Hook, Mode, Settings, State};

pub(crate) use self::error::Error;
pub(crate) use self::left::{Detached, PinnedMaps, detach, read};
pub(crate) use self::loader::{Options, Progress};
#[cfg(test)]
pub(crate) use self::names::prefix as pin_prefix;
pub(crate) use self::packets::{HandledPacket, Packets};
pub(crate) use self::rights::charges_maps;

use self::learned::Mirror;
use self::loader::{Inherited, Report, Task};
use self::maps::Maps;
use crate::causes::Fault;
use crate::logging::ids;

/// The default directory of the pins.
pub(crate) const BPF_DIR: &str = "/sys/fs/bpf/ibarr";

/// Executes the orders of the node, see the [module](self).
///
/// The engine's thread writes the maps; a second thread does what may take long.
pub(crate) struct Responder {
    /// Holds one order, one read and, for each load, one guard of each socket at most.
    tasks: sync::Sender<Task>,
    /// Guards that the thread has yet to attach.
    pending: usize,
    /// Set while the maps can be written.
    open: Option<Open>,
    /// What our guard has dropped, except by the current maps.
    dropped_before: u64,
}

struct Open {
    maps: Maps,
    mirror: Mirror,
    /// What the guards of earlier daemons had dropped when the maps were opened.
    dropped_by_others: u64,
}

impl Responder {
    /// Starts the thread that owns the programs.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start(
        options: Options,
    ) -> io::Result<(Self, mpsc::Receiver<Progress>, mpsc::Receiver<Packets>)> {
        let (sender, packets) = mpsc::channel(packets::BATCHES);
        let (tasks, progress) = loader::start(options, sender)?;
        let responder = Self { tasks, pending: 0, open: None, dropped_before: 0 };
        Ok((responder, progress, packets))
    }

    /// Handles a message of the thread.
    pub(crate) fn handle_progress(
        &mut self,
        now: Instant,
        Progress(told): Progress,
        node: &mut Node,
    ) {
        match told {
            Report::Maps(maps, inherited) => {
                let Inherited { mirror, elements } = *inherited;
                let dropped_by_others = dropped_by_guard(&maps);
                self.open = Some(Open { maps: *maps, mirror, dropped_by_others });
                node.handle_input(now, Input::Opened);
                node.handle_input(now, mirror::Input::Opened(&elements));
            }
            Report::Done(done) => node.handle_input(now, Input::Done(done)),
            Report::Guarded(guarded) => {
                self.pending -= 1;
                warn_of(guarded);
            }
            Report::Read(Ok(elements)) => {
                node.handle_input(now, mirror::Input::Read(&elements));
            }
            Report::Read(Err(error)) => node.handle_input(now, mirror_failed(&error)),
        }
    }

    /// Carries out an output of the node. Returns its result, if that is known at once.
    pub(crate) fn carry_out(&mut self, output: Output) -> Option<Input> {
        match output {
            Output::Map(update) => {
                let open = self.open.as_mut();
                let done = open.map_or(Ok(()), |open| Ok(open.maps.write(&update)?));
                return Some(Input::MapDone(done));
            }
            Output::Keys => {
                let open = self.open.as_ref();
                let keys = open.map_or(Ok(MapElements::default()), |open| Ok(open.maps.keys()?));
                return Some(Input::Keys(keys));
            }
            Output::Close => self.close(),
            Output::Program(order) => self.send(Task::Order(order)),
            Output::Event(event) => log(&event),
        }
        None
    }

    /// This fails only if the thread is gone, which ends the process, too.
    fn send(&self, task: Task) {
        let _ = self.tasks.send(task);
    }

    /// Changes or reads the map of peers' answers. Returns what has become of that, if it is no success.
    pub(crate) fn mirror(&mut self, output: mirror::Output) -> Option<mirror::Input<'static>> {
        let Some(Open { mirror, .. }) = &mut self.open else { return Some(mirror::Input::Closed) };
        let done = match output {
            mirror::Output::Put(element) => mirror.put(&element),
            mirror::Output::Remove(key) => mirror.remove(&key),
            mirror::Output::Read => {
                self.send(Task::Read);
                return None;
            }
        };
        done.err().map(|error| mirror_failed(&error))
    }

    /// Whether all sockets are guarded.
    pub(crate) fn is_settled(&self) -> bool {
        self.pending == 0
    }

    /// Attaches the guard, so that the kernel drops what a socket of the ip2gid port would drop,
    /// without waking the daemon; or detaches it.
    pub(crate) fn guard(&mut self, socket: BorrowedFd<'_>) {
        match socket.try_clone_to_owned() {
            Ok(socket) => {
                self.pending += 1;
                self.send(Task::Guard(socket));
            }
            Err(error) => warn_of(Err(Error::Guard(error.into()))),
        }
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

    fn close(&mut self) {
        self.dropped_before = self.dropped_by_guard();
        if let Some(open) = self.open.take() {
            end_lease(open.maps);
        }
    }
}

fn mirror_failed(error: &map::Error) -> mirror::Input<'static> {
    debug!("{}", Fault::from(error));
    mirror::Input::Failed
}

fn log(event: &Event) {
    match event {
        Event::Silent(fault) => warn!(
            message_id = ids::USER_ANSWERS,
            cause = %fault,
            "the daemon answers peers in user space: {fault}"
        ),
        Event::PrivatePins(dir) => warn!(
            "{dir}: only this mount namespace has the bpffs mounted: what answers in the kernel ends \
             with the last process in it"
        ),
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
            cause = %reason,
            %interface,
            "the daemon answers peers in user space: {reason}"
        ),
        Event::NotSettled(fault) => warn!("{fault}"),
    }
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
        debug!("the lease is not taken back: {}", Fault::from(error));
    }
}

fn warn_of(result: Result<(), Error>) {
    if let Err(error) = result {
        warn!("{}", Fault::from(error));
    }
}
