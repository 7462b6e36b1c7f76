// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What each option of ibacm means for ibarr. ibacm compares names without case, and ignores what it does not know.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Settings, absolute, numbered};
use crate::config::{Config, Source};
use crate::control::messages::{Became, ImportedLine};
use crate::preload::{Report, Selection, hosts, routes};

/// The options with their values. Of several lines for one, the last counts.
pub(super) struct Options {
    dir: PathBuf,
    /// Line and value, by name.
    values: BTreeMap<String, (u64, String)>,
}

/// Any other value.
const ANY: &str = "";

/// The options that change nothing in the configuration: name, value, what becomes of it, and what that means.
const FIXED: &[(&str, &str, Became, &str)] = {
    use Became::{Default, Lost, Needless};
    const ASKED: &str = "paths are asked of the subnet administrator";
    const KERNELS: &str = "addresses are those of the kernel";
    const MULTICAST: &str = "it is about ibacm's multicast, which ibarr does not use";
    const NOTHING: &str = "nothing is preloaded";
    const OWN: &str = "own addresses are known without asking";
    const PATIENCE: &str =
        "ibarr waits as long as answers have taken, and gives up at the deadline of a client";
    const PLUG_INS: &str = "ibarr has no plug-ins";
    const UNIX: &str = "ibarr always serves a Unix socket";
    &[
        ("log_file", ANY, Needless, "the log is the journal's, or goes where --log-to says"),
        ("log_level", "0", Default, "log-level = \"info\""),
        ("umad_debug_level", ANY, Needless, "libibumad is not used"),
        ("lock_file", ANY, Needless, "the directory of --run-dir has one daemon"),
        ("server_mode", "unix", Default, UNIX),
        ("timeout", ANY, Needless, PATIENCE),
        ("retries", ANY, Needless, PATIENCE),
        (
            "sa_depth",
            ANY,
            Needless,
            "ibarr finds out how much the subnet administrator can do at once",
        ),
        ("support_ips_in_addr_cfg", "0", Default, KERNELS),
        (
            "support_ips_in_addr_cfg",
            ANY,
            Lost,
            "addresses are those of the kernel; write [[static-gid]] for one of this machine that no \
             IPoIB interface has",
        ),
        ("provider_lib_path", ANY, Needless, PLUG_INS),
        ("provider", "ibacmp", Needless, PLUG_INS),
        ("provider", ANY, Lost, "ibarr has no plug-ins, and asks the subnet administrator"),
        (
            "addr_prot",
            ANY,
            Needless,
            "ibarr asks peers over UDP, and next door the kernel's neighbour table: run it on each node",
        ),
        (
            "addr_timeout",
            ANY,
            Needless,
            "peers are asked for their addresses, see [client] fresh-for",
        ),
        ("route_prot", "sa", Default, ASKED),
        (
            "route_prot",
            ANY,
            Lost,
            "paths are asked of the subnet administrator, and not made from multicast groups",
        ),
        ("loopback_prot", "local", Default, OWN),
        ("loopback_prot", ANY, Lost, OWN),
        ("resolve_depth", ANY, Needless, MULTICAST),
        ("send_depth", ANY, Needless, MULTICAST),
        ("recv_depth", ANY, Needless, MULTICAST),
        ("min_mtu", ANY, Needless, MULTICAST),
        ("min_rate", ANY, Needless, MULTICAST),
        ("route_preload", "none", Default, NOTHING),
        ("route_preload", "no", Default, NOTHING),
        ("addr_preload", "none", Default, NOTHING),
        ("addr_preload", "no", Default, NOTHING),
    ]
};

/// The options whose value is a number.
const NUMBERS: &[&str] = &[
    "log_level",
    "umad_debug_level",
    "server_port",
    "timeout",
    "retries",
    "sa_depth",
    "addr_timeout",
    "route_timeout",
    "resolve_depth",
    "send_depth",
    "recv_depth",
    "min_mtu",
    "min_rate",
];

