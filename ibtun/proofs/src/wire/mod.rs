// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm run h`: connections between two HCAs cross the fabric, packet by packet. Programs of other people
//! connect and check their data, on a fabric that loses nothing and on one that does.

mod faults;
mod hostile;
mod limits;
mod manners;
mod objects;
mod resources;
mod trace;

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use crate::diagnostics::Shown;
use crate::report::Report;
use crate::rig::{self, Place, Rig, capture, rping, rping_lossy, spawn, stream, verbs};

/// The namespace of the subnet manager's port, whose HCA is another than that of all nodes.
pub(crate) const M: Place = Place::Netns("m");
const M_INTERFACE: &str = "ib5";
pub(crate) const M_ADDRESS: &str = "10.1.0.3";

/// Where programs exchange addresses over TCP.
const LOCALHOST: &str = "127.0.0.1";

/// HCA and port of both ends of most connections.
pub(crate) const OURS: End<'static> = End("ibtun0", "1");
pub(crate) const OTHER: End<'static> = End("ibtun1", "1");
/// Another port of our HCA.
pub(crate) const SAME: End<'static> = End("ibtun0", "2");

/// Programs of perftest, which measure and do not check, with options.
const PERFTEST: [(&str, &[&str]); 4] = [
    ("ib_write_bw", &["-s", "65536", "-n", "20"]),
    ("ib_read_bw", &["-e", "-s", "65536", "-n", "20"]),
    ("ib_read_lat", &["-e", "-s", "9000", "-n", "10"]),
    ("ib_atomic_bw", &["-e", "-A", "FETCH_AND_ADD", "-n", "50"]),
];

/// How many odd packets connections get.
const ODD_PACKETS: u64 = 20_000;

/// The module's parameter for connections inside one HCA.
pub(crate) const LOOPBACK: &str = "/sys/module/ibtun/parameters/loopback";

#[derive(Clone, Copy, Debug)]
pub(crate) struct End<'a>(pub(crate) &'a str, pub(crate) &'a str);

impl<'a> End<'a> {
    fn here(self) -> verbs::End<'a> {
        verbs::End { place: Place::Here, device: self.0, port: self.1 }
    }

    pub(crate) fn count(self, counter: &str) -> Result<u64> {
        let file =
            format!("/sys/class/infiniband/{}/ports/{}/hw_counters/{counter}", self.0, self.1);
        Ok(fs::read_to_string(&file).context(file)?.trim().parse()?)
    }
}

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    if let Some(rig) = report.claim("the rig stands", Rig::up()) {
        prove(&mut report, &rig);
    }
    report.end()
}

