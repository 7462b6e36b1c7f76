// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ebpf`: compiles the BPF programs into `ibarr-ebpf/prebuilt`, from which all other builds take them. So
//! only a change of the programs needs a BPF toolchain.

mod build;
mod inputs;
mod toolchain;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use self::build::OBJECTS;
pub(crate) use self::toolchain::Toolchain;
use crate::artifacts;
use crate::privilege::Privilege;
use crate::process;
use crate::workspace::Workspace;

/// Compile the BPF programs into ibarr-ebpf/prebuilt
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write nothing: compile, and compare with the prebuilt objects
    #[arg(long)]
    check: bool,
}

/// The directory of the objects, from the top of the checkout.
const PREBUILT: &str = "ibarr-ebpf/prebuilt";

/// The file that records the sources and the toolchain of the objects beside it.
const RECORD: &str = "toolchain.txt";

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let toolchain = Toolchain::ensure(workspace)?;
    if args.check {
        return check(workspace, &toolchain);
    }
    let prebuilt = workspace.root().join(PREBUILT);
    // Take the digest before the compilation, so that a change meanwhile makes the objects stale.
    let sources = inputs::digest(workspace.root())?;
    for (object, bytes) in OBJECTS.iter().zip(build::build(workspace, &toolchain)?) {
        let path = prebuilt.join(object.file);
        fs::write(&path, &bytes).with_context(|| path.display().to_string())?;
        println!("ebpf: {}, {} bytes", object.file, bytes.len());
    }
    let record = format!(
        "# Made by `cargo xtask ebpf`.\nsources {sources}\n{}\n",
        toolchain.versions.join("\n")
    );
    fs::write(prebuilt.join(RECORD), record).context(RECORD)
}

/// Compiles, and compares with the prebuilt objects. It compares bytes only if they were made with the
/// same toolchain; otherwise it tests the fresh objects.
pub(crate) fn check(workspace: &Workspace, toolchain: &Toolchain) -> Result<()> {
    let prebuilt = workspace.root().join(PREBUILT);
    let record = fs::read_to_string(prebuilt.join(RECORD)).context(RECORD)?;
    let recorded: Vec<&str> = record.lines().skip(2).collect();
    let objects = build::build(workspace, toolchain)?;
    if recorded == toolchain.versions {
        for (object, fresh) in OBJECTS.iter().zip(objects) {
            let path = prebuilt.join(object.file);
            if fs::read(&path).with_context(|| path.display().to_string())? != fresh {
                bail!("{} differs from what its sources give: run `cargo xtask ebpf`", object.file);
            }
        }
        println!("ebpf: the prebuilt objects have exactly the bytes that their sources give");
        return Ok(());
    }
    println!(
        "ebpf: made with {}, here is {}: bytes are not compared, the fresh objects are tested",
        recorded.join(", "),
        toolchain.versions.join(", ")
    );
    let fresh = workspace.target().join("bpf");
    for (object, bytes) in OBJECTS.iter().zip(objects) {
        fs::write(fresh.join(object.file), bytes)?;
    }
    test(workspace, &fresh)
}

/// Runs the BPF tests on the objects in `dir`.
fn test(workspace: &Workspace, dir: &Path) -> Result<()> {
    let arguments = ["test", "--no-run", "--locked", "--package=ibarr-testbed", "--test=bpf"];
    let built = artifacts::build(workspace, &arguments)?;
    let tests = built.iter().find(|artifact| artifact.target == "bpf").context("no test `bpf`")?;
    let privilege = Privilege::find(false)?;
    if privilege == Privilege::Unprivileged {
        bail!("the fresh object compiles; to load and test it, root or sudo is needed");
    }
    let (object, bench) = (dir.join(OBJECTS[0].file), dir.join(OBJECTS[1].file));
    let variables =
        [("IBARR_BPF_OBJECT", object.as_os_str()), ("IBARR_BPF_BENCH_OBJECT", bench.as_os_str())];
    process::run(&mut privilege.command(&tests.executable, &variables))
}
