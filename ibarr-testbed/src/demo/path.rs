// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The part of the demonstration in which the kernel asks for the path to a GID, for
//! `rdma_resolve_route`.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ibarr_common::ib::{
    FlowLabel, Gid, Lid, Mtu, PKey, PacketLifeTime, PathRecord, QosClass, Rate, ServiceId, Sl,
};
use ibarr_common::wire::ls::{Answer, Path, PathFlags, PathUse, ResolvePath, Seq, messages};
use ibarr_common::wire::path_record::{Fields, PathRecordWire};

use super::line::{Line, print};
use super::subnet::{ASKER, Connected, HOP_LIMIT, OWNER, Ports, ROUTER, Said};
use crate::interrupt::Interrupt;
use crate::lab::Node;
use crate::standin::{Event, PathOutcome, StandIn};

/// Makes `kernel`, the kernel of `asker`, ask for the path to `owner` twice, and for a path into a
/// subnet with floating LIDs.
///
/// # Errors
/// An answer is wrong, or the subnet administrator was asked more or less often than it should.
pub(super) fn show(
    kernel: &mut StandIn,
    ports: &Ports,
    (asker, owner): (&Node, &Node),
    interrupt: &Interrupt,
    out: &mut impl Write,
) -> Result<()> {
    let (name, Ports { near, floating }) = (asker.name, ports);
    let dgid = owner.gid()?;
    writeln!(
        out,
        "\nThe address has a GID; rdma_resolve_route wants the path that leads there, which the subnet
administrator (SA) knows. {name} has no InfiniBand, so two ports are made for it: a socket stands in for
the device of each, and behind it is an SA at LID 1 that answers as OpenSM does."
    )?;
    let mut asking = Asking { kernel, name: name.to_string(), interrupt };

    let expected = [Path { flags: PathFlags::GMP, record: record(near.gid, dgid, OWNER, 0) }];
    asking.ask(near, dgid, FIRST_SERVICE, &expected, Source::Sa, out)?;
    asking.ask(near, dgid, FIRST_SERVICE + 1, &expected, Source::Memory, out)?;

    writeln!(
        out,
        "\nIn another InfiniBand subnet the port has to be reached through routers. Where they route by
floating LIDs (FLID), which the GIDs carry, the kernel is given three records, made of the SA's one."
    )?;
    let dgid: Gid = FOREIGN.parse()?;
    let routed = record(floating.gid, dgid, ROUTER, HOP_LIMIT);
    let expected = [
        Path { flags: PathFlags::GMP, record: routed },
        Path { flags: PathFlags::INBOUND, record: one_way(routed, Lid::PERMISSIVE, OWN_FLID) },
        Path { flags: PathFlags::OUTBOUND, record: one_way(routed, ASKER, FOREIGN_FLID) },
    ];
    asking.ask(floating, dgid, FIRST_SERVICE, &expected, Source::Sa, out)
}

/// The source of the answer.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Source {
    Sa,
    Memory,
}

struct Asking<'a> {
    kernel: &'a mut StandIn,
    name: String,
    interrupt: &'a Interrupt,
}

impl Asking<'_> {
    /// Asks as rdma_cm does for a connection over IPv4 to TCP port `service`, but without quality of
    /// service.
    fn ask(
        &mut self,
        port: &Connected,
        dgid: Gid,
        service: u16,
        expected: &[Path],
        source: Source,
        out: &mut impl Write,
    ) -> Result<()> {
        let request = ResolvePath {
            device: port.name.device,
            port: port.name.port,
            path_use: PathUse::All,
            service_id: Some(ServiceId::new(RDMA_PS_TCP | u64::from(service))),
            dgid,
            sgid: port.gid,
            tclass: None,
            pkey: Some(PKey::DEFAULT),
            qos_class: QosClass::new(0),
        };
        port.take_said();
        self.kernel.take_said();
        let asked = self.kernel.resolve_path(request)?.context("the daemon does not listen")?;
        let outcome = loop {
            match self.kernel.next_event(PATIENCE, self.interrupt)? {
                Some(Event::Path(seq, outcome)) if seq == asked => break outcome,
                // An earlier request of the kernel.
                Some(_) => {}
                None => bail!("the kernel gets no answer about the path to {dgid}"),
            }
        };
        let (on_netlink, mads) = (self.kernel.take_said(), port.take_said());
        let flags = expected.iter().map(|path| path.flags.bits()).collect();
        ensure!(
            outcome == PathOutcome::Resolved(flags),
            "the kernel refuses the path to {dgid}: {outcome:?}"
        );
        let paths = on_netlink.iter().find_map(|said| told(asked, &said.bytes));
        let paths = paths.context("the kernel was told no path")?;
        ensure!(paths == expected, "the kernel was told a wrong path to {dgid}: {paths:02x?}");
        let asked: BTreeSet<_> =
            mads.iter().filter(|said| said.by_port).map(Said::asks_for).collect();
        let right = match source {
            Source::Sa => BTreeSet::from([Some(dgid)]),
            Source::Memory => BTreeSet::new(),
        };
        ensure!(asked == right, "the SA was asked for {asked:?} instead of {right:?}");

        let origin = match source {
            Source::Sa => "its SA",
            Source::Memory => "memory",
        };
        let name = &self.name;
        writeln!(
            out,
            "\n{name}'s kernel asks, for TCP port {service}: which path leads to {dgid}?"
        )?;
        let plural = if paths.len() == 1 { "" } else { "s" };
        writeln!(out, "  {} record{plural}, from {origin}:\n", paths.len())?;
        let mut lines: Vec<_> = on_netlink.iter().map(Line::from).collect();
        lines.extend(mads.iter().map(Line::from));
        lines.sort_by_key(|line| line.at);
        print(&lines, out)?;
        paths.iter().try_for_each(|path| describe(path, out))?;
        let sent = mads.iter().filter(|said| said.by_port).count();
        writeln!(out, "\n  MADs that went to the SA: {sent}")?;
        Ok(())
    }
}

