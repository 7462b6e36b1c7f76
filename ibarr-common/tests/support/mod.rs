// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Reads the files of recorded bytes.

/// The bytes of a file under `golden/`: hexadecimal; white space and lines that begin with `#` are
/// skipped.
pub(crate) fn golden(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(|line| line.bytes().filter(u8::is_ascii_hexdigit))
        .collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
