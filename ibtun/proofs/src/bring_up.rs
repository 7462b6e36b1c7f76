// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run a`: the other InfiniBand software works on software HCAs. A stock OpenSM makes a subnet of
//! them, IPoIB runs over it, librdmacm connects, ibacm answers.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};

use crate::report::Report;
use crate::rig::{self, B, FABRIC, INTERFACES, N, Place, Process, Rig, TOPOLOGY, rping, spawn};

/// Interfaces of the second partition, which has an IP subnet of its own.
const CHILDREN: [(&str, Place, &str); 2] =
    [("ib0", Place::Here, "10.3.0.1/24"), ("ib1", B, "10.3.0.2/24")];
const CHILD_OF_B: &str = "10.3.0.2";

/// The host that joins. `JOINED` has the addresses of our interface and of its interface.
const J: Place = Place::Netns("j");
const JOINED: [&str; 2] = ["10.4.0.1", "10.4.0.2"];

/// OpenSM logs this of an HCA with more than two ports. OpenSM runs on another HCA.
const PASSED_OVER: &str = "ERR 5421: Unable to get CA ibtun0 port guids";

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(rig) = set_up(&mut report) {
        prove(&mut report, rig);
    }
    report.end()
}

fn set_up(report: &mut Report) -> Option<Rig> {
    let fabric = report.claim("the fabric's channel adapters are HCAs here", Rig::fabric())?;
    let opensm = report.claim("OpenSM starts", Rig::opensm())?;
    report.claim("OpenSM brings every port up", Rig::ports_are_active())?;
    report.claim("IPoIB is up in two IP subnets and on the router", Rig::network())?;
    Some(Rig { opensm, fabric })
}

fn prove(report: &mut Report, mut rig: Rig) {
    let mut claim = |claim: &str, proof: Result<()>| report.claim(claim, proof).is_some();
    echoes(&mut claim, "datagram", 1000);
    claim("a second partition has its own interfaces", partition());
    claim("librdmacm connects in the same subnet, and the data is right", rping(N, "10.1.0.2"));
    claim("librdmacm connects in the partition, and the data is right", rping(B, CHILD_OF_B));
    claim("the diagnostics see the fabric", diagnostics());
    claim("ibacm finds a path, and answers the kernel", ibacm());
    let host = report.claim("the host of another channel adapter joins over UDP", joined());
    let mut claim = |claim: &str, proof: Result<()>| report.claim(claim, proof).is_some();
    claim("every interface goes to connected mode", connected());
    echoes(&mut claim, "connected", 20_000);
    claim("connected: IPv4 in the partition", ping(Place::Here, CHILD_OF_B, 20_000));
    claim("the fabric is still there", rig.fabric.check_alive());
    claim("OpenSM is still there", rig.opensm.check_alive());
    claim("OpenSM has logged no error", opensm_is_content());
    drop(host);
}

/// Pings between all places, IPv4 and IPv6.
fn echoes(claim: &mut impl FnMut(&str, Result<()>) -> bool, mode: &str, size: u32) {
    for (what, place, target) in [
        ("IPv4 in the same subnet", Place::Here, "10.1.0.2"),
        ("IPv6 in the same subnet", Place::Here, "fd00:1::2"),
        ("IPv4 across the router", Place::Here, "10.2.0.1"),
        ("IPv6 across the router", Place::Here, "fd00:2::1"),
        ("IPv4 from behind the router", B, "10.1.0.2"),
        ("IPv6 from behind the router", B, "fd00:1::1"),
    ] {
        claim(&format!("{mode}: {what}"), ping(place, target, size));
    }
}

/// Three pings of `size` bytes, none lost.
fn ping(place: Place, target: &str, size: u32) -> Result<()> {
    let size = size.to_string();
    // The first ping makes the kernel find the neighbour, the path and the connection.
    let once = ["ping", "-n", "-c", "1", "-W", "20", "-s", &size, target];
    rig::run(place, &once)?;
    let said =
        rig::run(place, &["ping", "-n", "-c", "3", "-i", "0.2", "-W", "10", "-s", &size, target])?;
    ensure!(said.contains("3 received"), "{said}");
    Ok(())
}

fn partition() -> Result<()> {
    for (parent, place, address) in CHILDREN {
        rig::add_child(parent, place, &[address])?;
    }
    ping(Place::Here, CHILD_OF_B, 1000)
}

