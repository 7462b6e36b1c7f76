// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `cargo xtask monitor`: Debian's Prometheus scrapes a lab of four nodes through a storm, by `ibarr exporter` and one
//! of them by node_exporter, too. Every alert of `contrib/prometheus` has to fire and to clear, and every expression of
//! the dashboard in `contrib/grafana` has to have data.

mod collector;
mod dashboard;
mod fleet;
mod nodes;
mod process;
mod prometheus;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use self::collector::Collector;
use self::dashboard::Dashboard;
use self::nodes::Loaded;
use self::prometheus::{Prometheus, Series, Target};
use crate::interrupt::Interrupt;
use crate::lab::{Lab, LabName, Plan, Store, TemporaryLab};
use crate::start::program;

/// Runs the scenario in a lab of its own, which is removed in any case, and says on `out` what happens.
///
/// # Errors
/// The lab cannot be made, an alert fires too early, never, or without end, or an expression of the
/// dashboard has no data.
pub fn run(
    store: &Store,
    name: &LabName,
    ibarr: &Path,
    contrib: &Path,
    interrupt: &Interrupt,
    out: &mut impl Write,
) -> Result<()> {
    let rules_file = contrib.join("prometheus/ibarr.rules.yml");
    let rules = read(&rules_file)?;
    let dashboard = Dashboard::parse(&read(&contrib.join("grafana/ibarr.json"))?)?;
    let lab = Lab::up(store, Plan::new(name.clone(), 4, true)?, ibarr, interrupt)?;
    let mut lab = TemporaryLab::new(lab);
    let nodes = Loaded::all(&mut lab, ibarr, interrupt)?;
    let mut targets: Vec<_> = nodes
        .iter()
        .map(|Loaded { node, metrics, .. }| Target {
            job: "ibarr",
            instance: node.name.to_string(),
            at: *metrics,
        })
        .collect();
    let [first, _, third, _] = &nodes[..] else { bail!("the scenario has four nodes") };
    let collector = Collector::start(&lab, &third.node, ibarr)?;
    let at = SocketAddr::new(third.metrics.ip(), collector::PORT);
    targets.push(Target { job: "node", instance: third.node.name.to_string(), at });
    let run_dir = lab.files(&first.node).run_dir();
    test_rules(&rules_file, &run_dir, out)?;
    check_scrapes(&run_dir, out)?;
    check_metrics(&lab.ibarr(&first.node, &["metrics"])?.stdout, &run_dir)?;
    let directory = run_dir.join("prometheus");
    let hurried = prometheus::hurried(&rules);
    let prometheus = Prometheus::start(&lab.plan().hub, &directory, &hurried, &targets, interrupt)?;
    let mut scenario = Scenario {
        lab: &lab,
        nodes: &nodes,
        collector: &collector,
        prometheus: &prometheus,
        alerts: prometheus::alerts(&rules).into_iter().collect(),
        interrupt,
        out,
    };
    let start = unix_time();
    scenario.storm()?;
    scenario.look(&dashboard, start, unix_time())?;
    drop((prometheus, collector));
    for node in nodes {
        node.end()?;
    }
    lab.down()
}

/// Checks the rules, and runs their tests: that which stands beside them, and that of a fleet.
fn test_rules(rules: &Path, run_dir: &Path, out: &mut impl Write) -> Result<()> {
    let directory = rules.parent().context("a file has a directory")?;
    let fleet = run_dir.join("fleet.test.yml");
    let absolute = fs::canonicalize(rules)?;
    fs::write(&fleet, fleet::test(absolute.to_str().context("a path in UTF-8")?))?;
    for (what, file) in
        [("check", rules), ("test", &directory.join("ibarr.rules.test.yml")), ("test", &fleet)]
    {
        let output = program("promtool").args([what, "rules"]).arg(file).output();
        let output =
            output.context("start this through `cargo xtask monitor`, which fetches promtool")?;
        ensure!(output.status.success(), "promtool {what} rules: {output:?}");
        writeln!(out, "promtool {what} rules {}: passed", file.display())?;
    }
    Ok(())
}

