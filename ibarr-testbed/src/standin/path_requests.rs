// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Path requests of stock kernels, by the module of the kernel that asks. `vm run e` compares a kernel's
//! requests with the recording, and the unit test below those of the stand-in, so the two stay alike.

use std::fmt::Write as _;

const RECORDED: &str = include_str!("../../tests/data/path-requests.txt");

/// The recorded request of `asker`, the name of its line, in hexadecimal digits.
pub fn recorded(asker: &str) -> Option<&'static str> {
    lines().find(|(name, _)| *name == asker).map(|(_, bytes)| bytes)
}

/// A request in the form of the recording: hexadecimal digits, with zero for its sequence number
/// (`nlmsg_seq`), which differs each time.
pub fn as_recorded(request: &[u8]) -> String {
    let mut text = String::new();
    for (place, byte) in request.iter().enumerate() {
        let byte = if SEQ.contains(&place) { 0 } else { *byte };
        // Writing to a String never fails.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

const SEQ: std::ops::Range<usize> = 8..12;

fn lines() -> impl Iterator<Item = (&'static str, &'static str)> {
    let is_said = |line: &&str| !line.starts_with('#');
    RECORDED.lines().filter(is_said).filter_map(|line| line.split_once(": "))
}

#[cfg(test)]
mod tests {
    use ibarr_common::Instant;
    use ibarr_common::wire::ls::{Request, messages};

    use super::*;
    use crate::standin::{Config, Input, Kernel};

    #[test]
    fn the_stand_in_asks_for_paths_as_kernels_do() {
        let mut kernel = Kernel::new(Config::default());
        kernel.handle_input(Instant::BOOT, Input::Listener(true));
        assert_eq!(lines().count(), 5);
        for (asker, recorded) in lines() {
            let digits = recorded.as_bytes().chunks(2);
            let byte = |digits| u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap();
            let bytes: Vec<u8> = digits.map(byte).collect();
            let message = messages(&bytes).next().unwrap().unwrap();
            let Ok(Request::ResolvePath(request)) = Request::parse(&message) else {
                panic!("{asker}: {message:?}")
            };
            kernel.resolve_path(Instant::BOOT, request).unwrap();
            let said = kernel.poll_transmit().unwrap();
            assert_eq!(as_recorded(&said.bytes), recorded, "{asker}");
        }
    }
}
