// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Arguments that the module must refuse: a table for each kind, with one wrong field in each line.

use anyhow::{Result, ensure};
use nix::errno::Errno;

use super::{active, create, is_refused, returned};
use crate::sys::{self, Behaviours, Create, Event, Fault, FaultKind, Guids, Ibtun, PKeys, Port};

pub(super) fn creates() -> Result<()> {
    let good = create();
    let wrong = |change: fn(&mut Create)| {
        let mut create = good;
        change(&mut create);
        create
    };
    for (what, create, errno) in [
        ("no port", wrong(|create| create.ports = 0), Errno::EINVAL),
        ("17 ports", wrong(|create| create.ports = 17), Errno::EINVAL),
        ("a port without GUID", wrong(|create| create.port_guid[1] = [0; 8]), Errno::EINVAL),
        ("a GUID without port", wrong(|create| create.port_guid[2] = [1; 8]), Errno::EINVAL),
        ("no node GUID", wrong(|create| create.node_guid = [0; 8]), Errno::EINVAL),
        ("MTU 6", wrong(|create| create.mtu = 6), Errno::EINVAL),
        ("129 P_Keys", wrong(|create| create.pkeys = 129), Errno::EINVAL),
        ("33 GUIDs", wrong(|create| create.guids = 33), Errno::EINVAL),
        ("a reserved field", wrong(|create| create.reserved = 1), Errno::EINVAL),
        ("a queue of 65537", wrong(|create| create.queue = 65537), Errno::EINVAL),
        ("a description without end", wrong(|create| create.node_desc = [65; 64]), Errno::EINVAL),
        ("a name", wrong(|create| create.name[0] = 65), Errno::EINVAL),
    ] {
        is_refused(Ibtun::open()?.create(&create), errno, what)?;
    }
    for version in [0, u32::from(sys::VERSION) + 1, u32::MAX] {
        let mut create = Create { version, ..good };
        let outcome = Ibtun::open()?.create_with(&mut create);
        is_refused(outcome, Errno::EPROTONOSUPPORT, &format!("version {version}"))?;
        ensure!(create == Create { version: sys::VERSION.into(), ..good }, "{create:?}");
    }
    Ok(())
}

pub(super) fn values(device: &Ibtun) -> Result<()> {
    let good = active(1);
    for (what, port) in [
        ("port 0", Port { port: 0, ..good }),
        ("port 3", Port { port: 3, ..good }),
        ("port 255", Port { port: 255, ..good }),
        ("state 0", Port { state: 0, ..good }),
        ("state 5", Port { state: 5, ..good }),
        ("physical state 0", Port { phys_state: 0, ..good }),
        ("physical state 8", Port { phys_state: 8, ..good }),
        ("MTU 0", Port { mtu: 0, ..good }),
        ("MTU 6", Port { mtu: 6, ..good }),
        ("LMC 8", Port { lmc: 8, ..good }),
        ("SL 16", Port { sm_sl: 16, ..good }),
        ("time-out 32", Port { subnet_timeout: 32, ..good }),
        ("width 3", Port { width: 3, ..good }),
        ("width 32", Port { width: 32, ..good }),
        ("speed 0", Port { speed: 0, ..good }),
        ("speed 3", Port { speed: 3, ..good }),
        ("multicast LID", Port { lid: 0xc000, ..good }),
        ("LID that the LMC does not fit", Port { lid: 5, lmc: 1, ..good }),
        ("multicast LID of an SM", Port { sm_lid: 0xffff, ..good }),
        ("a reserved field", Port { reserved: 1, ..good }),
        ("another reserved field", Port { reserved2: 1, ..good }),
    ] {
        is_refused(device.set_port(&port), Errno::EINVAL, what)?;
    }
    let pkeys = PKeys { port: 1, reserved: 0, count: 1, reserved2: 0, pkey: [0; sys::MAX_PKEYS] };
    for (what, pkeys) in [
        ("P_Keys of port 0", PKeys { port: 0, ..pkeys }),
        ("P_Keys of port 3", PKeys { port: 3, ..pkeys }),
        ("33 P_Keys in a table of 32", PKeys { count: 33, ..pkeys }),
        ("65535 P_Keys", PKeys { count: 65535, ..pkeys }),
        ("P_Keys with a reserved field", PKeys { reserved: 1, ..pkeys }),
    ] {
        is_refused(device.set_pkeys(&pkeys), Errno::EINVAL, what)?;
    }
    let guids = Guids { port: 1, reserved: 0, count: 1, reserved2: 0, guid: [[0; 8]; 32] };
    let mut renamed = guids;
    renamed.guid[0] = [1; 8];
    for (what, guids) in [
        ("GUIDs of port 0", Guids { port: 0, ..guids }),
        ("9 GUIDs in a table of 8", Guids { count: 9, ..guids }),
        ("65535 GUIDs", Guids { count: 65535, ..guids }),
        ("another port GUID", renamed),
    ] {
        is_refused(device.set_guids(&guids), Errno::EINVAL, what)?;
    }
    for (port, event) in [(0, 1), (3, 1), (1, 0), (1, 6), (1, 255)] {
        let event = Event { port, event, ..Event::default() };
        is_refused(device.event(event), Errno::EINVAL, &format!("{event:?}"))?;
    }
    faults(device)?;
    for (on, reserved) in [(8, 0), (1 << 31, 0), (0, 1)] {
        let set = Behaviours { on, reserved };
        is_refused(device.set_behaviour(set), Errno::EINVAL, &format!("{set:?}"))?;
    }
    is_refused(device.stats(0), Errno::EINVAL, "counters of port 0")?;
    is_refused(device.port(17), Errno::EINVAL, "port 17")
}

