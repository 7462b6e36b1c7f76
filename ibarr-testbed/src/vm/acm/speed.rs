// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `cargo xtask bench acm`: what a request costs that memory answers, with `ibarr` and with ibacm in turn, on a
//! clock that counts instructions. A plain server that only sends back shows what the system calls cost.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ibarr_common::ib::PathRecord;
use ibarr_common::wire::acm::{Address, Ask, MAX_REQUEST_LEN, Reply, Request, Resolve, Tid};
use ibarr_common::wire::path_record::PathRecordWire;

use super::compare::{self, SOCKET};
use crate::OWN;
use crate::report::Report;
use crate::rig::{INTERFACES, Ibarr, N, Place, Rig, cpu_time, eventually, spawn};

/// Each server in turn, so often.
const ROUNDS: usize = 3;
/// Requests of one client, one after the other, in each round.
const IN_TURN: usize = 1_000;
/// Clients at once, and requests of each in each round.
const CLIENTS: usize = 100;
const OF_EACH: usize = 20;

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(rig) = report.claim("the rig stands", Rig::up()) {
        let mut samples = Samples::default();
        for round in 1..=ROUNDS {
            let mut claim = |what: &str, proof| {
                report
                    .claim(&format!("{what} answers all from memory ({round} of {ROUNDS})"), proof);
            };
            claim("ibacm", with_ibacm(&mut samples));
            claim("ibarr", with_ibarr(&mut samples));
            claim("the plain server", with_plain(&mut samples));
        }
        if let Some(verdicts) = report.claim("everything was measured", samples.verdicts()) {
            verdicts.into_iter().for_each(Report::figure);
        }
        drop(rig);
    }
    report.end()
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Server {
    Ibacm,
    Ibarr,
    /// It sends back what it is asked, so its replies are no paths.
    Plain,
}

/// What is asked: as `rdma_getaddrinfo` does, as `rdma_resolve_route` does, and by GIDs.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Form {
    To,
    FromTo,
    Gids,
}

impl Form {
    const ALL: [Self; 3] = [Self::To, Self::FromTo, Self::Gids];

    fn name(self) -> &'static str {
        match self {
            Self::To => "by the target's IP address",
            Self::FromTo => "by both IP addresses",
            Self::Gids => "by both GIDs",
        }
    }

    fn bytes(self) -> Result<Vec<u8>> {
        let [from, to] = ["10.1.0.1", "10.1.0.2"].map(|ip| ip.parse().map(Address::Ip));
        let resolve = match self {
            Self::To => Resolve::to(None, to?),
            Self::FromTo => Resolve::to(Some(from?), to?),
            Self::Gids => {
                let [sgid, dgid] = [0, 4].map(|port| INTERFACES[port].gid());
                let (sgid, dgid) = (sgid?.octets(), dgid?.octets());
                let empty = PathRecordWire::from(PathRecord::from_octets([0; 64]));
                Resolve::along(PathRecordWire { sgid, dgid, ..empty }.into())
            }
        };
        let mut out = [0; MAX_REQUEST_LEN];
        Ok(Request { tid: Tid([0; 8]), ask: Ask::Resolve(resolve) }.emit(&mut out).to_vec())
    }
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum What {
    /// From the request to its reply.
    Latency,
    /// The server's CPU time, of one client after the other, and of many at once.
    Alone,
    AtOnce,
    /// From the first request of many clients at once to the last reply.
    Crowd,
}

impl What {
    const ALL: [Self; 4] = [Self::Latency, Self::Alone, Self::AtOnce, Self::Crowd];

    /// Its name, and the highest ratio to ibacm's that is aimed at.
    fn aim(self) -> (&'static str, Option<f64>) {
        match self {
            Self::Latency => ("latency", Some(0.8)),
            Self::Alone => ("CPU time, one client", None),
            Self::AtOnce => ("CPU time, 100 clients", Some(0.85)),
            Self::Crowd => ("time, 100 clients", Some(1.0 / 1.2)),
        }
    }
}

/// Times of a request.
#[derive(Debug, Default)]
struct Samples(HashMap<(Server, Form, What), Vec<Duration>>);

