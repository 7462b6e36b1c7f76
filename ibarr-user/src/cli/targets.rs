// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The destinations of the command line: addresses, host names, and ranges and lists of both, as schedulers write them.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::num::NonZeroU32;
use std::path::Path;

use ibarr_common::IfIndex;
use ibarr_proto::ip2gid::{Family, is_link_local};
use thiserror::Error;

use crate::control::messages::{Failure, FailureKind, Target};
use crate::regular_file::{self, Link};
use crate::transport::rtnetlink;

/// The most destinations of one command.
pub(super) const MAX: usize = 65_536;

/// The most bytes of a file of destinations: enough for [`MAX`] host names of 60 characters.
const MAX_FILE: usize = 4 << 20;

/// The most characters of a destination in an error.
const MAX_SHOWN: usize = 80;

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
    #[error("{0}: more than {MAX} destinations: split them over several commands")]
    TooMany(String),
    #[error("{0}: neither an address nor a host name")]
    NoHost(String),
    #[error("{0:?} names no destination")]
    None(String),
    #[error("{0}: one destination at a time")]
    NotOne(String),
    #[error("{name}: no list of destinations: {error}")]
    File { name: String, error: io::Error },
    #[error("{file}:{line}: {error}")]
    InFile { file: String, line: usize, error: Box<Self> },
    #[error("{text}: this machine has no interface {scope}")]
    NoInterface { text: String, scope: String },
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { kind: error.kind(), message: error.to_string() }
    }
}

impl Error {
    fn kind(&self) -> FailureKind {
        match self {
            Self::NoInterface { .. } | Self::File { .. } => FailureKind::Absent,
            Self::InFile { error, .. } => error.kind(),
            _ => FailureKind::Usage,
        }
    }
}

/// Writes out the lists and ranges in `texts`: `node[1-3],login` is `node1`, `node2`, `node3` and `login`. Commas and
/// white space separate destinations. A text `@FILE` stands for the lines of a file, without what follows a `#`, and
/// `@-` for those of standard input.
pub(super) fn parse(texts: &[String]) -> Result<Vec<Destination>, Error> {
    let mut all = Vec::new();
    for text in texts {
        match text.strip_prefix('@') {
            Some(file) => add_file(file, &mut all)?,
            None => add(text, &mut all)?,
        }
    }
    if all.is_empty() { Err(Error::None(shown(&texts.join(" ")))) } else { Ok(all) }
}

/// The only destination in `text`.
pub(super) fn one(text: &str) -> Result<Destination, Error> {
    let mut all = parse(&[text.to_owned()])?;
    let first = all.pop().filter(|_| all.is_empty());
    first.ok_or_else(|| Error::NotOne(shown(text)))
}

fn add_file(file: &str, all: &mut Vec<Destination>) -> Result<(), Error> {
    let name = if file == "-" { "standard input" } else { file };
    let read = match file {
        "-" => regular_file::bounded(io::stdin(), MAX_FILE),
        file => regular_file::read(Path::new(file), Link::Followed, MAX_FILE),
    };
    let text = read.and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    let text = text.map_err(|error| Error::File { name: name.to_owned(), error })?;
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        add(line, all).map_err(|error| Error::InFile {
            file: name.to_owned(),
            line: number + 1,
            error: Box::new(error),
        })?;
    }
    Ok(())
}

