// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Metrics for Prometheus, as OpenMetrics text. Each family stands in [`FAMILIES`], from which
//! docs/metrics.md is made. No label has a value that a peer can choose.

mod families;
pub mod server;

use std::fmt;

use ibarr_proto::durations::Durations;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

pub use self::families::{FAMILIES, Family, Kind, Name};

/// The type of the document, for HTTP.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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
    pub fn text(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut document = String::new();
        // A String takes everything.
        let _ = text::encode(&mut document, &registry);
        document
    }
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
            Self::Durations(durations) => {
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

    #[test]
    fn text_is_openmetrics_with_every_family() {
        let mut snapshot = Snapshot::default();
        let mut durations = Durations::default();
        durations.add(Duration::from_millis(2));
        snapshot.durations(Name::ResolveDuration, &durations);
        snapshot.count(Name::Requests, &["found", "cache"], 7);
        snapshot.level(Name::Health, &["sa", "mlx5_0/1"], 1.0);
        snapshot.level(Name::BuildInfo, &["1.0.0"], 1.0);
        let text = snapshot.text();
        for expected in [
            "# TYPE ibarr_ip2gid_requests counter\n",
            "ibarr_ip2gid_requests_total{result=\"found\",source=\"cache\"} 7\n",
            "ibarr_health{subsystem=\"sa\",of=\"mlx5_0/1\"} 1.0\n",
            "ibarr_build_info{version=\"1.0.0\"} 1\n",
            "ibarr_resolve_duration_seconds_bucket{le=\"0.001\"} 0\n",
            "ibarr_resolve_duration_seconds_bucket{le=\"0.005\"} 1\n",
            "ibarr_resolve_duration_seconds_bucket{le=\"+Inf\"} 1\n",
            "ibarr_resolve_duration_seconds_sum 0.002\n",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        let families = text.lines().filter(|line| line.starts_with("# TYPE ibarr_")).count();
        assert_eq!(families, FAMILIES.len());
    }
}
