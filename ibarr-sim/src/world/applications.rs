// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Applications that speak ACM, beside the kernel's callers of the same machine: those that behave, and others that
//! send any bytes, leave while they wait, and are too many. For each message it is claimed that it has one reply by
//! its deadline, or ends the connection if it is wrong, whatever the peer and the SA do; and that users keep to
//! their shares.

use std::net::IpAddr;

use ibarr_common::ib::{Gid, PathRecord};
use ibarr_common::wire::acm::{
    self, Address, Ask, MAX_REQUEST_LEN, Name, Of, Reply, Request, Resolve, Tid,
};
use ibarr_common::wire::path_record::PathRecordWire;
use ibarr_proto::acm::{ClientId, Input, NAMES, Output};
use ibarr_proto::ip2gid::Question;
use ibarr_proto::node;
use ibarr_proto::shares::User;

use super::process::{Daemon, Inbox};
use super::{What, World};
use crate::dice::{ms, secs};

const USER: User = User(1001);

/// As many clients of one well-behaved user as may wait at once.
const CLIENTS: usize = 8;

/// Few, so that histories repeat them.
const HOSTS: [&str; 3] = ["node1", "NODE1", "node2"];

impl World {
    /// A client asks for a path to the target of a question, or for the port with a LID, or for counters.
    pub(super) fn application_asks(&mut self, id: usize, daemon: &mut Daemon, question: Question) {
        self.no_application_is_forgotten(id, daemon);
        let (ask, target) = self.ask(Address::Ip(question.target()));
        let target = target.then_some(question.target());
        let client = match daemon.applications.idle(USER) {
            Some(client) => client,
            None if daemon.applications.of(USER) < CLIENTS => self.connects(daemon, USER),
            None => return,
        };
        let mut out = [0; MAX_REQUEST_LEN];
        let bytes = Request { tid: Tid::default(), ask }.emit(&mut out);
        if let Some(it) = daemon.applications.clients.get_mut(&client) {
            it.asked = Some((self.now, target));
        }
        let input = Input::Message { client, bytes };
        daemon.core.handle_input(self.now, node::Input::Acm(input));
    }

    /// Draws a question; says whether it asks for the path to `to`.
    fn ask(&mut self, to: Address) -> (Ask, bool) {
        let lid = u16::try_from(1 + self.dice.below(40)).unwrap_or(1);
        let none = PathRecordWire::from(PathRecord::from_octets([0; PathRecord::LEN]));
        let to_lid = Resolve::along(PathRecordWire { dlid: lid.into(), ..none }.into());
        let to_address = Resolve::to(None, to);
        match self.dice.below(8) {
            0 => (Ask::Endpoint { index: 1, port: 1 }, false),
            1 => {
                let of = if self.dice.coin() { Of::Service } else { Of::Index(1) };
                (Ask::Counters(of), false)
            }
            2 => (Ask::Resolve(to_lid), false),
            3 => (Ask::Resolve(to_lid.by_the_sa()), false),
            4 => (Ask::Resolve(to_address.from_memory()), true),
            _ => (Ask::Resolve(to_address), true),
        }
    }

    fn connects(&mut self, daemon: &mut Daemon, user: User) -> ClientId {
        let client = daemon.applications.connect(user);
        let input = Input::Connected { client, user };
        daemon.core.handle_input(self.now, node::Input::Acm(input));
        client
    }

    /// Clients of several users do what any process may.
    pub(super) fn applications_misbehave(&mut self, id: usize, daemon: &mut Daemon) {
        for _ in 0..=self.dice.below(16) {
            let Some(client) = daemon.applications.any(&mut self.dice) else {
                self.connects(daemon, USER);
                continue;
            };
            let now = self.now;
            match self.dice.below(12) {
                0..=4 => {
                    let user = *self.dice.pick(&[User::ROOT, USER, User(1002)]);
                    self.connects(daemon, user);
                }
                5 => {
                    daemon.applications.clients.remove(&client);
                    daemon.applications.left.push(client);
                    let is_gone = self.dice.coin();
                    let input =
                        if is_gone { Input::Gone { client } } else { Input::NotTaken { client } };
                    daemon.core.handle_input(now, node::Input::Acm(input));
                }
                // A driver reads no message of a client that waits.
                _ if daemon.applications.waits(client) => {}
                n => {
                    let bytes = if n == 6 { self.dice.bytes(80) } else { self.odd_request(id) };
                    let read = acm::length(&bytes);
                    let length = read.unwrap_or(Some(bytes.len()));
                    let message = length.and_then(|length| bytes.get(..length));
                    if let Some(it) = daemon.applications.clients.get_mut(&client) {
                        it.is_wrong |= message.is_none_or(|bytes| Request::parse(bytes).is_err());
                        it.asked = message.map(|_| (now, None));
                    }
                    let input = match message {
                        Some(bytes) => Input::Message { client, bytes },
                        None => Input::Part { client },
                    };
                    daemon.core.handle_input(now, node::Input::Acm(input));
                }
            }
        }
    }

