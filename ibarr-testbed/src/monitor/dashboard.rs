// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The dashboard for Grafana: its panels and their expressions.

use anyhow::{Context, Result};
use serde::Deserialize;

use super::prometheus::WINDOW;

/// A dashboard, as far as it is used here.
#[derive(Debug, Deserialize)]
pub(super) struct Dashboard {
    pub(super) panels: Vec<Panel>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Target {
    expr: String,
}

impl Dashboard {
    /// # Errors
    /// It is no dashboard.
    pub(super) fn parse(json: &str) -> Result<Self> {
        serde_json::from_str(json).context("not a dashboard")
    }
}

impl Target {
    /// The expression as Grafana would send it, for all nodes.
    pub(super) fn expression(&self) -> String {
        let expression = self.expr.replace("$__rate_interval", WINDOW);
        expression.replace("$instance", ".+").replace("$job", ".+")
    }

    /// Whether it may have a line for each of some nodes: those with the highest values.
    pub(super) fn is_of_top_nodes(&self) -> bool {
        self.expr.starts_with("topk(")
    }
}
