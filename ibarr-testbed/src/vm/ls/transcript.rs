// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! This kernel is what the stand-in imitates: it does in each case what the recording says.
//!
//! Some cases need an action while the kernel sends a request, which takes the kernel some ten
//! microseconds. With one processor, and a kernel that can be preempted everywhere, a thread with the
//! highest priority can do it: it wakes when the request is in its socket. The thread that asks and
//! changes neighbours has the second priority, so that the kernel's thread that repeats waiting requests
//! finds no lock taken; that thread has the lowest. Kernels before 5.12 cannot be preempted everywhere, so these cases
//! are not tried there.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ibarr_common::IfIndex;
use ibarr_testbed::standin::transcript::{self, Heard, Model, Outcome, Reflex, Saying, Subject};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

use super::socket::Socket;
use super::{PATIENCE, TAKEN, TIMED_OUT};
use crate::report::Report;
use crate::rtnetlink::Rtnetlink;
use crate::sys::rdma_cm::{Channel, Id};
use crate::sys::scheduler;
use crate::version;

pub(super) fn prove(ifindex: IfIndex, report: &mut Report) {
    // The priority ends with the thread.
    thread::scope(|scope| drop(scope.spawn(|| prove_here(ifindex, report)).join()));
}

fn prove_here(ifindex: IfIndex, report: &mut Report) {
    let single = Single::new();
    let kernel = single.and_then(|single| {
        scheduler::go_first(1)?;
        Ok((Kernel::new(ifindex)?, single))
    });
    let claim = "one processor, and a kernel that is preempted everywhere if it can be";
    let Some((mut kernel, single)) = report.claim(claim, kernel) else { return };
    let mut all = String::new();
    let mut is_as_recorded = true;
    for case in transcript::cases() {
        let claim = format!("as recorded: {}", case.name);
        if case.has_reflex() && single.preemption.is_none() {
            report.skip(&claim, &format!("this kernel has no {PREEMPTION}"));
            continue;
        }
        let said = || -> Result<()> {
            let expected = case.run(&mut Model::default(), None)?;
            let said = case.run(&mut kernel, Some(&expected))?;
            all += said.text();
            let recorded = case.recorded();
            is_as_recorded &= said.text() == recorded;
            ensure!(said.text() == recorded, "{}instead of\n{recorded}", said.text());
            Ok(())
        };
        report.claim(&claim, { said }());
    }
    if !is_as_recorded {
        Report::note("the transcript of this kernel, for the recording:");
        all.lines().for_each(|line| Report::note(format_args!("| {line}")));
    }
}

/// While this exists, the guest has one processor, and the kernel is preempted everywhere if it can be.
struct Single {
    /// The setting before, if the kernel has one.
    preemption: Option<String>,
}

const SECOND: &str = "/sys/devices/system/cpu/cpu1/online";
const DEBUGFS: &str = "/sys/kernel/debug";
const PREEMPTION: &str = "/sys/kernel/debug/sched/preempt";

impl Single {
    fn new() -> Result<Self> {
        if !Path::new(PREEMPTION).exists() {
            let flags = MsFlags::empty();
            mount(Some("debugfs"), DEBUGFS, Some("debugfs"), flags, None::<&str>)
                .context(DEBUGFS)?;
        }
        let mut single = Self { preemption: None };
        if Path::new(PREEMPTION).exists() {
            // "none (voluntary) full"
            let modes = fs::read_to_string(PREEMPTION).context(PREEMPTION)?;
            let mode = modes.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
            let (mode, _) = mode.with_context(|| format!("{PREEMPTION} is {modes:?}"))?;
            fs::write(PREEMPTION, "full").context(PREEMPTION)?;
            single.preemption = Some(mode.to_owned());
        }
        fs::write(SECOND, "0").context(SECOND)?;
        Ok(single)
    }
}

impl Drop for Single {
    fn drop(&mut self) {
        // Without the second processor the rest is only slower.
        let _ = fs::write(SECOND, "1");
        if let Some(mode) = &self.preemption {
            let _ = fs::write(PREEMPTION, mode);
        }
    }
}

struct Kernel {
    ifindex: IfIndex,
    socket: Arc<Socket>,
    rtnetlink: Rtnetlink,
    messages: Receiver<Vec<u8>>,
    reflexes: Arc<Mutex<&'static [Reflex]>>,
    channel: Channel,
    asked: Vec<Id>,
    /// Callers that were refused at once.
    refused: Vec<Heard>,
    /// Number of neighbours that have become valid.
    neighbours: u16,
    /// Whether reactions come in the order of the recording; otherwise they come in any order.
    is_in_order: bool,
}

/// Number of the first neighbour of a reflex; neighbours of steps count from 1.
const OF_REFLEX: u16 = 1000;
/// After this time without an event, no further event comes.
const SETTLE: Duration = Duration::from_millis(20);

impl Kernel {
    fn new(ifindex: IfIndex) -> Result<Self> {
        let socket = Arc::new(Socket::open()?);
        let reflexes: Arc<Mutex<&'static [Reflex]>> = Arc::default();
        let messages = listen(Arc::clone(&socket), Arc::clone(&reflexes))?;
        Ok(Self {
            ifindex,
            socket,
            rtnetlink: Rtnetlink::open()?,
            messages,
            reflexes,
            channel: Channel::open().context("no connection manager")?,
            asked: Vec::new(),
            refused: Vec::new(),
            neighbours: 0,
            is_in_order: version::linux()? <= version::IN_ORDER,
        })
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // The listening thread still keeps the socket for a while.
        let _ = self.socket.set_member(false);
    }
}

