// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Compares captures with what tshark decoded.
//!
//! `golden/bring-up.tshark` was recorded from the capture that this test writes, with tshark
//! 4.0.17: `IBARR_PCAP=FILE cargo test -p ibarr-fabric --test pcap`, then `tshark -r FILE -T
//! fields` and the fields that its first line names.

mod support;

use std::time::Duration;

use ibarr_common::ib::{Lid, Qpn};
use ibarr_common::wire::mad::Header;
use ibarr_fabric::pcap;
use ibarr_fabric::wire::packet::{GrhWire, Packet};
use ibarr_fabric::wire::smp::MULTICAST_FORWARDING;

use self::support::{Subnet, emit, gsi_datagram};

const ONE_SWITCH: &str =
    "Switch 2 \"S\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n\nCa 1 \"H1\"\n\nCa 1 \"H2\"\n";

/// The packets on links while a manager configures a subnet, then multicast with a global route
/// header.
fn crossings() -> Vec<Vec<u8>> {
    let mut subnet = Subnet::new(ONE_SWITCH, "H1");
    subnet.fabric.set_capture(true);
    subnet.bring_up();
    let mut block = [0; 64];
    block[1] = 0b110;
    subnet.set(&[1], MULTICAST_FORWARDING, 0, &block);
    let (sender, slid) = (subnet.port("H1"), Lid::new(1).unwrap());
    let mut gids = [[0; 16]; 2];
    gids[0][0] = 0xfe;
    gids[0][1] = 0x80;
    gids[1][0] = 0xff;
    gids[1][1] = 0x12;
    let grh = GrhWire::new(gids[0], gids[1], 1);
    let mut datagram = gsi_datagram(slid, Lid::FIRST_MULTICAST, Some(grh));
    datagram.destination = Qpn::MULTICAST;
    datagram.source = Qpn::new(0x48).unwrap();
    subnet.send(sender, &emit(&datagram, &[0; 5]));
    std::iter::from_fn(|| subnet.fabric.poll_capture()).map(|crossing| crossing.packet).collect()
}

#[test]
fn tshark_decodes_captures_as_we_decode_the_packets() {
    let packets = crossings();
    if let Some(file) = std::env::var_os("IBARR_PCAP") {
        let records = packets
            .iter()
            .zip(0..)
            .flat_map(|(packet, second)| pcap::record(Duration::from_secs(second), packet));
        let bytes: Vec<u8> = pcap::file_header().into_iter().chain(records).collect();
        std::fs::write(file, bytes).unwrap();
    }

    let recorded = include_str!("golden/bring-up.tshark");
    let mut lines = recorded.lines().filter(|line| !line.starts_with('#'));
    for (number, packet) in packets.iter().enumerate() {
        let packet = Packet::parse(packet).unwrap();
        let mad = Header::parse(packet.payload).ok().map(|(header, _)| header);
        let hex = |number: u32, digits: usize| format!("0x{number:0digits$x}");
        let expected = [
            hex(packet.vl.into(), 2),
            packet.dlid.to_string(),
            packet.slid.map_or(0, Lid::get).to_string(),
            packet.grh.map_or(String::new(), |grh| grh.hop_limit.to_string()),
            packet.opcode.to_string(),
            hex(packet.destination.get(), 6),
            mad.map_or(String::new(), |mad| hex(mad.class.get().into(), 2)),
            mad.map_or(String::new(), |mad| hex(mad.method.get().into(), 2)),
            mad.map_or(String::new(), |mad| hex(mad.attribute.get().into(), 4)),
            mad.map_or(String::new(), |mad| hex(mad.modifier, 8)),
        ];
        let line = lines.next().unwrap_or_else(|| panic!("tshark saw {number} packets"));
        assert_eq!(line.split('\t').collect::<Vec<_>>(), expected, "packet {number}");
    }
    assert_eq!(lines.next(), None, "tshark saw more than {} packets", packets.len());
}

/// A file of these blocks is read by tshark 4.0 with no complaint.
#[test]
fn text_and_packets_are_blocks_of_pcapng() {
    let header = pcap::header_with_text();
    let [section, first, second] = &blocks(&header)[..] else { panic!("{header:?}") };
    assert_eq!((section.0, first.0, second.0), (0x0a0d_0d0a, 1, 1));
    let link_type = |body: &[u8]| u16::from_ne_bytes([body[0], body[1]]);
    assert_eq!((link_type(&first.1), link_type(&second.1)), (197, 252));

    let at = Duration::new(3, 5);
    let text = pcap::text(at, "odd");
    let [(kind, body)] = &blocks(&text)[..] else { panic!("{text:?}") };
    let word = |at: usize| u32::from_ne_bytes(body[at..at + 4].try_into().unwrap());
    assert_eq!((*kind, word(0), word(12)), (6, 1, 19));
    assert_eq!(u64::from(word(4)) << 32 | u64::from(word(8)), 3_000_000_005);
    assert_eq!(body[20..], *b"\0\x0c\0\x08syslog\0\0\0\0\0\0odd\0");

    let packet = pcap::packet_with_comment(at, &[0; 28], "A/1 sends");
    let [(kind, body)] = &blocks(&packet)[..] else { panic!("{packet:?}") };
    let classic = pcap::record(at, &[0; 28]);
    let (erf, options) = body[20..].split_at((classic.len() - 16).next_multiple_of(4));
    assert_eq!((*kind, &erf[..classic.len() - 16]), (6, &classic[16..]));
    assert!(options.starts_with(&[1_u16.to_ne_bytes(), 9_u16.to_ne_bytes()].concat()));
    assert_eq!(options[4..], *b"A/1 sends\0\0\0\0\0\0\0");
}

/// Kinds and bodies of blocks, whose length stands before and behind.
fn blocks(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut blocks = Vec::new();
    while !bytes.is_empty() {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let length = usize::try_from(word(4)).unwrap();
        assert_eq!((length % 4, word(length - 4)), (0, word(4)));
        blocks.push((word(0), bytes[8..length - 4].to_vec()));
        bytes = &bytes[length..];
    }
    blocks
}

#[test]
fn capture_has_the_headers_of_the_format() {
    let header = pcap::file_header();
    assert_eq!(header.len(), 24);
    assert_eq!(header[..4], 0xa1b2_3c4d_u32.to_ne_bytes());
    assert_eq!(header[20..], 197_u32.to_ne_bytes());
    let record = pcap::record(Duration::new(3, 500_000_000), &[0; 28]);
    assert_eq!(record.len(), 16 + 16 + 28 + 6);
    assert_eq!(record[..16], [3, 500_000_000, 50, 50].map(u32::to_ne_bytes).concat());
    assert_eq!(record[16..32], [0, 0, 0, 0x80, 3, 0, 0, 0, 21, 4, 0, 50, 0, 0, 0, 34]);
}
