// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The walk of a directed-route SMP (IBA vol. 1 §14.2.2).

use crate::wire::smp::Smp;

use crate::drops::DropReason;

/// The next step of a directed-route SMP that arrived at a port of a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// Forward it through this port.
    Forward(u8),
    /// Answer it: its route ends here.
    Answer,
    /// Deliver it to the subnet manager behind the port: the answer is back.
    Deliver,
}

/// The step of `smp` at a node that it entered by `entry`; advances its hop pointer. Only switches
/// forward it.
pub(super) fn arrive(smp: &mut Smp, entry: u8, is_switch: bool) -> Result<Step, DropReason> {
    if smp.has_lid_routed_part() {
        return Err(DropReason::MixedRoute);
    }
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    if smp.is_returning() {
        return match pointer {
            1 if !is_switch => Ok(Step::Deliver),
            2.. if is_switch && pointer <= count => {
                smp.set_hop_pointer(pointer - 1);
                Ok(Step::Forward(smp.entry(pointer - 1)))
            }
            _ => Err(DropReason::Route),
        };
    }
    match pointer {
        0 => Err(DropReason::Route),
        _ if pointer == count => {
            smp.set_entry(pointer, entry);
            smp.set_hop_pointer(pointer + 1);
            Ok(Step::Answer)
        }
        _ if pointer < count && is_switch => {
            smp.set_entry(pointer, entry);
            smp.set_hop_pointer(pointer + 1);
            Ok(Step::Forward(smp.exit(pointer + 1)))
        }
        _ => Err(DropReason::Route),
    }
}

/// The port through which the answer leaves the node at which the request's route ended. Advances
/// the answer's hop pointer.
pub(super) fn turn_back(smp: &mut Smp) -> u8 {
    let count = smp.hop_count();
    smp.set_hop_pointer(count);
    smp.entry(count)
}

/// The step of an `smp` that the host behind `port` sends.
///
/// Linux has already made the first step (`smi_handle_dr_smp_send` in
/// drivers/infiniband/core/smi.c); other hosts may leave it to hardware.
pub(super) fn depart(smp: &mut Smp, port: u8) -> Result<Step, DropReason> {
    if smp.has_lid_routed_part() {
        return Err(DropReason::MixedRoute);
    }
    let (pointer, count) = (smp.hop_pointer(), smp.hop_count());
    if smp.is_returning() {
        return match pointer {
            0 => Err(DropReason::Route),
            _ if pointer < count || smp.entry(count) != port => Err(DropReason::Route),
            _ => Ok(Step::Forward(turn_back(smp))),
        };
    }
    match (pointer, count) {
        (0 | 1, 0) => {
            smp.set_hop_pointer(1);
            Ok(Step::Answer)
        }
        (0 | 1, _) if smp.exit(1) == port => {
            smp.set_hop_pointer(1);
            Ok(Step::Forward(port))
        }
        _ => Err(DropReason::Route),
    }
}