/// Listens to the kernel on a thread with the highest priority, until no other thread has the socket.
fn listen(
    socket: Arc<Socket>,
    reflexes: Arc<Mutex<&'static [Reflex]>>,
) -> Result<Receiver<Vec<u8>>> {
    const IDLE: Duration = Duration::from_secs(1);
    let rtnetlink = Rtnetlink::open()?;
    let (sender, messages) = mpsc::channel();
    thread::Builder::new().name("ear".to_owned()).spawn(move || -> Result<()> {
        scheduler::go_first(2)?;
        loop {
            let Some(message) = socket.receive(IDLE)? else {
                if Arc::strong_count(&socket) == 1 {
                    return Ok(());
                }
                continue;
            };
            let mut armed = reflexes.lock().ok().context("no other thread panics")?;
            for reflex in std::mem::take(&mut *armed) {
                match reflex {
                    Reflex::Answer => {
                        let seq = message.get(8..12).and_then(<[u8]>::first_chunk::<4>);
                        let seq = seq.copied().map(u32::from_ne_bytes).unwrap_or_default();
                        socket.send(&Saying::Answer.datagram(seq, socket.port_id().0))?;
                    }
                    Reflex::Neighbour => rtnetlink.add_neighbour(OF_REFLEX)?,
                }
            }
            sender.send(message)?;
        }
    })?;
    Ok(messages)
}

impl Subject for Kernel {
    fn begin(&mut self) -> Result<()> {
        // Callers that still wait end with their channel.
        self.channel = Channel::open().context("no connection manager")?;
        self.neighbour(false)?;
        self.asked.clear();
        self.refused.clear();
        self.reflex(&[])?;
        self.listen(true)?;
        while self.messages.recv_timeout(SETTLE).is_ok() {}
        Ok(())
    }

    fn numbers(&self) -> (u32, u32) {
        (self.ifindex.get(), self.socket.port_id().0)
    }

    fn ask(&mut self, target: IpAddr, timeout: Duration) -> Result<()> {
        const PORT: u16 = 7471;
        let id = self.channel.create_id().context("no identifier")?;
        self.asked.push(id);
        let asked = self.channel.resolve_addr(id, SocketAddr::new(target, PORT), timeout);
        match asked.map_err(|error| error.raw_os_error().map(Errno::from_raw)) {
            Ok(()) => {}
            Err(Some(Errno::EADDRNOTAVAIL)) => {
                let caller = u32::try_from(self.asked.len())?;
                self.refused.push(Heard::End(caller, Outcome::NoListener));
            }
            Err(error) => bail!("the attempt was refused with {error:?}"),
        }
        Ok(())
    }

    fn say(&mut self, datagram: &[u8]) -> Result<()> {
        Ok(self.socket.send(datagram)?)
    }

    fn neighbour(&mut self, valid: bool) -> Result<()> {
        if valid {
            self.neighbours += 1;
            return self.rtnetlink.add_neighbour(self.neighbours);
        }
        for number in 1..=self.neighbours {
            self.rtnetlink.delete_neighbour(number)?;
        }
        self.neighbours = 0;
        // The neighbour exists only if a reflex has made it.
        let _ = self.rtnetlink.delete_neighbour(OF_REFLEX);
        Ok(())
    }

    fn listen(&mut self, is_there: bool) -> Result<()> {
        self.socket.set_member(is_there)
    }

    fn reflex(&mut self, reflexes: &'static [Reflex]) -> Result<()> {
        *self.reflexes.lock().ok().context("no other thread panics")? = reflexes;
        Ok(())
    }

    fn heard(&mut self, _wait: bool, expected: usize) -> Result<Vec<Heard>> {
        let begun = Instant::now();
        let mut ends = std::mem::take(&mut self.refused);
        let mut messages = Vec::new();
        loop {
            messages.extend(self.messages.try_iter().map(Heard::Message));
            let is_all = messages.len() + ends.len() >= expected || begun.elapsed() > PATIENCE;
            let within = if is_all { SETTLE } else { Duration::from_millis(1) };
            let Some(event) = self.channel.event(within)? else {
                if is_all {
                    break;
                }
                continue;
            };
            let caller = self.asked.iter().position(|id| *id == event.id);
            let caller = caller.context("an event of an unknown caller")? + 1;
            let outcome = match event.status {
                TAKEN => Outcome::Answered,
                TIMED_OUT => Outcome::TimedOut,
                NO_LISTENER => Outcome::NoListener,
                _ => bail!("{event:?}"),
            };
            ends.push(Heard::End(u32::try_from(caller)?, outcome));
        }
        messages.extend(self.messages.try_iter().map(Heard::Message));
        messages.extend(ends);
        if !self.is_in_order {
            messages.sort_by_key(Heard::place);
        }
        Ok(messages)
    }
}

const NO_LISTENER: i32 = -(Errno::EADDRNOTAVAIL as i32);
