// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm ibtun`: the kernel module alone, without a fabric. It does what it promises to a process
//! (`ibtun/module/include/uapi/rdma/ibtun.h`), and no process can harm it.

mod fuzz;
mod refused;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;

use crate::OWN;
use crate::kernel_log;
use crate::report::Report;
use crate::sys::{self, Create, Event, Guids, Ibtun, PKeys, Port};

/// The command of this program that only makes an HCA.
pub(crate) const CREATE: &str = "create";

/// How long work of the kernel in the background may take.
const PATIENCE: Duration = Duration::from_secs(30);

const NODE_GUID: [u8; 8] = [0x02, 0, 0, 0, 0, 0, 0x10, 0];
const PORT_GUIDS: [[u8; 8]; 2] = [[0x02, 0, 0, 0, 0, 0, 0x10, 1], [0x02, 0, 0, 0, 0, 0, 0x10, 2]];
/// fe80::/64
const PREFIX: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
const LID: u16 = 5;
const SM_LID: u16 = 1;

/// Indices of counters in `enum ibtun_counter`.
mod counter {
    pub(super) const TX_PACKETS: usize = 0;
    pub(super) const RX_PACKETS: usize = 2;
    pub(super) const RX_BYTES: usize = 3;
    pub(super) const TX_DROP_QUEUE: usize = 4;
    pub(super) const RX_DROP_MALFORMED: usize = 7;
    pub(super) const RX_DROP_STATE: usize = 8;
    pub(super) const RX_DROP_LID: usize = 9;
    pub(super) const RX_DROP_QP: usize = 10;
    pub(super) const RX_DROP_PKEY: usize = 11;
    pub(super) const RX_DROP_QKEY: usize = 12;
    pub(super) const RX_DROP_NO_RECEIVE: usize = 13;
}

/// `odd` is the number of records that the fuzzer writes.
pub(crate) fn run(odd: u64) -> ExitCode {
    let mut report = Report::default();
    report.claim("a descriptor without an HCA offers nothing", nothing_without_hca());
    report.claim("wrong arguments for an HCA are refused", refused::creates());
    report.claim("a process without CAP_NET_ADMIN makes no HCA", needs_capability());
    let hca = report.claim("a descriptor makes an HCA of two ports", make());
    if let Some((device, name)) = hca {
        proofs(&mut report, &device, &name, odd);
        let began = Instant::now();
        drop(device);
        report.claim("the HCA vanishes when its descriptor is closed", vanishes(&name));
        Report::note(format_args!("gone after {} ms", began.elapsed().as_millis()));
        report.claim("an HCA may have 32 ports", most_ports());
        report.claim("16 HCAs exist at once", most_hcas());
        report.claim("a hundred HCAs come and go, one after another and at once", come_and_go());
        report.claim("the module can be unloaded after them", unload());
    }
    report.end()
}

fn proofs(report: &mut Report, device: &Ibtun, name: &str, odd: u64) {
    report.claim("a descriptor has at most one HCA", one_hca(device));
    report.claim("a port has the state that was set", port_is_as_told(device, name));
    report.claim("a port has the P_Keys that were set", pkeys(device, name));
    report.claim("a port has the GUIDs that were set", guids(device, name));
    report.claim("values out of range are refused", refused::values(device));
    let sent = report.claim("a port that becomes active asks its SA", asks_the_sa(device));
    report.claim("malformed records are refused", refused::records(device, sent.as_deref()));
    if let Some(sent) = sent {
        report.claim("each packet is counted once, by its fate", drops(device, &sent));
        report.claim("a queue without a reader is bounded", queue_is_bounded(device));
        report.claim("random records do no harm", fuzz::records(device, &sent, odd));
    }
    report.claim("random arguments of ioctls do no harm", fuzz::ioctls(device));
}

