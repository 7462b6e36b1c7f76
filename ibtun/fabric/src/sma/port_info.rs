// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! PortInfo: reads all of it, and writes the fields that a subnet manager may set (IBA vol. 1
//! §14.2.5.6).

use crate::wire::smp::{DATA_LEN, PhysicalState, PortInfoWire, PortState, Smp};
use ibarr_common::wire::mad::Status;
use zerocopy::IntoBytes;

use super::{Effect, LinkCommand};
use crate::node::{Node, Port};

pub(super) fn handle(
    node: &mut Node,
    entry: u8,
    smp: &mut Smp,
    is_set: bool,
) -> Result<Effect, Status> {
    let [.., number] = smp.modifier().to_be_bytes();
    let is_switch = node.switch.is_some();
    // For a channel adapter, 0 means the port at which the request arrived.
    let number = if number == 0 && !is_switch { entry } else { number };
    let may_read = node
        .port(node.addressed_port(entry))
        .is_some_and(|port| port.info.m_key_protect() == 0 || port.info.m_key.get() == smp.m_key());
    let port = node.port_mut(number).ok_or(Status::BAD_FIELD)?;

    let effect = if is_set {
        let wanted: PortInfoWire = zerocopy::transmute!(*smp.data());
        let link = set(port, &wanted, is_switch && number != 0, number == 0)?;
        Effect::Port { number, link, reregister: wanted.client_reregister() }
    } else {
        Effect::None
    };
    let mut info = PortInfoWire { local_port: entry, ..port.info };
    if !may_read {
        info.m_key = 0.into();
    }
    *smp.data_mut() = zerocopy::transmute!(info);
    Ok(effect)
}

/// Sets the fields that may be set; none of them if a value is illegal.
fn set(
    port: &mut Port,
    wanted: &PortInfoWire,
    is_external: bool,
    is_port_0: bool,
) -> Result<Option<LinkCommand>, Status> {
    let state = state_after(port.info.state(), wanted, is_port_0)?;
    let link = match wanted.physical_default >> 4 {
        0 if wanted.speed_supported_state & 0x0f == PortState::Down.get() => {
            Some(LinkCommand::Retrain)
        }
        0 => None,
        number => match PhysicalState::new(number) {
            Some(PhysicalState::Polling) => Some(LinkCommand::Retrain),
            Some(PhysicalState::Disabled | PhysicalState::Sleep) => Some(LinkCommand::Disable),
            // A manager cannot make the link come up.
            Some(PhysicalState::LinkUp) | None => return Err(Status::BAD_FIELD),
        },
    };
    let has_own_lid = !is_external;
    if has_own_lid && wanted.lid().is_some_and(|lid| !lid.is_unicast())
        || wanted.sm_lid().is_some_and(|lid| !lid.is_unicast())
        || wanted.mtu() > port.info.mtu_cap()
    {
        return Err(Status::BAD_FIELD);
    }

    let old = port.info;
    let mut new = old;
    let bytes = new.as_mut_bytes().iter_mut().zip(wanted.as_bytes());
    for ((to, from), mask) in bytes.zip(SETTABLE) {
        *to = *to & !mask | *from & mask;
    }
    if is_external {
        // These fields belong to the switch, and its port 0 has them.
        (new.m_key, new.gid_prefix, new.lid, new.sm_lid) =
            (old.m_key, old.gid_prefix, old.lid, old.sm_lid);
        new.m_key_protect_lmc = old.m_key_protect_lmc;
    }
    new.width_enabled = enabled(old.width_enabled, wanted.width_enabled, old.width_supported);
    let speed = enabled(
        old.speed_active_enabled & 0x0f,
        wanted.speed_active_enabled & 0x0f,
        old.speed_supported_state >> 4,
    );
    new.speed_active_enabled = old.speed_active_enabled & 0xf0 | speed & 0x0f;
    new.speed_ext_enabled = match wanted.speed_ext_enabled & 0x1f {
        // No speed above QDR.
        30 => 0,
        speeds => enabled(old.speed_ext_enabled, speeds, old.speed_ext_active & 0x0f),
    };
    let speeds =
        enabled(old.speed_ext_2 & 0x07, wanted.speed_ext_2 & 0x07, old.speed_ext_2 >> 3 & 0x03);
    new.speed_ext_2 = old.speed_ext_2 & 0x78 | speeds;
    // 0 leaves these fields unchanged.
    keep_high_nibble(&mut new.mtu_sm_sl, old.mtu_sm_sl);
    keep_high_nibble(&mut new.vls_enforcement, old.vls_enforcement);
    if wanted.physical_default.trailing_zeros() >= 4 {
        new.physical_default = new.physical_default & 0xf0 | old.physical_default & 0x0f;
    }
    for (counter, wanted) in [
        (&mut new.m_key_violations, wanted.m_key_violations),
        (&mut new.p_key_violations, wanted.p_key_violations),
        (&mut new.q_key_violations, wanted.q_key_violations),
    ] {
        // These counters can only be cleared.
        if wanted.get() == 0 {
            *counter = 0.into();
        }
    }
    new.set_state(state);
    port.info = new;
    Ok(link)
}

/// The bits that a manager may write without further checks.
const SETTABLE: [u8; DATA_LEN] = {
    let mut mask = [0; DATA_LEN];
    let mut at = 0;
    // M_Key, GidPrefix, LID, MasterSMLID.
    while at < 20 {
        mask[at] = 0xff;
        at += 1;
    }
    // M_KeyLeasePeriod.
    mask[26] = 0xff;
    mask[27] = 0xff;
    // LinkDownDefaultState.
    mask[33] = 0x0f;
    // M_KeyProtectBits, LMC.
    mask[34] = 0xc7;
    // NeighborMTU, MasterSMSL.
    mask[36] = 0xff;
    // InitType.
    mask[37] = 0x0f;
    // VLHighLimit.
    mask[38] = 0xff;
    // VLStallCount, HOQLife.
    mask[42] = 0xff;
    // OperationalVLs and the enforcement bits.
    mask[43] = 0xff;
    // SubnetTimeOut.
    mask[51] = 0x1f;
    // LocalPhyErrors, OverrunErrors.
    mask[53] = 0xff;
    mask
};

/// The requested state (IBA vol. 1 §7.2.4): one step up, or unchanged. Only the link itself goes
/// down.
fn state_after(
    now: PortState,
    wanted: &PortInfoWire,
    is_port_0: bool,
) -> Result<PortState, Status> {
    let number = wanted.speed_supported_state & 0x0f;
    if number == 0 || is_port_0 {
        return Ok(now);
    }
    match (now, PortState::new(number)) {
        (_, Some(PortState::Down)) => Ok(now),
        (PortState::Initialize | PortState::Armed, Some(PortState::Armed)) => Ok(PortState::Armed),
        (PortState::Armed | PortState::Active, Some(PortState::Active)) => Ok(PortState::Active),
        _ => Err(Status::BAD_FIELD),
    }
}

/// The enabled widths or speeds: 0 leaves the old ones, all ones means all supported ones.
fn enabled(old: u8, wanted: u8, supported: u8) -> u8 {
    match wanted & supported {
        0 => old,
        possible => possible,
    }
}

fn keep_high_nibble(new: &mut u8, old: u8) {
    if *new >> 4 == 0 {
        *new = *new & 0x0f | old & 0xf0;
    }
}
