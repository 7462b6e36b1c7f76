// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The destinations of the command line: addresses, host names, and ranges and lists of both, as schedulers write them.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::num::NonZeroU32;

use ibarr_common::IfIndex;
use ibarr_proto::ip2gid::{Family, is_link_local};
use thiserror::Error;

use crate::control::messages::{Failure, FailureKind, Target};
use crate::transport::rtnetlink;

/// The most destinations of one command.
pub(super) const MAX: usize = 65_536;

/// A destination, before the system's resolver is asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Destination {
    /// As on the command line, after its ranges were written out.
    pub(super) text: String,
    host: Host,
    scope: Option<IfIndex>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Host {
    Address(IpAddr),
    Name(String),
}

/// The address of a destination, and the others that a host name has.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Addresses {
    pub(super) target: Target,
    pub(super) others: Vec<IpAddr>,
}

/// Why a text names no destination.
#[derive(Debug, Error)]
pub(super) enum Error {
    #[error("{0}: a range needs its closing bracket, like node[1-8]")]
    Open(String),
    #[error("{text}: {item:?} is no range: write numbers, like [1-8,12], or with a step, [1-9/2]")]
    Item { text: String, item: String },
    #[error("{text}: the range {item} ends before it begins")]
    Backwards { text: String, item: String },
    #[error("more than {MAX} destinations: split them over several commands")]
    TooMany,
    #[error("{0}: neither an address nor a host name")]
    NoHost(String),
    #[error("{text}: this machine has no interface {scope}")]
    NoInterface { text: String, scope: String },
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::NoInterface { .. } => FailureKind::Absent,
            _ => FailureKind::Usage,
        };
        Self { kind, message: error.to_string() }
    }
}

/// Writes out the lists and ranges in `texts`: `node[1-3],login` is `node1`, `node2`, `node3` and `login`.
pub(super) fn parse(texts: &[String]) -> Result<Vec<Destination>, Error> {
    let mut all = Vec::new();
    for text in texts.iter().flat_map(|text| items(text)) {
        let parts = parts(text)?;
        let fits = |count: usize| all.len() + count <= MAX;
        let counts = parts.iter().map(Part::count);
        let count = counts.reduce(usize::saturating_mul).unwrap_or(1);
        if !fits(count) {
            return Err(Error::TooMany);
        }
        for number in 0..count {
            all.push(destination(&written(&parts, number))?);
        }
    }
    Ok(all)
}

impl Destination {
    /// The address of it, by the system's resolver if it is a name: of several of `family` the first one, as a program
    /// that connects takes it.
    pub(super) fn resolve(&self, family: Option<Family>) -> Result<Addresses, String> {
        let name = match &self.host {
            Host::Address(ip) => {
                return Ok(Addresses {
                    target: Target { ip: *ip, scope: self.scope },
                    others: vec![],
                });
            }
            Host::Name(name) => name,
        };
        let found = (name.as_str(), 0).to_socket_addrs().map_err(|error| error.to_string())?;
        self.first(found.collect(), family)
    }

    fn first(&self, mut all: Vec<SocketAddr>, family: Option<Family>) -> Result<Addresses, String> {
        all.retain(|ip| family.is_none_or(|family| Family::of(ip.ip()) == family));
        let [first, others @ ..] = &all[..] else {
            let family = family.map_or(String::new(), |family| format!("{family} "));
            return Err(format!("it has no {family}address"));
        };
        let of_name = match first {
            SocketAddr::V6(found) => IfIndex::new(found.scope_id()),
            SocketAddr::V4(_) => None,
        };
        let target = Target { ip: first.ip(), scope: self.scope.or(of_name) };
        if target.scope.is_none() && is_link_local(target.ip) {
            let text = &self.text;
            return Err(format!(
                "each link has its address {}: name the interface, like {text}%ib0",
                target.ip
            ));
        }
        Ok(Addresses { target, others: others.iter().map(SocketAddr::ip).collect() })
    }

    /// The text, if it says more than the address.
    pub(super) fn name(&self) -> Option<String> {
        let is_plain = matches!(self.host, Host::Address(_)) && self.scope.is_none();
        (!is_plain).then(|| self.text.clone())
    }

    /// Whether the system's resolver has to be asked.
    pub(super) fn is_name(&self) -> bool {
        matches!(self.host, Host::Name(_))
    }
}

