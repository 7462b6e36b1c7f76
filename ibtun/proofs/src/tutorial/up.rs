// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibfab up` and `ibfab down`: what they refuse, and that they leave nothing.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use super::{processes, typed};
use crate::report::Report;
use crate::rig::{self, Place};

/// Directories of programs: without OpenSM, and with one that ends at once.
const WITHOUT: &str = "/run/without";
const BROKEN: &str = "/run/broken";

pub(super) fn prove(report: &mut Report) {
    let made = [WITHOUT, BROKEN]
        .map(|directory| typed(&format!("mkdir {directory} && ln -s /bin/ip {directory}/ip")));
    report.claim("there are other programs", made.into_iter().collect::<Result<Vec<_>>>());
    let opensm = format!("{BROKEN}/opensm");
    let broken = format!("printf '#!/bin/dash\\necho no; exit 1' >{opensm}; chmod +x {opensm}");
    report.claim("there is an OpenSM that ends at once", typed(&broken));
    for (claim, command, says) in [
        ("`ibfab down` says that nothing is up", "ibfab down", "it is not up"),
        ("`ibfab up` needs root", "setpriv --reuid 900 ibfab up", "root is needed"),
        (
            "it names a missing OpenSM",
            &format!("PATH={WITHOUT} /bin/ibfab up"),
            "opensm is missing: `apt install opensm`",
        ),
        (
            "it names a missing module",
            "mv /dev/ibtun /dev/other; ibfab up; e=$?; mv /dev/other /dev/ibtun; exit $e",
            "the module ibtun is not loaded: `modprobe ibtun`",
        ),
        (
            "it says that OpenSM has ended",
            &format!("PATH={BROKEN} /bin/ibfab up"),
            "it has ended with exit status: 1: opensm said: no",
        ),
        ("it needs a key to listen", "ibfab up --listen udp:0.0.0.0:7471", "--key <FILE>"),
    ] {
        report.claim(claim, refused(command, says));
        report.claim(&format!("{claim}, and nothing is left"), nothing_is_left());
    }

    report.claim("`ibfab up` works again", typed("ibfab up"));
    report.claim("a second one is refused", refused("ibfab up", "`ibfab down` ends it"));
    report.claim("the first goes on", typed("ibfab show && ip netns exec ibfab ip address"));
    let server = typed("kill -9 $(pidof ibfab)").and_then(|_| {
        let words = ["rping", "-s", "-a", "10.73.0.2"];
        rig::spawn("rping-server", Place::Netns("ibfab"), &words)
    });
    let claim = "the fabric is killed, and a program is in the namespace";
    let server = report.claim(claim, server);
    report.claim("`ibfab down` ends what is left", typed("ibfab down"));
    drop(server);
    report.claim("then nothing is left", nothing_is_left());
}

/// Files, processes, namespaces, HCAs, interfaces, users of the module.
pub(super) fn nothing_is_left() -> Result<()> {
    for file in ["/run/ibfab", "/run/ibfab.sock", "/run/netns/ibfab"] {
        ensure!(!Path::new(file).exists(), "{file} is there");
    }
    let names = processes()?;
    for name in ["ibfab", "opensm"] {
        ensure!(!names.iter().any(|process| process == name), "{name} runs");
    }
    for class in ["infiniband", "infiniband_mad", "infiniband_verbs", "net"] {
        let directory = format!("/sys/class/{class}");
        for entry in fs::read_dir(&directory).context(directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            ensure!(["lo", "abi_version"].contains(&&*name), "{class}/{name} is there");
        }
    }
    let users = fs::read_to_string("/sys/module/ibtun/refcnt").context("refcnt")?;
    ensure!(users.trim() == "0", "ibtun has {} users", users.trim());
    Ok(())
}

/// The command fails, and says so.
fn refused(command: &str, says: &str) -> Result<()> {
    match typed(command) {
        Ok(said) => bail!("it succeeds: {said}"),
        Err(error) => {
            ensure!(format!("{error:#}").contains(says), "{error:#}");
            Ok(())
        }
    }
}
