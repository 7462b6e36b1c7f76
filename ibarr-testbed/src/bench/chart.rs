// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Bars in an SVG file.

use std::fmt::Write;

/// A chart of horizontal bars, all in one unit.
#[derive(Debug)]
pub(super) struct Chart {
    /// What is shown.
    pub(super) title: String,
    /// What it means: a ratio, and which way is better.
    pub(super) note: String,
    /// Of the axis.
    pub(super) unit: &'static str,
    /// What equal lengths stand for.
    pub(super) scale: Scale,
    /// What the bars are held against, if anything.
    pub(super) aim: Option<Aim>,
    /// From top to bottom.
    pub(super) bars: Vec<Bar>,
}

/// A line across the bars.
#[derive(Debug)]
pub(super) struct Aim {
    /// Where.
    pub(super) value: f64,
    /// Above it.
    pub(super) label: String,
}

/// What equal lengths on an axis stand for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scale {
    /// Equal differences; the axis begins at zero.
    Linear,
    /// Equal ratios; the axis begins at a power of ten.
    Logarithmic,
}

/// One bar.
#[derive(Debug)]
pub(super) struct Bar {
    /// At its left.
    pub(super) label: String,
    /// Its length, and at its right.
    pub(super) value: f64,
    /// Whether it stands for ibarr or for a comparison.
    pub(super) is_ours: bool,
}

/// The document, charts one below another.
pub(super) fn svg(heading: &str, charts: &[Chart]) -> String {
    let height = TOP + charts.iter().map(Chart::height).sum::<f64>();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    text(&mut svg, MARGIN, 26.0, "font-size=\"17\" font-weight=\"bold\"", heading);
    let mut y = TOP;
    for chart in charts {
        chart.draw(&mut svg, y);
        y += chart.height();
    }
    svg.push_str("</svg>\n");
    svg
}

/// As short as it can be said: 1.20 M, 34.5 k, 678, 0.12.
pub(super) fn short(value: f64) -> String {
    match value {
        _ if value >= 999_500.0 => format!("{:.2} M", value / 1e6),
        _ if value >= 9_995.0 => format!("{:.1} k", value / 1e3),
        _ if value >= 99.5 => format!("{value:.0}"),
        _ if value >= 9.95 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl Chart {
    fn height(&self) -> f64 {
        self.bars.iter().fold(self.header() + FOOTER, |height, _| height + ROW)
    }

    fn header(&self) -> f64 {
        if self.aim.is_some() { HEADER + AIM_ROW } else { HEADER }
    }

    fn draw(&self, svg: &mut String, top: f64) {
        text(svg, MARGIN, top + 18.0, "font-weight=\"bold\"", &self.title);
        text(svg, MARGIN, top + 36.0, GREY, &self.note);
        let (bars_top, bars_end) = (top + self.header(), top + self.height() - FOOTER);
        let aim = self.aim.iter().map(|aim| aim.value);
        let axis = Axis::new(self.scale, self.bars.iter().map(|bar| bar.value).chain(aim));
        for (length, label) in axis.ticks() {
            let x = LEFT + length;
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{bars_top}\" x2=\"{x:.1}\" y2=\"{bars_end}\" \
                 stroke=\"#ddd\"/>"
            );
            let style = "text-anchor=\"middle\" font-size=\"11\" fill=\"#444\"";
            text(svg, x, bars_end + 15.0, style, &label);
        }
        let style = "text-anchor=\"middle\" font-size=\"11\"";
        text(svg, LEFT + AXIS / 2.0, bars_end + 31.0, style, self.unit);
        if let Some(Aim { value, label }) = &self.aim {
            let x = LEFT + axis.length(*value);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{}\" x2=\"{x:.1}\" y2=\"{bars_end}\" \
                 stroke=\"#c22\" stroke-dasharray=\"5 3\"/>",
                bars_top - 4.0,
            );
            // To the side where there is more room.
            let (anchor, x) =
                if x < LEFT + AXIS / 2.0 { ("start", x + 4.0) } else { ("end", x - 4.0) };
            let style = format!("text-anchor=\"{anchor}\" font-size=\"11\" fill=\"#c22\"");
            text(svg, x, bars_top - 6.0, &style, label);
        }
        let mut y = bars_top;
        for bar in &self.bars {
            let width = axis.length(bar.value).max(1.0);
            let fill = if bar.is_ours { "#1f6fb4" } else { "#b8b8b8" };
            text(svg, LEFT - 8.0, y + 17.0, "text-anchor=\"end\"", &bar.label);
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\" fill=\"{fill}\"/>",
                y + 3.0,
                ROW - 6.0,
            );
            text(svg, LEFT + width + 6.0, y + 17.0, HALO, &short(bar.value));
            y += ROW;
        }
    }
}

