// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The subnet management agent of a node: the attributes that it reports, and those that a subnet
//! manager can change (IBA vol. 1 §14.2.5).

mod port_info;

use crate::wire::smp::{
    GUID_INFO, LINEAR_FORWARDING, MULTICAST_FORWARDING, NODE_DESCRIPTION, NODE_INFO, NodeInfoWire,
    P_KEY_TABLE, PORT_INFO, SL_TO_VL_TABLE, SWITCH_INFO, Smp, SwitchInfoWire, VL_ARBITRATION,
};
use ibarr_common::ib::{Lid, PortNum};
use ibarr_common::wire::mad::{Method, Status};
use zerocopy::network_endian::{U16, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::node::{LINEAR_CAP, MULTICAST_CAP, NO_PORT, Node, Switch};

/// The effect of a subnet manager's request, besides its answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Effect {
    /// Nothing.
    None,
    /// The state of a port has changed.
    Port {
        number: u8,
        /// Command for its link.
        link: Option<LinkCommand>,
        /// Clients have to register anew.
        reregister: bool,
    },
}

/// A command of PortInfo for a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LinkCommand {
    /// Go down, and come up again unless something prevents it.
    Retrain,
    /// Go down and stay down.
    Disable,
}

/// The M_Key is wrong, so the request gets no answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct WrongMKey;

/// Executes the request `smp` at `node`, which it entered by port `entry`, and turns it into the
/// answer.
pub(crate) fn handle(node: &mut Node, entry: u8, smp: &mut Smp) -> Result<Effect, WrongMKey> {
    check_m_key(node, entry, smp)?;
    let is_set = match smp.method() {
        Method::GET => false,
        Method::SET => true,
        _ => {
            smp.answer(Status::BAD_METHOD);
            return Ok(Effect::None);
        }
    };
    let result = match smp.attribute() {
        NODE_DESCRIPTION if !is_set => {
            *smp.data_mut() = node.description;
            Ok(Effect::None)
        }
        NODE_INFO if !is_set => {
            node_info(node, entry, smp);
            Ok(Effect::None)
        }
        PORT_INFO => port_info::handle(node, entry, smp, is_set),
        P_KEY_TABLE => p_keys(node, entry, smp, is_set),
        GUID_INFO => guids(node, entry, smp, is_set),
        SL_TO_VL_TABLE => sl_to_vl(node, entry, smp, is_set),
        VL_ARBITRATION => vl_arbitration(node, entry, smp, is_set),
        SWITCH_INFO | LINEAR_FORWARDING | MULTICAST_FORWARDING => match &mut node.switch {
            Some(switch) => switch_table(switch, smp, is_set),
            None => Err(Status::BAD_METHOD_OF_ATTRIBUTE),
        },
        _ => Err(Status::BAD_METHOD_OF_ATTRIBUTE),
    };
    let (effect, status) = match result {
        Ok(effect) => (effect, Status::OK),
        Err(status) => (Effect::None, status),
    };
    smp.answer(status);
    Ok(effect)
}

/// IBA vol. 1 §14.2.4: an M_Key of 0 protects nothing; protection 0 and 1 allow all reads.
fn check_m_key(node: &mut Node, entry: u8, smp: &Smp) -> Result<(), WrongMKey> {
    let Some(port) = node.port_mut(node.addressed_port(entry)) else { return Ok(()) };
    let own = port.info.m_key.get();
    let may_read = smp.method() == Method::GET && port.info.m_key_protect() < 2;
    if own == 0 || own == smp.m_key() || may_read {
        return Ok(());
    }
    let violations = port.info.m_key_violations.get().saturating_add(1);
    port.info.m_key_violations = violations.into();
    Err(WrongMKey)
}

fn node_info(node: &Node, entry: u8, smp: &mut Smp) {
    let guid = node.port(node.addressed_port(entry)).map_or(0, |port| port.guid.get());
    let info = NodeInfoWire { port_guid: guid.into(), local_port: entry, ..node.info };
    put(smp, &info);
}

fn p_keys(node: &mut Node, entry: u8, smp: &mut Smp, is_set: bool) -> Result<Effect, Status> {
    let [_, port, high, low] = smp.modifier().to_be_bytes();
    let block = usize::from(u16::from_be_bytes([high, low]));
    // A channel adapter has separate tables for the port at which the request arrived.
    let number = if node.switch.is_some() { port } else { entry };
    let port = node.port_mut(number).ok_or(Status::BAD_FIELD)?;
    let entries = port.pkeys.chunks_mut(32).nth(block).ok_or(Status::BAD_FIELD)?;
    if is_set {
        let wanted: [U16; 32] = zerocopy::transmute!(*smp.data());
        entries.iter_mut().zip(wanted).for_each(|(to, from)| *to = from.get());
    }
    let mut data = <[U16; 32]>::default();
    data.iter_mut().zip(entries).for_each(|(to, from)| *to = (*from).into());
    put(smp, &data);
    Ok(changed_if(is_set, number))
}

fn guids(node: &mut Node, entry: u8, smp: &mut Smp, is_set: bool) -> Result<Effect, Status> {
    let number = node.addressed_port(entry);
    let port = node.port_mut(number).ok_or(Status::BAD_FIELD)?;
    let block = usize::try_from(smp.modifier()).map_err(|_| Status::BAD_FIELD)?;
    let entries = port.guids.chunks_mut(8).nth(block).ok_or(Status::BAD_FIELD)?;
    if is_set {
        let wanted: [U64; 8] = zerocopy::transmute!(*smp.data());
        // The first entry is the port's own, and cannot be changed.
        let fixed = usize::from(block == 0);
        let pairs = entries.iter_mut().zip(wanted).skip(fixed);
        pairs.for_each(|(to, from)| *to = from.get());
    }
    let mut data = <[U64; 8]>::default();
    data.iter_mut().zip(entries).for_each(|(to, from)| *to = (*from).into());
    put(smp, &data);
    Ok(changed_if(is_set, number))
}

