// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Aligns the columns that commands print.

use std::fmt::Write as _;

/// Columns two spaces apart, each as wide as its widest cell so far. Those without text are left out.
#[derive(Default)]
pub(super) struct Table {
    pub(super) widths: Vec<usize>,
    /// All columns but the first are aligned to the right.
    pub(super) numbers: bool,
}

impl Table {
    /// Rows below earlier ones, a line each.
    pub(super) fn text(&mut self, rows: impl IntoIterator<Item = Vec<String>>) -> String {
        let rows: Vec<_> = rows.into_iter().collect();
        for row in &rows {
            self.widths.resize(self.widths.len().max(row.len()), 0);
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        for row in rows {
            let columns = self.widths.iter().zip(&row).enumerate();
            for (column, (&width, cell)) in columns.filter(|(_, (width, _))| **width > 0) {
                // Writing to a String cannot fail.
                let _ = match column {
                    1.. if self.numbers => write!(text, "{cell:>width$}  "),
                    _ => write!(text, "{cell:width$}  "),
                };
            }
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
        }
        text
    }
}
