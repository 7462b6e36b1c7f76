// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The metrics, as Prometheus reads them.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Output};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::kernel::{CONFIG, command, pair};
use crate::paths::{LOCAL, Port, UNKNOWN, ask, await_capabilities, request, start};
use crate::sockets::in_namespace;
use crate::support::{Daemon, IBARR, TempDir, free_tcp_port, ibarr, json, program, until};

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The answer to a request, with its head.
pub(crate) fn http(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(format!("{request}\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[track_caller]
fn value(metrics: &str, sample: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {sample} in\n{metrics}")).parse().unwrap()
}

#[test]
fn metrics_tell_what_was_asked_avoided_and_answered() {
    let dir = TempDir::new("metrics-paths");
    let port = Port::new(&dir);
    let (daemon, kernel) = start(&dir, CONFIG);
    await_capabilities(&daemon);
    for seq in 1..4 {
        assert!(ask(&kernel, seq, request(LOCAL, 1)).is_some());
    }
    assert!(ask(&kernel, 5, request(UNKNOWN, 1)).is_some());
    let metrics = text(&daemon.ask(&["metrics"]));
    assert!(metrics.starts_with("# HELP ibarr_up ") && !metrics.contains("# EOF"));
    let value = |sample| value(&metrics, sample);
    assert!((value("ibarr_path_duration_seconds_count") - 4.0).abs() < 0.1);
    assert!((value("ibarr_sa_avoided_total") - 2.0).abs() < 0.1);
    let asked = f64::from(u32::try_from(port.asked()).unwrap());
    assert!((value("ibarr_sa_queries_total{port=\"mlx5_0/1\"}") - asked).abs() < 0.1);
    assert!(value("ibarr_sa_last_answer_timestamp_seconds{port=\"mlx5_0/1\"}") > 1.6e9);
    assert!((value("ibarr_cache_entries{cache=\"paths\"}") - 2.0).abs() < 0.1);
    assert!((value("ibarr_config_last_reload_successful") - 1.0).abs() < 0.1);
    // The same for programs.
    let document = json(&daemon.ask(&["metrics", "--openmetrics", "--json"]));
    assert!(document["metrics"].as_str().unwrap().ends_with("# EOF\n"));
}

#[test]
fn metrics_are_served_where_the_configuration_says_and_moved_by_a_reload() {
    if !in_namespace(
        "metrics::metrics_are_served_where_the_configuration_says_and_moved_by_a_reload",
    ) {
        return;
    }
    let dir = TempDir::new("metrics-http");
    let socket = dir.path("metrics.sock");
    let unix = format!("[metrics]\nlisten = \"unix:{}\"\n", socket.display());
    let mut daemon = Daemon::start(&dir, &unix);
    let stream = daemon.until(|_| UnixStream::connect(&socket).ok());
    let answer = http(stream, "GET /metrics HTTP/1.1");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(body.starts_with("# HELP ibarr_up "), "{body}");
    let get = |request| http(UnixStream::connect(&socket).unwrap(), request);
    let answer = get("GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0");
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0"));
    assert!(answer.ends_with("# EOF\n"), "{answer}");
    assert!(get("GET / HTTP/1.1").starts_with("HTTP/1.1 404 "));
    assert!(get("POST /metrics HTTP/1.1").starts_with("HTTP/1.1 405 "));

    let port = free_tcp_port();
    let tcp = format!("responder = \"user\"\n[metrics]\nlisten = \"127.0.0.1:{port}\"\n");
    dir.write("ibarr.toml", &tcp);
    assert_eq!(daemon.ask(&["reload"]).status.code(), Some(0));
    let stream = daemon.until(|_| TcpStream::connect(("127.0.0.1", port)).ok());
    assert!(http(stream, "GET /metrics HTTP/1.1").starts_with("HTTP/1.1 200 OK\r\n"));
    daemon.until(|_| (!socket.exists()).then_some(()));

    // Off again.
    dir.write("ibarr.toml", "responder = \"user\"\n");
    assert_eq!(daemon.ask(&["reload"]).status.code(), Some(0));
    daemon.until(|_| TcpStream::connect(("127.0.0.1", port)).is_err().then_some(()));
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
}

#[test]
fn file_of_metrics_is_replaced_and_says_whether_the_daemon_answers() {
    let dir = TempDir::new("metrics-file");
    let mut daemon = Daemon::start(&dir, "");
    let file = dir.path("ibarr.prom");
    let write = |daemon: &Daemon| daemon.ask(&["metrics", "--output", file.to_str().unwrap()]);
    let output = write(&daemon);
    assert_eq!((output.status.code(), text(&output).as_str()), (Some(0), ""));
    let written = fs::read_to_string(&file).unwrap();
    assert!((value(&written, "ibarr_up") - 1.0).abs() < 0.1);
    assert!(written.contains("\nibarr_build_info{"), "{written}");
    daemon.end(Signal::SIGTERM);
    // No value of before is left.
    let output = write(&daemon);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let written = fs::read_to_string(&file).unwrap();
    let samples: Vec<_> = written.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(samples, ["ibarr_up 0.0"]);
    let files = fs::read_dir(file.parent().unwrap()).unwrap();
    let names = files.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.filter(|name| name.contains("ibarr.prom")).eq(["ibarr.prom"]));
}

/// An exporter, killed when dropped.
struct Exporter(Child);

impl Exporter {
    fn start(run_dir: &TempDir, listen: &str) -> Self {
        let mut command = program(IBARR);
        command.args(["exporter", "--listen", listen, "--run-dir"]).arg(run_dir.path(""));
        let this = Self(command.spawn().unwrap());
        let port = listen.rsplit_once(':').unwrap().1.parse().unwrap();
        until(|| TcpStream::connect(("127.0.0.1", port)).ok());
        this
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn exporter_serves_metrics_and_says_that_the_daemon_is_gone() {
    const AT: (&str, u16) = ("127.0.0.1", 9792);
    if !in_namespace("metrics::exporter_serves_metrics_and_says_that_the_daemon_is_gone") {
        return;
    }
    let dir = TempDir::new("metrics-exporter");
    let get = |request| http(TcpStream::connect(AT).unwrap(), request);
    // No daemon yet.
    let _exporter = Exporter::start(&dir, "0.0.0.0:9792");
    assert!(get("GET /metrics HTTP/1.1").contains("\nibarr_up 0.0\n"));
    let mut daemon = Daemon::start(&dir, "");
    let answer = until(|| {
        let answer = get("GET /metrics HTTP/1.1");
        answer.contains("\nibarr_up 1.0\n").then_some(answer)
    });
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    let open = get("GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text");
    assert!(open.contains("ibarr_build_info{") && open.ends_with("# EOF\n"), "{open}");
    assert!(get("POST /metrics HTTP/1.1").starts_with("HTTP/1.1 405 "));
    daemon.end(Signal::SIGTERM);
    until(|| get("GET /metrics HTTP/1.1").contains("\nibarr_up 0.0\n").then_some(()));

    let output = ibarr(&["exporter", "--listen", "127.0.0.1:9792"]);
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("127.0.0.1:9792: Address already"));
    let output = ibarr(&["exporter", "--listen", "10.99.0.1:9792"]);
    assert_eq!(output.status.code(), Some(66), "{output:?}");
}

#[test]
fn half_requests_of_many_machines_lock_out_no_scraper() {
    if !in_namespace("metrics::half_requests_of_many_machines_lock_out_no_scraper") {
        return;
    }
    // A connection to an address of the machine comes from that address.
    let route = program("ip").args(["route", "add", "local", "10.9.0.0/16", "dev", "lo"]).status();
    assert!(route.unwrap().success());
    let dir = TempDir::new("metrics-machines");
    let _daemon = Daemon::start(&dir, "");
    let _exporter = Exporter::start(&dir, "0.0.0.0:9792");
    let connect = |machine: u8| TcpStream::connect((format!("10.9.0.{machine}"), 9792)).unwrap();
    let half = |machine| {
        let mut stream = connect(machine);
        stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
        stream
    };
    // One machine with more connections than there are, and then more machines than there are connections.
    let mut held: Vec<_> = [2; 40].into_iter().map(half).collect();
    for _ in 0..10 {
        let answer = http(connect(1), "GET /metrics HTTP/1.1");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
    held.extend((3..43).map(half));
    for _ in 0..10 {
        let answer = http(connect(1), "GET /metrics HTTP/1.1");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
    // A longer head than allowed ends the connection, before the time that a connection has.
    let mut long = connect(1);
    long.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let _ = long.write_all(&[b'x'; 16 << 10]);
    let ended = long.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
    assert!(!matches!(ended, Err(ErrorKind::WouldBlock)), "{ended:?}");
    assert!(http(connect(1), "GET /metrics HTTP/1.1").starts_with("HTTP/1.1 200 OK\r\n"));
}

#[test]
fn clients_that_say_nothing_take_eight_places_and_no_turn_of_the_daemon() {
    let dir = TempDir::new("metrics-idle");
    let socket = dir.path("metrics.sock");
    let config = format!("[metrics]\nlisten = \"unix:{}\"\n", socket.display());
    let daemon = Daemon::start(&dir, &config);
    daemon.until(|_| UnixStream::connect(&socket).ok());
    let mut idle: Vec<_> = (0..20).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    // Those without a place are closed at once.
    let closed = idle.split_off(9);
    for mut stream in closed {
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
    }
    assert_eq!(daemon.ask(&["status"]).status.code(), Some(0));
    // A place is free again when its client goes.
    drop(idle);
    let is_served = |_: &Daemon| {
        let mut stream = UnixStream::connect(&socket).ok()?;
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer.starts_with("HTTP/1.1 200 OK").then_some(())
    };
    daemon.until(is_served);
}

#[test]
fn address_that_is_taken_degrades_control_until_it_is_free() {
    let dir = TempDir::new("metrics-taken");
    let (_kernel, inherited) = pair();
    // A directory that is not there yet.
    let socket = dir.path("later/metrics.sock");
    let config = format!("[metrics]\nlisten = \"unix:{}\"\n{CONFIG}", socket.display());
    let daemon = Daemon::spawn(command(&dir, inherited), &dir, &config);
    let check = |code| {
        move |daemon: &Daemon| {
            let output = daemon.ask(&["status", "--check"]);
            (output.status.code() == Some(code)).then(|| text(&output))
        }
    };
    let line = daemon.until(check(1));
    assert!(line.contains("control: the metrics are not served: unix:"), "{line}");
    fs::create_dir(dir.path("later")).unwrap();
    daemon.until(check(0));
}

#[test]
fn address_that_other_machines_reach_is_refused() {
    let dir = TempDir::new("metrics-refused");
    let file = dir.write("m.toml", "[metrics]\nlisten = \"0.0.0.0:9792\"\n");
    let output = ibarr(&["validate", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(78));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("m.toml:2:10: metrics.listen is \"0.0.0.0:9792\": other machines"),
        "{said}"
    );
}
