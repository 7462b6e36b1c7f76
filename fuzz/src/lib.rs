// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The fuzz targets. Each is a claim about any bytes: a function that panics if the claim does not hold.
//! The binaries under `fuzz_targets/` pass the functions to libFuzzer. `tests/corpus.rs` replays the inputs
//! of `corpus/<target>/` under plain `cargo test`.

#![forbid(unsafe_code)]

mod acm_codec;
mod fabric;
mod ip2gid_client;
mod ip2gid_codec;
mod local_view;
mod ls_codec;
mod mad_codec;
mod packet_codec;
mod paths;
mod paths_snapshot;
mod script;
mod world;

macro_rules! targets {
    ($($target:ident),*) => {
        $(pub use $target::$target;)*

        /// Every target, by the name of its binary and its corpus.
        pub const TARGETS: &[(&str, fn(&[u8]))] = &[$((stringify!($target), $target)),*];
    };
}

targets!(
    acm_codec,
    fabric,
    ip2gid_client,
    ip2gid_codec,
    local_view,
    ls_codec,
    mad_codec,
    packet_codec,
    paths,
    paths_snapshot,
    world
);

/// Main function of a target's binary without libFuzzer: runs the claim on the files that its arguments
/// name.
///
/// # Panics
/// A file is unreadable, or the claim does not hold for it.
pub fn replay_arguments(target: fn(&[u8])) {
    for file in std::env::args_os().skip(1) {
        let data =
            std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        target(&data);
    }
}
