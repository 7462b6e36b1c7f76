// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The BPF responder: loads the programs, attaches them, and keeps their maps equal to the local
//! view. It does not decide what is answered. This file is long because it names every error of its
//! parts.
//!
//! Maps and links are pinned and outlive the daemon, even if it crashes: the programs answer until
//! the lease ends, and the next daemon takes both over.

mod allow;
mod directory;
mod hooks;
mod interfaces;
mod kernel;
mod learned;
mod maps;
mod names;
mod netlink;
mod own;
mod pins;
mod plain;
mod programs;
mod responder;
mod routes;
mod tc;
mod work;
mod workbench;
mod xdp;

use std::error::Error as StdError;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc as sync;
use std::time::Duration;
use std::{fs, io};

use ibarr_common::map::{ABI_VERSION, Program, Reason, ResponderCfg};
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::counters::Counters;
use ibarr_proto::ip2gid::client::{Cached, Learned};
use ibarr_proto::ip2gid::{Prefixes, Question};
use ibarr_proto::local_view::{Event, InterfaceName, LocalView};
use thiserror::Error;
use tokio::sync::mpsc;
use tracing::{debug, warn};

pub use self::kernel::Hook;
pub use self::learned::{Element, PART, Part};
pub use self::maps::Contents;
pub use self::responder::{Counter, Mode, Settings, State};
pub use self::workbench::{Longevity, Options};

use self::kernel::{Kernel as _, MapUpdate};
use self::learned::{Making, Mirror};
use self::maps::Maps;
use self::pins::Pins;
use self::workbench::{Order, Told};
use crate::causes::chain;
use crate::logging::ids;

/// The default directory of the pins.
pub const BPF_DIR: &str = "/sys/fs/bpf/ibarr";

