// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A test of the rules, for promtool, with more nodes than a lab has.

use std::fmt::Write as _;

/// More than a hundred, so that ten are less than a tenth.
const NODES: usize = 1000;

/// The subnet administrator of all nodes is silent from the fifth minute to the fifteenth, ten nodes have trouble with
/// peers from the fifth minute on, and one node with its control socket all the time.
pub(super) fn test(rules: &str) -> String {
    let mut series = String::new();
    for node in 0..NODES {
        let mut add = |metric: &str, labels: &str, values: &str| {
            // Writing to a String never fails.
            let _ = writeln!(
                series,
                "      - {{series: '{metric}{{job=\"ibarr\", instance=\"n{node}\"{labels}}}', values: '{values}'}}"
            );
        };
        let health = |subsystem: &str| format!(", subsystem=\"{subsystem}\"");
        add("ibarr_up", "", "1x30");
        add("ibarr_health", &health("sa"), "0x4 1x9 0x15");
        add("ibarr_health", &health("peers"), if node < 10 { "0x4 1x26" } else { "0x30" });
        add("ibarr_health", &health("control"), if node == 0 { "1x30" } else { "0x30" });
    }
    format!(
        "rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
{series}
    alert_rule_test:
      - {{eval_time: 4m, alertname: IbarrFleet}}
      - eval_time: 9m
        alertname: IbarrFleet
        exp_alerts:
          - exp_labels: {{severity: critical, job: ibarr, subsystem: sa}}
            exp_annotations:
              summary: '{NODES} nodes of job ibarr, more than a tenth: trouble with sa'
              remedy: 'what have they in common? sa: the subnet manager. ibarr status on one of them'
      - eval_time: 13m
        alertname: IbarrManyNodes
        exp_alerts:
          - exp_labels: {{severity: warning, job: ibarr, subsystem: peers}}
            exp_annotations:
              summary: '10 nodes of job ibarr: trouble with peers'
              remedy: 'which: ibarr:trouble{{subsystem=\"peers\"}} > 0; ibarr status on one of them'
      - eval_time: 13m
        alertname: IbarrDegraded
        exp_alerts:
          - exp_labels: {{severity: warning, job: ibarr, instance: n0, subsystem: control}}
            exp_annotations: {{summary: 'n0: control  is degraded', remedy: ibarr status}}
      - {{eval_time: 20m, alertname: IbarrFleet}}
"
    )
}
