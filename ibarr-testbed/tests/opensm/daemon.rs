// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A daemon with ports of [`ibarr_testbed::umad`], asked by its command line and by a stand-in for the
//! kernel's RDMA core.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use ibarr_common::ib::{Gid, PKey, PortNum, ServiceId};
use ibarr_common::wire::ls::{Answer, PathUse, ResolvePath, Seq, messages};
use ibarr_proto::paths::PortName;
use ibarr_sim::kernel::{Config, Event, Input, Kernel, PathOutcome};
use ibarr_testbed::start::program;
use ibarr_testbed::umad::Directory;
use ibarr_user::sys::clock;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, recv, send, setsockopt, socketpair, sockopt,
};
use serde_json::Value;

use crate::machine::{MARKER, Machine, ibarr};

/// Longer than anything here takes; a hang fails.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) struct Daemon {
    child: Child,
    run_dir: String,
    socket: OwnedFd,
    kernel: Kernel,
    /// The records in the answer to a request.
    records: BTreeMap<Seq, Vec<Record>>,
    events: VecDeque<Event>,
}

/// A path in an answer to the kernel.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Record {
    pub(crate) flags: u32,
    pub(crate) octets: [u8; 64],
}

impl Record {
    /// Flags, DLID, SLID, hop limit, and the byte with the reversible bit.
    pub(crate) fn brief(&self) -> (u32, u16, u16, u8, u8) {
        let [.., hop_limit] = self.word(44);
        (self.flags, self.lid(40), self.lid(42), hop_limit, self.octets[49])
    }

    pub(crate) fn lid(&self, at: usize) -> u16 {
        let [high, low, ..] = self.word(at);
        u16::from_be_bytes([high, low])
    }

    pub(crate) fn word(&self, at: usize) -> [u8; 4] {
        self.octets[at..at + 4].try_into().unwrap()
    }
}

pub(crate) fn name() -> PortName {
    PortName { device: "mlx5_0".parse().unwrap(), port: PortNum::new(1).unwrap() }
}

/// A request as from rdma_cm for a connection over IPv4 to service `service`.
pub(crate) fn request(sgid: Gid, dgid: Gid, service: u64) -> ResolvePath {
    ResolvePath {
        device: name().device,
        port: name().port,
        path_use: PathUse::All,
        service_id: Some(ServiceId::new(service)),
        dgid,
        sgid,
        tclass: None,
        pkey: Some(PKey::DEFAULT),
        qos_class: None,
    }
}

impl Daemon {
    /// Starts a daemon for the ports below the directory of the machine.
    pub(crate) fn start(machine: &Machine, config: &str) -> Self {
        let directory = Directory::new(machine.directory());
        let run_dir = machine.directory().join("run").display().to_string();
        let file = configure(machine, config);
        let flags = SockFlag::SOCK_CLOEXEC;
        let (socket, inherited) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        // The kernel's buffer is larger than the default, too.
        setsockopt(&socket, sockopt::SndBuf, &(1 << 20)).unwrap();
        let child = program("sh")
            .args(["-ec", INHERIT, "sh"])
            .arg(ibarr())
            .args(["run", "-l", "3", "--config"])
            .arg(file)
            .args(["--run-dir", &run_dir])
            .arg("--dev-dir")
            .arg(directory.dev())
            .arg("--sys-dir")
            .arg(directory.sys())
            .env(MARKER, machine.marker())
            .stdin(inherited)
            .spawn()
            .unwrap();
        let mut kernel = Kernel::new(Config::default());
        kernel.handle_input(clock::now(), Input::Listener(true));
        let (records, events) = (BTreeMap::new(), VecDeque::new());
        let this = Self { child, run_dir, socket, kernel, records, events };
        this.until(|daemon| daemon.ask(&["status"]));
        this
    }

    /// The JSON output of the command line, if the daemon answers.
    pub(crate) fn ask(&self, words: &[&str]) -> Option<Value> {
        let command = &mut program(ibarr());
        let output =
            command.args(words).args(["--json", "--run-dir", &self.run_dir]).output().unwrap();
        let said: Value = serde_json::from_slice(&output.stdout).ok()?;
        said["error"].is_null().then_some(said)
    }

