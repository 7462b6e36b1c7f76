// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Clients of a whole node, whose driver and SA the test plays.

use ibarr_common::IfIndex;
use ibarr_common::ib::{Guid, Lid, PortNum, Sl};
use ibarr_common::wire::acm::{Endpoint, Names};
use ibarr_common::wire::sa;
use ibarr_common::wire::umad::PKeyIndex;
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng as _;

use super::*;
use crate::local_view::{
    Bonding, Dad, HwAddr, Input as View, InterfaceAddress, InterfaceName, Link, LinkType,
};
use crate::node::{self, Node, Room};
use crate::paths::{Device, PortFacts};
use crate::resolver;
use crate::sa::PortIndex;

const DEVICE: Device = Device { guid: Some(Guid::new(0x0002_c903_0000_0100)), ports: 2 };

fn pkey(pkey: u16) -> PKey {
    PKey::new(pkey).unwrap()
}

fn port(number: u8) -> PortName {
    PortName { device: "mlx5_0".parse().unwrap(), port: PortNum::new(number).unwrap() }
}

/// Port `number` with LID `number`, in two partitions.
fn facts(number: u8) -> PortFacts {
    PortFacts {
        is_active: true,
        has_umad: true,
        lid: Lid::new(number.into()),
        lmc: 0,
        sm_lid: Lid::new(1),
        sm_sl: Sl::default(),
        gids: vec![gid(&format!("fe80::{number}"))],
        pkeys: vec![(PKeyIndex(0), PKey::DEFAULT), (PKeyIndex(1), pkey(0x0001))],
        rate: None,
        device: DEVICE,
    }
}

/// A node with a client. It has one device with two ports, of which the first is active.
struct Whole {
    node: Node<ChaCha12Rng>,
    now: Instant,
    /// What the client was sent.
    replies: VecDeque<Vec<u8>>,
    /// What the SA was asked for, but for its capabilities.
    asked: Vec<sa::Question>,
    /// The SA.
    answer: fn(&sa::Question) -> Option<sa::Answer>,
}

impl Whole {
    fn new() -> Self {
        let node = Node::new(node::Config::default(), ChaCha12Rng::seed_from_u64(1));
        let (replies, asked) = (VecDeque::new(), Vec::new());
        let mut whole = Self { node, now: NOW, replies, asked, answer: |_| None };
        whole.acm(Input::Connected { client: CLIENT, user: USER });
        whole
    }

    /// With the addresses of [`Self::knows_itself`] and both ports.
    fn ready() -> Self {
        let mut whole = Self::new();
        whole.port(1, facts(1));
        whole.port(2, PortFacts { is_active: false, ..facts(2) });
        whole.knows_itself(&[]);
        whole
    }

    fn acm(&mut self, input: Input<'_>) {
        self.node.handle_input(self.now, node::Input::Acm(input));
        self.turn();
    }

    fn port(&mut self, number: u8, facts: PortFacts) {
        let (port, name) = (PortIndex(number.into()), port(number));
        let input = paths::Input::Port { port, name, facts };
        self.node.handle_input(self.now, resolver::Input::Paths(input));
        self.turn();
    }

    /// Interface 2 in the default partition has 10.1.0.1 and fd00::1, interface 3 in the other one 10.3.0.1.
    fn knows_itself(&mut self, more: &[String]) {
        let link = |ifindex: u32, pkey: u16| {
            let mut hwaddr = [0; 20];
            hwaddr[4..].copy_from_slice(&gid("fe80::1").octets());
            Link {
                ifindex: IfIndex::new(ifindex).unwrap(),
                name: InterfaceName::new(format!("ib{ifindex}").as_bytes()).unwrap(),
                link_type: LinkType::INFINIBAND,
                hwaddr: HwAddr::new(&hwaddr).unwrap(),
                up: true,
                bonding: Bonding::None,
                pkey: PKey::new(pkey),
            }
        };
        let address = |ifindex: u32, address: &str| {
            let ifindex = IfIndex::new(ifindex).unwrap();
            View::ListedAddress(InterfaceAddress::new(ifindex, ip(address), 24, None, Dad::Passed))
        };
        let first = [
            View::DumpStarted,
            View::ListedLink(link(2, 0xffff)),
            View::ListedLink(link(3, 0x8001)),
        ];
        let own = [address(2, "10.1.0.1"), address(2, "fd00::1"), address(3, "10.3.0.1")];
        let more = more.iter().map(|text| address(2, text));
        for input in first.into_iter().chain(own).chain(more).chain([View::DumpDone]) {
            self.node.handle_input(self.now, node::Input::View(input));
        }
        self.turn();
    }

    fn turn(&mut self) {
        self.node.handle_timeout(self.now);
        while let Some(output) = self.node.poll(Room { local_service: true }) {
            match output {
                node::Output::Acm(Output::Route { id, target }) => {
                    let source = if target.is_ipv4() { "10.1.0.1" } else { "fd00::1" };
                    let source = Some(ip(source));
                    let input = Input::Source { lookup: id, source };
                    self.node.handle_input(self.now, node::Input::Acm(input));
                }
                node::Output::Acm(Output::Reply(transmit)) => {
                    self.replies.push_back(transmit.bytes);
                }
                node::Output::Sa(transmit) => {
                    let request = sa::Request::parse(transmit.mad.as_ref()).unwrap();
                    if request.question == sa::Question::ClassPortInfo {
                        continue;
                    }
                    self.asked.push(request.question);
                    if let Some(answer) = (self.answer)(&request.question) {
                        let mad = request.answer(answer).emit();
                        let (port, from) = (transmit.port, Some(transmit.sa.lid));
                        let input = paths::Input::Mad { port, from, mad: mad.as_ref() };
                        self.node.handle_input(self.now, resolver::Input::Paths(input));
                    }
                }
                _ => {}
            }
        }
    }

