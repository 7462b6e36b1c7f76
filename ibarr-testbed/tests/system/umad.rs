// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The daemon with a subnet administrator that is wrong, and with a umad device that vanishes.

use ibarr_common::ib::{Gid, Guid, Lid, PKey, SubnetPrefix};
use ibarr_common::wire::mad::{self, Transaction};
use ibarr_common::wire::sa::{Question, Request};
use ibarr_common::wire::umad::HeaderWire;
use ibarr_sim::kernel::{PathOutcome, Reason};
use ibarr_sim::sa::{AddressedPort, StandIn, Subnet};
use ibarr_testbed::umad::{Administrator, Directory, Loss, Port, Shown};
use zerocopy::{FromZeros, IntoBytes};

use crate::daemon::{Daemon, name, request};
use crate::machine::Machine;

pub(crate) fn administrator() -> Administrator {
    let mut subnet = Subnet::new(SubnetPrefix::DEFAULT);
    for guid in 1..=8 {
        let port = AddressedPort { lid: Lid::new(guid).unwrap(), pkeys: vec![PKey::DEFAULT] };
        subnet.ports.insert(Guid::new(guid.into()), port);
    }
    Administrator::new(StandIn::new(subnet, Lid::new(1).unwrap(), 1))
}

pub(crate) fn gid(guid: u8) -> Gid {
    format!("fe80::{guid:x}").parse().unwrap()
}

pub(crate) fn port(directory: &Directory, sa: &Administrator) -> Port {
    let shown = Shown::active(Lid::new(8).unwrap(), gid(8), Lid::new(1).unwrap());
    Port::new(directory, name(), 0, Some(shown), sa.clone()).unwrap()
}

/// It comes back within a second, so that sysfs looks the same before and after; some kernels do not
/// report it.
#[test]
fn a_device_that_was_gone_for_a_moment_is_opened_again() {
    for loss in [Loss::Told, Loss::OnlyToWriters] {
        let machine = Machine::new();
        let directory = Directory::new(machine.directory());
        let port = port(&directory, &administrator());
        let daemon = Daemon::start(&machine, "");
        daemon.until(|daemon| is_found(daemon, 2));
        for guid in 3..=5 {
            port.unplug(loss).unwrap();
            port.plug().unwrap();
            daemon.until(|daemon| is_found(daemon, guid));
        }
    }
}

fn is_found(daemon: &Daemon, guid: u8) -> Option<()> {
    let said = daemon.ask(&["path", &gid(guid).to_string()])?;
    (said["path"]["status"] == "found").then_some(())
}

#[test]
fn malformed_answers_are_counted_by_reason_and_delay_no_caller() {
    const RECORD: usize = 56;
    // Wrong class version, method, attribute, DGID, DLID; the last one is a path to another port.
    let changes: [fn(&mut [u8; mad::LEN]); 6] = [
        |mad| mad[2] = 1,
        |mad| mad[3] = 0x92,
        |mad| mad[17] = 0x36,
        |mad| mad[RECORD + 8..RECORD + 24].fill(0),
        |mad| mad[RECORD + 40..RECORD + 42].fill(0),
        |mad| mad[RECORD + 23] ^= 0x80,
    ];
    let counters = [
        "sa.malformed-version",
        "sa.malformed-kind",
        "sa.malformed-kind",
        "sa.malformed-value",
        "sa.malformed-value",
        "paths.wrong-path",
    ];
    let machine = Machine::new();
    let directory = Directory::new(machine.directory());
    let sa = administrator();
    let port = port(&directory, &sa);
    let mut daemon = Daemon::start(&machine, "");
    daemon.until(|daemon| is_found(daemon, 2));
    // The path, and the abilities of the SA.
    daemon.until(|daemon| (daemon.count("sa.answered") == 2).then_some(()));

    for (change, counter) in changes.into_iter().zip(counters) {
        let before = daemon.count(counter);
        sa.tamper(change);
        let (outcome, _) = daemon.resolve(request(gid(8), gid(3), 1));
        assert_eq!(outcome, PathOutcome::AsksSa(Reason::Told), "{counter}");
        assert_eq!(daemon.count(counter), before + 1, "{counter}");
    }
    assert_eq!(daemon.count("local-service.paths-refused"), 6);
    sa.tamper(|_| {});

    let header = |agent: u32, status: u32| {
        let mut header = HeaderWire::new_zeroed();
        (header.agent, header.status) = (agent.into(), status.into());
        header.as_bytes().to_vec()
    };
    let ours = 0;
    let unasked = || {
        let question = Question::ClassPortInfo;
        let mut mad = *Request { tid: Transaction(7).into(), question }.emit().octets();
        mad[3] = 0x81;
        mad
    };
    for (read, counter) in [
        (Vec::new(), "umad.lost"),
        (vec![0; 10], "umad.malformed-truncated"),
        (header(9, 0), "umad.other-agent"),
        ([header(ours, 110), vec![0; 24]].concat(), "umad.malformed"),
        ([header(ours, 0), vec![0; 20]].concat(), "sa.malformed-truncated"),
        ([header(ours, 0), unasked().to_vec()].concat(), "sa.unasked"),
    ] {
        let before = daemon.count(counter);
        port.forge(&read);
        daemon.until(|daemon| (daemon.count(counter) == before + 1).then_some(()));
        daemon.until(|daemon| is_found(daemon, 2));
        daemon.until(|_| (port.connections() == 1).then_some(()));
    }
    assert_eq!(daemon.resolve(request(gid(8), gid(3), 1)).0, PathOutcome::Resolved(vec![0x2b]));
}
