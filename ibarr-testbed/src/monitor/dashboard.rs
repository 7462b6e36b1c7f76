// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The dashboard for Grafana: its panels and their expressions.

use anyhow::{Context, Result};
use serde::Deserialize;

use super::prometheus::{Series, WINDOW};

/// A dashboard, as far as it is used here.
#[derive(Debug, Deserialize)]
pub(super) struct Dashboard {
    pub(super) panels: Vec<Panel>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Panel {
    pub(super) title: String,
    targets: Vec<Target>,
}

/// An expression, and the name of its series.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Target {
    expr: String,
    legend_format: String,
}

impl Dashboard {
    /// # Errors
    /// It is no dashboard.
    pub(super) fn parse(json: &str) -> Result<Self> {
        serde_json::from_str(json).context("not a dashboard")
    }
}

impl Panel {
    pub(super) fn targets(&self) -> &[Target] {
        &self.targets
    }
}

impl Target {
    /// The expression as Grafana would send it, for all nodes.
    pub(super) fn expression(&self) -> String {
        self.expr.replace("$__rate_interval", WINDOW).replace("$instance", ".+")
    }

    /// The name of a series.
    pub(super) fn name(&self, series: &Series) -> String {
        let mut name = self.legend_format.clone();
        while let Some((before, rest)) = name.split_once("{{")
            && let Some((label, after)) = rest.split_once("}}")
        {
            name = format!("{before}{}{after}", series.label(label));
        }
        name.trim().to_owned()
    }
}
