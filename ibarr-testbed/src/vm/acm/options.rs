// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Every option of Debian's `ib_acme`.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};

use crate::report::Report;
use crate::rig::{self, INTERFACES, Ibarr, Place, eventually};

/// What is asked for: what it is, its address, and the port that has it.
const TARGETS: [(&str, &str, usize); 5] = [
    ("next door, IPv4", "10.1.0.2", NEXT_DOOR),
    ("next door, IPv6", "fd00:1::2", NEXT_DOOR),
    ("across the router, IPv4", "10.2.0.1", BEHIND),
    ("across the router, IPv6", "fd00:2::1", BEHIND),
    ("this node itself", "10.1.0.1", HERE),
];

/// Ports of the rig.
const HERE: usize = 0;
const BEHIND: usize = 1;
const NEXT_DOOR: usize = 4;

pub(super) fn prove(report: &mut Report, here: &Ibarr) {
    let mut claim = |claim: &str, proof: Result<()>| {
        report.claim(&format!("ib_acme {claim}"), proof);
    };
    for (what, target, port) in TARGETS {
        let proof = Acme::ask(&["-f", "i", "-v", "-d", target]).and_then(|said| {
            said.has("SA verification: success")?;
            said.leads_to(HERE, &[port])
        });
        claim(&format!("-f i -v: {what}"), proof);
    }
    claim("-f n: by names", by_name());
    claim("-f l: by LIDs", by_lid());
    claim("-e and -e N: endpoints", endpoints());
    claim("-P N, -P all and -P s: counters of endpoints", counters_of_endpoints());
    claim("-f g: by GIDs", by_gid(true));
    claim("-f g without -s: by a GID", by_gid(false));
    let ranges = [
        ("-f i: a range of addresses", ["-f", "i", "-d", "10.1.0.[1,2]"]),
        ("without -f: a range of names, which it resolves itself", ["-C", "1", "-d", "node[1-2]"]),
    ];
    for (what, options) in ranges {
        let proof = Acme::ask(&options);
        claim(what, proof.and_then(|said| said.leads_to(HERE, &[HERE, NEXT_DOOR])));
    }
    claim("-s: from an address of this node", from("10.1.0.1"));
    claim(
        "-s: not from an address of another node",
        is_refused(
            &["-f", "i", "-s", "10.1.0.2", "-d", "10.1.0.2"],
            "Cannot assign requested address",
        ),
    );
    claim("-S: at the path of the socket", at_path());
    claim("-c: only from memory, which learns it meanwhile", from_memory(here));
    claim("-C: a hundred times", repeated(here));
    claim("-P and -P col: counters", counters(here));
}

/// At a port that `ib_acme` would not try without the file.
pub(super) fn prove_tcp(report: &mut Report) {
    let proof = || {
        let config = format!("{}tcp-port = 7125\n", super::SERVE);
        let here = Ibarr::start("tcp", Place::Here, &config, 1)?;
        let said = fs::read_to_string("/run/ibacm.port").context("the file of librdmacm")?;
        ensure!(said == "7125\n", "{said:?}");
        let options = ["-S", "127.0.0.1", "-f", "i", "-d", "10.1.0.2"];
        Acme::ask(&options)?.leads_to(HERE, &[NEXT_DOOR])?;
        ensure!(here.count("acm.requests")? > 0, "another server has answered");
        here.stop()?;
        for file in ["/run/ibacm.port", "/run/ibacm-tcp.port"] {
            ensure!(fs::symlink_metadata(file).is_err(), "{file} is left");
        }
        Ok(())
    };
    report.claim("ib_acme -S: at the TCP port in its file", proof());
}

fn by_name() -> Result<()> {
    let options = ["-f", "n", "-s", "node1", "-d", "node[1-3]"];
    Acme::ask(&options)?.leads_to(HERE, &[HERE, NEXT_DOOR, BEHIND])
}

fn by_lid() -> Result<()> {
    let [from, to] = [HERE, NEXT_DOOR].map(|port| INTERFACES[port].lid());
    let (from, to) = (from?.to_string(), to?.to_string());
    Acme::ask(&["-f", "l", "-s", &from, "-d", &to])?.leads_to(HERE, &[NEXT_DOOR])
}

/// The number of the endpoint with the address of this node, and its row.
fn own_endpoint() -> Result<(String, String)> {
    let all = Acme::ask(&["-e"])?;
    let mut rows = all.0.lines().map(|row| row.split(',').collect::<Vec<_>>());
    let own = rows.find(|row| row.contains(&"10.1.0.1")).with_context(|| all.0.clone())?;
    let [_, _, "1", "0xffff", number, "ibarr", addresses @ ..] = &own[..] else {
        bail!("{own:?}");
    };
    ensure!(addresses.contains(&"fd00:1::1"), "{own:?}");
    Ok(((*number).to_owned(), own.join(",")))
}

fn endpoints() -> Result<()> {
    let (number, row) = own_endpoint()?;
    Acme::ask(&["-e", &number])?.has(&row)?;
    Acme::ask(&["-e", "200"])?.has("Endpoint 200 is not available")
}

/// All requests so far started at the same port, so its counters are those of the service.
fn counters_of_endpoints() -> Result<()> {
    let (number, _) = own_endpoint()?;
    let of_address = Acme::ask(&["-P", "s", "-s", "10.1.0.1"])?.resolved()?;
    ensure!(of_address[0] > 0, "{of_address:?}");
    ensure!(Acme::ask(&["-P", &number])?.resolved()? == of_address, "of endpoint {number}");
    let all = Acme::ask(&["-P", "all"])?.resolved()?;
    ensure!(all.contains(&of_address[0]), "{all:?} has no {of_address:?}");
    Ok(())
}

