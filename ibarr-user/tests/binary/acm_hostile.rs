// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Clients of ACM that break the protocol. Each test has another client that is answered all the while. What
//! many users do is tested as root, in ibarr-testbed.

use std::io::{ErrorKind, Read as _, Write as _};

use ibarr_common::wire::acm::{Ask, Of};

use crate::acm::{Client, counter, serving, to};
use crate::paths::{LOCAL, Port, start};
use crate::support::TempDir;

/// The header of a request with this length, in the byte order of RESOLVE.
fn header(len: u16) -> [u8; 16] {
    let mut header = [0; 16];
    (header[0], header[1]) = (1, 1);
    header[6..8].copy_from_slice(&len.to_ne_bytes());
    header
}

/// Writes as much as the daemon takes, at most `limit` messages. Returns whether it has closed the connection.
fn flood(client: &mut Client, message: &[u8], limit: usize) -> bool {
    client.0.set_nonblocking(true).unwrap();
    let mut is_closed = false;
    for _ in 0..limit {
        match client.0.write(message) {
            Ok(len) if len == message.len() => {}
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(_) => {
                is_closed = true;
                break;
            }
        }
    }
    client.0.set_nonblocking(false).unwrap();
    is_closed
}

#[test]
fn length_that_lies_costs_only_its_own_connection() {
    let dir = TempDir::new("acm-lengths");
    let _port = Port::new(&dir);
    let (daemon, _kernel) = start(&dir, &serving(&dir));
    let mut other = Client::connect(&dir);
    for len in [0, 1, 7, 15, 593, 1024, u16::MAX] {
        let mut client = Client::connect(&dir);
        client.0.write_all(&header(len)).unwrap();
        assert!(client.is_closed(), "{len}");
        assert_eq!(other.ask(Ask::Resolve(to(LOCAL))), Ok(vec![(0x2b, 1)]));
    }
    // More is announced than comes: it is waited for as long as a reply.
    let mut waiting = Vec::new();
    for len in [88, 592] {
        let mut client = Client::connect(&dir);
        client.0.write_all(&header(len)).unwrap();
        waiting.push(client);
    }
    // More comes than is announced: the rest is no message.
    let mut client = Client::connect(&dir);
    client.0.write_all(&[&header(16)[..], &[0xff; 72]].concat()).unwrap();
    let mut all = Vec::new();
    drop(client.0.read_to_end(&mut all));
    assert!(all.len() <= 16, "{all:?}");
    assert_eq!(other.ask(Ask::Resolve(to(LOCAL))), Ok(vec![(0x2b, 1)]));
    assert!(waiting.iter_mut().all(Client::is_closed));
    assert_eq!(counter(&daemon, "acm.unfinished"), 2);
}

#[test]
fn client_that_sends_without_reading_is_closed_and_others_are_answered() {
    let dir = TempDir::new("acm-flood");
    let _port = Port::new(&dir);
    let (daemon, _kernel) = start(&dir, &serving(&dir));
    let mut other = Client::connect(&dir);
    let mut floods: Vec<_> = (0..20).map(|_| (Client::connect(&dir), false)).collect();
    let mut message = [0; 16];
    // For the counters of the service, in network order.
    (message[0], message[1], message[7]) = (1, 2, 16);
    // Each is closed when there is no room for a reply, or before.
    let mut rounds = 0;
    while floods.iter().any(|(_, is_closed)| !is_closed) {
        for (client, is_closed) in &mut floods {
            *is_closed = *is_closed || flood(client, &message, 1_000);
        }
        assert_eq!(other.ask(Ask::Resolve(to(LOCAL))), Ok(vec![(0x2b, 1)]));
        rounds += 1;
        assert!(rounds < 100_000, "floods that are not closed");
    }
    assert_eq!(counter(&daemon, "acm.illegal"), 0);
    assert!(other.ask(Ask::Counters(Of::Index(9))).is_err());
}
