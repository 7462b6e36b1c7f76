// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm cluster`: two kernels in two guests, each with an HCA, IPoIB and `ibarr`, on one fabric.
//!
//! ```text
//!   first guest                                     the other guest
//!   A  ib0  10.1.0.1  OpenSM                        B  ib0  10.2.0.1  OpenSM, standby
//!   R  ib1  10.1.0.254, ib2  10.2.0.254  netns r
//!   ibfab run                                       ibfab join
//!   eth0  192.0.2.1 ------------------------------- eth0  192.0.2.2
//!
//!   A, R 1 --- S1 --- S2 --- B, R 2
//! ```

mod faults;
pub(crate) mod hosts;
mod moving;
mod other;
pub(crate) mod routers;
pub(crate) mod storage;
pub(crate) mod there;
mod two_hosts;

use std::fs::File;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

pub(crate) use self::other::{other_guest, service};
use crate::init;
use crate::report::Report;
use crate::rig::verbs::{End, perftest, pingpong};
use crate::rig::{self, Ibarr, Place, Process, eventually, ip, pair, rping, rping_from, spawn};

const R: Place = Place::Netns("r");

/// The addresses of the guests on their Ethernet link.
const FIRST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// The addresses of A and of B.
const NEAR: [&str; 2] = ["10.1.0.1", "fd00:1::1"];
const FAR: [&str; 2] = ["10.2.0.1", "fd00:2::1"];

const A: End<'static> = End { place: Place::Here, device: "ibtun0", port: "1" };
const B: End<'static> = End { place: Place::Other, device: "ibtun0", port: "1" };

/// The port of both, as sysfs writes it.
const A_PORT: &str = "ibtun0/ports/1";
const B_PORT: &str = "ibtun0/ports/1";
/// That of addresses that move.
const B_SECOND: &str = "ibtun0/ports/2";

/// Options of OpenSM: its priority among the managers.
const MASTER: [&str; 2] = ["--priority", "14"];
const STANDBY: [&str; 2] = ["--priority", "1"];

const TOPOLOGY: &str = "/etc/rig/cluster";

/// The key that the fabric and its other host share.
const KEY: &str = "/run/fabric.key";

/// Loads the modules of this scenario, sets the Ethernet link up, and writes the key.
fn link(address: Ipv4Addr) -> Result<()> {
    init::load("/later")?;
    let key = File::options().write(true).create_new(true).mode(0o600).open(KEY);
    key?.write_all(b"the key of both guests")?;
    ip(Place::Here, "link set lo up")?;
    ip(Place::Here, &format!("address add {address}/24 dev eth0"))?;
    // The largest packet of InfiniBand fits.
    ip(Place::Here, "link set eth0 mtu 9000 up").map(drop)
}

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    let linked = link(FIRST).and_then(|()| eventually(other::boot).map(drop));
    if report.claim("the guests have a link", linked).is_some() {
        two_hosts::prove(&mut report);
    }
    if let Some(mut cluster) = report.claim("the cluster stands", Cluster::up()) {
        prove(&mut report, &mut cluster);
        report.claim("the other kernel has not started again by itself", cluster.is_the_same());
    }
    // The other guest ends before it can answer.
    let _ = rig::run(Place::Other, &[there::END]);
    report.end()
}

fn prove(report: &mut Report, cluster: &mut Cluster) {
    for kernel in [Place::Here, Place::Other] {
        let release = rig::run(kernel, &["busybox", "uname", "-r"]).unwrap_or_default();
        Report::note(format_args!("{kernel:?}: Linux {release}"));
    }
    report.claim("OpenSM of A is master, that of B stands by", cluster.managers());
    report.claim(
        "without ibarr the kernel refuses to connect across the router",
        refused(Place::Here, FAR[0]).and_then(|()| refused(Place::Other, NEAR[0])),
    );
    report.claim("ibarr of the package runs on both kernels", cluster.start_daemons());
    for (family, near, far) in [("IPv4", NEAR[0], FAR[0]), ("IPv6", NEAR[1], FAR[1])] {
        let mut claim = |what: &str, proof| report.claim(&format!("{family}: {what}"), proof);
        claim("rping connects to the other kernel", rping(Place::Other, far));
        claim("rping connects back", rping_from(Place::Other, Place::Here, near));
        claim("udaddy exchanges datagrams", pair("udaddy", Place::Other, far));
        claim("ucmatose connects", pair("ucmatose", Place::Other, far));
    }
    for (program, options) in [
        ("ibv_rc_pingpong", &["-c", "-e", "-s", "20000", "-n", "50"][..]),
        ("ibv_uc_pingpong", &["-c", "-e", "-s", "5000", "-n", "50"]),
        ("ibv_ud_pingpong", &["-c", "-e", "-s", "1000", "-n", "50"]),
        ("ibv_srq_pingpong", &["-c", "-e", "-s", "5000", "-n", "100", "-q", "4"]),
    ] {
        let claim = format!("{program} exchanges data between the kernels, and checks it");
        report.claim(&claim, pingpong(program, [B, A], FAR[0], options));
    }
    for (program, options) in [
        ("ib_send_bw", &["-R", "-s", "65536", "-n", "20"][..]),
        ("ib_write_bw", &["-R", "-s", "65536", "-n", "20"]),
        ("ib_read_lat", &["-R", "-s", "4096", "-n", "10"]),
        ("ib_atomic_bw", &["-R", "-A", "FETCH_AND_ADD", "-n", "50"]),
    ] {
        let claim = format!("{program} runs between the kernels, by addresses that ibarr finds");
        report.claim(&claim, perftest(program, [B, A], FAR[0], options));
    }
    report.claim("ibarr answered all that both kernels asked", cluster.answered());
    report.claim("NVMe over RDMA stores blocks on the other kernel", storage::disk());
    report.claim("nothing was lost, and nothing was sent twice", nothing_lost());
    faults::prove(report, cluster);
}