fn create() -> Create {
    let mut port_guid = [[0; 8]; sys::MAX_PORTS];
    port_guid[..2].copy_from_slice(&PORT_GUIDS);
    let mut node_desc = [0; 64];
    node_desc[..5].copy_from_slice(b"ibtun");
    Create {
        version: sys::VERSION.into(),
        ports: 2,
        mtu: 0,
        pkeys: 0,
        guids: 0,
        reserved: 0,
        queue: 0,
        node_guid: NODE_GUID,
        system_image_guid: [0; 8],
        port_guid,
        node_desc,
        name: [0; 64],
    }
}

fn nothing_without_hca() -> Result<()> {
    let device = Ibtun::open().context("/dev/ibtun")?;
    is_refused(device.write(&[0; 16]), Errno::ENXIO, "write")?;
    is_refused(device.port(1), Errno::ENXIO, "IBTUN_GET_PORT")?;
    is_refused(device.fault(&sys::Fault::default()), Errno::ENXIO, "IBTUN_FAULT")?;
    is_refused(device.set_port(&Port::default()), Errno::ENXIO, "IBTUN_SET_PORT")
}

/// Of a user who may open the file.
fn needs_capability() -> Result<()> {
    const FILE: &str = "/dev/ibtun";
    const NOBODY: u32 = 65534;
    let permit = |mode| fs::set_permissions(FILE, Permissions::from_mode(mode)).context(FILE);
    permit(0o666)?;
    let mut command = Command::new(OWN);
    let output = command.arg(CREATE).uid(NOBODY).gid(NOBODY).output().context(OWN)?;
    permit(0o600)?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(said.trim() == "refused: EPERM", "{}: {said}", output.status);
    Ok(())
}

/// Says how the kernel refuses an HCA to this process.
pub(crate) fn create_here() -> ExitCode {
    let outcome = Ibtun::open().and_then(|device| device.create(&create()));
    match outcome.as_ref().map_err(io::Error::raw_os_error) {
        Err(Some(errno)) => println!("refused: {:?}", Errno::from_raw(errno)),
        other => println!("{other:?}"),
    }
    ExitCode::SUCCESS
}

fn make() -> Result<(Ibtun, String)> {
    let device = Ibtun::open().context("/dev/ibtun")?;
    let created = device.create(&create()).context("IBTUN_CREATE")?;
    let name = name_of(&created)?;
    is_attribute(&name, "node_guid", "0200:0000:0000:1000")?;
    is_attribute(&name, "sys_image_guid", "0200:0000:0000:1000")?;
    is_attribute(&name, "node_desc", "ibtun")?;
    is_attribute(&name, "ports/2/state", "1: DOWN")?;
    is_attribute(&name, "ports/2/link_layer", "InfiniBand")?;
    is_attribute(&name, "ports/2/pkeys/0", "0xffff")?;
    is_attribute(&name, "ports/2/gids/0", "fe80:0000:0000:0000:0200:0000:0000:1002")?;
    Ok((device, name))
}

fn name_of(created: &Create) -> Result<String> {
    let length = created.name.iter().position(|&byte| byte == 0).context("a name without end")?;
    Ok(str::from_utf8(&created.name[..length])?.to_owned())
}

fn one_hca(device: &Ibtun) -> Result<()> {
    is_refused(device.create(&create()), Errno::EBUSY, "a second IBTUN_CREATE")
}

/// A port as a subnet manager would configure it.
fn active(number: u8) -> Port {
    Port {
        port: number,
        state: 4,
        phys_state: 5,
        mtu: 5,
        lmc: 1,
        sm_sl: 0,
        subnet_timeout: 18,
        width: 2,
        speed: 32,
        lid: LID + 1,
        sm_lid: SM_LID,
        reserved: 0,
        cap_mask: 0,
        reserved2: 0,
        gid_prefix: PREFIX,
    }
}

