// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Prometheus in a namespace of the lab: its files, its process and its HTTP interface.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::process::Process;
use crate::interrupt::Interrupt;
use crate::lab::netns;
use crate::start::program;

/// A running Prometheus, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Prometheus {
    _process: Process,
    namespace: String,
}

/// A server of metrics that Prometheus scrapes.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) job: &'static str,
    /// The name of the node.
    pub(super) instance: String,
    pub(super) at: SocketAddr,
}

/// The values of a time series, and its labels.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Series {
    #[serde(rename = "metric")]
    pub(super) labels: BTreeMap<String, String>,
    /// Seconds of Unix time, and numbers as text.
    #[serde(default)]
    values: Vec<(f64, String)>,
    #[serde(default)]
    value: Option<(f64, String)>,
}

impl Series {
    /// The values that are numbers, with their times.
    pub(super) fn points(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let all = self.values.iter().chain(&self.value);
        let parsed = all.filter_map(|(at, value)| Some((*at, value.parse::<f64>().ok()?)));
        parsed.filter(|(_, value)| value.is_finite())
    }

    /// The value of a label, or nothing.
    pub(super) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

impl Prometheus {
    /// Starts it in `namespace`, with the rules of `rules`, and waits until it is ready.
    ///
    /// # Errors
    /// There is no Prometheus, or it does not start.
    pub(super) fn start(
        namespace: &str,
        directory: &Path,
        rules: &str,
        targets: &[Target],
        interrupt: &Interrupt,
    ) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let (config, alerts) = (directory.join("prometheus.yml"), directory.join("rules.yml"));
        fs::write(&config, configuration(targets))?;
        fs::write(&alerts, rules)?;
        let log = directory.join("log");
        let mut command = program("prometheus");
        command.arg("--config.file").arg(&config);
        command.arg("--storage.tsdb.path").arg(directory.join("data"));
        command.arg(format!("--web.listen-address=127.0.0.1:{PORT}"));
        let process = Process::start(namespace, command, &log)?;
        let this = Self { _process: process, namespace: namespace.to_owned() };
        for _ in 0..READY_WITHIN.as_millis() / LOOK_EVERY.as_millis() {
            if this.get("/-/ready").is_ok() {
                return Ok(this);
            }
            interrupt.sleep(LOOK_EVERY)?;
        }
        bail!("Prometheus does not start: {}", fs::read_to_string(log).unwrap_or_default())
    }

    /// The value of an expression now.
    ///
    /// # Errors
    /// Prometheus refuses the expression.
    pub(super) fn now(&self, expression: &str) -> Result<Vec<Series>> {
        self.ask(&format!("/api/v1/query?query={}", encoded(expression)), expression)
    }

    /// The values of an expression each second from `start` to `end`, in seconds of Unix time.
    ///
    /// # Errors
    /// Prometheus refuses the expression.
    pub(super) fn range(&self, expression: &str, start: f64, end: f64) -> Result<Vec<Series>> {
        let query = encoded(expression);
        let path = format!("/api/v1/query_range?query={query}&start={start}&end={end}&step=1");
        self.ask(&path, expression)
    }

    fn ask(&self, path: &str, expression: &str) -> Result<Vec<Series>> {
        let body = self.get(path).with_context(|| expression.to_owned())?;
        let answer: Answer =
            serde_json::from_str(&body).with_context(|| format!("{expression}: {body}"))?;
        Ok(answer.data.result)
    }

    fn get(&self, path: &str) -> Result<String> {
        let connect = || Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, PORT))?);
        let mut stream = netns::inside(&self.namespace, connect)?;
        stream.set_read_timeout(Some(READY_WITHIN))?;
        // In HTTP/1.0 the end of the connection is that of the answer.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP")?;
        let status = head.lines().next().unwrap_or_default();
        ensure!(status.contains(" 200 "), "{status}: {body}");
        Ok(body.to_owned())
    }
}

#[derive(Deserialize)]
struct Answer {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Series>,
}

/// Scrapes and evaluates each second, because the scenario lasts a minute.
fn configuration(targets: &[Target]) -> String {
    let mut text = String::from(
        "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n\
         rule_files: [rules.yml]\n\
         scrape_configs:\n",
    );
    let jobs: BTreeSet<_> = targets.iter().map(|target| target.job).collect();
    for job in jobs {
        // Writing to a String never fails.
        let _ = writeln!(text, "  - job_name: {job}\n    static_configs:");
        for Target { instance, at, .. } in targets.iter().filter(|target| target.job == job) {
            let _ =
                writeln!(text, "      - {{targets: ['{at}'], labels: {{instance: {instance}}}}}");
        }
    }
    text
}

/// The rules with short times in the place of minutes, for a fleet of four.
pub(super) fn hurried(rules: &str) -> String {
    let mut text = String::new();
    for line in rules.lines() {
        let indent = line.len() - line.trim_start().len();
        if line.trim_start().starts_with("for: ") {
            text.push_str(&line[..indent]);
            text.push_str("for: 3s\n");
        } else {
            let line = line.replace("[5m]", &format!("[{WINDOW}]"));
            text.push_str(&line.replace(">= 10", ">= 4").replace("bool 300", "bool 5"));
            text.push('\n');
        }
    }
    text
}

/// The names of the alerts in the rules.
pub(super) fn alerts(rules: &str) -> Vec<String> {
    let names = rules.lines().filter_map(|line| line.trim_start().strip_prefix("- alert: "));
    names.map(str::to_owned).collect()
}

/// Percent-encodes all but letters and digits.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            encoded.push(byte.into());
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// What rates are taken over.
pub(super) const WINDOW: &str = "10s";

const PORT: u16 = 9090;
const READY_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_minute_is_left_in_hurried_rules() {
        let rules = include_str!("../../../contrib/prometheus/ibarr.rules.yml");
        let hurried = hurried(rules);
        let alerts = alerts(rules);
        assert_eq!(hurried.matches("for: 3s").count(), alerts.len());
        assert!(hurried.contains("[10s]") && !hurried.contains("[5m]"), "{hurried}");
        assert!(hurried.contains(">= 4") && hurried.contains("bool 5\n"), "{hurried}");
        assert_eq!(self::alerts(&hurried), alerts);
        assert!(alerts.iter().any(|alert| alert == "IbarrDown"), "{alerts:?}");
    }

    #[test]
    fn expression_is_encoded_for_a_url() {
        assert_eq!(encoded("up{a=\"b\"}"), "up%7Ba%3D%22b%22%7D");
    }
}
