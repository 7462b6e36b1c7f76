// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Changes of neighbour entries, as `ibarr` makes them, beside connections.

use std::fs;

use anyhow::{Context as _, Result, bail};
use ibarr_common::IfIndex;
use ibarr_proto::local_view::HwAddr;
use ibarr_user::transport::rtnetlink::{self, NudgeResult, Nudger};
use nix::sys::signal::Signal;

use super::{Connection, INTERFACES, Place};
use crate::rtnetlink::ifindex;

/// Connections of rping go on while a neighbour entry changes 10,000 times, as it does when `ibarr`
/// nudges. Returns the interface of the nudges. Since Linux 6.0 the kernel tells a connection that its
/// peer is unreachable when the neighbour entry of that peer changes (`cma_netevent_callback` in
/// drivers/infiniband/core/cma.c), but only connections of RoCE (`cma_add_id_to_tree`).
pub(crate) fn survive_nudges(place: Place, targets: &[&str]) -> Result<IfIndex> {
    const NUDGES: u32 = 10_000;
    let numbered = targets.iter().enumerate();
    let connections = numbered.map(|(number, target)| Connection::open(number, place, target));
    let connections = connections.collect::<Result<Vec<_>>>()?;
    let ipoib = INTERFACES[0].name;
    let fallback = rtnetlink::NudgeTarget { ifindex: ifindex(ipoib)?, hwaddr: hwaddr(ipoib)? };
    let (nudger, mut outcomes) = Nudger::start()?;
    // Otherwise rping takes most of the processor's time.
    connections.iter().try_for_each(|one| one.signal(Signal::SIGSTOP))?;
    let mut last = None;
    for _ in 0..NUDGES {
        nudger.nudge(Some(fallback), None);
        match outcomes.blocking_recv().context("the thread that nudges has ended")?? {
            NudgeResult::On(ifindex) => last = Some(ifindex),
            NudgeResult::Postponed => bail!("a nudge was not made"),
        }
    }
    connections.iter().try_for_each(|one| one.signal(Signal::SIGCONT))?;
    connections.iter().try_for_each(Connection::goes_on)?;
    connections.into_iter().try_for_each(Connection::close)?;
    last.context("no nudge")
}

fn hwaddr(interface: &str) -> Result<HwAddr> {
    let file = format!("/sys/class/net/{interface}/address");
    let text = fs::read_to_string(&file).with_context(|| file.clone())?;
    let octets = text.trim().split(':').map(|octet| u8::from_str_radix(octet, 16));
    let octets = octets.collect::<Result<Vec<_>, _>>().with_context(|| file.clone())?;
    HwAddr::new(&octets).context(file)
}
