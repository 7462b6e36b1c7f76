// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Whether a firewall of this machine keeps queries and replies from passing. It is tried, and nftables is asked only
//! to name the rule when something is missing.
//!
//! *Out*: a fresh query to each of some peers that the daemon remembers. *In*: what has come to the interface, before any
//! rule, against what the daemon's sockets have received, after all rules. The programs in the kernel count queries that
//! they pass on, and peers that have just answered are made to send [more](super::probe). Besides, this machine asks
//! itself: that proves a rule that drops it, but not that peers get through, because firewalls usually let the loopback
//! interface through.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, UdpSocket};
use std::thread::sleep;
use std::time::Duration;

use ibarr_common::map::Reason;
use ibarr_common::wire::ip2gid::{MsgId, Query, Version};
use ibarr_proto::ip2gid::is_link_local;
use ibarr_proto::request;

use super::probe;
use super::rules::{Kind, Lost, Suspects, Way};
use crate::control::messages::{Answer, Check, Status};

/// Its name in the document.
const CHECK: &str = "firewall";

/// How long a remembered peer has for its answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// How long peers are watched, at least.
const WATCHED: Duration = Duration::from_millis(500);

/// What was tried, and what was counted meanwhile.
pub(super) struct Tried {
    /// The fresh answers of peers that the daemon remembers.
    answers: Vec<Answer>,
    /// What was counted while they were asked.
    watched: Delta,
    /// How many datagrams each peer that answers has then sent to the daemon's port.
    probes: Vec<(IpAddr, io::Result<u64>)>,
    /// How many malformed datagrams the daemon has received meanwhile, as they are.
    malformed: u64,
    own: Vec<(IpAddr, Own)>,
    /// What was counted from the first question to the last.
    whole: Delta,
    port: u16,
    /// Whether programs in the kernel see queries before the firewall.
    has_programs: bool,
}

/// What this machine has got from itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Own {
    Answered,
    /// The kernel has refused to send the query.
    Forbidden,
    /// The query has not come to the daemon's socket.
    Lost,
    /// The query has come, and no reply.
    Unanswered,
    /// Peers have asked meanwhile, or the address has gone.
    Unclear,
}

/// Tries everything. `count` asks the daemon for its counters, and `ask` asks peers.
pub(super) fn attempt<E>(
    status: &Status,
    count: impl Fn() -> Result<BTreeMap<String, u64>, E>,
    ask: impl FnOnce() -> Vec<Answer>,
) -> Result<Tried, E> {
    let port = status.servers.first().map_or(0, |server| server.port.get());
    let before = count()?;
    let answers = ask();
    sleep(WATCHED);
    // What a program has just passed on is on its way to the socket.
    let passed = count()?;
    sleep(Duration::from_millis(50));
    let received = count()?;
    let addresses = status.interfaces.iter().flat_map(|interface| interface.addresses.keys());
    let addresses: Vec<_> = addresses.copied().filter(|ip| !is_link_local(*ip)).collect();
    let live = answers.iter().filter(|answer| is_answered(answer));
    let probes: Vec<_> =
        live.map(|Answer { ip, .. }| (*ip, probe::replies(*ip, port, &addresses))).collect();
    sleep(Duration::from_millis(50));
    let malformed = malformed_in(&count()?).saturating_sub(malformed_in(&received));
    let watched = Delta { before: before.clone(), passed, after: received };
    let mut own = Vec::new();
    // One of each family.
    for ip in addresses {
        if !own.iter().any(|(other, _): &(IpAddr, Own)| other.is_ipv4() == ip.is_ipv4()) {
            let count = || count().map(|counts| received_in(&counts)).ok();
            own.push((ip, ask_own(ip, port, count)));
        }
    }
    let after = count()?;
    let whole = Delta { before, passed: after.clone(), after };
    let has_programs = status.interfaces.iter().any(|interface| interface.responder.is_some());
    Ok(Tried { answers, watched, probes, malformed, own, whole, port, has_programs })
}

/// Whether the peer itself has answered.
fn is_answered(answer: &Answer) -> bool {
    let by_peer = answer.source != Some(request::Source::Neighbour);
    answer.status == request::Status::Found && by_peer
}

/// How often this machine asks itself.
const QUERIES: u32 = 3;

