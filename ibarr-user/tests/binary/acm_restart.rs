// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Clients of ACM whose daemon is killed, or ends, while it serves them: the next one inherits them. A rule holds at
//! each moment: each question is answered once, by its own answer.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ibarr_common::wire::acm::{Ask, MAX_REQUEST_LEN, Reply, Request, Status, Tid};
use ibarr_common::wire::path_record::PathRecordWire;
use ibarr_user::sys::descriptors::raise_limit;
use ibarr_user::transport::acm;
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::socket::{MsgFlags, recv};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, close, dup};

use crate::acm::{Client, counter, serving, to};
use crate::kernel::{command, pair, with_kept};
use crate::paths::{FOREIGN, LOCAL, Port, await_capabilities, start};
use crate::support::{Daemon, Kept, Over, TempDir, json};

/// A client that asks for one of two paths in turn, and knows its own answers.
struct Asking {
    client: Client,
    asked: u64,
    answered: u64,
}

impl Asking {
    fn connect(dir: &TempDir) -> Self {
        Self { client: Client::connect(dir), asked: 0, answered: 0 }
    }

    fn send(&mut self) {
        self.asked += 1;
        let tid = Tid(self.asked.to_be_bytes());
        let ask = Ask::Resolve(to(if self.asked.is_multiple_of(2) { LOCAL } else { FOREIGN }));
        let mut out = [0; MAX_REQUEST_LEN];
        self.client.0.write_all(Request { tid, ask }.emit(&mut out)).unwrap();
    }

    /// Reads the answer that is due.
    fn receive(&mut self) {
        self.answered += 1;
        let is_local = self.answered.is_multiple_of(2);
        let mut bytes = vec![0; if is_local { 88 } else { 16 + 3 * 72 }];
        self.client.0.read_exact(&mut bytes).unwrap_or_else(|error| {
            panic!("question {} of {}: {error}", self.answered, self.asked)
        });
        let (tid, reply) = Reply::parse(&bytes).unwrap();
        assert_eq!(u64::from_be_bytes(tid.0), self.answered, "{reply:?}");
        let Reply::Paths(paths, None) = reply else { panic!("{reply:?}") };
        let dlid = PathRecordWire::from(paths.as_slice()[0].record).dlid.get();
        assert_eq!((dlid, paths.as_slice().len()), if is_local { (1, 1) } else { (4, 3) });
    }

    /// Whether something waits to be read.
    fn has_answer(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        recv(self.client.0.as_raw_fd(), &mut [0], flags) != Err(Errno::EAGAIN)
    }

    /// Reads all answers that are due, and asks twice more.
    fn is_served(&mut self) {
        while self.answered < self.asked {
            self.receive();
        }
        for _ in 0..2 {
            self.send();
            self.receive();
        }
        assert!(!self.has_answer(), "an answer without a question");
    }
}

/// The daemon after another one.
fn next(dir: &TempDir, kept: &[Kept]) -> Daemon {
    Daemon::spawn(with_kept(dir, kept), dir, &serving(dir))
}

fn close_all(kept: Vec<Kept>) {
    for kept in kept {
        close(kept.fd).unwrap();
    }
}

#[test]
fn clients_that_wait_at_the_end_are_answered_by_the_next_daemon() {
    const IN_WORK: usize = 1_000;
    const CLIENTS: usize = IN_WORK + 100;
    raise_limit().unwrap();
    for (signal, name) in [(Signal::SIGKILL, "acm-killed"), (Signal::SIGTERM, "acm-ended")] {
        let dir = TempDir::new(name);
        let port = Port::new(&dir);
        let (mut first, _kernel) = start(&dir, &serving(&dir));
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| Asking::connect(&dir)).collect();
        let kept = first.keeps(acm::CLIENT, CLIENTS);
        // They wait for the SA, which is silent meanwhile.
        let sa = port.hold();
        clients[..IN_WORK].iter_mut().for_each(Asking::send);
        first.until(|daemon| (counter(daemon, "acm.requests") == IN_WORK as u64).then_some(()));
        first.end(signal);
        drop(sa);
        let second = next(&dir, &kept);
        clients[..IN_WORK].iter_mut().for_each(Asking::receive);
        assert_eq!(counter(&second, "acm.requests"), IN_WORK as u64);
        clients.iter_mut().for_each(Asking::is_served);
        close_all(kept);
    }
}

