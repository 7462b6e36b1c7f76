// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm`: our programs in a virtual machine, on stock kernels of Debian.
//!
//! Needs neither root nor KVM. A scenario is a command that the guest runs, the modules it wants
//! loaded before, and programs of ours that it finds in its file system.

mod cpio;
mod image;
mod kernel;
mod qemu;
mod tap;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Subcommand, ValueEnum as _};

use self::image::Program;
use self::kernel::{Kernel, Version};
use self::qemu::{End, Guest};
use self::tap::Tap;
use crate::artifacts;
use crate::tools::{self, Toolbox};
use crate::workspace::Workspace;

/// Run our programs on stock kernels of Debian, in a virtual machine
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    scenario: Scenario,
    /// Which kernel, may be repeated [default: all]
    #[arg(long = "kernel", value_name = "VERSION", global = true)]
    kernels: Vec<Version>,
    /// When a guest that has not ended is killed
    #[arg(long, value_name = "SECONDS", default_value_t = 180, global = true)]
    deadline: u64,
}

#[derive(Subcommand)]
enum Scenario {
    /// Boot, and show that the ways in and out of the guest work
    Hello,
    /// Run a statically linked program of yours, as root, with NETLINK_RDMA, veth, TUN and tc
    Exec {
        /// The program, which becomes `/bin/<its name>`
        program: PathBuf,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

/// A scenario that is ready to be run on any kernel.
struct Prepared {
    /// Names its files in `target/vm`.
    name: &'static str,
    modules: &'static [&'static str],
    programs: Vec<Program>,
    /// What the guest runs: a path in it, and arguments.
    command: Vec<String>,
    /// Whether the command reports with the Test Anything Protocol. Otherwise its status counts.
    reports: bool,
}

/// What `vm exec` loads: everything that one of our scenarios needs.
const ALL_MODULES: &[&str] = &["rdma_ucm", "ib_umad", "tun", "veth", "sch_ingress", "cls_bpf"];

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        bail!("vm: the kernels that we have packages for are for x86_64");
    }
    let directory = workspace.target().join("vm");
    fs::create_dir_all(&directory)
        .with_context(|| format!("{} cannot be made", directory.display()))?;
    let toolbox = tools::ensure(workspace, &[&tools::QEMU, &tools::XZ])?;
    let prepared = prepare(workspace, &args.scenario)?;
    let kernels =
        if args.kernels.is_empty() { Version::value_variants() } else { &args.kernels[..] };
    // Two guests at once would write to the same files.
    let lock = File::create(directory.join("lock")).context("target/vm/lock")?;
    lock.lock().context("target/vm/lock cannot be locked")?;
    let mut failed = Vec::new();
    for &version in kernels {
        let kernel = Kernel::fetch(workspace, version)?;
        let run = Run { prepared: &prepared, version, kernel: &kernel, directory: &directory };
        if !run.start(&toolbox, Duration::from_secs(args.deadline))? {
            failed.push(version.name());
        }
    }
    if !failed.is_empty() {
        bail!("vm: {} failed on {}", prepared.name, failed.join(" and "));
    }
    Ok(())
}

fn prepare(workspace: &Workspace, scenario: &Scenario) -> Result<Prepared> {
    let built =
        image::build(workspace, "build", &["--package", "ibarr-testbed", "--bin", "ibarr-guest"])?;
    let guest = artifacts::binary(&built, "ibarr-guest")?.to_owned();
    let guest = Program { path: image::INIT.into(), executable: guest };
    let own = |name: &str| vec![image::INIT.to_owned(), name.to_owned()];
    Ok(match scenario {
        Scenario::Hello => Prepared {
            name: "hello",
            modules: &["tun"],
            programs: vec![guest],
            command: own("hello"),
            reports: true,
        },
        Scenario::Exec { program, arguments } => {
            let name = program.file_name().context("the program's path has no name")?;
            let path = format!("/bin/{}", name.to_str().context("its name is not UTF-8")?);
            let command = [path.clone()].into_iter().chain(arguments.iter().cloned()).collect();
            let program = Program { path, executable: program.clone() };
            Prepared {
                name: "exec",
                modules: ALL_MODULES,
                programs: vec![guest, program],
                command,
                reports: false,
            }
        }
    })
}

/// A scenario on a kernel.
struct Run<'a> {
    prepared: &'a Prepared,
    version: Version,
    kernel: &'a Kernel,
    /// `target/vm`.
    directory: &'a Path,
}

impl Run<'_> {
    /// Whether it succeeded; if not, why has been said.
    fn start(&self, toolbox: &Toolbox, deadline: Duration) -> Result<bool> {
        let Prepared { name, modules, programs, command, reports } = self.prepared;
        let path = toolbox.path()?;
        let initramfs = self.file("cpio");
        let modules = self.kernel.modules(modules, &path)?;
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        image::write(&initramfs, &modules, programs, &command)?;
        let (console, said) = (self.file("console.log"), self.file("said.log"));
        let mut said = File::create(&said).with_context(|| said.display().to_string())?;

        println!("vm: {name} on Linux {}", self.kernel.release);
        let began = Instant::now();
        let guest = Guest {
            kernel: &self.kernel.image,
            initramfs: &initramfs,
            init: image::INIT,
            console: &console,
            deadline,
        };
        let mut tap = Tap::default();
        let mut unsaved = None;
        let end = guest.run(&path, &mut |line| {
            println!("  {line}");
            tap.line(line);
            unsaved = unsaved.take().or(writeln!(said, "{line}").err());
        })?;
        if let Some(error) = unsaved {
            return Err(error).context("what the guest said cannot be saved");
        }
        let took = began.elapsed().as_secs_f32();
        let success = end == End::Status(0) && (!reports || tap.is_success());
        let outcome = match end {
            End::Status(_) if *reports => tap.to_string(),
            End::Status(0) => "succeeded".to_owned(),
            End::Status(status) => format!("failed with status {status}"),
            End::Deadline => format!("killed, not done after {} s", deadline.as_secs()),
            End::Died(status) => format!("the guest died (QEMU: {status})"),
        };
        println!("vm: {name} on Linux {}: {outcome} ({took:.1} s)", self.kernel.release);
        if !success {
            show_end(&console)?;
        }
        Ok(success)
    }

    fn file(&self, kind: &str) -> PathBuf {
        self.directory.join(format!("{}-{}.{kind}", self.prepared.name, self.version.name()))
    }
}

/// Prints the end of a guest's console, where the kernel says why it died.
fn show_end(console: &Path) -> Result<()> {
    const LINES: usize = 40;
    let text = fs::read(console).with_context(|| console.display().to_string())?;
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let start = lines.len().saturating_sub(LINES);
    eprintln!("vm: the end of its console, {}:", console.display());
    for line in &lines[start..] {
        eprintln!("  {}", line.trim_end());
    }
    Ok(())
}