fn ask_own(ip: IpAddr, port: u16, count: impl Fn() -> Option<[u64; 2]>) -> Own {
    let tried = || -> io::Result<Own> {
        let socket = UdpSocket::bind((ip, 0))?;
        socket.connect((ip, port))?;
        socket.set_read_timeout(Some(PATIENCE / 3))?;
        let before = count();
        for number in 1..=QUERIES {
            let Some(query) = Query::new(Version::V1, MsgId(number), ip) else { break };
            match socket.send(query.emit().as_ref()) {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    return Ok(Own::Forbidden);
                }
                sent => {
                    sent?;
                }
            }
            if socket.recv(&mut [0; 64]).is_ok() {
                return Ok(Own::Answered);
            }
        }
        let (before, after) = (before.unwrap_or_default(), count().unwrap_or_default());
        let [guard, server] = [0, 1].map(|by| after[by].saturating_sub(before[by]));
        Ok(match guard.max(server) {
            0 => Own::Lost,
            few if few <= QUERIES.into() => Own::Unanswered,
            _ => Own::Unclear,
        })
    };
    tried().unwrap_or(Own::Unclear)
}

/// The daemon's counters at the beginning, and at the end: first of what programs have passed on, then of what was received.
struct Delta {
    before: BTreeMap<String, u64>,
    passed: BTreeMap<String, u64>,
    after: BTreeMap<String, u64>,
}

/// Results of queries that a program passes on and that the kernel delivers, if no rule drops them. Others it may refuse
/// itself.
const DELIVERED: [Reason; 10] = [
    Reason::LeaseOver,
    Reason::InterfaceOff,
    Reason::Malformed,
    Reason::Destination,
    Reason::Source,
    Reason::NotAllowed,
    Reason::Unknown,
    Reason::Replaced,
    Reason::NoRoute,
    Reason::NoRoom,
];

impl Delta {
    fn of(&self, name: &str) -> u64 {
        let at = |counts: &BTreeMap<String, u64>| counts.get(name).copied().unwrap_or_default();
        at(&self.after).saturating_sub(at(&self.before))
    }

    /// Queries that programs have passed on. If the kernel forwards packets, those for others are among the unknown.
    fn passed(&self, forwards: bool) -> u64 {
        let is_for_us =
            |reason: &Reason| !(forwards && matches!(reason, Reason::Unknown | Reason::NoRoute));
        let sum = |counts: &BTreeMap<String, u64>| -> u64 {
            let of = |reason: Reason| {
                let name = reason.name().replace('_', "-");
                ["tc", "xdp"].map(|program| {
                    counts.get(&format!("bpf.{program}.{name}")).copied().unwrap_or_default()
                })
            };
            DELIVERED.into_iter().filter(is_for_us).flat_map(of).sum()
        };
        sum(&self.passed).saturating_sub(sum(&self.before))
    }

    fn received(&self) -> u64 {
        let (before, after) = (received_in(&self.before), received_in(&self.after));
        let [guard, server] = [0, 1].map(|by| after[by].saturating_sub(before[by]));
        guard.max(server)
    }
}

/// Datagrams that have come to the daemon's sockets: as the filter on them counts them, and as the daemon does.
fn received_in(counts: &BTreeMap<String, u64>) -> [u64; 2] {
    ["bpf.guard.", "ip2gid.server."].map(|prefix| {
        counts.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, count)| count).sum()
    })
}

/// Datagrams that have come to the daemon's sockets and are no queries.
fn malformed_in(counts: &BTreeMap<String, u64>) -> u64 {
    let is = |name: &str| {
        name.starts_with("bpf.guard.malformed") || name.starts_with("ip2gid.server.malformed")
    };
    counts.iter().filter(|(name, _)| is(name)).map(|(_, count)| count).sum()
}

/// What was found about queries of this node, and about those of peers. `forwards`: whether the kernel forwards packets,
/// which programs count, too. `suspects` names the rules.
pub(super) fn checks(
    tried: &Tried,
    forwards: bool,
    suspects: impl Fn(Lost) -> Suspects,
) -> [Check; 2] {
    [outward(tried, &suspects), inward(tried, forwards, &suspects)]
}