    /// Asks until `ask` returns something.
    pub(crate) fn until<T>(&self, mut ask: impl FnMut(&Self) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(answer) = ask(self) {
                return answer;
            }
            assert!(begun.elapsed() < PATIENCE, "{:?}", self.ask(&["ports"]));
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn port(&self) -> Value {
        self.ask(&["ports"]).unwrap()["ports"][0].clone()
    }

    pub(crate) fn path(&self, dgid: Gid) -> Value {
        self.ask(&["path", &dgid.to_string()]).unwrap()["path"].clone()
    }

    pub(crate) fn count(&self, counter: &str) -> u64 {
        let counters = self.ask(&["counters"]).unwrap();
        counters["counters"][counter].as_u64().unwrap_or_else(|| panic!("no counter {counter}"))
    }

    /// Asks as the kernel does, and waits for the outcome.
    pub(crate) fn resolve(&mut self, request: ResolvePath) -> (PathOutcome, Vec<Record>) {
        self.resolve_all(vec![request]).remove(0)
    }

    /// Asks all at once. The outcomes are in the order of the requests.
    pub(crate) fn resolve_all(
        &mut self,
        requests: Vec<ResolvePath>,
    ) -> Vec<(PathOutcome, Vec<Record>)> {
        let asked = self.begin(requests);
        self.finish(&asked)
    }

    pub(crate) fn begin(&mut self, requests: Vec<ResolvePath>) -> Vec<Seq> {
        let mut asked = Vec::new();
        for request in requests {
            self.turn();
            asked.extend(self.kernel.resolve_path(clock::now(), request));
            self.turn();
        }
        asked
    }

    pub(crate) fn finish(&mut self, asked: &[Seq]) -> Vec<(PathOutcome, Vec<Record>)> {
        let mut outcomes = BTreeMap::new();
        while outcomes.len() < asked.len() {
            while let Some(event) = self.events.pop_front() {
                let Event::Path(seq, outcome) = event else { panic!("{event:?}") };
                outcomes.insert(seq, outcome);
            }
            self.wait();
            self.turn();
        }
        let mut take = |seq: &Seq| {
            let records = self.records.remove(seq).unwrap_or_default();
            (outcomes.remove(seq).expect("it has ended"), records)
        };
        asked.iter().map(&mut take).collect()
    }

    fn turn(&mut self) {
        self.kernel.handle_timeout(clock::now());
        while let Some(transmit) = self.kernel.poll_transmit() {
            match send(self.socket.as_raw_fd(), &transmit.bytes, MsgFlags::MSG_DONTWAIT) {
                Ok(_) => {}
                Err(Errno::EAGAIN) => self.kernel.not_delivered(&transmit),
                Err(error) => panic!("the daemon has ended: {error}"),
            }
        }
        let mut buffer = [0; 8192];
        while let Ok(len) = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
            assert_ne!(len, 0, "the daemon has ended");
            self.note(&buffer[..len]);
            self.kernel.handle_input(clock::now(), Input::Datagram(&buffer[..len]));
        }
        while let Some(event) = self.kernel.poll_event() {
            self.events.push_back(event);
        }
    }

    fn note(&mut self, bytes: &[u8]) {
        for message in messages(bytes) {
            let message = message.unwrap();
            if let Ok(Answer::Paths(paths)) = Answer::parse(&message) {
                let record = |path: &ibarr_common::wire::ls::Path| Record {
                    flags: path.flags.bits(),
                    octets: path.record.octets(),
                };
                self.records.insert(message.seq(), paths.as_slice().iter().map(record).collect());
            }
        }
    }

    fn wait(&self) {
        let now = clock::now();
        let time = self.kernel.poll_timeout().map_or(Duration::ZERO, |at| at.since(now));
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        ppoll(&mut fds, Some(time.into()), None).unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The process may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Writes the daemon's configuration file.
fn configure(machine: &Machine, config: &str) -> PathBuf {
    let file = machine.directory().join("ibarr.toml");
    fs::write(&file, format!("responder = \"user\"\n{config}")).unwrap();
    file
}

/// Moves the socket from standard input to the first descriptor after the standard ones.
const INHERIT: &str = "
    export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=ls
    exec 3<&0
    exec \"$@\" </dev/null";
