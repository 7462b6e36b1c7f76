// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Packets of the fabric are written as they were read, also after a router.

use ibarr_common::wire::mad::{AttributeId, Method};
use ibarr_fabric::wire::packet::{Datagram, MAX_LEN, OPCODE_UD_SEND, Packet, icrc, route, vcrc};
use ibarr_fabric::wire::smp::Smp;

/// An accepted packet has its payload inside its bytes, and a datagram is written as one that is read as
/// the same. After a router has changed a packet, it is still legal, and its invariant checksum is the
/// same. Bytes that are no SMP are refused in any packet.
///
/// # Panics
/// The claim does not hold for `bytes`.
pub fn packet_codec(bytes: &[u8]) {
    let Ok(packet) = Packet::parse(bytes) else { return };
    let at = packet.payload_at();
    assert!(bytes.len() <= MAX_LEN);
    assert_eq!(&bytes[at..at + packet.payload.len()], packet.payload);
    let _ = vcrc(bytes, icrc(bytes));
    smp(packet.payload);

    if let (Some(pkey), Some(source), OPCODE_UD_SEND) = (packet.pkey, packet.source, packet.opcode)
    {
        let datagram = Datagram {
            vl: packet.vl,
            sl: packet.sl,
            dlid: packet.dlid,
            slid: packet.slid,
            grh: packet.grh,
            pkey,
            destination: packet.destination,
            qkey: 0,
            source,
        };
        let mut again = [0; MAX_LEN];
        if let Some(len) = datagram.emit(packet.payload, &mut again) {
            let again = Packet::parse(&again[..len]).expect("a written packet can be read");
            assert_eq!(again.payload, packet.payload);
            assert_eq!((again.vl, again.sl), (packet.vl, packet.sl));
            assert_eq!((again.dlid, again.slid, again.grh), (packet.dlid, packet.slid, packet.grh));
            assert_eq!((again.pkey, again.source), (packet.pkey, packet.source));
        }
    }

    let mut routed = bytes.to_vec();
    if let (Some(slid), Some(())) = (packet.slid, route_to(&mut routed, &packet)) {
        let again = Packet::parse(&routed).expect("a routed packet is legal");
        assert_eq!((again.dlid, again.slid), (slid, Some(packet.dlid)));
        assert_eq!(icrc(&routed), icrc(bytes));
    }
}

/// Sends the packet back to its source.
fn route_to(bytes: &mut [u8], packet: &Packet<'_>) -> Option<()> {
    let back = packet.slid.filter(|_| packet.dlid.is_unicast())?;
    route(bytes, packet.dlid, back)
}

fn smp(payload: &[u8]) {
    let Ok(mut smp) = Smp::parse(payload) else { return };
    assert_eq!(smp.as_bytes(), payload);
    assert!(smp.hop_count() <= 63 || !smp.is_directed());
    let (method, attribute): (Method, AttributeId) = (smp.method(), smp.attribute());
    smp.set_hop_pointer(smp.hop_pointer());
    assert_eq!(smp.as_bytes(), payload);
    assert_eq!((smp.method(), smp.attribute()), (method, attribute));
}
