// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! See [`ibarr_fuzz::world`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| ibarr_fuzz::world(data));

#[cfg(not(fuzzing))]
fn main() {
    ibarr_fuzz::replay_arguments(ibarr_fuzz::world);
}
