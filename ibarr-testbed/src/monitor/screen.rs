// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr top` in a real terminal, and a picture (SVG) of what it shows.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::plot::escaped;
use crate::interrupt::Interrupt;
use crate::start::program;

const COLUMNS: usize = 100;
const ROWS: usize = 46;

/// `top` shows rates after two looks, a second apart.
const LOOKS: Duration = Duration::from_secs(4);

/// What `ibarr top` shows of the daemon with this run directory.
pub(super) fn top(ibarr: &Path, run_dir: &Path, interrupt: &Interrupt) -> Result<String> {
    let tmux = Tmux(run_dir.join("tmux.sock"));
    let (columns, rows) = (COLUMNS.to_string(), ROWS.to_string());
    let size = ["-x", &columns, "-y", &rows];
    let words = [ibarr.as_os_str(), "top".as_ref(), "--run-dir".as_ref(), run_dir.as_os_str()];
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let words: Vec<_> = words.iter().map(AsRef::as_ref).collect();
    tmux.run(&[&["-f", "/dev/null", "new-session", "-d"], &size[..], &words].concat())?;
    interrupt.sleep(LOOKS)?;
    tmux.run(&["capture-pane", "-e", "-p"])
}

/// A server of tmux at this socket, which ends with all its programs when this is dropped.
struct Tmux(PathBuf);

impl Tmux {
    fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut tmux = program("tmux");
        // Without UTF-8 it would replace characters.
        let tmux = tmux.args(["-u", "-S"]).arg(&self.0).args(arguments);
        let output = tmux.output().context("tmux cannot be started")?;
        ensure!(output.status.success(), "tmux {}: {output:?}", arguments.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        drop(self.run(&["kill-server"]));
    }
}

/// The size of a character.
const WIDTH: f64 = 8.4;
const HEIGHT: f64 = 17.0;
const MARGIN: f64 = 10.0;

const PAPER: &str = "#1e1e1e";
const INK: &str = "#d4d4d4";

/// How a part of the screen looks.
#[derive(Clone, Copy, Debug, Default)]
struct Style {
    colour: Option<&'static str>,
    bold: bool,
    dim: bool,
    reversed: bool,
}

impl Style {
    /// Takes the numbers of a "select graphic rendition" (ECMA-48), of which `ibarr top` uses few.
    fn select(&mut self, numbers: &str) {
        let mut numbers = numbers.split(';');
        while let Some(number) = numbers.next() {
            match number {
                "1" => self.bold = true,
                "2" => self.dim = true,
                "7" => self.reversed = true,
                // A colour of 256, of which the first eight are those of 30 to 37.
                "38" => self.colour = numbers.nth(1).and_then(colour),
                "39" => self.colour = None,
                _ => match number.strip_prefix('3').and_then(colour) {
                    Some(colour) => self.colour = Some(colour),
                    None => *self = Self::default(),
                },
            }
        }
    }
}

fn colour(number: &str) -> Option<&'static str> {
    match number {
        "1" => Some("#f14c4c"),
        "2" => Some("#23d18b"),
        "3" => Some("#e5e510"),
        _ => None,
    }
}

/// The picture of a screen, with its escape sequences.
#[expect(clippy::cast_precision_loss, reason = "a small number of characters")]
pub(super) fn svg(screen: &str) -> String {
    let lines: Vec<_> = screen.trim_end().lines().collect();
    let width = COLUMNS as f64 * WIDTH + 2.0 * MARGIN;
    let height = lines.len() as f64 * HEIGHT + 2.0 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" \
         font-size=\"14\">\n<rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"{PAPER}\"/>\n"
    );
    let mut style = Style::default();
    for (row, line) in lines.iter().enumerate() {
        let (mut column, y) = (0, MARGIN + row as f64 * HEIGHT);
        for (number, part) in line.split("\x1b[").enumerate() {
            let text = match part.split_once('m') {
                Some((numbers, text)) if number > 0 => {
                    style.select(numbers);
                    text
                }
                _ => part,
            };
            let x = MARGIN + f64::from(column) * WIDTH;
            let length = text.chars().count();
            draw(&mut svg, style, text, [x, y, length as f64 * WIDTH]);
            column += u32::try_from(length).unwrap_or_default();
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw(svg: &mut String, style: Style, text: &str, [x, y, width]: [f64; 3]) {
    let mut ink = style.colour.unwrap_or(INK);
    // Writing to a String never fails.
    if style.reversed && width > 0.0 {
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{HEIGHT}\" fill=\"{ink}\"/>"
        );
        ink = PAPER;
    }
    if !text.trim().is_empty() {
        let bold = if style.bold { " font-weight=\"bold\"" } else { "" };
        let dim = if style.dim { " opacity=\"0.6\"" } else { "" };
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{}\" textLength=\"{width:.1}\" fill=\"{ink}\"{bold}{dim} xml:space=\"preserve\">{}</text>",
            y + 13.0,
            escaped(text)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_columns_of_a_screen_are_in_its_picture() {
        let svg = svg(
            "a < b\n\x1b[31m\x1b[1mbad\x1b[0m ok\x1b[38;5;3m so\n\x1b[0m\x1b[7mhead\x1b[0m\n\n",
        );
        for part in [
            "<text x=\"10.0\" y=\"23\" textLength=\"42.0\" fill=\"#d4d4d4\" xml:space=\"preserve\">a &lt; b<",
            "y=\"40\" textLength=\"25.2\" fill=\"#f14c4c\" font-weight=\"bold\" xml:space=\"preserve\">bad<",
            "<text x=\"35.2\" y=\"40\" textLength=\"25.2\" fill=\"#d4d4d4\" xml:space=\"preserve\"> ok<",
            "fill=\"#e5e510\" xml:space=\"preserve\"> so<",
            "<rect x=\"10.0\" y=\"44\" width=\"33.6\" height=\"17\" fill=\"#d4d4d4\"/>",
            "fill=\"#1e1e1e\" xml:space=\"preserve\">head<",
            "viewBox=\"0 0 860 71\"",
        ] {
            assert!(svg.contains(part), "no {part} in {svg}");
        }
    }
}
