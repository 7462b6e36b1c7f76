// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr doctor --report`: one file for a report of a fault. It has what a stranger asks for first, and no name or
//! address of the site.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::machine::{entries, name};
use super::placeholders::Placeholders;
use crate::control::messages::{Check, Status};
use crate::regular_file::text;
use crate::transport::ports::Dirs;

/// What the report is made of.
pub(super) struct Findings<'a> {
    pub(super) checks: &'a [Check],
    pub(super) status: Option<&'a Status>,
    /// Those that are not 0.
    pub(super) counters: Option<Value>,
    /// The name of the peer, if it was named by one.
    pub(super) peer: Option<&'a str>,
    /// The last lines of the daemon's journal.
    pub(super) journal: &'a str,
}

/// Makes the file, which must not exist yet. Others than the user may not read it.
///
/// # Errors
/// Those of open(2).
pub(super) fn create(path: &Path) -> io::Result<File> {
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

/// Writes the report.
///
/// # Errors
/// Those of write(2).
pub(super) fn write(mut file: File, dirs: &Dirs, findings: &Findings<'_>) -> io::Result<()> {
    let mut placeholders = Placeholders::default();
    for name in names(Path::new("/etc"), dirs) {
        placeholders.hide(&name);
    }
    findings.peer.into_iter().for_each(|peer| placeholders.hide(peer));
    file.write_all(compose(dirs, findings, &mut placeholders).as_bytes())?;
    file.sync_all()
}

/// The last lines that the service has logged.
pub(super) fn journal() -> String {
    output(&["journalctl", "--unit=ibarr", "--lines=200", "--no-pager", "--quiet", "--no-hostname"])
}

/// The names that this machine knows of itself and of others.
fn names(etc: &Path, dirs: &Dirs) -> Vec<String> {
    let mut names = Vec::new();
    let mut add_host = |host: &str| {
        names.push(host.to_owned());
        // The short name, and the domain.
        if let Some((short, domain)) = host.split_once('.') {
            names.extend([short, domain].map(str::to_owned));
        }
    };
    if let Ok(kernel) = nix::sys::utsname::uname() {
        add_host(&kernel.nodename().to_string_lossy());
        add_host(&kernel.domainname().to_string_lossy());
    }
    let words = |file: &str| text(&etc.join(file)).unwrap_or_default();
    words("hostname").split_whitespace().for_each(&mut add_host);
    for line in words("hosts").lines() {
        let line = line.split('#').next().unwrap_or_default();
        line.split_whitespace()
            .skip(1)
            .filter(|name| !name.starts_with("ip6-"))
            .for_each(&mut add_host);
    }
    for line in words("resolv.conf").lines() {
        let mut words = line.split_whitespace();
        if matches!(words.next(), Some("search" | "domain")) {
            words.for_each(&mut add_host);
        }
    }
    // Usually the name of the node and that of the device.
    for device in entries(&dirs.sys.join("class/infiniband")) {
        let description = text(&device.join("node_desc")).unwrap_or_default();
        description.split_whitespace().next().into_iter().for_each(&mut add_host);
    }
    names
}

fn compose(dirs: &Dirs, findings: &Findings<'_>, placeholders: &mut Placeholders) -> String {
    let mut report = String::from(
        "# A report of ibarr doctor. Names and addresses are replaced: host-1, ipv4-1, mac-1, net-1::id-1 (GID or IPv6 \
         address; id-1 alone is a GUID). Read it before you send it.\n",
    );
    let mut section = |title: &str, body: &str| {
        let body = placeholders.replace(body);
        // Writing to a String cannot fail.
        let _ = write!(report, "\n== {title}\n{}\n", body.trim_end());
    };
    section("versions", &versions(&dirs.sys, findings.status));
    section("system", &system());
    section("ports", &ports(&dirs.sys));
    for (title, words) in [
        ("rdma dev, with planes", ["rdma", "-d", "dev"].as_slice()),
        ("rdma link", &["rdma", "link"]),
        ("interfaces", &["ip", "-d", "addr"]),
        ("rules", &["ip", "rule"]),
        ("routes", &["ip", "route"]),
        ("routes of IPv6", &["ip", "-6", "route"]),
    ] {
        section(title, &output(words));
    }
    let lines = findings.checks.iter().map(|Check { check, state, found, remedy }| {
        let remedy = remedy.as_ref().map_or(String::new(), |remedy| format!("\n        {remedy}"));
        format!("{:<8}{check:<14} {found}{remedy}", state.to_string())
    });
    section("self-test", &lines.collect::<Vec<_>>().join("\n"));
    section("journal", findings.journal);
    let status = findings.status.and_then(|status| serde_json::to_value(status).ok());
    for (title, document) in [("status", &status), ("counters", &findings.counters)] {
        let document = document.as_ref().map(|document| placeholders.replace_in(document));
        let body = document.map_or("no daemon".to_owned(), |document| format!("{document:#}"));
        let _ = write!(report, "\n== {title}\n{body}\n");
    }
    report
}

fn versions(sys: &Path, status: Option<&Status>) -> String {
    let mut lines = vec![format!("ibarr {}", env!("CARGO_PKG_VERSION"))];
    lines.push(
        status.map_or("daemon: none".to_owned(), |status| format!("daemon: {}", status.version)),
    );
    if let Ok(kernel) = nix::sys::utsname::uname() {
        let of = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
        lines.push(format!(
            "kernel: {} {} {}",
            of(kernel.release()),
            of(kernel.version()),
            of(kernel.machine())
        ));
    }
    let release = text(Path::new("/etc/os-release")).unwrap_or_default();
    lines
        .extend(release.lines().filter(|line| line.starts_with("PRETTY_NAME=")).map(str::to_owned));
    for module in [
        "ib_core",
        "ib_ipoib",
        "ib_umad",
        "ib_uverbs",
        "rdma_ucm",
        "rdma_cm",
        "mlx5_core",
        "mlx5_ib",
        "mlx4_ib",
    ] {
        let of = sys.join("module").join(module);
        if of.exists() {
            let version = text(&of.join("version")).unwrap_or_else(|| "of the kernel".to_owned());
            lines.push(format!("module {module}: {version}"));
        }
    }
    lines.join("\n")
}

fn system() -> String {
    let first = |file: &str, most: usize| {
        text(Path::new(file)).unwrap_or_default().lines().take(most).collect::<Vec<_>>().join("\n")
    };
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!(
        "processors: {cpus}\n{}\nload: {}",
        first("/proc/meminfo", 3),
        first("/proc/loadavg", 1)
    )
}

/// All that sysfs says of each device and port, whatever this kernel has, but for counters and empty entries of tables.
fn ports(sys: &Path) -> String {
    let mut lines = Vec::new();
    for device in entries(&sys.join("class/infiniband")) {
        list(&device, &name(&device), 4, &mut lines);
    }
    if lines.is_empty() { "no RDMA device".to_owned() } else { lines.join("\n") }
}

fn list(directory: &Path, place: &str, depth: usize, lines: &mut Vec<String>) {
    const LEFT_OUT: [&str; 7] =
        ["counters", "counters_ext", "hw_counters", "power", "subsystem", "device", "uevent"];
    for entry in entries(directory).iter().filter(|entry| !LEFT_OUT.contains(&name(entry).as_str()))
    {
        let place = format!("{place}/{}", name(entry));
        if entry.is_dir() && !entry.is_symlink() && depth > 0 {
            list(entry, &place, depth - 1, lines);
        } else if let Some(value) = text(entry).filter(|value| !is_empty_entry(value)) {
            lines.push(format!("{place}: {}", value.replace('\n', " / ")));
        }
    }
}

/// An unused entry of a table of GIDs or P_Keys.
fn is_empty_entry(value: &str) -> bool {
    value.is_empty()
        || value == "0x0000"
        || value.bytes().all(|byte| matches!(byte, b'0' | b':')) && value.contains(':')
}

/// The most that is taken from a command.
const MOST: usize = 64 << 10;

fn output(words: &[&str]) -> String {
    let Some((program, arguments)) = words.split_first() else { return String::new() };
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    match output {
        Ok(output) => {
            let said = String::from_utf8_lossy(if output.status.success() {
                &output.stdout
            } else {
                &output.stderr
            });
            let end = said.floor_char_boundary(MOST);
            format!("{}{}", &said[..end], if end < said.len() { "\n(cut)" } else { "" })
        }
        Err(error) => format!("{program}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn report_has_ports_and_checks_and_no_planted_name_or_address() {
        let dir = TempDir::new().unwrap();
        // As in sysfs, the class has a link to the device, which has one back to its bus.
        let device = dir.path().join("devices/0000:3b:00.0/infiniband/mlx5_0");
        let port = device.join("ports/1");
        for directory in ["gids", "pkeys", "gid_attrs/types", "gid_attrs/ndevs", "counters"] {
            fs::create_dir_all(port.join(directory)).unwrap();
        }
        fs::create_dir_all(dir.path().join("class/infiniband")).unwrap();
        symlink(&device, dir.path().join("class/infiniband/mlx5_0")).unwrap();
        symlink(dir.path().join("devices/0000:3b:00.0"), device.join("device")).unwrap();
        let write = |file: &str, text: &str| fs::write(port.join(file), text).unwrap();
        write("rate", "800 Gb/sec (4X XDR)\n");
        write("gid_attrs/types/0", "IB/RoCE v1\n");
        write("gid_attrs/ndevs/0", "ib0\n");
        write("pkeys/0", "0xffff\n");
        write("pkeys/1", "0x0000\n");
        write("lid", "0x12\n");
        write("gids/0", "fe80:0000:0000:0000:0002:c903:0000:0201\n");
        write("gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n");
        write("counters/symbol_error", "7777\n");
        fs::write(device.join("node_guid"), "0002:c903:0000:0200\n").unwrap();
        fs::write(device.join("node_desc"), "planted-node mlx5_0\n").unwrap();
        fs::write(dir.path().join("hosts"), "10.9.8.7 planted-peer.planted.example alias9 # x\n")
            .unwrap();
        fs::write(dir.path().join("resolv.conf"), "search site.example\n").unwrap();
        let dirs = Dirs { sys: dir.path().to_owned(), dev: dir.path().to_owned() };
        let mut placeholders = Placeholders::default();
        for name in names(dir.path(), &dirs) {
            placeholders.hide(&name);
        }
        let found = "10.9.8.7 is fe80::2:c903:0:201, of planted-peer, login.site.example, alias9, planted-node, \
                     52:54:00:12:34:56, fd00:9::7";
        let checks = [Check::warn("peer", found, "ping planted-peer.planted.example")];
        let counters = Some(serde_json::json!({"a": 7, "10.9.8.7": "planted-peer"}));
        let journal = "Nov 26 10:00:00 ibarr[7]: no reply of 10.9.8.7 (planted-peer), \
                       interface=ib0 gid=fe80::2:c903:0:201 mac=52:54:00:12:34:56";
        let findings = Findings { checks: &checks, status: None, counters, peer: None, journal };
        let report = compose(&dirs, &findings, &mut placeholders);
        for planted in [
            "10.9.8.7",
            "c903",
            "planted",
            "alias9",
            "site.example",
            "52:54",
            "fd00:9",
            "0002:c903",
            "7777",
            "0000:0000",
            "pkeys/1",
        ] {
            assert!(!report.contains(planted), "{planted}: {report}");
        }
        for kept in [
            "mlx5_0/ports/1/rate: 800 Gb/sec (4X XDR)",
            "mlx5_0/ports/1/gid_attrs/types/0: IB/RoCE v1",
            "mlx5_0/ports/1/gid_attrs/ndevs/0: ib0",
            "mlx5_0/ports/1/pkeys/0: 0xffff",
            "lid: 0x12",
            "gids/0: fe80::id-",
            "warn    peer",
            "== journal\nNov 26 10:00:00 ibarr[7]: no reply of ipv4-",
        ] {
            assert!(report.contains(kept), "{kept}: {report}");
        }
        let id = report.split("gids/0: fe80::").nth(1).unwrap().lines().next().unwrap();
        assert!(report.contains(&format!("is fe80::{id}, of host-")), "{report}");
    }

    #[test]
    fn report_replaces_no_file() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("report");
        drop(create(&path).unwrap());
        assert!(create(&path).is_err());
    }
}
