// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Metrics for Prometheus, as its text or as OpenMetrics. Each family stands in [`FAMILIES`], from which
//! docs/metrics.md is made. No label has a value that a peer can choose.

mod families;
pub mod server;

use std::fmt::{self, Write};

use ibarr_proto::durations::Durations;

pub use self::families::{FAMILIES, Family, Kind, Name};
use crate::control::messages::MetricsForm as Form;

/// All values at one time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    samples: Vec<Sample>,
}

#[derive(Clone, Debug)]
struct Sample {
    of: Name,
    /// One for each label of the family.
    labels: Vec<String>,
    value: Value,
}

#[derive(Clone, Debug)]
enum Value {
    Number(f64),
    Count(u64),
    Durations(Durations),
}

impl Snapshot {
    /// Adds a value of a counter; `labels` are in the order of the family's.
    pub fn count(&mut self, of: Name, labels: &[&str], count: u64) {
        self.add(of, labels, Value::Count(count));
    }

    /// Adds a value of a gauge.
    pub fn level(&mut self, of: Name, labels: &[&str], level: f64) {
        self.add(of, labels, Value::Number(level));
    }

    /// Adds a histogram.
    pub fn durations(&mut self, of: Name, durations: &Durations) {
        self.add(of, &[], Value::Durations(durations.clone()));
    }

    fn add(&mut self, of: Name, labels: &[&str], value: Value) {
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        self.samples.push(Sample { of, labels, value });
    }

    /// The document.
    pub fn text(&self, form: Form) -> String {
        let mut document = String::new();
        // A String takes everything.
        let _ = self.write(form, &mut document);
        document
    }

    fn write(&self, form: Form, to: &mut String) -> fmt::Result {
        for family in FAMILIES {
            let Family { text, kind, .. } = family;
            // OpenMetrics names the family, Prometheus its samples, and knows no kind `info`.
            let (name, kind) = match form {
                Form::OpenMetrics => (family.stem(), kind.name()),
                Form::Prometheus if *kind == Kind::Info => (*text, Kind::Gauge.name()),
                Form::Prometheus => (*text, kind.name()),
            };
            writeln!(to, "# HELP {name} {}.\n# TYPE {name} {kind}", family.first_line())?;
            for sample in self.samples.iter().filter(|sample| sample.of == family.name) {
                let names = family.labels.iter().map(|(name, _)| *name);
                let labels: Vec<_> = names.zip(&sample.labels).map(label).collect();
                sample.value.write(text, &labels, to)?;
            }
        }
        to.write_str(if form == Form::OpenMetrics { "# EOF\n" } else { "" })
    }
}

fn label((name, value): (&str, &String)) -> String {
    let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    format!("{name}=\"{value}\"")
}

impl Value {
    fn write(&self, name: &str, labels: &[String], to: &mut String) -> fmt::Result {
        let labels = match labels {
            [] => String::new(),
            labels => format!("{{{}}}", labels.join(",")),
        };
        match self {
            Self::Number(number) => writeln!(to, "{name}{labels} {number:?}"),
            Self::Count(count) => writeln!(to, "{name}{labels} {count}"),
            Self::Durations(durations) => {
                let mut below = 0;
                for (end, count) in durations.buckets() {
                    below += count;
                    let end = end.map(|end| format!("{:?}", end.as_secs_f64()));
                    let end = end.as_deref().unwrap_or("+Inf");
                    writeln!(to, "{name}_bucket{{le=\"{end}\"}} {below}")?;
                }
                writeln!(to, "{name}_sum {:?}", durations.sum().as_secs_f64())?;
                writeln!(to, "{name}_count {below}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn snapshot() -> Snapshot {
        let mut snapshot = Snapshot::default();
        let mut durations = Durations::default();
        durations.add(Duration::from_millis(2));
        snapshot.durations(Name::ResolveDuration, &durations);
        snapshot.count(Name::Requests, &["found", "cache"], 7);
        snapshot.level(Name::Health, &["sa", "mlx5_0/1"], 1.0);
        snapshot.level(Name::BuildInfo, &["1.0.0"], 1.0);
        snapshot
    }

    #[test]
    fn document_has_every_family_in_the_words_of_its_form() {
        let samples = [
            "ibarr_ip2gid_requests_total{result=\"found\",source=\"cache\"} 7\n",
            "ibarr_health{subsystem=\"sa\",of=\"mlx5_0/1\"} 1.0\n",
            "ibarr_build_info{version=\"1.0.0\"} 1.0\n",
            "ibarr_resolve_duration_seconds_bucket{le=\"0.001\"} 0\n",
            "ibarr_resolve_duration_seconds_bucket{le=\"0.005\"} 1\n",
            "ibarr_resolve_duration_seconds_bucket{le=\"+Inf\"} 1\n",
            "ibarr_resolve_duration_seconds_sum 0.002\nibarr_resolve_duration_seconds_count 1\n",
        ];
        let heads = [
            (Form::Prometheus, "ibarr_ip2gid_requests_total counter", "ibarr_build_info gauge"),
            (Form::OpenMetrics, "ibarr_ip2gid_requests counter", "ibarr_build info"),
        ];
        for (form, counter, info) in heads {
            let text = snapshot().text(form);
            for expected in samples {
                assert!(text.contains(expected), "{expected} is not in\n{text}");
            }
            assert!(text.contains(&format!("# TYPE {counter}\n")), "{text}");
            assert!(text.contains(&format!("# TYPE {info}\n")), "{text}");
            assert_eq!(text.ends_with("# EOF\n"), form == Form::OpenMetrics);
            let families = text.lines().filter(|line| line.starts_with("# TYPE ibarr_")).count();
            assert_eq!(families, FAMILIES.len());
        }
    }

    #[test]
    fn label_is_escaped() {
        let written = label(("a", &"x\\y\"z\n".to_owned()));
        assert_eq!(written, r#"a="x\\y\"z\n""#);
    }
}
