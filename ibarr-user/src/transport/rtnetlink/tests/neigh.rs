// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Tests about neighbours.

use ibarr_common::ib::IpoibHwAddr;
use ibarr_proto::ip2gid::client::Route;
use ibarr_proto::local_view::neighbours::{Entry, State};
use ibarr_proto::local_view::{HwAddr, Input};

use super::super::neigh::change;
use super::super::neigh::{ADDRESS_V4, ADDRESS_V6};
use super::*;

const NEIGHBOURS: &str = include_str!("../../../../tests/golden/rtnetlink-neighbours.hex");

/// A line for each label and each message.
fn tell(golden: &str) -> Vec<String> {
    lines(golden, |frame| {
        change(frame).unwrap().map(|said| match said {
            Input::Neighbour(Entry { ifindex, address, state, hwaddr }) => {
                let octets: Vec<_> =
                    hwaddr.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
                format!("{address} on {ifindex} {state:?} {}", octets.join(":"))
            }
            Input::NeighbourGone(ifindex, address) => format!("{address} on {ifindex} gone"),
            other => panic!("{other:?}"),
        })
    })
}

#[test]
fn recorded_neighbours_are_read() {
    assert_eq!(
        tell(NEIGHBOURS),
        [
            "ip neigh add 10.1.0.2 dev v0 lladdr 02:00:00:00:00:02 nud reachable",
            "10.1.0.2 on 3 Reachable 02:00:00:00:00:02",
            "ip neigh change 10.1.0.2 dev v0 lladdr 02:00:00:00:00:03 nud permanent",
            "10.1.0.2 on 3 Permanent 02:00:00:00:00:03",
            "ip neigh add fd00::2 dev v0 lladdr 02:00:00:00:00:02 nud stale",
            "fd00::2 on 3 Stale 02:00:00:00:00:02",
            "ip neigh add 10.1.0.3 dev v0 lladdr 02:00:00:00:00:03 nud noarp",
            "10.1.0.3 on 3 NoArp 02:00:00:00:00:03",
            "a datagram to the unknown address 10.1.0.4",
            "10.1.0.4 on 3 Unresolved ",
            // An address that a bridge has learned is not a neighbour.
            "bridge fdb add 02:00:00:00:00:09 dev v0 self permanent",
            "ip neigh del 10.1.0.2 dev v0",
            "10.1.0.2 on 3 Unresolved ",
            "10.1.0.2 on 3 gone",
            "dump",
            "10.1.0.3 on 3 NoArp 02:00:00:00:00:03",
            "0.0.0.0 on 1 NoArp 00:00:00:00:00:00",
            "10.1.0.4 on 3 Unresolved ",
            "ff02::16 on 3 NoArp 33:33:00:00:00:16",
            "ff02::2 on 3 NoArp 33:33:00:00:00:02",
            "fd00::2 on 3 Stale 02:00:00:00:00:02",
            "ff02::1:fffe:538e on 2 NoArp 33:33:ff:fe:53:8e",
            "ff02::16 on 2 NoArp 33:33:00:00:00:16",
            "ff02::2 on 2 NoArp 33:33:00:00:00:02",
            "ff02::1:ff00:1 on 3 NoArp 33:33:ff:00:00:01",
            "ip link set v0 down",
            "10.1.0.4 on 3 gone",
            "10.1.0.3 on 3 gone",
            "fd00::2 on 3 gone",
            "ff02::2 on 3 gone",
            "ff02::1:ff00:1 on 3 gone",
            "ff02::16 on 3 gone",
            "ff02::2 on 2 gone",
            "ff02::1:fffe:538e on 2 gone",
            "ff02::16 on 2 gone",
        ]
    );
}

/// `struct ndmsg` of include/uapi/linux/neighbour.h, of IPv4 on interface 5.
fn ndmsg(kind: u16, state: u16, flags: u8) -> Message {
    let [s0, s1] = state.to_ne_bytes();
    Message::new(kind, &[2, 0, 0, 0, 5, 0, 0, 0, s0, s1, flags, 1])
}

const NEWNEIGH: u16 = 28;
const DELNEIGH: u16 = 29;

fn destination(last: u8) -> Attr {
    Attr::new(1, &[10, 1, 0, last])
}