fn prove(report: &mut Report, rig: &Rig) {
    let rc = |options: &[&str]| pingpong("ibv_rc_pingpong", [OTHER, OURS], options);
    report.claim("the other HCA has an interface in a namespace", other_host());
    report.claim("RC: small messages arrive whole", rc(&["-s", "100", "-n", "50"]));
    let large = ["-e", "-s", "300000", "-m", "1024", "-n", "10"];
    report.claim("RC: messages of many packets arrive whole", rc(&large));
    let global = ["-e", "-s", "300000", "-m", "4096", "-n", "10", "-g", "0"];
    report.claim("RC: the same with a global route header and the largest MTU", rc(&global));
    let uc = ["-e", "-s", "5000", "-n", "50"];
    report.claim("UC: messages arrive whole", pingpong("ibv_uc_pingpong", [OTHER, OURS], &uc));
    let srq = ["-e", "-s", "5000", "-n", "100", "-q", "4"];
    report.claim(
        "RC with a shared receive queue: messages arrive whole",
        pingpong("ibv_srq_pingpong", [OTHER, OURS], &srq),
    );
    report.claim("rping reads and writes the other's memory", rping(M, M_ADDRESS));
    report.claim("rsockets write with immediate", stream(M, M_ADDRESS));
    for (program, options) in PERFTEST {
        report.claim(&format!("{program} runs"), perftest(program, options));
    }
    report.claim("the switch counts each packet between two HCAs", all_cross_the_switch(rig));
    report.claim("IPoIB runs in connected mode between HCAs", connected_mode());
    report.claim("the capture has the packets", is_captured());
    report.claim("without loss nothing was sent twice", nothing_lost());

    let lossy = ["-e", "-s", "20000", "-m", "1024", "-n", "50"];
    let with_loss = || -> Result<()> {
        fault("5%")?;
        let ends = [OTHER, OURS].map(End::here);
        let options = [&["-c"], &lossy[..]].concat();
        verbs::pingpong_lossy("ibv_rc_pingpong", ends, LOCALHOST, &options)?;
        ensure!(OURS.count("rc_sequence_naks")? > 0, "no sequence error");
        Ok(())
    };
    report.claim("RC: with 5% of the packets lost, all data arrives", with_loss());
    let uc = || -> Result<()> {
        let before = OTHER.count("rx_drop_sequence")?;
        perftest("ib_write_bw", &["-c", "UC", "-s", "20000", "-m", "1024", "-n", "50"])?;
        ensure!(OTHER.count("rx_drop_sequence")? > before, "no message was given up");
        Ok(())
    };
    report.claim("UC: the sender goes on, and the receiver gives up messages with a gap", uc());
    let lossy_rping = rping_lossy(Place::Here, M, M_ADDRESS);
    report.claim("rping's data is right with 5% lost", lossy_rping);
    for (program, options) in PERFTEST {
        report.claim(&format!("{program} ends with 5% lost"), perftest(program, options));
    }
    for end in [OURS, OTHER] {
        let counts = rig::LOSSES.iter().map(|name| Ok(format!("{name} {}", end.count(name)?)));
        let counts = counts.collect::<Result<Vec<_>>>().unwrap_or_default();
        Report::note(format_args!("{end:?}: {}", counts.join(", ")));
    }
    report.claim("a silent peer ends a connection with retry exceeded", silent_peer());
    report.claim("the fabric is mended", fault("0%").and_then(|()| rc(&lossy)));

    report.claim("a trace counts the packets of a connection", trace::counts_packets());
    report.claim("a trace names packets in the specification's words", trace::names_packets());
    resources::prove(report);
    faults::prove(report);
    objects::prove(report);
    report.claim("a trace has calls, packets and completions in order", trace::calls_in_order());
    report.claim("a trace for Wireshark has packets and calls in order", trace::for_wireshark());
    report.claim("a trace has calls and completions inside one HCA", trace::calls_inside());
    report.claim("a trace has retries and asynchronous events", trace::retries_and_events());
    report
        .claim("the kernel names programs with too large an MTU", on_own_wire(manners::large_mtu));
    manners::prove(report);
    report.claim("inside one HCA nothing goes over the wire", inside(false));
    report.claim("inside one HCA all goes over the wire, if wanted", inside(true));
    report.claim("single packets are corrupted, repeated and late", on_own_wire(faults::packets));
    let window = on_own_wire(limits::window);
    report.claim("a requester has 64 packets on their way, and no more", window);
    let atomics = on_own_wire(limits::repeated_atomics);
    report.claim("a repeated atomic is answered and not done again", atomics);
    report.claim("R_Key 0 is refused on the wire", on_own_wire(limits::no_r_key));
    let hostile = || hostile::harmless(ODD_PACKETS);
    report.claim("a hostile wire does no harm to open connections", on_own_wire(hostile));
}

/// Moves the interface of the other HCA to its namespace, in our IP subnet.
pub(crate) fn other_host() -> Result<()> {
    rig::ip(Place::Here, "netns add m")?;
    rig::ip(Place::Here, &format!("link set {M_INTERFACE} netns m"))?;
    rig::ip(M, "link set lo up")?;
    rig::ip(M, &format!("address add {M_ADDRESS}/24 dev {M_INTERFACE}"))?;
    rig::ip(M, &format!("link set {M_INTERFACE} up"))?;
    rig::is_up(M, M_INTERFACE)
}

