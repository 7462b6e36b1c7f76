// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run m`: OpenSM is stopped for some seconds while routes are asked for, with `ibarr` and with the kernel
//! alone, in turn.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ibarr_proto::paths;
use ibarr_user::control::messages::Request;
use nix::sys::signal::Signal;

use crate::report::Report;
use crate::rig::{Caller, Ibarr, Place, Rig, eventually};

/// In the same IP subnet, so that the kernel finds the address alone.
const NEAR: &str = "10.1.0.2";

/// For how long OpenSM is stopped.
const STOPS: [u64; 4] = [1, 2, 4, 8];
/// From one question to the next.
const PACE: Duration = Duration::from_millis(300);
/// The time-out of librdmacm's own programs.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How many first routes of a stopped OpenSM are timed, with and without `ibarr`.
const FIRST: usize = 10;

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(rig) = report.claim("the rig stands", Rig::up_without_capture()) {
        prove(&mut report, &rig);
    }
    report.end()
}

fn prove(report: &mut Report, rig: &Rig) {
    for seconds in STOPS {
        let both = || Ok([round(rig, seconds, false)?, round(rig, seconds, true)?]);
        let claim = format!("OpenSM is stopped for {seconds} s: ibarr fails no more routes");
        let proof = both().and_then(|[alone, with]| {
            Report::figure(format_args!(
                "OpenSM stopped for {seconds} s: {} of {} routes failed with ibarr, {} of {} with the kernel alone",
                with.0, with.1, alone.0, alone.1
            ));
            ensure!(with.0 <= alone.0, "{with:?} with ibarr, {alone:?} alone");
            Ok(())
        });
        report.claim(&claim, proof);
    }
    let times = || Ok([first_routes(rig, false)?, first_routes(rig, true)?]);
    let proof = times().map(|[alone, with]| {
        let [alone, with] = [alone, with].map(|times| {
            Report::figure(format_args!("first routes of a stopped OpenSM, sorted: {times:?}"));
            times[FIRST / 2]
        });
        let ratio = with.as_secs_f64() / alone.as_secs_f64();
        let verdict = if ratio <= 1.15 { "met" } else { "missed" };
        Report::figure(format_args!(
            "first route of a stopped OpenSM: {} ms with ibarr, {} ms alone, {ratio:.2}; the aim is at most 1.15: {verdict}",
            with.as_millis(),
            alone.as_millis()
        ));
    });
    report.claim("the first route of a stopped OpenSM ends, with ibarr and without", proof);
}

/// Asks for a route at each step while OpenSM is stopped and goes on. How many failed, of how many.
fn round(rig: &Rig, seconds: u64, with_ibarr: bool) -> Result<(usize, usize)> {
    let ibarr = if with_ibarr { Some(start()?) } else { None };
    let stopped = Duration::from_secs(seconds);
    // IPoIB needs a path, too.
    answers()?;
    rig.opensm.signal(Signal::SIGSTOP)?;
    let began = Instant::now();
    let mut is_stopped = true;
    let mut callers = Vec::new();
    while began.elapsed() < stopped + TIMEOUT {
        if is_stopped && began.elapsed() >= stopped {
            rig.opensm.signal(Signal::SIGCONT)?;
            is_stopped = false;
        }
        // What was learned from the SA would answer all but the first.
        if let Some(ibarr) = &ibarr {
            ibarr.flush()?;
        }
        callers.push(thread::spawn(|| -> Result<i32> {
            let caller = Caller::new(TIMEOUT)?;
            let (id, _) = caller.address(NEAR)?;
            caller.route_status(id)
        }));
        thread::sleep(PACE);
    }
    if is_stopped {
        rig.opensm.signal(Signal::SIGCONT)?;
    }
    let all = callers.len();
    let statuses =
        callers.into_iter().map(|caller| caller.join().ok().context("a thread panicked")?);
    let statuses = statuses.collect::<Result<Vec<_>>>()?;
    answers()?;
    ibarr.map_or(Ok(()), Ibarr::stop)?;
    Ok((statuses.iter().filter(|status| **status != 0).count(), all))
}

/// The times after which the first route of a stopped OpenSM has ended, sorted.
fn first_routes(rig: &Rig, with_ibarr: bool) -> Result<[Duration; FIRST]> {
    let ibarr = if with_ibarr { Some(start()?) } else { None };
    // A port leaves a route of a silent SA to the kernel once in an interval, which varies by a quarter.
    let seldom = paths::Config::default().fallback_interval * 5 / 4;
    let (mut times, mut free_at) = (Vec::new(), Instant::now());
    // IPoIB may ask for the same path before the stop. Then the route is remembered, and does not count.
    for _ in 0..2 * FIRST {
        answers()?;
        if let Some(ibarr) = &ibarr {
            thread::sleep(free_at.saturating_duration_since(Instant::now()));
            ibarr.flush()?;
        }
        let caller = Caller::new(TIMEOUT)?;
        let (id, _) = caller.address(NEAR)?;
        rig.opensm.signal(Signal::SIGSTOP)?;
        let began = Instant::now();
        let status = caller.route_status(id);
        let took = began.elapsed();
        rig.opensm.signal(Signal::SIGCONT)?;
        if status? != 0 {
            times.push(took);
            free_at = Instant::now() + seldom;
        }
        if times.len() == FIRST {
            break;
        }
    }
    ibarr.map_or(Ok(()), Ibarr::stop)?;
    times.sort();
    let failed = times.len();
    let times = times.try_into().ok();
    times.with_context(|| format!("only {failed} routes of a stopped OpenSM failed"))
}

/// A daemon that knows the port, and has heard from OpenSM.
fn start() -> Result<Ibarr> {
    let ibarr = Ibarr::start("here", Place::Here, "", 1)?;
    eventually(|| {
        let ports = ibarr.ask(&Request::Ports)?.to_string();
        ensure!(ports.contains("\"port\":\"ibtun0/1\"") && !ports.contains("blocked"), "{ports}");
        Ok(())
    })?;
    answers()?;
    Ok(ibarr)
}

/// Waits until OpenSM answers again.
fn answers() -> Result<()> {
    eventually(|| Caller::patient()?.path_to(NEAR).map(drop))
}
