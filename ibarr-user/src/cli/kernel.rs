// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The commands that work on the responder's pins, without a daemon.

use std::path::Path;

use ibarr_common::ib::{Gid, IpoibHwAddr};
use ibarr_common::map::{self, Interface, Origin};
use ibarr_common::{IfIndex, Instant};
use ibarr_proto::ip2gid::Family;
use ibarr_proto::ip2gid::client::mirror::Element;
use ipnet::IpNet;
use nix::net::if_::if_indextoname;
use nix::unistd::geteuid;

use super::{Exit, ask};
use crate::bpf::{self, Detached};
use crate::causes::Fault;
use crate::control::messages::{
    Body, Failure, FailureKind, KernelEntry, KernelInterface, KernelLearned, KernelMaps,
    KernelNeighbour, KernelRoute, Millis,
};
use crate::sys::clock;

/// Prints the contents of the programs' maps.
pub(super) fn show(dir: &Path, json: bool) -> Exit {
    let left = match bpf::read(dir) {
        Ok(Some(left)) => left,
        Ok(None) => {
            let message = format!(
                "{}: no maps here; ibarr status says why the programs are not loaded",
                dir.display()
            );
            return ask::fail(Failure { kind: FailureKind::Unreachable, message }, json);
        }
        Err(error) => return ask::fail(failure(dir, &error, geteuid().is_root()), json),
    };
    ask::show(Body::Kernel { kernel: document(&left) }, json)
}

/// Removes all that daemons have left in the kernel.
pub(super) fn detach(dir: &Path, json: bool) -> Exit {
    let done = match bpf::detach(dir) {
        Ok(Detached { was_there: false, .. }) => format!("{}: nothing there", dir.display()),
        Ok(Detached { left, .. }) if left.is_empty() => {
            format!("{}: all detached and removed", dir.display())
        }
        Ok(Detached { left, .. }) => {
            let left: Vec<_> = left.iter().map(|path| format!("{}", path.display())).collect();
            format!(
                "{}: everything of ibarr detached and removed; left alone, because it is not ibarr's: {}",
                dir.display(),
                left.join(", ")
            )
        }
        Err(error) => return ask::fail(failure(dir, &error, geteuid().is_root()), json),
    };
    ask::show(Body::Done { done }, json)
}

fn document(left: &bpf::PinnedMaps) -> KernelMaps {
    const ALL_IPV4: u32 = Interface::ANSWER_IPV4;
    const ALL_IPV6: u32 = Interface::ANSWER_IPV6;
    const ROUTED_IPV4: u32 = Interface::ROUTED_IPV4;
    const ROUTED_IPV6: u32 = Interface::ROUTED_IPV6;
    let contents = &left.maps;
    let lease_end = Instant::from_nanos(contents.cfg.lease_end);
    KernelMaps {
        lease_ends_in_ms: lease_end.since(clock::now()).into(),
        restricted: contents.cfg.restricts(),
        interfaces: contents
            .interfaces
            .iter()
            .map(|(ifindex, interface)| KernelInterface {
                ifindex: *ifindex,
                name: contents
                    .is_here
                    .then(|| if_indextoname(ifindex.get()).ok()?.into_string().ok())
                    .flatten(),
                ipv4: interface.switches & (ALL_IPV4 | ROUTED_IPV4) != 0,
                ipv6: interface.switches & (ALL_IPV6 | ROUTED_IPV6) != 0,
                only_routed: [
                    (Family::V4, ALL_IPV4, ROUTED_IPV4),
                    (Family::V6, ALL_IPV6, ROUTED_IPV6),
                ]
                .into_iter()
                .filter(|(_, all, routed)| interface.switches & (all | routed) == *routed)
                .map(|(family, ..)| family)
                .collect(),
            })
            .collect(),
        routes: contents
            .routes
            .iter()
            .map(|(bits, prefix, route)| {
                let (address, bits) = prefix.prefix(*bits);
                let bits = u8::try_from(bits).unwrap_or(u8::MAX);
                KernelRoute {
                    ifindex: prefix.ifindex,
                    to: IpNet::new(address, bits).unwrap_or(address.into()).trunc(),
                    via: route.gateway(),
                    elsewhere: !route.is_here(),
                }
            })
            .collect(),
        neighbours: contents
            .neighbours
            .iter()
            .map(|(key, neighbour)| KernelNeighbour {
                ifindex: key.ifindex,
                ip: map::address(key.address),
                hwaddr: IpoibHwAddr::parse(&neighbour.hwaddr)
                    .map_or("none".to_owned(), |hwaddr| hwaddr.to_string()),
            })
            .collect(),
        learned: learned(&left.learned),
        entries: contents
            .entries
            .iter()
            .map(|entry| KernelEntry {
                ip: entry.key.ip(),
                scope: IfIndex::new(entry.key.scope),
                gid: Gid::new(entry.gid),
                ifindex: entry.ifindex,
                origin: origin(entry.origin),
            })
            .collect(),
    }
}

fn origin(of: u32) -> String {
    match Origin::new(of) {
        Some(Origin::Local) => "local".to_owned(),
        Some(Origin::Static) => "static".to_owned(),
        None => format!("unknown ({of})"),
    }
}

/// Without expired answers, which the next daemon would not use.
fn learned(elements: &[Element]) -> Vec<KernelLearned> {
    let now = clock::now();
    let mut learned: Vec<_> = elements
        .iter()
        .filter_map(|element| {
            let (question, cached) = element.parse()?;
            let from = map::address(element.value.source);
            Some(KernelLearned {
                ip: question.target(),
                ifindex: question.egress(),
                gid: cached.gid?,
                expires_in_ms: cached.expires_at.since(now).into(),
                from: (!from.is_unspecified()).then_some(from),
            })
        })
        .filter(|learned| learned.expires_in_ms != Millis::default())
        .collect();
    learned.sort_by_key(|learned| (learned.ip, learned.ifindex));
    learned
}

/// The remedy of the error is that of a daemon; a user needs root.
fn failure(dir: &Path, error: &bpf::Error, is_root: bool) -> Failure {
    let kind = if error.is_permission() && !is_root {
        let message = format!("{}: not permitted; run this as root", dir.display());
        return Failure { kind: FailureKind::Permission, message };
    } else if error.is_permission() {
        FailureKind::Permission
    } else if error.is_taken() {
        FailureKind::Busy
    } else if error.is_of_the_directory() {
        FailureKind::Usage
    } else {
        FailureKind::Internal
    };
    Failure { kind, message: Fault::from(error).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_has_a_word_or_is_shown_as_a_number() {
        let origins = [u32::from(Origin::Local), u32::from(Origin::Static), 9].map(origin);
        assert_eq!(origins, ["local", "static", "unknown (9)"]);
    }

    #[test]
    fn user_without_rights_is_told_to_be_root() {
        let denied = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let error = bpf::Error::Permission(Box::new(denied));
        let said = |is_root| failure(Path::new("/pins"), &error, is_root).message;
        assert_eq!(said(false), "/pins: not permitted; run this as root");
        assert!(said(true).contains("CAP_BPF"), "{}", said(true));
    }
}
