// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Traps: a switch tells the subnet manager that the state of a port has changed (IBA vol. 1
//! §14.3.4, trap 128), and repeats this until the manager answers. Without traps, a manager would
//! notice only at its next sweep.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::wire::packet::{Datagram, MAX_LEN};
use crate::wire::smp::{NOTICE, NodeType, NoticeWire, Smp};
use ibarr_common::Instant;
use ibarr_common::ib::{PKey, Qpn, Sl};
use ibarr_common::wire::mad::{Method, Tid};
use zerocopy::IntoBytes as _;

use super::{Fabric, MANAGEMENT_LANE, port_id};
use crate::topology::NodeId;

/// Interval between repetitions of a trap.
const INTERVAL: Duration = Duration::from_secs(1);

/// How often an unanswered trap is sent.
const SENDS: u8 = 5;

const LINK_STATE_CHANGE: u16 = 128;

/// Traps to be sent, at most one per switch.
#[derive(Debug, Default)]
pub(super) struct Traps {
    by_node: BTreeMap<NodeId, Trap>,
    last: u64,
}

#[derive(Debug)]
struct Trap {
    tid: Tid,
    due: Instant,
    left: u8,
}

impl Traps {
    /// Starts a trap: the state of a port of `node` has changed.
    pub(super) fn add(&mut self, now: Instant, node: NodeId) {
        self.last += 1;
        let tid = Tid::new(self.last);
        self.by_node.insert(node, Trap { tid, due: now, left: SENDS });
    }

    /// Ends the trap `tid` of `node`, which the manager has answered. `false` if it has another id.
    pub(super) fn repress(&mut self, node: NodeId, tid: Tid) -> bool {
        let is_it = self.by_node.get(&node).is_some_and(|trap| trap.tid == tid);
        if is_it {
            self.by_node.remove(&node);
        }
        is_it
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.by_node.values().map(|trap| trap.due).min()
    }

    /// Takes a trap that is due, and counts it as sent.
    fn take_due(&mut self, now: Instant) -> Option<(NodeId, Tid)> {
        let (&node, trap) = self.by_node.iter_mut().find(|(_, trap)| trap.due <= now)?;
        trap.due = now + INTERVAL;
        trap.left -= 1;
        let due = (node, trap.tid);
        if trap.left == 0 {
            self.by_node.remove(&node);
        }
        Some(due)
    }
}

impl Fabric {
    pub(super) fn send_traps(&mut self, now: Instant) {
        while let Some((node, tid)) = self.traps.take_due(now) {
            // The node may have been switched off meanwhile.
            let _ = self.send_trap(now, node, tid);
        }
    }

    fn send_trap(&mut self, now: Instant, node: NodeId, tid: Tid) -> Option<()> {
        let switch = self.node(node)?.switch.as_ref()?;
        let info = &switch.port_0.info;
        let (lid, manager) = (info.lid()?, info.sm_lid()?);
        let exit = port_id(node, switch.route(manager)?)?;
        let mut details = [0; 54];
        details.iter_mut().zip(lid.get().to_be_bytes()).for_each(|(to, from)| *to = from);
        let [.., kind] = u32::from(NodeType::Switch.get()).to_be_bytes();
        let notice = NoticeWire {
            // Generic, urgent.
            generic_type: 0x81,
            producer: [0, 0, kind],
            trap: LINK_STATE_CHANGE.into(),
            issuer: lid.get().into(),
            toggle_count: 0.into(),
            details,
        };
        let mut smp = Smp::lid_routed(Method::TRAP, NOTICE);
        smp.set_tid(tid);
        smp.data_mut().copy_from_slice(notice.as_bytes());
        let datagram = Datagram {
            vl: MANAGEMENT_LANE,
            sl: Sl::default(),
            dlid: manager,
            slid: Some(lid),
            grh: None,
            pkey: PKey::DEFAULT,
            destination: Qpn::SMI,
            qkey: 0,
            source: Qpn::SMI,
        };
        let mut packet = vec![0; MAX_LEN];
        let len = datagram.emit(smp.as_bytes(), &mut packet)?;
        packet.truncate(len);
        self.send_first(now, exit, packet);
        Some(())
    }
}
