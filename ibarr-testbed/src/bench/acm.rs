// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench acm-rate`: how many clients of ACM the daemon answers from memory, by GIDs, with 1, 100, 1,000 and 10,000
//! connected ones that all ask at once; how long those wait that connect all at once, ask a few times and go; and what
//! a connection for one request costs.

use std::fs::{self, Permissions};
use std::io::{self, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ibarr_common::ib::PathRecord;
use ibarr_common::wire::acm::{Ask, MAX_REQUEST_LEN, Request, Resolve, Tid};
use ibarr_common::wire::ls::Seq;
use ibarr_common::wire::path_record::PathRecordWire;
use ibarr_sim::sa::StandIn;
use ibarr_user::sys::descriptors::raise_limit;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::unistd::{Uid, setresuid};
use tempfile::TempDir;

use super::paths::{OWN, SA, SGID, name, near, subnet, wait_for_port};
use super::process::{self, Helper, READY};
use super::report::{Report, Round, Target, median};
use crate::interrupt::Interrupt;
use crate::lab::Store;
use crate::umad::{Administrator, Port, Shown};

/// Clients that a user may have (`proto::acm::Config`).
const OF_USER: usize = 2_500;
/// The first of the users that ask; the others follow.
const USER: u32 = 60_001;

/// Measures in a lab of its own, which is removed in any case.
///
/// # Errors
/// The lab cannot be made, or an answer is wrong.
pub fn acm(store: &Store, ibarr: &Path, quick: bool, interrupt: &Interrupt) -> Result<Report> {
    let mut lab = super::lab(store, 1, false, ibarr, interrupt)?;
    let [node] = lab.plan().nodes.as_slice() else { bail!("a lab of one node") };
    let node = node.clone();
    let shown = Shown::active(OWN, SGID, SA);
    let wire = Administrator::new(StandIn::new(subnet(), SA, 1));
    let port = Port::new(&lab.files(&node).infiniband(), name(), 0, Some(shown), wire)?;
    let dir = directory()?;
    let [ours, echo, plain] = ["ibarr", "echo", "plain"].map(|server| dir.path().join(server));
    let config = lab.files(&node).config();
    let before = fs::read_to_string(&config)?;
    let socket = ours.display();
    fs::write(&config, format!("{before}[acm]\nserve = \"tools\"\nsocket = \"{socket}\"\n"))?;
    lab.restart(node.name, interrupt)?;
    wait_for_port(&lab, &node, interrupt)?;
    let daemon = lab.state().daemons.iter().find(|daemon| daemon.node == node.name);
    let daemon = daemon.context("the daemon was started")?.process.pid;
    let start = |command: &str, socket: &Path| {
        let socket = socket.display().to_string();
        let arguments = ["bench", command, "--socket", &socket].map(str::to_owned);
        Helper::start(&node.namespace, &arguments)
    };
    let helpers = [start("acm-echo", &echo)?, start("acm-plain", &plain)?];
    let servers = [
        (daemon, ours.as_path()),
        (helpers[0].pid(), echo.as_path()),
        (helpers[1].pid(), plain.as_path()),
    ];
    process::pin(&servers.map(|(pid, _)| pid))?;

    let mut report = Report::new("acm-rate", quick)?;
    let all = [
        (1, "1 client"),
        (100, "100 clients"),
        (1000, "1,000 clients"),
        (10_000, "10,000 clients"),
    ];
    for (clients, what) in all {
        let mut loads = Vec::new();
        for (_, socket) in servers {
            loads.push(Load::start(socket, clients, None)?);
        }
        let [ours, echo, plain] = super::in_turn(quick, interrupt, |index, time| {
            let (pid, _) = servers[index];
            let cpu = process::cpu_time(pid)?;
            let (Done { answers, .. }, wall) = loads[index].closed_loop(time)?;
            let cpu = process::cpu_time(pid)?.saturating_sub(cpu);
            ensure!(!cpu.is_zero(), "a server answers without using a CPU");
            Ok(Round { answers, wall, cpu })
        })?;
        report.compare(what, &ours, &echo, None)?;
        report.add_ratios(what, "the plain server's", &ours, &plain, None)?;
        let target = (clients > 1).then_some(Target::AtLeast(100_000.0));
        report.rate(&format!("{what}: requests a second"), &ours, target)?;
    }
    let [daemon, _, plain] = servers;
    for (clients, asks) in [(400, 5), (1, 1)] {
        visits(&mut report, [daemon, plain], clients, asks, quick, interrupt)?;
    }
    drop((helpers, port));
    lab.down()?;
    Ok(report)
}

/// Clients that connect all at once, ask `asks` times, and go.
fn visits(
    report: &mut Report,
    servers: [(u32, &Path); 2],
    clients: usize,
    asks: usize,
    quick: bool,
    interrupt: &Interrupt,
) -> Result<()> {
    let mut loads = Vec::new();
    for (_, socket) in servers {
        loads.push(Load::start(socket, clients, Some(asks))?);
    }
    let mut waits = [Vec::new(), Vec::new()];
    let [ours, plain] = super::in_turn(quick, interrupt, |index, time| {
        let (pid, _) = servers[index];
        let cpu = process::cpu_time(pid)?;
        let (done, wall) = loads[index].closed_loop(time)?;
        let cpu = process::cpu_time(pid)?.saturating_sub(cpu);
        waits[index].push([done.median, done.percentile_99]);
        Ok(Round { answers: done.answers, wall, cpu })
    })?;
    if clients == 1 {
        let what = "connect, one request, close: CPU time";
        let cost = |round: &Round| round.cpu.as_secs_f64() / round.answers;
        let [own, theirs] = [&ours, &plain].map(|of| of.iter().map(cost));
        let ratio = median(own.clone().zip(theirs).map(|(own, theirs)| own / theirs))?;
        report.add(format!("{what}, µs"), median(own)? * 1e6, None);
        report.add(format!("{what}, to the plain server's"), ratio, Some(Target::AtMost(1.6)));
        return Ok(());
    }
    for (at, which) in ["median", "99th percentile"].into_iter().enumerate() {
        let what = format!("{clients} clients connect, ask {asks} times and go: {which}");
        // The first round warms caches.
        let [own, theirs] = [&waits[0], &waits[1]].map(|of| of.iter().skip(1).map(|it| it[at]));
        let ratio = median(own.clone().zip(theirs).map(|(own, theirs)| own / theirs))?;
        report.add(format!("{what}, ms"), median(own)? / 1e6, None);
        report.add(format!("{what}, to the plain server's"), ratio, Some(Target::AtMost(1.5)));
    }
    Ok(())
}

/// The directory of the sockets, which every user may enter.
fn directory() -> Result<TempDir> {
    Ok(tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir()?)
}

/// Clients of a server, in a process for each user.
struct Load(Vec<(Child, ChildStdin, BufReader<ChildStdout>)>);

/// The answers of a round, and how long they took in nanoseconds, if that was measured.
#[derive(Clone, Copy, Default)]
struct Done {
    answers: f64,
    median: f64,
    percentile_99: f64,
}

impl Load {
    /// Clients that stay connected, or that connect anew for `asks` requests.
    fn start(socket: &Path, clients: usize, asks: Option<usize>) -> Result<Self> {
        let mut load = Self(Vec::new());
        for user in USER..USER + u32::try_from(clients.div_ceil(OF_USER))? {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["bench", "acm-clients", "--socket"]).arg(socket);
            command.args(["--clients", &clients.min(OF_USER).to_string()]);
            command.args(["--user", &user.to_string()]);
            command.args(asks.map(|asks| format!("--asks={asks}")));
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
            let (stdin, stdout) = stdin.zip(stdout).context("pipes were asked for")?;
            load.0.push((child, stdin, BufReader::new(stdout)));
        }
        for (_, _, says) in &mut load.0 {
            ensure!(line(says)? == READY, "a client cannot connect or has no answer");
        }
        Ok(load)
    }

    /// How many answers came, and in which time.
    fn closed_loop(&mut self, time: Duration) -> Result<(Done, Duration)> {
        let begun = Instant::now();
        for (_, hears, _) in &mut self.0 {
            writeln!(hears, "{}", time.as_millis())?;
        }
        let mut done = Done::default();
        for (_, _, says) in &mut self.0 {
            let line = line(says)?;
            let mut numbers = line.split_whitespace().map(str::parse::<f64>);
            done.answers += numbers.next().context("clients have ended")??;
            done.median = numbers.next().transpose()?.unwrap_or_default();
            done.percentile_99 = numbers.next().transpose()?.unwrap_or_default();
        }
        Ok((done, begun.elapsed()))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for (child, ..) in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn line(reader: &mut impl io::BufRead) -> Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    Ok(line)
}

/// Connects `clients` as `user`. For each line of the standard input, a number of milliseconds, all ask at once, again
/// and again, for that time; then the number of answers is printed. With `asks`, all connect anew for so many requests,
/// and the time that half of them and 99 % took at most is printed, too.
///
/// # Errors
/// An answer is wrong, or there is none.
pub fn clients(socket: &Path, clients: usize, user: u32, asks: Option<usize>) -> Result<()> {
    raise_limit()?;
    let user = Uid::from_raw(user);
    setresuid(user, user, user).context("only root asks as other users")?;
    if let Some(asks) = asks {
        return visitors(socket, clients, asks);
    }
    let mut streams = Vec::new();
    for _ in 0..clients {
        let stream = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        streams.push(stream);
    }
    let mut out = [0; MAX_REQUEST_LEN];
    let request = Request { tid: Tid([0; 8]), ask: Ask::Resolve(by_gids()) }.emit(&mut out);
    all_ask(&mut streams, request)?;
    super::echo::say_ready()?;
    for line in io::stdin().lines() {
        let time = Duration::from_millis(line?.parse()?);
        let (begun, mut answers) = (Instant::now(), 0);
        while begun.elapsed() < time {
            all_ask(&mut streams, request)?;
            answers += clients;
        }
        println!("{answers}");
    }
    Ok(())
}

fn visitors(socket: &Path, clients: usize, asks: usize) -> Result<()> {
    let mut out = [0; MAX_REQUEST_LEN];
    let request = Request { tid: Tid([0; 8]), ask: Ask::Resolve(by_gids()) }.emit(&mut out);
    super::echo::say_ready()?;
    for line in io::stdin().lines() {
        let time = Duration::from_millis(line?.parse()?);
        let (begun, mut waits) = (Instant::now(), Vec::new());
        while begun.elapsed() < time {
            visit(socket, clients, asks, request, &mut waits)?;
        }
        waits.sort_unstable();
        let at = |percent| waits.get(waits.len() * percent / 100).map(Duration::as_nanos);
        let [median, most] = [at(50), at(99)].map(Option::unwrap_or_default);
        println!("{} {median} {most}", waits.len());
    }
    Ok(())
}

/// All connect and ask, then each asks again when it has its answer, `asks` times, and goes.
fn visit(
    socket: &Path,
    clients: usize,
    asks: usize,
    request: &[u8],
    waits: &mut Vec<Duration>,
) -> Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    let mut visitors = Vec::with_capacity(clients);
    for number in 0..clients {
        let mut stream = UnixStream::connect(socket)?;
        epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, u64::try_from(number)?))?;
        let asked_at = Instant::now();
        stream.write_all(request)?;
        visitors.push(Some((stream, asked_at, asks)));
    }
    let mut events = [EpollEvent::empty(); 64];
    let mut left = clients;
    while left > 0 {
        let count = epoll.wait(&mut events, EpollTimeout::from(10_000_u16))?;
        ensure!(count > 0, "no answer");
        for event in events.get(..count).unwrap_or_default() {
            let visitor = visitors.get_mut(usize::try_from(event.data())?);
            let Some(visitor) = visitor else { continue };
            let Some((stream, asked_at, asks)) = visitor else { continue };
            let mut reply = [0; 1024];
            let len = stream.read(&mut reply)?;
            ensure!(len == request.len() && reply[2] == 0, "{:02x?}", reply.get(..len));
            waits.push(asked_at.elapsed());
            *asks -= 1;
            if *asks == 0 {
                *visitor = None;
                left -= 1;
                continue;
            }
            *asked_at = Instant::now();
            stream.write_all(request)?;
        }
    }
    Ok(())
}

fn by_gids() -> Resolve {
    let empty = PathRecordWire::from(PathRecord::from_octets([0; 64]));
    let (sgid, dgid) = (SGID.octets(), near(Seq(1)).octets());
    Resolve::along(PathRecordWire { sgid, dgid, ..empty }.into())
}

fn all_ask(streams: &mut [UnixStream], request: &[u8]) -> Result<()> {
    for stream in &mut *streams {
        stream.write_all(request)?;
    }
    for stream in streams {
        let mut reply = [0; 1024];
        let len = stream.read(&mut reply).context("no answer")?;
        // One record is as long as the question, and an echo says that it is no refusal, too.
        ensure!(len == request.len() && reply[2] == 0, "{:02x?}", reply.get(..len));
    }
    Ok(())
}
