// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The responder in the kernel: loads the BPF programs, attaches them, and keeps their maps as the
//! local view says. Decides nothing about what is answered.
//!
//! Maps and links are pinned and outlive the daemon, whatever ends it: peers go on being answered
//! until the lease ends, and the next daemon takes both over.

mod allow;
mod hooks;
mod kernel;
mod live;
mod maps;
mod netlink;
mod pins;
mod plain;
mod programs;
mod responder;
mod tc;
mod xdp;

use std::error::Error as StdError;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use aya::programs::SocketFilter;
use ibarr_common::map::{ABI_VERSION, Program, Reason};
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::counters::Counters;
use ibarr_proto::ip2gid::Prefixes;
use ibarr_proto::local_view::{Event, InterfaceName, LocalView};
use thiserror::Error;
use tracing::warn;

pub use self::kernel::Hook;
pub use self::live::Options;
pub use self::maps::Contents;
pub use self::responder::{Counter, Mode, Settings, State};

use self::live::Live;
use self::maps::Maps;
use self::pins::Pins;
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
    /// The guard cannot be attached to a socket.
    #[error("guard of the server sockets: cannot be attached")]
    Guard(#[source] Box<dyn StdError + Send + Sync>),
}

impl Error {
    /// Whether more rights would help.
    pub fn is_permission(&self) -> bool {
        is_permission(self)
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
pub struct Responder {
    options: Options,
    settings: Settings,
    allow: Prefixes,
    inner: Result<responder::Responder<Live>, String>,
    /// When to load the programs again, if another daemon was in the way.
    retry_at: Option<Instant>,
    /// How often programs were loaded, or not.
    loaded: u32,
    /// Of those before the one at work, and of loading.
    counters: Counters<Counter>,
}

/// How long another daemon is given before it is asked for again.
const RETRY: Duration = Duration::from_secs(1);

impl Responder {
    /// Loads the programs, if `settings` want any.
    pub fn start(now: Instant, options: Options, settings: Settings, allow: Prefixes) -> Self {
        let mut responder = Self {
            options,
            settings,
            allow,
            inner: Err(String::new()),
            retry_at: None,
            loaded: 0,
            counters: Counters::default(),
        };
        responder.open(now);
        responder
    }

    /// The view says something new. Takes effect in the kernel before this returns.
    pub fn handle_event(&mut self, event: &Event) {
        if let Ok(inner) = &mut self.inner {
            inner.handle_event(event);
        }
    }

    /// To be called when all events of the view were handled. Early calls do nothing.
    pub fn handle_timeout(&mut self, now: Instant, view: &LocalView) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.open(now);
        }
        if let Ok(inner) = &mut self.inner {
            inner.handle_timeout(now, view);
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next, besides after every event.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.inner {
            Ok(inner) => inner.poll_timeout(),
            Err(_) => self.retry_at,
        }
    }

    /// The administrator decides otherwise.
    pub fn reconfigure(&mut self, now: Instant, settings: Settings, allow: Prefixes) {
        self.settings = settings.clone();
        self.allow = allow.clone();
        match &mut self.inner {
            Ok(inner) if settings.want_kernel() => inner.reconfigure(now, settings, allow),
            _ => self.open(now),
        }
    }

    /// Changes when each socket of the port is to be [guarded](Self::guard) again.
    pub fn generation(&self) -> u32 {
        self.loaded
    }

    /// Has the kernel drop what a socket of the ip2gid port would drop, so that nobody is woken for
    /// it; or no longer.
    pub fn guard(&mut self, socket: BorrowedFd<'_>) {
        let Ok(inner) = &mut self.inner else {
            // There may be none to remove.
            drop(SocketFilter::detach(socket));
            return;
        };
        if let Err(error) = inner.kernel_mut().guard(socket) {
            warn!("{}", chain(&error));
        }
    }

    /// Why nothing at all is answered in the kernel.
    pub fn why_not(&self) -> Option<&str> {
        match &self.inner {
            Ok(inner) => inner.fault(),
            Err(reason) => Some(reason),
        }
    }

    /// What is attached to an interface that is served.
    pub fn state(&self, ifindex: IfIndex) -> Option<&State> {
        self.inner.as_ref().ok()?.state(ifindex)
    }

    /// When the programs stop answering if nothing renews the lease.
    pub fn lease_end(&self) -> Option<Instant> {
        self.inner.as_ref().ok().map(responder::Responder::lease_end)
    }

    /// What has happened.
    pub fn counters(&self) -> Counters<Counter> {
        let mut counters = self.counters.clone();
        if let Ok(inner) = &self.inner {
            inner.counters().iter().for_each(|(counter, count)| counters.add(counter, count));
        }
        counters
    }

    /// What the programs have counted since the maps were made, as `tc.answered`.
    pub fn counts(&self) -> Vec<(String, u64)> {
        let Ok(inner) = &self.inner else { return Vec::new() };
        let counts = inner.kernel().counts().unwrap_or_else(|error| {
            warn!("{}", chain(&error));
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

    /// In place of the one at work.
    fn open(&mut self, now: Instant) {
        self.counters = self.counters();
        self.retry_at = None;
        self.loaded += 1;
        // Lets go of the pins before anybody else takes hold of them.
        let before =
            std::mem::replace(&mut self.inner, Err(responder::BY_DECISION.to_owned())).err();
        if !self.settings.want_kernel() {
            if let Err(error) = detach(&self.options.dir) {
                warn!("{}", chain(&error));
            }
            return;
        }
        let (settings, allow) = (self.settings.clone(), self.allow.clone());
        match Live::open(&self.options) {
            Ok(live) => self.inner = Ok(responder::Responder::new(live, settings, allow)),
            Err(error) => {
                let reason = chain(&error);
                if before.as_ref() != Some(&reason) {
                    self.counters.count(Counter::NotLoaded);
                    warn!("peers are answered in user space: {reason}");
                }
                if let Error::Pins(pins::Error::Taken(_)) = error {
                    self.retry_at = Some(now + RETRY);
                }
                self.inner = Err(reason);
            }
        }
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
            let is_here = pins::namespace(dir)?.exists();
            Ok(Some(Maps::open(&layout)?.contents(is_here)?))
        }
    }
}

/// Detaches and removes everything that daemons have left in `dir`; `false` if there was nothing.
///
/// # Errors
/// A daemon is at work with it, or something cannot be removed; another attempt goes on from there.
pub fn detach(dir: &Path) -> Result<bool, Error> {
    let Some(pins) = Pins::open_existing(dir)? else { return Ok(false) };
    let hooks = pins.hooks()?;
    let has_filters = hooks.iter().any(|(_, hook)| *hook == Hook::Clsact);
    if has_filters && pins.is_foreign(&pins::namespace(dir)?)? {
        return Err(Error::Elsewhere(dir.to_owned()));
    }
    for (ifindex, hook) in hooks {
        hooks::detach(&pins, ifindex, hook)?;
    }
    for ifindex in pins.qdiscs()? {
        hooks::detach_qdisc(&pins, ifindex)?;
    }
    pins.remove()?;
    Ok(true)
}
