// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The two pictures of docs/bench.md, drawn from the results in docs/bench.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use plotters::prelude::{
    BLUE, ChartBuilder, Color as _, IntoDrawingArea as _, RED, Rectangle, SVGBackend, Text, WHITE,
};
use serde_json::Value;

use crate::privilege::Privilege;
use crate::process;
use crate::tools::Toolbox;
use crate::workspace::Workspace;

/// Results and pictures, relative to the top of the checkout.
const PLACE: &str = "docs/bench";

/// A picture: its file, its title, the benches whose results it shows, and which of their figures.
struct Picture {
    file: &'static str,
    title: &'static str,
    benches: &'static [&'static str],
    shows: fn(&str) -> bool,
}

const PICTURES: [Picture; 2] = [
    Picture {
        file: "ratios.svg",
        title: "Answers a second, to those of a bare server (more is better)",
        benches: &["ip2gid", "resolve", "paths", "acm-rate"],
        shows: |name| name.contains("answers a second, to "),
    },
    Picture {
        file: "instructions.svg",
        title: "Instructions of the daemon for an answer from memory (less is better)",
        benches: &["instructions"],
        shows: |_| true,
    },
];

/// A bar, and the mark of its aim.
#[derive(Debug, PartialEq)]
struct Bar {
    name: String,
    value: f64,
    aim: Option<f64>,
}

/// Runs the benches, and keeps their results.
pub(crate) fn record(workspace: &Workspace, testbed: &Path, toolbox: &Toolbox) -> Result<()> {
    let path = toolbox.path()?;
    for bench in PICTURES.iter().flat_map(|picture| picture.benches) {
        let file = workspace.root().join(PLACE).join(format!("{bench}.json"));
        let privilege = Privilege::find(false)?;
        let mut command = privilege.command(testbed, &[("PATH", path.as_os_str())]);
        process::run(command.args(["bench", bench, "--json"]).arg(file))?;
    }
    Ok(())
}

/// Draws both from the results that are kept.
pub(crate) fn draw(workspace: &Workspace) -> Result<()> {
    let place = workspace.root().join(PLACE);
    for picture in &PICTURES {
        fs::write(place.join(picture.file), drawn(&place, picture)?)?;
    }
    Ok(())
}

fn drawn(place: &Path, picture: &Picture) -> Result<String> {
    let mut bars = Vec::new();
    for bench in picture.benches {
        let file = place.join(format!("{bench}.json"));
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        bars.extend(read(bench, &serde_json::from_str(&text)?, picture.shows)?);
    }
    ensure!(!bars.is_empty(), "{}: nothing to show", picture.file);
    svg(picture.title, &bars)
}

/// The figures of a report that a picture shows.
fn read(bench: &str, report: &Value, shows: fn(&str) -> bool) -> Result<Vec<Bar>> {
    let figures = report["figures"].as_array().context("a report without figures")?;
    let mut bars = Vec::new();
    for figure in figures {
        let name = figure["name"].as_str().context("a figure without a name")?;
        if !shows(name) {
            continue;
        }
        let value = figure["value"].as_f64().context("a figure without a value")?;
        // `≥ 0.8: met`
        let aim =
            figure["target"].as_str().and_then(|it| it.split([' ', ':']).nth(1)?.parse().ok());
        let name = format!("{bench}: {}", name.replace(": answers a second, to", ", to"));
        bars.push(Bar { name, value, aim });
    }
    Ok(bars)
}

const WIDTH: u32 = 900;
const LEFT: u32 = 340;
const ROW: u32 = 24;

fn svg(title: &str, bars: &[Bar]) -> Result<String> {
    let mut svg = String::new();
    let rows = u32::try_from(bars.len())?;
    let most = bars.iter().flat_map(|bar| [Some(bar.value), bar.aim]).flatten().fold(0.0, f64::max);
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, ROW * rows + 90)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(format!("{title}; red: the aim"), ("sans-serif", 16))
            .margin_left(LEFT)
            .margin_right(60)
            .x_label_area_size(30)
            .build_cartesian_2d(0.0..most * 1.02, f64::from(rows)..0.0)
            .map_err(failed)?;
        let decimals = usize::from(most < 10.0);
        let mut mesh = chart.configure_mesh();
        mesh.disable_y_mesh().disable_y_axis().x_max_light_lines(1);
        mesh.x_label_formatter(&|x| format!("{x:.decimals$}")).draw().map_err(failed)?;
        for (row, bar) in (0_u32..).zip(bars) {
            let (top, bottom) = (f64::from(row) + 0.2, f64::from(row) + 0.8);
            let filled = Rectangle::new([(0.0, top), (bar.value, bottom)], BLUE.mix(0.5).filled());
            let mark = bar.aim.map(|aim| {
                let half = most / 600.0;
                Rectangle::new([(aim - half, top), (aim + half, bottom)], RED.filled())
            });
            chart.draw_series([filled].into_iter().chain(mark)).map_err(failed)?;
            let (_, y) = chart.backend_coord(&(0.0, top));
            let (x, _) = chart.backend_coord(&(bar.value.max(bar.aim.unwrap_or(0.0)), top));
            let value = if bar.value < 99.5 {
                format!("{:.2}", bar.value)
            } else {
                format!("{:.0}", bar.value)
            };
            for (text, x) in [(bar.name.clone(), 10), (value, x + 6)] {
                let style = ("sans-serif", 13);
                root.draw(&Text::new(text, (x, y + 2), style)).map_err(failed)?;
            }
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

/// Plotters' errors borrow the picture.
fn failed(error: impl Display) -> anyhow::Error {
    anyhow::anyhow!("cannot draw: {error}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pictures_are_those_of_the_recorded_results() {
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(PLACE);
        for picture in &PICTURES {
            let kept = fs::read_to_string(place.join(picture.file)).expect("it is there");
            let drawn = drawn(&place, picture).expect("the results can be read");
            assert!(kept == drawn, "{}: run `cargo xtask bench --pictures`", picture.file);
        }
    }

    #[test]
    fn bar_has_value_and_aim_of_its_figure() {
        let figures = json!({ "figures": [
            { "name": "IPv4: answers a second, to the echo's", "value": 0.5, "target": "≥ 0.3: met" },
            { "name": "IPv4: answers a second", "value": 9.0 },
        ]});
        let bars = read("resolve", &figures, PICTURES[0].shows).expect("a report");
        let name = "resolve: IPv4, to the echo's".to_owned();
        assert_eq!(bars, [Bar { name, value: 0.5, aim: Some(0.3) }]);
    }
}
