// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! One daemon per run directory, and no removal of files of others.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::metrics::http;
use crate::support::{Daemon, TempDir, USER_SPACE, daemon_command, free_port, ibarr, json, until};

#[test]
fn one_of_two_daemons_started_at_once_survives() {
    for pair in 0..20 {
        let dir = TempDir::new(&format!("pair-{pair}"));
        dir.write("ibarr.toml", &format!("{USER_SPACE}udp-port = {}\n", free_port()));
        let start = || Started(daemon_command(&dir).stderr(Stdio::null()).spawn().unwrap());
        let mut daemons = [start(), start()];
        let status = || ibarr(&["status", "--json", "--run-dir", dir.0.to_str().unwrap()]);
        let ended = until(|| {
            let ended =
                daemons.iter_mut().position(|daemon| daemon.0.try_wait().unwrap().is_some());
            ended.filter(|_| status().status.success())
        });
        assert_eq!(daemons[ended].0.wait().unwrap().code(), Some(75));
        let other = &mut daemons[1 - ended];
        assert_eq!(json(&status())["status"]["pid"], other.0.id());
        kill(Pid::from_raw(other.0.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
        assert_eq!(other.0.wait().unwrap().code(), Some(0));
        assert!(!dir.path("control.sock").exists());
    }
}

/// Killed when dropped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn ending_daemon_removes_only_its_own_socket() {
    let dir = TempDir::new("own-socket");
    let mut daemon = Daemon::start(&dir, &format!("udp-port = {}\n", free_port()));
    let socket = dir.path("control.sock");
    fs::remove_file(&socket).unwrap();
    let _another = UnixListener::bind(&socket).unwrap();
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    assert!(socket.exists());
}

#[test]
fn what_a_cleaner_removes_is_made_again_and_a_second_daemon_refused() {
    let dir = TempDir::new("cleaner");
    let config = format!("{USER_SPACE}udp-port = {}\n", free_port());
    let mut daemon = Daemon::start(&dir, &config[USER_SPACE.len()..]);
    let (lock, socket) = (dir.path("lock"), dir.path("control.sock"));
    let remove = |file: &Path| fs::remove_file(file).unwrap();
    let cleaners: [&dyn Fn(); 3] =
        [&|| remove(&lock), &|| [&lock, &socket].iter().for_each(|file| remove(file)), &|| {
            fs::remove_dir_all(&dir.0).unwrap();
        }];
    for clean in cleaners {
        clean();
        daemon.until(|_| (lock.exists() && socket.exists()).then_some(()));
        dir.write("ibarr.toml", &config);
        let second = daemon_command(&dir).stderr(Stdio::null()).status().unwrap();
        assert_eq!(second.code(), Some(75));
        assert_eq!(
            json(&daemon.ask(&["status", "--json"]))["status"]["pid"],
            daemon.pid().as_raw()
        );
    }
    let status = |daemon: &Daemon| json(&daemon.ask(&["status", "--json"]))["status"].to_string();
    daemon.until(|daemon| status(daemon).contains("files-removed").then_some(()));
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    assert!(!socket.exists());
}

#[test]
fn socket_of_another_program_is_named_kept_and_followed_by_ours() {
    let dir = TempDir::new("replaced");
    let metrics = dir.path("metrics.sock");
    let config =
        format!("udp-port = {}\n[metrics]\nlisten = \"unix:{}\"\n", free_port(), metrics.display());
    let mut daemon = Daemon::start(&dir, &config);
    let scraped =
        || UnixStream::connect(&metrics).map(|stream| http(stream, "GET /metrics HTTP/1.1"));
    daemon.until(|_| scraped().ok());
    // The control socket: only systemd and the metrics still say so.
    let control = dir.path("control.sock");
    fs::remove_file(&control).unwrap();
    let theirs = UnixListener::bind(&control).unwrap();
    let degraded = "ibarr_health{subsystem=\"control\",of=\"\"} 1";
    daemon.until(|_| scraped().unwrap().contains(degraded).then_some(()));
    assert!(control.exists());
    drop(theirs);
    fs::remove_file(&control).unwrap();
    daemon.until(|daemon| daemon.ask(&["status"]).status.success().then_some(()));
    // The metrics.
    fs::remove_file(&metrics).unwrap();
    let theirs = UnixListener::bind(&metrics).unwrap();
    let closed = |daemon: &Daemon| {
        let status = String::from_utf8(daemon.ask(&["status"]).stdout).unwrap();
        status.contains("metrics.sock: another program has").then_some(())
    };
    daemon.until(closed);
    drop(theirs);
    fs::remove_file(&metrics).unwrap();
    daemon.until(|_| scraped().ok());
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    assert!(!control.exists() && !metrics.exists());
}

#[test]
fn two_daemons_leave_each_other_the_socket_for_metrics() {
    let (one, two) = (TempDir::new("metrics-one"), TempDir::new("metrics-two"));
    let socket = one.path("metrics.sock");
    let config = || {
        format!("udp-port = {}\n[metrics]\nlisten = \"unix:{}\"\n", free_port(), socket.display())
    };
    let mut first = Daemon::start(&one, &config());
    first.until(|_| UnixStream::connect(&socket).ok());
    let mut second = Daemon::start(&two, &config());
    let closed = |daemon: &Daemon| {
        let status = String::from_utf8(daemon.ask(&["status"]).stdout).unwrap();
        status.contains("metrics-closed").then_some(())
    };
    second.until(closed);
    assert_eq!(first.end(Signal::SIGTERM), Some(0));
    // The second tries again every few seconds.
    second.until(|_| UnixStream::connect(&socket).ok());
    assert_eq!(second.end(Signal::SIGTERM), Some(0));
    assert!(!socket.exists());
}

#[test]
fn daemon_replaces_only_sockets() {
    let dir = TempDir::new("no-socket");
    dir.write("ibarr.toml", USER_SPACE);
    let file = dir.write("control.sock", "a letter");
    let refused = || {
        let output = daemon_command(&dir).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(70));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused().contains("a file that is not a socket has this name"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "a letter");
    fs::remove_file(dir.path("lock")).unwrap();
    symlink(&file, dir.path("lock")).unwrap();
    assert!(refused().contains("cannot be made or locked"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "a letter");
}
