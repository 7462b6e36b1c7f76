// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The performance management agent of a node: the counters of its ports (IBA vol. 1 §16.1).

use crate::wire::perf::{
    ALL_PORT_SELECT, CLASS_VERSION, DATA_LEN, EXTENDED_WIDTH, HeaderWire, PORT_COUNTERS,
    PORT_COUNTERS_EXTENDED, PortCountersExtendedWire, PortCountersWire,
};
use ibarr_common::wire::class_port_info::ClassPortInfo;
use ibarr_common::wire::mad::{self, AttributeId, Class, Header, Method, Status};
use zerocopy::{FromBytes, IntoBytes};

use crate::node::{Counters, Node};

/// Port number that selects all ports.
const ALL_PORTS: u8 = 255;

/// The answer to a MAD to the general services. `None` if it is not for this agent.
pub(crate) fn handle(node: &mut Node, mad: &[u8]) -> Option<[u8; mad::LEN]> {
    let (header, _) = Header::parse(mad).ok()?;
    let asks = matches!(header.method, Method::GET | Method::SET);
    if header.class != Class::PERFORMANCE || header.class_version != CLASS_VERSION || !asks {
        return None;
    }
    let mut answer: [u8; mad::LEN] = mad.try_into().ok()?;
    let (_, data) = answer.split_at_mut(size_of::<HeaderWire>());
    let status = match attribute(node, &header, data) {
        Ok(()) => Status::OK,
        Err(status) => status,
    };
    let header = Header { method: Method::GET_RESP, status, ..header };
    answer.iter_mut().zip(header.wire().as_bytes()).for_each(|(to, from)| *to = *from);
    Some(answer)
}

fn attribute(node: &mut Node, header: &Header, data: &mut [u8]) -> Result<(), Status> {
    let is_set = header.method == Method::SET;
    match header.attribute {
        AttributeId::CLASS_PORT_INFO if !is_set => {
            let mut info = ClassPortInfo::default().wire();
            info.class_version = CLASS_VERSION;
            info.capability_mask = (ALL_PORT_SELECT | EXTENDED_WIDTH).into();
            put(data, &info);
        }
        PORT_COUNTERS => {
            let (wanted, _) =
                PortCountersWire::read_from_prefix(data).map_err(|_| Status::BAD_FIELD)?;
            if is_set {
                clear(node, wanted.port)?;
            }
            let counters = select(node, wanted.port)?;
            put(data, &PortCountersWire { port: wanted.port, ..narrow(&counters) });
        }
        PORT_COUNTERS_EXTENDED => {
            let (wanted, _) =
                PortCountersExtendedWire::read_from_prefix(data).map_err(|_| Status::BAD_FIELD)?;
            if is_set {
                clear(node, wanted.port)?;
            }
            let counters = select(node, wanted.port)?;
            put(data, &PortCountersExtendedWire { port: wanted.port, ..wide(&counters) });
        }
        _ => return Err(Status::BAD_METHOD_OF_ATTRIBUTE),
    }
    Ok(())
}

/// The counters of a port, or the sum over all ports.
fn select(node: &Node, number: u8) -> Result<Counters, Status> {
    if number != ALL_PORTS {
        return node.port(number).map(|port| port.counters).ok_or(Status::BAD_FIELD);
    }
    Ok(node.ports().fold(Counters::default(), |sum, (_, port)| sum.plus(&port.counters)))
}

/// Clears all counters of a port, whatever a Set selects, because senders want that.
fn clear(node: &mut Node, number: u8) -> Result<(), Status> {
    let numbers = if number == ALL_PORTS { 1..=node.port_count() } else { number..=number };
    for number in numbers {
        node.port_mut(number).ok_or(Status::BAD_FIELD)?.counters = Counters::default();
    }
    Ok(())
}

/// Counters stop at their highest value.
fn narrow(counters: &Counters) -> PortCountersWire {
    let byte = |count: u64| u8::try_from(count).unwrap_or(u8::MAX);
    let short = |count: u64| u16::try_from(count).unwrap_or(u16::MAX).into();
    let word = |count: u64| u32::try_from(count).unwrap_or(u32::MAX).into();
    PortCountersWire {
        symbol_errors: short(counters.symbol_errors),
        link_downed: byte(counters.link_downed),
        receive_errors: short(counters.receive_errors),
        relay_errors: short(counters.relay_errors),
        send_discards: short(counters.send_discards),
        send_constraint_errors: byte(counters.send_constraint_errors),
        receive_constraint_errors: byte(counters.receive_constraint_errors),
        sent_words: word(counters.sent_words),
        received_words: word(counters.received_words),
        sent_packets: word(counters.sent_packets),
        received_packets: word(counters.received_packets),
        ..PortCountersWire::default()
    }
}

fn wide(counters: &Counters) -> PortCountersExtendedWire {
    PortCountersExtendedWire {
        sent_words: counters.sent_words.into(),
        received_words: counters.received_words.into(),
        sent_packets: counters.sent_packets.into(),
        received_packets: counters.received_packets.into(),
        sent_unicast: (counters.sent_packets - counters.sent_multicast).into(),
        received_unicast: (counters.received_packets - counters.received_multicast).into(),
        sent_multicast: counters.sent_multicast.into(),
        received_multicast: counters.received_multicast.into(),
        ..PortCountersExtendedWire::default()
    }
}

fn put(data: &mut [u8], attribute: &(impl IntoBytes + zerocopy::Immutable)) {
    data.fill(0);
    data.iter_mut().zip(attribute.as_bytes()).for_each(|(to, from)| *to = *from);
}

const _: () = assert!(size_of::<PortCountersExtendedWire>() <= DATA_LEN);
