// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The system calls of the engine's thread after the daemon is ready, by strace. `list` has those that it may make.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use ibarr_common::IfIndex;
use ibarr_common::wire::acm::{Address, Ask, MAX_REQUEST_LEN, Name, Request, Resolve, Tid};
use ibarr_common::wire::ip2gid::{MsgId, Query, Version};
use ibarr_common::wire::ls::ResolveIp;
use ibarr_testbed::interrupt::Interrupt;
use ibarr_testbed::lab::{Lab, Node, Plan, Store, TemporaryLab, netns};
use ibarr_testbed::standin::{Config, StandIn};
use ibarr_testbed::start::program;
use ibarr_testbed::umad::{Loss, Port};
use nix::fcntl::OFlag;
use nix::net::if_::if_nametoindex;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::daemon::request;
use crate::machine::{MARKER, Machine, ibarr, said};
use crate::responder::rig::{ip, tree};
use crate::umad::{administrator, gid, port};

/// Longer than anything here takes; a hang fails.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn engines_thread_makes_no_call_that_is_not_listed() {
    let mut soak = Soak::begin();
    for round in 0..3 {
        soak.ask_as_peer(20);
        soak.ask_as_kernel(round);
        soak.ask_as_user();
        soak.ask_as_client_of_acm();
        soak.read_metrics();
        soak.reload(round);
        soak.change_interfaces();
        soak.lose_theport(round);
        soak.remove_files();
    }
    for (counter, least) in [
        ("ip2gid.server.answered-negative", 60),
        ("acm.requests", 12),
        ("acm.names-asked", 2),
        ("responder.lost", 3),
        ("sa.answered", 6),
    ] {
        soak.count(counter, least);
    }
    let text = soak.end();
    let waiting = waiting(&text, soak.pid());
    assert!(waiting.is_empty(), "these descriptors are not non-blocking: {waiting:?}");
    let calls = counted(&text, soak.machine.directory());
    let list = list();
    let unknown: Vec<_> = calls.iter().filter(|(call, _)| !list.contains(&call.as_str())).collect();
    assert!(unknown.is_empty(), "not in tests/system/calls/list: {unknown:#?}");
}

