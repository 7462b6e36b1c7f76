// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Clients of a whole node, whose driver and SA the test plays.

use ibarr_common::IfIndex;
use ibarr_common::ib::{FlowLabel, Guid, Lid, Mtu, PacketLifeTime, PortNum, Rate, Sl};
use ibarr_common::wire::acm::{self as wire, Endpoint, Names};
use ibarr_common::wire::path_record::Fields;
use ibarr_common::wire::sa;
use ibarr_common::wire::umad::PKeyIndex;
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng as _;

use super::*;
use crate::local_view::{
    AltNames, Bonding, Dad, HwAddr, Input as View, InterfaceAddress, InterfaceName, Link, LinkType,
};
use crate::node::{self, Node, Room};
use crate::paths::{Device, PortFacts};
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
        sm_lid: Lid::new(1),
        gids: [gid(&format!("fe80::{number}"))].into(),
        pkeys: vec![(PKeyIndex(0), PKey::DEFAULT), (PKeyIndex(1), pkey(0x0001))],
        device: DEVICE,
        ..PortFacts::default()
    }
}

/// A node with a client. It has one device with two ports, of which the first is active.
struct Whole {
    node: Node,
    now: Instant,
    /// What the client was sent.
    replies: VecDeque<Vec<u8>>,
    /// What the SA was asked for, but for its capabilities.
    asked: Vec<sa::Question>,
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
        self.node.handle_input(self.now, node::Input::Paths(input));
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
                altnames: AltNames::default(),
                vrf: None,
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
                node::Output::Acm(Output::Route(target)) => {
                    let source = if target.target().is_ipv4() { "10.1.0.1" } else { "fd00::1" };
                    let source = Some(ip(source));
                    let input = Input::Source { target, source };
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
                        self.node.handle_input(self.now, node::Input::Paths(input));
                    }
                }
                _ => {}
            }
        }
    }

    /// The reply to a request, and how long the client has waited for it.
    fn ask(&mut self, ask: wire::Ask) -> Vec<u8> {
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
        let bytes = self.ask(wire::Ask::Endpoint { index, port });
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
        match Reply::parse(&self.ask(wire::Ask::Counters(of))).unwrap() {
            (_, Reply::Counters(seven)) => Ok((seven.resolved.get(), seven.route_queries.get())),
            (_, Reply::Refused(status)) => Err(status),
            other => panic!("{other:?}"),
        }
    }
}

/// The path of a reply.
fn path_of(bytes: &[u8]) -> Result<(Fields, Option<Address>), Status> {
    match Reply::parse(bytes).unwrap() {
        (Tid([9, ..]), Reply::Paths(paths, source)) => {
            Ok((Fields::parse(&paths.as_slice()[0].record).unwrap(), source))
        }
        (Tid([9, ..]), Reply::Refused(status)) => Err(status),
        other => panic!("{other:?}"),
    }
}

/// A path record with these fields and no others.
fn fields(set: impl FnOnce(&mut PathRecordWire)) -> PathRecord {
    let mut wire = PathRecordWire::from(PathRecord::from_octets([0; 64]));
    set(&mut wire);
    wire.into()
}

/// An SA that knows fe80::5 with LID 5, and fe80::1 with LID 1.
fn sa(question: &sa::Question) -> Option<sa::Answer> {
    let query = match *question {
        sa::Question::Path(question) | sa::Question::Paths(question, _) => question.into(),
        sa::Question::Known(query) => query,
        sa::Question::ClassPortInfo => return None,
    };
    let record = Fields {
        dgid: gid("fe80::5"),
        sgid: gid("fe80::1"),
        dlid: Lid::new(5).unwrap(),
        slid: Lid::new(1).unwrap(),
        flow_label: FlowLabel::default(),
        hop_limit: 0,
        tclass: 0,
        reversible: true,
        pkey: query.pkey().unwrap_or(PKey::DEFAULT),
        sl: Sl::default(),
        mtu: Mtu::from_low_bits(4),
        rate: Rate::from_low_bits(7),
        life_time: PacketLifeTime::from_low_bits(18),
    };
    let record = record.emit();
    Some(if query.has_ends_of(&record) {
        sa::Answer::Path(record)
    } else {
        sa::Answer::Refused(sa::Refusal::NO_RECORDS)
    })
}

