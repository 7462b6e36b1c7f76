// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The subnet manager dies, a guest is reset, a cable is pulled, packets are lost.

use anyhow::{Result, ensure};

use super::{A, A_PORT, B, B_PORT, Cluster, FAR, MASTER, NEAR, is_manager, other};
use crate::report::Report;
use crate::rig::verbs::{self, pingpong_lossy};
use crate::rig::{self, Connection, Place, eventually, rping, rping_from, rping_lossy, spawn};

pub(super) fn prove(report: &mut Report, cluster: &mut Cluster) {
    report.claim("the manager dies, and the standby takes over under traffic", cluster.failover());
    report.claim("new connections find their paths", both_ways());
    report.claim("the manager is back, and takes over", cluster.back());
    report.claim("new connections find their paths again", both_ways());
    report.claim("a connection ends with an error when its kernel is reset", cluster.reset());
    report.claim("the kernel is back with all its programs", cluster.rejoins());
    // The subnet administrator may have said, while the port was away, that no path leads to it: remembered for 5 s.
    report.claim("connections are made again", eventually(both_ways));
    report.claim("a cable is pulled and plugged in", cable());
    report.claim("connections are made again", eventually(both_ways));
    report.claim("with 5% of B's packets lost, all data arrives", lossy());
    report.claim("without loss, too", both_ways());
}

fn both_ways() -> Result<()> {
    rping(Place::Other, FAR[0])?;
    rping_from(Place::Other, Place::Here, NEAR[0])
}

impl Cluster {
    fn failover(&mut self) -> Result<()> {
        let connection = Connection::open(0, Place::Other, FAR[0])?;
        self.opensm.kill()?;
        is_manager(Place::Other, "MASTER")?;
        connection.goes_on()?;
        connection.close()
    }

    fn back(&mut self) -> Result<()> {
        self.opensm = rig::opensm_at(Place::Here, A_PORT, &MASTER)?;
        is_manager(Place::Here, "MASTER")?;
        is_manager(Place::Other, "STANDBY")
    }

    /// The client always has packets without acknowledge. One that waits for its peer would wait for ever.
    fn reset(&mut self) -> Result<()> {
        let options = ["-F", "-s", "4096", "-D", "600"];
        let (mut server, words) = verbs::start("ib_write_bw", B, A, FAR[0], &options)?;
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let sent = || -> Result<u64> {
            Ok(rig::port_attribute(Place::Here, A_PORT, "hw_counters/tx_packets")?.parse()?)
        };
        let before = sent()?;
        let client = spawn("ib_write_bw-client", Place::Here, &words)?;
        eventually(|| {
            ensure!(sent()? > before + 200, "no traffic: {}", client.said()?);
            Ok(())
        })?;
        self.other.reset()?;
        eventually(|| {
            let said = client.said()?;
            // IBV_WC_RETRY_EXC_ERR
            ensure!(said.contains("Failed status 12"), "{said}");
            Ok(())
        })?;
        server.kill()
    }

    fn rejoins(&mut self) -> Result<()> {
        self.other = other::Programs::start()?;
        rig::is_active(Place::Other, B_PORT)?;
        other::network()?;
        self.other.start_daemon()?;
        is_manager(Place::Other, "STANDBY")
    }
}

fn cable() -> Result<()> {
    let state = |wanted: &str| {
        eventually(|| {
            let state = rig::port_attribute(Place::Other, B_PORT, "state")?;
            ensure!(state.contains(wanted), "{state}");
            Ok(())
        })
    };
    fault(&["cable", "B", "off"])?;
    state("DOWN")?;
    fault(&["cable", "B", "on"])?;
    state("ACTIVE")?;
    rig::is_up(Place::Other, "ib0")
}

fn lossy() -> Result<()> {
    fault(&["link", "B", "--loss", "5%"])?;
    let options = ["-c", "-e", "-s", "20000", "-m", "1024", "-n", "50"];
    let outcome = rping_lossy(Place::Here, Place::Other, FAR[0])
        .and_then(|()| rping_lossy(Place::Other, Place::Here, NEAR[0]))
        .and_then(|()| pingpong_lossy("ibv_rc_pingpong", [A, B], NEAR[0], &options));
    fault(&["link", "B"])?;
    outcome
}

fn fault(words: &[&str]) -> Result<()> {
    rig::run(Place::Here, &[&["ibfab", "fault"], words].concat()).map(drop)
}
