// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run k`: an address moves to another node, while connections to it are made one after another.
//!
//! The same move is made three times: with `ibarr`, with an `ibarr` that always asks, as the C original, and inside
//! an IP subnet, where the kernel resolves alone. The owners of the address are `b` and `n`, behind the router;
//! inside the subnet they are `r` and `n`.
//!
//! **What is claimed of the failures.** Which GID was given is known, and of the old one none is allowed a
//! second after the move. But a connection may also fail although its GID is right: the kernel's connection
//! manager sends a lost message again after seconds, and we wait for two. That happens to all alike, so the
//! counts of two callers differ by chance, by more than twice the root of their sum in one of forty pairs.
//! No more than that is allowed. Fifteen failures of fifteen, as of 1.0.0, are far more.

use std::fmt;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ibarr_common::ib::Gid;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::report::Report;
use crate::rig::{
    self, B, Caller, INTERFACES, Ibarr, Interface, N, Place, Process, R, Rig, Who, eventually, ip,
    is_listening, spawn,
};

const ACROSS: Way = Way {
    address: "10.2.0.50",
    owners: [INTERFACES[1], INTERFACES[4]],
    cables: ["N/2", "N/5"],
    learns: (R, "ib3"),
};
const INSIDE: Way = Way {
    address: "10.1.0.50",
    owners: [INTERFACES[2], INTERFACES[4]],
    cables: ["N/3", "N/5"],
    learns: (Place::Here, "ib0"),
};

/// From one connection to the next.
const PACE: Duration = Duration::from_millis(300);
/// How long connections are made after the address has moved.
const AFTER: Duration = Duration::from_secs(6);
/// How long the address has no owner when the link of one has failed.
const TAKEOVER: Duration = Duration::from_secs(3);
/// The age up to which memory answers, and so a wrong GID is allowed.
const FRESH: Duration = Duration::from_secs(1);
/// An address and its path that take longer are slow.
const SLOW: Duration = Duration::from_secs(1);
/// For how long a slow peer is stopped again and again, and for how long it goes on between.
const STOPPED: Duration = Duration::from_millis(700);
const GOES_ON: Duration = Duration::from_millis(50);
/// Peers behind the same router, which programs answer for.
const FAST: [&str; 3] = ["10.2.0.1", "10.2.0.51", "10.2.0.52"];

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(mut scene) = report.claim("three nodes have ibarr", Scene::set()) {
        for event in Event::ALL {
            prove(&mut report, &mut scene, event);
        }
        report.claim("all daemons end when they are asked to", scene.end());
    }
    report.end()
}

fn prove(report: &mut Report, scene: &mut Scene, event: Event) {
    let mut rounds = Vec::new();
    for caller in Who::ALL {
        let round = scene.round(event, caller);
        let Some(round) = report.claim(&format!("{event}: a round with {caller}"), round) else {
            return;
        };
        Report::figure(format_args!("{event}, {caller}: {round}"));
        rounds.push(round);
    }
    let [ours, always, _] = &rounds[..] else { return };
    let claim = format!("{event}: a second later ibarr fails no more than one that always asks");
    report.claim(&claim, no_more(ours.failed_late, always.failed_late));
    let claim = format!("{event}: no more paths take a second than of one that always asks");
    report.claim(&claim, no_more(ours.slow, always.slow));
    let claim = format!("{event}: no answer older than a second has a GID that was lost");
    report.claim(&claim, ours.has_no_old_answer());
    if event == Event::Moved {
        report.claim("at most one connection fails when an address is moved", ours.fails_once());
    }
}

/// What happens to the owner of the address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Event {
    Moved,
    LinkDown,
    Replaced,
    DaemonKilled,
    MovedWithLoss,
    MovedToSlow,
}

impl Event {
    const ALL: [Self; 6] = [
        Self::Moved,
        Self::LinkDown,
        Self::Replaced,
        Self::DaemonKilled,
        Self::MovedWithLoss,
        Self::MovedToSlow,
    ];
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Moved => "the address is moved",
            Self::LinkDown => "the owner's link fails",
            Self::Replaced => "the owner is another HCA with the same address",
            Self::DaemonKilled => "the owner's daemon is killed first",
            Self::MovedWithLoss => "the address is moved, with 5% loss",
            Self::MovedToSlow => "the address is moved to a slow peer among fast ones",
        })
    }
}

