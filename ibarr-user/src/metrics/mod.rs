// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Metrics for Prometheus, as its text or as OpenMetrics. Each family stands in [`FAMILIES`], from which
//! docs/metrics.md is made. No label has a value that a peer can choose.

pub(crate) mod exporter;
mod families;
pub(crate) mod server;

use std::fmt;

use ibarr_proto::durations::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

pub(crate) use self::families::{FAMILIES, Kind, Name};
use crate::control::messages::MetricsForm as Form;

/// All values at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
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
    Histogram(Histogram),
}

impl Snapshot {
    /// What is known of a daemon that does not answer.
    pub(crate) fn of_no_daemon() -> Self {
        let mut snapshot = Self::default();
        snapshot.level(Name::Up, &[], 0.0);
        snapshot
    }

    /// Adds a value of a counter; `labels` are in the order of the family's.
    pub(crate) fn count(&mut self, of: Name, labels: &[&str], count: u64) {
        self.add(of, labels, Value::Count(count));
    }

    /// Adds a value of a gauge.
    pub(crate) fn level(&mut self, of: Name, labels: &[&str], level: f64) {
        self.add(of, labels, Value::Number(level));
    }

    pub(crate) fn histogram(&mut self, of: Name, histogram: &Histogram) {
        self.add(of, &[], Value::Histogram(histogram.clone()));
    }

    fn add(&mut self, of: Name, labels: &[&str], value: Value) {
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        self.samples.push(Sample { of, labels, value });
    }

    pub(crate) fn text(&self, form: Form) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut document = String::new();
        // A String takes everything.
        let _ = text::encode(&mut document, &registry);
        match form {
            Form::OpenMetrics => document,
            Form::Prometheus => prometheus(&document),
        }
    }
}

/// OpenMetrics as Prometheus' text, which names samples in its heads, and has no kind `info` and no end.
fn prometheus(document: &str) -> String {
    let mut document = document.replace("# EOF\n", "").replace(" info\n", " gauge\n");
    for family in FAMILIES.iter().filter(|family| family.stem() != family.text) {
        for word in ["HELP", "TYPE"] {
            let head = |name| format!("# {word} {name} ");
            document = document.replace(&head(family.stem()), &head(family.text));
        }
    }
    document
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in FAMILIES {
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Info => MetricType::Info,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut metric =
                encoder.encode_descriptor(family.stem(), family.first_line(), None, kind)?;
            for sample in self.samples.iter().filter(|sample| sample.of == family.name) {
                let names = family.labels.iter().map(|(name, _)| *name);
                let labels: Vec<_> = names.zip(sample.labels.iter().map(String::as_str)).collect();
                if family.kind == Kind::Info {
                    metric.encode_info(&labels.as_slice())?;
                } else if labels.is_empty() {
                    sample.value.encode(&mut metric)?;
                } else {
                    sample.value.encode(&mut metric.encode_family(&labels.as_slice())?)?;
                }
            }
        }
        Ok(())
    }
}

impl Value {
    fn encode(&self, to: &mut MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => to.encode_gauge(number),
            Self::Count(count) => to.encode_counter::<NoLabelSet, u64, f64>(count, None),
            Self::Histogram(durations) => {
                let buckets: Vec<_> = durations
                    .buckets()
                    .map(|(end, count)| (end.map_or(f64::INFINITY, |end| end.as_secs_f64()), count))
                    .collect();
                let count = buckets.iter().map(|(_, count)| count).sum();
                let sum = durations.sum().as_secs_f64();
                to.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
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
        let mut durations = Histogram::default();
        durations.add(Duration::from_millis(2));
        snapshot.histogram(Name::ResolveDuration, &durations);
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
            "ibarr_build_info{version=\"1.0.0\"} 1\n",
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
}
