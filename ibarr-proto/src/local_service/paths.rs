// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Path requests: those that wait, and the construction of their answers.

use std::collections::BTreeMap;

use ibarr_common::ib::{Lid, PathRecord};
use ibarr_common::wire::ls::{Answer, Path, PathFlags, PathUse, Paths, ResolvePath, Seq};
use ibarr_common::wire::path_record::{Fields, PathRecordWire};

use super::types::{Config, Counter, NoPath};
use crate::paths::{Outcome, PortName};
use crate::request::PathFlightId;

/// Waiting requests, by their own number and by the kernel's.
#[derive(Debug)]
pub(super) struct PathRequests {
    max: usize,
    next: u64,
    by_flight: BTreeMap<PathFlightId, Waiting>,
    flights: BTreeMap<Seq, PathFlightId>,
}

/// The data of a request that its answer needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) seq: Seq,
    pub(super) path_use: PathUse,
    pub(super) port: PortName,
}

impl PathRequests {
    pub(super) fn new(max: usize) -> Self {
        Self { max, next: 0, by_flight: BTreeMap::new(), flights: BTreeMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.by_flight.len()
    }

    /// Returns whether a request with this number was waiting.
    pub(super) fn forget(&mut self, seq: Seq) -> bool {
        let flight = self.flights.remove(&seq);
        flight.is_some_and(|flight| self.by_flight.remove(&flight).is_some())
    }

    /// `None` if too many requests wait.
    pub(super) fn insert(&mut self, seq: Seq, request: &ResolvePath) -> Option<PathFlightId> {
        if self.by_flight.len() >= self.max {
            return None;
        }
        let flight = PathFlightId(self.next);
        self.next += 1;
        let port = PortName { device: request.device, port: request.port };
        self.by_flight.insert(flight, Waiting { seq, path_use: request.path_use, port });
        self.flights.insert(seq, flight);
        Some(flight)
    }

    pub(super) fn get(&self, flight: PathFlightId) -> Option<&Waiting> {
        self.by_flight.get(&flight)
    }

    pub(super) fn take(&mut self, flight: PathFlightId) -> Option<Waiting> {
        let waiting = self.by_flight.remove(&flight)?;
        self.flights.remove(&waiting.seq);
        Some(waiting)
    }

    /// The request that has waited longest.
    pub(super) fn take_first(&mut self) -> Option<Seq> {
        let (_, Waiting { seq, .. }) = self.by_flight.pop_first()?;
        self.flights.remove(&seq);
        Some(seq)
    }
}

/// Whether the kernel should ask the SA itself after this outcome, unless it has already done so
/// too often: the SA had no answer, or was not asked.
pub(super) fn falls_back(config: Config, outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Silent | Outcome::Busy => config.on_sa_silent == NoPath::Fallback,
        Outcome::Overloaded => true,
        _ => false,
    }
}

/// The answer to the kernel for an outcome, and its counter.
///
/// An answer without a path fails the caller with -EIO, where the kernel without a daemon returns
/// -EINVAL. No answer gives -EINVAL on every kernel. `ib_nl_process_good_resolve_rsp` of sa_query.c
/// passes on -EIO or 0; `recv_handler` there turns a MAD of the SA with an error status into
/// -EINVAL. Since 6.3 `cma_query_handler` of cma.c returns -EINVAL for a record with only
/// `IB_PATH_PRIMARY`; 6.1 and 6.2 treat that as success without a path, and the daemon cannot tell
/// these kernels apart. -EINVAL therefore costs the SA a query: [`NoPath::Fallback`].
pub(super) fn answer(config: Config, path_use: PathUse, outcome: &Outcome) -> (Answer, Counter) {
    let unless = |no_path, counter| match no_path {
        NoPath::Final => (Answer::Paths(Paths::NONE), Counter::PathsNone),
        NoPath::Fallback => (Answer::Error, counter),
    };
    match outcome {
        Outcome::Found { record, .. } => {
            (Answer::Paths(paths(path_use, *record)), Counter::PathsAnswered)
        }
        Outcome::NoRecord { .. } => unless(config.on_no_record, Counter::PathsNoRecord),
        Outcome::Silent => unless(config.on_sa_silent, Counter::PathsSilent),
        Outcome::Busy => unless(config.on_sa_silent, Counter::PathsBusy),
        Outcome::Refused(_) => (Answer::Error, Counter::PathsRefused),
        Outcome::UnknownPort => (Answer::Error, Counter::PathsUnknown),
        Outcome::NoSa => (Answer::Error, Counter::PathsNoSa),
        Outcome::Overloaded => (Answer::Error, Counter::PathsOverloaded),
    }
}

/// The paths that the kernel accepts as an answer to such a request
/// (`ib_nl_process_good_resolve_rsp` in drivers/infiniband/core/sa_query.c).
fn paths(path_use: PathUse, record: PathRecord) -> Paths {
    let path = |flags, record| Path { flags, record };
    let gmp = path(PathFlags::GMP, record);
    let paths = match path_use {
        PathUse::Unidirectional => Paths::new(&[path(PathFlags::OUTBOUND, record)]),
        PathUse::Gmp => Paths::new(&[gmp]),
        PathUse::All => match floating(record) {
            None => Paths::new(&[gmp]),
            Some(Floating { inbound, outbound }) => Paths::new(&[
                gmp,
                path(PathFlags::INBOUND, inbound),
                path(PathFlags::OUTBOUND, outbound),
            ]),
        },
    };
    // There are never more than fit.
    paths.unwrap_or(Paths::NONE)
}

