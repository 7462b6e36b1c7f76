// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Compares what the packages need with what systems have that are not at hand.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::glibc::{self, Version};
use super::{Architecture, Content, FILES};
use crate::systems::{self, How, Row};

/// The versions of a system's first release, as its packages or its release notes name them.
struct System {
    name: &'static str,
    glibc: Version,
    systemd: u32,
}

const SYSTEMS: &[System] = &[
    System { name: "Debian 11", glibc: Version(2, 31), systemd: 247 },
    System { name: "Debian 12", glibc: Version(2, 36), systemd: 252 },
    System { name: "Debian 13", glibc: Version(2, 41), systemd: 257 },
    System { name: "Ubuntu 20.04", glibc: Version(2, 31), systemd: 245 },
    System { name: "Ubuntu 22.04", glibc: Version(2, 35), systemd: 249 },
    System { name: "Ubuntu 24.04", glibc: Version(2, 39), systemd: 255 },
    System { name: "RHEL 8", glibc: Version(2, 28), systemd: 239 },
    System { name: "RHEL 9", glibc: Version(2, 34), systemd: 252 },
    System { name: "SLES 15", glibc: Version(2, 31), systemd: 249 },
];

/// The libraries of the GNU C library on x86-64 and aarch64.
const OF_GLIBC: [&str; 8] = [
    "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libm.so.6",
    "libpthread.so.0",
    "libresolv.so.2",
    "librt.so.1",
];

/// Reads the programs and the unit's least systemd, and records which systems have enough.
///
/// # Errors
/// A program needs a library of other packages, or is for another architecture.
pub(super) fn compare(content: &Content<'_>) -> Result<()> {
    let programs = [&content.ibarr, &content.ibfab].map(|program| -> Result<Version> {
        let read = fs::read(program).with_context(|| program.display().to_string())?;
        let architecture = Architecture::of(&read)?;
        ensure!(
            architecture == content.architecture,
            "{} is for {}",
            program.display(),
            architecture.debian()
        );
        only_glibc(&glibc::libraries(&read)?)?;
        glibc::needed(&read)
    });
    let programs = programs.into_iter().collect::<Result<Vec<_>>>()?;
    let control = fs::read_to_string(content.workspace.root().join("pkg/deb/control"))?;
    let systemd = least_systemd(&control).context("pkg/deb/control: no version of systemd")?;
    systems::record(content.workspace, &rows(content.architecture, &programs, systemd))
}

fn only_glibc(libraries: &[String]) -> Result<()> {
    let foreign: Vec<_> =
        libraries.iter().filter(|name| !OF_GLIBC.contains(&name.as_str())).collect();
    ensure!(foreign.is_empty(), "a program needs {foreign:?} besides the C library");
    Ok(())
}

/// What systems have, for programs that need these versions, and units for this version of systemd or later.
fn rows(architecture: Architecture, programs: &[Version], least: u32) -> Vec<Row> {
    let unit = |name: &str| ["service", "socket", "timer"].iter().any(|end| name.ends_with(end));
    let of_programs = match architecture {
        Architecture::Amd64 => "programs",
        Architecture::Arm64 => "programs for 64-bit Arm",
    };
    let units = FILES.iter().filter(|(_, to, _)| unit(to)).count();
    let rows = SYSTEMS.iter().flat_map(|&System { name, glibc, systemd }| {
        let row = |what: &str, passed, of, with| Row {
            system: name.to_owned(),
            how: How::Libraries,
            what: what.to_owned(),
            passed,
            of,
            with,
        };
        let start = programs.iter().filter(|needed| **needed <= glibc).count();
        let known = if systemd >= least { units } else { 0 };
        [
            row(of_programs, start, programs.len(), format!("glibc {glibc}")),
            row("units", known, units, format!("systemd {systemd}")),
        ]
    });
    rows.collect()
}

fn least_systemd(control: &str) -> Option<u32> {
    control.split_once("systemd (>= ")?.1.split(')').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_is_compared_by_the_number_of_its_versions() {
        let rows = [Architecture::Amd64, Architecture::Arm64]
            .map(|architecture| rows(architecture, &[Version(2, 28), Version(2, 31)], 247));
        let rows: Vec<_> = rows.iter().flatten().map(Row::to_string).collect();
        for row in [
            "RHEL 8 | libraries | programs for 64-bit Arm | 1 of 2 | glibc 2.28",
            "RHEL 8 | libraries | programs | 1 of 2 | glibc 2.28",
            "RHEL 8 | libraries | units | 0 of 8 | systemd 239",
            "Debian 11 | libraries | programs | 2 of 2 | glibc 2.31",
            "Debian 11 | libraries | units | 8 of 8 | systemd 247",
        ] {
            assert!(rows.iter().any(|found| found == row), "{row}\n{rows:?}");
        }
    }

    #[test]
    fn library_of_another_package_is_an_error() {
        assert!(only_glibc(&["libc.so.6".to_owned()]).is_ok());
        let error = only_glibc(&["libgcc_s.so.1".to_owned()]).expect_err("another package's");
        assert!(error.to_string().contains("libgcc_s"));
        // This program is not linked by Zig.
        let own = fs::read(std::env::current_exe().expect("a program")).expect("readable");
        let libraries = glibc::libraries(&own).expect("an ELF file");
        assert!(libraries.contains(&"libc.so.6".to_owned()), "{libraries:?}");
        assert_eq!(Architecture::of(&own).expect("a known one"), Architecture::own());
    }

    #[test]
    fn least_systemd_is_that_of_the_package() {
        assert_eq!(least_systemd("Depends: libc6, systemd (>= 247) | other\n"), Some(247));
        assert_eq!(least_systemd("Depends: libc6\n"), None);
    }
}
