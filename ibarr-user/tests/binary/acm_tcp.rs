// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Clients of ACM that ask by TCP, at a port of this machine's 127.0.0.1.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use ibarr_common::wire::acm::Ask;
use ibarr_user::transport::acm;
use nix::sys::signal::Signal;
use nix::unistd::close;

use crate::acm::{Client, counter, to};
use crate::kernel::with_kept;
use crate::paths::{LOCAL, Port};
use crate::sockets::in_namespace;
use crate::support::{Daemon, PATIENCE, TempDir, free_port, free_tcp_port, json};

impl Client<TcpStream> {
    fn at(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }
}

fn serving(dir: &TempDir, serve: &str, port: u16) -> String {
    let (udp, socket) = (free_port(), dir.path("acm.sock"));
    let socket = socket.display();
    format!(
        "udp-port = {udp}\n[acm]\nserve = {serve:?}\nsocket = \"{socket}\"\ntcp-port = {port}\n"
    )
}

/// Waits until the daemon can ask for paths.
fn await_port(daemon: &Daemon) {
    daemon.until(|daemon| (counter(daemon, "sa.answered") > 0).then_some(()));
}

#[test]
fn tcp_client_finds_the_port_by_its_file_and_is_answered() {
    if !in_namespace("acm_tcp::tcp_client_finds_the_port_by_its_file_and_is_answered") {
        return;
    }
    let dir = TempDir::new("acm-tcp");
    let _sa = Port::new(&dir);
    let port = free_tcp_port();
    let [link, file] = ["ibacm.port", "ibacm-tcp.port"].map(|name| dir.path(name));
    // An ibacm that died has left it.
    fs::write(&file, "1\n").unwrap();
    let config = |serve| serving(&dir, serve, port);
    let mut daemon = Daemon::start(&dir, &config("full"));
    await_port(&daemon);
    for path in [&link, &file] {
        assert_eq!(fs::read_to_string(path).unwrap(), format!("{port}\n"));
    }
    let mut client = Client::at(port);
    assert_eq!(client.ask(Ask::Resolve(to(LOCAL))), Ok(vec![(0x2b, 1)]));
    assert_eq!(Client::connect(&dir).ask(Ask::Resolve(to(LOCAL))), Ok(vec![(0x2b, 1)]));
    let reload = |serve| {
        dir.write("ibarr.toml", &format!("responder = \"user\"\n{}", config(serve)));
        assert!(daemon.ask(&["reload"]).status.success());
    };
    reload("tools");
    assert!(!link.exists() && file.exists());
    assert_eq!(Client::at(port).ask(Ask::Resolve(to(LOCAL))), Ok(vec![(0x2b, 1)]));
    reload("off");
    assert!(!file.exists());
    // Connections stay.
    assert_eq!(client.ask(Ask::Resolve(to(LOCAL))), Ok(vec![(0x2b, 1)]));
    reload("full");
    assert!(link.exists());
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    assert!(link.symlink_metadata().is_err() && !file.exists());
}

#[test]
fn taken_tcp_port_is_explained_and_the_unix_socket_is_served() {
    let dir = TempDir::new("acm-tcp-taken");
    let _sa = Port::new(&dir);
    let ibacm = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = ibacm.local_addr().unwrap().port();
    let daemon = Daemon::start(&dir, &serving(&dir, "full", port));
    await_port(&daemon);
    let status = json(&daemon.ask(&["status", "--json"]))["status"].clone();
    let warnings = status["warnings"].to_string();
    let taken = format!("TCP port {port} of 127.0.0.1: Address already in use");
    assert!(warnings.contains(&taken), "{warnings}");
    let remedy = format!("stop its holder (ss -ltnp sport = {port}), or choose another tcp-port");
    assert!(warnings.contains(&remedy), "{warnings}");
    assert!(!dir.path("ibacm.port").exists() && !dir.path("ibacm-tcp.port").exists());
    assert_eq!(Client::connect(&dir).ask(Ask::Resolve(to(LOCAL))), Ok(vec![(0x2b, 1)]));
}

#[test]
fn tcp_client_of_a_killed_daemon_is_answered_by_the_next_one() {
    if !in_namespace("acm_tcp::tcp_client_of_a_killed_daemon_is_answered_by_the_next_one") {
        return;
    }
    let dir = TempDir::new("acm-tcp-killed");
    let sa = Port::new(&dir);
    let port = free_tcp_port();
    let config = serving(&dir, "full", port);
    let mut first = Daemon::start(&dir, &config);
    await_port(&first);
    let silent = sa.hold();
    let mut client = Client::at(port);
    let kept = first.keeps(acm::CLIENT, 1);
    client.send(Ask::Resolve(to(LOCAL)));
    first.until(|daemon| (counter(daemon, "acm.requests") == 1).then_some(()));
    assert_eq!(first.end(Signal::SIGKILL), None);
    drop(silent);
    let mut second = Daemon::spawn(with_kept(&dir, &kept), &dir, &config);
    assert_eq!(client.told(), Ok(vec![(0x2b, 1)]));
    assert_eq!(second.end(Signal::SIGKILL), None);
    // The third one runs where the first one ran, and the connection is still open.
    let third = Daemon::start(&dir, &config);
    await_port(&third);
    assert_eq!(fs::read_to_string(dir.path("ibacm.port")).unwrap(), format!("{port}\n"));
    assert_eq!(Client::at(port).ask(Ask::Resolve(to(LOCAL))), Ok(vec![(0x2b, 1)]));
    for kept in kept {
        close(kept.fd).unwrap();
    }
}
