// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! One daemon per run directory, and no removal of files of others.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{
    Daemon, PATIENCE, TempDir, USER_SPACE, daemon_command, free_port, ibarr, json,
};

#[test]
fn one_of_two_daemons_started_at_once_survives() {
    for pair in 0..20 {
        let dir = TempDir::new(&format!("pair-{pair}"));
        dir.write("ibarr.toml", &format!("{USER_SPACE}udp-port = {}\n", free_port()));
        let start = || Started(daemon_command(&dir).stderr(Stdio::null()).spawn().unwrap());
        let mut daemons = [start(), start()];
        let status = || ibarr(&["status", "--json", "--run-dir", dir.0.to_str().unwrap()]);
        let begun = Instant::now();
        let ended = loop {
            let ended =
                daemons.iter_mut().position(|daemon| daemon.0.try_wait().unwrap().is_some());
            match ended {
                Some(ended) if status().status.success() => break ended,
                _ => assert!(begun.elapsed() < PATIENCE, "both daemons live, or neither"),
            }
            sleep(Duration::from_millis(5));
        };
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
