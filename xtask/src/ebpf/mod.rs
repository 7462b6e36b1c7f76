// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ebpf`: compiles the BPF programs into `ibarr-ebpf/prebuilt`, where everything else takes them
//! from. Whoever does not touch them needs no BPF toolchain.

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
    /// Write nothing: compile, and compare with what is there
    #[arg(long)]
    check: bool,
}

/// Where the objects are, from the top of the checkout.
const PREBUILT: &str = "ibarr-ebpf/prebuilt";

/// Says what the objects beside it were made from, and with what.
const RECORD: &str = "toolchain.txt";

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let toolchain = Toolchain::ensure(workspace)?;
    if args.check {
        return check(workspace, &toolchain);
    }
    let prebuilt = workspace.root().join(PREBUILT);
    // Of what is there before it is compiled: a change meanwhile makes the objects stale.
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

/// Compiles, and compares with what is there. Bytes are compared only if it was made with the same
/// toolchain; else the fresh objects are tested in its place.
pub(crate) fn check(workspace: &Workspace, toolchain: &Toolchain) -> Result<()> {
    let prebuilt = workspace.root().join(PREBUILT);
    let record = fs::read_to_string(prebuilt.join(RECORD)).context(RECORD)?;
    let recorded: Vec<&str> = record.lines().skip(2).collect();
    let objects = build::build(workspace, toolchain)?;
    if recorded == toolchain.versions {
        for (object, fresh) in OBJECTS.iter().zip(objects) {
            let path = prebuilt.join(object.file);
            if fs::read(&path).with_context(|| path.display().to_string())? != fresh {
                bail!("{} is not what its sources give: run `cargo xtask ebpf`", object.file);
            }
        }
        println!("ebpf: the prebuilt objects are byte for byte what their sources give");
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
