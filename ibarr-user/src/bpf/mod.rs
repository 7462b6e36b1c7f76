// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The responder in the kernel: loads the BPF programs, attaches them, and keeps their maps as the
//! local view says. Decides nothing about what is answered. This file is long because it names every
//! error of its parts.
//!
//! Maps and links are pinned and outlive the daemon, whatever ends it: peers go on being answered
//! until the lease ends, and the next daemon takes both over.

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

/// Where the pins are, unless said otherwise.
pub const BPF_DIR: &str = "/sys/fs/bpf/ibarr";

/// Why the kernel does not answer.
#[derive(Debug, Error)]
pub enum Error {
    /// The object named by `IBARR_BPF_OBJECT` is not there.
    #[error("BPF object {}: cannot be read", path.display())]
    Object {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The object is not one of the responder.
    #[error("BPF object: has no program {0}")]
    NotInObject(&'static str),
    /// We may not.
    #[error(
        "BPF programs: not permitted; run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    )]
    Permission(#[source] Box<dyn StdError + Send + Sync>),
    /// The kernel takes neither object nor program.
    #[error("BPF programs: cannot be loaded")]
    Load(#[source] Box<dyn StdError + Send + Sync>),
    /// The kernel has not all that the program calls.
    #[error("BPF program {program}: needs Linux 5.10 or later: {reason}")]
    TooOld {
        /// The program.
        program: &'static str,
        /// What the verifier says.
        reason: String,
    },
    /// The verifier has found something.
    #[error("BPF program {program}: refused by the kernel's verifier: {reason}; {kept}")]
    Verifier {
        /// The program.
        program: &'static str,
        /// What it says last.
        reason: String,
        /// Where the rest is.
        kept: String,
    },
    /// The pins cannot be had.
    #[error("pins")]
    Pins(#[from] pins::Error),
    /// A map cannot be opened, read or written.
    #[error(transparent)]
    Map(#[from] maps::Error),
    /// A program cannot be attached.
    #[error("{interface}, {hook}")]
    Attach {
        /// The interface.
        interface: InterfaceName,
        /// Where.
        hook: Hook,
        /// The cause.
        source: hooks::Error,
    },
    /// A filter cannot be detached.
    #[error("interface {ifindex}, {hook}: cannot be detached")]
    Detach {
        /// The interface.
        ifindex: IfIndex,
        /// From where.
        hook: Hook,
        /// The cause.
        source: hooks::Error,
    },
    /// Filters are not found from another namespace.
    #[error(
        "{}: has filters in another network namespace; run this there (nsenter --net=...)",
        .0.display()
    )]
    Elsewhere(PathBuf),
    /// The programs cannot be loaded, and what was made for them is still there.
    #[error("{}; besides, what was begun is not undone: {}", chain(cause), chain(undo))]
    NotUndone {
        /// Why they cannot.
        cause: Box<Error>,
        /// Why it is not.
        undo: pins::Error,
    },
    /// The guard cannot be attached to a socket.
    #[error("guard of the server sockets: cannot be attached")]
    Guard(#[source] Box<dyn StdError + Send + Sync>),
}

impl Error {
    /// Whether more rights would help.
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

/// See the [module](self). Without a kernel that lets it work, it says why and does nothing.
///
/// It writes the maps itself; what may take long, a thread does.
pub struct Responder {
    options: Options,
    settings: Settings,
    allow: Prefixes,
    orders: sync::SyncSender<Order>,
    /// The thread has an order, and takes no other.
    is_busy: bool,
    /// What the thread has loaded, or not, is not what is wanted.
    reopen: bool,
    /// Sockets that are to be guarded.
    unguarded: Vec<OwnedFd>,
    /// There as soon as there are maps to write.
    mirror: Option<Mirror>,
    /// The mirror may not be as the cache is.
    making: Option<Making>,
    /// The thread is to say what is in the mirror, so that it can be made anew.
    reread: bool,
    /// When to make the mirror anew, because something could not be written.
    mirror_due: Option<Instant>,
    /// As the mirror.
    inner: Option<responder::Responder<Maps>>,
    programs: Programs,
    /// Why they could not be loaded the last time, so that it is said once.
    failure: Option<String>,
    /// When to load the programs again, if another daemon was in the way.
    retry_at: Option<Instant>,
    longevity: Longevity,
    /// How often programs were loaded, or not.
    loaded: u32,
    /// Of those before the one at work, and of loading.
    counters: Counters<Counter>,
    /// What the guard had dropped when the maps were opened: of daemons before this one.
    dropped_by_others: u64,
    /// What our guard has dropped, but for the maps at work.
    dropped_before: u64,
}

/// What the thread says; to be handed to [`Responder::handle_progress`].
pub struct Progress(Told);

enum Programs {
    Loading,
    Loaded,
    /// Why not.
    Absent(String),
}

/// How long another daemon is given before it is asked for again.
const RETRY: Duration = Duration::from_secs(1);

/// How long a mirror that is not as the cache stays so: to make it anew is to read all of it.
const MIRROR_RETRY: Duration = Duration::from_secs(10);

const LOADING: &str = "the programs are being loaded";

impl Responder {
    /// Loads the programs, if `settings` want any.
    ///
    /// # Errors
    /// There is no thread to be had.
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

    /// The thread has done something.
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
            // Something else is wanted by now.
            Told::Maps(..) | Told::Read(_) => {}
        }
    }

    /// The view says something new. It is in the maps before this returns.
    pub fn handle_event(&mut self, event: &Event) {
        if let Some(inner) = &mut self.inner {
            inner.handle_event(event);
        }
    }

    /// To be called when all events of the view were handled. Early calls do nothing.
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

    /// What is to be done next for the mirror to be as the cache is: a part in each turn.
    pub fn next_part(&mut self) -> Option<Part> {
        self.making.as_mut().map(Making::next)
    }

    /// What the cache has of an element of the mirror.
    pub fn compare(&mut self, now: Instant, element: &Element, cached: Option<Cached>) {
        let (Some(mirror), Some(making)) = (&mut self.mirror, &mut self.making) else { return };
        if let Err(error) = making.compare(mirror, element, cached) {
            self.mirror_failed(now, &error);
        }
    }

    /// What the cache has next.
    pub fn add(&mut self, now: Instant, entries: &[(Question, Cached)]) {
        let (Some(mirror), Some(making)) = (&mut self.mirror, &mut self.making) else { return };
        match making.add(mirror, entries) {
            Ok(true) => self.making = None,
            Ok(false) => {}
            Err(error) => self.mirror_failed(now, &error),
        }
    }

    /// The cache has changed.
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

    /// When to call [`handle_timeout`](Self::handle_timeout) next, besides after every event, and
    /// [`next_part`](Self::next_part): at once, while there is one.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let inner = self.inner.as_ref().map_or(self.retry_at, responder::Responder::poll_timeout);
        let making = self.making.as_ref().map(|_| Instant::BOOT);
        inner.into_iter().chain(self.mirror_due).chain(making).min()
    }

    /// Gives the thread what is to be done next, if it waits for that. To be called last in a turn.
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
        // Only if the thread is gone, which takes the process with it.
        let _ = self.orders.try_send(order);
    }

    /// Whether what was decided has taken effect, or has failed.
    pub fn is_settled(&self) -> bool {
        let wants_work = self.inner.as_ref().is_some_and(responder::Responder::wants_work);
        let inherits = self.making.as_ref().is_some_and(Making::inherits);
        !(self.is_busy || self.reopen || wants_work || inherits) && self.unguarded.is_empty()
    }

    /// The administrator decides otherwise.
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

    /// Changes when each socket of the port is to be [guarded](Self::guard) again.
    pub fn generation(&self) -> u32 {
        self.loaded
    }

    /// Has the kernel drop what a socket of the ip2gid port would drop, so that nobody is woken for
    /// it; or no longer.
    pub fn guard(&mut self, socket: BorrowedFd<'_>) {
        match socket.try_clone_to_owned() {
            Ok(socket) => self.unguarded.push(socket),
            Err(error) => warn_of(Err(Error::Guard(error.into()))),
        }
    }

    /// Why nothing at all is answered in the kernel.
    pub fn why_not(&self) -> Option<&str> {
        match &self.programs {
            Programs::Loaded => self.inner.as_ref()?.fault(),
            Programs::Loading => Some(LOADING),
            Programs::Absent(reason) => Some(reason),
        }
    }

    /// How long programs go on answering without the daemon.
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

    /// What is attached to an interface that is served.
    pub fn state(&self, ifindex: IfIndex) -> Option<&State> {
        self.inner.as_ref()?.state(ifindex)
    }

    /// When the programs stop answering if nothing renews the lease.
    pub fn lease_end(&self) -> Option<Instant> {
        self.inner.as_ref().map(responder::Responder::lease_end)
    }

    /// What has happened.
    pub fn counters(&self) -> Counters<Counter> {
        let mut counters = self.counters.clone();
        if let Some(inner) = &self.inner {
            inner.counters().iter().for_each(|(counter, count)| counters.add(counter, count));
        }
        counters
    }

    /// What the programs have counted since the maps were made, as `tc.answered`.
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

    /// What our guard has dropped, as the sockets that it guards count it, too.
    pub fn dropped_by_guard(&self) -> u64 {
        let now = self.inner.as_ref().map_or(0, |inner| dropped_by_guard(inner.kernel()));
        self.dropped_before + now.saturating_sub(self.dropped_by_others)
    }

    fn not_loaded(&mut self, now: Instant, error: &Error) {
        self.drop_inner();
        if let Error::Pins(pins::Error::Taken(_)) = error {
            self.retry_at = Some(now + RETRY);
        }
        // Programs of a daemon before us answer from these. Unless there is another one, which has
        // them locked, nobody keeps them true now.
        if let Ok(Some(pins)) = Pins::open_existing(&self.options.dir)
            && let Ok(maps) = Maps::open(&pins.layout(ABI_VERSION))
        {
            end_lease(maps);
        }
        let reason = chain(error);
        if self.failure.as_ref() != Some(&reason) {
            self.counters.count(Counter::NotLoaded);
            warn!("peers are answered in user space: {reason}");
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

/// Since the maps were made, as far as they can be read.
fn dropped_by_guard(maps: &Maps) -> u64 {
    let counts = maps.counts().unwrap_or_default();
    let dropped =
        |&(program, reason, _): &_| program == Program::Guard && reason != Reason::Answered;
    counts.into_iter().filter(dropped).map(|(.., count)| count).sum()
}

/// The programs answer nothing more.
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

/// What the maps in `dir` hold, whether a daemon lives or not; `None` if there are none.
///
/// # Errors
/// They cannot be read.
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

/// What [`detach`] has done.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Detached {
    /// There was something of ours.
    pub was_there: bool,
    /// What is there and not ours.
    pub left: Vec<PathBuf>,
}

/// Detaches and removes everything that daemons have left in `dir`, and nothing else.
///
/// # Errors
/// A daemon is at work with it, the directory is not ours, or something cannot be removed; another
/// attempt goes on from there.
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
