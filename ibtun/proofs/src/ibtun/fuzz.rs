// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Records and ioctl arguments that a faulty or hostile process could send.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng as _};

use super::{active, counter, returned};
use crate::report::Report;
use crate::sys::{self, Event, Fault, Guids, Ibtun, PKeys, Port};

const SEED: u64 = 6;
const IOCTLS: u32 = 100_000;
/// Records in one `write`.
const BATCH: usize = 64;

/// Writes random packets and mutations of a packet that the kernel sent, in well-formed records. Each
/// must be counted once.
pub(super) fn records(device: &Ibtun, sent: &[u8], number: u64) -> Result<()> {
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let whole = returned(sent);
    // ib_core prints a line for each malformed MAD, which would take most of the time.
    let printk = "/proc/sys/kernel/printk";
    fs::write(printk, "3").context(printk)?;
    device.set_port(&active(2))?;
    let before = [device.stats(1)?, device.stats(2)?];
    let mut refused = 0_u64;
    let mut written = 0;
    let mut batch = Vec::new();
    let mut buffer = vec![0; 16 * sys::MAX_RECORD];
    let (began, mut noted) = (Instant::now(), Duration::ZERO);
    while written < number {
        if began.elapsed() > noted + Duration::from_secs(30) {
            noted = began.elapsed();
            Report::note(format_args!("{written} records"));
        }
        batch.clear();
        for _ in 0..BATCH {
            record(&mut random, &whole, &mut batch);
        }
        ensure!(device.write(&batch)? == batch.len(), "records of seed {SEED} were refused");
        written += BATCH as u64;
        // Malformed records.
        let mut odd = vec![0; random.next_u32() as usize % 64];
        random.fill_bytes(&mut odd);
        match device.write(&odd) {
            Err(error) if error.raw_os_error() == Some(Errno::EINVAL as i32) => refused += 1,
            other => ensure!(odd.is_empty(), "{odd:02x?} gave {other:?}"),
        }
        while device.read(&mut buffer, Duration::ZERO)? > 0 {}
    }
    let after = [device.stats(1)?, device.stats(2)?];
    let counted = |counters: &[usize]| -> u64 {
        let of = |port: usize, counter: usize| after[port][counter] - before[port][counter];
        counters.iter().map(|&counter| of(0, counter) + of(1, counter)).sum()
    };
    let first = [
        counter::RX_DROP_MALFORMED,
        counter::RX_DROP_STATE,
        counter::RX_DROP_LID,
        counter::RX_PACKETS,
    ];
    let deeper = [
        counter::RX_DROP_QP,
        counter::RX_DROP_PKEY,
        counter::RX_DROP_QKEY,
        counter::RX_DROP_NO_RECEIVE,
    ];
    ensure!(counted(&first) == written, "of {written} records {} are counted", counted(&first));
    ensure!(counted(&[counter::RX_PACKETS]) > written / 100, "hardly any record was accepted");
    for counter in deeper.iter().chain(&first) {
        Report::note(format_args!("counter {counter}: {}", counted(&[*counter])));
    }
    Report::note(format_args!("{written} records, seed {SEED}; {refused} malformed ones refused"));
    Ok(())
}

fn one_in(random: &mut ChaCha8Rng, number: u32) -> bool {
    random.next_u32().is_multiple_of(number)
}

