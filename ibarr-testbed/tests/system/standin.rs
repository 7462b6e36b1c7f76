// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The daemon and a stand-in for the kernel: the answers that callers of `rdma_resolve_addr` and
//! `rdma_resolve_route` get.

use std::fs::{self, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use ibarr_common::IfIndex;
use ibarr_common::ib::PortNum;
use ibarr_common::wire::ls::{PathUse, ResolveIp, ResolvePath, Seq};
use ibarr_testbed::interrupt::Interrupt;
use ibarr_testbed::lab::{Lab, Node, Plan, Store, TemporaryLab, netns};
use ibarr_testbed::standin::{Config, Event, IpOutcome, PathOutcome, Reason, StandIn, Wake};
use ibarr_testbed::start::program;
use ibarr_user::transport::rtnetlink::ADDRESS_V6;
use nix::net::if_::if_nametoindex;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair};

use crate::machine::{MARKER, Machine, ibarr, read_until, said};

/// The usual time-out of `rdma_resolve_addr`, longer than the test takes.
const CALLERS_TIMEOUT: Duration = Duration::from_secs(2);
/// Longer than all of the kernel's time-outs here.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn nudge_wakes_callers_of_addresses_behind_the_router() {
    let mut node = Asker::new();
    let n2 = node.pave();
    // The first answer comes from the peer, the second from the cache.
    for _ in 0..2 {
        for target in n2.addresses {
            let request = ResolveIp { ifindex: node.ifindex, target };
            let asked = node.kernel.resolve_ip(request, CALLERS_TIMEOUT).unwrap().unwrap();
            let by = Wake::Neighbour(ADDRESS_V6.into());
            let resolved = IpOutcome::Resolved { gid: n2.gid().unwrap().octets(), by };
            assert_eq!(node.outcome(), Event::Ip(asked, resolved), "{}", node.log());
        }
    }
    // Both at once, and each caller gets an answer.
    let requests = n2.addresses.map(|target| ResolveIp { ifindex: node.ifindex, target });
    let asked = requests
        .map(|request| node.kernel.resolve_ip(request, CALLERS_TIMEOUT).unwrap().unwrap())
        .to_vec();
    node.wakes_all(asked, &n2);
}

/// Shows that nothing but the nudge woke the callers above.
#[test]
fn without_nudges_the_caller_waits_for_its_time_out() {
    let mut node = Asker::with("nudge = false\n");
    let n2 = node.pave();
    for target in n2.addresses {
        let request = ResolveIp { ifindex: node.ifindex, target };
        let timeout = Duration::from_millis(300);
        let asked = node.kernel.resolve_ip(request, timeout).unwrap().unwrap();
        let resolved = IpOutcome::Resolved { gid: n2.gid().unwrap().octets(), by: Wake::TimeOut };
        assert_eq!(node.outcome(), Event::Ip(asked, resolved), "{}", node.log());
    }
}

#[test]
fn request_for_an_unused_address_times_out_without_an_answer() {
    let mut node = Asker::new();
    let target = "10.2.0.99".parse().unwrap();
    let request = ResolveIp { ifindex: node.ifindex, target };
    node.kernel.take_said();
    let asked = node.kernel.resolve_ip(request, Duration::from_millis(500)).unwrap().unwrap();
    assert_eq!(node.outcome(), Event::Ip(asked, IpOutcome::TimedOut));
    let said = node.kernel.take_said();
    // This includes the last repetition of a request.
    assert!(said.len() >= 2 && said.iter().all(|said| said.by_kernel), "{said:?}");
}

#[test]
fn path_request_without_a_port_is_left_to_the_kernel_at_once() {
    let mut node = Asker::new();
    let [n1, n2] = ["n1", "n2"].map(|name| node.lab.plan().node(name).unwrap().clone());
    let request = ResolvePath {
        device: "mlx5_0".parse().unwrap(),
        port: PortNum::new(1).unwrap(),
        path_use: PathUse::All,
        service_id: None,
        dgid: n2.gid().unwrap(),
        sgid: n1.gid().unwrap(),
        tclass: None,
        pkey: None,
        qos_class: None,
    };
    let asked = node.kernel.resolve_path(request).unwrap().unwrap();
    let told = PathOutcome::AsksSa(Reason::Told);
    assert_eq!(node.outcome(), Event::Path(asked, told), "{}", node.log());
}

