// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The server core against the tables of cases.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use ibarr_common::IfIndex;
use ibarr_common::ib::Gid;
use ibarr_common::wire::Error;
use ibarr_common::wire::ip2gid::{MsgId, Query, Version};
use ibarr_proto::ip2gid::Prefixes;
use ibarr_proto::ip2gid::server::{Counter, Local, Received, Server, Transmit};
use ipnet::IpNet;
use proptest::prelude::*;

const CASES: &str = include_str!("data/ip2gid-server-cases.txt");

#[test]
fn each_case_of_the_table_has_its_reply_and_its_counter() {
    let mut view = View::default();
    let mut server = Server::new(Prefixes::EVERYONE);
    let mut seen = Vec::new();
    for line in CASES.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let Some((expected, rest)) = line.split_once('|') else {
            match line.split_once(' ').unwrap() {
                ("allow", prefixes) => {
                    let prefixes = prefixes.split_whitespace();
                    server.reconfigure(prefixes.map(|p| p.parse::<IpNet>().unwrap()).collect());
                }
                (kind, address) => view.add(kind, address),
            }
            continue;
        };
        let expected = expected.trim();
        let [from, to, ingress, payload, reply] =
            rest.split('|').map(str::trim).collect::<Vec<_>>().try_into().expect(line);
        let payload = unhex(payload);
        let received = Received {
            from: from.parse().expect(line),
            to: to.parse().expect(line),
            ingress: interface(ingress.trim_end_matches(" local")).expect(line),
            is_local: ingress.ends_with(" local"),
            payload: &payload,
        };

        let before = server.counters().clone();
        let got = server.answer(&view, &received).ok();
        assert_eq!(
            server.counters().iter().any(|(c, count)| count != before.get(c)),
            got.is_none()
        );
        let _ = got.as_ref().map(|reply| server.handle_sent(reply, 0));

        assert_eq!(got.map(|got| described(&got, &received)), reply_of(reply), "{line}");
        let counted: Vec<_> = server
            .counters()
            .iter()
            .filter(|&(counter, count)| count != before.get(counter))
            .map(|(counter, count)| (counter.to_string(), count - before.get(counter)))
            .collect();
        assert_eq!(counted, [(expected.to_string(), 1)], "{line}");
        seen.push(expected.to_string());
    }
    for counter in Counter::ALL {
        let name = counter.to_string();
        let elsewhere = name.starts_with("malformed-") || name.starts_with("not-sent-");
        assert!(elsewhere || seen.contains(&name), "no case for {name}");
    }
}

#[test]
fn each_payload_of_the_table_is_answered_or_counted_by_reason() {
    let mut view = View::default();
    view.add("own", "10.2.0.5 fe80::2:c903:0:201");
    view.add("own", "fd00:2::5 fe80::2:c903:0:201");
    let table = include_str!("../../ibarr-common/tests/data/ip2gid-cases.txt");
    let mut answered = 0;
    for line in table.lines().filter(|line| !line.starts_with('#') && line.contains('|')) {
        let mut fields = line.split('|').map(str::trim);
        let (verdict, payload) = (fields.next().unwrap(), unhex(fields.next().unwrap()));
        let is_ipv6 = payload.get(12..16) == Some(&[0, 2, 0, 20]);
        let to = if is_ipv6 { "fd00:2::5" } else { "10.2.0.5" }.parse().unwrap();
        let from = if is_ipv6 { "[fd00:1::1]:7" } else { "10.1.0.1:7" }.parse().unwrap();
        let ingress = IfIndex::new(2).unwrap();
        let mut server = Server::new(Prefixes::EVERYONE);
        let received = Received { from, to, ingress, is_local: false, payload: &payload };
        let got = server.answer(&view, &received).ok();
        if verdict == "ok" {
            answered += 1;
            let reply = [
                &[payload[0], 0, 0, 0][..],
                &payload[4..8],
                &unhex("0001 0000 0010 0014 fe800000000000000002c90300000201"),
            ];
            let got = got.unwrap();
            server.handle_sent(&got, 0);
            assert_eq!(got.payload.as_ref(), reply.concat(), "{line}");
            assert_eq!(server.counters().get(Counter::Answered), 1);
        } else {
            assert_eq!(got, None, "{line}");
            let error = Error::ALL.into_iter().find(|error| format!("{error:?}") == verdict);
            assert_eq!(server.counters().get(error.expect(line).into()), 1, "{line}");
        }
    }
    assert_eq!(answered, 10);
}