fn faults(device: &Ibtun) -> Result<()> {
    let good = Fault { qpn: 17, kind: FaultKind::Drop as u8, count: 1, ..Fault::default() };
    for (what, fault) in [
        ("fault 0", Fault { kind: 0, ..good }),
        ("fault 9", Fault { kind: 9, ..good }),
        ("fault of QP 0", Fault { qpn: 0, ..good }),
        ("fault of QP 1", Fault { qpn: 1, ..good }),
        ("fault of the QP of multicast", Fault { qpn: 0xff_ffff, ..good }),
        ("fault of a QP beyond 24 bits", Fault { qpn: 0x100_0011, ..good }),
        ("fault of 1000001 packets", Fault { count: 1_000_001, ..good }),
        ("drops with a delay", Fault { delay: 1, ..good }),
        ("error with a count", Fault { kind: FaultKind::QueuePair as u8, ..good }),
        ("delay with a count", Fault { kind: FaultKind::DelayAcks as u8, ..good }),
        (
            "delay of more than 10 s",
            Fault { kind: FaultKind::DelayAcks as u8, count: 0, delay: 10_000_001, ..good },
        ),
        ("fault with a reserved field", Fault { reserved: [0, 0, 1], ..good }),
    ] {
        is_refused(device.fault(&fault), Errno::EINVAL, what)?;
    }
    is_refused(device.fault(&good), Errno::ENOENT, "fault of a QP that does not exist")
}

pub(super) fn records(device: &Ibtun, sent: Option<&[u8]>) -> Result<()> {
    let whole = returned(sent.unwrap_or(&[0; 300]));
    let wrong = |at: usize, value: u8| {
        let mut record = whole.clone();
        record[at] = value;
        record
    };
    let length = |length: usize| {
        let mut record = whole.clone();
        record[4..8].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
        record
    };
    for (what, record) in [
        ("a byte", vec![1]),
        ("half a header", whole[..sys::HEADER - 1].to_vec()),
        ("version 0", wrong(0, 0)),
        ("version 2", wrong(0, 2)),
        ("type 0", wrong(1, 0)),
        ("a type that only the kernel writes", wrong(1, 2)),
        ("port 0", wrong(2, 0)),
        ("port 3", wrong(2, 3)),
        ("port 255", wrong(2, 255)),
        ("a reserved byte", wrong(3, 1)),
        ("a time", wrong(8, 1)),
        ("length 0", length(0)),
        ("a length shorter than the header", length(sys::HEADER - 4)),
        ("an odd length", length(whole.len() - 1)),
        ("a length past the end", length(whole.len() + 4)),
        ("a length past every record", length(sys::MAX_RECORD + 4)),
        ("the longest length there is", length(usize::MAX)),
    ] {
        is_refused(device.write(&record), Errno::EINVAL, what)?;
    }
    // The first record counts although the second is malformed.
    let mut two = whole.clone();
    two.extend(wrong(0, 0));
    let written = device.write(&two)?;
    anyhow::ensure!(
        written == whole.len(),
        "of one record and a half {written} bytes were accepted"
    );
    is_refused(device.read(&mut [0; 4], std::time::Duration::ZERO), Errno::EMSGSIZE, "4 bytes")
        .or_else(|error| if nothing_to_read(device) { Ok(()) } else { Err(error) })
}

fn nothing_to_read(device: &Ibtun) -> bool {
    device
        .read(&mut vec![0; sys::MAX_RECORD], std::time::Duration::ZERO)
        .is_ok_and(|read| read == 0)
}
