// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! More queries at once than a program can read at once.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ibarr_proto::ip2gid::Family;
use ibarr_testbed::lab::netns;
use ibarr_user::sys::mmsg::{Inbox, Outgoing};
use ibarr_user::sys::udp::{Source, UdpSocket};
use ibarr_user::sys::udp_options;
use nix::sys::signal::Signal;

use crate::ip2gid::{Wire, fence};

#[test]
fn ten_thousand_peers_at_once_are_answered_by_a_daemon_that_slept() {
    const PEERS: u16 = 10_000;
    let wire = Wire::new(2, true);
    wire.reconfigure("n2", |config| format!("responder = \"user\"\n{config}"));
    // n1 has all addresses of 10.99.0.0/16.
    wire.ip("n1", "route add local 10.99.0.0/16 dev lo");
    wire.ip("r", "route add 10.99.0.0/16 via 10.1.0.5");
    let peer = |at: u16| {
        let [high, low] = at.to_be_bytes();
        IpAddr::from([10, 99, high, low])
    };
    let peers: BTreeSet<IpAddr> = (0..PEERS).map(peer).collect();
    let server: SocketAddr = "10.2.0.5:4791".parse().unwrap();
    let [n1, n2] = ["n1", "n2"].map(|node| wire.lab.plan().node(node).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answered = runtime.block_on(async {
        let runtime = tokio::runtime::Handle::current();
        let socket = netns::inside(&n1.namespace, || {
            // This is another thread, which uses the test's runtime.
            let _entered = runtime.enter();
            Ok(UdpSocket::bind_in(None, Family::V4, 0)?)
        });
        let socket = socket.unwrap();
        udp_options::widen(&socket, 64 << 20).unwrap();
        let query = fence(server);
        let send = async |address| {
            let source = Source { address: Some(address), egress: None };
            socket.send_all(&[Outgoing { to: server, source, payload: &query }]).await.unwrap();
        };
        let mut inbox = Inbox::<33>::default();
        // Fills the neighbour tables on the way.
        send("10.99.255.1".parse().unwrap()).await;
        socket.receive(&mut inbox).await.unwrap();

        wire.signal(n2, Signal::SIGSTOP);
        for peer in &peers {
            send(*peer).await;
        }
        wire.signal(n2, Signal::SIGCONT);
        let mut answered = BTreeSet::new();
        while answered.len() < peers.len() {
            let patience = Duration::from_secs(5);
            match tokio::time::timeout(patience, socket.receive(&mut inbox)).await {
                Ok(received) => received.unwrap(),
                Err(_) => break,
            }
            answered.extend(inbox.datagrams().map(|(received, _)| received.unwrap().to));
        }
        answered
    });
    let counters = wire.counters("n2", "transport.");
    assert_eq!(answered.len(), peers.len(), "{counters:?}");
    assert_eq!(counters["query-dropped"], 0);
}
