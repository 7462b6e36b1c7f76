// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm daemon`, failure modes: the daemon on a stock kernel under faults. The kernel has no RDMA yet; other
//! processes join the group and forge messages; the daemon dies; IPv6 is off; the socket is inherited.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ibarr_common::IfIndex;
use ibarr_common::wire::ls::{PortId, Request, ResolveIp, Seq};
use ibarr_user::control::client;
use ibarr_user::control::messages::{Request as Asked, Response};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, Uid, chown, setuid};
use serde_json::Value;

use super::network::{FAR_V4, FAR_V6, Network};
use super::socket::Socket;
use super::{CALLER_TIMEOUT, PATIENCE, TAKEN, good_answer, is_refused, start};
use crate::report::Report;
use crate::rtnetlink::Rtnetlink;
use crate::sys::rdma_cm::{Channel, EventKind};
use crate::{OWN, init};

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Err(error) = prove(&mut report) {
        report.claim::<()>("nothing else failed", Err(error));
    }
    report.end()
}

fn prove(report: &mut Report) -> Result<()> {
    let network = Network::up(&Rtnetlink::open()?)?;
    fs::write(CONFIG, "responder = \"user\"\n")?;

    let daemon = Ibarr::start(Ibarr::command())?;
    report.claim("without RDMA the daemon is ready, and waits for the module", awaits_rdma());
    init::load(init::LATER)?;
    report.claim("as soon as there is RDMA, the daemon answers", until("is open", is_open));
    report.claim("1 address is resolved", resolves(&[FAR_V4], 1));
    report.claim("an address of each family is resolved", resolves(&[FAR_V4, FAR_V6], 2));
    report
        .claim("messages of other processes are counted and not answered", ignores_others(&daemon));
    report.claim("5,000 requests at once are answered", flood());
    report.claim(
        "requests without room in the socket are counted, and asked again",
        overrun(&daemon),
    );
    report.claim("a caller in another network namespace is answered", from_another_namespace());
    report.claim(
        "requests that waited when the daemon was killed are answered by the next",
        killed(daemon),
    );
    report.claim("requests that wait when the daemon is told to end are answered first", ended());
    for (place, said) in STRANDED {
        let claim = format!("{place} the daemon does not join the group, and says why");
        report.claim(&claim, leaves_the_kernel_alone(place, said));
    }
    report
        .claim("other processes in the group, ibacm among them, are named", strangers_are_named());
    report.claim("a socket that was opened before the daemon started is used", inherits());
    let claim = "if nudges fail the daemon says so, and callers get answers at their time-out";
    report.claim(claim, without_ipv6());
    drop(network);
    Ok(())
}

const CONFIG: &str = "/run/ibarr.toml";
/// The kernel goes through all its callers for each of up to 40,000 answers, which takes seconds on a busy
/// machine. A caller that no nudge wakes waits for its whole time.
const HALF_THEIR_TIME: Duration = Duration::from_secs(30);
/// Requests that wait while no daemon runs.
const WAITING: usize = 50;

fn awaits_rdma() -> Result<()> {
    let said = local_service()?;
    let reason = said["blocked"].as_str().unwrap_or_default();
    ensure!(said["state"] == "closed" && reason.contains("ib_core"), "{said}");
    Ok(())
}

fn is_open() -> Result<bool> {
    Ok(local_service()?["state"] == "open")
}

/// Sends the daemon what the kernel would ask, from another process.
fn ignores_others(daemon: &Ibarr) -> Result<()> {
    let before = counts()?;
    let ours = Socket::open()?;
    let its_number = daemon.port_id()?;
    let request = ResolveIp { ifindex: IfIndex::MIN, target: FAR_V4.parse()? };
    let request = Request::ResolveIp(request).emit(Seq(7));
    let answer = good_answer(&ours, Seq(7))?;
    // A request as the kernel sends it; another daemon's answer, to the group; and a message that is neither.
    ours.send_to(its_number, request.as_ref())?;
    ours.send_to_group(answer.as_ref())?;
    ours.send_to(its_number, &[0; 3])?;
    until("has counted them", || {
        let counted = counts()?;
        Ok(count(&counted, "not-from-kernel") == count(&before, "not-from-kernel") + 3)
    })?;
    let counted = counts()?;
    let same = |name| count(&counted, name) == count(&before, name);
    ensure!(same("requests") && same("malformed-truncated"), "{counted}");
    let said = ours.receive(Duration::ZERO)?;
    ensure!(said.is_none(), "the daemon answered: {said:02x?}");
    Ok(())
}

