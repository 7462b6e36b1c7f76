// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What an administrator asks after a restart is answered with the truth at once.

use crate::kernel::Kernel;
use crate::machine::said;
use crate::node::Node;

/// Holds UDP port 5001, for IPv4 and IPv6.
const HOLD: &str = r#"systemd-run --quiet --unit=holder perl -MSocket -e '
    my @held;
    for ([AF_INET, pack_sockaddr_in(5001, INADDR_ANY)], [AF_INET6, pack_sockaddr_in6(5001, "\0" x 16)]) {
        my ($family, $address) = @$_;
        socket(my $socket, $family, SOCK_DGRAM, 0) or die "socket: $!";
        setsockopt($socket, 41, 26, 1) if $family == AF_INET6;
        bind($socket, $address) or die "bind: $!";
        push @held, $socket;
    }
    open(my $file, ">", "/run/held");
    sleep;'"#;

#[test]
fn check_after_a_restart_tells_the_truth_at_once() {
    let node = Node::installed();
    let _kernel = Kernel::start(&node);
    let config = node.ok("cat /etc/ibarr/ibarr.toml");
    let judged = |code, words: &str| {
        let checked = node.run("systemctl restart ibarr && ibarr status --check");
        let said = said(&checked);
        assert_eq!(checked.status.code(), Some(code), "{said}\n{}", node.ok("ibarr status"));
        assert!(said.contains(words), "{said}");
    };
    judged(0, "IBARR OK");

    // A driver without XDP.
    node.ok("ip link add no-xdp type bridge && ip link set no-xdp up");
    node.ok("ip address add 10.8.0.1/24 dev no-xdp");
    node.configure(
        "[[static-gid]]\nip = \"10.8.0.1\"\ngid = \"fe80::2:c903:0:202\"\n\
         [[responder-on]]\ninterface = \"no-xdp\"\nresponder = \"xdp\"\n",
    );
    judged(1, "the driver has no XDP");

    node.ok(HOLD);
    node.until("the port is held", || node.run("test -e /run/held").status.success());
    node.configure(&format!("udp-port = 5001\n{config}"));
    judged(1, "5001");
    node.configure(&config);
    judged(0, "IBARR OK");
}

#[test]
fn check_says_why_the_service_has_ended_and_validate_would_have_said() {
    let node = Node::installed();
    node.ok("systemctl start ibarr && chmod 600 /etc/ibarr/ibarr.toml");
    let refused = ["/etc/ibarr/ibarr.toml: cannot be read", "Permission denied"];
    let validated = node.run("ibarr validate");
    assert_eq!(validated.status.code(), Some(78), "{}", said(&validated));
    assert!(!node.run("systemctl restart ibarr").status.success());
    node.until("it fails", || node.show("ActiveState", "ibarr") == "failed");
    let checked = node.run("ibarr status --check");
    assert_eq!(checked.status.code(), Some(3), "{}", said(&checked));
    for words in refused {
        assert!(said(&validated).contains(words), "{}", said(&validated));
        assert!(said(&checked).contains(words), "{}", said(&checked));
    }
    let line = said(&checked);
    assert!(line.contains("IBARR UNKNOWN - ibarr.service has ended: "), "{line}");
    node.ok("chmod 644 /etc/ibarr/ibarr.toml && ibarr validate");
}