fn is(last: u8, state: State, hwaddr: &[u8]) -> Entry {
    let (address, hwaddr) = ([10, 1, 0, last].into(), HwAddr::new(hwaddr).unwrap());
    Entry { ifindex: index(5), address, state, hwaddr }
}

fn parse(message: &Message) -> Result<Option<Input>, Malformed> {
    let bytes = message.bytes();
    let frames: Vec<_> = frames(&bytes).collect();
    let [Ok(frame)] = frames.as_slice() else { panic!("{frames:?}") };
    change(frame)
}

#[test]
fn each_state_of_a_neighbour_is_recognized() {
    let states = [
        (0x01, State::Unresolved),
        (0x02, State::Reachable),
        (0x04, State::Stale),
        (0x08, State::Delay),
        (0x10, State::Probe),
        (0x20, State::Unresolved),
        (0x40, State::NoArp),
        (0x80, State::Permanent),
        (0x00, State::Unresolved),
    ];
    for (nud, state) in states {
        let hwaddr = [7; 20];
        let message = ndmsg(NEWNEIGH, nud, 0).with(destination(9)).with(Attr::new(2, &hwaddr));
        assert_eq!(parse(&message), Ok(Some(Input::Neighbour(is(9, state, &hwaddr)))), "{nud:#x}");
    }
}

#[test]
fn malformed_neighbour_is_rejected_with_its_reason() {
    let message = || ndmsg(NEWNEIGH, 2, 0);
    let cases = [
        (message(), Malformed::AttributeMissing),
        (message().with(Attr::new(1, &[10, 1, 0])), Malformed::AttributeLength),
        (message().with(destination(9)).with(Attr::new(2, &[0; 33])), Malformed::AttributeLength),
        (message().cut(1), Malformed::Attributes),
        (message().with(destination(9)).cut(1), Malformed::Attributes),
        (Message::new(DELNEIGH, &[2; 11]), Malformed::Attributes),
        (
            Message::new(NEWNEIGH, &[2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 1]).with(destination(9)),
            Malformed::IfIndex,
        ),
    ];
    for (message, reason) in cases {
        assert_eq!(parse(&message), Err(reason), "{message:?}");
    }
}

#[test]
fn nudges_and_proxies_are_not_neighbours() {
    let v6 = Attr::new(1, &ADDRESS_V6.octets());
    let of_ipv6 = |kind| Message::new(kind, &[10, 0, 0, 0, 1, 0, 0, 0, 0x80, 0, 0, 1]);
    let passed_over = [
        ndmsg(NEWNEIGH, 0x80, 0).with(Attr::new(1, &ADDRESS_V4.octets())),
        ndmsg(DELNEIGH, 0x80, 0).with(Attr::new(1, &ADDRESS_V4.octets())),
        of_ipv6(NEWNEIGH).with(v6.clone()),
        of_ipv6(DELNEIGH).with(v6),
        ndmsg(NEWNEIGH, 0, 8).with(destination(9)),
        // A message about a link.
        Message::link(16, 5, 32, 1),
    ];
    for message in passed_over {
        assert_eq!(parse(&message), Ok(None), "{message:?}");
    }
}