/// A destination without a range.
pub(super) fn destination(text: &str) -> Result<Destination, Error> {
    let (host, scope) = match text.split_once('%') {
        Some((host, scope)) => (host, Some(scope)),
        None => (text, None),
    };
    let host = match host.parse() {
        Ok(ip) => Host::Address(ip),
        // The resolver would take 10.0.0 for 10.0.0.0.
        Err(_) if is_host_name(host) => Host::Name(host.to_owned()),
        Err(_) => return Err(Error::NoHost(text.to_owned())),
    };
    let index = |scope: &str| {
        let by_number = scope.parse().ok().and_then(IfIndex::new);
        by_number.or_else(|| rtnetlink::interface(scope).ok()).ok_or_else(|| {
            let (text, scope) = (text.to_owned(), scope.to_owned());
            Error::NoInterface { text, scope }
        })
    };
    Ok(Destination { text: text.to_owned(), host, scope: scope.map(index).transpose()? })
}

/// Letters, digits, hyphens, dots and underscores, as in a file of hosts; not digits and dots
/// alone.
fn is_host_name(text: &str) -> bool {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | '_');
    let is_number = text.chars().all(|c| c.is_ascii_digit() || c == '.');
    !is_number && text.len() <= 255 && !text.starts_with('-') && text.chars().all(fits)
}

/// A piece of a text: as it is, or a number of some ranges.
#[derive(Debug)]
enum Part {
    Text(String),
    Numbers(Vec<Range>),
}

/// Every `step`th number from `first` to `last`, of at least `width` digits.
#[derive(Debug)]
struct Range {
    first: u32,
    last: u32,
    step: NonZeroU32,
    width: usize,
}

impl Range {
    fn count(&self) -> usize {
        usize::try_from((self.last - self.first) / self.step).unwrap_or(MAX).saturating_add(1)
    }
}

impl Part {
    fn count(&self) -> usize {
        match self {
            Self::Text(_) => 1,
            Self::Numbers(ranges) => ranges.iter().map(Range::count).fold(0, usize::saturating_add),
        }
    }
}

/// The parts of a list between its commas; those in brackets separate numbers.
fn items(text: &str) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    text.split(move |c| {
        is_inside = c == '[' || is_inside && c != ']';
        c == ',' && !is_inside
    })
}

fn parts(text: &str) -> Result<Vec<Part>, Error> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once('[') {
        let (items, after) = after.split_once(']').ok_or_else(|| Error::Open(text.to_owned()))?;
        if before.is_empty() && items.contains(':') {
            // An address, in brackets as in a URL.
            parts.push(Part::Text(items.to_owned()));
            rest = after;
            continue;
        }
        let ranges: Result<_, _> = items.split(',').map(|item| range(text, item)).collect();
        parts.extend([Part::Text(before.to_owned()), Part::Numbers(ranges?)]);
        rest = after;
    }
    parts.push(Part::Text(rest.to_owned()));
    Ok(parts)
}

fn range(text: &str, item: &str) -> Result<Range, Error> {
    let (numbers, step) = item.split_once('/').unwrap_or((item, "1"));
    let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse().ok()).flatten()
    };
    let width = if first.starts_with('0') { first.len() } else { 0 };
    let read = || {
        let step = number(step).and_then(NonZeroU32::new)?;
        Some(Range { first: number(first)?, last: number(last)?, step, width })
    };
    let wrong = || Error::Item { text: text.to_owned(), item: item.to_owned() };
    let range = read().ok_or_else(wrong)?;
    if range.last < range.first {
        return Err(Error::Backwards { text: text.to_owned(), item: item.to_owned() });
    }
    Ok(range)
}