/// IBA vol. 1 §14.2.5.8. The mapping has no effect on speed here.
fn sl_to_vl(node: &mut Node, entry: u8, smp: &mut Smp, is_set: bool) -> Result<Effect, Status> {
    let [_, _, input, output] = smp.modifier().to_be_bytes();
    let is_switch = node.switch.is_some();
    let (input, output) = if is_switch { (input, output) } else { (0, entry) };
    if input > node.port_count() {
        return Err(Status::BAD_FIELD);
    }
    let port = node.port_mut(output).ok_or(Status::BAD_FIELD)?;
    let lanes = port.sl_to_vl.entry(input).or_default();
    if is_set {
        lanes.iter_mut().zip(smp.data()).for_each(|(to, from)| *to = *from);
    }
    let lanes = *lanes;
    put(smp, &lanes);
    Ok(Effect::None)
}

/// IBA vol. 1 §14.2.5.9.
fn vl_arbitration(
    node: &mut Node,
    entry: u8,
    smp: &mut Smp,
    is_set: bool,
) -> Result<Effect, Status> {
    let [_, block, _, output] = smp.modifier().to_be_bytes();
    let output = if node.switch.is_some() { output } else { entry };
    let port = node.port_mut(output).ok_or(Status::BAD_FIELD)?;
    let block = usize::from(block).checked_sub(1).ok_or(Status::BAD_FIELD)?;
    let table = port.vl_arbitration.get_mut(block).ok_or(Status::BAD_FIELD)?;
    if is_set {
        *table = *smp.data();
    }
    let table = *table;
    put(smp, &table);
    Ok(Effect::None)
}

fn switch_table(switch: &mut Switch, smp: &mut Smp, is_set: bool) -> Result<Effect, Status> {
    match smp.attribute() {
        SWITCH_INFO => {
            if is_set {
                set_switch_info(switch, smp)?;
            }
            put(smp, &switch.info);
        }
        LINEAR_FORWARDING => {
            let block = usize::try_from(smp.modifier()).map_err(|_| Status::BAD_FIELD)?;
            let start = block.checked_mul(64).filter(|&start| start < usize::from(LINEAR_CAP));
            let range = start.map(|start| start..start + 64).ok_or(Status::BAD_FIELD)?;
            if is_set {
                if switch.linear.len() < range.end {
                    switch.linear.resize(range.end, NO_PORT);
                }
                if let Some(entries) = switch.linear.get_mut(range.clone()) {
                    entries.copy_from_slice(smp.data());
                }
            }
            let entries = switch.linear.get(range).unwrap_or(&[NO_PORT; 64]);
            smp.data_mut().copy_from_slice(entries);
        }
        _ => {
            let [position, _, high, low] = smp.modifier().to_be_bytes();
            let block = u16::from_be_bytes([high, low]) & 0x01ff;
            let position = position >> 4;
            if block >= MULTICAST_CAP / 32 {
                return Err(Status::BAD_FIELD);
            }
            if is_set {
                let wanted: [U16; 32] = zerocopy::transmute!(*smp.data());
                switch.multicast.insert((block, position), wanted);
            }
            let entries = switch.multicast.get(&(block, position)).copied().unwrap_or_default();
            put(smp, &entries);
        }
    }
    Ok(Effect::None)
}

/// IBA vol. 1 §14.2.5.4: the fields that a manager may set.
fn set_switch_info(switch: &mut Switch, smp: &Smp) -> Result<(), Status> {
    let (wanted, _) =
        SwitchInfoWire::read_from_prefix(smp.data()).map_err(|_| Status::BAD_FIELD)?;
    if wanted.linear_top.get() >= LINEAR_CAP {
        return Err(Status::BAD_FIELD);
    }
    let top = wanted.multicast_top.get();
    let groups = Lid::FIRST_MULTICAST.get()..Lid::FIRST_MULTICAST.get() + MULTICAST_CAP;
    if top != 0 && top != Lid::FIRST_MULTICAST.get() - 1 && !groups.contains(&top) {
        return Err(Status::BAD_FIELD);
    }
    let info = &mut switch.info;
    info.linear_top = wanted.linear_top;
    info.multicast_top = wanted.multicast_top;
    info.default_port = wanted.default_port;
    info.default_multicast_primary = wanted.default_multicast_primary;
    info.default_multicast_not_primary = wanted.default_multicast_not_primary;
    // The life time is set; the change bit is cleared by writing 1.
    let change = info.life_time & SwitchInfoWire::PORT_STATE_CHANGE;
    let stays = change & !wanted.life_time;
    info.life_time = wanted.life_time & !SwitchInfoWire::PORT_STATE_CHANGE & 0xf8 | stays;
    Ok(())
}

/// Writes an attribute, padded with zeros.
fn put(smp: &mut Smp, attribute: &(impl IntoBytes + zerocopy::Immutable)) {
    let bytes = attribute.as_bytes();
    smp.data_mut().fill(0);
    smp.data_mut().iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
}

fn changed_if(changed: bool, number: u8) -> Effect {
    if changed && PortNum::new(number).is_some() {
        Effect::Port { number, link: None, reregister: false }
    } else {
        Effect::None
    }
}
