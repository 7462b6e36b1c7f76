// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! systemd holds the UDP port.

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