/// The text of this number, counted from 0; the last range changes first.
fn written(parts: &[Part], mut number: usize) -> String {
    let mut pieces = Vec::new();
    for part in parts.iter().rev() {
        let mut place = number % part.count();
        number /= part.count();
        pieces.push(match part {
            Part::Text(text) => text.clone(),
            Part::Numbers(ranges) => {
                let mut piece = String::new();
                for range in ranges {
                    if place < range.count() {
                        let value = range.first as usize + place * range.step.get() as usize;
                        let width = range.width;
                        piece = format!("{value:0width$}");
                        break;
                    }
                    place -= range.count();
                }
                piece
            }
        });
    }
    pieces.into_iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        let all = parse(&[text.to_owned()]).unwrap();
        all.into_iter().map(|destination| destination.text).collect()
    }

    #[test]
    fn ranges_are_written_out_in_their_order() {
        assert_eq!(texts("node[1-3,7]"), ["node1", "node2", "node3", "node7"]);
        assert_eq!(texts("10.0.0.[9-10]"), ["10.0.0.9", "10.0.0.10"]);
        assert_eq!(
            texts("r[1-2]n[08-10].x"),
            ["r1n08.x", "r1n09.x", "r1n10.x", "r2n08.x", "r2n09.x", "r2n10.x"]
        );
        assert_eq!(texts("fd00:2::[1-2]%1"), ["fd00:2::1%1", "fd00:2::2%1"]);
        assert_eq!(texts("10.0.0.5"), ["10.0.0.5"]);
    }

    #[test]
    fn lists_of_schedulers_are_written_out() {
        assert_eq!(texts("node[1-3],login1"), ["node1", "node2", "node3", "login1"]);
        assert_eq!(texts("c1-032,c1-033"), ["c1-032", "c1-033"]);
        assert_eq!(texts("node[2-10/4]"), ["node2", "node6", "node10"]);
        assert_eq!(
            texts("n[08-12/3,1]x,10.0.0.[1-2]"),
            ["n08x", "n11x", "n1x", "10.0.0.1", "10.0.0.2"]
        );
        assert_eq!(texts("[2001:db8::1]"), ["2001:db8::1"]);
        assert_eq!(texts("a,[fe80::1%1],[fe80::2]%1"), ["a", "fe80::1%1", "fe80::2%1"]);
    }

    #[test]
    fn number_of_destinations_is_bounded_before_they_are_made() {
        let parsed = |text: &str| parse(&[text.to_owned()]);
        assert_eq!(parsed("n[1-65536]").unwrap().len(), MAX);
        assert_eq!(parsed("n[1-256]-[1-256]").unwrap().len(), MAX);
        assert_eq!(parsed("n[0-4294967295/65536]").unwrap().len(), MAX);
        for many in [
            "n[0-65536]",
            "n[1-65536],a",
            "n[1-65536,1]",
            "n[0-4294967295][0-4294967295][0-4294967295]",
        ] {
            assert!(matches!(parsed(many), Err(Error::TooMany)), "{many}");
        }
        let twice = ["n[1-65536]", "n1"].map(str::to_owned);
        assert!(matches!(parse(&twice), Err(Error::TooMany)));
    }

    #[test]
    fn wrong_destination_is_named_with_the_reason() {
        for (wrong, reason) in [
            ("node[1-", "closing bracket"),
            ("node[]", "\"\" is no range"),
            ("node[a-b]", "\"a-b\" is no range"),
            ("node[1-99999999999]", "is no range"),
            ("node[1-9/0]", "\"1-9/0\" is no range"),
            ("node[1-9/]", "\"1-9/\" is no range"),
            ("node1,,node2", "neither"),
            ("node[1,login", "closing bracket"),
            ("[::1]x", "neither"),
            ("node[9-1]", "the range 9-1 ends before it begins"),
            ("10.0.0", "neither an address nor a host name"),
            ("10.0.0.300", "neither"),
            ("", "neither"),
            ("a b", "neither"),
            ("fd00::1::2", "neither"),
            ("fe80::1%no-such-if", "no interface no-such-if"),
            ("fe80::1%", "no interface "),
        ] {
            let error = parse(&[wrong.to_owned()]).unwrap_err().to_string();
            assert!(error.contains(reason), "{wrong}: {error}");
        }
    }

    #[test]
    fn interface_is_taken_by_name_and_by_index() {
        for text in ["fe80::1%lo", "fe80::1%1"] {
            let [destination] = &parse(&[text.to_owned()]).unwrap()[..] else { panic!() };
            assert_eq!(destination.resolve(None).unwrap().target.to_string(), "fe80::1%1");
            assert_eq!(destination.name().as_deref(), Some(text));
        }
    }

    #[test]
    fn name_has_the_first_address_of_the_family_and_the_others_are_told() {
        let [node] = &parse(&["node1".to_owned()]).unwrap()[..] else { panic!() };
        let all = ["10.0.0.1:0", "[fd00::1]:0", "10.0.0.2:0"].map(|it| it.parse().unwrap());
        let first = |family| node.first(all.to_vec(), family).unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let found = first(None);
        assert_eq!(found.target, ip("10.0.0.1").into());
        assert_eq!(found.others, [ip("fd00::1"), ip("10.0.0.2")]);
        let found = first(Some(Family::V6));
        assert_eq!((found.target, found.others.len()), (ip("fd00::1").into(), 0));
        let lack = node.first(vec![all[0]], Some(Family::V6)).unwrap_err();
        assert_eq!(lack, "it has no IPv6 address");
        let linked = |text: &str| node.first(vec![text.parse().unwrap()], None);
        assert_eq!(linked("[fe80::1%4]:0").unwrap().target.scope, IfIndex::new(4));
        assert!(linked("[fe80::1]:0").unwrap_err().contains("like node1%ib0"));
        // A label that no server is asked for, because it is too long.
        let [absent] = &parse(&["n".repeat(70)]).unwrap()[..] else { panic!() };
        assert!(absent.resolve(None).is_err());
    }
}