#[test]
fn dump_of_neighbours_is_one_request_repeated_after_a_loss() {
    const PORTID: u32 = 4711;
    let counters = Arc::<Counters>::default();
    let mut session = Session::new(Subject::Neighbours, PORTID, Arc::clone(&counters));
    let mut said = Vec::new();
    assert_eq!(session.poll_transmit(&mut said), None);
    let here = |kind, last| ndmsg(kind, 2, 0).with(destination(last)).with(Attr::new(2, &[7; 20]));
    let there = |last| is(last, State::Reachable, &[7; 20]);
    let done = Message::new(3, &0_i32.to_ne_bytes());
    for seq in 1..=2_u32 {
        if seq == 1 {
            session.handle_request(Extent::All);
        } else {
            session.handle_loss(Counter::RtnetlinkOverrun, &mut said);
            // Older than the loss.
            session.handle_datagram(&here(NEWNEIGH, 9).bytes(), &mut said);
            let failed = Input::DumpFailed(Subject::Neighbours);
            assert_eq!(said, [failed, Input::Neighbour(there(9))]);
            session.handle_request(Extent::All);
            said.clear();
            assert_eq!(session.poll_transmit(&mut said), None);
            session.handle_drained();
        }
        let request = session.poll_transmit(&mut said).expect("no request");
        let header = [28_u32.to_ne_bytes(), [30, 0, 1, 3], seq.to_ne_bytes(), [0; 4]].concat();
        assert_eq!(request, [header, vec![0; 12]].concat());
        let listed = [here(NEWNEIGH, 1), here(NEWNEIGH, 2)];
        for message in listed {
            session.handle_datagram(&message.answering(seq, PORTID).bytes(), &mut said);
        }
        session.handle_datagram(&here(DELNEIGH, 2).bytes(), &mut said);
        session.handle_datagram(&done.clone().answering(seq, PORTID).bytes(), &mut said);
        let expected = [
            Input::NeighboursStarted,
            Input::ListedNeighbour(there(1)),
            Input::ListedNeighbour(there(2)),
            Input::NeighbourGone(index(5), [10, 1, 0, 2].into()),
            Input::NeighboursDone,
        ];
        assert_eq!(said, expected);
        said.clear();
        assert_eq!(session.poll_transmit(&mut said), None);
    }
    assert_eq!(counters.get(Counter::RtnetlinkDump), 2);
}

#[test]
fn neighbour_of_a_route_is_looked_up_and_its_gid_read() {
    let question = Question::new([10, 1, 0, 9].into(), None).unwrap();
    let route = Route { ifindex: index(5), next_hop: question.target() };
    let hwaddr = b"\x80\0\x01\x02\xfe\x80\0\0\0\0\0\0\0\x02\xc9\x03\0\0\0\x05";
    let gid = IpoibHwAddr::parse(hwaddr).unwrap().gid();
    let neighbour = |nud, hwaddr: &[u8]| {
        let message = ndmsg(NEWNEIGH, nud, 0).with(destination(9));
        if hwaddr.is_empty() { message } else { message.with(Attr::new(2, hwaddr)) }
    };
    let no_entry = [&(-libc::ENOENT).to_ne_bytes()[..], &[0; 16]].concat();
    let cases = [
        (neighbour(0x02, hwaddr), Some(Some(gid))),
        (neighbour(0x08, hwaddr), Some(Some(gid))),
        (neighbour(0x04, hwaddr), Some(Some(gid))),
        // On Ethernet, being resolved, failed, and a multicast group.
        (neighbour(0x02, &[2, 0, 0, 0, 0, 9]), Some(None)),
        (neighbour(0x01, &[]), Some(None)),
        (neighbour(0x20, hwaddr), Some(None)),
        (neighbour(0x40, &[0xff; 20]), Some(None)),
        (Message::new(2, &no_entry), None),
        (neighbour(0x02, hwaddr).cut(1), None),
    ];
    for (message, expected) in cases {
        let counters = Arc::<Counters>::default();
        let mut lookups = Lookups::new(Arc::clone(&counters));
        lookups.handle_question(RouteQuery::Neighbour(question, route));
        let (seq, request) = lookups.poll_transmit().unwrap();
        let wanted = [
            &36_u32.to_ne_bytes()[..],
            // RTM_GETNEIGH, NLM_F_REQUEST
            &30_u16.to_ne_bytes(),
            &1_u16.to_ne_bytes(),
            &seq.to_ne_bytes(),
            &[0; 4],
            // struct ndmsg of IPv4 on interface 5; NDA_DST
            &[2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 8, 0, 1, 0, 10, 1, 0, 9],
        ];
        assert_eq!(request, wanted.concat());
        let mut answers = Vec::new();
        let bytes = message.clone().answering(seq, 0).bytes();
        lookups.handle_datagram(&bytes, &mut answers);
        let [Answer::Neighbour { question: of, entry }] = answers.as_slice() else {
            panic!("{answers:?}")
        };
        assert_eq!((*of, entry.map(|entry| entry.gid())), (question, expected), "{message:?}");
        let found = counters.get(Counter::NeighbourFound);
        assert_eq!(found, u64::from(expected.is_some()), "{message:?}");
        assert!(lookups.poll_transmit().is_none() && lookups.has_room());
    }
}