/// Appends a record with a body that is partly or wholly wrong.
fn record(random: &mut ChaCha8Rng, whole: &[u8], batch: &mut Vec<u8>) {
    let start = batch.len();
    let mut body = if one_in(random, 8) {
        let mut body = vec![0; random.next_u32() as usize % 1100 * 4];
        random.fill_bytes(&mut body);
        body.truncate(sys::MAX_RECORD - sys::HEADER);
        body
    } else {
        let mut body = whole[sys::HEADER..].to_vec();
        for _ in 0..random.next_u32() % 4 {
            let header = if one_in(random, 4) { body.len() } else { 32 };
            let at = random.next_u32() as usize % header;
            body[at] = random.next_u32().to_le_bytes()[0];
        }
        if one_in(random, 8) {
            body.resize(random.next_u32() as usize % 128 * 4, 0);
        }
        // Half of the truncated bodies have a length field that fits.
        if body.len() >= 8 && one_in(random, 2) {
            let words = u16::try_from(body.len() / 4 + 1).unwrap_or(u16::MAX);
            body[4..6].copy_from_slice(&words.to_be_bytes());
        }
        body
    };
    let port = if one_in(random, 4) { 2 } else { 1 };
    batch.extend([sys::VERSION, sys::PACKET, port, 0]);
    batch.extend(u32::try_from(sys::HEADER + body.len()).unwrap_or_default().to_ne_bytes());
    batch.extend([0; 8]);
    batch.append(&mut body);
    debug_assert!((batch.len() - start).is_multiple_of(4));
}

/// Sets ports, tables and events to random values. Accepted values must be in range.
pub(super) fn ioctls(device: &Ibtun) -> Result<()> {
    let mut random = ChaCha8Rng::seed_from_u64(SEED);
    let mut taken = 0_u32;
    let mut buffer = vec![0; 16 * sys::MAX_RECORD];
    for _ in 0..IOCTLS {
        let mut bytes = [0; 32];
        random.fill_bytes(&mut bytes);
        // Small numbers, so that some of them are valid.
        let small = |at: usize, below: u8| bytes[at] % below;
        let port = small(0, 4);
        let done = match small(1, 5) {
            0 => device.set_port(&Port {
                port,
                state: small(2, 6),
                phys_state: small(3, 9),
                mtu: small(4, 7),
                lmc: small(5, 9),
                sm_sl: small(6, 17),
                subnet_timeout: small(7, 33),
                width: 1 << small(8, 6),
                speed: 1 << small(9, 9),
                lid: u16::from_ne_bytes([bytes[10], bytes[11]]) << small(12, 8),
                sm_lid: u16::from_ne_bytes([bytes[13], bytes[14]]),
                reserved: small(15, 2).into(),
                cap_mask: u32::from_ne_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]),
                reserved2: 0,
                gid_prefix: [0xfe, 0x80, 0, 0, 0, 0, 0, bytes[20]],
            }),
            1 => {
                let mut pkeys = PKeys {
                    port,
                    reserved: 0,
                    count: small(2, 36).into(),
                    reserved2: 0,
                    pkey: [0; 128],
                };
                pkeys
                    .pkey
                    .iter_mut()
                    .for_each(|pkey| *pkey = (random.next_u32() & 0xffff).try_into().unwrap_or(0));
                device.set_pkeys(&pkeys)
            }
            2 => {
                let mut guids = Guids {
                    port,
                    reserved: 0,
                    count: small(2, 12).into(),
                    reserved2: 0,
                    guid: [[0; 8]; 32],
                };
                guids.guid[1..].iter_mut().for_each(|guid| random.fill_bytes(guid));
                device.set_guids(&guids)
            }
            3 => device.fault(&Fault {
                // IPoIB has one of these.
                qpn: small(2, 24).into(),
                kind: small(3, 10),
                reserved: [0, 0, small(4, 8) / 7],
                count: small(5, 2).into(),
                delay: small(6, 2).into(),
            }),
            _ => device.event(Event { port, event: small(2, 8), ..Event::default() }),
        };
        match done {
            Ok(()) => taken += 1,
            Err(error) => {
                let known = [Errno::EINVAL, Errno::ENOENT, Errno::EALREADY, Errno::EOPNOTSUPP];
                let is_known = |errno: &Errno| error.raw_os_error() == Some(*errno as i32);
                ensure!(known.iter().any(is_known), "gave {error}");
            }
        }
        if (1..=2).contains(&port) {
            let port = device.port(port)?;
            ensure!((1..=4).contains(&port.state) && port.lid < 0xc000, "the port is {port:?}");
        }
        while device.read(&mut buffer, Duration::ZERO)? > 0 {}
    }
    Report::note(format_args!("{IOCTLS} calls, seed {SEED}; {taken} accepted"));
    Ok(())
}