impl Options {
    pub(super) fn parse(dir: &Path, text: &str) -> Self {
        let mut values = BTreeMap::new();
        for (number, line) in numbered(text) {
            if let Some((name, value)) = split(line) {
                values.insert(name, (number, value.to_owned()));
            }
        }
        Self { dir: dir.to_owned(), values }
    }

    /// What becomes of a line, and what that means. Adds what the configuration says in its place.
    pub(super) fn verdict(&self, number: u64, line: &str, to: &mut Settings) -> (Became, String) {
        let Some((name, value)) = split(line) else {
            let what = "write a name and a value; ibacm ignores the line".to_owned();
            return (Became::Malformed, what);
        };
        match self.values.get(&name) {
            Some((last, _)) if *last != number && name != "provider" => {
                (Became::Needless, format!("line {last} overrules it"))
            }
            _ => self.option(&name, value, to),
        }
    }

    fn option(&self, name: &str, value: &str, to: &mut Settings) -> (Became, String) {
        if NUMBERS.contains(&name) && value.parse::<i64>().is_err() {
            return (Became::Malformed, "it is not a number; ibacm takes it for 0".to_owned());
        }
        for &(option, of, became, what) in FIXED {
            if option == name && (of == ANY || of.eq_ignore_ascii_case(value)) {
                return (became, what.to_owned());
            }
        }
        let mut set = |table: &'static str, key: &'static str, value: String| {
            let place = if table.is_empty() { String::new() } else { format!("[{table}] ") };
            let what = format!("{place}{key} = {value}");
            let source = Source { name: String::new(), text: format!("{place}\n{key} = {value}") };
            if let Err(refused) = Config::read(&[source]) {
                return (Became::Malformed, format!("left out: {what} is refused: {refused}"));
            }
            to.0.entry(table).or_default().insert(key, value);
            (Became::Carried, what)
        };
        match name {
            "log_level" => set("", "log-level", toml(if value == "1" { "debug" } else { "trace" })),
            "server_mode" => {
                let Some(port) = self.tcp_port() else {
                    let what = "ibacm knows unix, loop and open";
                    return (Became::Malformed, what.to_owned());
                };
                let (became, what) = set("acm", "tcp-port", port.to_string());
                if value.eq_ignore_ascii_case("loop") {
                    return (became, what);
                }
                let elsewhere = "ibarr answers no other machine: run it on each node";
                (Became::Lost, format!("{what}, but {elsewhere}"))
            }
            "server_port" => match self.tcp_port() {
                Some(port) => set("acm", "tcp-port", port.to_string()),
                None => (Became::Needless, "server_mode does not want it".to_owned()),
            },
            "acme_plus_kernel_only" => set("acm", "serve", toml(self.serve())),
            "route_timeout" => match value.parse::<i64>().unwrap_or_default() {
                ..0 => {
                    let what = "ibarr notices changes and asks again, see [paths] cache-ttl";
                    (Became::Needless, what.to_owned())
                }
                0 => set("paths", "cache-ttl", toml("1s")),
                minutes => set("paths", "cache-ttl", toml(&format!("{}min", minutes.min(24 * 60)))),
            },
            "route_preload" | "addr_preload" => {
                if let Some((key, path)) = self.preload(name) {
                    return set("acm", key, toml(&path.display().to_string()));
                }
                let what = "ibacm does not know this format, and preloads nothing";
                (Became::Malformed, what.to_owned())
            }
            "route_data_file" | "addr_data_file" => {
                let preload =
                    if name == "route_data_file" { "route_preload" } else { "addr_preload" };
                match self.preload(preload) {
                    Some((key, path)) => set("acm", key, toml(&path.display().to_string())),
                    None => (Became::Needless, format!("{preload} does not want it")),
                }
            }
            _ => (Became::Unknown, "ibacm has no such option, and ignores it".to_owned()),
        }
    }

