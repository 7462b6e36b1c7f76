// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The kernel warns of programs that rely on what the specification leaves open, and not too often.

use anyhow::{Result, ensure};

use super::hostile::Wire;
use super::perftest;
use crate::kernel_log;
use crate::report::Report;
use crate::rig;
use crate::sys::Port;

const NO_TIMEOUT: &str = "its time-out is 0, never";
const LARGE_MTU: &str = "its path MTU is larger than its port's";

pub(super) fn prove(report: &mut Report) {
    report.claim("the kernel names programs that never time out", no_timeout());
    report.claim("a flood of warnings is limited", flood());
}

fn warnings(text: &str) -> Result<Vec<String>> {
    let mut lines = kernel_log::lines()?;
    lines.retain(|line| line.contains(text));
    Ok(lines)
}

fn no_timeout() -> Result<()> {
    perftest("ib_write_bw", &["-u", "14", "-s", "4096", "-n", "5"])?;
    let lines = warnings(NO_TIMEOUT)?;
    ensure!(lines.is_empty(), "{lines:?}");
    perftest("ib_write_bw", &["-u", "0", "-s", "4096", "-n", "5"])?;
    let lines = warnings(NO_TIMEOUT)?;
    // The server writes nothing, and never becomes ready to send.
    let is_of = |line: &String| line.starts_with("ibtun0: ib_write_bw[") && line.contains(", QP ");
    ensure!(lines.len() == 1 && lines.iter().all(is_of), "{lines:?}");
    Ok(())
}

/// Three times as many queue pairs as warnings are allowed in a minute.
fn flood() -> Result<()> {
    perftest("ib_write_bw", &["-u", "0", "-q", "30", "-s", "4096", "-n", "5"])?;
    let number = warnings(NO_TIMEOUT)?.len();
    // It may take longer than a minute.
    ensure!((2..=20).contains(&number), "{number} warnings of 31 queue pairs");
    Ok(())
}

/// On a wire of our own, whose ports have a smaller MTU.
pub(super) fn large_mtu() -> Result<()> {
    let wire = Wire::make()?;
    for number in [1, 2] {
        wire.device.set_port(&Port { mtu: 3, ..wire.device.port(number)? })?;
    }
    let (mut server, mut client) = wire.talk(&["-m", "2048", "-s", "100", "-n", "1000000"])?;
    rig::eventually(|| {
        let lines = warnings(LARGE_MTU)?;
        ensure!(lines.iter().any(|line| line.contains("ibv_rc_pingpong[")), "{lines:?}");
        Ok(())
    })?;
    server.kill()?;
    client.kill()
}
