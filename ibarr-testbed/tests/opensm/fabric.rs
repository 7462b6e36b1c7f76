// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! OpenSM brings the software fabric up.

use crate::rig::{Rig, until};

/// Two switches with two hosts each.
const TOPOLOGY: &str = "Switch 4 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n[3] \"S2\"[3]\n\n\
    Switch 4 \"S2\"\n[1] \"H3\"[1]\n[2] \"H4\"[1]\n\n\
    Ca 1 \"H1\"\n\nCa 1 \"H2\"\n\nCa 1 \"H3\"\n\nCa 1 \"H4\"\n";

#[test]
fn opensm_brings_a_fabric_up_and_hears_of_a_cable_by_trap() {
    let rig = Rig::new(TOPOLOGY);
    let manager = rig.manager("H1", "");
    manager.until_says("SUBNET UP");

    let seen = rig.diagnose("H3", &["ibnetdiscover"]);
    for host in ["H1", "H2", "H3", "H4"] {
        let line = seen.lines().find(|line| line.contains(&format!("# \"{host}\" lid ")));
        assert!(line.is_some_and(|line| !line.contains("lid 0 ")), "{host} has no LID:\n{seen}");
    }
    // A request by LID reaches OpenSM on another host, and its answer comes back.
    let sminfo = rig.diagnose("H3", &["sminfo"]);
    assert!(sminfo.contains("SMINFO_MASTER"), "{sminfo}");
    let all_active = || states(&rig.ibfab(&["show"])).all(|state| state == "active");
    assert!(all_active());

    rig.ibfab(&["fault", "cable", "S1/3", "off"]);
    manager.until_says("Removed port with GUID:0x0000000000100005");
    rig.ibfab(&["fault", "cable", "S1/3", "on"]);
    manager.until_says("Discovered new port with GUID:0x0000000000100005");
    until("all ports are active again", all_active);
}

/// The column of states in `ibfab show`.
fn states(shown: &str) -> impl Iterator<Item = &str> {
    let ports = shown.lines().skip(1).take_while(|line| !line.is_empty());
    ports.filter_map(|line| line.split_whitespace().nth(2))
}

#[test]
fn states_are_those_of_ports_only() {
    let shown = "PORT PEER STATE\nS1/1 H1/1 active 2\nS1/3 S2/3 down 2\n\nDropped packets:\n";
    assert_eq!(states(shown).collect::<Vec<_>>(), ["active", "down"]);
}