/// Why the programs do not answer.
#[derive(Debug, Error)]
pub enum Error {
    /// The object named by `IBARR_BPF_OBJECT` cannot be read.
    #[error("BPF object {}: cannot be read", path.display())]
    Object {
        /// Path of the object.
        path: PathBuf,
        /// The error of read(2).
        source: io::Error,
    },
    /// The object lacks a program of the responder.
    #[error("BPF object: has no program {0}")]
    NotInObject(&'static str),
    /// The daemon lacks a privilege.
    #[error(
        "BPF programs: not permitted; run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    )]
    Permission(#[source] Box<dyn StdError + Send + Sync>),
    /// The kernel refuses the object or a program.
    #[error("BPF programs: cannot be loaded")]
    Load(#[source] Box<dyn StdError + Send + Sync>),
    /// The kernel lacks a helper that the program calls.
    #[error("BPF program {program}: needs Linux 5.10 or later: {reason}")]
    TooOld {
        /// Name of the program.
        program: &'static str,
        /// The verifier's message.
        reason: String,
    },
    /// The verifier refuses the program.
    #[error("BPF program {program}: refused by the kernel's verifier: {reason}; {kept}")]
    Verifier {
        /// Name of the program.
        program: &'static str,
        /// The verifier's last line that is not a statistic.
        reason: String,
        /// Where the whole log is.
        kept: String,
    },
    /// The directory of pins cannot be used.
    #[error("pins")]
    Pins(#[from] pins::Error),
    /// A map cannot be opened, read or written.
    #[error(transparent)]
    Map(#[from] maps::Error),
    /// A program cannot be attached.
    #[error("{interface}, {hook}")]
    Attach {
        /// Name of the interface.
        interface: InterfaceName,
        /// The hook.
        hook: Hook,
        /// The error of the hook.
        source: hooks::Error,
    },
    /// A filter cannot be detached.
    #[error("interface {ifindex}, {hook}: cannot be detached")]
    Detach {
        /// Index of the interface.
        ifindex: IfIndex,
        /// The hook.
        hook: Hook,
        /// The error of the hook.
        source: hooks::Error,
    },
    /// Filters of another network namespace cannot be reached.
    #[error(
        "{}: has filters in another network namespace; run this there (nsenter --net=...)",
        .0.display()
    )]
    Elsewhere(PathBuf),
    /// The programs cannot be loaded, and the objects made for them cannot be removed.
    #[error("{}; besides, objects made for it cannot be removed: {}", chain(cause), chain(undo))]
    NotUndone {
        /// Why they cannot be loaded.
        cause: Box<Error>,
        /// Why the objects cannot be removed.
        undo: pins::Error,
    },
    /// The guard cannot be attached to a socket.
    #[error("guard of the server sockets: cannot be attached")]
    Guard(#[source] Box<dyn StdError + Send + Sync>),
}

impl Error {
    /// Whether more privileges would help.
    pub fn is_permission(&self) -> bool {
        match self {
            Self::NotUndone { cause, .. } => cause.is_permission(),
            error => is_permission(error),
        }
    }

    /// Whether another directory of pins would help.
    pub fn is_of_the_directory(&self) -> bool {
        use pins::Error::{Foreign, NoName, Open, Owner};
        matches!(self, Self::Pins(Foreign { .. } | NoName(_) | Open { .. } | Owner { .. }))
    }

    fn load(error: Box<dyn StdError + Send + Sync>) -> Self {
        if is_permission(&*error) { Self::Permission(error) } else { Self::Load(error) }
    }
}

fn is_permission(error: &(dyn StdError + 'static)) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|io| io.kind() == io::ErrorKind::PermissionDenied)
        || error.source().is_some_and(is_permission)
}

/// Runs the programs, see the [module](self). If the kernel cannot run them, it reports why and
/// does nothing.
///
/// The engine's thread writes the maps; a second thread does what may take long.
pub struct Responder {
    options: Options,
    settings: Settings,
    allow: Prefixes,
    orders: sync::SyncSender<Order>,
    /// The thread is executing an order, and accepts no other.
    is_busy: bool,
    /// The thread has to load other programs, or load them again.
    reopen: bool,
    /// Sockets that have yet to be guarded.
    unguarded: Vec<OwnedFd>,
    /// Set while the maps can be written.
    mirror: Option<Mirror>,
    /// Set while the mirror may differ from the cache.
    making: Option<Making>,
    /// The thread has to read the mirror, so that it can be rebuilt.
    reread: bool,
    /// When to rebuild the mirror after a failed write.
    mirror_due: Option<Instant>,
    /// Set while the maps can be written.
    inner: Option<responder::Responder<Maps>>,
    programs: Programs,
    /// Why the last load failed, so that it is logged once.
    failure: Option<String>,
    /// When to load the programs again, if another daemon had the pins.
    retry_at: Option<Instant>,
    longevity: Longevity,
    /// How many loads were tried.
    loaded: u32,
    /// Counters of earlier responders, and of loading.
    counters: Counters<Counter>,
    /// What the guards of earlier daemons had dropped when the maps were opened.
    dropped_by_others: u64,
    /// What our guard has dropped, except by the current maps.
    dropped_before: u64,
}

/// A message of the thread, for [`Responder::handle_progress`].
pub struct Progress(Told);

enum Programs {
    Loading,
    Loaded,
    /// There is no responder, for this reason.
    Absent(String),
}

/// How long to wait before asking again for pins that another daemon has.
const RETRY: Duration = Duration::from_secs(1);

/// How long a mirror that differs from the cache stays so: a rebuild reads all of it.
const MIRROR_RETRY: Duration = Duration::from_secs(10);

const LOADING: &str = "the programs are being loaded";

impl Responder {
    /// Starts to load the programs, if `settings` want any.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        options: Options,
        settings: Settings,
        allow: Prefixes,
    ) -> io::Result<(Self, mpsc::Receiver<Progress>)> {
        let (orders, progress) = workbench::start()?;
        let mut responder = Self {
            options,
            settings,
            allow,
            orders,
            is_busy: false,
            reopen: true,
            unguarded: Vec::new(),
            mirror: None,
            making: None,
            reread: false,
            mirror_due: None,
            inner: None,
            programs: Programs::Loading,
            failure: None,
            retry_at: None,
            longevity: Longevity::Lease,
            loaded: 0,
            counters: Counters::default(),
            dropped_by_others: 0,
            dropped_before: 0,
        };
        responder.go_on();
        Ok((responder, progress))
    }

    /// Handles a message of the thread.
    pub fn handle_progress(&mut self, now: Instant, Progress(told): Progress) {
        self.is_busy = matches!(told, Told::Maps(..));
        match told {
            Told::Maps(maps, inherited) if !self.reopen => {
                let (settings, allow) = (self.settings.clone(), self.allow.clone());
                self.mirror = Some(inherited.mirror);
                self.making = Some(Making::new(inherited.elements, true));
                self.dropped_by_others = dropped_by_guard(&maps);
                self.inner = Some(responder::Responder::new(*maps, settings, allow));
            }
            Told::Opened(opened) => {
                self.loaded += 1;
                match opened {
                    Ok(longevity) => {
                        self.note_longevity(longevity);
                        self.programs = Programs::Loaded;
                        self.failure = None;
                    }
                    Err(error) => self.not_loaded(now, &error),
                }
            }
            Told::Closed(closed) => {
                self.loaded += 1;
                warn_of(closed);
            }
            Told::Arranged(done) => {
                if let Some(inner) = &mut self.inner {
                    inner.handle_done(now, done);
                }
            }
            Told::Guarded(guarded) => warn_of(guarded),
            Told::Read(read) if self.mirror.is_some() && !self.reread => match read {
                Ok(elements) => self.making = Some(Making::new(elements, false)),
                Err(error) => self.mirror_failed(now, &error),
            },
            // The wish has changed meanwhile.
            Told::Maps(..) | Told::Read(_) => {}
        }
    }

    /// Handles an event of the view. The maps are up to date when this returns.
    pub fn handle_event(&mut self, event: &Event) {
        if let Some(inner) = &mut self.inner {
            inner.handle_event(event);
        }
    }

    /// Call it when all events of the view were handled. Early calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant, view: &LocalView) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.reopen = true;
        }
        if self.mirror_due.is_some_and(|due| due <= now) {
            self.remake_mirror();
        }
        if let Some(inner) = &mut self.inner {
            inner.handle_timeout(now, view);
        }
    }

    /// The next step that makes the mirror equal to the cache; one part a turn.
    pub fn next_part(&mut self) -> Option<Part> {
        self.making.as_mut().map(Making::next)
    }

    /// Makes an element of the mirror equal to the cache.
    pub fn compare(&mut self, now: Instant, element: &Element, cached: Option<Cached>) {
        let (Some(mirror), Some(making)) = (&mut self.mirror, &mut self.making) else { return };
        if let Err(error) = making.compare(mirror, element, cached) {
            self.mirror_failed(now, &error);
        }
    }

    /// Adds the next entries of the cache to the mirror.
    pub fn add(&mut self, now: Instant, entries: &[(Question, Cached)]) {
        let (Some(mirror), Some(making)) = (&mut self.mirror, &mut self.making) else { return };
        match making.add(mirror, entries) {
            Ok(true) => self.making = None,
            Ok(false) => {}
            Err(error) => self.mirror_failed(now, &error),
        }
    }

    /// Handles a change of the cache.
    pub fn learn(&mut self, now: Instant, change: &Learned) {
        if *change == Learned::Everything {
            return self.remake_mirror();
        }
        let Some(mirror) = &mut self.mirror else { return };
        if let Err(error) = mirror.learn(change) {
            self.mirror_failed(now, &error);
        } else if let Some(making) = &mut self.making {
            making.note(change);
        }
    }

    fn remake_mirror(&mut self) {
        (self.making, self.mirror_due) = (None, None);
        self.reread = self.mirror.is_some();
    }

    fn mirror_failed(&mut self, now: Instant, error: &maps::Error) {
        self.counters.count(Counter::MirrorFaults);
        debug!("{}", chain(error));
        self.making = None;
        self.mirror_due.get_or_insert(now + MIRROR_RETRY);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next, besides after every event. While
    /// there is a [`next_part`](Self::next_part), the time is now.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let inner = self.inner.as_ref().map_or(self.retry_at, responder::Responder::poll_timeout);
        let making = self.making.as_ref().map(|_| Instant::BOOT);
        inner.into_iter().chain(self.mirror_due).chain(making).min()
    }

    /// Sends the thread its next order, if it is idle. Call it last in a turn.
    pub fn go_on(&mut self) {
        if self.is_busy {
            return;
        }
        let order = if self.reopen {
            self.reopen = false;
            self.unguarded.clear();
            if self.settings.want_kernel() {
                self.programs = Programs::Loading;
                Order::Open(self.options.clone())
            } else {
                self.programs = Programs::Absent(responder::BY_DECISION.to_owned());
                Order::Close(self.options.dir.clone())
            }
        } else if let Some(socket) = self.unguarded.pop() {
            Order::Guard(socket)
        } else if let Some(work) = self.inner.as_mut().and_then(responder::Responder::poll_work) {
            Order::Arrange(work)
        } else if std::mem::take(&mut self.reread) {
            Order::Read
        } else {
            return;
        };
        self.is_busy = true;
        // This fails only if the thread is gone, which ends the process, too.
        let _ = self.orders.try_send(order);
    }

    /// Whether all decisions have taken effect, or have failed.
    pub fn is_settled(&self) -> bool {
        let wants_work = self.inner.as_ref().is_some_and(responder::Responder::wants_work);
        let inherits = self.making.as_ref().is_some_and(Making::inherits);
        !(self.is_busy || self.reopen || wants_work || inherits) && self.unguarded.is_empty()
    }

    /// Takes new settings of the administrator.
    pub fn reconfigure(&mut self, now: Instant, settings: Settings, allow: Prefixes) {
        self.settings = settings.clone();
        self.allow = allow.clone();
        if let Some(inner) = &mut self.inner
            && settings.want_kernel()
        {
            inner.reconfigure(now, settings, allow);
            return;
        }
        self.drop_inner();
        self.reopen = true;
    }

    /// Changes when each socket of the port has to be [guarded](Self::guard) again.
    pub fn generation(&self) -> u32 {
        self.loaded
    }

    /// Attaches the guard, so that the kernel drops what a socket of the ip2gid port would drop,
    /// without waking the daemon; or detaches it.
    pub fn guard(&mut self, socket: BorrowedFd<'_>) {
        match socket.try_clone_to_owned() {
            Ok(socket) => self.unguarded.push(socket),
            Err(error) => warn_of(Err(Error::Guard(error.into()))),
        }
    }

    /// Why the programs answer nothing at all.
    pub fn why_not(&self) -> Option<&str> {
        match &self.programs {
            Programs::Loaded => self.inner.as_ref()?.fault(),
            Programs::Loading => Some(LOADING),
            Programs::Absent(reason) => Some(reason),
        }
    }

    /// How long programs continue to answer without the daemon.
    pub fn longevity(&self) -> Longevity {
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

    /// State of an interface that is served.
    pub fn state(&self, ifindex: IfIndex) -> Option<&State> {
        self.inner.as_ref()?.state(ifindex)
    }

    /// When the programs stop answering if the lease is not renewed.
    pub fn lease_end(&self) -> Option<Instant> {
        self.inner.as_ref().map(responder::Responder::lease_end)
    }

    /// Counters of this daemon's responder.
    pub fn counters(&self) -> Counters<Counter> {
        let mut counters = self.counters.clone();
        if let Some(inner) = &self.inner {
            inner.counters().iter().for_each(|(counter, count)| counters.add(counter, count));
        }
        counters
    }

    /// Counters of the programs since the maps were made, by names such as `tc.answered`.
    pub fn counts(&self) -> Vec<(String, u64)> {
        let Some(inner) = &self.inner else { return Vec::new() };
        let counts = inner.kernel().counts().unwrap_or_else(|error| {
            warn_of(Err(error.into()));
            Vec::new()
        });
        let name = |program, reason: Reason| {
            let program = match program {
                Program::Tc => "tc",
                Program::Xdp => "xdp",
                Program::Guard => "guard",
            };
            format!("{program}.{}", reason.name().replace('_', "-"))
        };
        counts.into_iter().map(|(program, reason, count)| (name(program, reason), count)).collect()
    }

    /// What our guard has dropped; the guarded sockets count it, too.
    pub fn dropped_by_guard(&self) -> u64 {
        let now = self.inner.as_ref().map_or(0, |inner| dropped_by_guard(inner.kernel()));
        self.dropped_before + now.saturating_sub(self.dropped_by_others)
    }

    fn not_loaded(&mut self, now: Instant, error: &Error) {
        self.drop_inner();
        if let Error::Pins(pins::Error::Taken(_)) = error {
            self.retry_at = Some(now + RETRY);
        }
        // Programs of an earlier daemon answer from these maps. No daemon updates them now, unless
        // another one has them locked.
        if let Ok(Some(pins)) = Pins::open_existing(&self.options.dir)
            && let Ok(maps) = Maps::open(&pins.layout(ABI_VERSION))
        {
            end_lease(maps);
        }
        let reason = chain(error);
        if self.failure.as_ref() != Some(&reason) {
            self.counters.count(Counter::NotLoaded);
            warn!(
                message_id = ids::USER_ANSWERS,
                cause = reason,
                "the daemon answers peers in user space: {reason}"
            );
            self.failure = Some(reason.clone());
        }
        self.programs = Programs::Absent(reason);
    }

    fn drop_inner(&mut self) {
        self.dropped_before = self.dropped_by_guard();
        self.dropped_by_others = 0;
        self.counters = self.counters();
        self.mirror = None;
        self.remake_mirror();
        if let Some(inner) = self.inner.take() {
            end_lease(inner.into_kernel());
        }
    }
}

/// Since the maps were made, as far as it can be read.
fn dropped_by_guard(maps: &Maps) -> u64 {
    let counts = maps.counts().unwrap_or_default();
    let dropped =
        |&(program, reason, _): &_| program == Program::Guard && reason != Reason::Answered;
    counts.into_iter().filter(dropped).map(|(.., count)| count).sum()
}

/// Makes the programs answer nothing more.
fn end_lease(mut maps: Maps) {
    if let Err(error) = maps.update(&MapUpdate::Cfg(ResponderCfg::default())) {
        debug!("the lease is not taken back: {}", chain(&error));
    }
}

fn warn_of(result: Result<(), Error>) {
    if let Err(error) = result {
        warn!("{}", chain(&error));
    }
}

/// The contents of the maps in `dir`, whether a daemon runs or not; `None` if there are none.
///
/// # Errors
/// If the maps cannot be read.
pub fn read(dir: &Path) -> Result<Option<Contents>, Error> {
    let layout = pins::layout(dir, ABI_VERSION);
    match fs::symlink_metadata(&layout) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(pins::Error::Io(layout, error).into()),
        Ok(_) => {
            let is_here = dir.join(pins::namespace()?).exists();
            let learned = Mirror::open(&layout)?.elements()?;
            Ok(Some(Contents { learned, ..Maps::open(&layout)?.contents(is_here)? }))
        }
    }
}

/// The result of [`detach`].
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Detached {
    /// Something of ours was removed.
    pub was_there: bool,
    /// Entries that are not ours, and stay.
    pub left: Vec<PathBuf>,
}

/// Detaches and removes what daemons have left in `dir`, and nothing else.
///
/// # Errors
/// If a daemon uses the directory, it is not ours, or something cannot be removed. Another attempt
/// continues from there.
pub fn detach(dir: &Path) -> Result<Detached, Error> {
    let Some(pins) = Pins::open_existing(dir)? else { return Ok(Detached::default()) };
    let hooks = pins.hooks()?;
    let has_filters = hooks.iter().any(|(_, hook)| *hook == Hook::Clsact);
    if has_filters && pins.is_elsewhere(&pins::namespace()?)? {
        return Err(Error::Elsewhere(dir.to_owned()));
    }
    for (ifindex, hook) in hooks {
        hooks::detach(&pins, ifindex, hook)?;
    }
    for ifindex in pins.qdiscs()? {
        hooks::detach_qdisc(&pins, ifindex)?;
    }
    Ok(Detached { was_there: true, left: pins.remove()? })
}