/// Each connection asks again as soon as it is answered or refused.
#[test]
fn user_that_asks_for_dead_addresses_delays_no_kernel_caller() {
    const NOBODY: u32 = 65534;
    let mut node = Asker::new();
    let n2 = node.pave();
    let n1 = node.lab.plan().node("n1").unwrap().clone();
    let socket = node.lab.files(&n1).run_dir().join("control.sock");
    let copy = node.machine.directory().join("crowd");
    fs::copy(env!("CARGO_BIN_EXE_ibarr-testbed"), &copy).unwrap();
    let dead: Vec<_> = (0..256).map(|n| format!("\"fd00:2::%:{n:x}\"")).collect();
    let text = format!("{{\"ask\":\"resolve\",\"addresses\":[{}]}}\n", dead.join(","));
    let mut command = program(&copy);
    command.args(["crowd", "--connections", "20", "--again", "--text", &text]);
    command.arg("--socket").arg(socket).env(MARKER, node.machine.marker());
    command.uid(NOBODY).gid(NOBODY).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut crowd = command.spawn().unwrap();
    read_until(&mut crowd, "ready");
    let users = |node: &Asker, number: &str| {
        let status = node.lab.ask(&n1, &["status"]).unwrap();
        status["status"]["users"][0][number].as_u64().unwrap()
    };
    while users(&node, "waiting") == 0 || users(&node, "under-way") == 0 {
        std::thread::sleep(Duration::from_millis(20));
    }
    for n in 0..20 {
        let flushed = node.lab.ibarr(&n1, &["cache", "--flush"]).unwrap();
        assert!(flushed.status.success(), "{}", said(&flushed));
        let request = ResolveIp { ifindex: node.ifindex, target: n2.addresses[n % 2] };
        let asked = node.kernel.resolve_ip(request, CALLERS_TIMEOUT).unwrap().unwrap();
        let Event::Ip(seq, IpOutcome::Resolved { gid, by: Wake::Neighbour(_) }) = node.outcome()
        else {
            panic!("{}", node.log())
        };
        assert_eq!((seq, gid), (asked, n2.gid().unwrap().octets()));
    }
    assert!(users(&node, "under-way") > 0, "the crowd has stopped asking");
    let counters = node.lab.ask(&n1, &["counters"]).unwrap();
    assert!(counters["counters"]["control.refused-user"].as_u64() > Some(0), "{counters}");
    drop(crowd.stdin.take());
    assert!(crowd.wait().unwrap().success());
}

#[test]
fn killed_peer_is_refused_at_once_and_resolved_when_back() {
    let mut node = Asker::new();
    let [n1, n2] = ["n1", "n2"].map(|name| node.lab.plan().node(name).unwrap().clone());
    let file = node.lab.files(&n2).config();
    let of_lab = fs::read_to_string(&file).unwrap();
    // Without programs that would answer for the killed daemon.
    fs::write(&file, format!("responder = \"user\"\n{of_lab}")).unwrap();
    node.lab.restart(n2.name, &Interrupt::never()).unwrap();
    node.pave();
    for pid in netns::processes(&n2.namespace).unwrap() {
        kill(pid, Signal::SIGKILL).unwrap();
    }
    let count = |node: &Asker, name: &str| {
        let counters = node.lab.ask(&n1, &["counters"]).unwrap();
        counters["counters"][format!("ip2gid.client.{name}")].as_u64().unwrap()
    };
    let [queries, resends] = ["queries", "resends"].map(|name| count(&node, name));
    let [v4, v6] = n2.addresses.map(|address| address.to_string());
    let output = node.lab.ibarr(&n1, &["resolve", &v4, &v6, "--timeout", "30s"]).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let printed = said(&output);
    assert!(printed.contains(&format!("no ibarr listens at {v4}, {v6}")), "{printed}");
    let answers = node.lab.ibarr(&n1, &["resolve", &v4, "--timeout", "30s", "--json"]).unwrap();
    let answers: serde_json::Value = serde_json::from_slice(&answers.stdout).unwrap();
    assert_eq!(answers["answers"][0]["status"], "refused", "{answers}");
    assert_eq!(count(&node, "refused"), 3);
    // One query for each question: no resend, and no remembered refusal.
    assert_eq!([count(&node, "queries"), count(&node, "resends")], [queries + 3, resends]);

    let requests = n2.addresses.map(|target| ResolveIp { ifindex: node.ifindex, target });
    let asked = requests
        .map(|request| node.kernel.resolve_ip(request, PATIENCE).unwrap().unwrap())
        .to_vec();
    while count(&node, "refusals") < 5 {
        std::thread::sleep(Duration::from_millis(20));
    }
    node.lab.restart(n2.name, &Interrupt::never()).unwrap();
    node.wakes_all(asked, &n2);
}

