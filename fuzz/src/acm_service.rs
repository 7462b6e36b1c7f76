// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Clients of ACM that send anything, at any time.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::{Gid, Lid, PKey, PathRecord, PortNum};
use ibarr_common::wire::acm::{
    self, Address, Ask as Wanted, MAX_REQUEST_LEN, Name, Of, Reply, Request, Resolve, Tid,
};
use ibarr_common::wire::path_record::PathRecordWire;
use ibarr_proto::acm::{
    Acm, Answer, Ask, ClientId, Config, Event, Hosts, Input, NAMES as LOOK_UPS, Output,
};
use ibarr_proto::paths::{self, NoStart, PortName, Search};
use ibarr_proto::places::Room;
use ibarr_proto::request::{LookupId, Outcome, RequestId, Source, UserRequest};
use ibarr_proto::requests::AddressRequest;
use ibarr_proto::shares::User;

use crate::script::Script;

/// The ACM service under any bytes of clients and any answers, in any order, which `script` encodes:
///
/// * Each message of a client has one reply, or ends the connection, by its deadline. There is no other
///   reply, and no other connection ends.
/// * A reply can be read.
/// * The driver is asked once at a time for a name, and for no more names than there is room for.
/// * A user has no more clients than its share, and nothing is left at the end.
///
/// # Panics
/// The claim does not hold for `script`.
pub fn acm_service(script: &[u8]) {
    let mut script = Script(script);
    let mut world = World::new();
    while !script.0.is_empty() {
        world.step(&mut script);
    }
    world.finish();
}

/// So few that histories reach each bound.
const CONFIG: Config =
    Config { clients: Room { all: 7, of_user: 3 }, patience: Duration::from_secs(2) };

const TARGETS: [&str; 4] = ["10.2.0.5", "10.2.0.6", "fd00:2::5", "224.0.0.1"];
const NAMES: [&str; 4] = ["node1", "NODE1", "node2", "listed"];

struct World {
    now: Instant,
    core: Acm,
    clients: BTreeMap<ClientId, Client>,
    connected: u64,
    events: Vec<Event>,
    /// Names that are looked up.
    names: Vec<Name>,
    /// Searches of which the core has spoken.
    searches: Vec<LookupId>,
}

struct Client {
    user: User,
    /// When it sent the message that has no reply yet.
    asked_at: Option<Instant>,
}

