// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What each counter of `ibarr counters` counts: the doc lines of the counters, by the names under
//! which `counts` in `report.rs` lists them.

use ibarr_common::map::{Program, Reason};
use ibarr_proto::counters::Counter;
use ibarr_proto::ip2gid::{client, server};
use ibarr_proto::{acm, local_service, local_view, paths, responder, sa, shares};

use crate::{bpf, transport};

/// Every counter, with its description in a sentence or more.
pub fn descriptions() -> impl Iterator<Item = (String, &'static str)> {
    let of_users = shares::Kind::ALL.into_iter().flat_map(|kind| {
        of::<shares::Counter>().map(move |(name, text)| (format!("users.{kind}.{name}"), text))
    });
    let of_programs = Program::ALL.into_iter().flat_map(|program| {
        let name = move |reason| (format!("bpf.{}", bpf::counter_name(program, reason)), reason);
        Reason::ALL.into_iter().map(name).map(|(name, reason)| (name, of_reason(reason)))
    });
    under::<server::Counter>("ip2gid.server")
        .chain(under::<client::Counter>("ip2gid.client"))
        .chain(under::<local_service::Counter>("local-service"))
        .chain(under::<paths::Counter>("paths"))
        .chain(under::<sa::Counter>("sa"))
        .chain(under::<acm::Counter>("acm"))
        .chain(of_users)
        .chain(under::<local_view::Counter>("local-view"))
        .chain(under::<responder::Counter>("responder"))
        .chain(of_programs)
        .chain(of::<transport::Counter>())
        .chain(OTHERS.map(|(name, text)| (name.to_owned(), text)))
}

/// Counters that are kept elsewhere than in [`ibarr_proto::counters::Counters`].
const OTHERS: [(&str, &str); 3] = [
    (
        "log.dropped",
        "Lines of the log that were lost: its place was full, closed, or read too slowly.",
    ),
    (
        "transport.query-dropped",
        "Queries of peers that the kernel dropped at the server sockets, because there was no room or they were damaged.",
    ),
    (
        "transport.reply-not-received",
        "Replies of peers that the kernel dropped at the query sockets, because there was no room.",
    ),
];

fn under<C: Counter>(prefix: &'static str) -> impl Iterator<Item = (String, &'static str)> {
    of::<C>().map(move |(name, text)| (format!("{prefix}.{name}"), text))
}

fn of<C: Counter>() -> impl Iterator<Item = (String, &'static str)> {
    C::ALL.iter().map(|counter| (counter.to_string(), counter.describe()))
}

/// As at [`Reason`], about packets that may be a query.
fn of_reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Answered => "Queries answered (tc, xdp), or passed to the daemon (guard).",
        Reason::LeaseOver => "Queries passed on because the daemon's lease had ended.",
        Reason::InterfaceOff => "Queries passed on because answering is off on their interface.",
        Reason::OtherHost => "Queries that were not addressed to this host at the link layer.",
        Reason::Vlan => "Queries with a VLAN tag.",
        Reason::IpHeader => {
            "Queries whose IP header has options, is of a fragment, or is malformed."
        }
        Reason::UdpHeader => "Queries whose UDP header does not fit the datagram.",
        Reason::Checksum => {
            "Queries whose UDP checksum is wrong, missing over IPv6, or not yet filled in."
        }
        Reason::Malformed => "Datagrams to the port that are no legal query.",
        Reason::Destination => "Queries for another address than their destination.",
        Reason::Source => {
            "Queries whose source cannot ask: not unicast, loopback, one of this node's addresses, or port 0."
        }
        Reason::NotAllowed => "Queries whose source is not in `allow`.",
        Reason::Unknown => "Queries for an address that is not in the GID cache.",
        Reason::Replaced => "Queries that found their entry while it was being replaced.",
        Reason::NoRoute => {
            "Queries whose route back leaves by another interface, or is not known to the program."
        }
        Reason::NoRoom => "Queries for whose reply the kernel had no room.",
    }
}
