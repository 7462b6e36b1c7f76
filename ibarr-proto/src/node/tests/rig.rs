// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A node whose kernel, routing and peers the test plays.

use super::*;

/// A node; the test plays kernel, routing and peers.
pub(super) struct Rig {
    pub(super) node: Node,
    pub(super) now: Instant,
    pub(super) answered: Vec<(u64, Outcome)>,
    pub(super) transmits: Vec<client::Transmit>,
    pub(super) sought: Vec<client::Candidate>,
    pub(super) unrouted: VecDeque<client::Candidate>,
}

impl Rig {
    pub(super) fn tell(&mut self, input: Input<'_>) {
        self.node.handle_input(self.now, input);
    }

    pub(super) fn new() -> Self {
        Self::with(16_384)
    }

    pub(super) fn with(max_flights: usize) -> Self {
        let mut rig = Self::unknown(max_flights);
        rig.knows_itself();
        rig
    }

    /// It does not know its own addresses.
    pub(super) fn unknown(max_flights: usize) -> Self {
        let max_flights = NonZeroUsize::new(max_flights).unwrap();
        let settings = client::Settings { max_flights, ..client::Settings::default() };
        let config = client::Config::new(settings).unwrap();
        let config = Config { client: config, ..Config::default() };
        let mut rig = Self {
            node: Node::new(config, ChaCha12Rng::seed_from_u64(1)),
            now: Instant::from_nanos(1_000_000_000_000),
            answered: Vec::new(),
            transmits: Vec::new(),
            sought: Vec::new(),
            unrouted: VecDeque::new(),
        };
        let opened = local_service::Input::Opened { port_id: PortId(180), is_member: true };
        rig.tell(Input::LocalService(opened));
        assert_eq!(rig.told(), "timeout, nudge");
        for pause in FOLLOW_UPS {
            rig.tell(Input::LocalService(local_service::Input::Nudged(Nudged::Done)));
            rig.pass(pause);
            assert_eq!(rig.told(), "nudge");
        }
        rig.tell(Input::LocalService(local_service::Input::Nudged(Nudged::Done)));
        rig.pass(Duration::from_millis(1));
        rig
    }

    /// InfiniBand interface 4 has 10.1.0.1 and fe80::5, Ethernet interface 5 has 192.0.2.1.
    pub(super) fn knows_itself(&mut self) {
        let address = |ifindex, address| {
            let ifindex = IfIndex::new(ifindex).unwrap();
            let entry = InterfaceAddress::new(ifindex, ip(address), 24, None, Dad::Passed);
            View::ListedAddress(entry)
        };
        let mut hwaddr = [0; 20];
        hwaddr[4..].copy_from_slice(&gid("fe80::1").octets());
        for input in [
            View::DumpStarted,
            // The egress of the kernel's requests, and another one.
            View::ListedLink(Link { up: false, ..link(2, LinkType::INFINIBAND, &[0; 20]) }),
            View::ListedLink(Link { up: false, ..link(3, LinkType::INFINIBAND, &[0; 20]) }),
            View::ListedLink(link(4, LinkType::INFINIBAND, &hwaddr)),
            View::ListedLink(link(5, LinkType::ETHERNET, &hwaddr[..6])),
            address(4, "10.1.0.1"),
            address(4, "fe80::5"),
            address(5, "192.0.2.1"),
            View::DumpDone,
        ] {
            self.tell(Input::View(input));
        }
        self.pass(Duration::from_millis(1));
    }

    pub(super) fn ask(&mut self, id: u64, target: &str, egress: Option<u32>) {
        self.tell(Input::Resolve(self.request(id, target, egress)));
        self.drain();
    }

    pub(super) fn request(&self, id: u64, target: &str, egress: Option<u32>) -> AddressRequest {
        let deadline = self.now + Duration::from_secs(3);
        let id = UserRequest::Control(id);
        AddressRequest::of_user(id, User(7), question(target, egress), deadline)
    }

    pub(super) fn kernel_asks(&mut self, seq: u32, target: &str) {
        self.kernel_request(seq, target);
        self.drain();
    }

    pub(super) fn kernel_request(&mut self, seq: u32, target: &str) {
        let request = ResolveIp { ifindex: IfIndex::new(2).unwrap(), target: ip(target) };
        let bytes = Request::ResolveIp(request).emit(Seq(seq));
        let bytes = bytes.as_ref();
        let input = local_service::Input::Datagram { sender: Sender::Kernel, bytes, cut: false };
        self.tell(Input::LocalService(input));
        self.tell(Input::LocalService(local_service::Input::Drained));
    }

