// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The binary as an administrator uses it: exit codes, documents, signals.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::Value;

use crate::sockets::in_namespace;
use crate::support::{
    Daemon, IBARR, PATIENCE, TempDir, USER_SPACE, daemon_command, free_port, ibarr, json, program,
    until_ok,
};

#[test]
fn validate_reports_every_mistake_and_exits_78() {
    let dir = TempDir::new("validate");
    let file = dir.write("bad.toml", "udp-port = 0\n\ninterface = []\n");
    let file = file.to_str().unwrap();
    let output = ibarr(&["validate", file]);
    assert_eq!(output.status.code(), Some(78));
    let expected = format!(
        "{file}:1:12: udp-port must be a whole number from 1 to 65535\n  |\n1 | udp-port = 0\n  |            ^\n\
         {file}:3:1: interface is not a key of ibarr; did you mean \"interfaces\"?\n  |\n3 | interface = []\n  | ^^^^^^^^^\n"
    );
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);

    let output = ibarr(&["validate", file, "--json"]);
    assert_eq!(output.status.code(), Some(78));
    let document = json(&output);
    assert_eq!(document["error"]["kind"], "config");
    let mistake = &document["mistakes"][1];
    assert_eq!((&mistake["line"], &mistake["column"]), (&3.into(), &1.into()));
    assert_eq!((&mistake["file"], &mistake["text"]), (&file.into(), &"interface = []".into()));

    let file = dir.write("good.toml", include_str!("../../../pkg/ibarr.toml"));
    assert_eq!(ibarr(&["validate", file.to_str().unwrap()]).status.code(), Some(0));
    let wrong = "[paths]\nsnapshot = \"/absent/paths\"\n[acm]\nserve = \"tools\"\nhosts = \"/absent/hosts\"\n";
    let file = dir.write("unusable.toml", wrong);
    let output = ibarr(&["validate", file.to_str().unwrap()]);
    let said = String::from_utf8(output.stdout).unwrap();
    for warning in [
        "warning: [paths] snapshot: the daemon cannot write /absent/paths: /absent: ENOENT",
        "warning: [acm] hosts: the daemon cannot read /absent/hosts: No such file",
    ] {
        assert!(said.contains(warning), "{said}");
    }
    let absent = dir.path("absent.toml");
    assert_eq!(ibarr(&["validate", absent.to_str().unwrap()]).status.code(), Some(78));
}

