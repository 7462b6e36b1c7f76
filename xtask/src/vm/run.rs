// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Runs scenarios in guests, several at once, and collects what they say.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

use super::image::{self, Program};
use super::kernel::{Kernel, Version};
use super::qemu::{End, Guest, Link, Processors};
use super::results;
use super::table::{Cell, Table};
use super::tap::Tap;
use crate::tools::{self, Toolbox};
use crate::workspace::Workspace;

/// The kernels that run scenarios, and QEMU.
pub(super) struct Machines {
    toolbox: Toolbox,
    kernels: Vec<Kernel>,
    /// `target/vm`.
    directory: PathBuf,
    /// Locked, because two guests at once would write to the same files.
    _lock: File,
}

/// How many guests run at once: each keeps one processor busy, and CI has two.
const GUESTS: usize = 2;

/// A scenario that can run on any kernel.
pub(super) struct Prepared {
    /// A part of the names of its files in `target/vm`.
    pub(super) name: &'static str,
    /// A few words about it.
    pub(super) about: String,
    pub(super) modules: &'static [&'static str],
    /// Modules that it loads itself. Their dependencies come with them.
    pub(super) later: &'static [&'static str],
    pub(super) programs: Vec<Program>,
    /// Further files of the guest: paths and contents.
    pub(super) files: &'static [(&'static str, &'static str)],
    /// The guest's command: a path in the guest, and arguments.
    pub(super) command: Vec<String>,
    /// Directories of this machine, see [`Guest`].
    pub(super) shares: Vec<(&'static str, PathBuf)>,
    pub(super) processors: Processors,
    pub(super) kernel_arguments: &'static str,
    /// Whether it leaves result files, see [`results`].
    pub(super) results: bool,
    /// Whether it uses our terminal.
    pub(super) is_interactive: bool,
    /// Whether the command reports in the Test Anything Protocol. Otherwise its status counts.
    pub(super) reports: bool,
}

impl Machines {
    /// Machines with these kernels of Debian, which are fetched if needed.
    pub(super) fn fetch(workspace: &Workspace, versions: &[Version]) -> Result<Self> {
        Self::with(workspace, || {
            versions.iter().map(|&version| Kernel::fetch(workspace, version)).collect()
        })
    }

    /// Machines with the kernel that was built in `tree`.
    pub(super) fn of_tree(workspace: &Workspace, tree: &Path) -> Result<Self> {
        Self::with(workspace, || Ok(vec![Kernel::built(tree)?]))
    }

    fn with(workspace: &Workspace, kernels: impl Fn() -> Result<Vec<Kernel>>) -> Result<Self> {
        if !cfg!(target_arch = "x86_64") {
            bail!("vm: the kernels that we have packages for are for x86_64");
        }
        let directory = workspace.target().join("vm");
        fs::create_dir_all(&directory)
            .with_context(|| format!("{} cannot be made", directory.display()))?;
        let lock = File::create(directory.join("lock")).context("target/vm/lock")?;
        lock.lock().context("target/vm/lock cannot be locked")?;
        let toolbox = tools::ensure(workspace, &[&tools::QEMU, &tools::XZ])?;
        Ok(Self { toolbox, kernels: kernels()?, directory, _lock: lock })
    }

    /// Builds our own module for each kernel that has none.
    pub(super) fn build_module(&mut self, workspace: &Workspace) -> Result<()> {
        self.kernels.iter_mut().try_for_each(|kernel| kernel.build_module(workspace))
    }

    /// What `uname -r` says on the kernel with this name.
    pub(super) fn release(&self, name: &str) -> &str {
        let kernel = self.kernels.iter().find(|kernel| kernel.name == name);
        kernel.map_or("", |kernel| &kernel.release)
    }

    /// What the guest of a scenario, as in `run h`, said when it last ran on this kernel.
    pub(super) fn said(&self, scenario: &str, kernel: Version) -> Result<String> {
        let name = scenario.replace(' ', "-");
        let file = self.directory.join(format!("{name}-{}.said.log", kernel.name()));
        fs::read_to_string(&file).with_context(|| file.display().to_string())
    }

    /// Runs scenarios on each kernel, two guests at a time, and adds the results to the table. A guest that
    /// measures runs alone, after the others.
    pub(super) fn run(
        &self,
        scenarios: &[Prepared],
        deadline: Duration,
        table: &mut Table,
    ) -> Result<()> {
        let mut runs: Vec<_> = scenarios
            .iter()
            .flat_map(|prepared| self.kernels.iter().map(move |kernel| (prepared, kernel)))
            .map(|(prepared, kernel)| Run {
                prepared,
                kernel,
                directory: &self.directory,
                link: None,
            })
            .collect();
        let measuring: Vec<_> = runs
            .extract_if(.., |run| run.prepared.processors == Processors::CountedAlone)
            .collect();
        for (runs, at_once) in [(runs, GUESTS), (measuring, 1)] {
            self.run_side_by_side(&runs, at_once, deadline)?
                .into_iter()
                .for_each(|cell| table.add(cell));
        }
        Ok(())
    }