fn outward(tried: &Tried, suspects: impl Fn(Lost) -> Suspects) -> Check {
    let lost = |way, kind, peer| suspects(Lost { way, kind, port: tried.port, peer });
    let (answered, silent): (Vec<_>, Vec<_>) =
        tried.answers.iter().partition(|answer| is_answered(answer));
    let own = |is: Own| tried.own.iter().find(|(_, own)| *own == is).map(|(ip, _)| *ip);
    if tried.whole.of("transport.query-not-sent-forbidden") > 0 || own(Own::Forbidden).is_some() {
        let found = "out: the kernel does not permit queries to peers (EPERM)".to_owned();
        return fail(found, &lost(Way::Out, Kind::Query, silent.first().map(|answer| answer.ip)));
    }
    if let Some(ip) = own(Own::Unanswered)
        && tried.whole.of("ip2gid.server.answered") > 0
    {
        let found = format!("out: the reply to a query of this machine to {ip} does not come back");
        return fail(found, &lost(Way::In, Kind::Reply, None));
    }
    for answer in &silent {
        let by = lost(Way::In, Kind::Reply, Some(answer.ip));
        if !by.rules.is_empty() {
            let found =
                format!("out: {}, which has answered before, is {} now", answer.ip, said(answer));
            return fail(found, &by);
        }
    }
    let names = |answers: &[&Answer]| {
        answers.iter().map(|answer| answer.ip.to_string()).collect::<Vec<_>>().join(", ")
    };
    match (&answered[..], &silent[..]) {
        ([], []) => Check::skipped(
            CHECK,
            "out: not proven: the daemon remembers no peer that could be asked (try --peer)",
        ),
        ([], silent) => Check::warn(
            CHECK,
            format!("out: no fresh answer from peers that have answered before: {}", names(silent)),
            "do they run (ping)? Does a firewall on the way drop UDP from and to port 4791? No rule of this \
             machine names it",
        ),
        (answered, []) => Check::ok(CHECK, format!("out: fresh answer from {}", names(answered))),
        (answered, silent) => Check::ok(
            CHECK,
            format!("out: fresh answer from {}; silent: {}", names(answered), names(silent)),
        ),
    }
}

fn said(answer: &Answer) -> &'static str {
    match answer.status {
        request::Status::Refused => "refusing",
        _ => "silent",
    }
}

fn inward(tried: &Tried, forwards: bool, suspects: impl Fn(Lost) -> Suspects) -> Check {
    let lost = |way, kind| suspects(Lost { way, kind, port: tried.port, peer: None });
    let (passed, received) = (tried.watched.passed(forwards), tried.watched.received());
    let forbidden = tried.whole.of("ip2gid.server.not-sent-forbidden");
    if forbidden > 0 {
        let found =
            format!("in: the kernel does not permit replies to peers (EPERM, {forbidden} times)");
        return fail(found, &lost(Way::Out, Kind::Reply));
    }
    if received < passed {
        let found = format!(
            "in: {} of {passed} queries of peers that the programs have passed on have not come to the daemon",
            passed - received
        );
        return fail(found, &lost(Way::In, Kind::Query));
    }
    let arrived: u64 = tried.probes.iter().filter_map(|(_, arrived)| arrived.as_ref().ok()).sum();
    let peers = tried.probes.iter().map(|(peer, _)| peer.to_string()).collect::<Vec<_>>();
    let of = format!("{arrived} datagrams from {} to UDP port {}", peers.join(", "), tried.port);
    if tried.malformed < arrived {
        let found = format!(
            "in: {} of {of}, which have come to the interface, have not come to the daemon",
            arrived - tried.malformed
        );
        return fail(found, &lost(Way::In, Kind::Query));
    }
    if let Some((ip, _)) = tried.own.iter().find(|(_, own)| *own == Own::Lost) {
        let found = format!(
            "in: a query of this machine to its own address {ip} has not come to the daemon"
        );
        return fail(found, &lost(Way::In, Kind::Query));
    }
    let answered = tried.watched.of("ip2gid.server.answered");
    let found = if arrived > 0 {
        format!("in: {arrived} of {of} have come to the daemon (no reply was tried)")
    } else if passed > 0 {
        format!("in: {passed} of {passed} queries of peers have come to the daemon")
    } else if !tried.has_programs && answered > 0 {
        format!("in: the daemon has answered {answered} queries of peers")
    } else {
        let why = match &tried.probes[..] {
            [] => "no peer has answered that could be asked (try --peer)".to_owned(),
            [(_, Err(error)), ..] if error.kind() == ErrorKind::PermissionDenied => {
                "only root may try it (CAP_NET_RAW)".to_owned()
            }
            [(_, Err(error)), ..] => error.to_string(),
            [..] => format!("{of} have come to the interface"),
        };
        return Check::skipped(CHECK, format!("in: not proven: {why}"));
    };
    Check::ok(CHECK, found)
}

