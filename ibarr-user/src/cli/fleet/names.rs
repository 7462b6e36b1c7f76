// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Addresses of nodes, by the system's resolver. Where no name server answers it takes many seconds for each name, so
//! all names are asked for at the same time, and have one time limit together.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use ibarr_proto::ip2gid::Family;

use super::asking::Progress;
use crate::cli::targets::{Addresses, Destination};
use crate::control::messages::{Target, UnknownName};

/// The time limit of all names together.
const WITHIN: Duration = Duration::from_secs(10);

/// Threads that ask the system's resolver. One that it keeps ends with this process.
const RESOLVERS: usize = 64;

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What the resolver has said of a destination, by its number.
struct Found {
    number: usize,
    addresses: Result<Addresses, String>,
}

/// Each address once, with its name, in the order of the command line; and the names without one.
pub(super) fn resolve(
    destinations: Vec<Destination>,
    family: Option<Family>,
) -> (Vec<(Target, Option<String>)>, Vec<UnknownName>) {
    let (names, destinations) = (names(&destinations), Arc::new(destinations));
    let (next, names) = (Arc::new(AtomicUsize::new(0)), Arc::new(names));
    let (tell, told) = channel();
    for _ in 0..RESOLVERS.min(names.len()) {
        let (tell, next) = (tell.clone(), Arc::clone(&next));
        let (names, destinations) = (Arc::clone(&names), Arc::clone(&destinations));
        thread::spawn(move || {
            while let Some(&number) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                let Some(destination) = destinations.get(number) else { return };
                // After the time limit no answer is received.
                let addresses = destination.resolve(family);
                if tell.send(Found { number, addresses }).is_err() {
                    return;
                }
            }
        });
    }
    drop(tell);
    let found = collect(&told, names.len(), Instant::now() + WITHIN);
    sort(&destinations, family, found)
}

/// The numbers of those that the resolver has to be asked for.
fn names(destinations: &[Destination]) -> Vec<usize> {
    let all = destinations.iter().enumerate();
    all.filter(|(_, destination)| destination.is_name()).map(|(number, _)| number).collect()
}

/// What was found until then.
fn collect(
    told: &Receiver<Found>,
    wanted: usize,
    until: Instant,
) -> BTreeMap<usize, Result<Addresses, String>> {
    let mut found = BTreeMap::new();
    let mut progress = Progress::new("names are resolved");
    while found.len() < wanted {
        progress.show((found.len(), wanted));
        let left = until.saturating_duration_since(Instant::now());
        match told.recv_timeout(left.min(LOOK_EVERY)) {
            Ok(Found { number, addresses }) => drop(found.insert(number, addresses)),
            Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
            Err(_) => break,
        }
    }
    progress.end();
    found
}

fn sort(
    destinations: &[Destination],
    family: Option<Family>,
    mut found: BTreeMap<usize, Result<Addresses, String>>,
) -> (Vec<(Target, Option<String>)>, Vec<UnknownName>) {
    let (mut nodes, mut unknown, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    for (number, destination) in destinations.iter().enumerate() {
        let addresses = match found.remove(&number) {
            Some(addresses) => addresses,
            None if !destination.is_name() => destination.resolve(family),
            None => Err(format!(
                "not resolved within {} s: does the name server answer (getent ahosts {})?",
                WITHIN.as_secs(),
                destination.text
            )),
        };
        match addresses {
            Ok(Addresses { target, .. }) if seen.insert((target.ip, target.scope)) => {
                nodes.push((target, destination.name()));
            }
            Ok(_) => {}
            Err(message) => {
                unknown.push(UnknownName { name: destination.text.clone(), message });
            }
        }
    }
    (nodes, unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::targets;

    #[test]
    fn name_that_is_resolved_too_late_is_told_and_others_are_asked() {
        let list = ["n1,n2,10.0.0.9,n3,n4".to_owned()];
        let destinations = targets::parse(&list).unwrap();
        let numbers = names(&destinations);
        assert_eq!(numbers, [0, 1, 3, 4]);
        let (tell, told) = channel();
        let first =
            Addresses { target: Target { ip: [10, 0, 0, 1].into(), scope: None }, others: vec![] };
        // A second name of the first node, and one that is not known.
        let unknown = Err("unknown".to_owned());
        for (number, addresses) in [(4, Ok(first.clone())), (0, Ok(first)), (3, unknown)] {
            tell.send(Found { number, addresses }).unwrap();
        }
        // The last one never comes.
        let found = collect(&told, numbers.len(), Instant::now());
        let (nodes, unknown) = sort(&destinations, None, found);
        let nodes: Vec<_> =
            nodes.iter().map(|(target, name)| (target.ip, name.as_deref())).collect();
        assert_eq!(nodes, [([10, 0, 0, 1].into(), Some("n1")), ([10, 0, 0, 9].into(), None)]);
        let unknown: Vec<_> = unknown.into_iter().map(|of| (of.name, of.message)).collect();
        let late = "not resolved within 10 s: does the name server answer (getent ahosts n2)?";
        assert_eq!(unknown, [("n2", late), ("n3", "unknown")].map(|(a, b)| (a.into(), b.into())));
    }
}
