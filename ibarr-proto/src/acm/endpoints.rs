// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Endpoints: each active port of this node with each of its partitions. A client asks for their addresses
//! and counters.
//!
//! The counters of an endpoint are those of all searches by its port, because the port counts its searches
//! once, whatever their partition. A search that ends before its port is known counts for the service alone.

use alloc::string::ToString as _;
use alloc::vec::Vec;
use core::net::IpAddr;

use ibarr_common::Instant;
use ibarr_common::ib::PortNum;
use ibarr_common::wire::acm::{self as wire, Address, Name, Names, Of, Reply, Request, Status};

use super::{Acm, Ask, ClientId, Counter, Known, LocalEndpoint, Which};
use crate::counters::Counters;
use crate::request::ResolutionId;
use crate::shares::User;

impl Acm {
    pub(super) fn seek_endpoint(
        &mut self,
        now: Instant,
        client: ClientId,
        user: User,
        request: Request,
    ) {
        let (which, addresses) = match request.ask {
            wire::Ask::Endpoint { index, port } => {
                (Which::Index { index, port: PortNum::new(port) }, Names::MAX)
            }
            // ibacm takes the number for that of the port, too, and finds endpoint N at port N alone.
            wire::Ask::Counters(Of::Index(index)) => (Which::Index { index, port: None }, 0),
            wire::Ask::Counters(Of::Address(Address::Ip(address))) => (Which::Address(address), 0),
            wire::Ask::Counters(Of::Address(Address::Name(_)) | Of::Service)
            | wire::Ask::Resolve(_) => {
                return self.reply(client, &request, &Reply::Refused(Status::SourceAddress));
            }
        };
        let id = self.begin(now, client, user, request, Known::Endpoint);
        self.ask(id, Ask::Endpoint { which, addresses });
    }

    /// The answer to [`Ask::Endpoint`].
    pub(super) fn endpoint(
        &mut self,
        id: ResolutionId,
        found: Option<&(LocalEndpoint, Vec<IpAddr>)>,
    ) {
        let Some((client, request)) = self.forget(id).and_then(|resolution| resolution.client)
        else {
            return;
        };
        let addresses = found.iter().flat_map(|(_, addresses)| addresses);
        let names: Vec<_> = addresses.filter_map(|it| Name::new(&it.to_string())).collect();
        let reply = match (request.ask, found) {
            (wire::Ask::Counters(_), Some((found, _))) => {
                let counters = self.by_port.get(&found.port);
                Reply::Counters(counters.map_or_else(|| seven(&Counters::default()), seven))
            }
            (_, Some((found, _))) => match Names::new(&names) {
                Some(names) => Reply::Endpoint(found.endpoint, names),
                None => Reply::Refused(Status::NoMemory),
            },
            (wire::Ask::Counters(_), None) => Reply::Refused(Status::SourceAddress),
            (_, None) => Reply::Refused(Status::Invalid),
        };
        self.reply(client, &request, &reply);
    }
}

/// The counters that ibacm has.
pub(super) fn seven(counters: &Counters<Counter>) -> wire::Counters {
    let count = |counter| counters.get(counter).into();
    wire::Counters {
        errors: count(Counter::Failed),
        resolved: count(Counter::Requests),
        no_data: count(Counter::NoData),
        address_queries: count(Counter::AddressFromPeer),
        address_cache: count(Counter::AddressFromMemory),
        route_queries: count(Counter::PathFromSa),
        route_cache: count(Counter::PathFromMemory),
    }
}
