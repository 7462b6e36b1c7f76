// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `fuzz`: libFuzzer on stable Rust. The workspace in `fuzz/` has the targets and their corpora. This
//! module sets the flags that cargo-fuzz would set, so neither cargo-fuzz nor a nightly compiler is needed.

use std::ffi::OsStr;
use std::fs;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::artifacts::{self, Artifact};
use crate::process;
use crate::tools::{self, Toolbox};
use crate::workspace::{self, Workspace};

/// Search for inputs that break a claim; a crash is minimised into the corpus
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The target to run [default: all, one after another]
    target: Option<String>,
    /// How long to run each
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Add inputs that reached new code to the corpus
    #[arg(long)]
    keep: bool,
}

/// Compiler flags for coverage-guided fuzzing: a counter at every edge, the table of their places, and a
/// call at each comparison. `cfg(fuzzing)` brings in libFuzzer.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Seconds. An input that takes longer breaks the claim.
const TIMEOUT: &str = "-timeout=10";

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let toolbox = tools::ensure(workspace, &[&tools::LIBFUZZER])?;
    let fuzzers = build(workspace, &toolbox)?;
    if let Some(name) = &args.target {
        artifacts::binary(&fuzzers, name)?;
    }
    let is_wanted =
        |fuzzer: &&Artifact| args.target.as_ref().is_none_or(|name| *name == fuzzer.target);
    for fuzzer in fuzzers.iter().filter(is_wanted) {
        let target = Target::new(workspace, fuzzer)?;
        target.search(Duration::from_secs(args.seconds), Progress::Shown)?;
        if args.keep {
            target.keep()?;
        }
    }
    Ok(())
}

/// Runs each target for `time`, as many at once as there are cores.
pub(crate) fn smoke(workspace: &Workspace, toolbox: &Toolbox, time: Duration) -> Result<()> {
    let fuzzers = build(workspace, toolbox)?;
    if fuzzers.is_empty() {
        bail!("there are no fuzz targets");
    }
    let search = |fuzzer| Target::new(workspace, fuzzer)?.search(time, Progress::Hidden);
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    for batch in fuzzers.chunks(cores) {
        let results: Vec<Result<()>> = thread::scope(|scope| {
            let running: Vec<_> =
                batch.iter().map(|fuzzer| scope.spawn(move || search(fuzzer))).collect();
            let results = running.into_iter().map(thread::ScopedJoinHandle::join);
            results.map(|result| result.unwrap_or_else(|panic| resume_unwind(panic))).collect()
        });
        results.into_iter().collect::<Result<()>>()?;
    }
    Ok(())
}

/// A `cargo test` that runs every target on its corpus. Needs neither C++ nor instrumentation.
pub(crate) fn replay(workspace: &Workspace) -> Command {
    cargo(workspace, &["test", "--locked"])
}

/// `cargo` with `arguments`, in the workspace of the fuzz targets.
pub(crate) fn cargo(workspace: &Workspace, arguments: &[&str]) -> Command {
    let mut command = workspace::cargo(&root(workspace), arguments);
    command.env("CARGO_TARGET_DIR", target_dir(workspace));
    command
}

fn build(workspace: &Workspace, toolbox: &Toolbox) -> Result<Vec<Artifact>> {
    // If a target is given, the flags do not apply to build scripts and macros.
    let host = workspace::host_triple()?;
    let mut command =
        cargo(workspace, &["build", "--locked", "--release", "--bins", "--target", &host]);
    if let Some(root) = toolbox.root(&tools::LIBFUZZER) {
        // Every Debian system has the C++ library, but not always its link for compilers.
        command
            .env("CUSTOM_LIBFUZZER_PATH", prebuilt(&root)?)
            .env("CUSTOM_LIBFUZZER_STD_CXX", "none")
            .env("RUSTFLAGS", format!("{RUSTFLAGS} -Clink-arg=-l:libstdc++.so.6"));
    } else {
        command.env("RUSTFLAGS", RUSTFLAGS);
    }
    artifacts::from(&mut command)
}

/// libFuzzer's archive in the packages that are unpacked to `root`.
fn prebuilt(root: &Path) -> Result<PathBuf> {
    let name = format!("libclang_rt.fuzzer-{}.a", std::env::consts::ARCH);
    let clang = root.join("usr/lib/llvm-14/lib/clang");
    let archive = files(&clang)?.iter().map(|version| version.join("lib/linux").join(&name)).next();
    archive
        .filter(|archive| archive.is_file())
        .with_context(|| format!("{name} is not under {}; g++ would do instead", clang.display()))
}

