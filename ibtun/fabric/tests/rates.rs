// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Links of each speed, as PortInfo tells it.

mod support;

use ibarr_fabric::wire::smp::{PORT_INFO, PortInfoWire};

use zerocopy::IntoBytes as _;

use self::support::Subnet;

/// A switch with a channel adapter at each speed; a manager runs on the first.
fn fabric(rates: &[&str]) -> String {
    let cable = |(index, rate): (usize, &&str)| {
        format!("[{}] \"H{index}\"[1] # \"H{index}\" lid 0 {rate}\n", index + 1)
    };
    let cables: String = rates.iter().enumerate().map(cable).collect();
    let adapters = (0..rates.len()).map(|index| format!("\nCa 1 \"H{index}\"\n"));
    format!("Switch 20 \"S\"\n{cables}{}", adapters.collect::<String>())
}

/// LinkWidthActive, LinkSpeedActive, LinkSpeedExtActive and LinkSpeedExtActive2.
fn active(info: &PortInfoWire) -> [u8; 4] {
    let speed = info.speed_active_enabled >> 4;
    [info.width_active, speed, info.speed_ext_active >> 4, info.speed_ext_2 >> 5]
}

#[test]
fn port_info_tells_the_speed_of_a_link() {
    let expected = [
        ("4xQDR", [2, 4, 0, 0], 4),
        ("1xSDR", [1, 1, 0, 0], 1),
        ("8xDDR", [4, 2, 0, 0], 2),
        ("12xFDR", [8, 4, 1, 0], 16),
        ("4xEDR", [2, 4, 2, 0], 32),
        ("2xHDR", [16, 4, 4, 0], 64),
        ("4xNDR", [2, 4, 8, 0], 128),
        // Linux before 6.7 has no bit for it.
        ("4xXDR", [2, 4, 0, 1], 128),
    ];
    let mut subnet = Subnet::new(&fabric(&expected.map(|(rate, ..)| rate)), "H0");
    for (number, (rate, in_port_info, for_linux)) in (1..).zip(expected) {
        let info = support::port_info(&subnet.get(&[1], PORT_INFO, number));
        assert_eq!(active(&info), in_port_info, "{rate}");
        let port = subnet.port(&format!("S/{number}"));
        assert_eq!(subnet.fabric.port_config(port).unwrap().speed, for_linux, "{rate}");
    }
    // infiniband-diags look at port 0 of a switch to know which fields are valid.
    let info = support::port_info(&subnet.get(&[1], PORT_INFO, 0));
    let capabilities = PortInfoWire::HAS_EXTENDED_SPEEDS | PortInfoWire::HAS_CAPABILITY_MASK_2;
    assert_eq!(info.capability_mask.get() & capabilities, capabilities);
    assert_eq!(info.capability_mask_2.get(), PortInfoWire::HAS_EXTENDED_SPEEDS_2);
    let info = support::port_info(&subnet.get(&[1], PORT_INFO, 1));
    assert_eq!(info.capability_mask.get() & capabilities, 0);
}

#[test]
fn manager_enables_speeds_that_the_port_supports() {
    let mut subnet = Subnet::new(&fabric(&["4xXDR"]), "H0");
    for (extended, extended_2, expected) in [
        // All that are supported; the slowest; none; no change.
        (31, 7, (0x0f, 0x29)),
        (1, 1, (0x01, 0x29)),
        (30, 0, (0x00, 0x29)),
        (0, 0, (0x00, 0x29)),
        (8, 0, (0x08, 0x29)),
    ] {
        let info = PortInfoWire {
            speed_ext_enabled: extended,
            speed_ext_2: extended_2,
            ..PortInfoWire::default()
        };
        let answer = subnet.set(&[1], PORT_INFO, 1, info.as_bytes());
        let answer = support::port_info(&answer);
        assert_eq!((answer.speed_ext_enabled, answer.speed_ext_2), expected, "{extended}");
    }
}