#[test]
fn reply_that_was_refused_is_counted_by_its_cause_alone() {
    let mut view = View::default();
    view.add("own", "10.2.0.5 fe80::2:c903:0:201");
    let payload = unhex("01000000 00000001 0001 0000 0001 0008 0a020005");
    let (from, to) = ("10.1.0.1:7".parse().unwrap(), "10.2.0.5".parse().unwrap());
    let ingress = IfIndex::new(2).unwrap();
    let received = Received { from, to, ingress, is_local: false, payload: &payload };
    for (errno, counter) in [
        (1, Counter::NotSentForbidden),
        (12, Counter::NotSentNoRoom),
        (105, Counter::NotSentNoRoom),
        (90, Counter::NotSentTooLong),
        // ENETUNREACH, EHOSTUNREACH, EACCES (route type prohibit), EINVAL (address gone, blackhole).
        (101, Counter::NotSentNoRoute),
        (113, Counter::NotSentNoRoute),
        (13, Counter::NotSentNoRoute),
        (22, Counter::NotSentNoRoute),
        (0, Counter::Answered),
    ] {
        let mut server = Server::new(Prefixes::EVERYONE);
        let reply = server.answer(&view, &received).unwrap();
        assert_eq!(server.handle_sent(&reply, errno), counter);
        let counted: Vec<_> = server.counters().iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(counter, 1)], "{errno}");
    }
}

proptest! {
    #[test]
    fn reply_is_one_datagram_at_most_twelve_bytes_longer(
        mut payload: Vec<u8>,
        like_a_query: bool,
        source: SocketAddr,
    ) {
        if like_a_query {
            payload = [&unhex("01000000 00000001 0001 0000 0001 0008 0a020005")[..], &payload].concat();
            payload.truncate(20);
        }
        let mut view = View::default();
        view.add("own", "10.2.0.5 fe80::2:c903:0:201");
        let mut server = Server::new(Prefixes::EVERYONE);
        let to = "10.2.0.5".parse().unwrap();
        let ingress = IfIndex::new(2).unwrap();
        let received = Received { from: source, to, ingress, is_local: false, payload: &payload };
        let reply = server.answer(&view, &received).ok();
        let _ = reply.as_ref().map(|reply| server.handle_sent(reply, 0));
        prop_assert_eq!(server.counters().iter().map(|(_, count)| count).sum::<u64>(), 1);
        if let Some(reply) = reply {
            prop_assert!(reply.payload.as_ref().len() <= payload.len() + 12);
            // If another server or this one receives the reply, it does not answer.
            let reflected = Received { from: "10.1.0.9:4791".parse().unwrap(), payload: reply.payload.as_ref(), ..received };
            prop_assert!(server.answer(&view, &reflected).is_err());
        }
    }
}

/// The addresses of a node, by address and, if link-local, interface.
#[derive(Default)]
struct View {
    gids: HashMap<(IpAddr, Option<IfIndex>), Gid>,
    own: Vec<IpAddr>,
}

impl View {
    fn add(&mut self, kind: &str, address_and_gid: &str) {
        let [address, gid] =
            address_and_gid.split_whitespace().collect::<Vec<_>>().try_into().unwrap();
        let (address, scope) = match address.split_once('%') {
            Some((address, scope)) => (address, interface(scope)),
            None => (address, None),
        };
        let address = address.parse().unwrap();
        match kind {
            "own" => self.own.push(address),
            "static" => {}
            _ => panic!("{kind}?"),
        }
        if gid != "-" {
            self.gids.insert((address, scope), gid.parse().unwrap());
        }
    }
}

impl Local for View {
    fn gid_of(&self, address: IpAddr, ingress: IfIndex) -> Option<Gid> {
        let link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        self.gids.get(&(address, link_local.then_some(ingress))).copied()
    }

    fn is_ours(&self, address: IpAddr) -> bool {
        self.own.contains(&address)
    }
}

/// Source, interface and bytes of a reply.
fn described(reply: &Transmit, received: &Received<'_>) -> (IpAddr, Option<IfIndex>, Vec<u8>) {
    assert_eq!(reply.to, received.from, "a reply goes to the source of the query");
    (reply.from, reply.egress, reply.payload.as_ref().to_vec())
}

fn reply_of(text: &str) -> Option<(IpAddr, Option<IfIndex>, Vec<u8>)> {
    if text == "-" {
        return None;
    }
    let (source, rest) = text.split_once(' ').unwrap();
    let (egress, payload) = rest.split_once(' ').unwrap();
    Some((source.parse().unwrap(), interface(egress), unhex(payload)))
}

fn interface(index: &str) -> Option<IfIndex> {
    index.parse().ok().and_then(IfIndex::new)
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).expect("hexadecimal digits"))
        .collect();
    digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()).collect()
}

#[test]
fn manual_shows_the_bytes_that_are_sent() {
    let manual = include_str!("../../docs/man/ibarr-ip2gid.7.md");
    let query = |id, ip: &str| Query::new(Version::V1, MsgId(id), ip.parse().unwrap()).unwrap();
    let (found, absent) = (query(7, "10.2.0.5"), query(8, "fd00:2::5"));
    let gid = "fe80::2:c903:0:201".parse().unwrap();
    let replies = [found.reply(Some(gid)), absent.reply(None)].map(|reply| reply.emit());
    for datagram in [found.emit(), absent.emit()].into_iter().chain(replies) {
        let line = format!("\n    {datagram:?}\n");
        assert!(manual.contains(&line), "{line}");
    }
}