/// Whether to show libFuzzer's own lines. If not, as in CI, each search tries the same inputs.
#[derive(Clone, Copy)]
enum Progress {
    Shown,
    Hidden,
}

/// One target: its fuzzer and its directories.
struct Target<'a> {
    name: &'a str,
    fuzzer: &'a Path,
    /// The corpus in the checkout.
    corpus: PathBuf,
    /// The further inputs that fuzzing has found, under `target/`.
    findings: PathBuf,
    /// Inputs that broke the claim, under `target/`.
    crashes: PathBuf,
}

impl<'a> Target<'a> {
    fn new(workspace: &Workspace, fuzzer: &'a Artifact) -> Result<Self> {
        let name = &fuzzer.target;
        let target = Self {
            name,
            fuzzer: &fuzzer.executable,
            corpus: root(workspace).join("corpus").join(name),
            findings: target_dir(workspace).join("corpus").join(name),
            crashes: target_dir(workspace).join("crashes").join(name),
        };
        for dir in [&target.corpus, &target.findings, &target.crashes] {
            fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        }
        Ok(target)
    }

    fn search(&self, time: Duration, progress: Progress) -> Result<()> {
        eprintln!("   {}: {} s", self.name, time.as_secs());
        // Earlier crashes are in the corpus already. An input that fails again gets the same name.
        for old in files(&self.crashes)? {
            fs::remove_file(old)?;
        }
        let mut command = Command::new(self.fuzzer);
        command
            .args([&self.findings, &self.corpus])
            .arg(format!("-max_total_time={}", time.as_secs()))
            .args([TIMEOUT, "-print_final_stats=1"])
            .arg(with_path("-artifact_prefix=", &self.crashes.join("")));
        let ran = match progress {
            Progress::Shown => process::run(&mut command),
            Progress::Hidden => process::output(command.arg("-seed=1")).map(drop),
        };
        let Err(error) = ran else { return Ok(()) };
        let Some(crash) = files(&self.crashes)?.into_iter().next() else { return Err(error) };
        let kept = self.minimise(&crash)?;
        eprintln!("{error:#}");
        bail!(
            "{}: a claim is broken by {}: {}\n`cargo test --manifest-path fuzz/Cargo.toml` shows \
             it until it is mended; commit both",
            self.name,
            kept.display(),
            hex(&fs::read(&kept)?),
        );
    }

    /// Writes the smallest input that breaks the claim as `crash` does to the corpus. An input that takes too
    /// long or too much memory is kept unchanged, because each smaller one would take as long.
    fn minimise(&self, crash: &Path) -> Result<PathBuf> {
        let name = crash.file_name().context("a crash is a file")?;
        let kept = self.corpus.join(name);
        fs::copy(crash, &kept)?;
        if !name.as_encoded_bytes().starts_with(b"crash-") {
            return Ok(kept);
        }
        let mut command = Command::new(self.fuzzer);
        command
            .args(["-minimize_crash=1", "-max_total_time=20", TIMEOUT])
            .arg(with_path("-exact_artifact_path=", &kept))
            .arg(crash);
        // libFuzzer always fails here, with the smallest input that still fails.
        command.output().with_context(|| format!("{} cannot be run", self.fuzzer.display()))?;
        Ok(kept)
    }

    /// Adds the findings that reach new code to the corpus. They are few enough for git.
    fn keep(&self) -> Result<()> {
        let mut command = Command::new(self.fuzzer);
        command.args(["-set_cover_merge=1", "-use_counters=0"]);
        process::output(command.args([&self.corpus, &self.findings])).map(drop)
    }
}

fn root(workspace: &Workspace) -> PathBuf {
    workspace.root().join("fuzz")
}

fn target_dir(workspace: &Workspace) -> PathBuf {
    workspace.target().join("fuzz")
}

fn with_path(option: &str, path: &Path) -> std::ffi::OsString {
    let mut argument = OsStr::new(option).to_owned();
    argument.push(path);
    argument
}

fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    let mut files =
        entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, std::io::Error>>()?;
    files.sort();
    Ok(files)
}

/// The bytes in hexadecimal, for reports from a machine whose files are lost.
fn hex(bytes: &[u8]) -> String {
    const SHOWN: usize = 512;
    let more = if bytes.len() > SHOWN { " and more" } else { "" };
    format!("{:02x?}{more}", &bytes[..bytes.len().min(SHOWN)])
}
