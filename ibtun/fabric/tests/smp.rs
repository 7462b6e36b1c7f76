// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Tests of the codecs of packets and SMPs: packets that OpenSM wrote, and round trips.

mod support;

use ibarr_common::ib::{Lid, PKey, Qpn, Sl};
use ibarr_common::wire::mad::{AttributeId, Error, Method, Tid};
use ibarr_fabric::wire::packet::{self, Datagram, GrhWire, MAX_LEN, Packet};
use ibarr_fabric::wire::smp::{
    LINEAR_FORWARDING, MAX_HOPS, PORT_INFO, PortInfoWire, PortState, SM_INFO, SmInfoWire, SmState,
    Smp,
};
use proptest::prelude::*;
use zerocopy::FromBytes as _;

use self::support::golden;

#[test]
fn port_info_that_opensm_sets_is_read() {
    let bytes = golden(include_str!("golden/smp-set-port-info-opensm.hex"));
    let packet = Packet::parse(&bytes).unwrap();
    let smp = Smp::parse(packet.payload).unwrap();
    assert_eq!((smp.method(), smp.attribute()), (Method::SET, PORT_INFO));
    assert!(smp.is_directed() && !smp.is_returning() && !smp.has_lid_routed_part());
    assert_eq!((smp.hop_pointer(), smp.hop_count(), smp.modifier()), (1, 3, 1));
    assert_eq!([1, 2, 3, 4].map(|hop| smp.exit(hop)), [1, 3, 1, 0]);
    let info: PortInfoWire = zerocopy::transmute!(*smp.data());
    assert_eq!((info.lid(), info.sm_lid()), (Lid::new(4), Lid::new(1)));
    assert_eq!((info.lmc(), info.mtu(), info.sm_sl()), (0, 5, Sl::default()));
    assert!(info.client_reregister());
    assert_eq!(info.subnet_timeout(), 18);
    // It requests no change of the state: 0 means none.
    assert_eq!(info.speed_supported_state & 0x0f, 0);
    assert_eq!(PortState::new(0), None);
}

#[test]
fn forwarding_table_that_opensm_sets_is_read() {
    let bytes = golden(include_str!("golden/smp-set-linear-forwarding-opensm.hex"));
    let smp = Smp::parse(Packet::parse(&bytes).unwrap().payload).unwrap();
    assert_eq!((smp.method(), smp.attribute()), (Method::SET, LINEAR_FORWARDING));
    assert_eq!(smp.modifier(), 0);
    // LIDs 1 and 3 are hosts at ports 1 and 2, 2 is the switch, 4 to 6 are behind port 3.
    assert_eq!(smp.data()[..8], [255, 1, 0, 2, 3, 3, 3, 255]);
}

#[test]
fn sm_info_of_opensm_is_read() {
    let bytes = golden(include_str!("golden/smp-sm-info-resp-opensm.hex"));
    let packet = Packet::parse(&bytes).unwrap();
    let smp = Smp::parse(packet.payload).unwrap();
    assert_eq!((smp.method(), smp.attribute()), (Method::GET_RESP, SM_INFO));
    assert!(!smp.is_directed());
    let (info, _) = SmInfoWire::read_from_prefix(smp.data()).unwrap();
    assert_eq!((info.guid.get(), info.state()), (0x10_0001, Some(SmState::Master)));
    assert_eq!(info.priority_state >> 4, 0);
}

#[test]
fn smp_of_opensm_is_written_byte_for_byte() {
    let bytes = golden(include_str!("golden/smp-set-port-info-opensm.hex"));
    let recorded = Smp::parse(Packet::parse(&bytes).unwrap().payload).unwrap();
    let mut smp = Smp::directed(Method::SET, PORT_INFO, &[1, 3, 1]).unwrap();
    smp.set_hop_pointer(1);
    smp.set_modifier(1);
    smp.set_tid(recorded.tid());
    *smp.data_mut() = *recorded.data();
    assert_eq!(smp.as_bytes(), recorded.as_bytes());
}

#[test]
fn malformed_smps_are_refused_for_their_reason() {
    let legal = Smp::directed(Method::GET, PORT_INFO, &[1, 2]).unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = legal.as_bytes().to_vec();
        bytes[at] = byte;
        Smp::parse(&bytes).map(|_| ()).unwrap_err()
    };
    assert_eq!(with(0, 2), Error::BaseVersion);
    assert_eq!(with(1, 3), Error::Class);
    assert_eq!(with(2, 2), Error::ClassVersion);
    assert_eq!(with(6, 4), Error::Hops);
    assert_eq!(with(7, 64), Error::Hops);
    assert_eq!(Smp::parse(&legal.as_bytes()[..255]).unwrap_err(), Error::Truncated);
    let too_long = [1; MAX_HOPS as usize + 1];
    assert!(Smp::directed(Method::GET, PORT_INFO, &too_long).is_none());
    assert!(Smp::directed(Method::GET, PORT_INFO, &too_long[1..]).is_some());
}