    pub(super) fn route(&mut self, target: &str, egress: Option<u32>, route: Option<(u32, &str)>) {
        let route = route.map(|(ifindex, next_hop)| Route {
            ifindex: IfIndex::new(ifindex).unwrap(),
            next_hop: ip(next_hop),
        });
        let question = question(target, egress);
        let asked = self.sought.iter().rfind(|asked| asked.to_string() == question.to_string());
        let candidate = asked.copied().unwrap_or(question.into());
        self.unrouted.retain(|&unrouted| unrouted != candidate);
        self.tell(Input::Client(client::Input::Route { candidate, route }));
        self.drain();
    }

    /// Each through the kernel's interface and one gateway.
    pub(super) fn answer_routes(&mut self) {
        while let Some(candidate) = self.unrouted.pop_front() {
            let route = Route { ifindex: IfIndex::new(2).unwrap(), next_hop: ip("10.1.0.254") };
            let input = client::Input::Route { candidate, route: Some(route) };
            self.tell(Input::Client(input));
            self.drain();
        }
    }

    /// The peer answers the last query.
    pub(super) fn reply(&mut self, its_gid: &str) {
        let query = self.transmits.pop().unwrap();
        let asked = Query::parse(query.payload.as_ref()).unwrap();
        let (version, msg_id) = (asked.version(), asked.msg_id());
        let payload = Reply { version, msg_id, gid: Some(gid(its_gid)) }.emit();
        let input = client::Input::Datagram {
            socket: query.socket,
            from: SocketAddr::new(query.to.ip(), query.to.port()),
            ingress: IfIndex::new(2).unwrap(),
            payload: payload.as_ref(),
        };
        self.tell(Input::Client(input));
        self.transmits.clear();
        self.drain();
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.node.handle_timeout(self.now);
        self.drain();
    }

    pub(super) fn drain(&mut self) {
        while let Some(output) = self.node.outputs.pop_front() {
            match output {
                Output::Answered { id: UserRequest::Control(id), outcome } => {
                    self.answered.push((id, outcome));
                }
                Output::PathAnswered { .. } => {}
                output => panic!("{output:?}"),
            }
        }
        while let Some(output) = self.node.client.poll_transmit() {
            match output {
                client::Output::Route(candidate) => {
                    self.sought.push(candidate);
                    self.unrouted.push_back(candidate);
                }
                client::Output::Query(transmit) => self.transmits.push(transmit),
                client::Output::Socket(SocketEvent::Open(socket)) => {
                    self.tell(Input::Client(client::Input::SocketOpened { socket }));
                }
                client::Output::Neighbour(..) | client::Output::Socket(SocketEvent::Close(_)) => {}
            }
        }
    }

    /// The answers to the driver since the last call.
    pub(super) fn answered(&mut self) -> Vec<(u64, Outcome)> {
        std::mem::take(&mut self.answered)
    }

    /// The questions for route look-ups.
    pub(super) fn routes(&mut self) -> String {
        self.unrouted
            .drain(..)
            .map(|candidate| candidate.to_string())
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// The queries sent since the last reply.
    pub(super) fn sent(&self) -> String {
        let sent = self.transmits.iter().map(|transmit| {
            let egress = transmit.egress.map_or("any".to_owned(), |egress| egress.to_string());
            format!("{} by {egress}", transmit.to.ip())
        });
        let mut sent: Vec<_> = sent.collect();
        sent.dedup();
        sent.join(", ")
    }

    /// The actions for the kernel.
    pub(super) fn told(&mut self) -> String {
        let told = std::iter::from_fn(|| self.node.local_service.poll_transmit()).map(|transmit| {
            let Transmit::Message(message) = transmit else {
                return "nudge".to_owned();
            };
            let message = messages(message.as_ref()).next().unwrap().unwrap();
            match Answer::parse(&message) {
                Ok(Answer::Gid(gid)) => format!("{} is {gid}", message.seq().0),
                other => {
                    assert!(message.is_request(), "{other:?}");
                    "timeout".to_owned()
                }
            }
        });
        told.collect::<Vec<_>>().join(", ")
    }
}

pub(super) fn question(target: &str, egress: Option<u32>) -> Question {
    Question::new(ip(target), egress.and_then(IfIndex::new)).unwrap()
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}

/// An interface that is up.
pub(super) fn link(ifindex: u32, link_type: LinkType, hwaddr: &[u8]) -> Link {
    Link {
        ifindex: IfIndex::new(ifindex).unwrap(),
        name: InterfaceName::new(format!("if{ifindex}").as_bytes()).unwrap(),
        link_type,
        hwaddr: HwAddr::new(hwaddr).unwrap(),
        up: true,
        bonding: Bonding::None,
        altnames: AltNames::default(),
        vrf: None,
        pkey: None,
    }
}
