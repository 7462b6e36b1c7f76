// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Endpoints: each active port of this node with each of its partitions. A client asks for their addresses
//! and counters.
//!
//! The counters of an endpoint are those of all searches by its port, because the port counts its searches
//! once, whatever their partition. A search that ends before its port is known counts for the service alone.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;
use core::net::IpAddr;

use ibarr_common::ib::{Gid, Guid, PortNum};
use ibarr_common::wire::acm::{
    Address, Ask as Wanted, Endpoint, Name, Names, Of, Reply, Request, Status,
};
use ibarr_common::{IfIndex, Instant};

use super::{Acm, Ask, ClientId, Known, Which, seven};
use crate::counters::Counters;
use crate::ip2gid::server::Local as _;
use crate::local_view::LocalView;
use crate::paths::{Paths, PortFacts, PortName};
use crate::request::LookupId;
use crate::shares::User;

/// An endpoint of this node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Found {
    pub port: PortName,
    /// What clients are told.
    pub endpoint: Endpoint,
}

/// The endpoint that is meant. The search reads no address, so that one for a number that no endpoint has is
/// cheap: `ib_acme -e` makes 255 of them.
pub fn find(paths: &Paths, view: &LocalView, which: Which) -> Option<Found> {
    let found = |name: PortName, facts: &PortFacts, pkey| {
        let (device, provider) = (facts.device, Name::new("ibarr")?);
        let (port, ports) = (name.port.get(), device.ports);
        let guid = device.guid.unwrap_or(Guid::new(0));
        let endpoint = Endpoint { device: guid, port, ports, pkey, provider };
        Some(Found { port: name, endpoint })
    };
    let active = || paths.ports().filter(|(_, _, facts, _)| facts.is_active);
    match which {
        Which::Index { index, port } => {
            let index = usize::from(index).checked_sub(1)?;
            let is_meant = |name: &PortName| port.is_none_or(|port| port == name.port);
            let mut all =
                active().filter(|(_, name, ..)| is_meant(name)).flat_map(|(_, name, facts, _)| {
                    facts.pkeys.iter().map(move |(_, pkey)| (name, facts, *pkey))
                });
            let (name, facts, pkey) = all.nth(index)?;
            found(name, facts, pkey)
        }
        Which::Address(address) => {
            let gid = view.gid_of(address, IfIndex::MIN)?;
            let (_, name, facts, _) = active().find(|(.., facts, _)| facts.gids.contains(&gid))?;
            found(name, facts, facts.partition(view.pkey_of(address, IfIndex::MIN))?)
        }
    }
}

/// The addresses of an endpoint, at most as many as a reply can have.
pub fn addresses(paths: &Paths, view: &LocalView, found: &Found) -> Vec<Name> {
    let Some((_, _, facts, _)) = paths.ports().find(|(_, name, ..)| *name == found.port) else {
        return Vec::new();
    };
    let gids: &[Gid] = &facts.gids;
    let of_endpoint = view
        .addresses_with(gids)
        .filter(|(_, link)| facts.partition(link.pkey) == Some(found.endpoint.pkey));
    of_endpoint.filter_map(|(address, _)| text(address)).take(Names::MAX).collect()
}

fn text(address: IpAddr) -> Option<Name> {
    let mut text = String::new();
    write!(text, "{address}").ok()?;
    Name::new(&text)
}

impl Acm {
    pub(super) fn seek_endpoint(
        &mut self,
        now: Instant,
        client: ClientId,
        user: User,
        request: Request,
    ) {
        let (which, has_addresses) = match request.ask {
            Wanted::Endpoint { index, port } => {
                (Which::Index { index, port: PortNum::new(port) }, true)
            }
            // ibacm takes the number for that of the port, too, and finds endpoint N at port N alone.
            Wanted::Counters(Of::Index(index)) => (Which::Index { index, port: None }, false),
            Wanted::Counters(Of::Address(Address::Ip(address))) => (Which::Address(address), false),
            Wanted::Counters(Of::Address(Address::Name(_)) | Of::Service) | Wanted::Resolve(_) => {
                return self.reply(client, &request, &Reply::Refused(Status::SourceAddress));
            }
        };
        let id = self.begin(now, client, user, request, Known::Endpoint, false);
        self.asks.push_back(Ask::Endpoint { id, which, has_addresses });
    }

    /// The answer to [`Ask::Endpoint`].
    pub fn endpoint(&mut self, id: LookupId, found: Option<(Found, Vec<Name>)>) {
        let Some((client, request)) = self.forget(id).and_then(|lookup| lookup.client) else {
            return;
        };
        let names;
        let reply = match (request.ask, found) {
            (Wanted::Counters(_), Some((found, _))) => {
                let counters = self.by_port.get(&found.port);
                Reply::Counters(counters.map_or_else(|| seven(&Counters::default()), seven))
            }
            (_, Some((found, addresses))) => {
                names = addresses;
                match Names::new(&names) {
                    Some(names) => Reply::Endpoint(found.endpoint, names),
                    None => Reply::Refused(Status::NoMemory),
                }
            }
            (Wanted::Counters(_), None) => Reply::Refused(Status::SourceAddress),
            (_, None) => Reply::Refused(Status::Invalid),
        };
        self.reply(client, &request, &reply);
    }
}