    /// What ibacm does without an option.
    pub(super) fn defaults(&self, to: &mut Settings) {
        to.0.entry("acm").or_default().entry("serve").or_insert_with(|| toml(self.serve()));
    }

    /// What is wrong with the files that the configuration names.
    pub(super) fn data_files(&self) -> impl Iterator<Item = Vec<ImportedLine>> {
        let nothing = Selection { ports: Vec::new(), most: 0, life: Duration::ZERO };
        let hosts = self.preload("addr_preload").map(|(_, path)| {
            let read = hosts::read(&path).map(|(_, report)| report);
            problems(&path, read)
        });
        let routes = self.preload("route_preload").map(|(_, path)| {
            let read = routes::read(&path, &nothing).map(|(_, report)| report);
            problems(&path, read)
        });
        hosts.into_iter().chain(routes)
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(|(_, value)| value.as_str())
    }

    /// The TCP port, if ibacm has one. What is no number it takes for 0, which is no port that a program finds.
    fn tcp_port(&self) -> Option<NonZeroU16> {
        let mode = self.value("server_mode")?;
        ["loop", "open"].iter().find(|tcp| mode.eq_ignore_ascii_case(tcp))?;
        let port = self.value("server_port").and_then(|port| port.parse().ok());
        port.or(NonZeroU16::new(6125))
    }

    fn serve(&self) -> &'static str {
        let value = self.value("acme_plus_kernel_only").unwrap_or_default().to_ascii_lowercase();
        let is_set = ["yes", "true"].iter().any(|yes| value.starts_with(yes))
            || value.parse::<i64>().is_ok_and(|number| number != 0);
        if is_set { "tools" } else { "full" }
    }

    /// The key and the file of a preload, if it is wanted.
    fn preload(&self, option: &str) -> Option<(&'static str, PathBuf)> {
        let (key, format, of_file, default) = match option {
            "route_preload" => ("routes", "opensm_full_v1", "route_data_file", "ibacm_route.data"),
            _ => ("hosts", "acm_hosts", "addr_data_file", "ibacm_hosts.data"),
        };
        self.value(option).filter(|value| value.eq_ignore_ascii_case(format))?;
        Some((key, absolute(&self.dir, self.value(of_file).unwrap_or(default))))
    }
}

/// What becomes of a line of the address file, and what that means.
pub(super) fn address(line: &str) -> (Became, String) {
    let mut words = line.split_whitespace();
    let (Some(name), Some(device), Some(port), Some(_)) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        let what = "write a name, a device, a port and a P_Key; ibacm ignores the line";
        return (Became::Malformed, what.to_owned());
    };
    if name.parse::<IpAddr>().is_ok() {
        let what = format!(
            "the addresses of {device}/{port} are those of the kernel; write [[static-gid]] if \
             this machine has {name} elsewhere"
        );
        return (Became::Lost, what);
    }
    let what = format!(
        "{device}/{port} is served with every address that the kernel says; clients may use the \
         name if the resolver of this machine or [acm] hosts knows it"
    );
    (Became::Needless, what)
}

/// Name and value. What follows them is ignored.
fn split(line: &str) -> Option<(String, &str)> {
    let mut words = line.split_whitespace();
    Some((words.next()?.to_ascii_lowercase(), words.next()?))
}

fn toml(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn problems(path: &Path, read: std::io::Result<Report>) -> Vec<ImportedLine> {
    let file = path.display().to_string();
    let problem = |line: Option<u64>, what: String| ImportedLine {
        file: file.clone(),
        line,
        text: String::new(),
        became: Became::Malformed,
        what,
    };
    match read {
        Err(error) => vec![problem(None, format!("it cannot be read: {error}"))],
        Ok(report) => {
            let more = report.bad_lines.saturating_sub(report.mistakes.len() as u64);
            let more = (more > 0).then(|| problem(None, format!("{more} more lines are wrong")));
            let lines = report.mistakes.into_iter();
            lines.map(|it| problem(Some(it.line), it.reason)).chain(more).collect()
        }
    }
}