/// An address, its two owners, and the interface whose neighbour entry follows a move.
#[derive(Clone, Copy, Debug)]
struct Way {
    address: &'static str,
    owners: [Interface; 2],
    cables: [&'static str; 2],
    learns: (Place, &'static str),
}

impl Way {
    fn gives(&self, owner: usize) -> Result<()> {
        let Interface { name, place, .. } = self.owners[owner];
        ip(place, &format!("address replace {}/32 dev {name}", self.address))?;
        self.is_announced()
    }

    fn takes(&self, owner: usize) -> Result<()> {
        let Interface { name, place, .. } = self.owners[owner];
        ip(place, &format!("address del {}/32 dev {name}", self.address)).map(drop)
    }

    /// As gratuitous ARP does it.
    fn is_announced(&self) -> Result<()> {
        let (place, device) = self.learns;
        ip(place, &format!("neighbour flush to {} dev {device}", self.address)).map(drop)
    }
}

/// The rig, a daemon on each node, and a server of connections on each owner.
struct Scene {
    here: Ibarr,
    b: Ibarr,
    n: Ibarr,
    servers: Vec<Process>,
    _rig: Rig,
}

impl Scene {
    fn set() -> Result<Self> {
        let rig = Rig::up_without_capture()?;
        ip(N, "route del 10.2.0.0/24")?;
        ip(N, "address add 10.2.0.2/24 dev ib4")?;
        for address in &FAST[1..] {
            ip(B, &format!("address add {address}/24 dev ib1"))?;
        }
        Ok(Self {
            here: Ibarr::start("here", Place::Here, "", 1)?,
            b: Ibarr::start("b", B, "", 1)?,
            n: Ibarr::start("n", N, "", 1)?,
            servers: Vec::new(),
            _rig: rig,
        })
    }

    fn end(self) -> Result<()> {
        self.here.stop()?;
        self.b.stop()?;
        self.n.stop()
    }

    /// Starts the servers anew: a connection that is lost while it is made may be the end of rping's.
    fn serve(&mut self) -> Result<()> {
        self.servers.clear();
        for place in [B, N, R] {
            let server = spawn("rping-server", place, &["rping", "-s", "-P"])?;
            is_listening(&server)?;
            self.servers.push(server);
        }
        Ok(())
    }

    fn attempt(
        &mut self,
        event: Event,
        who: Who,
        round: &mut Round,
        moved: Option<(Instant, Gid)>,
    ) -> Result<()> {
        let has_failed = round.attempt(event, who, moved)?;
        if has_failed { self.serve() } else { Ok(()) }
    }

    /// Connections before, during and after the event, in turn. Afterwards all is as before.
    fn round(&mut self, event: Event, who: Who) -> Result<Round> {
        let way = way_of(who);
        self.serve()?;
        self.here.reconfigure(who.config())?;
        way.gives(0)?;
        eventually(|| connect(way.address))?;
        if event == Event::MovedWithLoss {
            fault(&["link", "N/1", "--loss", "5%"])?;
        }
        let new = way.owners[1].gid()?;
        let mut round = Round::default();
        let slow = if event == Event::MovedToSlow {
            self.n.reconfigure("responder = \"user\"\n")?;
            Some(Halting::begin(&self.n)?)
        } else {
            None
        };
        for _ in 0..3 {
            self.attempt(event, who, &mut round, None)?;
        }
        match event {
            Event::Moved | Event::MovedWithLoss | Event::MovedToSlow => way.takes(0)?,
            Event::DaemonKilled => {
                self.b.kill()?;
                way.takes(0)?;
            }
            Event::LinkDown => {
                let Interface { name, place, .. } = way.owners[0];
                ip(place, &format!("link set {name} down"))?;
                let down = Instant::now();
                while down.elapsed() < TAKEOVER {
                    self.attempt(event, who, &mut round, None)?;
                }
            }
            Event::Replaced => fault(&["cable", way.cables[0], "off"])?,
        }
        way.gives(1)?;
        let moved = Instant::now();
        while moved.elapsed() < AFTER {
            self.attempt(event, who, &mut round, Some((moved, new)))?;
        }
        slow.map_or(Ok(()), Halting::end)?;
        self.restore(event, &way)?;
        Ok(round)
    }

    fn restore(&mut self, event: Event, way: &Way) -> Result<()> {
        way.takes(1)?;
        match event {
            Event::Moved => {}
            Event::MovedToSlow => self.n.reconfigure("")?,
            Event::MovedWithLoss => fault(&["link", "N/1"])?,
            Event::LinkDown => {
                way.takes(0)?;
                let Interface { name, place, .. } = way.owners[0];
                rig::equip(&way.owners[0], name)?;
                rig::is_up(place, name)?;
                ip(B, "route replace 10.1.0.0/24 via 10.2.0.254")?;
            }
            Event::Replaced => {
                fault(&["cable", way.cables[0], "on"])?;
                way.takes(0)?;
                rig::is_active(Place::Here, way.owners[0].port)?;
                rig::is_up(way.owners[0].place, way.owners[0].name)?;
            }
            Event::DaemonKilled => self.b = Ibarr::start("b", B, "", 1)?,
        }
        Ok(())
    }
}

/// A daemon that is stopped again and again, so that it takes up to [`STOPPED`] to answer.
struct Halting {
    end: Sender<()>,
    thread: JoinHandle<nix::Result<()>>,
}

impl Halting {
    fn begin(daemon: &Ibarr) -> Result<Self> {
        let id = Pid::from_raw(i32::try_from(daemon.id())?);
        let (end, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            loop {
                kill(id, Signal::SIGSTOP)?;
                let goes_on = ended.recv_timeout(STOPPED);
                kill(id, Signal::SIGCONT)?;
                if goes_on != Err(RecvTimeoutError::Timeout) {
                    return Ok(());
                }
                thread::sleep(GOES_ON);
            }
        });
        Ok(Self { end, thread })
    }

    fn end(self) -> Result<()> {
        drop(self.end);
        self.thread.join().ok().context("the thread panicked")?.context("the daemon is gone")
    }
}

/// What became of the connections of a round.
#[derive(Debug, Default)]
struct Round {
    connections: u32,
    failed: u32,
    /// Those of them that began a second or more after the move.
    failed_late: u32,
    slow: u32,
    /// GIDs of the first owner that were given when it had lost the address for a second or more.
    wrong_late: u32,
    /// When the kernel was last given the GID of the first owner, counted from the move.
    wrong_until: Duration,
}

impl Round {
    /// A path and a connection; `moved` says when the address has moved, and to which GID. Whether the
    /// connection has failed.
    fn attempt(&mut self, event: Event, who: Who, moved: Option<(Instant, Gid)>) -> Result<bool> {
        let began = Instant::now();
        let address = way_of(who).address;
        let is_late = moved.is_some_and(|(at, _)| at.elapsed() >= FRESH);
        if event == Event::MovedToSlow && who != Who::KernelAlone {
            for address in FAST {
                self.path_to(address)?;
            }
        }
        let gid = self.path_to(address)?;
        if let (Some((at, new)), Some(gid)) = (moved, gid)
            && gid != new
        {
            self.wrong_until = at.elapsed();
            self.wrong_late += u32::from(is_late);
        }
        let has_failed = connect(address).is_err();
        self.connections += 1;
        self.failed += u32::from(has_failed);
        self.failed_late += u32::from(has_failed && is_late);
        thread::sleep(PACE.saturating_sub(began.elapsed()));
        Ok(has_failed)
    }

