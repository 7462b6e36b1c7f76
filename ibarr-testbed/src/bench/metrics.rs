// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What it costs a daemon that answers peers if its metrics are read once a second. Two daemons with the
//! same load take turns; one of them serves metrics, and they are read while it is loaded.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use ibarr_common::wire::ip2gid::PORT;

use super::load::Load;
use super::process;
use super::report::{Report, Round, Target};
use crate::interrupt::Interrupt;
use crate::lab::Store;

/// Measures in a lab of its own, which is removed in any case.
///
/// # Errors
/// The lab cannot be made, or a server answers wrongly.
pub(super) fn metrics(
    store: &Store,
    ibarr: &Path,
    report: &mut Report,
    quick: bool,
    interrupt: &Interrupt,
) -> Result<()> {
    let mut lab = super::lab(store, 3, false, ibarr, interrupt)?;
    let [read, unread, client] = lab.plan().nodes.as_slice() else { bail!("a lab of three nodes") };
    let (read, unread, client) = (read.clone(), unread.clone(), client.clone());
    let files = lab.files(&read);
    let socket = files.run_dir().join("metrics.sock");
    let config = fs::read_to_string(files.config())?;
    let listen = format!("[metrics]\nlisten = \"unix:{}\"\n", socket.display());
    fs::write(files.config(), format!("{config}{listen}"))?;
    let mut servers = Vec::new();
    for node in [&read, &unread] {
        lab.restart(node.name, interrupt)?;
        let daemon = lab.state().daemons.iter().find(|daemon| daemon.node == node.name);
        let pid = daemon.context("the daemon was started")?.process.pid;
        let target = SocketAddr::new(node.addresses[0], PORT);
        servers.push((pid, Load::new(&client.namespace, target, &node.gid()?.octets())?));
    }
    process::pin(&[servers[0].0, servers[1].0])?;
    let [with, without] = super::in_turn(quick, interrupt, |index, time| {
        let (pid, load) = &servers[index];
        let reader = (index == 0).then(|| Reader::start(socket.clone()));
        let cpu = process::cpu_time(*pid)?;
        let (answers, wall) = load.closed_loop(time, interrupt)?;
        let cpu = process::cpu_time(*pid)?.saturating_sub(cpu);
        if let Some(reader) = reader {
            reader.end()?;
        }
        ensure!(!cpu.is_zero(), "a server answers without using a CPU");
        Ok(Round { answers: f64::from(u32::try_from(answers)?), wall, cpu })
    })?;
    let target = Some(Target::AtLeast(0.97));
    report.add_ratios("metrics read", "those without metrics", &with, &without, target)?;
    drop(servers);
    lab.down()
}

/// Reads metrics at once and then once a second, as Prometheus does at its most frequent.
struct Reader {
    end: Sender<()>,
    thread: JoinHandle<Result<()>>,
}

impl Reader {
    fn start(socket: PathBuf) -> Self {
        let (end, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            loop {
                read(&socket)?;
                match ended.recv_timeout(Duration::from_secs(1)) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
            }
        });
        Self { end, thread }
    }

    fn end(self) -> Result<()> {
        drop(self.end);
        self.thread.join().map_err(|_| anyhow!("the reader of metrics panicked"))?
    }
}

fn read(socket: &Path) -> Result<()> {
    let of = || format!("cannot read the metrics at {}", socket.display());
    let mut stream = UnixStream::connect(socket).with_context(of)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page).with_context(of)?;
    ensure!(page.contains("\nibarr_ip2gid_answers_total"), "not a page of metrics: {page}");
    Ok(())
}
