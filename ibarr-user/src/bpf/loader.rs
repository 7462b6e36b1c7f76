// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A thread that owns programs and pins: loading, verifying and attaching a program can take a
//! second, and the engine must not wait.

use std::borrow::Cow;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc as sync;
use std::{io, thread};

use ibarr_common::map;
use ibarr_proto::ip2gid::client::mirror::Element;
use ibarr_proto::local_view::ServedInterface;
use ibarr_proto::responder::{Done, Hook, Order, Step, WorkResult};
use nix::net::if_::if_indextoname;
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use super::error::Error;
use super::learned::Mirror;
use super::left::{detach, take_down};
use super::maps::Maps;
use super::packets::{Packets, Reader, Sink};
use super::pins::{self, Pins};
use super::programs::Programs;
use super::{end_lease, hooks, map as pinned, warn_of};
use crate::causes::Fault;
use crate::regular_file;
use crate::sys::udp_options::refuse_from_itself;

/// A larger file is no object of ours.
const LARGEST_OBJECT: usize = 1 << 24;

/// Paths.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the pins.
    pub dir: PathBuf,
    /// Object to load instead of the built-in one.
    pub object: Option<PathBuf>,
    /// File for the verifier's log if it refuses a program.
    pub verifier_log: PathBuf,
}

/// The thread executes one after the other, and sends a [`Report`] at the end of each.
pub(super) enum Task {
    Order(Order),
    /// Attach the guard to a socket of the ip2gid port; or detach it if no guard is loaded.
    Guard(OwnedFd),
    /// Read the map of peers' answers.
    Read,
}

/// A message of the thread, for [`Responder::handle_progress`](super::Responder::handle_progress).
pub(crate) struct Progress(pub(super) Report);

pub(super) enum Report {
    /// The maps are open: from now on the engine writes them, even while programs are verified.
    Maps(Box<Maps>, Box<Inherited>),
    Done(Done),
    Guarded(Result<(), Error>),
    Read(Result<Vec<Element>, pinned::Error>),
}

/// The map of peers' answers, with the elements that an earlier daemon has left.
pub(super) struct Inherited {
    pub(super) mirror: Mirror,
    pub(super) elements: Vec<Element>,
}

/// Starts the thread in the network namespace of the caller. It ends when the channel of tasks
/// closes.
pub(super) fn start(
    options: Options,
    packets: mpsc::Sender<Packets>,
) -> io::Result<(sync::Sender<Task>, mpsc::Receiver<Progress>)> {
    let (tasks, task) = sync::channel();
    // The longest order sends two messages.
    let (tell, told) = mpsc::channel(2);
    thread::Builder::new().name("bpf".to_owned()).spawn(move || {
        let mut loader = None;
        while let Ok(task) = task.recv() {
            let told = match task {
                Task::Order(order) => {
                    Report::Done(execute(order, &options, &mut loader, &tell, &packets))
                }
                Task::Guard(socket) => Report::Guarded(match &mut loader {
                    Some(loader) => loader.wanted().guard(socket.as_fd()),
                    // Replaces the guard, if there was one.
                    None => refuse_from_itself(&socket).map_err(|error| Error::Guard(error.into())),
                }),
                Task::Read => Report::Read(loader.as_ref().map_or(Ok(Vec::new()), |loader| {
                    Mirror::open(&loader.pins.layout(map::ABI_VERSION))?.elements()
                })),
            };
            if tell.blocking_send(Progress(told)).is_err() {
                return;
            }
        }
    })?;
    Ok((tasks, told))
}

