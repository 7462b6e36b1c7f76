// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What each counter of `ibarr counters` counts: the doc lines of the counters, by the names under
//! which `counts` in `report.rs` lists them.

use ibarr_common::map::{Program, Reason};
use ibarr_proto::counters::Counter;
use ibarr_proto::ip2gid::{client, server};
use ibarr_proto::{acm, local_service, local_view, paths, responder, sa, shares};

use crate::{bpf, transport};

/// What a counter counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Description {
    /// In a sentence or more.
    pub text: &'static str,
    /// Whether it counts what went wrong, was dropped, or was left to others.
    pub is_error: bool,
}

/// Every counter.
pub fn descriptions() -> impl Iterator<Item = (String, Description)> {
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
        .chain(OTHERS.map(|(name, description)| (name.to_owned(), description)))
}

/// Counters that are kept elsewhere than in [`ibarr_proto::counters::Counters`].
const OTHERS: [(&str, Description); 3] = [
    (
        "log.dropped",
        error("Lines of the log that were lost: its place was full, closed, or read too slowly."),
    ),
    (
        "transport.query-dropped",
        error(
            "Queries of peers that the kernel dropped at the server sockets, because there was no room or they were damaged.",
        ),
    ),
    (
        "transport.reply-not-received",
        error(
            "Replies of peers that the kernel dropped at the query sockets, because there was no room.",
        ),
    ),
];

const fn normal(text: &'static str) -> Description {
    Description { text, is_error: false }
}

const fn error(text: &'static str) -> Description {
    Description { text, is_error: true }
}

fn under<C: Counter>(prefix: &'static str) -> impl Iterator<Item = (String, Description)> {
    of::<C>().map(move |(name, description)| (format!("{prefix}.{name}"), description))
}

fn of<C: Counter>() -> impl Iterator<Item = (String, Description)> {
    let describe = |counter: &C| {
        let (text, is_error) = (counter.describe(), counter.is_error());
        (counter.to_string(), Description { text, is_error })
    };
    C::ALL.iter().map(describe)
}

/// As at [`Reason`], about packets that may be a query.
fn of_reason(reason: Reason) -> Description {
    match reason {
        Reason::Answered => normal("Queries answered (tc, xdp), or passed to the daemon (guard)."),
        Reason::LeaseOver => error("Queries passed on because the daemon's lease had ended."),
        Reason::InterfaceOff => {
            error("Queries passed on because answering is off on their interface.")
        }
        Reason::OtherHost => {
            error("Queries that were not addressed to this host at the link layer.")
        }
        Reason::Vlan => error("Queries with a VLAN tag."),
        Reason::IpHeader => {
            error("Queries whose IP header has options, is of a fragment, or is malformed.")
        }
        Reason::UdpHeader => error("Queries whose UDP header does not fit the datagram."),
        Reason::Checksum => {
            error("Queries whose UDP checksum is wrong, missing over IPv6, or not yet filled in.")
        }
        Reason::Malformed => error("Datagrams to the port that are no legal query."),
        Reason::Destination => error("Queries for another address than their destination."),
        Reason::Source => error(
            "Queries whose source cannot ask: not unicast, loopback, one of this node's addresses, or port 0.",
        ),
        Reason::NotAllowed => error("Queries whose source is not in `allow`."),
        Reason::Unknown => error("Queries for an address that is not in the GID cache."),
        Reason::Replaced => error("Queries that found their entry while it was being replaced."),
        Reason::NoRoute => error(
            "Queries whose route back leaves by another interface, or is not known to the program.",
        ),
        Reason::NoRoom => error("Queries for whose reply the kernel had no room."),
    }
}