fn port_is_as_told(device: &Ibtun, name: &str) -> Result<()> {
    let told = Port { state: 2, lid: 8, lmc: 2, mtu: 4, sm_lid: 9, sm_sl: 3, ..active(2) };
    device.set_port(&told)?;
    let has = device.port(2)?;
    let kernels = (1 << 1) | (1 << 16) | (1 << 19);
    ensure!(Port { cap_mask: has.cap_mask & !kernels, ..has } == told, "the port has {has:?}");
    for (attribute, value) in [
        ("state", "2: INIT"),
        ("phys_state", "5: LinkUp"),
        ("lid", "0x8"),
        ("lid_mask_count", "2"),
        ("sm_lid", "0x9"),
        ("sm_sl", "3"),
        ("rate", "100 Gb/sec (4X EDR)"),
    ] {
        is_attribute(name, &format!("ports/2/{attribute}"), value)?;
    }
    device.set_port(&Port { state: 1, phys_state: 2, lid: 0, lmc: 0, sm_lid: 0, ..told })?;
    Ok(())
}

fn pkeys(device: &Ibtun, name: &str) -> Result<()> {
    let mut pkeys =
        PKeys { port: 2, reserved: 0, count: 2, reserved2: 0, pkey: [0; sys::MAX_PKEYS] };
    pkeys.pkey[..2].copy_from_slice(&[0xffff, 0x8001]);
    device.set_pkeys(&pkeys)?;
    eventually(|| is_attribute(name, "ports/2/pkeys/1", "0x8001"))?;
    pkeys.count = 1;
    device.set_pkeys(&pkeys)?;
    eventually(|| is_attribute(name, "ports/2/pkeys/1", "0x0000"))?;
    eventually(|| is_attribute(name, "ports/2/pkeys/0", "0xffff"))
}

fn guids(device: &Ibtun, name: &str) -> Result<()> {
    let mut guids =
        Guids { port: 2, reserved: 0, count: 2, reserved2: 0, guid: [[0; 8]; sys::MAX_GUIDS] };
    guids.guid[1] = [2, 0, 0, 0, 0, 0, 0xaa, 0xbb];
    device.set_guids(&guids)?;
    eventually(|| is_attribute(name, "ports/2/gids/1", "fe80:0000:0000:0000:0200:0000:0000:aabb"))?;
    eventually(|| is_attribute(name, "ports/2/gids/0", "fe80:0000:0000:0000:0200:0000:0000:1002"))?;
    is_attribute(name, "ports/2/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000")
}

/// Returns the first packet to the SA, with its header. The kernel sends it on its own, to ask what
/// the SA can do (`update_ib_cpi` of drivers/infiniband/core/sa_query.c).
fn asks_the_sa(device: &Ibtun) -> Result<Vec<u8>> {
    device.set_port(&active(1))?;
    let began = Instant::now();
    let mut buffer = vec![0; 64 * sys::MAX_RECORD];
    while began.elapsed() < PATIENCE {
        let length = device.read(&mut buffer, Duration::from_secs(1))?;
        for record in records(&buffer[..length]) {
            let record = record?;
            if record[1] == sys::PACKET {
                is_sa_query(record).with_context(|| format!("{record:02x?}"))?;
                return Ok(record.to_vec());
            }
        }
    }
    bail!("the port sent nothing for {} s", PATIENCE.as_secs())
}

fn is_sa_query(record: &[u8]) -> Result<()> {
    let packet = &record[sys::HEADER..];
    ensure!(record[..4] == [sys::VERSION, sys::PACKET, 1, 0], "not a packet of port 1");
    ensure!(packet.len() == 8 + 12 + 8 + 256, "{} bytes", packet.len());
    // LRH: VL 0, local, to the SM's LID from ours; the length counts the ICRC.
    ensure!(packet[..4] == [0, 2, 0, SM_LID.to_be_bytes()[1]], "LRH");
    ensure!(packet[4..6] == [0, 72], "PktLen");
    ensure!(packet[6..8] == (LID + 1).to_be_bytes(), "SLID");
    // BTH: UD send only, default P_Key, to QP 1; DETH: well-known Q_Key, from QP 1.
    ensure!(packet[8] == 0x64 && packet[10..16] == [0xff, 0xff, 0, 0, 0, 1], "BTH");
    ensure!(packet[20..28] == [0x80, 1, 0, 0, 0, 0, 0, 1], "DETH");
    // MAD: version 1, subnet administration, version 2, Get, ClassPortInfo.
    ensure!(packet[28..32] == [1, 3, 2, 1] && packet[44..46] == [0, 1], "MAD");
    Ok(())
}

