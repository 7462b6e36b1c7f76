// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `bench acm-rate`: how many clients of ACM the daemon answers from memory, by GIDs, with 1, 100 and 10,000
//! connected ones that all ask at once.

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
use nix::unistd::{Uid, setresuid};
use tempfile::TempDir;

use super::paths::{OWN, SA, SGID, name, near, subnet, wait_for_port};
use super::process::{self, Helper, READY};
use super::report::{Report, Round, Target};
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
    for (clients, what) in [(1, "1 client"), (100, "100 clients"), (10_000, "10,000 clients")] {
        let mut loads = Vec::new();
        for (_, socket) in servers {
            loads.push(Load::start(socket, clients)?);
        }
        let [ours, echo, plain] = super::in_turn(quick, interrupt, |index, time| {
            let (pid, _) = servers[index];
            let cpu = process::cpu_time(pid)?;
            let (answers, wall) = loads[index].closed_loop(time)?;
            let cpu = process::cpu_time(pid)?.saturating_sub(cpu);
            ensure!(!cpu.is_zero(), "a server answers without using a CPU");
            Ok(Round { answers: f64::from(u32::try_from(answers)?), wall, cpu })
        })?;
        report.compare(what, &ours, &echo, None)?;
        report.add_ratios(what, "the plain server's", &ours, &plain, None)?;
        let target = (clients > 1).then_some(Target::AtLeast(100_000.0));
        report.rate(&format!("{what}: requests a second"), &ours, target)?;
    }
    drop((helpers, port));
    lab.down()?;
    Ok(report)
}

/// The directory of the sockets, which every user may enter.
fn directory() -> Result<TempDir> {
    Ok(tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir()?)
}

/// Clients of a server, in a process for each user.
struct Load(Vec<(Child, ChildStdin, BufReader<ChildStdout>)>);

impl Load {
    fn start(socket: &Path, clients: usize) -> Result<Self> {
        let mut load = Self(Vec::new());
        for user in USER..USER + u32::try_from(clients.div_ceil(OF_USER))? {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["bench", "acm-clients", "--socket"]).arg(socket);
            command.args(["--clients", &clients.min(OF_USER).to_string()]);
            command.args(["--user", &user.to_string()]);
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
    fn closed_loop(&mut self, time: Duration) -> Result<(u64, Duration)> {
        let begun = Instant::now();
        for (_, hears, _) in &mut self.0 {
            writeln!(hears, "{}", time.as_millis())?;
        }
        let mut answers = 0;
        for (_, _, says) in &mut self.0 {
            answers += line(says)?.trim().parse::<u64>().context("clients have ended")?;
        }
        Ok((answers, begun.elapsed()))
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
/// and again, for that time; then the number of answers is printed.
///
/// # Errors
/// An answer is wrong, or there is none.
pub fn clients(socket: &Path, clients: usize, user: u32) -> Result<()> {
    raise_limit()?;
    let user = Uid::from_raw(user);
    setresuid(user, user, user).context("only root asks as other users")?;
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