/// A connection is handed to systemd when it has lived for a moment.
#[test]
fn new_connection_outlives_an_end_but_not_a_kill() {
    for (signal, name) in [(Signal::SIGKILL, "acm-young-kill"), (Signal::SIGTERM, "acm-young-end")]
    {
        let dir = TempDir::new(name);
        let _port = Port::new(&dir);
        let (mut first, _kernel) = start(&dir, &serving(&dir));
        await_capabilities(&first);
        let mut old = Asking::connect(&dir);
        old.is_served();
        let mut kept = first.keeps(acm::CLIENT, 1);
        let mut young = Asking::connect(&dir);
        young.is_served();
        first.end(signal);
        let last = first.kept_at_the_end();
        let is_kept = !last.is_empty();
        kept.extend(last);
        let _second = next(&dir, &kept);
        old.is_served();
        match signal {
            Signal::SIGTERM => assert!(is_kept),
            // On a slow machine it may have been old enough.
            _ if is_kept => {}
            _ => assert!(young.client.is_closed()),
        }
        if is_kept {
            young.is_served();
        }
        close_all(kept);
    }
}

#[test]
fn client_that_waits_is_refused_at_the_end_if_no_daemon_follows() {
    const CLIENTS: usize = 100;
    let dir = TempDir::new("acm-end");
    let port = Port::new(&dir);
    let (kernel, inherited) = pair();
    let mut daemon = Daemon::spawn_alone(command(&dir, inherited), &dir, &serving(&dir));
    kernel.expect("18000000 01100500 00000000", "08000200 b80b0000");
    await_capabilities(&daemon);
    // The SA is silent while this test holds it.
    let sa = port.hold();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| Client::connect(&dir)).collect();
    for client in &mut clients {
        client.send(Ask::Resolve(to(LOCAL)));
    }
    daemon.until(|daemon| (counter(daemon, "acm.requests") == CLIENTS as u64).then_some(()));
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    for client in &mut clients {
        assert_eq!(client.told(), Err(Status::NotConnected));
    }
    drop(sa);
}

#[test]
fn wrong_inherited_descriptor_is_named_and_an_own_socket_served() {
    let dir = TempDir::new("acm-wrong");
    let datagram = || UnixDatagram::unbound().unwrap();
    let file = File::create(dir.path("file")).unwrap();
    let mut wrong = [
        (acm::NAME, dup(datagram()), "it is not a stream socket"),
        (acm::CLIENT, dup(&file), "it is not a socket"),
        (acm::LAST_REPLY, dup(&file), "no daemon of this version made it"),
        ("acm-x", dup(datagram()), "its name is unknown"),
    ]
    .map(|(name, fd, reason)| (fd.unwrap().into_raw_fd(), name, reason));
    // The daemon gets them in this order.
    wrong.sort_unstable();
    let (mut kept, mut expected) = (Vec::new(), Vec::new());
    for ((fd, name, reason), number) in wrong.into_iter().zip(3..) {
        kept.push(Kept { name: name.to_owned(), fd });
        expected.push(format!("inherited descriptor {number} ({name}) is not used: {reason}"));
    }
    let daemon = next(&dir, &kept);
    let status = json(&daemon.ask(&["status", "--json"]))["status"].clone();
    let warnings = status["warnings"].to_string();
    for expected in expected {
        assert!(warnings.contains(&expected), "{expected}: {warnings}");
    }
    let nothing = Ask::Endpoint { index: 9, port: 1 };
    assert_eq!(Client::connect(&dir).ask(nothing), Err(Status::Invalid));
    close_all(kept);
}