#[test]
fn reply_at_once_and_its_counts_are_those_of_the_input() {
    let mut whole = Whole { answer: sa, ..Whole::ready() };
    let counts = |node: &Node| {
        let acm = node.acm().counters().iter().map(|(_, count)| count);
        let by_port = node.acm().by_port.values().flat_map(Counters::iter).map(|(_, count)| count);
        let paths = node.paths().counters().iter().map(|(_, count)| count);
        acm.chain(by_port).chain(paths).collect::<Vec<_>>()
    };
    let grown = |before: &[u64], after: &[u64]| {
        after.iter().zip(before).map(|(after, before)| after - before).collect::<Vec<_>>()
    };
    let to = |target: &str| {
        let (sgid, dgid) = (gid("fe80::1").octets(), gid(target).octets());
        let path = fields(|path| (path.sgid, path.dgid) = (sgid, dgid));
        wire::Ask::Resolve(Resolve::along(path))
    };
    let message = |ask| {
        let mut out = [0; MAX_REQUEST_LEN];
        Request { tid: Tid([9; 8]), ask }.emit(&mut out).to_vec()
    };
    // The SA has no path to the second.
    for target in ["fe80::5", "fe80::6"] {
        let (ask, bytes) = (to(target), message(to(target)));
        assert_eq!(whole.node.answer_acm(whole.now, CLIENT, &bytes), None, "not remembered");
        whole.ask(ask);
        let before = counts(&whole.node);
        let reply = whole.ask(ask);
        let between = counts(&whole.node);
        let at_once = whole.node.answer_acm(whole.now, CLIENT, &bytes).map(<[u8]>::to_vec);
        assert_eq!(at_once, Some(reply));
        assert_eq!(grown(&between, &counts(&whole.node)), grown(&before, &between));
        assert_eq!(whole.node.answer_acm(whole.now, ClientId(8), &bytes), None, "no such client");
    }
    // A client that waits may not ask, which its message as an input ends.
    whole.answer = |_| None;
    whole.acm(Input::Message { client: CLIENT, bytes: &message(to("fe80::7")) });
    assert_eq!(whole.node.answer_acm(whole.now, CLIENT, &message(to("fe80::5"))), None);
    assert_eq!(whole.asked.len(), 3);
}

#[test]
fn lid_is_asked_for_each_time_with_all_known_fields() {
    let mut whole = Whole { answer: sa, ..Whole::ready() };
    let to_lid = wire::Ask::Resolve(Resolve::along(fields(|path| path.dlid = 5.into())));
    let by_lids = fields(|path| (path.dlid, path.slid) = (5.into(), 1.into()));
    let by_lids = wire::Ask::Resolve(Resolve::along(by_lids));
    for ask in [to_lid, to_lid, by_lids] {
        let (path, source) = path_of(&whole.ask(ask)).unwrap();
        assert_eq!((path.dgid, path.pkey, source), (gid("fe80::5"), PKey::DEFAULT, None));
    }
    let [sa::Question::Known(first), _, sa::Question::Known(third)] = whole.asked[..] else {
        panic!("{:?}", whole.asked)
    };
    assert_eq!(
        (first.dlid(), first.slid(), first.sgid()),
        (Lid::new(5), None, Some(gid("fe80::1")))
    );
    assert_eq!((third.slid(), third.pkey()), (Lid::new(1), Some(PKey::DEFAULT)));
    // What the SA has said of a LID is no answer to a question for a GID.
    let by_gid =
        wire::Ask::Resolve(Resolve::along(fields(|path| path.dgid = gid("fe80::5").octets())));
    assert!(path_of(&whole.ask(by_gid)).is_ok());
    assert_eq!(whole.asked.len(), 4);
    // The port has one LID, and no host LID 6.
    let absent = wire::Ask::Resolve(Resolve::along(fields(|path| path.dlid = 6.into())));
    assert_eq!(path_of(&whole.ask(absent)), Err(Status::NoData));
    let foreign = fields(|path| (path.dlid, path.slid) = (5.into(), 2.into()));
    let mut whole = Whole { answer: sa, ..Whole::new() };
    whole.port(1, facts(1));
    whole.knows_itself(&[]);
    assert_eq!(
        path_of(&whole.ask(wire::Ask::Resolve(Resolve::along(foreign)))),
        Err(Status::SourceAddress)
    );
    assert_eq!(whole.asked, []);
}

#[test]
fn client_that_does_not_wait_costs_the_sa_nothing() {
    let mut whole = Whole { answer: sa, ..Whole::ready() };
    let to_lid = Resolve::along(fields(|path| path.dlid = 5.into())).from_memory();
    assert_eq!(path_of(&whole.ask(wire::Ask::Resolve(to_lid))), Err(Status::NoData));
    whole.now += Duration::from_secs(3);
    whole.turn();
    assert_eq!((whole.asked.len(), whole.node.acm().load()), (0, (1, 0)));
}