fn flood() -> Result<()> {
    resolves(&[FAR_V4], 5_000)?;
    let counted = counts()?;
    let of = |name| format!("{} {name}", count(&counted, name));
    let noted = ["overruns", "requests-full", "duplicates-waiting", "duplicates-answered"].map(of);
    Report::note(noted.join(", "));
    Ok(())
}

/// While the daemon is stopped, nudges make the kernel send all waiting requests again, until the
/// socket's 32 MiB are full.
fn overrun(daemon: &Ibarr) -> Result<()> {
    const CALLERS: usize = 5_000;
    const ROUNDS: usize = 100;
    let rtnetlink = Rtnetlink::open()?;
    daemon.stop()?;
    let waiting = Waiting::start(&[FAR_V4], CALLERS, CALLER_TIMEOUT)?;
    let mut rounds = 0;
    while daemon.drops()? == 0 {
        rounds += 1;
        ensure!(rounds < ROUNDS, "there is still room after {rounds} times {CALLERS} requests");
        rtnetlink.nudge()?;
        thread::sleep(Duration::from_millis(200));
    }
    kill(daemon.pid(), Signal::SIGCONT)?;
    waiting.end()?;
    let counted = counts()?;
    ensure!(count(&counted, "overruns") > 0, "{counted}");
    Ok(())
}

/// The interface index of such a caller means nothing here, or another interface.
fn from_another_namespace() -> Result<()> {
    thread::spawn(|| -> Result<()> {
        unshare(CloneFlags::CLONE_NEWNET).context("no other network namespace")?;
        // The first interface gets the index that our interface has in the first namespace.
        let rtnetlink = Rtnetlink::open()?;
        let _first = crate::sys::tun::Tun::open("other0", 1).context("a TUN device")?;
        let _network = Network::up(&rtnetlink)?;
        resolves(&[FAR_V4], 1)
    })
    .join()
    .map_err(|_| anyhow::anyhow!("the thread has panicked"))?
}

fn killed(mut daemon: Ibarr) -> Result<()> {
    // It is still in the group, but cannot answer.
    daemon.stop()?;
    let waiting = Waiting::start(&[FAR_V4, FAR_V6], WAITING, CALLER_TIMEOUT)?;
    kill(daemon.pid(), Signal::SIGKILL)?;
    daemon.child.wait()?;
    let next = Ibarr::start(Ibarr::command())?;
    waiting.end()?;
    next.end()
}

fn ended() -> Result<()> {
    let daemon = Ibarr::start(Ibarr::command())?;
    // The daemon learns the answers before the callers ask.
    resolves(&[FAR_V4, FAR_V6], 2)?;
    daemon.stop()?;
    let waiting = Waiting::start(&[FAR_V4, FAR_V6], WAITING, CALLER_TIMEOUT)?;
    kill(daemon.pid(), Signal::SIGTERM)?;
    kill(daemon.pid(), Signal::SIGCONT)?;
    waiting.end()?;
    daemon.wait()
}

/// Places in which the kernel refuses the daemon's messages, and the remedy that the daemon reports.
const STRANDED: [(&str, &str); 2] = [
    ("in another network namespace", "nsenter --net=/proc/1/ns/net"),
    ("without CAP_NET_ADMIN", "CAP_NET_ADMIN"),
];
/// A user without any right.
const NOBODY: Uid = Uid::from_raw(65534);

/// A caller is refused at once, as if the daemon did not run. The run directory belongs to a user without
/// rights, and root's daemon in the first place leaves it usable for the next one.
fn leaves_the_kernel_alone(place: &str, said: &str) -> Result<()> {
    const RUN_DIR: &str = "/run/stranded";
    if !fs::exists(RUN_DIR)? {
        fs::create_dir(RUN_DIR)?;
        chown(RUN_DIR, Some(NOBODY), None)?;
    }
    let mut command = Command::new(OWN);
    command.args([crate::STRANDED, place]).args(Ibarr::COMMAND).args(["--run-dir", RUN_DIR]);
    let daemon = Ibarr { child: command.spawn()? };
    let deadline = Instant::now() + PATIENCE;
    // The daemon knows only when the kernel has refused its first message.
    loop {
        let reason = match client::ask(Path::new(RUN_DIR), &Asked::Status, PATIENCE) {
            Ok(body) => {
                let status = serde_json::to_value(Response::from(body))?["status"].take();
                let of_kernel = &status["local-service"];
                let blocked = of_kernel["blocked"].as_str().unwrap_or_default();
                if of_kernel["state"] == "closed" && blocked.contains(said) {
                    break;
                }
                status.to_string()
            }
            Err(failure) => failure.message,
        };
        ensure!(Instant::now() < deadline, "{reason}");
        thread::sleep(Duration::from_millis(20));
    }
    is_refused(FAR_V4)?;
    daemon.end()
}