/// One of libibverbs' examples: server at the first end, client at the second. Both check what they
/// receive.
fn pingpong(program: &str, ends: [End<'_>; 2], options: &[&str]) -> Result<()> {
    verbs::pingpong(program, ends.map(End::here), LOCALHOST, &[&["-c"], options].concat())
}

/// Starts its server, and returns it with the command of its client.
pub(crate) fn start_pingpong(
    program: &str,
    server: End<'_>,
    client: End<'_>,
    options: &[&str],
) -> Result<(rig::Process, Vec<String>)> {
    start(program, server, client, &[&["-c"], options].concat())
}

/// The same of any program.
pub(crate) fn start(
    program: &str,
    server: End<'_>,
    client: End<'_>,
    options: &[&str],
) -> Result<(rig::Process, Vec<String>)> {
    verbs::start(program, server.here(), client.here(), LOCALHOST, options)
}

fn perftest(program: &str, options: &[&str]) -> Result<()> {
    measure(program, [OTHER, OURS], options).map(drop)
}

/// A program of perftest: server at the first end, client at the second. Returns what the client says.
pub(crate) fn measure(program: &str, ends: [End<'_>; 2], options: &[&str]) -> Result<String> {
    verbs::perftest(program, ends.map(End::here), LOCALHOST, options)
}

fn connected_mode() -> Result<()> {
    rig::connected_mode(Place::Here, "ib0")?;
    rig::connected_mode(M, M_INTERFACE)?;
    rig::is_up(M, M_INTERFACE)?;
    let ping = |count: &str, wait: &str| {
        let words = ["ping", "-n", "-c", count, "-i", "0.2", "-W", wait, "-s", "20000", M_ADDRESS];
        rig::run(Place::Here, &words)
    };
    ping("1", "20")?;
    let said = ping("5", "10")?;
    ensure!(said.contains("5 received"), "{said}");
    Ok(())
}

/// Packets of the connections are in the capture file of the fabric.
fn is_captured() -> Result<()> {
    let mut counts = [0_u32; 256];
    for packet in capture::packets()? {
        let transport = if packet[1] & 3 == 3 { 48 } else { 8 };
        counts[usize::from(*packet.get(transport).context("a short packet")?)] += 1;
    }
    for (what, opcode) in [
        ("RC SEND first", 0x00),
        ("RC SEND middle", 0x01),
        ("RC SEND last", 0x02),
        ("RC SEND only", 0x04),
        ("RC WRITE only", 0x0a),
        ("RC READ request", 0x0c),
        ("RC READ response", 0x10),
        ("RC acknowledge", 0x11),
        ("UC SEND first", 0x20),
    ] {
        ensure!(counts[opcode] > 0, "no {what} in the capture: {counts:?}");
    }
    Ok(())
}

/// There is no short cut between HCAs of one kernel: both ends of their links count the same packets. OpenSM does not
/// ask meanwhile, because the fabric's own agents would answer.
fn all_cross_the_switch(rig: &Rig) -> Result<()> {
    /// The HCAs, and their ports of the switch.
    const LINKS: [(End<'_>, &str); 2] = [(OURS, "S1/1"), (OTHER, "S1/7")];
    let read = || -> Result<Vec<_>> {
        let shown = Shown::read()?;
        let read = |&(end, port): &(End<'_>, &str)| {
            Ok([end.count("tx_packets")?, shown.port(port)?.received])
        };
        LINKS.iter().map(read).collect()
    };
    // Nothing is on its way if it stays the same.
    let rest = || {
        rig::eventually(|| {
            let first = read()?;
            ensure!(read()? == first, "other packets");
            Ok(first)
        })
    };
    rig.opensm.signal(Signal::SIGSTOP)?;
    let counts = rest().and_then(|before| {
        pingpong("ibv_rc_pingpong", [OTHER, OURS], &["-s", "20000", "-n", "100"])?;
        Ok((before, rest()?))
    });
    rig.opensm.signal(Signal::SIGCONT)?;
    let (before, after) = counts?;
    for ((before, after), (end, _)) in before.iter().zip(&after).zip(LINKS) {
        let [sent, switched] = [0, 1].map(|index| after[index] - before[index]);
        ensure!(sent >= 500, "{end:?} sent {sent} packets");
        ensure!(switched == sent, "{end:?} sent {sent} packets, and the switch counts {switched}");
    }
    Ok(())
}

/// How many queue pairs the HCA has.
pub(crate) fn queue_pairs(device: &str) -> Result<u64> {
    Ok(resources::summary(device, &["qp"])?.iter().sum())
}

pub(crate) fn nothing_lost() -> Result<()> {
    for end in [OURS, OTHER] {
        for name in rig::LOSSES {
            ensure!(end.count(name)? == 0, "{name} of {end:?} is {}", end.count(name)?);
        }
    }
    ensure!(OURS.count("tx_packets")? > 1000, "few packets");
    Ok(())
}

/// Loses so many packets at the port of the other HCA, both ways.
fn fault(loss: &str) -> Result<()> {
    rig::run(Place::Here, &["ibfab", "fault", "link", "SM", "--loss", loss]).map(drop)
}

fn silent_peer() -> Result<()> {
    fault("0%")?;
    let options = ["-s", "1000", "-n", "1000000"];
    let (mut server, words) = start_pingpong("ibv_rc_pingpong", OTHER, OURS, &options)?;
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let mut client = spawn("ibv_rc_pingpong-client", Place::Here, &words)?;
    let before = OURS.count("rx_packets")?;
    rig::eventually(|| {
        ensure!(OURS.count("rx_packets")? > before + 200, "no traffic: {}", client.said()?);
        Ok(())
    })?;
    fault("100%")?;
    rig::eventually(|| {
        let said = client.said()? + &server.said()?;
        ensure!(said.contains("transport retry counter exceeded (12)"), "{said}");
        Ok(())
    })?;
    // The other one may wait for ever.
    client.kill()?;
    server.kill()
}

/// Does work for which connections inside one HCA go over the wire.
fn on_own_wire(work: impl FnOnce() -> Result<()>) -> Result<()> {
    fs::write(LOOPBACK, "N").context(LOOPBACK)?;
    let outcome = work();
    fs::write(LOOPBACK, "Y").context(LOOPBACK)?;
    outcome
}

/// A connection inside one HCA.
fn inside(wire: bool) -> Result<()> {
    fs::write(LOOPBACK, if wire { "N" } else { "Y" }).context(LOOPBACK)?;
    let before = SAME.count("tx_packets")?;
    pingpong("ibv_rc_pingpong", [SAME, OURS], &["-s", "5000", "-n", "100"])?;
    let sent = SAME.count("tx_packets")? - before;
    fs::write(LOOPBACK, "Y").context(LOOPBACK)?;
    ensure!((sent > 500) == wire, "{sent} packets");
    Ok(())
}