    /// The results, in the order of `runs`.
    fn run_side_by_side(
        &self,
        runs: &[Run<'_>],
        at_once: usize,
        deadline: Duration,
    ) -> Result<Vec<Cell>> {
        let waiting = Mutex::new(runs.iter().enumerate());
        let next = || waiting.lock().ok()?.next();
        let work = || {
            let cells = iter::from_fn(next);
            let cells = cells.map(|(place, run)| Ok((place, run.start(&self.toolbox, deadline)?)));
            cells.collect::<Result<Vec<_>>>()
        };
        let mut cells = Vec::new();
        thread::scope(|scope| {
            let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| {
                cells.extend(worker.join().map_err(|_| anyhow!("a thread has panicked"))??);
                anyhow::Ok(())
            })
        })?;
        cells.sort_by_key(|(place, _)| *place);
        Ok(cells.into_iter().map(|(_, cell)| cell).collect())
    }

    /// Runs a scenario of two guests, which an Ethernet link joins, on the first and on the last kernel. The
    /// first guest reports, and ends the second.
    pub(super) fn run_both(
        &self,
        both: &[Prepared],
        deadline: Duration,
        table: &mut Table,
    ) -> Result<()> {
        let kernels = self.kernels.first().zip(self.kernels.last());
        let (first, second) = kernels.context("vm: no kernel")?;
        let link = |own: usize| Link {
            directory: self.directory.clone(),
            own: format!("{}.link", both[own].name),
            other: format!("{}.link", both[1 - own].name),
            number: u8::from(own == 1),
            restarts: own == 1,
        };
        let links = [link(0), link(1)];
        for link in &links {
            match fs::remove_file(self.directory.join(&link.own)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        let run = |own: usize, kernel| {
            let link = Some(links[own].clone());
            let run = Run { prepared: &both[own], kernel, directory: &self.directory, link };
            run.start(&self.toolbox, deadline)
        };
        let (here, there) = thread::scope(|scope| {
            let there = scope.spawn(|| run(1, second));
            (run(0, first), there.join())
        });
        let (mut cell, there) = (here?, there.map_err(|_| anyhow!("a thread has panicked"))??);
        cell.kernel = format!("{}, {}", cell.kernel, there.kernel);
        if cell.success && !there.success {
            (cell.success, cell.outcome) = (false, format!("the other guest: {}", there.outcome));
        }
        table.add(cell);
        Ok(())
    }
}

/// A scenario on a kernel.
struct Run<'a> {
    prepared: &'a Prepared,
    kernel: &'a Kernel,
    /// `target/vm`.
    directory: &'a Path,
    link: Option<Link>,
}

impl Run<'_> {
    /// Runs it, and returns its result. If it fails, it prints why.
    fn start(&self, toolbox: &Toolbox, deadline: Duration) -> Result<Cell> {
        let Prepared {
            name, modules, later, programs, files, command, processors, reports, ..
        } = self.prepared;
        let path = toolbox.path()?;
        let initramfs = self.file("cpio");
        let modules = self.kernel.modules(modules, &path)?;
        let later = self.kernel.modules(later, &path)?;
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        image::write(&initramfs, &modules, &later, programs, files, &command)?;
        let disk = self.prepared.results.then(|| self.file("disk"));
        disk.as_deref().map_or(Ok(()), results::prepare)?;
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
            processors: *processors,
            kernel_arguments: self.prepared.kernel_arguments,
            disk: disk.as_deref(),
            shares: &self.prepared.shares,
            link: self.link.as_ref(),
        };
        let mut tap = Tap::default();
        if self.prepared.is_interactive {
            guest.talk(&path)?;
            self.keep(disk.as_deref())?;
            return Ok(self.cell(true, tap, String::new(), began.elapsed()));
        }
        let mut unsaved = None;
        let end = guest.run(&path, &mut |line| {
            println!(
                "{:6.1} s  {name} {}: {line}",
                began.elapsed().as_secs_f32(),
                self.kernel.name
            );
            tap.line(line);
            unsaved = unsaved.take().or(writeln!(said, "{line}").err());
        })?;
        if let Some(error) = unsaved {
            return Err(error).context("the guest's output cannot be saved");
        }
        let took = began.elapsed();
        let success = end == End::Status(0) && (!reports || tap.is_success());
        let outcome = match end {
            End::Status(_) if *reports => tap.to_string(),
            End::Status(0) => "succeeded".to_owned(),
            End::Status(status) => format!("failed with status {status}"),
            End::Deadline => format!("killed, not done after {} s", deadline.as_secs()),
            End::Died(status) => format!("the guest died (QEMU: {status})"),
        };
        println!(
            "vm: {name} on Linux {}: {outcome} ({:.1} s)",
            self.kernel.release,
            took.as_secs_f32()
        );
        self.keep(disk.as_deref())?;
        if !success {
            show_end(&console)?;
        }
        Ok(self.cell(success, tap, outcome, took))
    }

    fn cell(&self, success: bool, tap: Tap, outcome: String, took: Duration) -> Cell {
        let Prepared { name: scenario, about, .. } = self.prepared;
        let about = about.clone();
        Cell { scenario, about, kernel: self.kernel.name.to_owned(), success, tap, outcome, took }
    }

    /// Unpacks the files that the guest left on its disk.
    fn keep(&self, disk: Option<&Path>) -> Result<()> {
        let Some(disk) = disk else { return Ok(()) };
        let directory = self.file("results");
        let left = results::unpack(disk, &directory)?;
        println!("vm: it left {} in {}", left.join(", "), directory.display());
        Ok(())
    }

    fn file(&self, kind: &str) -> PathBuf {
        self.directory.join(format!("{}-{}.{kind}", self.prepared.name, self.kernel.name))
    }
}

/// Prints the end of a guest's console, which shows why the kernel died.
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
