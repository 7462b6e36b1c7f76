// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Applications that speak ACM, beside the kernel's callers of the same machine. For each request it is claimed
//! that it has one reply by its deadline, whatever the peer and the SA do.

use std::net::IpAddr;

use ibarr_common::ib::{Gid, PathRecord};
use ibarr_common::wire::acm::{Address, Ask, MAX_REQUEST_LEN, Of, Reply, Request, Resolve, Tid};
use ibarr_common::wire::path_record::PathRecordWire;
use ibarr_proto::acm::{Input, Output};
use ibarr_proto::ip2gid::Question;
use ibarr_proto::node;
use ibarr_proto::shares::User;

use super::World;
use super::process::Daemon;
use crate::dice::{ms, secs};
use crate::record::Id;

const USER: User = User(1001);

impl World {
    /// A client asks for a path to the target of a question, or for the port with a LID, or for counters.
    pub(super) fn application_asks(&mut self, id: Id, daemon: &mut Daemon, question: Question) {
        self.no_application_is_forgotten(id, daemon);
        let now = self.now;
        let lid = u16::try_from(1 + self.dice.below(40)).unwrap_or(1);
        let none = PathRecordWire::from(PathRecord::from_octets([0; PathRecord::LEN]));
        let to_lid = Resolve::along(PathRecordWire { dlid: lid.into(), ..none }.into());
        let to_address = Resolve::to(None, Address::Ip(question.target()));
        let (ask, target) = match self.dice.below(8) {
            0 => (Ask::Endpoint { index: 1, port: 1 }, None),
            1 => (Ask::Counters(Of::Index(1)), None),
            2 => (Ask::Resolve(to_lid), None),
            3 => (Ask::Resolve(to_lid.by_the_sa()), None),
            4 => (Ask::Resolve(to_address.from_memory()), Some(question.target())),
            _ => (Ask::Resolve(to_address), Some(question.target())),
        };
        let (applications, core) = (&mut daemon.applications, &mut daemon.core);
        let Some((client, is_new)) = applications.ask(now, target) else { return };
        if is_new {
            core.handle_input(now, node::Input::Acm(Input::Connected { client, user: USER }));
        }
        let mut out = [0; MAX_REQUEST_LEN];
        let bytes = Request { tid: Tid::default(), ask }.emit(&mut out);
        core.handle_input(now, node::Input::Acm(Input::Message { client, bytes }));
    }

    /// Carries out what the daemon does for its clients.
    pub(super) fn serve_application(&mut self, id: Id, daemon: &mut Daemon, output: Output) {
        let (now, awake) = (self.now, self.machines[id].troubles.end());
        let claim = match output {
            Output::Route { id: lookup, target } => {
                let family = |own: &IpAddr| own.is_ipv4() == target.is_ipv4();
                let own = daemon.core.node().view().owned().filter(|own| own.gid.is_some());
                let source = own.map(|own| own.address).find(family);
                let input = Input::Source { lookup, source };
                return daemon.core.handle_input(now, node::Input::Acm(input));
            }
            Output::Reply(transmit) => {
                let asked = daemon.applications.end(transmit.client);
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
            Output::LookUp(_) | Output::Close(_) => {
                format!("no client of ACM has given a reason for {output:?}")
            }
        };
        self.claims.breaks(now, [Some(id), None], claim);
    }

    /// Checks that no client waits that should have its reply.
    pub(super) fn no_application_is_forgotten(&mut self, id: Id, daemon: &Daemon) {
        let awake = self.machines[id].troubles.end();
        if let Some(client) = daemon.applications.overdue(self.now, awake) {
            let text = format!("{client:?} of ACM gets no reply");
            self.claims.breaks(self.now, [Some(id), None], text);
        }
    }
}
