// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Tests of dumps and losses.

use ibarr_proto::local_view::{AltNames, HwAddr, InterfaceName};

use super::story::{PORTID, Story, done};
use super::*;

impl Story {
    /// The session sends this request, and no other.
    fn asks(&mut self, kind: u16) -> &mut Self {
        self.asks_by(kind);
        self.asks_nothing()
    }

    fn asks_nothing(&mut self) -> &mut Self {
        assert_eq!(self.session.poll_transmit(&mut self.said), None);
        self
    }

    /// The session says that there is no dump, and is asked for another.
    fn fails(&mut self) -> &mut Self {
        assert_eq!(self.said.pop(), Some(FAILED));
        self.asks_nothing().session.handle_request(Extent::All);
        self
    }

    /// A complete empty dump.
    fn dumps(&mut self) -> &mut Self {
        self.asks(GETLINK).answers(&[done()]).asks(GETADDR).answers(&[done()]);
        self.says(&[Input::DumpStarted, Input::DumpDone])
    }
}

const FAILED: Input = Input::DumpFailed(Subject::Node);

const GETLINK: u16 = 18;
const GETADDR: u16 = 22;

fn link(kind: u16, ifindex: u32) -> Message {
    Message::link(kind, ifindex, 32, 1).with(Attr::text(3, "ib0"))
}

fn parsed(ifindex: u32) -> Link {
    Link {
        ifindex: index(ifindex),
        name: InterfaceName::new(b"ib0").unwrap(),
        link_type: LinkType::INFINIBAND,
        hwaddr: HwAddr::default(),
        up: true,
        bonding: Bonding::None,
        altnames: AltNames::default(),
        vrf: None,
        pkey: None,
    }
}

fn address(kind: u16, last: u8) -> Message {
    Message::address(kind, 2, 24, 0, 5).with(Attr::new(2, &[10, 1, 0, last]))
}

fn entry(last: u8) -> InterfaceAddress {
    InterfaceAddress::new(index(5), [10, 1, 0, last].into(), 24, None, Dad::Passed)
}

#[test]
fn nothing_is_requested_before_it_is_wanted() {
    let mut story = Story::about(Subject::Node);
    story.asks_nothing();
    story.session.handle_request(Extent::All);
    story.dumps().asks_nothing();
    assert_eq!(story.counted(Counter::RtnetlinkDump), 1);
}

#[test]
fn dump_lists_links_then_addresses_with_events_in_between() {
    let mut story = Story::about(Subject::Node);
    story.session.handle_request(Extent::All);
    story.asks(GETLINK);
    story.answers(&[link(16, 5), link(16, 6)]);
    story.hears(&[link(17, 6)]);
    story.answers(&[done()]).asks(GETADDR);
    story.hears(&[address(21, 2)]);
    story.answers(&[address(20, 1), done()]);
    story.says(&[
        Input::DumpStarted,
        Input::ListedLink(parsed(5)),
        Input::ListedLink(parsed(6)),
        Input::LinkGone(index(6)),
        Input::AddressGone(entry(2).id),
        Input::ListedAddress(entry(1)),
        Input::DumpDone,
    ]);
}

#[test]
fn interrupted_dump_is_repeated_and_never_passed_on() {
    for phase in [GETLINK, GETADDR] {
        let mut story = Story::about(Subject::Node);
        story.session.handle_request(Extent::All);
        story.asks(GETLINK);
        if phase == GETADDR {
            story.answers(&[done()]).asks(GETADDR);
        }
        story.answers(&[address(20, 1).interrupted()]).answers(&[done().interrupted()]);
        assert!(!story.said.contains(&Input::DumpDone));
        story.fails().said.clear();
        story.dumps().asks_nothing();
        assert_eq!(story.counted(Counter::RtnetlinkDumpInterrupted), 1);
    }
}