fn nothing_lost() -> Result<()> {
    for (place, port) in [(Place::Here, A_PORT), (Place::Other, B_PORT)] {
        let counts = rig::LOSSES.iter().map(|name| {
            let count = rig::port_attribute(place, port, &format!("hw_counters/{name}"))?;
            Ok((count != "0").then(|| format!("{name} of {place:?} is {count}")))
        });
        let lost = counts.filter_map(Result::transpose).collect::<Result<Vec<_>>>()?;
        ensure!(lost.is_empty(), "{}", lost.join(", "));
    }
    Ok(())
}

/// The kernel does not send anything.
fn refused(client: Place, target: &str) -> Result<()> {
    let said = rig::run(client, &["rping", "-c", "-C", "1", "-a", target]);
    let said = format!("{:#}", said.err().context("it connects")?);
    ensure!(said.contains("Cannot assign requested address"), "{said}");
    Ok(())
}

/// All that runs in both guests.
struct Cluster {
    fabric: Process,
    opensm: Process,
    here: Option<Ibarr>,
    other: other::Programs,
}

impl Cluster {
    fn up() -> Result<Self> {
        let capture = format!("{}/fabric.pcap", rig::RESULTS);
        let listen = format!("udp:{FIRST}:7471");
        let words = ["ibfab", "run", TOPOLOGY, "--device", "A,R", "--listen", &listen];
        let words = [&words[..], &["--key", KEY, "--capture", &capture]].concat();
        let fabric = spawn("ibfab", Place::Here, &words)?;
        eventually(|| rig::run(Place::Here, &["ip", "link", "show", "ib2"]))?;
        let opensm = rig::opensm_at(Place::Here, A_PORT, &MASTER)?;
        let other = other::Programs::start()?;
        for port in [A_PORT, "ibtun1/ports/1", "ibtun1/ports/2"] {
            rig::is_active(Place::Here, port)?;
        }
        rig::is_active(Place::Other, B_PORT)?;
        Self::network()?;
        other::network()?;
        Ok(Self { fabric, opensm, here: None, other })
    }

    fn network() -> Result<()> {
        ip(Place::Here, "netns add r")?;
        ip(R, "link set lo up")?;
        rig::write(R, "/proc/sys/net/ipv4/ip_forward", "1")?;
        rig::write(R, "/proc/sys/net/ipv6/conf/all/forwarding", "1")?;
        for (place, name, addresses) in [
            (Place::Here, "ib0", ["10.1.0.1/24", "fd00:1::1/64"]),
            (R, "ib1", ["10.1.0.254/24", "fd00:1::fe/64"]),
            (R, "ib2", ["10.2.0.254/24", "fd00:2::fe/64"]),
        ] {
            if place == R {
                ip(Place::Here, &format!("link set {name} netns r"))?;
            }
            rig::set_up(place, name, addresses)?;
            rig::is_up(place, name)?;
        }
        ip(Place::Here, "route add 10.2.0.0/24 via 10.1.0.254")?;
        ip(Place::Here, "route add fd00:2::/64 via fd00:1::fe").map(drop)
    }

    fn start_daemons(&mut self) -> Result<()> {
        Ibarr::give_devices()?;
        self.here = Some(Ibarr::start_as_service("here", Place::Here, "", 1)?);
        self.other.start_daemon()
    }

    /// The manager that each guest sees, and the state of the other one.
    fn managers(&mut self) -> Result<()> {
        self.fabric.check_alive()?;
        is_manager(Place::Here, "MASTER")?;
        is_manager(Place::Other, "STANDBY")
    }

    fn answered(&self) -> Result<()> {
        let here = self.here.as_ref().context("no daemon here")?;
        let here = here.ask(&ibarr_user::control::messages::Request::Counters)?;
        let words = ["ibarr", "counters", "--json", "--run-dir", other::RUN_DIR];
        let other = serde_json::from_str(&rig::run(Place::Other, &words)?)?;
        let mut notes = Vec::new();
        for (name, counters) in [("here", here), ("the other", other)] {
            let of = |counter: &str| -> Result<u64> {
                let value: &Value = &counters["counters"][counter];
                value.as_u64().with_context(|| format!("{name}: no {counter}: {counters}"))
            };
            let (addresses, paths) =
                (of("local-service.requests")?, of("local-service.path-requests")?);
            let mut answered = 0;
            for from in ["cache", "local", "peer"] {
                answered += of(&format!("local-service.answered-{from}"))?;
            }
            ensure!(addresses > 0 && answered == addresses, "{name}: {answered} of {addresses}");
            let answered = of("local-service.paths-answered")?;
            ensure!(paths > 0 && answered == paths, "{name}: {answered} of {paths} paths");
            notes.push(format!("{name}: {addresses} addresses, {paths} paths"));
        }
        Report::note(notes.join("; "));
        Ok(())
    }

    fn is_the_same(&self) -> Result<()> {
        self.other.has_not_restarted()
    }
}

/// Waits until the subnet manager of this kernel has that state.
fn is_manager(place: Place, state: &str) -> Result<()> {
    let lid = rig::port_attribute(place, A_PORT, "lid")?;
    eventually(|| {
        let said = rig::run(Place::Here, &["sminfo", &lid])?;
        ensure!(said.contains(&format!("SMINFO_{state}")), "{said}");
        Ok(())
    })
}