/// Paths for data between subnets whose routers forward by floating LID. The original record
/// remains for connection management.
struct Floating {
    inbound: PathRecord,
    outbound: PathRecord,
}

/// `None` if the path stays in its subnet, or one of its ends has no floating LID.
fn floating(record: PathRecord) -> Option<Floating> {
    let Fields { dgid, sgid, hop_limit, .. } = Fields::parse(&record).ok()?;
    let (here, there) = (sgid.flid()?, dgid.flid()?);
    if hop_limit <= 1 || sgid.flid_subnet() == dgid.flid_subnet() {
        return None;
    }
    let one_way = |dlid: Lid| PathRecordWire {
        dlid: dlid.get().into(),
        reversible_and_numb_path: 0,
        ..record.into()
    };
    let from_anywhere = Lid::PERMISSIVE.get().into();
    Some(Floating {
        inbound: PathRecordWire { slid: from_anywhere, ..one_way(here) }.into(),
        outbound: one_way(there).into(),
    })
}

#[cfg(test)]
mod tests {
    use ibarr_common::ib::{FlowLabel, Mtu, PKey, PacketLifeTime, Rate, Sl};

    use super::*;

    /// From FLID 1 of subnet 1 to FLID 0x22 of subnet 2, by the router with LID 4.
    fn fields() -> Fields {
        Fields {
            dgid: "fec0:0:22:2::beef:1".parse().unwrap(),
            sgid: "fec0:0:1:1::10:9".parse().unwrap(),
            dlid: Lid::new(4).unwrap(),
            slid: Lid::new(8).unwrap(),
            flow_label: FlowLabel::default(),
            hop_limit: 255,
            tclass: 0,
            reversible: true,
            pkey: PKey::DEFAULT,
            sl: Sl::default(),
            mtu: Mtu::from_low_bits(4),
            rate: Rate::from_low_bits(3),
            life_time: PacketLifeTime::from_low_bits(18),
        }
    }

    /// For each record: flags, DLID, SLID, hop limit, the reversible byte.
    fn told(path_use: PathUse, fields: Fields) -> Vec<(u32, u16, u16, u8, u8)> {
        let record = fields.emit();
        let paths = paths(path_use, record);
        let told = paths.as_slice().iter().map(|path| {
            let octets = path.record.octets();
            let lid = |at: usize| u16::from_be_bytes([octets[at], octets[at + 1]]);
            // All other fields are the SA's.
            let mut restored = octets;
            restored[40..44].copy_from_slice(&record.octets()[40..44]);
            restored[49] = record.octets()[49];
            assert_eq!(restored, record.octets());
            (path.flags.bits(), lid(40), lid(42), octets[47], octets[49])
        });
        told.collect()
    }

    /// The answer of the C original with OpenSM behind a router.
    #[test]
    fn path_between_floating_lids_has_three_records_original_first() {
        assert_eq!(
            told(PathUse::All, fields()),
            [(0x2b, 4, 8, 255, 0x80), (0x12, 1, 0xffff, 255, 0), (0x0a, 0x22, 8, 255, 0)]
        );
        assert_eq!(told(PathUse::Unidirectional, fields()), [(0x0a, 4, 8, 255, 0x80)]);
        assert_eq!(told(PathUse::Gmp, fields()), [(0x2b, 4, 8, 255, 0x80)]);
    }

    #[test]
    fn other_paths_have_one_record() {
        let gid = |text: &str| text.parse().unwrap();
        let others = [
            Fields { hop_limit: 1, ..fields() },
            Fields { hop_limit: 0, ..fields() },
            Fields { dgid: gid("fec0:0:22:1::beef:1"), ..fields() },
            Fields { dgid: gid("fec0:0:0:2::beef:1"), ..fields() },
            Fields { dgid: gid("2001:db8:22:2::1"), ..fields() },
            Fields { sgid: gid("fe80::10:9"), ..fields() },
            Fields { sgid: gid("fec0:0:c000:1::1"), ..fields() },
        ];
        for other in others {
            assert_eq!(told(PathUse::All, other).len(), 1, "{other:?}");
        }
    }

    #[test]
    fn answer_without_a_path_follows_the_configuration() {
        let fallback = Config {
            on_no_record: NoPath::Fallback,
            on_sa_silent: NoPath::Fallback,
            ..Config::default()
        };
        let last = Config {
            on_no_record: NoPath::Final,
            on_sa_silent: NoPath::Final,
            ..Config::default()
        };
        let none = (Answer::Paths(Paths::NONE), Counter::PathsNone);
        let source = crate::paths::Source::Sa;
        for (outcome, counter, is_free) in [
            (Outcome::NoRecord { source }, Counter::PathsNoRecord, true),
            (Outcome::Silent, Counter::PathsSilent, true),
            (Outcome::Busy, Counter::PathsBusy, true),
            (Outcome::Refused(None), Counter::PathsRefused, false),
            (Outcome::UnknownPort, Counter::PathsUnknown, false),
            (Outcome::NoSa, Counter::PathsNoSa, false),
            (Outcome::Overloaded, Counter::PathsOverloaded, false),
        ] {
            let error = (Answer::Error, counter);
            assert_eq!(answer(fallback, PathUse::All, &outcome), error);
            let expected = if is_free { none } else { error };
            assert_eq!(answer(last, PathUse::All, &outcome), expected);
        }
        // A repeated question would get the same answer; silence may have a local cause.
        let default = Config::default();
        assert_eq!(default.on_no_record, NoPath::Final);
        assert_eq!(default.on_sa_silent, NoPath::Fallback);
    }
}