    /// A request for the path between names or addresses, of which some bytes may be others.
    fn odd_request(&mut self, id: usize) -> Vec<u8> {
        let [source, target] = [(), ()].map(|()| {
            let name = Name::new(self.dice.pick::<&str>(&HOSTS)).filter(|_| self.dice.coin());
            name.map_or_else(|| Address::Ip(self.any_target(id)), Address::Name)
        });
        let to_both = Ask::Resolve(Resolve::to(Some(source), target));
        let ask = if self.dice.coin() { self.ask(target).0 } else { to_both };
        let mut out = [0; MAX_REQUEST_LEN];
        let mut bytes = Request { tid: Tid::default(), ask }.emit(&mut out).to_vec();
        while self.dice.once_in(3) {
            let at = self.dice.below(bytes.len());
            bytes[at] = self.dice.byte();
        }
        bytes
    }

    /// Carries out what the daemon does for its clients.
    pub(super) fn serve_application(&mut self, id: usize, daemon: &mut Daemon, output: Output) {
        let (now, awake) = (self.now, self.machines[id].troubles.end());
        let claim = match output {
            Output::Route(target) => {
                let family = |own: &IpAddr| own.is_ipv4() == target.target().is_ipv4();
                let own = daemon.core.node().view().owned().filter(|own| own.gid.is_some());
                let source = own.map(|own| own.address).find(family);
                let input = Input::Source { target, source };
                return daemon.core.handle_input(now, node::Input::Acm(input));
            }
            Output::Reply(transmit) if daemon.applications.left.contains(&transmit.client) => {
                return;
            }
            Output::Reply(transmit) => {
                let client = daemon.applications.clients.get_mut(&transmit.client);
                let asked = client.and_then(|client| client.asked.take());
                let late = asked.map(|(since, _)| now.since(awake.max(since + secs(2))));
                self.claims.counts.applications_told += 1;
                let reply = Reply::parse(&transmit.bytes);
                if let (Ok((_, Reply::Paths(paths, _))), Some((since, Some(target)))) =
                    (&reply, asked)
                {
                    for dgid in paths
                        .as_slice()
                        .iter()
                        .filter_map(|path| Gid::new(PathRecordWire::from(path.record).dgid))
                    {
                        self.check_age(id, target, dgid, since);
                    }
                }
                match (reply, late) {
                    (Err(error), _) => format!("a client of ACM is sent no reply: {error:?}"),
                    (_, None) => "a client of ACM that has not asked is sent a reply".to_owned(),
                    (_, Some(late)) if late > ms(100) => {
                        format!("a client of ACM gets its reply {late:?} late")
                    }
                    _ => return,
                }
            }
            Output::Resolve(name) => {
                let life = self.machines[id].life;
                let at = now + self.dice.within(ms(1)..secs(6));
                self.at(at, What::Named(id, life, name));
                let names = &mut daemon.applications.names;
                let is_twice = names.contains(&name);
                names.push(name);
                if !is_twice && names.len() <= NAMES.under_way.all {
                    return;
                }
                format!("{name:?} is looked up twice at once, or one of too many")
            }
            Output::Close(client) if daemon.applications.close(client) => return,
            Output::Close(client) => format!("{client:?} of ACM has given no reason to end it"),
        };
        self.claims.breaks(now, [Some(id), None], claim);
    }

    /// The resolver gives the addresses of a name.
    pub(super) fn named(&mut self, id: usize, life: u32, name: Name) {
        if self.machines[id].life == life {
            let addresses = (0..self.dice.below(4)).map(|_| self.any_target(id)).collect();
            self.put(id, Inbox::Named(name, addresses));
        }
    }

    pub(super) fn name_is_known(&mut self, daemon: &mut Daemon, name: Name, found: &[IpAddr]) {
        daemon.applications.names.retain(|waiting| *waiting != name);
        let input = Input::Addresses { name, addresses: found };
        daemon.core.handle_input(self.now, node::Input::Acm(input));
    }

    /// Checks at the end of a turn that the daemon knows its clients and those that wait.
    pub(super) fn check_applications(&mut self, id: usize, daemon: &mut Daemon) {
        let applications = &mut daemon.applications;
        applications.newcomers = 0;
        applications.left.clear();
        let is = daemon.core.node().acm().load();
        let expected = (applications.clients.len(), applications.waiting());
        let claim = if is != expected {
            format!("{is:?} clients of ACM are connected and wait, not {expected:?}")
        } else if applications.are_unfair(self.weather.config.acm.clients) {
            "a user has more than its share of clients of ACM".to_owned()
        } else {
            return;
        };
        self.claims.breaks(self.now, [Some(id), None], claim);
    }

    /// Checks that no client waits that should have its reply.
    pub(super) fn no_application_is_forgotten(&mut self, id: usize, daemon: &Daemon) {
        let awake = self.machines[id].troubles.end();
        if let Some(client) = daemon.applications.overdue(self.now, awake) {
            let text = format!("{client:?} of ACM gets no reply");
            self.claims.breaks(self.now, [Some(id), None], text);
        }
    }
}
