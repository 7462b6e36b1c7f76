// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the ACM service asks of this node: its addresses, ports and endpoints. Nothing is sent.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;
use core::net::IpAddr;

use ibarr_common::IfIndex;
use ibarr_common::ib::{Gid, Guid};
use ibarr_common::wire::acm::{Endpoint, Name, Names};

use crate::acm::{Answer, Ask, Found, NoStart, Which};
use crate::ip2gid::server::Local as _;
use crate::local_view::LocalView;
use crate::paths::{Incomplete, Paths, PortFacts, PortName, Search};

pub(super) fn answer(ask: Ask, view: &LocalView, paths: &Paths) -> Answer {
    match ask {
        Ask::Source(_) | Ask::Endpoint { .. } if !view.is_known() => Answer::NotYet(ask),
        Ask::Source(source) => Answer::Source {
            gid: view.gid_of(source, IfIndex::MIN),
            pkey: view.pkey_of(source, IfIndex::MIN),
        },
        Ask::Endpoint { which, has_addresses } => {
            Answer::Endpoint(find(paths, view, which).map(|found| {
                let wanted = has_addresses.then(|| addresses(paths, view, &found));
                (found, wanted.unwrap_or_default())
            }))
        }
        Ask::Start { is_named: true, .. } if active(paths).nth(1).is_some() => {
            Answer::Start(Err(NoStart::SeveralPorts))
        }
        Ask::Start { known, asks_sa, .. } => {
            let start = if asks_sa {
                paths.source_of(known).map(|(port, query)| (port, Search::Known(query)))
            } else {
                paths.complete_query(known)
            };
            match start {
                Err(Incomplete::NoPort) => Answer::NotYet(ask),
                start => Answer::Start(start.map_err(|_| NoStart::NoSource)),
            }
        }
    }
}

fn active(paths: &Paths) -> impl Iterator<Item = (PortName, &PortFacts)> {
    let ports = paths.ports().map(|(_, name, facts, _)| (name, facts));
    ports.filter(|(_, facts)| facts.is_active)
}

/// The endpoint that is meant. The search reads no address, so that one for a number that no endpoint has is
/// cheap: `ib_acme -e` makes 255 of them.
fn find(paths: &Paths, view: &LocalView, which: Which) -> Option<Found> {
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
fn addresses(paths: &Paths, view: &LocalView, found: &Found) -> Vec<Name> {
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
