// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The table of messages that the demonstration prints.

use std::io::Write;

use anyhow::Result;
use ibarr_common::Instant;

use super::subnet;
use crate::standin::Said;

/// A message that is shown.
pub(super) struct Line {
    pub(super) at: Instant,
    way: &'static str,
    text: String,
    bytes: Vec<u8>,
}

impl From<&Said> for Line {
    fn from(said: &Said) -> Self {
        let way = if said.by_kernel { "kernel → ibarr" } else { "ibarr → kernel" };
        Self { at: said.at, way, text: said.to_string(), bytes: said.bytes.clone() }
    }
}

impl From<&subnet::Said> for Line {
    /// Leaves out the zeros at the end of the MAD, which have no meaning.
    fn from(said: &subnet::Said) -> Self {
        let way = if said.by_port { "ibarr → SA" } else { "SA → ibarr" };
        let words = said.mad.chunks(4);
        let zeros = words.rev().take_while(|word| word.iter().all(|&byte| byte == 0)).count();
        let bytes = said.mad.get(..said.mad.len() - 4 * zeros).unwrap_or_default();
        let text = format!("{said} (MAD, {} bytes of zeros not shown)", 4 * zeros);
        Self { at: said.at, way, text, bytes: bytes.to_vec() }
    }
}

/// Prints the lines, and returns the time of the first.
pub(super) fn print(lines: &[Line], out: &mut impl Write) -> Result<Instant> {
    let start = lines.first().map(|first| first.at).unwrap_or_default();
    writeln!(out, "  {:>6}  {:<21}message", "ms", "way")?;
    for Line { at, way, text, bytes } in lines {
        let ms = at.since(start).as_secs_f64() * 1e3;
        writeln!(out, "  {ms:>6.2}  {way:<21}{text}")?;
        let words: Vec<_> = bytes.chunks(4).map(super::hex).collect();
        for line in words.chunks(10) {
            writeln!(out, "  {:>6}  {:<21}{}", "", "", line.join(" "))?;
        }
    }
    Ok(start)
}