fn execute(
    order: Order,
    options: &Options,
    loader: &mut Option<Loader>,
    tell: &mpsc::Sender<Progress>,
    packets: &mpsc::Sender<Packets>,
) -> Done {
    match order {
        Order::Open => {
            // Unlocks the pins before they are locked again.
            *loader = None;
            let opened = Loader::open(options, |maps, learned| {
                // A failure means that the engine is gone, and the process ends soon.
                let _ = tell.blocking_send(Progress(Report::Maps(maps, learned)));
            });
            // Programs of an earlier daemon answer from these maps. No daemon updates them now, unless
            // another one has them locked.
            if opened.is_err()
                && let Ok(Some(pins)) = Pins::open_existing(&options.dir)
                && let Ok(maps) = Maps::open(&pins.layout(map::ABI_VERSION))
            {
                end_lease(maps);
            }
            let opened = opened.map(|opened| {
                let is_private = opened.pins.outlive_us() == Some(false);
                *loader = Some(opened);
                is_private.then(|| options.dir.display().to_string())
            });
            Done::Opened(opened.map_err(Error::into))
        }
        Order::Close => {
            *loader = None;
            warn_of(detach(&options.dir).map(drop));
            Done::Closed
        }
        Order::Arrange(work) => {
            let Some(it) = loader else { return Done::Arranged(WorkResult::nothing()) };
            if let Err(error) = it.pins.check() {
                // A program that nothing finds is not left behind.
                warn_of(loader.take().map_or(Ok(()), |it| take_down(it.pins).map(drop)));
                return Done::Lost(Error::from(error).into());
            }
            let attached = it.pins.hooks().map_err(|error| Error::from(error).into());
            Done::Arranged(work.run(attached, |step| it.carry_out(step)))
        }
        Order::Report(on) => {
            let done = loader.as_mut().map_or(Ok(()), |it| it.report(on, packets));
            let done = done.map_err(Fault::from);
            if let Err(fault) = &done {
                warn!("the programs report no packets: {fault}");
            }
            Done::Reporting(done)
        }
    }
}

/// The programs and their pins.
struct Loader {
    programs: Programs,
    /// The programs that report their packets, from the first trace that wants them until none of
    /// them is attached any more.
    reporting: Option<Reporting>,
    /// Whether those are to be attached instead of the plain ones.
    reports: bool,
    verifier_log: PathBuf,
    pins: Pins,
}

struct Reporting {
    programs: Programs,
    /// Ends the thread that reads the reports when it is dropped.
    _reader: Reader,
}