    /// The reply to a request, and how long the client has waited for it.
    fn ask(&mut self, ask: Wanted) -> Vec<u8> {
        let mut out = [0; MAX_REQUEST_LEN];
        let bytes = Request { tid: Tid([9; 8]), ask }.emit(&mut out);
        self.acm(Input::Message { client: CLIENT, bytes });
        let end = self.now + Config::default().patience;
        while self.replies.is_empty() {
            let due = self.node.poll_timeout().filter(|due| *due <= end);
            self.now = due.expect("a reply by the deadline");
            self.turn();
        }
        self.replies.pop_front().unwrap()
    }

    /// Number, port, P_Key and addresses of an endpoint.
    fn endpoint(&mut self, index: u8, port: u8) -> Result<(Endpoint, Vec<String>), Status> {
        let bytes = self.ask(Wanted::Endpoint { index, port });
        assert_eq!((bytes[2] == 0, bytes[3]), (bytes.len() > 16, index));
        match Reply::parse(&bytes).unwrap() {
            (_, Reply::Endpoint(endpoint, names)) => {
                Ok((endpoint, names.iter().map(|name| name.as_str().to_owned()).collect()))
            }
            (_, Reply::Refused(status)) => Err(status),
            other => panic!("{other:?}"),
        }
    }

    /// Counters: requests, and paths from the SA.
    fn counters(&mut self, of: Of) -> Result<(u64, u64), Status> {
        match Reply::parse(&self.ask(Wanted::Counters(of))).unwrap() {
            (_, Reply::Counters(seven)) => Ok((seven.resolved.get(), seven.route_queries.get())),
            (_, Reply::Refused(status)) => Err(status),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn endpoints_are_the_active_ports_with_each_of_their_partitions() {
    let mut whole = Whole::ready();
    let provider = Name::new("ibarr").unwrap();
    let expected = |pkey| {
        let device = Guid::new(0x0002_c903_0000_0100);
        Endpoint { device, port: 1, ports: 2, pkey, provider }
    };
    // For any port, and for the first one.
    for port in [0, 1] {
        let (endpoint, addresses) = whole.endpoint(1, port).unwrap();
        assert_eq!(endpoint, expected(PKey::DEFAULT));
        assert_eq!(addresses, ["10.1.0.1", "fd00::1"]);
        // Its interface is a full member, and the port a limited one.
        let (endpoint, addresses) = whole.endpoint(2, port).unwrap();
        assert_eq!((endpoint, addresses), (expected(pkey(0x0001)), vec!["10.3.0.1".to_owned()]));
        assert_eq!(whole.endpoint(3, port), Err(Status::Invalid));
        assert_eq!(whole.endpoint(0, port), Err(Status::Invalid));
    }
    // The second port is down.
    assert_eq!(whole.endpoint(1, 2), Err(Status::Invalid));
    whole.port(2, facts(2));
    assert_eq!(whole.endpoint(1, 2).map(|(endpoint, _)| endpoint.port), Ok(2));
    assert_eq!(whole.endpoint(3, 0).map(|(endpoint, _)| endpoint.port), Ok(2));
}

#[test]
fn endpoint_has_as_many_addresses_as_a_reply_can_have() {
    let mut whole = Whole::new();
    whole.port(1, facts(1));
    let many: Vec<_> = (0..2000).map(|n| format!("10.2.{}.{}", n / 250, 1 + n % 250)).collect();
    whole.knows_itself(&many);
    let bytes = whole.ask(Wanted::Endpoint { index: 1, port: 1 });
    assert_eq!(bytes.len(), 16 + 80 + 64 * Names::MAX);
    let (_, addresses) = whole.endpoint(1, 1).unwrap();
    assert_eq!((addresses.len(), addresses[0].as_str()), (Names::MAX, "10.1.0.1"));
}

#[test]
fn counters_of_an_endpoint_are_those_of_its_port() {
    let mut whole = Whole::ready();
    whole.port(2, facts(2));
    let address = |text| Of::Address(Address::Ip(ip(text)));
    let known = PathRecordWire {
        dgid: gid("fe80::5").octets(),
        sgid: gid("fe80::1").octets(),
        ..PathRecord::from_octets([0; 64]).into()
    };
    // The SA does not answer.
    whole.ask(Wanted::Resolve(Resolve::along(known.into())));
    for of in [Of::Service, Of::Index(1), Of::Index(2), address("10.1.0.1"), address("10.3.0.1")] {
        assert_eq!(whole.counters(of), Ok((1, 0)), "{of:?}");
    }
    assert_eq!(whole.counters(Of::Index(3)), Ok((0, 0)));
    let none =
        [Of::Index(5), address("10.1.0.2"), Of::Address(Address::Name(Name::new("a").unwrap()))];
    for of in none {
        assert_eq!(whole.counters(of), Err(Status::SourceAddress), "{of:?}");
    }
}

#[test]
fn node_that_does_not_know_itself_yet_answers_for_its_endpoints_when_it_does() {
    let mut whole = Whole::new();
    whole.port(1, facts(1));
    let mut out = [0; MAX_REQUEST_LEN];
    let ask = Wanted::Endpoint { index: 1, port: 1 };
    let bytes = Request { tid: Tid([9; 8]), ask }.emit(&mut out);
    whole.acm(Input::Message { client: CLIENT, bytes });
    assert_eq!(whole.replies.len(), 0);
    whole.knows_itself(&[]);
    let bytes = whole.replies.pop_front().unwrap();
    assert!(matches!(Reply::parse(&bytes), Ok((_, Reply::Endpoint(..)))));
}