impl Samples {
    fn measure(&mut self, server: Server, pid: u32) -> Result<()> {
        for form in Form::ALL {
            let request = form.bytes()?;
            let mut add = |what, took| self.0.entry((server, form, what)).or_default().push(took);
            let mut client = connect()?;
            // What is not remembered yet is asked for.
            (0..20).try_for_each(|_| ask(server, &mut client, &request))?;
            let before = cpu_time(pid)?;
            for _ in 0..IN_TURN {
                let began = Instant::now();
                ask(server, &mut client, &request)?;
                add(What::Latency, began.elapsed());
            }
            add(What::Alone, cpu_time(pid)?.saturating_sub(before) / u32::try_from(IN_TURN)?);
            let mut clients = (0..CLIENTS).map(|_| connect()).collect::<Result<Vec<_>>>()?;
            clients.iter_mut().try_for_each(|client| ask(server, client, &request))?;
            let (before, began) = (cpu_time(pid)?, Instant::now());
            for _ in 0..OF_EACH {
                clients.iter_mut().try_for_each(|client| client.write_all(&request))?;
                clients.iter_mut().try_for_each(|client| told(server, client))?;
            }
            let requests = u32::try_from(CLIENTS * OF_EACH)?;
            add(What::Crowd, began.elapsed() / requests);
            add(What::AtOnce, cpu_time(pid)?.saturating_sub(before) / requests);
        }
        Ok(())
    }

    fn median(&self, server: Server, form: Form, what: What) -> Result<f64> {
        let mut samples =
            self.0.get(&(server, form, what)).context("nothing was measured")?.clone();
        samples.sort();
        Ok(samples.get(samples.len() / 2).context("nothing was measured")?.as_secs_f64() * 1e6)
    }

    fn verdicts(&self) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for form in Form::ALL {
            for what in What::ALL {
                let ours = self.median(Server::Ibarr, form, what)?;
                let theirs = self.median(Server::Ibacm, form, what)?;
                let plain = self.median(Server::Plain, form, what)?;
                let (name, aim) = what.aim();
                let verdict = |aim| if ours / theirs <= aim { "met" } else { "missed" };
                let aim = aim.map(|aim| format!("; the aim is at most {aim:.2}: {}", verdict(aim)));
                lines.push(format!(
                    "{}: {name}, ibarr / ibacm: {:.2} ({ours:.1} and {theirs:.1} µs a request; a plain server \
                     {plain:.1}){}",
                    form.name(),
                    ours / theirs,
                    aim.unwrap_or_default()
                ));
            }
        }
        Ok(lines)
    }
}

fn with_ibacm(samples: &mut Samples) -> Result<()> {
    let ibacm = compare::ibacm()?;
    samples.measure(Server::Ibacm, ibacm.id())?;
    ibacm.stop().map(drop)
}

fn with_ibarr(samples: &mut Samples) -> Result<()> {
    let there = Ibarr::start("n", N, "", 1)?;
    let here = Ibarr::start("here", Place::Here, super::SERVE, 1)?;
    samples.measure(Server::Ibarr, here.id())?;
    here.stop().and(there.stop())
}

fn with_plain(samples: &mut Samples) -> Result<()> {
    let server = spawn("plain", Place::Here, &[OWN, PLAIN])?;
    eventually(|| connect().map(drop))?;
    samples.measure(Server::Plain, server.id())?;
    server.stop()?;
    fs::remove_file(SOCKET).context(SOCKET)
}

/// Command that serves at the socket of ibacm, and sends back what it is asked.
pub(crate) const PLAIN: &str = "acm-plain";

pub(crate) fn plain() -> Result<Infallible> {
    ibarr_testbed::bench::acm_echo::plain(Path::new(SOCKET))
}

fn connect() -> Result<UnixStream> {
    let stream = UnixStream::connect(SOCKET).context(SOCKET)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(stream)
}

fn ask(server: Server, client: &mut UnixStream, request: &[u8]) -> Result<()> {
    client.write_all(request)?;
    told(server, client)
}

fn told(server: Server, client: &mut UnixStream) -> Result<()> {
    let mut bytes = [0; 1024];
    let len = client.read(&mut bytes)?;
    if server == Server::Plain {
        ensure!(len > 0, "it has closed the connection");
        return Ok(());
    }
    let reply = Reply::parse(bytes.get(..len).unwrap_or_default());
    ensure!(matches!(reply, Ok((_, Reply::Paths(..)))), "{reply:?}");
    Ok(())
}
