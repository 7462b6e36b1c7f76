// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr trace`: what it shows of a request, and what happens if its output is not read.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Stdio};
use std::thread;

use ibarr_common::IfIndex;
use ibarr_common::wire::acm::{Address, Ask, Resolve};
use ibarr_common::wire::ip2gid::{MsgId, Query, Version};
use ibarr_common::wire::ls::{Request, ResolveIp, Seq};
use nix::net::if_::if_nametoindex;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use serde_json::{Value, json};

use crate::acm;
use crate::kernel::{CONFIG, Kernel, command, pair};
use crate::paths::{self, LOCAL, Port, UNKNOWN, request};
use crate::peers::{GATEWAY, Peers};
use crate::sockets::in_namespace;
use crate::support::{Daemon, IBARR, TempDir, daemon_command, free_port, program};

const GID: &str = "fe80::2:c903:0:201";

/// A running `ibarr trace`.
struct Tracer {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Tracer {
    /// Starts it, and waits for its first line.
    fn start(dir: &TempDir, arguments: &[&str]) -> (Self, String) {
        let mut command = program(IBARR);
        command.arg("trace").arg("--run-dir").arg(&dir.0).args(arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut this = Self { child, lines };
        let first = this.line();
        (this, first)
    }

    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    fn document(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    /// The next events without their times, until one has this step, but nothing about a datagram that a busy
    /// machine made the daemon send again.
    fn until(&mut self, step: &str) -> Vec<Value> {
        let (mut events, mut last, mut is_asked) = (Vec::new(), 0, false);
        loop {
            let mut event = self.document()["event"].take();
            let fields = event.as_object_mut().unwrap();
            let at = fields.remove("at").unwrap().as_u64().unwrap();
            assert!(at >= last, "the clock goes on");
            last = at;
            assert!(fields.remove("ms").unwrap().as_f64().unwrap() >= 0.0);
            fields.remove("took-ms");
            let is_last = event["step"] == step;
            // Sent again, or the reply to that.
            let is_again = event["number"].as_u64().is_some_and(|number| number > 1)
                || event["unasked"] == true
                || is_asked && ["route-sought", "route"].map(Value::from).contains(&event["step"]);
            is_asked |= event["step"] == "query";
            if !is_again {
                events.push(event);
            }
            if is_last {
                return events;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// The exit code, once it has ended.
    fn end(mut self) -> Option<i32> {
        assert!(self.lines.next().is_none());
        self.child.wait().unwrap().code()
    }
}

fn address_request(seq: u32, ifindex: IfIndex, target: &str) -> Vec<u8> {
    let target = target.parse().unwrap();
    Request::ResolveIp(ResolveIp { ifindex, target }).emit(Seq(seq)).as_ref().to_vec()
}

/// A daemon in this namespace, with the kernel's socket.
fn start_here(dir: &TempDir, config: &str) -> (Daemon, Kernel) {
    let (kernel, inherited) = pair();
    let daemon = daemon_command(dir);
    let mut command = program("bash");
    let script = "exec 3<&0; export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\" </dev/null";
    command.args(["-ec", script, "bash"]).arg(daemon.get_program()).args(daemon.get_args());
    command.env("LISTEN_FDNAMES", "ls").stdin(inherited);
    let daemon = Daemon::spawn(command, dir, config);
    kernel.expect("18000000 01100500 00000000", "08000200 b80b0000");
    (daemon, kernel)
}

#[test]
fn trace_shows_a_request_of_the_kernel_from_route_to_nudge() {
    if !in_namespace("trace::trace_shows_a_request_of_the_kernel_from_route_to_nudge") {
        return;
    }
    let (dir, peers) = (TempDir::new("trace-address"), Peers::new());
    peers.set("10.8.0.2", Some(GID));
    peers.set("10.8.0.3", Some(GID));
    let (mut daemon, kernel) = start_here(&dir, &peers.config_for_kernel());
    let (mut tracer, first) = Tracer::start(&dir, &["10.8.0.2", "--json"]);
    let tracing: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(tracing["tracing"]["only"], json!({ "ip": "10.8.0.2" }));

    let (mut people, heading) = Tracer::start(&dir, &["10.8.0.2"]);
    assert!(heading.contains("the GID of 10.8.0.2, and queries from there, until Ctrl-C"));
    let ifindex = IfIndex::new(if_nametoindex("near").unwrap()).unwrap();
    kernel.send_bytes(&address_request(1, ifindex, "10.8.0.3"));
    kernel.receive();
    kernel.send_bytes(&address_request(2, ifindex, "10.8.0.2"));
    kernel.expect("24000000 02100000 02000000", "14000400 fe80000000000000 0002c90300000201");
    let peer = format!("10.8.0.2:{}", peers.port);
    let mut expected = [
        json!({ "step": "asked", "by": "kernel" }),
        json!({ "step": "route-sought" }),
        json!({ "step": "route", "interface": "near", "next-hop": GATEWAY }),
        json!({ "step": "query", "to": peer, "number": 1 }),
        json!({ "step": "reply", "from": peer, "gid": GID }),
        json!({
            "step": "address-answered", "by": "kernel", "status": "found", "source": "peer", "gid": GID
        }),
        json!({ "step": "nudge" }),
        json!({ "step": "nudged", "outcome": "done" }),
    ];
    let events = tracer.until("nudged");
    let number = events[0]["request"].clone();
    for event in &mut expected {
        event["request"] = number.clone();
        event["ip"] = "10.8.0.2".into();
    }
    assert_eq!(events, expected);

    for text in [
        "the kernel asks",
        "route look-up",
        &format!("route by near, next hop {GATEWAY}"),
        &format!("query to {peer}"),
        &format!("reply of {peer}: {GID}"),
        &format!("answer to the kernel: {GID}, from the peer, after "),
        "nudge",
        "nudged: the kernel looks at its answers",
    ] {
        let line = people.line();
        assert!(line.contains(&format!("  10.8.0.2  {text}")), "{text}: {line}");
    }

    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    let end = json!({ "ended": "daemon", "events": expected.len(), "lost": 0 });
    let last = tracer.document();
    assert_eq!(last["traced"], end, "{last}");
    assert_eq!(tracer.end(), Some(0));
    let last = people.line();
    assert_eq!(last, "the daemon ends, and the trace with it: 8 events shown, 0 lost");
    assert_eq!(people.end(), Some(0));
}

#[test]
fn trace_shows_a_path_request_with_mad_answer_and_cause() {
    let dir = TempDir::new("trace-path");
    let _port = Port::new(&dir);
    let (daemon, kernel) = paths::start(&dir, "");
    paths::await_capabilities(&daemon);
    let (mut tracer, _) = Tracer::start(&dir, &["--json"]);
    let steps = |events: Vec<Value>| -> Vec<String> {
        let step = |event: &Value| {
            assert_eq!(event["sgid"], "fec0:0:1:1::10:9");
            let parts = ["step", "by", "lid", "number", "status", "source", "dlid", "refusal"];
            let parts = parts.iter().filter_map(|part| event.get(part));
            parts.map(Value::to_string).collect::<Vec<_>>().join(" ").replace('"', "")
        };
        events.iter().map(step).collect()
    };
    assert!(paths::ask(&kernel, 1, request(LOCAL, 1)).is_some());
    let said = steps(tracer.until("path-answered"));
    let answered = "path-answered kernel found";
    assert_eq!(
        said,
        ["asked kernel", "mad 1 1", "mad-answer 1", &format!("{answered} sa 1")],
        "asked of the SA"
    );
    assert!(paths::ask(&kernel, 2, request(LOCAL, 1)).is_some());
    let said = steps(tracer.until("path-answered"));
    assert_eq!(said, ["asked kernel", &format!("{answered} cache 1")], "remembered");
    assert!(paths::ask(&kernel, 3, request(UNKNOWN, 1)).is_some());
    let said = steps(tracer.until("path-answered"));
    let answer = &said[2];
    assert!(answer.starts_with("mad-answer 1 no records (status 0x"), "{answer}");
    assert_eq!(said[3], "path-answered kernel no-record sa");
    tracer.signal(Signal::SIGINT);
    let end = json!({ "ended": "interrupted", "events": 10, "lost": 0 });
    assert_eq!(tracer.document()["traced"], end);
    assert_eq!(tracer.end(), Some(0));

    let (mut tracer, first) = Tracer::start(&dir, &["--for", "1ms"]);
    assert!(first.starts_with("tracing all requests, for 1ms; "), "{first}");
    assert_eq!(tracer.line(), "the time of the trace is over: 0 events shown, 0 lost");
    assert_eq!(tracer.end(), Some(0));
}

#[test]
fn trace_shows_a_request_of_acm_from_route_to_path() {
    if !in_namespace("trace::trace_shows_a_request_of_acm_from_route_to_path") {
        return;
    }
    let (dir, peers) = (TempDir::new("trace-acm"), Peers::new());
    let _port = Port::new(&dir);
    peers.set("10.9.0.2", Some(LOCAL));
    let source = "[[static-gid]]\nip = \"10.9.0.1\"\ngid = \"fec0:0:1:1::10:9\"\n";
    let config = format!("{}{}{source}", peers.config(), acm::serving(&dir));
    let (daemon, _kernel) = start_here(&dir, &config);
    paths::await_capabilities(&daemon);
    let (mut tracer, _) = Tracer::start(&dir, &["--json"]);
    let mut client = acm::Client::connect(&dir);
    let [from, to] = ["10.9.0.1", "10.9.0.2"].map(|ip| Address::Ip(ip.parse().unwrap()));
    let resolve = Resolve::to(Some(from), to);
    assert_eq!(client.ask(Ask::Resolve(resolve)), Ok(vec![(0x2b, 1)]));

    let events = tracer.until("path-answered");
    let (address, path) = (&events[0]["request"], &events[events.len() - 1]["request"]);
    let uid = &events[0]["uid"];
    if Uid::effective().is_root() {
        assert_eq!(*uid, 0);
    }
    let peer = format!("10.9.0.2:{}", peers.port);
    let mut expected = [
        json!({ "step": "asked", "by": "acm", "uid": uid }),
        json!({ "step": "route-sought" }),
        json!({ "step": "route", "interface": "near", "next-hop": "10.9.0.2" }),
        json!({ "step": "query", "to": peer, "number": 1 }),
        json!({ "step": "reply", "from": peer, "gid": LOCAL }),
        json!({
            "step": "address-answered", "by": "acm", "uid": uid, "status": "found", "source": "peer", "gid": LOCAL
        }),
        json!({ "step": "asked", "by": "acm", "uid": uid }),
        json!({ "step": "mad", "port": "mlx5_0/1", "lid": 1, "number": 1 }),
        json!({ "step": "mad-answer", "port": "mlx5_0/1", "lid": 1 }),
        json!({
            "step": "path-answered", "by": "acm", "uid": uid, "status": "found", "source": "sa", "dlid": 1
        }),
    ];
    for (number, event) in expected.iter_mut().enumerate() {
        if number < 6 {
            (event["request"], event["ip"]) = (address.clone(), "10.9.0.2".into());
        } else {
            (event["request"], event["dgid"]) = (path.clone(), LOCAL.into());
            event["sgid"] = "fec0:0:1:1::10:9".into();
        }
    }
    assert_eq!(events, expected);
    assert_ne!(address, path);
    tracer.signal(Signal::SIGINT);
    tracer.document();
    assert_eq!(tracer.end(), Some(0));
}

#[test]
fn tracer_that_does_not_read_loses_events_and_delays_no_answer() {
    let dir = TempDir::new("trace-slow");
    let (kernel, inherited) = pair();
    let daemon = Daemon::spawn(command(&dir, inherited), &dir, CONFIG);
    kernel.expect("18000000 01100500 00000000", "08000200 b80b0000");
    let mut stream = UnixStream::connect(dir.path("control.sock")).unwrap();
    stream.write_all(b"{\"ask\":\"trace\"}\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.starts_with("{\"v\":1,\"tracing\":{"), "{first}");

    let loopback = IfIndex::new(1).unwrap();
    let mut seq = 0;
    let mut ask = |count: u32| {
        for _ in 0..count {
            seq += 1;
            kernel.send_bytes(&address_request(seq, loopback, "192.0.2.7"));
        }
        let answers = (0..count).map(|_| kernel.receive());
        assert!(answers.into_iter().all(|answer| answer.len() == 36));
    };
    // More than the connection and the queue hold.
    for _ in 0..80 {
        ask(100);
    }
    assert_eq!(daemon.ask(&["status"]).status.code(), Some(0));
    // An event that finds room again says how many are lost.
    let reader = thread::spawn(move || {
        lines.map(Result::unwrap).find_map(|line| {
            let document: Value = serde_json::from_str(&line).unwrap();
            document["event"]["lost"].as_u64()
        })
    });
    for _ in 0..100_000 {
        if reader.is_finished() {
            break;
        }
        ask(1);
    }
    // If none was lost, the end of the daemon ends the reader.
    drop(daemon);
    let lost = reader.join().unwrap();
    assert!(lost.is_some_and(|lost| lost > 0), "{lost:?}");
}

#[test]
fn interface_is_refused_where_a_trace_cannot_heed_it() {
    let dir = TempDir::new("trace-interface");
    let daemon = Daemon::spawn(daemon_command(&dir), &dir, "");
    for (target, code) in [("10.2.0.5%lo", 64), ("fe80::5%lo", 0), ("10.2.0.5", 0)] {
        let output = daemon.ask(&["trace", target, "--for", "1ms"]);
        assert_eq!(output.status.code(), Some(code), "{target}: {output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.contains("like 10.2.0.5\n"), code != 0, "{said}");
    }
}

#[test]
fn fifth_trace_is_refused_until_another_one_has_ended_however() {
    let dir = TempDir::new("trace-many");
    let daemon = Daemon::spawn(daemon_command(&dir), &dir, "");
    let mut tracers: Vec<_> = (0..4).map(|_| Tracer::start(&dir, &["--json"])).collect();
    let refused = daemon.ask(&["trace", "--json"]);
    assert_eq!(refused.status.code(), Some(69), "{refused:?}");
    let document: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(document["error"]["kind"], "overloaded", "{document}");
    let (killed, _) = tracers.pop().unwrap();
    killed.signal(Signal::SIGKILL);
    assert_eq!(killed.end(), None);
    // The daemon has noticed it.
    daemon.until(|daemon| {
        (daemon.ask(&["trace", "--for", "1ms"]).status.code() == Some(0)).then_some(())
    });
    for (tracer, _) in tracers {
        tracer.signal(Signal::SIGKILL);
        assert_eq!(tracer.end(), None);
    }
    assert_eq!(daemon.ask(&["status"]).status.code(), Some(0));
}

#[test]
fn trace_of_a_user_shows_its_uid() {
    let dir = TempDir::new("trace-user");
    let (kernel, inherited) = pair();
    let daemon = Daemon::spawn(command(&dir, inherited), &dir, CONFIG);
    kernel.expect("18000000 01100500 00000000", "08000200 b80b0000");
    let (mut tracer, _) = Tracer::start(&dir, &["--json"]);
    assert_eq!(daemon.ask(&["resolve", "192.0.2.7"]).status.code(), Some(0));
    let events = tracer.until("address-answered");
    assert_eq!(events[0]["by"], "control");
    assert_eq!(events[1]["source"], "local");
    // Outside the user namespace of the daemon it may have another number.
    if Uid::effective().is_root() {
        assert_eq!((&events[0]["uid"], &events[1]["uid"]), (&0.into(), &0.into()));
    }
    tracer.signal(Signal::SIGINT);
    tracer.document();
    assert_eq!(tracer.end(), Some(0));
}

#[test]
fn trace_shows_queries_of_peers_and_why_one_is_dropped() {
    if !in_namespace("trace::trace_shows_queries_of_peers_and_why_one_is_dropped") {
        return;
    }
    let (dir, port) = (TempDir::new("trace-peer"), free_port());
    let address: IpAddr = [192, 0, 2, 7].into();
    let daemon = Daemon::start(&dir, &format!("udp-port = {port}\n{CONFIG}"));
    let (mut tracer, _) = Tracer::start(&dir, &["--json"]);
    let mut ask = |from: IpAddr| {
        let socket = UdpSocket::bind((from, 0)).unwrap();
        let query = Query::new(Version::V1, MsgId(1), address).unwrap();
        socket.send_to(query.emit().as_ref(), (address, port)).unwrap();
        let event = tracer.until("peer").remove(0);
        assert_eq!(event["from"], socket.local_addr().unwrap().to_string());
        assert_eq!(event["ip"], address.to_string());
        [event["gid"].clone(), event["cause"].clone()]
    };
    assert_eq!(ask(address), [GID.into(), Value::Null]);
    assert_eq!(ask(Ipv4Addr::LOCALHOST.into()), [Value::Null, "source-loopback".into()]);
    drop(daemon);
}