/// The paths that the kernel was told in answer to `asked`.
fn told(asked: Seq, bytes: &[u8]) -> Option<Vec<Path>> {
    let answers = messages(bytes).filter_map(Result::ok).filter(|message| message.seq() == asked);
    answers.into_iter().find_map(|message| match Answer::parse(&message) {
        Ok(Answer::Paths(paths)) => Some(paths.as_slice().to_vec()),
        _ => None,
    })
}

/// The SA's record of a path from the asker's port with `sgid` to `dgid`, by the port with LID `to`.
fn record(sgid: Gid, dgid: Gid, to: Lid, hop_limit: u8) -> PathRecord {
    Fields {
        dgid,
        sgid,
        dlid: to,
        slid: ASKER,
        flow_label: FlowLabel::default(),
        hop_limit,
        tclass: 0,
        reversible: true,
        pkey: PKey::DEFAULT,
        sl: Sl::default(),
        mtu: Mtu::from_low_bits(4),
        rate: Rate::from_low_bits(3),
        life_time: PacketLifeTime::from_low_bits(0x12),
    }
    .emit()
}

/// A record for data in one direction, where routers route by floating LIDs.
fn one_way(record: PathRecord, slid: Lid, dlid: Lid) -> PathRecord {
    let (slid, dlid) = (slid.get().into(), dlid.get().into());
    PathRecordWire { slid, dlid, reversible_and_numb_path: 0, ..record.into() }.into()
}

fn describe(path: &Path, out: &mut impl Write) -> Result<()> {
    let wire = PathRecordWire::from(path.record);
    let gid = |octets| Gid::new(octets).map_or_else(|| "none".to_owned(), |gid| gid.to_string());
    let slid = match wire.slid.get() {
        lid if lid == Lid::PERMISSIVE.get() => "any".to_owned(),
        lid => lid.to_string(),
    };
    let use_for = match path.flags {
        PathFlags::GMP => "PRIMARY, GMP, BIDIRECTIONAL",
        PathFlags::INBOUND => "PRIMARY, INBOUND",
        PathFlags::OUTBOUND => "PRIMARY, OUTBOUND",
        _ => "?",
    };
    let [.., hop_limit] = wire.flow.get().to_be_bytes();
    let flow_label = FlowLabel::from_low_bits(wire.flow.get() >> 8);
    let mtu = Mtu::from_low_bits(wire.mtu).bytes().unwrap_or_default();
    let rate = f64::from(Rate::from_low_bits(wire.rate).half_gigabits().unwrap_or_default()) / 2.0;
    let sl = wire.qos_and_sl.get() & 0xf;
    let (pkey, tclass, dlid) = (wire.pkey.get(), wire.tclass, wire.dlid.get());
    let reversible = if wire.reversible_and_numb_path & 0x80 == 0 { "no" } else { "yes" };
    writeln!(
        out,
        "
  path flags   0x{:02x} ({use_for})
  SGID, SLID   {}, {slid}
  DGID, DLID   {}, {dlid}
  P_Key 0x{pkey:04x}, SL {sl}, MTU {mtu}, rate {rate} Gbit/s, reversible: {reversible}
  hop limit {hop_limit}, flow label {flow_label}, TClass {tclass}",
        path.flags.bits(),
        gid(wire.sgid),
        gid(wire.dgid),
    )?;
    Ok(())
}

/// In another subnet, 2: floating LID 0x22.
const FOREIGN: &str = "fec0:0:22:2:2:c903:0:202";
const FOREIGN_FLID: Lid = Lid::new(0x22).expect("a LID");
const OWN_FLID: Lid = Lid::new(1).expect("a LID");

/// rdma_cm puts this before the number of a TCP port (`RDMA_PS_TCP` of include/rdma/rdma_cm.h).
const RDMA_PS_TCP: u64 = 0x0106_0000;
const FIRST_SERVICE: u16 = 18_515;

/// Longer than the kernel's own time-out.
const PATIENCE: Duration = Duration::from_secs(10);
