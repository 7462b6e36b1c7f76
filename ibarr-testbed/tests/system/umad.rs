// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The daemon's own code on umad devices that behave like the kernel's.

use std::time::Duration;

use ibarr_common::ib::{Gid, Guid, Lid, PKey, Sl, SubnetPrefix};
use ibarr_common::wire::mad::{self, Transaction};
use ibarr_common::wire::sa::{Question, Request, Response};
use ibarr_common::wire::umad::{Form, HeaderWire, MAX_LEN, PKeyIndex, Received, Send};
use ibarr_fabric::sa::{AddressedPort, StandIn, Subnet};
use ibarr_sim::kernel::{PathOutcome, Reason};
use ibarr_testbed::umad::{self, Abilities, Administrator, Directory, Port, Shown};
use ibarr_user::sys::umad::{Device, Opened};
use tokio::time::timeout;
use zerocopy::{FromZeros, IntoBytes};

use crate::daemon::{Daemon, PATIENCE, name, request};
use crate::machine::Machine;

fn administrator() -> Administrator {
    let mut subnet = Subnet::new(SubnetPrefix::DEFAULT);
    for guid in 1..=8 {
        let port = AddressedPort { lid: Lid::new(guid).unwrap(), pkeys: vec![PKey::DEFAULT] };
        subnet.ports.insert(Guid::new(guid.into()), port);
    }
    Administrator::new(StandIn::new(subnet, Lid::new(1).unwrap(), 1))
}

fn gid(guid: u8) -> Gid {
    format!("fe80::{guid:x}").parse().unwrap()
}

fn port(directory: &Directory, abilities: Abilities, sa: &Administrator) -> Port {
    let shown = Shown::active(Lid::new(8).unwrap(), gid(8), Lid::new(1).unwrap());
    Port::new(directory, name(), 0, abilities, Some(shown), sa.clone()).unwrap()
}

fn in_runtime<F: Future>(work: impl FnOnce() -> F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(PATIENCE, work()).await.expect("it hangs") })
}

fn question(device: &Device, transaction: u32, time: Duration) -> Vec<u8> {
    let tid = Transaction(transaction).into();
    let mad = Request { tid, question: Question::ClassPortInfo }.emit();
    let (sl, pkey_index) = (Sl::default(), PKeyIndex(0));
    let to = Lid::new(1).unwrap();
    let send = Send { agent: device.agent(), to, sl, pkey_index, timeout: Some(time), mad };
    send.emit(device.form()).as_ref().to_vec()
}

#[test]
fn questions_are_answered_or_come_back_whatever_the_header() {
    let machine = Machine::new();
    let directory = Directory::new(machine.directory());
    for (abilities, form) in [
        (Abilities::default(), Form::WithPKey),
        (Abilities { register_agent_2: false, ..Abilities::default() }, Form::WithPKey),
        (
            Abilities { register_agent_2: false, enable_pkey: false, ..Abilities::default() },
            Form::WithoutPKey,
        ),
    ] {
        let sa = administrator();
        let port = port(&directory, abilities, &sa);
        let opened = Opened::open(&directory.dev().join("infiniband/umad0")).unwrap();
        in_runtime(async || {
            let device = Device::adopt(opened).unwrap();
            assert_eq!(device.form(), form);
            assert_eq!(port.device(|device| device.forms().collect::<Vec<_>>()), [form]);
            let mut buffer = [0; MAX_LEN];
            for transaction in 1..=100 {
                device.write(&question(&device, transaction, PATIENCE)).unwrap();
                let len = device.read(&mut buffer).await.unwrap();
                assert_eq!(len, form.header_len() + 256);
                let Ok(Received::Mad { agent, mad, .. }) = Received::parse(form, &buffer[..len])
                else {
                    panic!("{buffer:?}");
                };
                assert_eq!(agent, device.agent());
                let response = Response::parse(mad).unwrap();
                assert_eq!(response.tid.transaction(), Transaction(transaction));
            }
            sa.sa().behaviour_mut().silent = true;
            device.write(&question(&device, 7, Duration::from_millis(20))).unwrap();
            let len = device.read(&mut buffer).await.unwrap();
            assert_eq!(len, form.header_len() + 24);
            let Ok(Received::Unanswered { tid, .. }) = Received::parse(form, &buffer[..len]) else {
                panic!("{buffer:?}");
            };
            assert_eq!(tid.transaction(), Transaction(7));
        });
        assert_eq!(sa.sa().counts().asked, 101);
    }
}

#[test]
fn reader_of_a_vanishing_device_gets_an_error() {
    let machine = Machine::new();
    let directory = Directory::new(machine.directory());
    let port = port(&directory, Abilities::default(), &administrator());
    let path = directory.dev().join("infiniband/umad0");
    let opened = Opened::open(&path).unwrap();
    in_runtime(async || {
        let device = Device::adopt(opened).unwrap();
        let mut buffer = [0; MAX_LEN];
        let reading = device.read(&mut buffer);
        let unplugging = async {
            // First the reader waits.
            tokio::task::yield_now().await;
            port.unplug().unwrap();
        };
        let (read, ()) = tokio::join!(reading, unplugging);
        assert_eq!(read.unwrap_err().raw_os_error(), Some(nix::libc::EIO));
    });
    assert_eq!(Opened::open(&path).unwrap_err().raw_os_error(), Some(nix::libc::ENXIO));
    port.plug().unwrap();
    Opened::open(&path).unwrap();
}

/// It comes back within a second, so that sysfs looks the same before and after; some kernels do not
/// report it.
#[test]
fn a_device_that_was_gone_for_a_moment_is_opened_again() {
    for tells_of_loss in [true, false] {
        let machine = Machine::new();
        let directory = Directory::new(machine.directory());
        let abilities = Abilities { tells_of_loss, ..Abilities::default() };
        let port = port(&directory, abilities, &administrator());
        let daemon = Daemon::start(&machine, "");
        daemon.until(|daemon| is_found(daemon, 2));
        for guid in 3..=5 {
            port.unplug().unwrap();
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
    let port = port(&directory, Abilities::default(), &sa);
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
        daemon.until(|_| (port.device(umad::Device::open_files) == 1).then_some(()));
    }
    assert_eq!(daemon.resolve(request(gid(8), gid(3), 1)).0, PathOutcome::Resolved(vec![0x2b]));
}
