// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! systemd holds the UDP port.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use ibarr_common::ib::{Gid, PathRecord};
use ibarr_common::wire::acm::{Ask, MAX_REQUEST_LEN, Reply, Request, Resolve, Tid};
use ibarr_common::wire::path_record::PathRecordWire;

use crate::machine::said;
use crate::node::{GID, Node};

/// Binds the UDP port as a user without privilege, for IPv4 and IPv6.
const BIND: &str = r#"setpriv --reuid=nobody --regid=nogroup --clear-groups perl -MSocket -e '
    for ([AF_INET, pack_sockaddr_in(4791, INADDR_ANY)], [AF_INET6, pack_sockaddr_in6(4791, "\0" x 16)]) {
        my ($family, $address) = @$_;
        socket(my $socket, $family, SOCK_DGRAM, 0) or die "socket: $!";
        setsockopt($socket, 41, 26, 1) if $family == AF_INET6;
        print bind($socket, $address) ? "bound\n" : "$!\n";
    }'"#;

#[test]
fn systemd_holds_the_port_while_no_daemon_runs() {
    let node = Node::installed();
    assert_eq!(node.ok(BIND), "bound\nbound", "without the unit any user can take the port");
    node.ok("systemctl start ibarr.socket");
    assert_eq!(node.show("ActiveState", "ibarr.service"), "inactive");
    assert_eq!(node.ok(BIND), "Address already in use\nAddress already in use");

    // The query waits for a daemon, and starts none.
    assert_eq!(node.ask(), None);
    assert_eq!(node.show("ActiveState", "ibarr.service"), "inactive");
    node.ok("systemctl start ibarr.service");
    assert_eq!(node.answer(), Some(GID.parse().unwrap()));
    node.ok("systemctl kill --signal=KILL ibarr.service");
    assert_eq!(node.ok(BIND), "Address already in use\nAddress already in use");
    let status = node.run("ibarr status");
    assert!(!said(&status).contains("unprivileged"), "{}", said(&status));
}

#[test]
fn stopped_daemon_stays_stopped_whatever_comes_to_its_port() {
    let node = Node::installed();
    node.configure(&format!("responder = \"user\"\n{}", node.ok("cat /etc/ibarr/ibarr.toml")));
    node.ok("systemctl start ibarr");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    node.ok("systemctl stop ibarr");
    assert_eq!(node.ask(), None);
    assert_eq!(node.show("ActiveState", "ibarr.service"), "inactive");
    assert_eq!(node.ok(BIND), "Address already in use\nAddress already in use");

    // The same with a daemon that cannot start.
    node.configure("udp-prot = 4791\n");
    assert!(!node.run("systemctl start ibarr").status.success());
    let starts = || node.journal().matches("udp-prot is not a key").count();
    assert_eq!(starts(), 1);
    for _ in 0..3 {
        assert_eq!(node.ask(), None);
    }
    assert_eq!(starts(), 1, "a query starts no daemon that fails");
    assert_eq!(node.show("ActiveState", "ibarr.socket"), "active", "no trigger limit was hit");

    node.ok("systemctl stop ibarr.socket");
    assert_eq!(node.ok(BIND), "bound\nbound");
}

#[test]
fn client_of_acm_starts_the_daemon_if_the_socket_is_enabled() {
    let node = Node::installed();
    let config = node.ok("cat /etc/ibarr/ibarr.toml");
    node.configure(&format!("{config}\n[acm]\nserve = \"tools\"\n"));
    let socket = node.inner_path("/run/ibacm-unix.sock");
    assert!(!socket.exists(), "the package alone makes none");
    node.ok("systemctl enable --now ibarr-acm.socket");
    assert_eq!(node.show("ActiveState", "ibarr.service"), "inactive");

    let mut client = UnixStream::connect(&socket).unwrap();
    let dgid = PathRecordWire { dgid: GID.parse::<Gid>().unwrap().octets(), ..empty() };
    let ask = Ask::Resolve(Resolve::along(dgid.into()));
    let mut out = [0; MAX_REQUEST_LEN];
    client.write_all(Request { tid: Tid([5; 8]), ask }.emit(&mut out)).unwrap();
    let mut reply = [0; 1024];
    let length = client.read(&mut reply).unwrap();
    let reply = Reply::parse(&reply[..length]).unwrap();
    // The container has no InfiniBand port.
    assert!(matches!(reply, (Tid([5, ..]), Reply::Refused(_))), "{reply:?}");
    assert_eq!(node.show("ActiveState", "ibarr.service"), "active");
    node.ok("dpkg --purge ibarr");
    assert!(!socket.exists());
}

#[test]
fn client_of_acm_does_not_start_a_refused_daemon_for_ever() {
    let node = Node::installed();
    node.configure("udp-prot = 4791\n");
    node.ok("systemctl enable --now ibarr-acm.socket");
    let _client = UnixStream::connect(node.inner_path("/run/ibacm-unix.sock")).unwrap();
    let state = || node.show("ActiveState", "ibarr-acm.socket");
    node.until("the socket gives up", || state() == "failed");
    let starts = node.journal().matches("udp-prot is not a key").count();
    assert!((1..=5).contains(&starts), "{starts}");
}

fn empty() -> PathRecordWire {
    PathRecord::from_octets([0; 64]).into()
}