fn by_gid(with_source: bool) -> Result<()> {
    let [from, to] = [HERE, NEXT_DOOR].map(|port| INTERFACES[port].gid());
    let (from, to) = (from?.to_string(), to?.to_string());
    if with_source {
        return Acme::ask(&["-f", "g", "-s", &from, "-d", &to])?.leads_to(HERE, &[NEXT_DOOR]);
    }
    // Any port of this machine may be the source.
    let said = Acme::ask(&["-f", "g", "-d", &to])?;
    let lid = INTERFACES[NEXT_DOOR].lid()?.to_string();
    ensure!(said.all("dgid") == [&to] && said.all("dlid") == [&lid], "{}", said.0);
    Ok(())
}

fn from(source: &str) -> Result<()> {
    Acme::ask(&["-f", "i", "-s", source, "-d", "10.1.0.2"])?.leads_to(HERE, &[NEXT_DOOR])
}

fn at_path() -> Result<()> {
    let options = ["-S", super::compare::SOCKET, "-f", "i", "-d", "10.1.0.2"];
    Acme::ask(&options)?.leads_to(HERE, &[NEXT_DOOR])
}

fn from_memory(here: &Ibarr) -> Result<()> {
    here.flush()?;
    let options = ["-f", "i", "-c", "-d", "10.2.0.1"];
    is_refused(&options, "No data available")?;
    eventually(|| Acme::ask(&options))?.leads_to(HERE, &[BEHIND])
}

fn repeated(here: &Ibarr) -> Result<()> {
    let before = here.count("acm.requests")?;
    Acme::ask(&["-f", "i", "-C", "100", "-d", "10.1.0.2"])?.leads_to(HERE, &[NEXT_DOOR])?;
    let asked = here.count("acm.requests")? - before;
    ensure!(asked == 100, "{asked} requests");
    Ok(())
}

/// The counters that it shows are those of `ibarr`.
fn counters(here: &Ibarr) -> Result<()> {
    const COUNTERS: [(&str, &str); 7] = [
        ("Error Count", "failed"),
        ("Resolve Count", "requests"),
        ("No Data", "no-data"),
        ("Addr Query Count", "address-from-peer"),
        ("Addr Cache Count", "address-from-memory"),
        ("Route Query Count", "path-from-sa"),
        ("Route Cache Count", "path-from-memory"),
    ];
    let rows = Acme::ask(&["-P"])?;
    let column = Acme::ask(&["-P", "col"])?;
    let mut names = vec!["svc"];
    let mut counts = vec![super::compare::SOCKET.to_owned()];
    for (name, counter) in COUNTERS {
        let count = here.count(&format!("acm.{counter}"))?;
        column.has(&format!("{name} : {count}\n"))?;
        names.push(name);
        counts.push(count.to_string());
    }
    rows.has(&format!("{}\n{}\n", names.join(","), counts.join(",")))
}

fn is_refused(options: &[&str], why: &str) -> Result<()> {
    match Acme::ask(options) {
        Ok(said) => bail!("{}", said.0),
        Err(error) => {
            let said = format!("{error:#}");
            ensure!(said.contains(why), "{said}");
            Ok(())
        }
    }
}

/// The output of `ib_acme`.
#[derive(Debug)]
struct Acme(String);

impl Acme {
    fn ask(options: &[&str]) -> Result<Self> {
        rig::run(Place::Here, &[&["ib_acme"], options].concat()).map(Self)
    }

    /// Checks that it shows a path from one port of the rig to each of others.
    fn leads_to(&self, from: usize, to: &[usize]) -> Result<()> {
        let from = INTERFACES[from];
        let mut expected = [const { Vec::new() }; 4];
        for to in to {
            let to = INTERFACES[*to];
            let values = [
                to.gid()?.to_string(),
                from.gid()?.to_string(),
                to.lid()?.to_string(),
                from.lid()?.to_string(),
            ];
            expected.iter_mut().zip(values).for_each(|(values, value)| values.push(value));
        }
        for (field, values) in ["dgid", "sgid", "dlid", "slid"].into_iter().zip(expected) {
            let shown = self.all(field);
            ensure!(shown == values, "{field} is {shown:?}, not {values:?}: {}", self.0);
        }
        Ok(())
    }

    /// The Resolve Count of each row of `-P`.
    fn resolved(&self) -> Result<Vec<u64>> {
        let rows = self.0.lines().skip(1).filter(|row| row.contains(','));
        let counts = rows.map(|row| Ok(row.split(',').nth(2).context("a short row")?.parse()?));
        let counts = counts.collect::<Result<Vec<u64>>>().with_context(|| self.0.clone())?;
        ensure!(!counts.is_empty(), "{}", self.0);
        Ok(counts)
    }

    /// The values of a field, of all the paths that are shown.
    fn all(&self, field: &str) -> Vec<&str> {
        let values = self.0.lines().filter_map(|line| line.trim().strip_prefix(field));
        values.filter_map(|value| value.strip_prefix(": ")).collect()
    }

    /// Checks that it shows these words.
    fn has(&self, words: &str) -> Result<()> {
        self.0.contains(words).then_some(()).with_context(|| format!("no {words:?}: {}", self.0))
    }
}