/// From one round number to another.
#[derive(Clone, Copy, Debug)]
enum Axis {
    /// From 0 in steps of this.
    Linear(f64),
    /// From the one power of ten to the other.
    Logarithmic(i32, i32),
}

impl Axis {
    fn new(scale: Scale, values: impl Iterator<Item = f64> + Clone) -> Self {
        let max = values.clone().fold(1e-9, f64::max);
        match scale {
            Scale::Linear => {
                let step = max / f64::from(STEPS);
                let power = 10_f64.powi(exponent(step));
                let round = [1.0, 2.0, 2.5, 5.0, 10.0].map(|digit| digit * power);
                let enough = |&round: &f64| round >= step * (1.0 - 1e-9);
                Self::Linear(round.into_iter().find(enough).unwrap_or(step))
            }
            Scale::Logarithmic => {
                let min = exponent(values.fold(max, f64::min).max(1e-9));
                Self::Logarithmic(min, exponent(max * (1.0 - 1e-9)).max(min) + 1)
            }
        }
    }

    /// How far from its begin `value` is.
    fn length(self, value: f64) -> f64 {
        match self {
            Self::Linear(step) => value / (step * f64::from(STEPS)) * AXIS,
            Self::Logarithmic(from, to) => {
                (value.max(1e-9).log10() - f64::from(from)) / f64::from(to - from) * AXIS
            }
        }
    }

    /// Where its lines are, and what stands there.
    fn ticks(self) -> Vec<(f64, String)> {
        let values: Vec<f64> = match self {
            Self::Linear(step) => (0..=STEPS).map(|at| step * f64::from(at)).collect(),
            Self::Logarithmic(from, to) => (from..=to).map(|power| 10_f64.powi(power)).collect(),
        };
        let label = |value| if value == 0.0 { "0".to_owned() } else { short(value) };
        values.into_iter().map(|value| (self.length(value), label(value))).collect()
    }
}

/// Of the power of ten that is not above `value`.
#[expect(clippy::cast_possible_truncation, reason = "a logarithm of an f64 is below 400")]
fn exponent(value: f64) -> i32 {
    (value.log10() + 1e-9).floor() as i32
}

fn text(svg: &mut String, x: f64, y: f64, style: &str, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y}\" {style}>{content}</text>");
}

const GREY: &str = "fill=\"#444\"";
/// Lines behind a text do not cross it.
const HALO: &str = "stroke=\"white\" stroke-width=\"4\" paint-order=\"stroke\"";

const WIDTH: f64 = 800.0;
const MARGIN: f64 = 16.0;
const TOP: f64 = 44.0;
/// Where bars begin.
const LEFT: f64 = 200.0;
/// Length of the axis; the rest is for the value behind a bar.
const AXIS: f64 = 510.0;
const HEADER: f64 = 46.0;
const FOOTER: f64 = 54.0;
const AIM_ROW: f64 = 16.0;
const ROW: f64 = 26.0;
const STEPS: i32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_fits_its_axis_and_uses_it() {
        for max in [0.003, 0.99, 1.0, 3.7, 10.0, 73.0, 1000.0, 123_456.0] {
            for (scale, least) in [(Scale::Linear, 0.4), (Scale::Logarithmic, 0.5)] {
                let values = [max / 20.0, max];
                let axis = Axis::new(scale, values.into_iter());
                let [short, long] = values.map(|value| axis.length(value) / AXIS);
                assert!(short >= -1e-6 && short < long, "{scale:?} to {max}: {short} {long}");
                assert!((least..1.000_001).contains(&long), "{scale:?} to {max}: {long}");
            }
        }
    }

    #[test]
    fn ticks_are_round() {
        let labels = |scale, values: &[f64]| {
            let ticks = Axis::new(scale, values.iter().copied()).ticks();
            ticks.into_iter().map(|(_, label)| label).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(labels(Scale::Linear, &[3.7]), "0, 1.00, 2.00, 3.00, 4.00, 5.00");
        let linear = "0, 25.0 k, 50.0 k, 75.0 k, 100.0 k, 125.0 k";
        assert_eq!(labels(Scale::Linear, &[123_456.0, 5.0]), linear);
        assert_eq!(labels(Scale::Logarithmic, &[42.0, 7100.0]), "10.0, 100, 1000, 10.0 k");
        assert_eq!(labels(Scale::Logarithmic, &[100.0]), "100, 1000");
    }

    #[test]
    fn text_is_escaped() {
        let bar = Bar { label: "a < b & c".to_owned(), value: 1.0, is_ours: true };
        let (title, note) = ("t".to_owned(), "n".to_owned());
        let chart =
            Chart { aim: None, title, note, unit: "s", scale: Scale::Linear, bars: vec![bar] };
        let svg = svg("h", &[chart]);
        assert!(svg.contains(">a &lt; b &amp; c</text>"), "{svg}");
    }
}