#[test]
fn question_to_the_sa_itself_bypasses_the_memory() {
    let mut whole = Whole { answer: sa, ..Whole::ready() };
    let ends = |path: &mut PathRecordWire| {
        (path.dgid, path.sgid) = (gid("fe80::5").octets(), gid("fe80::1").octets());
    };
    let ask = Resolve::along(fields(ends));
    assert!(path_of(&whole.ask(wire::Ask::Resolve(ask))).is_ok());
    let known = fields(|path| {
        ends(path);
        path.mtu = 4;
    });
    let bytes = whole.ask(wire::Ask::Resolve(Resolve::along(known).by_the_sa()));
    // As long as the request.
    assert_eq!((path_of(&bytes).unwrap().0.dlid.get(), bytes.len()), (5, 88));
    assert_eq!(whole.asked[1..], [sa::Question::Known(PathQuery::known(known))]);
    whole.ask(wire::Ask::Resolve(ask));
    assert_eq!(whole.asked.len(), 2, "the first answer is remembered");
    whole.ask(wire::Ask::Resolve(ask.by_the_sa()));
    assert_eq!(whole.asked.len(), 3);
    // An SA that does not answer is no reason for an older answer.
    whole.answer = |_| None;
    let bytes = whole.ask(wire::Ask::Resolve(ask.by_the_sa()));
    assert_eq!(path_of(&bytes), Err(Status::TimedOut));
}

#[test]
fn listed_name_alone_starts_at_the_only_port_or_nowhere() {
    let mut whole = Whole { answer: sa, ..Whole::ready() };
    let name = |name| Address::Name(Name::new(name).unwrap());
    let hosts = [(name("here"), gid("fe80::1")), (name("there"), gid("fe80::5"))];
    whole.node.set_acm_hosts(Hosts::new(&hosts).0);
    let alone = wire::Ask::Resolve(Resolve::to(None, name("there")));
    assert_eq!(path_of(&whole.ask(alone)).unwrap().0.sgid, gid("fe80::1"));
    whole.port(2, facts(2));
    // As ibacm says.
    assert_eq!(path_of(&whole.ask(alone)), Err(Status::DestinationType));
    let from = wire::Ask::Resolve(Resolve::to(Some(name("here")), name("there")));
    assert_eq!(path_of(&whole.ask(from)).unwrap().0.sgid, gid("fe80::1"));
    let to_gid = Resolve::along(fields(|path| path.dgid = gid("fe80::5").octets()));
    assert_eq!(path_of(&whole.ask(wire::Ask::Resolve(to_gid))).unwrap().0.sgid, gid("fe80::1"));
}

#[test]
fn address_that_names_no_interface_is_no_end_of_a_path() {
    let mut whole = Whole { answer: sa, ..Whole::ready() };
    let ask = |source: &str, target: &str| {
        wire::Ask::Resolve(Resolve::to(Some(Address::Ip(ip(source))), Address::Ip(ip(target))))
    };
    for (source, target, status) in [
        ("0.0.0.0", "10.1.0.1", Status::Invalid),
        ("::", "fd00::1", Status::Invalid),
        ("fe80::9", "fd00::1", Status::SourceAddress),
        ("10.1.0.1", "0.0.0.0", Status::Invalid),
        ("fd00::1", "::", Status::Invalid),
        ("fd00::1", "ff02::1", Status::Invalid),
    ] {
        assert_eq!(path_of(&whole.ask(ask(source, target))), Err(status), "{source} {target}");
    }
}

