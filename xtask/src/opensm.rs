// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the level `opensm` of `test` does: stock OpenSM and its diagnostics on a fabric of `ibfab`,
//! without kernel module and root. They get there by ibsim's `libumad2sim.so`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::process;
use crate::workspace::Workspace;

/// Two switches, two hosts at each.
const TOPOLOGY: &str = "Switch 4 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n[3] \"S2\"[3]\n\n\
    Switch 4 \"S2\"\n[1] \"H3\"[1]\n[2] \"H4\"[1]\n\n\
    Ca 1 \"H1\"\n\nCa 1 \"H2\"\n\nCa 1 \"H3\"\n\nCa 1 \"H4\"\n";

/// What OpenSM does in milliseconds, it may take so long for on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Holds `ibfab` to what OpenSM, of the packages unpacked under `root`, makes of its fabric.
pub(crate) fn prove(workspace: &Workspace, ibfab: &Path, root: &Path) -> Result<()> {
    let rig = Rig::new(workspace, ibfab, root)?;
    let _fabric = rig.fabric()?;
    let _manager = rig.manager()?;
    rig.wait_for_log("SUBNET UP")?;
    claim("OpenSM brings the subnet up");

    let seen = rig.diagnose("ibnetdiscover", &[])?;
    for host in ["H1", "H2", "H3", "H4"] {
        let line = seen.lines().find(|line| line.contains(&format!("# \"{host}\" lid ")));
        ensure!(line.is_some_and(|line| !line.contains("lid 0 ")), "{host} has no LID:\n{seen}");
    }
    claim("ibnetdiscover finds every host, each with a LID");

    let manager = rig.diagnose("sminfo", &[])?;
    ensure!(manager.contains("SMINFO_MASTER"), "{manager}");
    claim("a request by LID reaches OpenSM on another host, and its answer comes back");

    let shown = rig.ask(&["show"])?;
    ensure!(states(&shown).all(|state| state == "active"), "{shown}");
    claim("every port with a cable is active");

    rig.ask(&["fault", "cable", "S1/3", "off"])?;
    rig.wait_for_log("Removed port with GUID:0x0000000000100005")?;
    claim("OpenSM hears of a pulled cable by trap, and removes who was behind it");
    rig.ask(&["fault", "cable", "S1/3", "on"])?;
    rig.wait_for_log("Discovered new port with GUID:0x0000000000100005")?;
    wait_until("all ports are active again", || {
        Ok(states(&rig.ask(&["show"])?).all(|state| state == "active"))
    })?;
    claim("and finds them again when it is plugged in");
    Ok(())
}

fn claim(claim: &str) {
    println!("ok: {claim}");
}

/// The column of `ibfab show`.
fn states(shown: &str) -> impl Iterator<Item = &str> {
    let ports = shown.lines().skip(1).take_while(|line| !line.is_empty());
    ports.filter_map(|line| line.split_whitespace().nth(2))
}

struct Rig<'a> {
    ibfab: &'a Path,
    root: &'a Path,
    directory: PathBuf,
    /// Of abstract sockets, which the machine has in common.
    name: String,
}

/// A process that ends with us.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl<'a> Rig<'a> {
    fn new(workspace: &Workspace, ibfab: &'a Path, root: &'a Path) -> Result<Self> {
        let directory = workspace.target().join("opensm");
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("topology"), TOPOLOGY)?;
        // Its log is to be read while it is written.
        fs::write(directory.join("opensm.conf"), "force_log_flush TRUE\n")?;
        let name = format!("ibarr-{}", std::process::id());
        Ok(Self { ibfab, root, directory, name })
    }

    fn fabric(&self) -> Result<Running> {
        let mut command = Command::new(self.ibfab);
        command.args(["run", "topology", "--control", "control", "--umad2sim", &self.name]);
        let running = self.start(&mut command)?;
        wait_until("ibfab listens", || Ok(self.directory.join("control").exists()))?;
        Ok(running)
    }

    fn manager(&self) -> Result<Running> {
        let mut command = self.on_host("H1", "opensm");
        command.args(["-F", "opensm.conf", "-f", "opensm.log", "--dump_files_dir", "."]);
        command.env("OSM_TMP_DIR", &self.directory).env("OSM_CACHE_DIR", &self.directory);
        self.start(&mut command)
    }

    fn start(&self, command: &mut Command) -> Result<Running> {
        let program = command.get_program().to_owned();
        command.current_dir(&self.directory).stdin(Stdio::null()).stdout(Stdio::null());
        let child =
            command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Running(child))
    }

    /// What a program of the diagnostics prints on host H3.
    fn diagnose(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = self.on_host("H3", program);
        process::output(command.args(arguments).current_dir(&self.directory))
    }

    fn ask(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(self.ibfab);
        let command = command.args(["--control", "control"]).args(words);
        process::output(command.current_dir(&self.directory))
    }

    fn on_host(&self, host: &str, program: &str) -> Command {
        let libraries = self.root.join("usr/lib/x86_64-linux-gnu");
        let mut command = Command::new(self.root.join("usr/sbin").join(program));
        command
            .env("LD_PRELOAD", libraries.join("umad2sim/libumad2sim.so"))
            .env("LD_LIBRARY_PATH", libraries)
            .env("IBSIM_SOCKNAME", &self.name)
            .env("SIM_HOST", host);
        command
    }

    /// Waits until OpenSM's log has `text`.
    fn wait_for_log(&self, text: &str) -> Result<()> {
        let log = self.directory.join("opensm.log");
        let what = format!("OpenSM says {text:?} (see {})", log.display());
        wait_until(&what, || Ok(fs::read_to_string(&log).unwrap_or_default().contains(text)))
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so()? {
        if Instant::now() > deadline {
            bail!("waited in vain until {what}");
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_those_of_ports_alone() {
        let shown = "PORT PEER STATE\nS1/1 H1/1 active 2\nS1/3 S2/3 down 2\n\nPackets that went\n";
        assert_eq!(states(shown).collect::<Vec<_>>(), ["active", "down"]);
    }
}