/// Otherwise another user that starts the daemon could answer for the kernel.
#[test]
fn a_stand_in_of_another_user_is_refused_and_named() {
    const INHERIT: &str = "exec 3<&0; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=ls
        exec setpriv --reuid=65534 --clear-groups \"$@\" </dev/null 2>&1";
    let machine = Machine::new();
    let directory = machine.directory();
    // The other user must be able to write here.
    fs::set_permissions(directory, Permissions::from_mode(0o777)).unwrap();
    let copy = directory.join("ibarr");
    fs::copy(ibarr(), &copy).unwrap();
    let config = directory.join("ibarr.toml");
    fs::write(&config, "responder = \"user\"\n").unwrap();
    let flags = SockFlag::SOCK_CLOEXEC;
    let (ours, inherited) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();

    let mut command = program("sh");
    command.args(["-ec", INHERIT, "sh"]).arg(&copy).arg("run").arg("--config").arg(&config);
    command.arg("--run-dir").arg(directory).arg("--bpf-dir").arg(directory.join("bpf"));
    command.env(MARKER, machine.marker()).stdin(inherited).stdout(Stdio::piped());
    let mut daemon = command.spawn().unwrap();
    // The command also holds the socket.
    drop(command);
    read_until(&mut daemon, "the inherited AF_UNIX socket belongs to user 0, not to ours");
    read_until(&mut daemon, "ready");
    let status = program(&copy).args(["status", "--run-dir"]).arg(directory).output();
    let status = said(&status.unwrap());
    assert!(status.contains("belongs to user 0"), "{status}");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    // The daemon has closed the socket, and had sent nothing.
    assert_eq!(recv(ours.as_raw_fd(), &mut [0; 64], MsgFlags::empty()), Ok(0));
}

/// Node n1 of a lab with a router. Its kernel asks.
struct Asker {
    kernel: StandIn,
    ifindex: IfIndex,
    lab: TemporaryLab,
    machine: Machine,
}

impl Asker {
    fn new() -> Self {
        Self::with("")
    }

    /// A node whose daemon has this additional configuration.
    fn with(config: &str) -> Self {
        let machine = Machine::new();
        let store = Store::at(&machine.state_dir()).unwrap();
        let plan = Plan::new("standin".parse().unwrap(), 2, true).unwrap();
        let never = Interrupt::never();
        let mut lab = TemporaryLab::new(Lab::up(&store, plan, ibarr(), &never).unwrap());
        let n1 = lab.plan().node("n1").unwrap().clone();
        let file = lab.files(&n1).config();
        let of_lab = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{config}{of_lab}")).unwrap();
        let kernel = StandIn::attach(&mut lab, n1.name, Config::default(), &never).unwrap();
        let ifindex = netns::inside(&n1.namespace, || Ok(if_nametoindex(Node::INTERFACE)?));
        let ifindex = IfIndex::new(ifindex.unwrap()).unwrap();
        Self { kernel, ifindex, lab, machine }
    }

    /// Resolves the neighbours on the way to n2, so that later only nudges change neighbours, and flushes
    /// the cache, so that the daemon has to ask.
    fn pave(&self) -> Node {
        let [n1, n2] = ["n1", "n2"].map(|name| self.lab.plan().node(name).unwrap());
        let [v4, v6] = n2.addresses.map(|address| address.to_string());
        for arguments in [["resolve", &v4, &v6].as_slice(), &["cache", "--flush"]] {
            let output = self.lab.ibarr(n1, arguments).unwrap();
            assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        }
        n2.clone()
    }

    /// Checks that each request is answered with a GID of `owner`, and wakes its caller.
    fn wakes_all(&mut self, mut asked: Vec<Seq>, owner: &Node) {
        while !asked.is_empty() {
            let Event::Ip(seq, IpOutcome::Resolved { gid, by: Wake::Neighbour(_) }) =
                self.outcome()
            else {
                panic!("{}", self.log())
            };
            assert_eq!(gid, owner.gid().unwrap().octets());
            asked.retain(|asked| *asked != seq);
        }
    }

    /// The end of the next request.
    fn outcome(&mut self) -> Event {
        loop {
            let event = self.kernel.next_event(PATIENCE, &Interrupt::never()).unwrap();
            match event.unwrap_or_else(|| panic!("no outcome; {}", self.log())) {
                // The daemon was faster than the kernel, or answered a repeated request.
                Event::AnswerLost(_) => {}
                event => return event,
            }
        }
    }

    fn log(&self) -> String {
        self.lab.files(self.lab.plan().node("n1").unwrap()).log_tail()
    }
}