/// Checks the scrape configurations of the page about metrics.
fn check_scrapes(directory: &Path, out: &mut impl Write) -> Result<()> {
    const PAGE: &str = include_str!("../../../docs/metrics.md");
    let blocks = PAGE.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next());
    let scrapes: Vec<_> = blocks.filter(|block| block.starts_with("scrape_configs:")).collect();
    ensure!(!scrapes.is_empty(), "docs/metrics.md has no scrape configuration");
    for scrape in &scrapes {
        let file = directory.join("scrape.yml");
        fs::write(&file, scrape)?;
        let output = program("promtool").args(["check", "config"]).arg(&file).output()?;
        ensure!(output.status.success(), "promtool check config: {output:?}\n{scrape}");
    }
    writeln!(out, "promtool check config docs/metrics.md: {} passed", scrapes.len())?;
    Ok(())
}

/// Checks that Prometheus' own reader takes what `ibarr metrics` prints.
fn check_metrics(metrics: &[u8], directory: &Path) -> Result<()> {
    let file = directory.join("metrics.txt");
    fs::write(&file, metrics)?;
    let mut promtool = program("promtool");
    let output = promtool.args(["check", "metrics"]).stdin(File::open(&file)?).output()?;
    ensure!(output.status.success() && !metrics.is_empty(), "promtool check metrics: {output:?}");
    Ok(())
}

struct Scenario<'a, W> {
    lab: &'a Lab,
    nodes: &'a [Loaded],
    collector: &'a Collector,
    prometheus: &'a Prometheus,
    /// The names of all alerts.
    alerts: BTreeSet<String>,
    interrupt: &'a Interrupt,
    out: &'a mut W,
}

/// How long all is well before the storm, so that this can be seen.
const CALM: Duration = Duration::from_secs(10);

/// How long alerts may take to fire or to clear. Rates are taken over ten seconds.
const PATIENCE: Duration = Duration::from_mins(1);

const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Alerts on many nodes. Four nodes are never less than a tenth, so `fleet` alone makes the second one fire.
const OF_FLEETS: [&str; 2] = ["IbarrFleet", "IbarrManyNodes"];

