// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Stock OpenSM and its diagnostics on a fabric of `ibfab`, which they use through ibsim's
//! `libumad2sim.so`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::start::program;

/// The paths of the programs.
#[derive(Clone, Debug)]
pub struct Stock {
    root: PathBuf,
    ibfab: PathBuf,
}

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub struct Running(Child);

impl Stock {
    /// The programs of Debian's packages that are unpacked below `root`.
    ///
    /// # Errors
    /// A program is missing.
    pub fn new(root: PathBuf, ibfab: PathBuf) -> io::Result<Self> {
        for program in [&root.join("usr/sbin/opensm"), &ibfab] {
            if !program.exists() {
                let lacks = format!("no {}", program.display());
                return Err(io::Error::new(io::ErrorKind::NotFound, lacks));
            }
        }
        Ok(Self { root, ibfab })
    }

    /// Serves the fabric of `topology` as `name`, and listens for commands at `control` in
    /// `directory`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn fabric(&self, name: &str, directory: &Path, topology: &str) -> io::Result<Command> {
        fs::write(directory.join("topology"), topology)?;
        let mut command = self.ibfab();
        command.args(["run", "topology", "--control", "control", "--umad2sim", name]);
        command.current_dir(directory);
        Ok(command)
    }

    /// An OpenSM on a host of the fabric, with its files in `directory`. Its log is `opensm.log`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn manager(
        &self,
        fabric: &str,
        host: &str,
        directory: &Path,
        config: &str,
    ) -> io::Result<Command> {
        // Tests read the log while OpenSM writes it.
        fs::write(directory.join("opensm.conf"), format!("force_log_flush TRUE\n{config}"))?;
        let mut command = self.on_host(fabric, host, "opensm");
        command.args(["-F", "opensm.conf", "-f", "opensm.log", "--dump_files_dir", "."]);
        command.env("OSM_TMP_DIR", directory).env("OSM_CACHE_DIR", directory);
        command.current_dir(directory);
        Ok(command)
    }

    /// A program of the packages, on a host of the fabric.
    pub fn on_host(&self, fabric: &str, host: &str, name: &str) -> Command {
        let libraries = self.root.join("usr/lib/x86_64-linux-gnu");
        let mut command = program(self.root.join("usr/sbin").join(name));
        command
            .env("LD_PRELOAD", libraries.join("umad2sim/libumad2sim.so"))
            .env("LD_LIBRARY_PATH", libraries)
            .env("IBSIM_SOCKNAME", fabric)
            .env("SIM_HOST", host);
        command
    }

    /// A command of `ibfab`.
    pub fn ibfab(&self) -> Command {
        program(&self.ibfab)
    }
}

impl Running {
    /// Starts it, without standard input and output.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Self)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