#[test]
fn after_a_loss_no_dump_begins_before_the_socket_is_empty() {
    let mut story = Story::about(Subject::Node);
    story.session.handle_loss(Counter::RtnetlinkOverrun, &mut story.said);
    story.fails().asks_nothing();
    story.session.handle_loss(Counter::RtnetlinkOverrun, &mut story.said);
    // Older than the loss, and perhaps changed by a lost message.
    story.hears(&[address(20, 1)]).asks_nothing();
    story.says(&[Input::Address(entry(1))]);
    story.session.handle_drained();
    story.dumps();
    assert_eq!(story.counted(Counter::RtnetlinkOverrun), 2);
}

#[test]
fn loss_during_a_dump_voids_it() {
    let mut story = Story::about(Subject::Node);
    story.session.handle_request(Extent::All);
    story.asks(GETLINK);
    story.session.handle_loss(Counter::RtnetlinkOverrun, &mut story.said);
    story.answers(&[done()]).fails().says(&[Input::DumpStarted]).asks_nothing();
    story.session.handle_drained();
    story.dumps().asks_nothing();
    // First between links and addresses, then among the addresses.
    story.session.handle_request(Extent::All);
    story.asks(GETLINK).answers(&[done()]);
    story.session.handle_loss(Counter::RtnetlinkOversized, &mut story.said);
    story.session.handle_drained();
    story.asks(GETADDR).answers(&[done()]).fails().says(&[Input::DumpStarted]).dumps();
    assert_eq!(story.counted(Counter::RtnetlinkDumpSpoiled), 2);
}

#[test]
fn refused_dump_starts_again_from_the_beginning() {
    let mut story = Story::about(Subject::Node);
    story.session.handle_request(Extent::All);
    story.asks(GETLINK).answers(&[done()]).asks(GETADDR);
    let busy = (-libc::EBUSY).to_ne_bytes();
    story.answers(&[Message::new(2, &[&busy[..], &[0; 16]].concat())]).fails();
    story.says(&[Input::DumpStarted]).asks(GETLINK);
    story.session.handle_unsent(&mut story.said);
    story.fails().says(&[Input::DumpStarted]).dumps();
    assert_eq!(story.counted(Counter::RtnetlinkDumpRefused), 2);
}

#[test]
fn dump_that_ends_with_an_error_is_not_passed_on() {
    let mut story = Story::about(Subject::Node);
    story.session.handle_request(Extent::All);
    story.asks(GETLINK);
    story
        .answers(&[Message::new(3, &(-libc::ENOMEM).to_ne_bytes())])
        .fails()
        .says(&[Input::DumpStarted])
        .dumps();
}

#[test]
fn new_request_for_a_dump_voids_a_hanging_one() {
    let mut story = Story::about(Subject::Node);
    story.session.handle_request(Extent::All);
    story.asks(GETLINK);
    let late = [link(16, 5), done()].map(|message| message.answering(story.seq, PORTID));
    story.session.handle_request(Extent::All);
    story.asks(GETLINK).hears(&late).says(&[Input::DumpStarted, Input::DumpStarted]);
    assert_eq!(story.counted(Counter::RtnetlinkStaleAnswer), 2);
    story.answers(&[done()]).asks(GETADDR);
}

#[test]
fn event_with_our_port_id_is_not_an_answer() {
    // Made from another network namespace by a socket with the same port id.
    let mut story = Story::about(Subject::Node);
    let mut event = link(16, 5).answering(1, PORTID).bytes();
    event[6] = 0;
    story.session.handle_datagram(&event, &mut story.said);
    story.says(&[Input::Link(parsed(5))]);
}

#[test]
fn truncated_datagram_is_counted_and_brings_a_dump() {
    let mut story = Story::about(Subject::Node);
    story.hears(&[address(20, 1), link(16, 0), address(20, 2)]);
    story.says(&[Input::Address(entry(1)), Input::Address(entry(2))]).asks_nothing();
    assert_eq!(story.counted(Counter::RtnetlinkMalformedMessage), 1);
    let mut datagram = [address(20, 1).bytes(), address(20, 2).bytes()].concat();
    datagram.pop();
    story.session.handle_datagram(&datagram, &mut story.said);
    story.fails().says(&[Input::Address(entry(1))]).session.handle_drained();
    story.dumps();
    assert_eq!(story.counted(Counter::RtnetlinkMalformedHeader), 1);
    // NLMSG_OVERRUN
    story.hears(&[Message::new(4, &[])]).fails().session.handle_drained();
    story.dumps();
}