#[test]
fn calls_are_told_apart_by_what_they_act_on() {
    let text = "\
connect(42<UNIX-STREAM:[7]>, {sa_family=AF_UNIX, sun_path=\"/run/a.sock\"}, 110) = 0
openat(AT_FDCWD, \"/proc/self/stat\", O_RDONLY|O_CLOEXEC) = 5</proc/1/stat>
openat(AT_FDCWD, \"/machine/run\", O_RDONLY) = -1 ENOENT (No such file or directory)
--- SIGHUP {si_signo=SIGHUP, si_code=SI_USER, si_pid=1, si_uid=0} ---
recvmsg(9<UDP:[10.1.0.1:4791]>, {msg_namelen=0}, MSG_DONTWAIT) = 0
read(7<anon_inode:[timerfd]>, \"\\1\", 8) = 8
epoll_wait(3<anon_inode:[eventpoll]>, [], 1024, 0) = 0
epoll_wait(3<anon_inode:[eventpoll]>, <unfinished ...>) = ?
socket(AF_INET, SOCK_DGRAM|SOCK_CLOEXEC, IPPROTO_IP) = 40<UDP:[8]>
socket(AF_INET, SOCK_DGRAM|SOCK_CLOEXEC|SOCK_NONBLOCK, IPPROTO_IP) = 40<UDP:[8]>
poll([{fd=64<UNIX-STREAM:[1->2]>, events=0}], 1, 0) = 0 (Timeout)
poll([{fd=64<UNIX-STREAM:[1->2]>, events=POLLIN}], 1, -1) = 1
futex(0x7f00, FUTEX_WAIT_BITSET_PRIVATE, 2, NULL) = 0
";
    let found = counted(text, Path::new("/machine"));
    let found: Vec<_> = found.iter().map(|(call, count)| (call.as_str(), *count)).collect();
    assert_eq!(
        found,
        [
            ("connect UNIX-STREAM", 1),
            ("epoll_wait eventpoll", 2),
            ("futex FUTEX_WAIT_BITSET_PRIVATE", 1),
            ("openat /proc/self/stat", 1),
            ("openat MACHINE/run", 1),
            ("poll -1", 1),
            ("poll 0", 1),
            ("read timerfd", 1),
            ("recvmsg UDP", 1),
            ("socket AF_INET", 1),
            ("socket AF_INET non-blocking", 1),
        ]
    );
    let is_named = |call: &&str| !list().contains(call);
    let named: Vec<_> = found.iter().map(|(call, _)| *call).filter(is_named).collect();
    let never = [
        "connect UNIX-STREAM",
        "openat /proc/self/stat",
        "openat MACHINE/run",
        "poll -1",
        "socket AF_INET",
    ];
    assert_eq!(named, never);
}

/// Node n1 of a lab, whose daemon has a port, clients of ACM and metrics, and whose engine is traced.
struct Soak {
    strace: Child,
    calls: PathBuf,
    port: Port,
    n1: Node,
    n2: Node,
    kernel: StandIn,
    lab: TemporaryLab,
    machine: Machine,
}

impl Soak {
    fn begin() -> Self {
        let machine = Machine::new();
        let store = Store::at(&machine.state_dir()).unwrap();
        let plan = Plan::new("calls".parse().unwrap(), 2, true).unwrap();
        let never = Interrupt::never();
        let mut lab = TemporaryLab::new(Lab::up(&store, plan, ibarr(), &never).unwrap());
        let [n1, n2] = ["n1", "n2"].map(|name| lab.plan().node(name).unwrap().clone());
        let port = port(&lab.files(&n1).infiniband(), &administrator());
        configure(&machine, &lab, &n1, 0);
        let kernel = StandIn::attach(&mut lab, n1.name, Config::default(), &never).unwrap();
        let pid = *netns::processes(&n1.namespace).unwrap().first().expect("a daemon");
        let calls = machine.directory().join("calls");
        let mut strace = program("strace");
        strace.args(["-qq", "-yy", "-s", "256", "-p", &pid.to_string(), "-o"]).arg(&calls);
        strace.env(MARKER, machine.marker()).stdin(Stdio::null());
        let strace = strace.spawn().expect("cargo xtask test fetches strace");
        let mut this = Self { strace, calls, port, n1, n2, kernel, lab, machine };
        // It is attached when the first call is there.
        this.until(|this| {
            this.ask(&["status"]);
            fs::metadata(&this.calls).is_ok_and(|calls| calls.len() > 0)
        });
        this
    }

    fn pid(&self) -> Pid {
        *netns::processes(&self.n1.namespace).unwrap().first().expect("a daemon")
    }

    fn ask(&self, words: &[&str]) -> Value {
        self.lab.ask(&self.n1, words).unwrap()
    }

    fn until(&mut self, mut is_so: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < PATIENCE, "{}", self.lab.files(&self.n1).log_tail());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn count(&mut self, counter: &str, least: u64) {
        let counters = self.ask(&["counters", "--all"]);
        let count = counters["counters"][counter].as_u64();
        assert!(count >= Some(least), "{counter}: {count:?} of {least}");
    }

    /// Queries that the programs in the kernel do not answer, and one that they do.
    fn ask_as_peer(&mut self, queries: u32) {
        let here = self.n1.addresses[0];
        let socket = netns::inside(&self.n2.namespace, || Ok(UdpSocket::bind("0.0.0.0:0")?));
        let socket = socket.unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        for number in 0..queries {
            let target: IpAddr = [10, 250, 0, 1].into();
            let query = Query::new(Version::V1, MsgId(number), target).unwrap();
            socket.send_to(query.emit().as_ref(), (here, 4791)).unwrap();
            socket.recv(&mut [0; 64]).unwrap();
        }
        let output = self.lab.ibarr(&self.n2, &["resolve", "--fresh", &here.to_string()]).unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }

    fn ask_as_kernel(&mut self, round: u8) {
        self.ask(&["cache", "--flush"]);
        let ifindex = netns::inside(&self.n1.namespace, || Ok(if_nametoindex(Node::INTERFACE)?));
        let ifindex = IfIndex::new(ifindex.unwrap()).unwrap();
        for target in self.n2.addresses {
            let request = ResolveIp { ifindex, target };
            self.kernel.resolve_ip(request, PATIENCE).unwrap().unwrap();
            self.kernel.next_event(PATIENCE, &Interrupt::never()).unwrap().expect("an answer");
        }
        for dgid in [3 + round, 200] {
            self.kernel.resolve_path(request(gid(8), gid(dgid), 1)).unwrap();
            self.kernel.next_event(PATIENCE, &Interrupt::never()).unwrap().expect("an answer");
        }
    }

    fn ask_as_user(&mut self) {
        let [v4, v6] = self.n2.addresses.map(|address| address.to_string());
        let dead = self.n2.addresses[0].to_string().replace(".2", ".99");
        let bpf_dir = self.lab.bpf_dir(&self.n1);
        for words in [
            &["resolve", "--fresh", &v4, &v6][..],
            &["resolve", "--timeout", "100ms", &dead],
            &["path", "--fresh", "fe80::7"],
            &["ports"],
            &["status"],
            &["status", "--all"],
            &["counters"],
            &["metrics"],
            &["cache"],
            &["cache", "--paths"],
            &["cache", "--kernel", "--bpf-dir", bpf_dir.to_str().unwrap()],
            &["log-level", "debug", "--for", "50ms"],
            &["log-level"],
            &["doctor"],
            &["trace", "--for", "50ms"],
            &["trace", "--kernel", "--for", "300ms"],
        ] {
            let output = self.lab.ibarr(&self.n1, &[words, &["--json"]].concat()).unwrap();
            assert!(!output.stdout.is_empty(), "{words:?}: {}", said(&output));
        }
    }

    fn ask_as_client_of_acm(&mut self) {
        let name = |name: &str| Address::Name(Name::new(name).unwrap());
        let to = self.n2.addresses.map(Address::Ip);
        let path = self.machine.directory().join("acm.sock");
        for destination in [to[0], to[1], name("localhost"), name("nowhere.invalid")] {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let ask = Ask::Resolve(Resolve::to(None, destination));
            let request = Request { tid: Tid([5; 8]), ask };
            stream.write_all(request.emit(&mut [0; MAX_REQUEST_LEN])).unwrap();
            assert_ne!(stream.read(&mut [0; 1024]).unwrap(), 0);
        }
    }

    fn read_metrics(&mut self) {
        let mut stream = UnixStream::connect(self.machine.directory().join("metrics")).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    }

    fn reload(&mut self, round: u8) {
        configure(&self.machine, &self.lab, &self.n1, round + 1);
        kill(self.pid(), Signal::SIGHUP).unwrap();
        self.ask(&["reload"]);
        fs::write(self.lab.files(&self.n1).config(), "no = ").unwrap();
        kill(self.pid(), Signal::SIGHUP).unwrap();
        configure(&self.machine, &self.lab, &self.n1, round);
        self.ask(&["reload"]);
    }

    fn change_interfaces(&mut self) {
        let at = format!("-netns {}", self.n1.namespace);
        ip(&format!("{at} link add later type veth peer name end"));
        ip(&format!("{at} address add 10.240.0.1/24 dev later"));
        ip(&format!("{at} link set later up"));
        // A rule that may divert datagrams has the engine ask for the routes of peers.
        ip(&format!("{at} rule add pref 100 ipproto udp lookup 9"));
        let interfaces = |this: &Self| this.ask(&["status", "--all"]).to_string();
        self.until(|this| interfaces(this).contains("\"later\""));
        ip(&format!("{at} link delete later"));
        ip(&format!("{at} rule del pref 100"));
        self.until(|this| !interfaces(this).contains("\"later\""));
    }

    fn lose_theport(&mut self, round: u8) {
        let loss = if round == 0 { Loss::Told } else { Loss::OnlyToWriters };
        self.port.unplug(loss).unwrap();
        self.port.plug().unwrap();
        let ask = ["path", "--fresh", "fe80::6"];
        let found = |this: &Self| this.lab.ibarr(&this.n1, &ask).unwrap().status.success();
        self.until(found);
    }

    /// All that others may remove.
    fn remove_files(&mut self) {
        let lost = |this: &Self| this.ask(&["counters"])["counters"]["responder.lost"].clone();
        let before = lost(self);
        for path in tree(&self.lab.bpf_dir(&self.n1)).into_iter().rev() {
            if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) }.unwrap();
        }
        self.until(|this| lost(this) != before);
        let run_dir = self.lab.files(&self.n1).run_dir();
        for path in tree(&run_dir).into_iter().rev() {
            fs::remove_file(path).unwrap();
        }
        let sockets = ["acm.sock", "metrics"].map(|name| self.machine.directory().join(name));
        for socket in &sockets {
            fs::remove_file(socket).unwrap();
        }
        let files = [&sockets[..], &[run_dir.join("control.sock")]].concat();
        self.until(|_| files.iter().all(|file| file.exists()));
    }

    /// Ends strace, and returns what it has written.
    fn end(&mut self) -> String {
        kill(Pid::from_raw(self.strace.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
        self.strace.wait().unwrap();
        String::from_utf8_lossy(&fs::read(&self.calls).unwrap()).into_owned()
    }
}

impl Drop for Soak {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.strace.kill());
        drop(self.strace.wait());
    }
}

/// Writes a configuration that is another one each time.
fn configure(machine: &Machine, lab: &Lab, node: &Node, round: u8) {
    let file = lab.files(node).config();
    let statics =
        node.addresses.map(|ip| format!("[[static-gid]]\nip = \"{ip}\"\ngid = \"{}\"\n", node.gid));
    let directory = machine.directory().display();
    let text = format!(
        "allow = [\"10.0.0.0/8\", \"fd00::/8\", \"10.250.0.{round}/32\"]\n{}\
         [paths]\nsnapshot = \"{directory}/snapshot{round}\"\n\
         [acm]\nserve = \"tools\"\nsocket = \"{directory}/acm.sock\"\n\
         [metrics]\nlisten = \"unix:{directory}/metrics\"\n",
        statics.concat()
    );
    fs::write(file, text).unwrap();
}

/// How often each call is in the output of strace. A call is told by what it acts on: a path below the directory of
/// the test, or elsewhere, or the kind of a descriptor; and by whether it, or the socket that it makes, waits.
fn counted(text: &str, machine: &Path) -> BTreeMap<String, u64> {
    let machine = machine.to_str().unwrap();
    let mut calls = BTreeMap::new();
    for (name, arguments) in lines(text) {
        let object = of_path(arguments).or_else(|| of_descriptor(arguments));
        let object = match name {
            // The time-out is the last argument.
            "poll" => arguments
                .split(')')
                .next()
                .and_then(|all| all.rsplit(", ").next())
                .map(str::to_owned),
            _ => object,
        };
        let object = object.unwrap_or_else(|| constant(arguments));
        let waits = match name {
            "socket" | "accept4" if arguments.contains("SOCK_NONBLOCK") => " non-blocking",
            _ => "",
        };
        let call = format!("{name} {}", object.replace(machine, "MACHINE"));
        *calls.entry(format!("{}{waits}", call.trim_end())).or_default() += 1;
    }
    calls
}

/// The calls with their arguments, and nothing of signals.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_call = |line: &&str| line.starts_with(|c: char| c.is_ascii_lowercase());
    text.lines().filter(is_call).map(|line| line.split_once('(').unwrap_or((line, "")))
}