/// Becomes the program of `command`, in one of the places of `STRANDED`.
pub(crate) fn strand(place: &str, command: &[String]) -> Result<std::convert::Infallible> {
    let [program, arguments @ ..] = command else { bail!("no command") };
    match STRANDED.iter().position(|(name, _)| *name == place) {
        Some(0) => unshare(CloneFlags::CLONE_NEWNET)?,
        Some(1) => setuid(NOBODY)?,
        _ => bail!("there is no place {place}"),
    }
    Err(Command::new(program).args(arguments).exec()).context("exec")
}

fn strangers_are_named() -> Result<()> {
    const IBACM: &str = "/bin/ibacm";
    let stranger = Socket::open()?;
    symlink(OWN, IBACM).context(IBACM)?;
    let mut ibacm = Command::new(IBACM).arg(crate::LISTENER).spawn().context(IBACM)?;
    let daemon = Ibarr::start(Ibarr::command())?;
    // The daemon looks for other members now and then.
    let named = until("names both", || {
        let said = status()?;
        let names = |name: &str, pid: u32| {
            let listeners = said["local-service"]["listeners"].as_array();
            listeners.into_iter().flatten().any(|one| one["name"] == name && one["pid"] == pid)
        };
        let warnings = said["warnings"].to_string();
        Ok(names(OWN.trim_start_matches("/bin/"), std::process::id())
            && names("ibacm", ibacm.id())
            && warnings.contains("systemctl disable --now ibacm"))
    });
    ibacm.kill()?;
    ibacm.wait()?;
    drop(stranger);
    named?;
    daemon.end()
}

/// There is no IPoIB interface to nudge on instead: ours is a tunnel, on which all IPv4 neighbours share
/// one entry that stays.
fn without_ipv6() -> Result<()> {
    for of in ["all", "lo"] {
        let switch = format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6");
        fs::write(&switch, "1").context(switch)?;
    }
    let daemon = Ibarr::start(Ibarr::command())?;
    Waiting::start(&[FAR_V4], 10, Duration::from_secs(1))?.end()?;
    let said = status()?;
    let warnings = said["warnings"].to_string();
    ensure!(
        said["local-service"]["nudges"] == "failing" && warnings.contains("is IPv6 off?"),
        "{said}"
    );
    daemon.end()
}

/// As with systemd, the socket exists and is in the group before the daemon starts.
fn inherits() -> Result<()> {
    let socket = Socket::open()?;
    let waiting = Waiting::start(&[FAR_V4], WAITING, CALLER_TIMEOUT)?;
    let mut command = Command::new(OWN);
    command.arg(crate::INHERIT).args(Ibarr::COMMAND);
    command.stdin(socket.fd().try_clone_to_owned()?);
    let number = socket.port_id();
    drop(socket);
    let daemon = Ibarr::start(command)?;
    waiting.end()?;
    ensure!(local_service()?["state"] == "inherited", "{}", status()?);
    ensure!(daemon.port_id()? == number, "the daemon has opened another socket");
    daemon.end()
}

/// Becomes the program of `command`, which inherits standard input as `FDNAME=ls` (sd_listen_fds(3)).
pub(crate) fn inherit(command: &[String]) -> Result<std::convert::Infallible> {
    /// `SD_LISTEN_FDS_START`.
    const FIRST: i32 = 3;
    let [program, arguments @ ..] = command else { bail!("no command") };
    let socket = nix::unistd::dup(std::io::stdin())?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&socket);
    ensure!(number == FIRST, "standard input is now also {number}");
    // The socket stays open.
    std::mem::forget(socket);
    let variables = [
        ("LISTEN_PID", std::process::id().to_string()),
        ("LISTEN_FDS", "1".to_owned()),
        ("LISTEN_FDNAMES", "ls".to_owned()),
    ];
    Err(Command::new(program).args(arguments).envs(variables).exec()).context("exec")
}

/// Joins the group, and never answers.
pub(crate) fn listen() -> Result<std::convert::Infallible> {
    let _socket = Socket::open()?;
    loop {
        thread::park();
    }
}