#[test]
fn validate_reads_standard_input_and_refuses_what_is_too_long() {
    let validate = |text: &[u8]| {
        let mut command = program(IBARR);
        command.args(["validate", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        // It may end before it has read all.
        let _ = child.stdin.take().unwrap().write_all(text);
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(validate(b"lease = \"10s\"\n"), (Some(0), String::new()));
    let (status, message) = validate(b"\nlease = 10\n");
    assert_eq!(status, Some(78));
    assert!(message.starts_with("standard input:2:9: lease must be a text"), "{message}");
    let (status, message) = validate(&vec![b'#'; (1 << 20) + 1]);
    assert_eq!(status, Some(78));
    assert!(
        message.contains("is it the right file?: it is longer than 1048576 bytes"),
        "{message}"
    );
}

#[test]
fn drop_ins_take_effect_in_the_order_of_their_names() {
    let dir = TempDir::new("drop-ins");
    let main = dir.write("ibarr.toml", "lease = \"10s\"\n");
    fs::create_dir(dir.path("ibarr.d")).unwrap();
    let last = dir.write("ibarr.d/20-site.toml", "lease = \"30s\"\n");
    dir.write("ibarr.d/10-role.toml", "lease = \"20s\"\n[client]\nsockets = 4\n");
    dir.write("ibarr.d/ignored.conf", "no TOML");
    let show = || ibarr(&["config", main.to_str().unwrap()]);
    let text = String::from_utf8(show().stdout).unwrap();
    let lease = format!("lease = \"30s\"  # {}:1, default \"60s\"\n", last.display());
    assert!(text.contains(&lease), "{text}");
    assert!(text.contains("\nnudge = true  # default\n"), "{text}");
    // What it prints is a configuration that means the same.
    let again = dir.write("again.toml", &text);
    let again = json(&ibarr(&["config", again.to_str().unwrap(), "--json"]));
    let keys = |document: &Value| {
        let values = document["config"].as_array().unwrap().iter();
        values.map(|one| (one["key"].clone(), one["value"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(keys(&again), keys(&json(&ibarr(&["config", main.to_str().unwrap(), "--json"]))));

    let changed = ibarr(&["config", "--changed", main.to_str().unwrap()]);
    assert_eq!(String::from_utf8(changed.stdout).unwrap(), lease);

    let daemon = Daemon::start(&dir, "");
    let used = json(&daemon.ask(&["status", "--json"]))["status"]["config"].clone();
    assert_eq!(used.as_str().unwrap().matches(".toml").count(), 3, "{used}");
    fs::write(&last, "lease = 30\n").unwrap();
    let output = daemon.ask(&["reload"]);
    assert_eq!(output.status.code(), Some(78));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains(&format!("{}:1:9: lease must be a text", last.display())),
        "{message}"
    );
    assert_eq!(show().status.code(), Some(78));
    // The daemon still runs with what it has read.
    let running = daemon.ask(&["config", "--running", "--changed"]);
    assert!(String::from_utf8(running.stdout).unwrap().ends_with(&lease));
    let running = &json(&daemon.ask(&["config", "--running", "--json"]))["config"];
    let setting = running.as_array().unwrap().iter().find(|it| it["key"] == "lease").unwrap();
    assert_eq!((&setting["value"], &setting["line"]), (&"30s".into(), &1.into()));
}

#[test]
fn wrong_usage_exits_64_and_is_json_on_request() {
    for wrong in [&["resolve"][..], &["resolve", "10.0.0"], &["explode"], &["-l", "ibarr=loud"]] {
        assert_eq!(ibarr(wrong).status.code(), Some(64), "{wrong:?}");
    }
    for wrong in [
        &["resolve", "10.0.0", "--json"][..],
        &["resolve", "--json"],
        &["resolve", "10.0.0.[1-", "--json-lines"],
        &["ping", "10.0.0.[1-2]", "--json"],
        &["explode", "--json"],
        &["status", "--json", "--loud"],
        &["--json"],
    ] {
        let output = ibarr(wrong);
        assert_eq!(output.status.code(), Some(64), "{wrong:?}");
        assert_eq!(json(&output)["error"]["kind"], "usage", "{wrong:?}");
    }
    assert_eq!(ibarr(&["--help"]).status.code(), Some(0));
    assert_eq!(ibarr(&["--version"]).status.code(), Some(0));
}

#[test]
fn ping_of_no_question_is_refused_with_what_to_write() {
    let refused = ibarr(&["ping", "10.0.0.1", "-c", "0"]);
    assert_eq!(refused.status.code(), Some(64));
    let text = String::from_utf8(refused.stderr).unwrap();
    let reason = "invalid value '0' for '--count <N>': write a whole number from 1\n";
    assert!(text.contains(reason), "{text}");
}

#[test]
fn without_a_daemon_commands_exit_69_with_a_remedy() {
    let dir = TempDir::new("nobody");
    let run_dir = dir.0.to_str().unwrap();
    for command in [
        &["status"][..],
        &["cache"],
        &["cache", "--paths"],
        &["counters"],
        &["reload"],
        &["resolve", "::1"],
        &["ping", "::1"],
        &["ports"],
    ] {
        let output = ibarr(&[command, &["--run-dir", run_dir]].concat());
        assert_eq!(output.status.code(), Some(69), "{command:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("systemctl start ibarr"));
    }
}

/// A daemon that ends between two pages.
#[test]
fn document_that_breaks_off_ends_with_the_error() {
    let dir = TempDir::new("breaks-off");
    let listener = UnixListener::bind(dir.path("control.sock")).unwrap();
    let daemon = std::thread::spawn(move || {
        let (mut first, _) = listener.accept().unwrap();
        let mut request = String::new();
        BufReader::new(&first).read_line(&mut request).unwrap();
        let page = include_str!("../golden/control.jsonl");
        let page = page.lines().find(|line| line.starts_with("{\"v\":1,\"paths\":[{")).unwrap();
        assert!(page.contains("\"next\":"), "{page}");
        writeln!(first, "{page}").unwrap();
        drop(listener.accept().unwrap());
    });
    let output = ibarr(&["cache", "--paths", "--json", "--run-dir", dir.0.to_str().unwrap()]);
    daemon.join().unwrap();
    assert_eq!(output.status.code(), Some(69));
    let document = json(&output);
    assert!(!document["paths"].as_array().unwrap().is_empty());
    assert_eq!(document["error"]["kind"], "unreachable");
}

#[test]
fn counters_above_zero_are_shown_unless_all_are_wanted() {
    let dir = TempDir::new("counters");
    let daemon = Daemon::start(&dir, &format!("udp-port = {}\n", free_port()));
    assert_eq!(daemon.ask(&["resolve", "127.0.0.1"]).status.code(), Some(1));
    let text = |arguments: &[&str]| String::from_utf8(daemon.ask(arguments).stdout).unwrap();
    let shown = text(&["counters"]);
    let line = |line: &str| line.split_whitespace().eq(["users.addresses.requests", "1"]);
    assert!(shown.lines().any(line), "{shown}");
    assert!(shown.lines().all(|line| !line.ends_with(" 0")), "{shown}");
    assert_eq!(text(&["counters", "sa.", "acm.*"]).lines().count(), 1);
    assert!(text(&["counters", "sa."]).starts_with("all "));
    let all = text(&["counters", "users.addresses.", "--all"]);
    assert!(all.contains("users.addresses.refused ") && !all.contains("users.paths"), "{all}");
    let some = json(&daemon.ask(&["counters", "*.requests", "--json"]))["counters"].clone();
    let names: Vec<_> = some.as_object().unwrap().keys().collect();
    assert!(names.contains(&&"paths.requests".to_owned()), "{names:?}");
    assert!(names.iter().all(|name| name.ends_with(".requests")));
    assert_eq!(daemon.ask(&["counters", "nothing"]).status.code(), Some(66));
}

#[test]
fn every_counter_of_the_daemon_is_described() {
    let dir = TempDir::new("described");
    let daemon = Daemon::start(&dir, &format!("udp-port = {}\n", free_port()));
    let names = |document: &Value| {
        let names: BTreeSet<_> = document.as_object().unwrap().keys().cloned().collect();
        names
    };
    let counted = names(&json(&daemon.ask(&["counters", "--json"]))["counters"]);
    // Without a daemon.
    let described = names(&json(&ibarr(&["counters", "--describe", "--json"]))["descriptions"]);
    assert_eq!(counted.difference(&described).collect::<Vec<_>>(), Vec::<&String>::new());
    // The programs' counters are there if the programs are loaded.
    let others = described.difference(&counted).filter(|name| !name.starts_with("bpf."));
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&String>::new());
    let text = String::from_utf8(ibarr(&["counters", "--describe", "sa.q"]).stdout).unwrap();
    assert!(text.starts_with("sa.queries  ") && text.trim_end().ends_with('.'), "{text}");
}

#[test]
fn daemon_notifies_systemd_answers_and_leaves_nothing_behind() {
    if !in_namespace("administrator::daemon_notifies_systemd_answers_and_leaves_nothing_behind") {
        return;
    }
    let dir = TempDir::new("life");
    let mut daemon = Daemon::start(&dir, &format!("udp-port = {}\n", free_port()));
    let status = json(&daemon.ask(&["status", "--json"]));
    assert_eq!(status["v"], 1);
    assert_eq!(status["status"]["servers"][0]["family"], "ipv4");
    assert_eq!(status["status"]["servers"][0].get("blocked"), None);

    // An address of this machine without a GID: known without asking a peer.
    let output = daemon.ask(&["resolve", "127.0.0.1", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json(&output)["answers"][0]["status"], "not-found");

    let counters = json(&daemon.ask(&["counters", "--json"]));
    assert_eq!(counters["counters"]["ip2gid.server.answered"], 0);
    assert_eq!(json(&daemon.ask(&["cache", "--json"]))["entries"], Value::Array(Vec::new()));
    assert_eq!(daemon.ask(&["cache", "--flush"]).status.code(), Some(0));

    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    daemon.notified("STOPPING=1");
    assert!(!dir.path("control.sock").exists());
}

#[test]
fn run_dir_has_one_daemon_and_a_dead_one_is_replaced() {
    let dir = TempDir::new("two");
    let config = format!("udp-port = {}\n", free_port());
    let mut first = Daemon::start(&dir, &config);
    let second = daemon_command(&dir).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(second.status.code(), Some(75));
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains(&format!("another ibarr (pid {}) runs here", first.pid())), "{said}");

    first.end(Signal::SIGKILL);
    assert!(dir.path("control.sock").exists());
    let third = Daemon::start(&dir, &config);
    assert_eq!(third.ask(&["status"]).status.code(), Some(0));
}

#[test]
fn broken_configuration_stops_a_start_but_not_a_running_daemon() {
    let dir = TempDir::new("reload");
    dir.write("ibarr.toml", "udp-port = \"x\"\n");
    assert_eq!(daemon_command(&dir).output().unwrap().status.code(), Some(78));
    fs::remove_file(dir.path("ibarr.toml")).unwrap();
    assert_eq!(daemon_command(&dir).output().unwrap().status.code(), Some(78));

    let (old, new) = (free_port(), free_port());
    let daemon = Daemon::start(&dir, &format!("udp-port = {old}\n"));
    let port = |daemon: &Daemon| {
        let status = json(&daemon.ask(&["status", "--json"]));
        status["status"]["servers"][0]["port"].as_u64().unwrap()
    };
    // The second line is legal, but a file with a mistake has no effect at all.
    dir.write("ibarr.toml", &format!("allow = [\"10.0.0.1/8\"]\nudp-port = {new}\n{USER_SPACE}"));
    let output = daemon.ask(&["reload", "--json"]);
    assert_eq!(output.status.code(), Some(78));
    assert!(json(&output)["error"]["message"].as_str().unwrap().contains("toml:1:10: allow"));
    daemon.notified("RELOADING=1");
    daemon.notified("READY=1");
    assert_eq!(port(&daemon), u64::from(old));

    dir.write("ibarr.toml", &format!("udp-port = {new}\n{USER_SPACE}"));
    kill(daemon.pid(), Signal::SIGHUP).unwrap();
    daemon.notified("RELOADING=1");
    daemon.notified("READY=1");
    assert_eq!(port(&daemon), u64::from(new));
}

#[test]
fn systemd_that_reads_nothing_blocks_nothing() {
    let dir = TempDir::new("deaf-systemd");
    let mut daemon = Daemon::start(&dir, "");
    // Two messages each: the socket and the thread's queue are full before the last.
    for _ in 0..30 {
        assert_eq!(daemon.ask(&["reload"]).status.code(), Some(0));
    }
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
}

#[test]
fn holder_of_a_taken_port_is_named_and_a_free_port_served() {
    let dir = TempDir::new("taken");
    let v4 = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = v4.local_addr().unwrap().port();
    let daemon = Daemon::start(&dir, &format!("udp-port = {port}\n"));
    let blocked = |daemon: &Daemon| {
        let status = json(&daemon.ask(&["status", "--json"]));
        status["status"]["servers"][0]["blocked"].as_str().map(str::to_owned)
    };
    // This process holds the port; its name is that of the thread that started it.
    let comm = fs::read_to_string("/proc/self/comm").unwrap();
    let uid = nix::unistd::getuid();
    let by = format!(
        "UDP port {port} is held by {} (pid {}, uid {uid}): stop it; ibarr.socket keeps",
        comm.trim_end(),
        std::process::id()
    );
    daemon.until(|daemon| blocked(daemon).filter(|reason| reason.contains(&by)));
    drop(v4);
    // System level: the daemon tries again every 5 s.
    until_ok(|| blocked(&daemon).map_or(Ok(()), Err));
}

#[test]
fn path_to_something_else_than_a_file_is_named_and_nothing_hangs() {
    let dir = TempDir::new("other-kinds");
    dir.write("ibarr.toml", USER_SPACE);
    for made in ["ibarr.d", "acm", "bad.d", "sys/class/infiniband/mlx5_0/ports/1", "sys/class/net"]
    {
        fs::create_dir_all(dir.path(made)).unwrap();
    }
    let fifo = |at: &str| mkfifo(&dir.path(at), Mode::S_IRWXU).unwrap();
    fifo("ibarr.d/x.toml");
    fifo("acm/ibacm_opts.cfg");
    fifo("sys/class/infiniband/mlx5_0/ports/1/link_layer");
    let at = |name: &str| dir.path(name).display().to_string();
    let run = |words: &[&str]| {
        let mut command = program("timeout");
        command.arg(PATIENCE.as_secs().to_string()).arg(IBARR).args(words);
        let output = command.stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (main, bpf) = (at("ibarr.toml"), at("bpf"));
    let daemon =
        ["run", "--config", &main, "--run-dir", &dir.0.display().to_string(), "--bpf-dir", &bpf];
    let imported = ["import-ibacm", &at("acm")];
    for words in [&["validate", &main][..], &["config", &main], &daemon, &imported] {
        let (status, said) = run(words);
        assert_eq!(status, Some(78), "{words:?}: {said}");
        assert!(said.contains(": it is a FIFO, not a regular file"), "{said}");
    }
    let directory = at("bad.d");
    for (file, kind) in [("/dev/zero", "device"), (directory.as_str(), "directory")] {
        let (status, said) = run(&["validate", file]);
        assert_eq!(status, Some(78));
        assert!(said.contains(&format!("it is a {kind}, not a regular file")), "{said}");
    }
    // What sysfs does not say is not known.
    let (status, _) =
        run(&["doctor", "--sys-dir", &at("sys"), "--dev-dir", &at("dev"), "--run-dir", &at("no")]);
    assert_eq!(status, Some(2));
    // A file in the place of the directory.
    fs::remove_dir_all(dir.path("ibarr.d")).unwrap();
    dir.write("ibarr.d", "");
    let (status, said) = run(&["validate", &main]);
    assert!(status == Some(78) && said.contains("ibarr.d: cannot be read"), "{said}");
}

#[test]
fn word_that_is_no_log_level_is_refused_wherever_one_is_given() {
    let dir = TempDir::new("no-level");
    let file = dir.write("wrong.toml", "log-level = \"wran\"\n");
    let refused = |words: &[&str]| {
        let output = ibarr(words);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let file = file.to_str().unwrap();
    for (words, exit) in [
        (&["validate", file][..], 78),
        (&["run", "--config", file, "--run-dir", dir.0.to_str().unwrap()], 78),
        (&["run", "--log", "wran"], 64),
        (&["log-level", "wran"], 64),
    ] {
        let (status, said) = refused(words);
        assert_eq!(status, Some(exit), "{said}");
        assert!(said.contains("did you mean \"warn\"?"), "{said}");
    }
    let daemon = Daemon::start(&dir, "");
    let level = |words: &[&str]| String::from_utf8(daemon.ask(words).stdout).unwrap();
    assert_eq!(level(&["log-level", "warning"]), "warn\n");
    let request = br#"{"v":1,"ask":"log-level","change":{"level":"verbose"}}"#;
    let mut other = std::os::unix::net::UnixStream::connect(dir.path("control.sock")).unwrap();
    other.write_all(request).unwrap();
    other.write_all(b"\n").unwrap();
    let mut answer = String::new();
    BufReader::new(other).read_line(&mut answer).unwrap();
    assert!(answer.contains("no level"), "{answer}");
    assert_eq!(level(&["log-level"]), "warn\n");
}

#[test]
fn malformed_list_of_inherited_descriptors_is_a_warning() {
    let dir = TempDir::new("inherited");
    let mut command = daemon_command(&dir);
    command.env("LISTEN_PID", "1").env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "x");
    let daemon = Daemon::spawn(command, &dir, "");
    let warnings = json(&daemon.ask(&["status", "--json"]))["status"]["warnings"].to_string();
    assert!(warnings.contains("LISTEN_PID is "), "{warnings}");
}

#[test]
fn hangup_during_the_start_is_a_reload() {
    for _ in 0..10 {
        let dir = TempDir::new("early-hangup");
        let begun = |pid: Pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let mask = |name: &str| {
                let mask = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
                u64::from_str_radix(mask.trim(), 16).unwrap()
            };
            // Which it is from its first instruction on.
            (mask("SigBlk:") | mask("SigCgt:")) & 1 != 0
        };
        let hang_up = |pid: Pid| {
            // The lock is made later.
            while !begun(pid) {
                assert!(!dir.path("lock").exists() || begun(pid), "SIGHUP would end it");
            }
            kill(pid, Signal::SIGHUP).unwrap();
        };
        let daemon = Daemon::spawn_meanwhile(daemon_command(&dir), &dir, "", hang_up);
        daemon.until(|daemon| {
            let status = json(&daemon.ask(&["status", "--json"]));
            status["status"].get("reloaded-ago-s").cloned()
        });
    }
}