    /// The GID in the path that the kernel is given, if that does not take too long.
    fn path_to(&mut self, address: &str) -> Result<Option<Gid>> {
        let asked = Instant::now();
        let path = Caller::new(SLOW)?.path_to(address);
        self.slow += u32::from(asked.elapsed() > SLOW);
        Ok(path.ok().map(|path| path.dgid))
    }

    fn fails_once(&self) -> Result<()> {
        ensure!(self.failed <= 1, "{self}");
        Ok(())
    }

    fn has_no_old_answer(&self) -> Result<()> {
        ensure!(self.wrong_late == 0, "{self}");
        Ok(())
    }
}

fn no_more(ours: u32, others: u32) -> Result<()> {
    let (more, all) = (ours.saturating_sub(others), ours + others);
    ensure!(more * more <= 4 * all, "{ours} of ibarr, and {others}");
    Ok(())
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, failed, failed_late, slow, wrong_until, .. } = self;
        let wrong = wrong_until.as_secs_f64();
        write!(
            f,
            "{failed} of {connections} connections failed, {failed_late} of them later than a second, "
        )?;
        write!(f, "{slow} paths took more than a second; last wrong GID after {wrong:.1} s")
    }
}

/// A connection that carries one message. One to a dead HCA would hang for a minute.
fn connect(address: &str) -> Result<()> {
    let words = ["busybox", "timeout", "2", "rping", "-c", "-v", "-C", "1", "-a", address];
    let said = rig::run(Place::Here, &words)?;
    // It exits with 0 when it is rejected, too.
    ensure!(said.contains("ping data: rdma-ping-"), "{said}");
    Ok(())
}

/// Inside an IP subnet the kernel resolves alone.
fn way_of(who: Who) -> Way {
    if who == Who::KernelAlone { INSIDE } else { ACROSS }
}

fn fault(words: &[&str]) -> Result<()> {
    rig::run(Place::Here, &[&["ibfab", "fault"], words].concat()).map(drop)
}