/// Lets a thread run until the start or the end of its next system call. Returns `false` if it waits for events instead.
fn stops_at_a_call(pid: Pid, all_are_answered: impl Fn() -> bool) -> bool {
    ptrace::syscall(pid, None).unwrap();
    let mut idle_since = Instant::now();
    // The other end of the wait for events comes only with an event.
    while idle_since.elapsed() < Duration::from_millis(100) {
        if waitpid(pid, Some(WaitPidFlag::WNOHANG)).unwrap() != WaitStatus::StillAlive {
            return true;
        }
        if !all_are_answered() {
            idle_since = Instant::now();
        }
        thread::yield_now();
    }
    false
}

/// Kills the daemon before and after each of the system calls that it makes while it answers.
#[test]
fn question_is_answered_once_whatever_system_call_a_kill_follows() {
    let dir = TempDir::new("acm-steps");
    let _port = Port::new(&dir);
    let (mut daemon, _kernel) = start(&dir, &serving(&dir));
    await_capabilities(&daemon);
    let mut clients = [(); 3].map(|()| Asking::connect(&dir));
    let kept = daemon.keeps(acm::CLIENT, clients.len());
    let (mut kills, mut had_answer) = (0, 0);
    for stops in 0.. {
        clients.iter_mut().for_each(Asking::is_served);
        let pid = daemon.pid();
        ptrace::seize(pid, ptrace::Options::empty()).unwrap();
        ptrace::interrupt(pid).unwrap();
        waitpid(pid, None).unwrap();
        let [one, two, idle] = &mut clients;
        one.send();
        two.send();
        two.send();
        let is_over =
            !(0..stops).all(|_| stops_at_a_call(pid, || one.has_answer() && two.has_answer()));
        daemon.end(Signal::SIGKILL);
        kills += 1;
        // Some have read the answer of the killed daemon, and go on, before the next one starts.
        if one.has_answer() {
            had_answer += 1;
            if kills % 2 == 0 {
                one.receive();
                one.send();
            }
        }
        idle.send();
        daemon = next(&dir, &kept);
        if is_over {
            break;
        }
    }
    clients.iter_mut().for_each(Asking::is_served);
    eprintln!("{kills} kills, {had_answer} of them after the first answer");
    assert!(had_answer > 0 && had_answer < kills, "{had_answer} of {kills}");
    close_all(kept);
}

/// As many rounds as `IBARR_TEST_ROUNDS` says.
#[test]
fn daemons_that_end_at_random_under_load_lose_no_question() {
    const CLIENTS: usize = 20;
    let rounds = std::env::var("IBARR_TEST_ROUNDS").ok();
    let rounds: u64 = rounds.map_or(5, |rounds| rounds.parse().unwrap());
    let dir = TempDir::new("acm-load");
    let _port = Port::new(&dir);
    let (mut daemon, _kernel) = start(&dir, &serving(&dir));
    await_capabilities(&daemon);
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| Asking::connect(&dir)).collect();
    let kept = daemon.keeps(acm::CLIENT, CLIENTS);
    let (answered, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let over = Over(&is_over);
        for client in &mut clients {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    client.send();
                    client.receive();
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..rounds {
            for signal in [Signal::SIGKILL, Signal::SIGTERM] {
                // Far from each other in what the daemon does then.
                let target = answered.load(Ordering::Relaxed) + 50 + round * 37 % 101;
                while answered.load(Ordering::Relaxed) < target {
                    thread::yield_now();
                }
                daemon.end(signal);
                daemon = next(&dir, &kept);
            }
        }
        drop(over);
    });
    eprintln!("{} answers, {rounds} kills and {rounds} ends", answered.load(Ordering::Relaxed));
    clients.iter_mut().for_each(Asking::is_served);
    assert_eq!(counter(&daemon, "acm.not-taken"), 0);
    close_all(kept);
}
