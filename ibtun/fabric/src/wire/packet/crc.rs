// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The two checksums of a packet (IBA vol. 1 §7.8). Wireshark checks them.

use crc::{Algorithm, CRC_32_ISO_HDLC, Crc};

/// The invariant checksum, which follows the packet. It covers everything; fields that switches and
/// routers change count as ones. `packet` starts at its LRH.
///
/// It is the reflected CRC-32 of Ethernet, sent with the lowest byte first.
pub fn icrc(packet: &[u8]) -> [u8; 4] {
    let is_global = packet.get(1).is_some_and(|sl_next| sl_next & 3 == 3);
    let mut crc = CRC32.digest();
    for (at, &byte) in packet.iter().enumerate() {
        let variant = if is_global {
            match at {
                // The LRH, the flow label, the hop limit, the BTH's reserved byte.
                0..8 | 9..12 | 15 | 52 => 0xff,
                8 => 0x0f,
                _ => 0,
            }
        } else {
            match at {
                // The virtual lane, the BTH's reserved byte.
                0 => 0xf0,
                12 => 0xff,
                _ => 0,
            }
        };
        crc.update(&[byte | variant]);
    }
    crc.finalize().to_le_bytes()
}

/// The variant checksum, which follows the invariant one. It covers the packet and the invariant checksum.
///
/// It is a reflected CRC-16 of polynomial 0x100b, sent with the lowest byte first.
pub fn vcrc(packet: &[u8], icrc: [u8; 4]) -> [u8; 2] {
    let mut crc = CRC16.digest();
    crc.update(packet);
    crc.update(&icrc);
    crc.finalize().to_le_bytes()
}

static CRC32: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

static CRC16: Crc<u16> = Crc::<u16>::new(&Algorithm {
    width: 16,
    poly: 0x100b,
    init: u16::MAX,
    refin: true,
    refout: true,
    xorout: u16::MAX,
    check: 0,
    residue: 0,
});

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of a local packet in IBA vol. 1 §7.8.
    const LOCAL: [u8; 52] = [
        0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, 0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1,
        0xb3, 0x00, 0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2,
        0x7a, 0x05, 0x00, 0x00, 0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72,
        0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0x00, 0x00,
    ];

    #[test]
    fn invariant_checksum_matches_the_example_of_the_specification() {
        assert_eq!(icrc(&LOCAL), [0x96, 0x25, 0xb7, 0x5a]);
    }

    #[test]
    fn invariant_checksum_ignores_fields_that_switches_and_routers_change() {
        let mut global = [0; 68];
        global[1] = 3;
        let local: &[(usize, u8)] = &[(0, 0xf0), (12, 0xff)];
        let routed: &[(usize, u8)] = &[(8, 0x0f), (15, 0xff), (52, 0xff)];
        for (packet, variant, all_of) in
            [(&mut { LOCAL }[..], local, [0..0, 0..0]), (&mut global, routed, [0..8, 9..12])]
        {
            let checksum = icrc(packet);
            // The link next header, bits 0 and 1 of byte 1, decides which fields are variant.
            let bits = (0..packet.len()).flat_map(|at| (0..8).map(move |bit| (at, bit)));
            for (at, bit) in bits.filter(|bit| !matches!(bit, (1, 0 | 1))) {
                let mask =
                    variant.iter().find(|(byte, _)| *byte == at).map_or(0, |(_, mask)| *mask);
                let varies = mask & 1 << bit != 0 || all_of.iter().any(|range| range.contains(&at));
                packet[at] ^= 1 << bit;
                assert_eq!(icrc(packet) == checksum, varies, "byte {at}, bit {bit}");
                packet[at] ^= 1 << bit;
            }
        }
    }

    #[test]
    fn variant_checksum_equals_the_bitwise_remainder() {
        let checksum = icrc(&LOCAL);
        let bits = LOCAL
            .iter()
            .chain(&checksum)
            .flat_map(|byte| (0..8).map(move |bit| u16::from(byte >> bit & 1)));
        let mut crc = u16::MAX;
        for bit in bits {
            let feedback = crc >> 15 ^ bit;
            crc = crc << 1 ^ if feedback == 1 { 0x100b } else { 0 };
        }
        assert_eq!(vcrc(&LOCAL, checksum), (!crc.reverse_bits()).to_le_bytes());
    }
}