#[test]
fn lost_route_answers_are_requested_again_when_the_socket_is_empty() {
    let counters = Arc::<Counters>::default();
    let mut lookups = Lookups::new(Arc::clone(&counters));
    let mut seqs = Vec::new();
    for last in 1..=2 {
        let question = Question::new([10, 1, 0, last].into(), None).unwrap();
        lookups.handle_question(RouteQuery::Route(question.into()));
        seqs.push(lookups.poll_transmit().unwrap().0);
    }
    lookups.handle_loss();
    assert_eq!(lookups.poll_transmit(), None);
    let error = [&(-libc::ENETUNREACH).to_ne_bytes()[..], &[0; 16]].concat();
    let answer = |seq| Message::new(2, &error).answering(seq, PORTID).bytes();
    let mut answers = Vec::new();
    lookups.handle_datagram(&answer(seqs[0]), &mut answers);
    lookups.handle_drained();
    let (again, _) = lookups.poll_transmit().unwrap();
    assert_eq!((again, lookups.poll_transmit()), (seqs[1], None));
    lookups.handle_datagram(&answer(seqs[1]), &mut answers);
    lookups.handle_datagram(&answer(seqs[1]), &mut answers);
    let asked: Vec<_> = answers
        .iter()
        .map(|answer| match answer {
            Answer::Route(answer) => answer.candidate.question.target().to_string(),
            other @ Answer::Neighbour { .. } => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(asked, ["10.1.0.1", "10.1.0.2"]);
    assert_eq!(counters.get(Counter::RouteAskedAgain), 1);
    assert_eq!(counters.get(Counter::RouteUnasked), 1);
}

#[test]
fn number_of_route_look_ups_is_bounded() {
    let mut lookups = Lookups::new(Arc::default());
    let mut taken = 0_u8;
    while lookups.has_room() {
        let question = Question::new([10, 1, 0, taken + 1].into(), None).unwrap();
        lookups.handle_question(RouteQuery::Route(question.into()));
        taken += 1;
    }
    assert_eq!(taken, 64);
    let (seq, request) = lookups.poll_transmit().unwrap();
    let question = Question::new([10, 1, 0, 1].into(), None).unwrap();
    let expected = [
        &52_u32.to_ne_bytes()[..],
        &26_u16.to_ne_bytes(),
        &1_u16.to_ne_bytes(),
        &seq.to_ne_bytes(),
        &[0; 4],
        // struct rtmsg of IPv4, 32 bits, RTM_F_LOOKUP_TABLE; RTA_DST; RTA_UID; RTA_IP_PROTO
        &[2, 32, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 8, 0, 1, 0, 10, 1, 0, 1],
        &[8, 0, 25, 0, 0, 0, 0, 0, 5, 0, 27, 0, 1, 0, 0, 0],
    ];
    assert_eq!(request, expected.concat(), "{question}");
    lookups.handle_unsent(seq, nix::errno::Errno::ENOBUFS, &mut Vec::new());
    assert!(lookups.has_room());
}

#[test]
fn dump_of_links_asks_for_no_address() {
    let mut story = Story::about(Subject::Node);
    story.session.handle_request(Extent::Links);
    story.asks(GETLINK).answers(&[link(16, 5), done()]);
    story.says(&[Input::LinksStarted, Input::ListedLink(parsed(5)), Input::DumpDone]);
    story.asks_nothing();
}

#[test]
fn loss_before_a_dump_of_links_is_told() {
    let mut story = Story::about(Subject::Node);
    story.session.handle_request(Extent::Links);
    story.session.handle_loss(Counter::RtnetlinkOverrun, &mut story.said);
    story.says(&[FAILED]).asks_nothing();
    story.session.handle_drained();
    story.asks(GETLINK).answers(&[done()]).says(&[Input::LinksStarted, Input::DumpDone]);
}