/// The packet that was sent, turned round to its sender.
fn returned(sent: &[u8]) -> Vec<u8> {
    let mut record = sent.to_vec();
    record[8..16].fill(0);
    let packet = &mut record[sys::HEADER..];
    packet[2..4].copy_from_slice(&(LID + 1).to_be_bytes());
    packet[6..8].copy_from_slice(&SM_LID.to_be_bytes());
    packet[28 + 3] = 0x81;
    record
}

fn drops(device: &Ibtun, sent: &[u8]) -> Result<()> {
    let at = |offset: usize| sys::HEADER + offset;
    let whole = returned(sent);
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut record = whole.clone();
        change(&mut record);
        let length = u32::try_from(record.len()).unwrap_or_default();
        record[4..8].copy_from_slice(&length.to_ne_bytes());
        record
    };
    let cases = [
        (counter::RX_PACKETS, changed(&|_| {})),
        (counter::RX_DROP_MALFORMED, changed(&|record| record.truncate(at(4)))),
        (counter::RX_DROP_MALFORMED, changed(&|record| record.truncate(at(280)))),
        (counter::RX_DROP_MALFORMED, changed(&|record| record[at(5)] = 73)),
        (counter::RX_DROP_MALFORMED, changed(&|record| record[at(8)] = 0x04)),
        (counter::RX_DROP_MALFORMED, changed(&|record| record[at(0)] = 0xf0)),
        (counter::RX_DROP_STATE, changed(&|record| record[2] = 2)),
        (counter::RX_DROP_LID, changed(&|record| record[at(3)] = 4)),
        (counter::RX_DROP_QP, changed(&|record| record[at(14)] = 0x77)),
        (counter::RX_DROP_PKEY, changed(&|record| record[at(11)] = 0x17)),
        (counter::RX_DROP_QKEY, changed(&|record| record[at(23)] = 0x17)),
    ];
    for (index, (counter, record)) in cases.iter().enumerate() {
        let port = record[2];
        let before = device.stats(port)?;
        ensure!(device.write(record)? == record.len(), "case {index}: written in part");
        let after = device.stats(port)?;
        for (other, (before, after)) in before.iter().zip(after).enumerate() {
            let is_sum = [counter::RX_PACKETS, counter::RX_BYTES].contains(&other);
            let is_background = other == counter::TX_PACKETS || other == counter::TX_PACKETS + 1;
            if other == *counter {
                ensure!(after == before + 1, "case {index}: counter {other} is {after}");
            } else if !is_sum && !is_background {
                ensure!(after == *before, "case {index}: counter {other} is {after} too");
            }
        }
    }
    Ok(())
}

