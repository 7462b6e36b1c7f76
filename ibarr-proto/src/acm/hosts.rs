// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! GIDs of names and addresses that the administrator has listed.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};

use ibarr_common::ib::Gid;
use ibarr_common::wire::acm::{Address, Name};

/// A table that is read far more often than it is replaced: sorted, in three pieces of memory. An address takes
/// 32 bytes, a name 24 and its letters.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Hosts {
    /// The names in lower case, in order, one after the other.
    text: Box<str>,
    names: Box<[Named]>,
    addresses: Box<[(Ipv6Addr, Gid)]>,
}

/// A name by the place of its letters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Named {
    start: u32,
    len: u8,
    gid: Gid,
}

const _: () = assert!(size_of::<Named>() == 24 && size_of::<(Ipv6Addr, Gid)>() == 32);

impl Hosts {
    /// The largest number of entries: with it, the text of all names is shorter than 2³² bytes.
    pub const MAX: usize = 1_000_000;

    /// Of several entries for one host the last counts. Also returns the places of those that it overrules and that
    /// have another GID. Entries after the first [`Self::MAX`] are ignored.
    pub fn new(entries: &[(Address, Gid)]) -> (Self, Vec<usize>) {
        let (mut names, mut addresses) = (Vec::new(), Vec::new());
        for (place, (address, gid)) in entries.iter().enumerate().take(Self::MAX) {
            match address {
                Address::Name(name) => names.push((folded(name), place, *gid)),
                Address::Ip(ip) => addresses.push((mapped(*ip), place, *gid)),
            }
        }
        let mut overruled = keep_last(&mut names);
        overruled.extend(keep_last(&mut addresses));
        overruled.sort_unstable();
        let mut text = String::new();
        let mut add = |(name, _, gid): &(String, usize, Gid)| {
            let start = u32::try_from(text.len()).ok()?;
            text.push_str(name);
            Some(Named { start, len: name.len().try_into().ok()?, gid: *gid })
        };
        let names = names.iter().filter_map(&mut add).collect();
        let addresses = addresses.into_iter().map(|(ip, _, gid)| (ip, gid)).collect();
        (Self { text: text.into(), names, addresses }, overruled)
    }

    /// The GID of a host, if it is listed. Letters count alike in either case.
    pub fn gid_of(&self, address: &Address) -> Option<Gid> {
        match address {
            Address::Name(name) => {
                let name = folded(name);
                let at = self.names.binary_search_by(|it| self.name(it).cmp(&name)).ok()?;
                Some(self.names.get(at)?.gid)
            }
            Address::Ip(ip) => {
                let at = self.addresses.binary_search_by_key(&mapped(*ip), |(ip, _)| *ip).ok()?;
                Some(self.addresses.get(at)?.1)
            }
        }
    }

    /// Number of hosts.
    pub fn len(&self) -> usize {
        self.names.len() + self.addresses.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn name(&self, named: &Named) -> &str {
        let start = named.start as usize;
        self.text.get(start..start + usize::from(named.len)).unwrap_or_default()
    }
}

/// Sorts by key, keeps the entry with the last place of each, and returns the places of others with another GID.
fn keep_last<K: Ord>(entries: &mut Vec<(K, usize, Gid)>) -> Vec<usize> {
    entries.sort_by(|(one, at, _), (other, before, _)| one.cmp(other).then(before.cmp(at)));
    let mut overruled = Vec::new();
    entries.dedup_by(|(key, place, gid), (kept, _, last)| {
        let is_same = key == kept;
        if is_same && gid != last {
            overruled.push(*place);
        }
        is_same
    });
    overruled
}

/// The name by which it is compared.
pub(super) fn folded(name: &Name) -> String {
    name.as_str().to_ascii_lowercase()
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn gid(n: u8) -> Gid {
        Gid::new([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, n]).unwrap()
    }

    fn address(text: &str) -> Address {
        text.parse().map_or_else(|_| Address::Name(Name::new(text).unwrap()), Address::Ip)
    }

    #[test]
    fn last_entry_of_a_host_counts_and_names_have_no_case() {
        let entries = [("Node1", 1), ("10.2.0.5", 2), ("node1", 3), ("10.2.0.5", 2), ("node", 4)];
        let entries: Vec<_> = entries.iter().map(|(host, n)| (address(host), gid(*n))).collect();
        let (hosts, overruled) = Hosts::new(&entries);
        assert_eq!((hosts.len(), overruled), (3, vec![0]));
        assert_eq!(hosts.gid_of(&address("NODE1")), Some(gid(3)));
        assert_eq!(hosts.gid_of(&address("node")), Some(gid(4)));
        assert_eq!(hosts.gid_of(&address("10.2.0.5")), Some(gid(2)));
        assert_eq!(hosts.gid_of(&address("node11")), None);
        assert_eq!(Hosts::default().gid_of(&address("node")), None);
    }

    proptest! {
        #[test]
        fn table_does_what_a_plain_map_does(entries: Vec<(bool, u8, u8)>) {
            let host = |(is_name, n, _): &(bool, u8, u8)| match is_name {
                true => address(&format!("{}n{}", if n % 3 == 0 { "N" } else { "n" }, n % 20)),
                false => address(&format!("10.0.0.{}", n % 20)),
            };
            let key = |address: &Address| match address {
                Address::Name(name) => folded(name),
                Address::Ip(ip) => ip.to_string(),
            };
            let list: Vec<_> = entries.iter().map(|it| (host(it), gid(it.2))).collect();
            let model: BTreeMap<_, _> = list.iter().map(|(host, gid)| (key(host), *gid)).collect();
            let (hosts, _) = Hosts::new(&list);
            prop_assert_eq!(hosts.len(), model.len());
            for n in 0..20 {
                for is_name in [true, false] {
                    let asked = host(&(is_name, n, 0));
                    prop_assert_eq!(hosts.gid_of(&asked), model.get(&key(&asked)).copied());
                }
            }
        }
    }
}
