// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The prebuilt objects match the sources beside them.

use std::path::Path;

#[path = "../../xtask/src/ebpf/inputs.rs"]
mod inputs;

#[test]
fn objects_are_made_from_these_sources() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let record = std::fs::read_to_string(here.join("prebuilt/toolchain.txt")).unwrap();
    let made_from = record.lines().find_map(|line| line.strip_prefix("sources "));
    let sources = inputs::digest(here.parent().unwrap()).unwrap();
    assert_eq!(made_from, Some(sources.as_str()), "stale objects: run `cargo xtask ebpf`");
}

#[test]
fn objects_are_elf_files_aligned_for_their_readers() {
    for object in [ibarr_ebpf::OBJECT, ibarr_ebpf::LOGGING_OBJECT, ibarr_ebpf::BENCH_OBJECT] {
        assert!(object.starts_with(b"\x7fELF"));
        assert_eq!(object.as_ptr().align_offset(8), 0);
    }
}

/// The daemon runs them while no trace runs.
#[test]
fn plain_programs_hold_nothing_of_those_that_report() {
    let holds = |object: &[u8], name: &str| {
        object.windows(name.len()).any(|bytes| bytes == name.as_bytes())
    };
    for name in ["AYA_LOGS", "AYA_LOG_LEVEL", "logged", "noted"] {
        assert!(holds(ibarr_ebpf::LOGGING_OBJECT, name), "{name}");
        assert!(!holds(ibarr_ebpf::OBJECT, name), "{name}");
    }
    assert!(holds(ibarr_ebpf::OBJECT, "gid_cache"));
}