fn diagnostics() -> Result<()> {
    let nodes = rig::run(Place::Here, &["ibnetdiscover"])?;
    for node in ["S1", "S2", "N", "SM"] {
        ensure!(nodes.contains(&format!("\"{node}\"")), "no {node} in {nodes}");
    }
    let (from, to) = (INTERFACES[0].lid()?, INTERFACES[1].lid()?);
    let paths = rig::run(Place::Here, &["saquery", "--src-to-dst", &format!("{from}:{to}")])?;
    ensure!(paths.contains("PathRecord"), "{paths}");
    rig::run(Place::Here, &["sminfo"])?;
    rig::run(Place::Here, &["ibv_devinfo", "-d", "ibtun0"]).map(drop)
}

/// ibacm's log says that the kernel asked. The client goes on only if the kernel accepted the answer.
fn ibacm() -> Result<()> {
    let ibacm = spawn("ibacm", Place::Here, &["ibacm", "-P"])?;
    let [from, to] = [INTERFACES[0].lid()?, INTERFACES[1].lid()?].map(|lid| lid.to_string());
    let asked = rig::eventually(|| {
        rig::run(Place::Here, &["ib_acme", "-f", "l", "-s", &from, "-d", &to, "-v", "-c"])
    });
    let asked = asked.with_context(|| ibacm.said().unwrap_or_default())?;
    ensure!(asked.contains("success"), "{asked}");
    rping(N, "10.1.0.2")?;
    let file = format!("{}/ibacm-daemon.log", rig::RESULTS);
    let log = fs::read_to_string(&file).context(file)?;
    ensure!(log.contains("acm_nl_receive"), "the kernel did not ask ibacm");
    ibacm.stop().map(drop)
}

/// All packets of this HCA cross a socket, as if its host were another machine. OpenSM hears of it
/// from its switch.
fn joined() -> Result<Process> {
    const PORT: &str = "/sys/class/infiniband/ibtun2/ports/1";
    let host = spawn("ibfab-join", Place::Here, &["ibfab", "join", FABRIC, TOPOLOGY, "J"])?;
    let gid = rig::eventually(|| {
        let attribute = |name: &str| -> Result<String> {
            let file = format!("{PORT}/{name}");
            Ok(fs::read_to_string(&file).context(file)?.trim().to_owned())
        };
        ensure!(attribute("state")? == "4: ACTIVE", "the port is {}", attribute("state")?);
        attribute("gids/0")
    });
    let gid = gid.with_context(|| host.said().unwrap_or_default())?;
    let digits = |text: &str| text.trim().replace(':', "");
    let port = digits(&gid).split_off(16);
    // The kernel gives it the next free name.
    let mut interfaces = fs::read_dir("/sys/class/net")?;
    let name = interfaces.find_map(|entry| {
        let entry = entry.ok()?;
        let address = fs::read_to_string(entry.path().join("address")).ok()?;
        digits(&address).ends_with(&port).then(|| entry.file_name().to_string_lossy().into_owned())
    });
    let name = name.with_context(|| format!("no interface of {gid}"))?;
    rig::ip(Place::Here, "netns add j")?;
    rig::ip(Place::Here, &format!("link set {name} netns j"))?;
    rig::ip(J, &format!("address add {}/24 dev {name}", JOINED[1]))?;
    rig::ip(J, &format!("link set {name} up"))?;
    rig::is_up(J, &name)?;
    rig::ip(Place::Here, &format!("address add {}/24 dev ib0", JOINED[0]))?;
    ping(Place::Here, JOINED[1], 1000)?;
    Ok(host)
}

fn connected() -> Result<()> {
    Rig::connected_mode()?;
    for (parent, place, _) in CHILDREN {
        let child = rig::child_of(parent);
        rig::connected_mode(place, &child)?;
        rig::is_up(place, &child)?;
    }
    Ok(())
}

fn opensm_is_content() -> Result<()> {
    let file = format!("{}/opensm.log", rig::RESULTS);
    let log = fs::read_to_string(&file).context(file)?;
    ensure!(log.contains("SUBNET UP"), "no SUBNET UP in its log");
    let errors: Vec<_> =
        log.lines().filter(|line| line.contains(" ERR ") && !line.contains(PASSED_OVER)).collect();
    ensure!(errors.is_empty(), "{}", errors.join("\n"));
    Ok(())
}