fn add(list: &str, all: &mut Vec<Destination>) -> Result<(), Error> {
    for word in list.split_whitespace() {
        // White space may follow a comma.
        let word = word.strip_suffix(',').filter(|word| !word.is_empty()).unwrap_or(word);
        for text in items(word) {
            let parts = parts(text)?;
            let counts = parts.iter().map(Part::count);
            let count = counts.reduce(usize::saturating_mul).unwrap_or(1);
            if all.len().saturating_add(count) > MAX {
                return Err(Error::TooMany(shown(text)));
            }
            for number in 0..count {
                all.push(destination(&written(&parts, number))?);
            }
        }
    }
    Ok(())
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
fn destination(text: &str) -> Result<Destination, Error> {
    let (host, scope) = match text.split_once('%') {
        Some((host, scope)) => (host, Some(scope)),
        None => (text, None),
    };
    let host = match host.parse() {
        Ok(ip) => Host::Address(ip),
        // The resolver would take 10.0.0 for 10.0.0.0.
        Err(_) if is_host_name(host) => Host::Name(host.to_owned()),
        Err(_) => return Err(Error::NoHost(shown(text))),
    };
    let index = |scope: &str| {
        let by_number = scope.parse().ok().and_then(IfIndex::new);
        by_number.or_else(|| rtnetlink::interface(scope).ok()).ok_or_else(|| {
            let (text, scope) = (shown(text), shown(scope));
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

/// The text as an error names it: its beginning, if it is long.
fn shown(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
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
        let (items, after) = after.split_once(']').ok_or_else(|| Error::Open(shown(text)))?;
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
    let wrong = || Error::Item { text: shown(text), item: shown(item) };
    let range = read().ok_or_else(wrong)?;
    if range.last < range.first {
        return Err(Error::Backwards { text: shown(text), item: shown(item) });
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
        assert_eq!(texts(" a b,c[1-2]\n\td, e,"), ["a", "b", "c1", "c2", "d", "e"]);
    }

    #[test]
    fn file_of_destinations_is_read_and_its_mistakes_have_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = |text: &[u8]| {
            let path = dir.path().join("nodes");
            std::fs::write(&path, text).unwrap();
            format!("@{}", path.display())
        };
        let nodes =
            file(b"# of partition a\nnode[1-2],login1 # two and one\n\nnode1\nnode3 node4\n");
        assert_eq!(texts(&nodes), ["node1", "node2", "login1", "node1", "node3", "node4"]);
        let error = |text: &str| parse(&[text.to_owned()]).unwrap_err();
        for (text, reason) in [
            (&b"node1\n\nnode[3-1]\n"[..], "nodes:3: node[3-1]: the range 3-1 ends before"),
            (b"node1\nnode[1-1000000000]", "nodes:2: node[1-1000000000]: more than 65536"),
            (b"node1\n@/etc/hosts", "nodes:2: @/etc/hosts: neither"),
            (b"# none\n", "names no destination"),
            (b"\xff\n", "invalid utf-8"),
        ] {
            let error = error(&file(text)).to_string();
            assert!(error.contains(reason), "{error}");
        }
        let long = error(&file(&vec![b' '; MAX_FILE + 1]));
        assert!(
            long.to_string().contains("nodes: no list of destinations: it is longer"),
            "{long}"
        );
        let absent = dir.path().join("absent");
        assert_eq!(error(&format!("@{}", absent.display())).kind(), FailureKind::Absent);
        let other_kind = error(&format!("@{}", dir.path().display())).to_string();
        assert!(other_kind.contains("it is a directory, not a regular file"), "{other_kind}");
    }

    #[test]
    fn one_destination_is_no_list() {
        assert_eq!(one("node[7]").unwrap().text, "node7");
        for several in ["node[1-2]", "a,b", "a b"] {
            let error = one(several).unwrap_err().to_string();
            assert_eq!(error, format!("{several}: one destination at a time"));
        }
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
            "n[1-1000000000]",
        ] {
            assert!(matches!(parsed(many), Err(Error::TooMany(_))), "{many}");
        }
        let twice = ["n[1-65536]", "n1"].map(str::to_owned);
        let error = parse(&twice).unwrap_err().to_string();
        assert!(error.starts_with("n1: more than 65536 destinations"), "{error}");
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
            ("", "\"\" names no destination"),
            (" \t\n", "names no destination"),
            (",", "neither"),
            ("a ,b", "neither"),
            ("node[1, 2]", "closing bracket"),
            ("fd00::1::2", "neither"),
            ("fe80::1%no-such-if", "no interface no-such-if"),
            ("fe80::1%", "no interface "),
            (&"n[1-9]".repeat(50_000), "[1-9]n[…: more than 65536"),
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