fn resolves(targets: &[&str], callers: usize) -> Result<()> {
    Waiting::start(targets, callers, CALLER_TIMEOUT)?.end()
}

/// Callers that wait for an address.
struct Waiting {
    channel: Channel,
    left: usize,
}

impl Waiting {
    fn start(targets: &[&str], callers: usize, timeout: Duration) -> Result<Self> {
        let channel = Channel::open()?;
        for target in targets.iter().cycle().take(callers) {
            start(&channel, target, timeout)?;
        }
        Ok(Self { channel, left: callers })
    }

    fn end(mut self) -> Result<()> {
        while self.left > 0 {
            let left = self.left;
            let event = self.channel.event(HALF_THEIR_TIME)?;
            let event = event.with_context(|| format!("{left} have not ended"))?;
            ensure!(event.kind == EventKind::AddrError && event.status == TAKEN, "{event:?}");
            self.left -= 1;
        }
        Ok(())
    }
}

struct Ibarr {
    child: Child,
}

impl Ibarr {
    const COMMAND: [&str; 6] = ["/bin/ibarr", "run", "--config", CONFIG, "-l", "3"];

    fn command() -> Command {
        let [program, arguments @ ..] = Self::COMMAND;
        let mut command = Command::new(program);
        command.args(arguments);
        command
    }

    /// Starts the daemon, and waits until it answers the command line.
    fn start(mut command: Command) -> Result<Self> {
        let mut daemon = Self { child: command.spawn().context("ibarr cannot be started")? };
        let deadline = Instant::now() + PATIENCE;
        while status().is_err() {
            if let Some(status) = daemon.child.try_wait()? {
                bail!("it ended: {status}");
            }
            ensure!(Instant::now() < deadline, "the daemon does not answer");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(daemon)
    }

    /// The port id of the daemon's socket.
    fn port_id(&self) -> Result<PortId> {
        Ok(PortId(u32::try_from(self.socket_field(2)?)?))
    }

    /// Number of messages that the daemon's socket had no room for.
    fn drops(&self) -> Result<u64> {
        self.socket_field(8)
    }

    /// A field of the daemon's socket to the kernel's RDMA core in /proc/net/netlink, whose columns are
    /// sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode.
    fn socket_field(&self, field: usize) -> Result<u64> {
        let table = fs::read_to_string("/proc/net/netlink")?;
        let inodes: Vec<_> = fs::read_dir(format!("/proc/{}/fd", self.child.id()))?
            .filter_map(|fd| fs::read_link(fd.ok()?.path()).ok())
            .map(|target| target.display().to_string())
            .collect();
        let value = table.lines().find_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let is_its = inodes.contains(&format!("socket:[{}]", fields.last()?));
            if !is_its || *fields.get(1)? != "20" { None } else { fields.get(field)?.parse().ok() }
        });
        value.context("the daemon has no socket to the kernel")
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Stops it, and waits until it has stopped: it answers nothing that is asked later.
    fn stop(&self) -> Result<()> {
        kill(self.pid(), Signal::SIGSTOP)?;
        let status = waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED))?;
        ensure!(status == WaitStatus::Stopped(self.pid(), Signal::SIGSTOP), "{status:?}");
        Ok(())
    }

    fn end(self) -> Result<()> {
        kill(self.pid(), Signal::SIGTERM)?;
        self.wait()
    }

    fn wait(mut self) -> Result<()> {
        let status = self.child.wait()?;
        ensure!(status.success(), "it ended with {status}");
        Ok(())
    }
}

impl Drop for Ibarr {
    fn drop(&mut self) {
        // The process may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn status() -> Result<Value> {
    Ok(ask("status")?["status"].take())
}

fn local_service() -> Result<Value> {
    Ok(status()?["local-service"].take())
}

fn counts() -> Result<Value> {
    Ok(ask("counters")?["counters"].take())
}

fn until(what: &str, holds: impl Fn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + 2 * PATIENCE;
    while !holds()? {
        ensure!(Instant::now() < deadline, "the daemon never {what}: {}", status()?);
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn ask(what: &str) -> Result<Value> {
    let output = Command::new("/bin/ibarr").args([what, "--json"]).output()?;
    ensure!(output.status.success(), "ibarr {what}: {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn count(counts: &Value, name: &str) -> u64 {
    counts[format!("local-service.{name}")].as_u64().unwrap_or_default()
}