impl Loader {
    /// Loads the programs. On failure, removes what it has made; what existed before stays.
    fn open(
        options: &Options,
        maps_are_there: impl FnOnce(Box<Maps>, Box<Inherited>),
    ) -> Result<Self, Error> {
        // Before Linux 5.11 maps count against this limit, which usually is 64 KiB.
        if let Err(error) = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY) {
            debug!(%error, "locked memory stays limited");
        }
        let object = match &options.object {
            None => Cow::Borrowed(ibarr_ebpf::OBJECT),
            // A pipe may be slow, and only this thread waits for it.
            Some(path) => match File::open(path)
                .and_then(|file| regular_file::bounded(file, LARGEST_OBJECT))
            {
                Ok(object) => Cow::Owned(object),
                Err(source) => return Err(Error::Object { path: path.clone(), source }),
            },
        };
        let pins = Pins::open(&options.dir)?;
        let namespace = pins::namespace()?;
        let mut pins = if pins.is_elsewhere(&namespace)? {
            info!("{}: pins of another network namespace, removed", options.dir.display());
            pins.remove()?;
            Pins::open(&options.dir)?
        } else {
            pins
        };
        let layout = pins.layout(map::ABI_VERSION);
        let loaded =
            pins.make_all(&namespace, map::ABI_VERSION).map_err(Error::from).and_then(|()| {
                let verifier_log = options.verifier_log.clone();
                let mut programs = Programs::new(object, layout.clone(), verifier_log)?;
                let mut maps = Maps::open(&layout)?;
                maps.take_over()?;
                let mirror = Mirror::open(&layout)?;
                let elements = mirror.elements()?;
                maps_are_there(Box::new(maps), Box::new(Inherited { mirror, elements }));
                programs.verify()?;
                Ok(programs)
            });
        let noted = |programs| Ok(pins.note(&namespace, map::ABI_VERSION).map(|()| programs)?);
        match loaded.and_then(noted) {
            Ok(programs) => Ok(Self {
                programs,
                reporting: None,
                reports: false,
                verifier_log: options.verifier_log.clone(),
                pins,
            }),
            Err(error) => Err(match pins.undo() {
                Ok(()) => error,
                Err(undo) => Error::NotUndone { cause: Box::new(error), undo },
            }),
        }
    }

    fn report(&mut self, on: bool, packets: &mpsc::Sender<Packets>) -> Result<(), Error> {
        if on && self.reporting.is_none() {
            let object = Cow::Borrowed(ibarr_ebpf::LOGGING_OBJECT);
            let layout = self.pins.layout(map::ABI_VERSION);
            let mut programs = Programs::new(object, layout, self.verifier_log.clone())?;
            let sink = Sink::default();
            let reader = Reader::start(programs.reports(&sink)?, sink, packets.clone())?;
            programs.verify()?;
            self.reporting = Some(Reporting { programs, _reader: reader });
        }
        self.reports = on;
        Ok(())
    }

    /// The programs to attach.
    fn wanted(&mut self) -> &mut Programs {
        match &mut self.reporting {
            Some(reporting) if self.reports => &mut reporting.programs,
            _ => &mut self.programs,
        }
    }

    /// Unloads the programs that report, unless one is attached or will be.
    fn unload_reporting(&mut self) -> Result<(), Error> {
        if let Some(Reporting { programs, .. }) = &self.reporting
            && !self.reports
        {
            let is_in_use = |&(ifindex, hook): &_| {
                hooks::is_attached(&self.pins, ifindex, hook, programs.ids())
            };
            if !self.pins.hooks()?.iter().any(is_in_use) {
                self.reporting = None;
            }
        }
        Ok(())
    }

    /// Removes the qdiscs of interfaces that are gone, and the maps of other versions.
    fn remove_old(&mut self) -> Result<(), Error> {
        for ifindex in self.pins.qdiscs()? {
            if if_indextoname(ifindex.get()).is_err() {
                hooks::detach_qdisc(&self.pins, ifindex)?;
            }
        }
        for version in self.pins.layouts()? {
            if version != map::ABI_VERSION {
                info!(version, "no program uses this layout of the maps any more, removed");
                self.pins.remove_layout(version)?;
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, step: Step) -> Result<bool, Fault> {
        match step {
            Step::Look(interface, hook) => return Ok(self.look(&interface, hook)),
            Step::Attach(interface, hook) => self.attach(&interface, hook)?,
            Step::Detach(ifindex, hook) => {
                hooks::detach(&self.pins, ifindex, hook).map_err(Error::from)?;
            }
            Step::Settle => {
                self.unload_reporting()?;
                self.remove_old()?;
            }
        }
        Ok(true)
    }

    fn look(&mut self, interface: &ServedInterface, hook: Hook) -> bool {
        let ifindex = interface.ifindex;
        let wanted = self.wanted().ids().clone();
        if hooks::is_attached(&self.pins, ifindex, hook, &wanted) {
            return true;
        }
        let is = |it: &Programs| hooks::is_attached(&self.pins, ifindex, hook, it.ids());
        if !is(&self.programs) && !self.reporting.as_ref().is_some_and(|it| is(&it.programs)) {
            return false;
        }
        if let Err(error) = self.attach(interface, hook) {
            let error = Fault::from(error);
            warn!("the attached program stays, and the other variant is tried again: {error}");
        }
        true
    }

    fn attach(&mut self, interface: &ServedInterface, hook: Hook) -> Result<(), Error> {
        let programs = match &mut self.reporting {
            Some(reporting) if self.reports => &mut reporting.programs,
            _ => &mut self.programs,
        };
        programs.attach(&self.pins, interface, hook)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_clean_up_does_not_hide_the_load_error() {
        let io_error = || io::Error::from(io::ErrorKind::PermissionDenied);
        let cause = Error::load(Box::new(io_error()));
        let undo = pins::Error::Io("/sys/fs/bpf/ibarr".into(), io::ErrorKind::ResourceBusy.into());
        let error = Error::NotUndone { cause: Box::new(cause), undo };
        let text = Fault::from(&error).to_string();
        let needs = text.find("with CAP_BPF").expect("what is missing");
        assert!(needs < text.find("/sys/fs/bpf/ibarr").expect("what is not undone"), "{text}");
        assert!(error.is_permission());
    }
}