#[test]
fn malformed_packets_are_refused_for_their_reason() {
    let legal = golden(include_str!("golden/smp-set-port-info-opensm.hex"));
    let with = |at: usize, byte: u8| {
        let mut bytes = legal.clone();
        bytes[at] = byte;
        Packet::parse(&bytes).map(|_| ()).unwrap_err()
    };
    assert_eq!(with(0, 0xf1), packet::Error::Version);
    assert_eq!(with(1, 0x00), packet::Error::Raw);
    assert_eq!(with(1, 0x03), packet::Error::Global);
    assert_eq!(with(5, 0x49), packet::Error::Length);
    assert_eq!(with(9, 0x01), packet::Error::Version);
    let mut nowhere = legal.clone();
    nowhere[2..4].fill(0);
    assert_eq!(Packet::parse(&nowhere).unwrap_err(), packet::Error::Destination);
    let mut group = legal.clone();
    group[6..8].copy_from_slice(&[0xc0, 0]);
    assert_eq!(Packet::parse(&group).unwrap_err(), packet::Error::Source);
    assert_eq!(Packet::parse(&legal[..7]).unwrap_err(), packet::Error::Truncated);
    assert_eq!(Packet::parse(&[0; MAX_LEN + 4]).unwrap_err(), packet::Error::Length);
}

proptest! {
    #[test]
    fn emitted_datagram_is_parsed_back(
        (vl, sl) in (0..16_u8, 0..16_u8),
        (dlid, slid) in (1..=u16::MAX, 0..=0xbfff_u16),
        grh in any::<Option<[[u8; 16]; 2]>>(),
        (pkey, qpns) in (1..0x7fff_u16, [0..0x0100_0000_u32, 0..0x0100_0000_u32]),
        payload in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let datagram = Datagram {
            vl,
            sl: Sl::new(sl).unwrap(),
            dlid: Lid::new(dlid).unwrap(),
            slid: Lid::new(slid),
            grh: grh.map(|[sgid, dgid]| GrhWire::new(sgid, dgid, 1)),
            pkey: PKey::new(pkey).unwrap(),
            destination: Qpn::new(qpns[0]).unwrap(),
            qkey: packet::GSI_QKEY,
            source: Qpn::new(qpns[1]).unwrap(),
        };
        let mut bytes = [0xa5; MAX_LEN];
        let len = datagram.emit(&payload, &mut bytes).unwrap();
        prop_assert_eq!(len % 4, 0);
        let read = Packet::parse(&bytes[..len]).unwrap();
        prop_assert_eq!((read.vl, read.sl), (vl, datagram.sl));
        prop_assert_eq!((read.dlid, read.slid), (datagram.dlid, datagram.slid));
        prop_assert_eq!((read.pkey, read.destination), (Some(datagram.pkey), datagram.destination));
        prop_assert_eq!((read.source, read.payload), (Some(datagram.source), &payload[..]));
        let gids = read.grh.map(|grh| [grh.sgid, grh.dgid]);
        prop_assert_eq!(gids, grh);
        // A shorter buffer is refused, and stays unchanged.
        let mut short = vec![0xa5; len - 1];
        prop_assert_eq!(datagram.emit(&payload, &mut short), None);
        prop_assert!(short.iter().all(|byte| *byte == 0xa5));
    }

    #[test]
    fn answer_keeps_all_but_method_status_and_direction(
        path in prop::collection::vec(any::<u8>(), 0..=63),
        (tid, attribute, modifier) in any::<(u64, u16, u32)>(),
    ) {
        let mut smp = Smp::directed(Method::GET, AttributeId::new(attribute), &path).unwrap();
        smp.set_tid(Tid::new(tid));
        smp.set_modifier(modifier);
        let before = smp;
        smp.answer(ibarr_common::wire::mad::Status::BAD_FIELD);
        prop_assert!(smp.is_returning());
        prop_assert_eq!(smp.status(), ibarr_common::wire::mad::Status::BAD_FIELD);
        prop_assert_eq!(&smp.as_bytes()[6..], &before.as_bytes()[6..]);
    }
}
