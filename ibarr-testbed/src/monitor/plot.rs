// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The panels of the dashboard as one picture (SVG).

use std::fmt::Write as _;

/// A panel, and its named lines of times and values.
pub(super) struct Plot {
    pub(super) title: String,
    pub(super) lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// What happened when, in the same times.
pub(super) struct Times {
    pub(super) start: f64,
    pub(super) end: f64,
    /// A span of the time that is shaded.
    pub(super) storm: (f64, f64),
}

/// The size of a panel, and the part of it for lines.
const SIZE: (f64, f64) = (480.0, 200.0);
const LINES: (f64, f64, f64, f64) = (52.0, 26.0, 470.0, 138.0);
const COLUMNS: usize = 2;

/// The most names below a panel.
const NAMES: usize = 6;

const COLOURS: [&str; 8] =
    ["#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#7f7f7f"];

/// The picture.
#[expect(clippy::cast_precision_loss, reason = "a small number of panels")]
pub(super) fn svg(plots: &[Plot], times: &Times) -> String {
    let (width, height) = SIZE;
    let rows = plots.len().div_ceil(COLUMNS);
    let (all_width, all_height) = (width * COLUMNS as f64, height * rows as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {all_width} {all_height}\" \
         font-family=\"sans-serif\" font-size=\"10\">\n\
         <rect width=\"{all_width}\" height=\"{all_height}\" fill=\"white\"/>\n"
    );
    for (place, plot) in plots.iter().enumerate() {
        let (x, y) = ((place % COLUMNS) as f64 * width, (place / COLUMNS) as f64 * height);
        // Writing to a String never fails.
        let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
        panel(&mut svg, plot, times);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, plot: &Plot, times: &Times) {
    let (left, top, right, bottom) = LINES;
    let points = plot.lines.iter().flat_map(|(_, points)| points);
    let greatest = points.map(|(_, value)| *value).fold(0.0, f64::max);
    let greatest = if greatest > 0.0 { greatest } else { 1.0 };
    let x = |at: f64| left + (at - times.start) / (times.end - times.start) * (right - left);
    let y = |value: f64| bottom - value / greatest * (bottom - top);
    let (from, to) = (x(times.storm.0), x(times.storm.1));
    let (title, shaded, tall) = (escaped(&plot.title), to - from, bottom - top);
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"16\" font-weight=\"bold\" font-size=\"12\">{title}</text>\n\
         <rect x=\"{from:.1}\" y=\"{top}\" width=\"{shaded:.1}\" height=\"{tall}\" fill=\"#fff0e0\"/>\n\
         <path d=\"M{left} {top}V{bottom}H{right}\" fill=\"none\" stroke=\"#888\"/>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n\
         <text x=\"{}\" y=\"{bottom}\" text-anchor=\"end\">0</text>\n\
         <text x=\"{left}\" y=\"{}\">0 s</text>\n\
         <text x=\"{right}\" y=\"{}\" text-anchor=\"end\">{:.0} s</text>",
        left - 4.0,
        top + 8.0,
        short(greatest),
        left - 4.0,
        bottom + 12.0,
        bottom + 12.0,
        times.end - times.start,
    );
    let colours = COLOURS.iter().cycle();
    for ((_, points), colour) in plot.lines.iter().zip(colours.clone()) {
        let mut path = String::new();
        let mut last = f64::NEG_INFINITY;
        for (at, value) in points {
            // A line is broken where there is no value.
            let step = if at - last > GAP { 'M' } else { 'L' };
            let _ = write!(path, "{step}{:.1} {:.1}", x(*at), y(*value));
            last = *at;
        }
        let _ = writeln!(svg, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\"/>");
    }
    let more = plot.lines.len().saturating_sub(NAMES);
    for (place, ((name, _), colour)) in plot.lines.iter().zip(colours).take(NAMES).enumerate() {
        let (x, y) = [(left, 164.0), (left + 140.0, 164.0), (left + 280.0, 164.0)]
            .into_iter()
            .flat_map(|(x, y)| [(x, y), (x, y + 14.0)])
            .nth(place)
            .unwrap_or_default();
        let more = if more > 0 && place + 1 == NAMES {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{}\" width=\"8\" height=\"8\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{y}\">{}{more}</text>",
            y - 8.0,
            x + 12.0,
            escaped(name)
        );
    }
}

/// Longer than a step of the values, in seconds.
const GAP: f64 = 1.5;

/// A number for an axis.
fn short(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        1.0.. => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_scaled_and_broken_where_values_are_missing() {
        let points = vec![(10.0, 0.0), (11.0, 4.0), (20.0, 2.0)];
        let plot = Plot { title: "a < b".to_owned(), lines: vec![("n1".to_owned(), points)] };
        let svg = svg(&[plot], &Times { start: 10.0, end: 20.0, storm: (12.0, 14.0) });
        assert!(svg.contains("M52.0 138.0L93.8 26.0M470.0 82.0"), "{svg}");
        assert!(
            svg.contains(">a &lt; b<") && svg.contains(">4.0<") && svg.contains(">n1<"),
            "{svg}"
        );
    }
}