impl<W: Write> Scenario<'_, W> {
    /// Calm, then the storm.
    fn storm(&mut self) -> Result<()> {
        let [n1, n2, n3, n4] = self.nodes else { bail!("the scenario has four nodes") };
        writeln!(self.out, "\nFour nodes ask each other, and nothing is wrong.")?;
        self.interrupt.sleep(CALM)?;
        let early = self.firing()?;
        ensure!(early.is_empty(), "alerts fire although nothing is wrong: {early:?}");
        self.compare(n3)?;

        writeln!(
            self.out,
            "The storm: the subnet administrator of {} is silent, the configuration of {} has a mistake, {} has no GID \
             any more, answers no peer and writes no metrics for node_exporter, and the daemon of {} is stopped.",
            n1.node.name, n2.node.name, n3.node.name, n4.node.name
        )?;
        n1.administrator.sa().behaviour_mut().silent = true;
        self.configure(n2, "interfaces = 7\n", false)?;
        let without_gids = n3.config.split_once("[client]").map_or("", |(_, rest)| rest);
        self.configure(n3, &format!("[client]{without_gids}"), true)?;
        self.collector.pause(true);
        let status = self.lab.ask(&n4.node, &["status"])?;
        let pid = status["status"]["pid"].as_i64().and_then(|pid| pid.try_into().ok());
        let stopped = Pid::from_raw(pid.context("no pid")?);
        kill(stopped, Signal::SIGSTOP)?;
        let fired = self.wait("fires", |missing, firing| {
            missing.retain(|alert| !firing.contains(alert) && !OF_FLEETS.contains(&alert.as_str()));
            missing.is_empty()
        });
        // Also after an error, because a stopped process does not end at SIGTERM.
        kill(stopped, Signal::SIGCONT)?;
        fired?;
        let top = self.lab.ibarr(&n1.node, &["top", "--once"])?;
        writeln!(self.out, "\n{}:\n{}", n1.node.name, String::from_utf8_lossy(&top.stdout))?;

        writeln!(
            self.out,
            "Now the subnet administrator of every node is silent, which is one alert."
        )?;
        self.collector.pause(false);
        for node in self.nodes {
            node.administrator.sa().behaviour_mut().silent = true;
        }
        for node in [n2, n3] {
            self.configure(node, &node.config, true)?;
        }
        let prometheus = self.prometheus;
        let count = |alert| {
            let labels = "alertstate=\"firing\", job=\"ibarr\", subsystem=\"sa\"";
            let firing = prometheus.now(&format!("ALERTS{{alertname=\"{alert}\", {labels}}}"));
            firing.map_or(usize::MAX, |firing| firing.len())
        };
        self.wait("is one", |_, _| (count("IbarrFleet"), count("IbarrDegraded")) == (1, 0))?;

        writeln!(self.out, "The storm is over.")?;
        for node in self.nodes {
            node.administrator.sa().behaviour_mut().silent = false;
        }
        self.wait("clears", |_, firing| firing.is_empty())
    }

    /// Checks that node_exporter reads the file, and passes on every metric that the exporter serves.
    fn compare(&self, node: &Loaded) -> Result<()> {
        let errors = self.prometheus.now("node_textfile_scrape_error")?;
        let errors: Vec<_> =
            errors.iter().flat_map(Series::points).map(|(_, error)| error).collect();
        ensure!(errors == [0.0], "node_textfile_scrape_error: {errors:?}");
        let labels = |job: &str| -> Result<BTreeSet<BTreeMap<String, String>>> {
            let instance = &node.node.name;
            let all = format!("{{__name__=~\"ibarr_.+\", job=\"{job}\", instance=\"{instance}\"}}");
            let mut all: Vec<_> =
                self.prometheus.now(&all)?.into_iter().map(|series| series.labels).collect();
            for labels in &mut all {
                labels.remove("job");
                // node_exporter writes 1.0 as 1.
                if let Some(le) = labels.get_mut("le")
                    && let Some(whole) = le.strip_suffix(".0")
                {
                    *le = whole.to_owned();
                }
            }
            Ok(all.into_iter().collect())
        };
        let (served, collected) = (labels("ibarr")?, labels("node")?);
        let differ: Vec<_> = served.symmetric_difference(&collected).collect();
        ensure!(
            served.len() > 50 && differ.is_empty(),
            "node_exporter has other metrics: {differ:?}"
        );
        Ok(())
    }

    /// Waits until the alerts are as wanted. `is_done` is given the alerts that it has left, and those that fire.
    fn wait(
        &mut self,
        what: &str,
        mut is_done: impl FnMut(&mut BTreeSet<String>, &BTreeSet<String>) -> bool,
    ) -> Result<()> {
        let (begun, mut missing, mut before) =
            (Instant::now(), self.alerts.clone(), self.firing()?);
        loop {
            let firing = self.firing()?;
            for alert in firing.symmetric_difference(&before) {
                let verb = if firing.contains(alert) { "fires" } else { "clears" };
                let after = begun.elapsed().as_secs_f64();
                writeln!(self.out, "  {after:>5.1} s  {alert} {verb}")?;
                self.out.flush()?;
            }
            if is_done(&mut missing, &firing) {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < PATIENCE,
                "not every alert {what} in {} s: {missing:?} of {firing:?}",
                PATIENCE.as_secs()
            );
            before = firing;
            self.interrupt.sleep(LOOK_EVERY)?;
        }
    }

    /// The names of the alerts that fire.
    fn firing(&self) -> Result<BTreeSet<String>> {
        let series = self.prometheus.now("ALERTS{alertstate=\"firing\"}")?;
        Ok(series.iter().map(|series| series.label("alertname").to_owned()).collect())
    }

    /// Gives a node another configuration, which it takes if it is `right`.
    fn configure(&self, node: &Loaded, config: &str, right: bool) -> Result<()> {
        fs::write(self.lab.files(&node.node).config(), config)?;
        let output = self.lab.ibarr(&node.node, &["reload"])?;
        ensure!(output.status.success() == right, "{}: reload: {output:?}", node.node.name);
        Ok(())
    }

    /// Asks for all that the dashboard shows.
    fn look(&mut self, dashboard: &Dashboard, start: f64, end: f64) -> Result<()> {
        let (mut empty, mut of_nodes, mut asked) = (Vec::new(), Vec::new(), 0);
        for panel in &dashboard.panels {
            for target in &panel.targets {
                let expression = target.expression();
                let series = self.prometheus.range(&expression, start, end)?;
                asked += 1;
                if !target.is_of_top_nodes()
                    && series.iter().any(|series| !series.label("instance").is_empty())
                {
                    of_nodes.push(format!("{}: {expression}", panel.title));
                }
                if series.iter().all(|series| series.points().next().is_none()) {
                    empty.push(format!("{}: {expression}", panel.title));
                }
            }
        }
        ensure!(empty.is_empty(), "the dashboard has no data for {}", empty.join("; "));
        ensure!(of_nodes.is_empty(), "a line for each node: {}", of_nodes.join("; "));
        let alerts = self.alerts.len() - 1;
        writeln!(
            self.out,
            "{alerts} alerts have fired and cleared; {asked} expressions of the dashboard have data."
        )?;
        Ok(())
    }
}

fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