/// A request of librdmacm with all three records.
fn three_records(source: &str, target: &str, path: PathRecord, flags: u32) -> Vec<u8> {
    let mut bytes = vec![1, 1, 0, 0, 0, 0];
    bytes.extend((16 + 3 * 72_u16).to_ne_bytes());
    bytes.extend([9; 8]);
    for (flag, address) in [(1_u32, source), (2, target)] {
        let IpAddr::V4(address) = ip(address) else { panic!() };
        bytes.extend(flag.to_ne_bytes());
        bytes.extend(2_u16.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(address.octets());
        bytes.extend([0; 60]);
    }
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(16_u16.to_ne_bytes());
    bytes.extend([0; 2]);
    bytes.extend(path.octets());
    bytes
}

#[test]
fn fields_of_a_path_restrict_the_path_between_two_addresses() {
    let mut whole = Whole { answer: sa, ..Whole::ready() };
    let mut ask = |path, flags| {
        whole.replies.clear();
        let bytes = three_records("10.1.0.1", "10.3.0.1", path, flags);
        whole.acm(Input::Message { client: CLIENT, bytes: &bytes });
        path_of(&whole.replies.pop_front().unwrap()).map(|(path, source)| (path.pkey, source))
    };
    // Both are addresses of this node.
    assert_eq!(ask(fields(|_| {}), 0), Ok((PKey::DEFAULT, None)));
    let other = |path: &mut PathRecordWire| path.pkey = 0x8001.into();
    assert_eq!(ask(fields(other), 0), Ok((pkey(0x0001), None)));
    // No path leads to two GIDs.
    let elsewhere = |path: &mut PathRecordWire| path.dgid = gid("fe80::5").octets();
    assert_eq!(ask(fields(elsewhere), 0), Err(Status::NoData));
    // The SA can only be asked for a path alone.
    assert_eq!(ask(fields(|_| {}), 1 << 31), Err(Status::Invalid));
    assert_eq!(whole.asked, []);
}

#[test]
fn path_starts_in_the_partition_of_the_sources_interface() {
    let mut whole = Whole { answer: sa, ..Whole::ready() };
    let source = Some(Address::Ip(ip("10.3.0.1")));
    let resolve = Resolve::to(source, Address::Ip(ip("10.3.0.1")));
    let (path, _) = path_of(&whole.ask(wire::Ask::Resolve(resolve))).unwrap();
    assert_eq!(path.pkey, pkey(0x0001));
    let resolve = Resolve::to(None, Address::Ip(ip("10.3.0.1")));
    let (path, source) = path_of(&whole.ask(wire::Ask::Resolve(resolve))).unwrap();
    assert_eq!((path.pkey, source), (PKey::DEFAULT, Some(Address::Ip(ip("10.1.0.1")))));
}

#[test]
fn path_to_the_own_port_needs_no_sa() {
    let mut whole = Whole::new();
    let rate = Some(Rate::from_low_bits(16));
    whole.port(1, PortFacts { rate, sm_lid: None, ..facts(1) });
    whole.knows_itself(&[]);
    let expected = Fields {
        dgid: gid("fe80::1"),
        sgid: gid("fe80::1"),
        dlid: Lid::new(1).unwrap(),
        slid: Lid::new(1).unwrap(),
        flow_label: FlowLabel::default(),
        hop_limit: 0,
        tclass: 0,
        reversible: true,
        pkey: PKey::DEFAULT,
        sl: Sl::default(),
        mtu: Mtu::from_low_bits(4),
        rate: Rate::from_low_bits(16),
        life_time: PacketLifeTime::from_low_bits(0),
    };
    let own = Address::Ip(ip("10.1.0.1"));
    let to_gid = Resolve::along(fields(|path| path.dgid = gid("fe80::1").octets()));
    for (resolve, source) in [
        (Resolve::to(None, own).from_memory(), Some(own)),
        (Resolve::to(Some(own), own), None),
        (to_gid, None),
    ] {
        assert_eq!(path_of(&whole.ask(wire::Ask::Resolve(resolve))), Ok((expected, source)));
    }
    // A partition that the port has not is for the SA to refuse, which is not there.
    let absent = fields(|path| {
        (path.dgid, path.pkey) = (gid("fe80::1").octets(), 0x8002.into());
    });
    let bytes = whole.ask(wire::Ask::Resolve(Resolve::along(absent)));
    assert_eq!(path_of(&bytes), Err(Status::NotConnected));
    assert_eq!(whole.asked, []);
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
    let bytes = whole.ask(wire::Ask::Endpoint { index: 1, port: 1 });
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
    whole.ask(wire::Ask::Resolve(Resolve::along(known.into())));
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
fn endpoints_are_described_once_the_node_knows_its_addresses() {
    let mut whole = Whole::new();
    whole.port(1, facts(1));
    let mut out = [0; MAX_REQUEST_LEN];
    let ask = wire::Ask::Endpoint { index: 1, port: 1 };
    let bytes = Request { tid: Tid([9; 8]), ask }.emit(&mut out);
    whole.acm(Input::Message { client: CLIENT, bytes });
    assert_eq!(whole.replies.len(), 0);
    whole.knows_itself(&[]);
    let bytes = whole.replies.pop_front().unwrap();
    assert!(matches!(Reply::parse(&bytes), Ok((_, Reply::Endpoint(..)))));
}