fn fail(found: String, by: &Suspects) -> Check {
    let found = match by.rules.join("; ") {
        rules if rules.is_empty() => found,
        rules => format!("{found}; by {rules}"),
    };
    Check::fail(CHECK, found, &by.remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::messages::CheckState;

    fn answer(status: &str) -> Answer {
        let text =
            format!("{{\"ip\":\"10.0.0.9\",\"status\":\"{status}\",\"source\":\"peer\",\"ms\":1}}");
        serde_json::from_str(&text).unwrap()
    }

    fn none(_: Lost) -> Suspects {
        Suspects { rules: Vec::new(), remedy: String::new() }
    }

    /// What was tried while these counters grew from 7.
    fn tried(answers: &[&str], own: Own, grown: &[(&str, u64)]) -> Tried {
        let before: BTreeMap<String, u64> =
            grown.iter().map(|(name, _)| ((*name).to_owned(), 7)).collect();
        let after: BTreeMap<String, u64> =
            grown.iter().map(|(name, by)| ((*name).to_owned(), 7 + by)).collect();
        let delta =
            || Delta { before: before.clone(), passed: after.clone(), after: after.clone() };
        let answers = answers.iter().map(|status| answer(status)).collect();
        let own = vec![([10, 0, 0, 1].into(), own)];
        let probes = Vec::new();
        let (watched, whole) = (delta(), delta());
        Tried { answers, watched, probes, malformed: 0, own, whole, port: 4791, has_programs: true }
    }

    #[test]
    fn direction_is_well_only_if_a_live_peer_has_proven_it() {
        use CheckState::{Fail, Ok, Skipped, Warn};
        let states = |of: &Tried| checks(of, false, none).map(|check| check.state);
        let queries = [("bpf.tc.destination", 5), ("bpf.guard.answered", 5)];
        assert_eq!(states(&tried(&["found"], Own::Answered, &queries)), [Ok, Ok]);
        assert_eq!(states(&tried(&[], Own::Answered, &[("bpf.tc.answered", 5)])), [Skipped; 2]);
        assert_eq!(states(&tried(&["timed-out"], Own::Answered, &[]))[0], Warn);
        let lost = [("bpf.tc.destination", 5), ("bpf.guard.answered", 4)];
        assert_eq!(states(&tried(&["found"], Own::Answered, &lost)), [Ok, Fail]);
        let forbidden = [("transport.query-not-sent-forbidden", 1)];
        assert_eq!(states(&tried(&["timed-out"], Own::Answered, &forbidden))[0], Fail);
        let forbidden = [("ip2gid.server.not-sent-forbidden", 1)];
        assert_eq!(states(&tried(&["found"], Own::Answered, &forbidden)), [Ok, Fail]);
        for (own, expected) in [
            (Own::Forbidden, [Fail, Skipped]),
            (Own::Lost, [Skipped, Fail]),
            (Own::Unclear, [Skipped; 2]),
        ] {
            assert_eq!(states(&tried(&[], own, &[])), expected, "{own:?}");
        }
        let unanswered = tried(&[], Own::Unanswered, &[("ip2gid.server.answered", 3)]);
        assert_eq!(states(&unanswered)[0], Fail);
    }

    #[test]
    fn packets_that_the_kernel_forwards_are_not_missed() {
        let of = |forwards| {
            let counts = [("bpf.tc.unknown", 5), ("bpf.guard.answered", 0)];
            checks(&tried(&[], Own::Answered, &counts), forwards, none)[1].state
        };
        assert_eq!((of(true), of(false)), (CheckState::Skipped, CheckState::Fail));
    }
}
