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
            loads.push(Load::start(socket, clients, What::Path, None)?);
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
        let least = Target::AtLeast(if clients == 1 { 0.95 } else { 0.9 });
        report.add_ratios(what, "the plain server's", &ours, &plain, Some(least))?;
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
        loads.push(Load::start(socket, clients, What::Path, Some(asks))?);
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
pub(super) fn directory() -> Result<TempDir> {
    Ok(tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir()?)
}

/// Clients of a server, in a process for each user.
pub(super) struct Load(Vec<(Child, ChildStdin, BufReader<ChildStdout>)>);

/// The answers of a round, and how long they took in nanoseconds, if that was measured.
#[derive(Clone, Copy, Default)]
pub(super) struct Done {
    pub(super) answers: f64,
    median: f64,
    percentile_99: f64,
}

impl Load {
    /// Clients that stay connected, or that connect anew for `asks` requests.
    pub(super) fn start(
        socket: &Path,
        clients: usize,
        what: What,
        asks: Option<usize>,
    ) -> Result<Self> {
        let mut load = Self(Vec::new());
        for user in USER..USER + u32::try_from(clients.div_ceil(OF_USER))? {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["bench", "acm-clients", "--socket"]).arg(socket);
            command.args(["--clients", &clients.min(OF_USER).to_string()]);
            command.args(["--user", &user.to_string()]);
            command.args(asks.map(|asks| format!("--asks={asks}")));
            command.args((what == What::Endpoint).then_some("--endpoint"));
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
    pub(super) fn closed_loop(&mut self, time: Duration) -> Result<(Done, Duration)> {
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

/// Connects `clients` as `user`. For each line of the standard input, a number of milliseconds, all ask at once, and each
/// again when it has its answer, for that time; then the number of answers is printed. With `asks`, all connect anew for
/// so many requests, and the time that half of them and 99 % took at most is printed, too.
///
/// # Errors
/// An answer is wrong, or there is none.
pub fn clients(
    socket: &Path,
    clients: usize,
    user: u32,
    what: What,
    asks: Option<usize>,
) -> Result<()> {
    raise_limit()?;
    let user = Uid::from_raw(user);
    setresuid(user, user, user).context("only root asks as other users")?;
    let mut crowd = Crowd::new(what)?;
    if let Some(asks) = asks {
        return visitors(&mut crowd, socket, clients, asks);
    }
    for _ in 0..clients {
        crowd.connect(socket)?;
    }
    crowd.all_ask(|_| Then::Rest)?;
    super::echo::say_ready()?;
    for line in io::stdin().lines() {
        let time = Duration::from_millis(line?.parse()?);
        let (begun, mut answers) = (Instant::now(), 0);
        crowd.all_ask(|_| {
            answers += 1;
            if begun.elapsed() < time { Then::Ask } else { Then::Rest }
        })?;
        println!("{answers}");
    }
    Ok(())
}

fn visitors(crowd: &mut Crowd, socket: &Path, clients: usize, asks: usize) -> Result<()> {
    super::echo::say_ready()?;
    for line in io::stdin().lines() {
        let time = Duration::from_millis(line?.parse()?);
        let (begun, mut waits) = (Instant::now(), Vec::new());
        while begun.elapsed() < time {
            crowd.clients.clear();
            for _ in 0..clients {
                crowd.connect(socket)?;
                crowd.ask(crowd.clients.len() - 1)?;
            }
            crowd.answered(|client| {
                waits.push(client.asked_at.elapsed());
                if client.asked < asks { Then::Ask } else { Then::Leave }
            })?;
        }
        waits.sort_unstable();
        let at = |percent| waits.get(waits.len() * percent / 100).map(Duration::as_nanos);
        let [median, most] = [at(50), at(99)].map(Option::unwrap_or_default);
        println!("{} {median} {most}", waits.len());
    }
    Ok(())
}

/// The request of a crowd, which memory answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum What {
    /// A path between two GIDs.
    Path,
    /// The first of the endpoints that a daemon has.
    Endpoint,
}

/// Clients whose answers one epoll instance awaits.
struct Crowd {
    epoll: Epoll,
    clients: Vec<Option<Client>>,
    request: Vec<u8>,
    what: What,
}

struct Client {
    stream: UnixStream,
    asked_at: Instant,
    asked: usize,
}

/// What a client does with its answer.
enum Then {
    Ask,
    Rest,
    Leave,
}

impl Crowd {
    fn new(what: What) -> Result<Self> {
        let mut out = [0; MAX_REQUEST_LEN];
        let ask = match what {
            What::Path => Ask::Resolve(by_gids()),
            What::Endpoint => Ask::Endpoint { index: 1, port: 0 },
        };
        let request = Request { tid: Tid([0; 8]), ask }.emit(&mut out).to_vec();
        let epoll = Epoll::new(EpollCreateFlags::empty())?;
        Ok(Self { epoll, clients: Vec::new(), request, what })
    }

    fn connect(&mut self, socket: &Path) -> Result<()> {
        let stream = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
        let number = u64::try_from(self.clients.len())?;
        self.epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
        self.clients.push(Some(Client { stream, asked_at: Instant::now(), asked: 0 }));
        Ok(())
    }

    fn ask(&mut self, number: usize) -> Result<()> {
        if let Some(Some(client)) = self.clients.get_mut(number) {
            client.asked_at = Instant::now();
            client.asked += 1;
            client.stream.write_all(&self.request)?;
        }
        Ok(())
    }

    fn all_ask(&mut self, then: impl FnMut(&Client) -> Then) -> Result<()> {
        (0..self.clients.len()).try_for_each(|number| self.ask(number))?;
        self.answered(then)
    }

    /// All have asked. Ends when none waits for an answer.
    fn answered(&mut self, mut then: impl FnMut(&Client) -> Then) -> Result<()> {
        let mut waiting = self.clients.len();
        let mut events = [EpollEvent::empty(); 64];
        while waiting > 0 {
            let count = self.epoll.wait(&mut events, EpollTimeout::from(10_000_u16))?;
            ensure!(count > 0, "no answer");
            for event in events.get(..count).unwrap_or_default() {
                let number = usize::try_from(event.data())?;
                let Some(place) = self.clients.get_mut(number) else { continue };
                let Some(client) = place else { continue };
                let mut reply = [0; 1024];
                let len = client.stream.read(&mut reply)?;
                let has_its_length = match self.what {
                    // One record is as long as the question, and an echo says that it is no refusal, too.
                    What::Path => len == self.request.len(),
                    // Header and endpoint; its addresses follow.
                    What::Endpoint => len >= 16 + 80,
                };
                ensure!(has_its_length && reply[2] == 0, "{:02x?}", reply.get(..len));
                match then(client) {
                    Then::Ask => self.ask(number)?,
                    Then::Rest => waiting -= 1,
                    Then::Leave => {
                        waiting -= 1;
                        *place = None;
                    }
                }
            }
        }
        Ok(())
    }
}

fn by_gids() -> Resolve {
    let empty = PathRecordWire::from(PathRecord::from_octets([0; 64]));
    let (sgid, dgid) = (SGID.octets(), near(Seq(1)).octets());
    Resolve::along(PathRecordWire { sgid, dgid, ..empty }.into())
}