/// The sockets that are read or written and would wait, of those that the process still has.
fn waiting(text: &str, pid: Pid) -> BTreeSet<(&str, &str)> {
    let is_transfer = |(name, arguments): &(&str, &str)| {
        let names = ["read", "write", "recv", "send", "accept"];
        names.iter().any(|start| name.starts_with(start)) && !arguments.contains("MSG_DONTWAIT")
    };
    let waits = |(_, descriptor): &(&str, &str)| {
        // Another thread may have got its number meanwhile.
        let link = fs::read_link(format!("/proc/{pid}/fd/{descriptor}")).unwrap_or_default();
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}"));
        let flags = info
            .unwrap_or_default()
            .lines()
            .find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
        let waits = |flags| !OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK);
        link.to_string_lossy().starts_with("socket:") && flags.is_some_and(waits)
    };
    let transfers = lines(text).filter(is_transfer);
    let all = transfers.filter_map(|(name, all)| Some((name, all.split_once('<')?.0)));
    all.collect::<BTreeSet<_>>().into_iter().filter(waits).collect()
}

/// The path, if the first argument, or the one after `AT_FDCWD`, is one.
fn of_path(arguments: &str) -> Option<String> {
    let (_, rest) = arguments
        .strip_prefix("AT_FDCWD")
        .map_or(Some(("", arguments)), |rest| rest.split_once(", "))?;
    Some(rest.strip_prefix('"')?.split('"').next()?.to_owned())
}

/// The kind of the descriptor that is the first argument.
fn of_descriptor(arguments: &str) -> Option<String> {
    let kind = arguments.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix('<')?;
    let kind = kind.strip_prefix("anon_inode:").unwrap_or(kind);
    if let Some(inner) = kind.strip_prefix('[') {
        return Some(inner.split(']').next()?.to_owned());
    }
    Some(kind.split([':', '>', '<']).next()?.to_owned())
}

/// The constant that is the first argument, such as a command of bpf(2).
fn constant(arguments: &str) -> String {
    let arguments = arguments.split([',', ')']).map(str::trim);
    let is_constant = |argument: &&str| {
        argument.starts_with(|c: char| c.is_ascii_uppercase()) && *argument != "NULL"
    };
    arguments.take(2).find(is_constant).unwrap_or_default().to_owned()
}

/// The calls of the file.
fn list() -> Vec<&'static str> {
    let lines =
        include_str!("list").lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let call = |line: &'static str| {
        let (call, reason) = line.split_once("  ").unwrap_or_else(|| panic!("{line}: no reason"));
        assert!(!reason.trim().is_empty(), "{line}: no reason");
        call
    };
    lines.map(call).collect()
}
