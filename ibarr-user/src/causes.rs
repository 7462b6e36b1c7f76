// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Reasons for people, and texts of strangers made safe to print.

use std::borrow::Cow;

pub(crate) use ibarr_proto::Fault;

/// A [`Fault`] of these words.
macro_rules! fault {
    ($($words:tt)+) => {
        $crate::causes::Fault::new(format!($($words)+))
    };
}
pub(crate) use fault;

/// Escapes the control characters in `text` for which `is_escaped` is true.
pub(crate) fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_escaped = |c: char| c.is_control() && is_escaped(c);
    if !text.contains(is_escaped) {
        return text.into();
    }
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_escaped(c) { safe.extend(c.escape_default()) } else { safe.push(c) }
    }
    safe.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_letters_are_not() {
        let text = "ib\u{1b}[2J\nacm\u{9b}é";
        assert_eq!(escaped(text, |_| true), "ib\\u{1b}[2J\\nacm\\u{9b}é");
        assert_eq!(escaped(text, |c| c != '\n'), "ib\\u{1b}[2J\nacm\\u{9b}é");
    }
}