/// Flapping ports make the kernel send; no process reads.
fn queue_is_bounded(_device: &Ibtun) -> Result<()> {
    const LIMIT: u32 = 1;
    let small = Ibtun::open()?;
    let mut create = Create { queue: LIMIT, ..create() };
    create.node_guid[7] = 0x20;
    for (port, guid) in create.port_guid.iter_mut().take(2).enumerate() {
        guid[7] = 0x21 + u8::try_from(port)?;
    }
    small.create(&create)?;
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        small.set_port(&active(1))?;
        small.event(Event { port: 1, event: 1, ..Event::default() })?;
        if small.stats(1)?[counter::TX_DROP_QUEUE] > 0 {
            let mut buffer = vec![0; 300 * sys::MAX_RECORD];
            let length = small.read(&mut buffer, Duration::ZERO)?;
            let packets = records(&buffer[..length])
                .filter(|record| record.as_ref().is_ok_and(|record| record[1] == sys::PACKET));
            let packets = packets.count();
            ensure!(packets <= usize::try_from(LIMIT)?, "{packets} were kept");
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
    bail!("nothing was dropped: {:?}", small.stats(1)?)
}

fn most_ports() -> Result<()> {
    let device = Ibtun::open().context("/dev/ibtun")?;
    let mut wanted = Create { ports: 32, ..create() };
    for (number, guid) in (1..).zip(&mut wanted.port_guid) {
        *guid = [0x02, 0, 0, 0, 0, 0, 0x20, number];
    }
    let name = name_of(&device.create(&wanted).context("IBTUN_CREATE")?)?;
    for number in 1..=32 {
        is_attribute(&name, &format!("ports/{number}/state"), "1: DOWN")?;
        let gid = format!("fe80:0000:0000:0000:0200:0000:0000:20{number:02x}");
        is_attribute(&name, &format!("ports/{number}/gids/0"), &gid)?;
    }
    device.set_port(&active(32))?;
    is_attribute(&name, "ports/32/state", "4: ACTIVE")?;
    drop(device);
    vanishes(&name)
}

/// Of one port each, because each port takes megabytes of the kernel's memory.
fn most_hcas() -> Result<()> {
    let mut wanted = Create { ports: 1, ..create() };
    wanted.port_guid[1] = [0; 8];
    let made = (0..16).map(|_| {
        let device = Ibtun::open().context("/dev/ibtun")?;
        let name = name_of(&device.create(&wanted).context("IBTUN_CREATE")?)?;
        is_attribute(&name, "ports/1/state", "1: DOWN")?;
        Ok((device, name))
    });
    let names = made.collect::<Result<Vec<_>>>()?.into_iter().map(|(_, name)| name);
    names.into_iter().try_for_each(|name| vanishes(&name))
}

fn come_and_go() -> Result<()> {
    for round in 0..10 {
        let made = (0..10).map(|_| make()).collect::<Result<Vec<_>>>();
        let made = made.with_context(|| format!("round {round}"))?;
        for (index, (device, _)) in made.iter().enumerate() {
            if index % 2 == 0 {
                device.set_port(&active(1))?;
            }
        }
        let names: Vec<_> = made.into_iter().map(|(_, name)| name).collect();
        for name in names {
            vanishes(&name)?;
        }
    }
    Ok(())
}

fn unload() -> Result<()> {
    nix::kmod::delete_module(c"ibtun", nix::kmod::DeleteModuleFlags::O_NONBLOCK)
        .context("it cannot be unloaded")?;
    let log = kernel_log::lines()?;
    let complaint = log.iter().find(|line| line.contains("leak") || line.contains("in use"));
    complaint.map_or(Ok(()), |line| bail!("the kernel says: {line}"))
}

fn vanishes(name: &str) -> Result<()> {
    let directory = format!("/sys/class/infiniband/{name}");
    eventually(|| {
        ensure!(!Path::new(&directory).exists(), "{directory} is there");
        Ok(())
    })
}

/// The records in `bytes`, one after another.
fn records(mut bytes: &[u8]) -> impl Iterator<Item = Result<&[u8]>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let length = bytes.get(4..8).and_then(|length| length.try_into().ok());
        let length = length.map(u32::from_ne_bytes).and_then(|length| usize::try_from(length).ok());
        let split = length.filter(|&length| length >= sys::HEADER);
        let Some((record, rest)) = split.and_then(|length| bytes.split_at_checked(length)) else {
            bytes = &[];
            return Some(Err(anyhow::anyhow!("a record of {length:?} bytes")));
        };
        bytes = rest;
        Some(Ok(record))
    })
}

fn eventually(check: impl Fn() -> Result<()>) -> Result<()> {
    let began = Instant::now();
    loop {
        match check() {
            Err(_) if began.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(20)),
            outcome => return outcome,
        }
    }
}

fn is_attribute(name: &str, attribute: &str, expected: &str) -> Result<()> {
    let file = format!("/sys/class/infiniband/{name}/{attribute}");
    let value = fs::read_to_string(&file).with_context(|| file.clone())?;
    ensure!(value.trim() == expected, "{file} is {:?}, not {expected:?}", value.trim());
    Ok(())
}

fn is_refused<T>(outcome: io::Result<T>, errno: Errno, what: &str) -> Result<()> {
    match outcome {
        Ok(_) => bail!("{what} succeeded"),
        Err(error) if error.raw_os_error() == Some(errno as i32) => Ok(()),
        Err(error) => bail!("{what} gave {error}, not {errno}"),
    }
}