impl World {
    fn new() -> Self {
        Self {
            now: Instant::from_nanos(1),
            core: Acm::new(CONFIG),
            clients: BTreeMap::new(),
            connected: 0,
            events: Vec::new(),
            names: Vec::new(),
            searches: Vec::new(),
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 16 {
            0 | 1 => self.connect(User(u32::from(script.byte() % 3))),
            2 => {
                let count = usize::from(script.byte());
                let bytes = script.bytes(count);
                match acm::length(bytes) {
                    Ok(Some(length)) if length <= bytes.len() => {
                        self.message(script, &bytes[..length]);
                    }
                    Err(_) => self.message(script, bytes),
                    // The rest has not arrived.
                    _ => {}
                }
            }
            3..=6 => {
                let mut out = [0; MAX_REQUEST_LEN];
                let request = Request { tid: Tid::default(), ask: wanted(script) };
                let length = request.emit(&mut out).len();
                if script.byte().is_multiple_of(8) {
                    let at = usize::from(script.byte()) % length;
                    out[at] ^= script.byte();
                }
                // Another length would not be this message's.
                if acm::length(&out[..length]) == Ok(Some(length)) {
                    self.message(script, &out[..length]);
                }
            }
            7 => self.leave(script),
            8 => {
                // Perhaps one that has ended, or waits for something else.
                let Some(lookup) = script.choose(&self.searches) else { return };
                let source = script.byte().is_multiple_of(4);
                // Routing gives an address of an interface.
                let source = (!source).then(|| target(script)).filter(|ip| !ip.is_multicast());
                self.input(Input::Source { lookup, source });
            }
            9 | 10 => self.name(script),
            11 | 12 => self.answer(script),
            13 => self.meddle(script),
            14 => {
                let time = Duration::from_millis(u64::from(script.byte()).pow(2) / 8);
                self.pass(time);
            }
            _ => match script.byte() % 4 {
                0 => {
                    self.input(Input::Stop);
                    assert_eq!(self.core.load().1, 0, "a client waits for a daemon that ends");
                }
                1 => self.core.forget_names(),
                2 => self.core.set_hosts(hosts()),
                _ => {
                    if let Some(at) = self.core.poll_timeout() {
                        self.pass(at.since(self.now));
                    }
                }
            },
        }
    }

    fn connect(&mut self, user: User) {
        let client = ClientId(self.connected);
        self.connected += 1;
        self.clients.insert(client, Client { user, asked_at: None });
        self.core.handle_input(self.now, Input::Connected { client, user });
        if let Some(output) = self.core.poll_output() {
            let Output::Close(closed) = output else { panic!("{output:?}") };
            let closed = self.clients.remove(&closed).expect("connected");
            let of_root = self.clients.values().filter(|client| client.user == User::ROOT).count();
            let reserve = CONFIG.clients.all.div_ceil(8);
            assert!(closed.user != User::ROOT || of_root >= reserve, "root keeps its reserve");
        }
        let of = |user| self.clients.values().filter(|client| client.user == user).count();
        let others = self.clients.len() - of(User::ROOT);
        assert!(others < CONFIG.clients.all && self.clients.len() <= CONFIG.clients.all);
        assert!(user == User::ROOT || (1..=CONFIG.clients.of_user).contains(&of(user)));
        self.listen();
    }

    /// A client without a pending request sends a message.
    fn message(&mut self, script: &mut Script<'_>, bytes: &[u8]) {
        let idle = self.clients.iter().filter(|(_, client)| client.asked_at.is_none());
        let idle: Vec<_> = idle.map(|(client, _)| *client).collect();
        let Some(client) = script.choose(&idle) else { return };
        self.clients.get_mut(&client).expect("it is connected").asked_at = Some(self.now);
        self.input(Input::Message { client, bytes });
    }

    fn leave(&mut self, script: &mut Script<'_>) {
        let clients: Vec<_> = self.clients.keys().copied().collect();
        let Some(client) = script.choose(&clients) else { return };
        self.clients.remove(&client);
        self.input(if script.byte().is_multiple_of(2) {
            Input::Gone { client }
        } else {
            Input::NotTaken { client }
        });
    }

    /// Answers for a name, which may not have been asked for.
    fn name(&mut self, script: &mut Script<'_>) {
        let name = script.choose(&self.names).unwrap_or(name(script));
        self.names.retain(|waiting| *waiting != name);
        let found: Vec<_> = (0..script.byte() % 4).map(|_| target(script)).collect();
        self.input(Input::Addresses { name, addresses: &found });
    }

    /// Answers a question of the core, or one that it has not asked, sometimes twice.
    fn answer(&mut self, script: &mut Script<'_>) {
        let Some(event) = script.choose(&self.events) else { return };
        if !script.byte().is_multiple_of(8) {
            self.events.retain(|waiting| *waiting != event);
        }
        let answer;
        let input = match event {
            Event::Ask { id, ask } => {
                answer = World::about_node(ask, script);
                Input::Answer { id, answer: &answer }
            }
            Event::Address(request) => {
                let outcome = match script.byte() % 8 {
                    0 => Outcome::NotFound,
                    1 => Outcome::TimedOut,
                    2 => Outcome::Overloaded,
                    3 => Outcome::Unreachable,
                    _ => Outcome::Found { gid: gid(script), source: Source::Peer },
                };
                Input::Address { id: search(request.request.id), outcome }
            }
            Event::Path(request) => {
                let outcome = match script.byte() % 8 {
                    0 => paths::Outcome::NoRecord { source: paths::Source::Sa },
                    1 => paths::Outcome::Silent,
                    2 => paths::Outcome::NoSa,
                    3 => paths::Outcome::Overloaded,
                    _ => {
                        let record = PathRecord::from_octets([script.byte(); PathRecord::LEN]);
                        paths::Outcome::Found { record, source: paths::Source::Sa }
                    }
                };
                Input::Path { id: search(request.id), outcome }
            }
        };
        self.input(input);
    }

    fn about_node(ask: Ask, script: &mut Script<'_>) -> Answer {
        match (script.byte() % 8, ask) {
            (0, ask) => Answer::NotYet(ask),
            (kind, Ask::Source(_)) => {
                Answer::Source { gid: (kind > 2).then(|| gid(script)), pkey: Some(PKey::DEFAULT) }
            }
            (1, Ask::Start { .. }) => Answer::Start(Err(NoStart::NoSource)),
            (2, Ask::Start { .. }) => Answer::Start(Err(NoStart::SeveralPorts)),
            (_, Ask::Start { known, asks_sa, .. }) => {
                let device = "mlx5_0".parse().expect("a name");
                let port = PortName { device, port: PortNum::new(1).expect("not 0") };
                Answer::Start(Ok((port, if asks_sa { Search::Known(known) } else { known.into() })))
            }
            (_, Ask::Endpoint { .. }) => Answer::Endpoint(None),
        }
    }

    /// What the node may say beside the answers.
    fn meddle(&mut self, script: &mut Script<'_>) {
        let Some(any) = script.choose(&self.searches) else { return };
        self.input(if script.byte().is_multiple_of(2) {
            Input::NodeChanged
        } else {
            Input::NotRemembered(any)
        });
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.core.handle_timeout(self.now);
        self.listen();
        let is_late = |asked_at: Instant| asked_at + CONFIG.patience <= self.now;
        let late =
            self.clients.values().filter_map(|client| client.asked_at).find(|at| is_late(*at));
        assert_eq!(late, None, "a client waits for longer than its patience");
    }

    fn input(&mut self, input: Input<'_>) {
        self.core.handle_input(self.now, input);
        self.listen();
    }

    fn listen(&mut self) {
        while let Some(event) = self.core.poll_event() {
            self.searches.push(match event {
                Event::Ask { id, .. } => id,
                Event::Address(AddressRequest { request, .. }) => search(request.id),
                Event::Path(request) => search(request.id),
            });
            self.events.push(event);
        }
        while let Some(output) = self.core.poll_output() {
            match output {
                Output::Route { id, .. } => self.searches.push(id),
                Output::LookUp(name) => {
                    assert!(!self.names.contains(&name), "a name is looked up twice at once");
                    self.names.push(name);
                    assert!(
                        self.names.len() <= LOOK_UPS.under_way.all,
                        "too many names are looked up"
                    );
                }
                Output::Reply(transmit) => {
                    let client = self.clients.get_mut(&transmit.client).expect("connected");
                    assert!(client.asked_at.take().is_some(), "a second reply");
                    assert!(Reply::parse(&transmit.bytes).is_ok(), "{:02x?}", transmit.bytes);
                }
                Output::Close(client) => {
                    let client = self.clients.remove(&client).expect("connected");
                    assert!(client.asked_at.is_some(), "the client has given no reason");
                }
            }
        }
        let waiting = self.clients.values().filter(|client| client.asked_at.is_some()).count();
        assert_eq!(self.core.load(), (self.clients.len(), waiting));
    }

    /// Without any answer, every request ends.
    fn finish(&mut self) {
        self.pass(CONFIG.patience);
        assert_eq!(self.core.poll_timeout(), None, "a search without an end");
        for client in std::mem::take(&mut self.clients).into_keys() {
            self.core.handle_input(self.now, Input::Gone { client });
        }
        self.listen();
    }
}

fn wanted(script: &mut Script<'_>) -> Wanted {
    let port = script.byte() % 3;
    match script.byte() % 8 {
        0 => Wanted::Endpoint { index: script.byte(), port },
        1 => Wanted::Counters(Of::Service),
        2 => Wanted::Counters(Of::Index(script.byte())),
        3 => {
            let lid = Lid::new(u16::from(script.byte()) + 1).map_or(1, Lid::get);
            let none = PathRecordWire::from(PathRecord::from_octets([0; PathRecord::LEN]));
            let resolve = Resolve::along(PathRecordWire { dlid: lid.into(), ..none }.into());
            Wanted::Resolve(if port == 0 { resolve.by_the_sa() } else { resolve })
        }
        _ => {
            let source = (port == 1).then(|| end(script));
            let resolve = Resolve::to(source, end(script));
            Wanted::Resolve(if port == 2 { resolve.from_memory() } else { resolve })
        }
    }
}

fn end(script: &mut Script<'_>) -> Address {
    if script.byte().is_multiple_of(2) {
        Address::Ip(target(script))
    } else {
        Address::Name(name(script))
    }
}

fn name(script: &mut Script<'_>) -> Name {
    let name = script.choose(&NAMES).unwrap_or(NAMES[0]);
    Name::new(name).expect("it is short")
}

fn target(script: &mut Script<'_>) -> IpAddr {
    script.choose(&TARGETS).unwrap_or(TARGETS[0]).parse().expect("an address of the table above")
}

fn gid(script: &mut Script<'_>) -> Gid {
    let octets = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 1, script.byte()];
    Gid::new(octets).expect("a port's")
}

fn search(id: RequestId) -> LookupId {
    let RequestId::User(UserRequest::Acm(id)) = id else { panic!("{id:?} is no client's") };
    id
}

/// The list of the administrator.
fn hosts() -> Hosts {
    let listed = Name::new("listed").expect("it is short");
    let gid = "fe80::2:c903:0:1".parse().expect("a GID");
    Hosts::new(&[(Address::Name(listed), gid)]).0
}
