// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The binary when disks, outputs or descriptors are full, closed, slow or scarce.

use std::fs::{self, File};
use std::io::pipe;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;

use nix::sys::signal::Signal;
use nix::unistd::Uid;

use crate::support::{
    Daemon, IBARR, TempDir, USER_SPACE, daemon_command, free_port, json, program,
};

#[test]
fn failed_output_is_an_error() {
    let dir = TempDir::new("output");
    let config = dir.write("good.toml", "");
    let daemon = Daemon::start(&dir, &format!("udp-port = {}\n", free_port()));
    let commands: [&[&str]; 13] = [
        &["status"],
        &["status", "--json"],
        &["counters"],
        &["cache"],
        &["resolve", "127.0.0.1", "--json"],
        &["validate", config.to_str().unwrap()],
        &["resolve", "127.0.0.1"],
        &["resolve", "127.0.0.1", "--json-lines"],
        &["ping", "127.0.0.1", "-c", "1"],
        &["counters", "--describe"],
        &["explode", "--json"],
        &["--help"],
        &["--version"],
    ];
    for arguments in commands {
        let run = |stdout: Stdio| {
            let mut command = program(IBARR);
            command.args(arguments).env("IBARR_RUN_DIR", &dir.0).stdout(stdout);
            command.output().unwrap()
        };
        let full = run(File::options().write(true).open("/dev/full").unwrap().into());
        assert_eq!(full.status.code(), Some(74), "{arguments:?}");
        let said = String::from_utf8_lossy(&full.stderr);
        assert!(said.contains("standard output cannot be written: No space left"), "{said}");
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let closed = run(writer.into());
        assert_eq!(closed.status.code(), Some(141), "{arguments:?}");
        assert!(closed.stderr.is_empty());
    }
    drop(daemon);
}

#[test]
fn failed_reload_stays_in_status_until_a_good_one() {
    let dir = TempDir::new("failed-reload");
    let port = format!("udp-port = {}\n", free_port());
    let daemon = Daemon::start(&dir, &port);
    let status = || json(&daemon.ask(&["status", "--json"]))["status"].clone();
    assert_eq!(status().get("failed-reload"), None);
    dir.write("ibarr.toml", "udp-port = 0\n");
    assert_eq!(daemon.ask(&["reload"]).status.code(), Some(78));
    for _ in 0..2 {
        let status = status();
        let mistake = status["failed-reload"]["message"].as_str().unwrap();
        assert!(mistake.contains("ibarr.toml:1:12: udp-port must be"), "{mistake}");
        assert!(status["failed-reload"]["ago-s"].is_u64());
        assert!(status["warnings"].to_string().contains("the file has mistakes"), "{status}");
        assert_eq!(status.get("reloaded-ago-s"), None);
    }
    let told = daemon.told("STATUS=");
    assert!(told.contains("reload refused ") && told.contains("udp-port must be"), "{told}");
    dir.write("ibarr.toml", &format!("{USER_SPACE}{port}"));
    assert_eq!(daemon.ask(&["reload"]).status.code(), Some(0));
    assert_eq!(status().get("failed-reload"), None);
    assert!(status()["reloaded-ago-s"].is_u64());
    let told = daemon.told("STATUS=");
    assert!(told.contains("reloaded "), "{told}");
}

/// Comments of 60 megabytes take many times as long as an answer.
#[test]
fn slow_configuration_file_blocks_nothing_else() {
    let dir = TempDir::new("slow-file");
    let port = format!("udp-port = {}\n", free_port());
    let mut daemon = Daemon::start(&dir, &port);
    let long = dir.write("long", &"#".repeat(1 << 20));
    fs::create_dir(dir.path("ibarr.d")).unwrap();
    for n in 0..60 {
        symlink(&long, dir.path(&format!("ibarr.d/{n}.toml"))).unwrap();
    }
    thread::scope(|scope| {
        let reload = scope.spawn(|| daemon.ask(&["reload"]));
        daemon.notified("RELOADING=1");
        assert_eq!(daemon.ask(&["resolve", "127.0.0.1"]).status.code(), Some(1));
        assert!(!reload.is_finished(), "it was not slow");
        assert_eq!(reload.join().unwrap().status.code(), Some(0));
    });
    nix::sys::signal::kill(daemon.pid(), Signal::SIGHUP).unwrap();
    daemon.notified("RELOADING=1");
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
}

#[test]
fn snapshot_on_a_full_disk_leaves_nothing_behind() {
    let dir = TempDir::new("full-disk");
    let disk = dir.path("disk");
    let own = daemon_command(&dir);
    let mut command = program("unshare");
    if !Uid::effective().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let full = "mkdir -p \"$0\"; mount -t tmpfs -o size=4k tmpfs \"$0\"
                head -c 4096 /dev/zero > \"$0\"/filler; exec \"$@\"";
    command.args(["--mount", "sh", "-ec", full]).arg(&disk);
    command.arg(own.get_program()).args(own.get_args());
    command.stderr(Stdio::null());
    let file = disk.join("paths");
    let config = format!("udp-port = {}\n[paths]\nsnapshot = {file:?}\n", free_port());
    let mut daemon = Daemon::spawn(command, &dir, &config);
    let root = format!("/proc/{}/root{}", daemon.pid(), disk.display());
    // Keeps the file system mounted for a check after its last process has ended.
    let inside = File::open(root).unwrap();
    assert_ne!(inside.metadata().unwrap().dev(), fs::metadata(&dir.0).unwrap().dev());
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    let left = fs::read_dir(format!("/proc/self/fd/{}", inside.as_raw_fd())).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["filler"]);
}

/// [`daemon_command`] after a shell command.
fn after(dir: &TempDir, shell: &str) -> Command {
    let own = daemon_command(dir);
    let mut command = program("sh");
    command.args(["-ec", &format!("{shell}; exec \"$@\""), "sh"]);
    command.arg(own.get_program()).args(own.get_args());
    command
}

#[test]
fn few_descriptors_are_shared_and_give_a_warning() {
    let dir = TempDir::new("descriptors");
    let config = format!("udp-port = {}\n", free_port());
    let warnings = |daemon: &Daemon| {
        json(&daemon.ask(&["status", "--json"]))["status"]["warnings"].to_string()
    };
    let mut daemon = Daemon::spawn(after(&dir, "ulimit -n 64"), &dir, &config);
    let said = warnings(&daemon);
    assert!(said.contains("the process may have only 64 descriptors"), "{said}");
    // The test opens more connections than allowed, and the oldest ones give way.
    let connect = |_| UnixStream::connect(dir.path("control.sock")).unwrap();
    let idle: Vec<_> = (0..70).map(connect).collect();
    assert!(daemon.ask(&["status"]).status.success());
    let open = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    assert!(open <= 56, "{open}");
    drop(idle);
    daemon.until(|daemon| daemon.ask(&["status"]).status.success().then_some(()));
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));

    let daemon = Daemon::spawn(after(&dir, "ulimit -S -n 64"), &dir, &config);
    let said = warnings(&daemon);
    assert!(!said.contains("descriptors"), "{said}");
}
