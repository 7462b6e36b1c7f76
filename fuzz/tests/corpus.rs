// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Every claim holds for all inputs of its corpus.

use std::fs;
use std::path::Path;

use ibarr_fuzz::TARGETS;

#[test]
fn every_claim_holds_for_its_corpus() {
    for (name, target) in TARGETS {
        let mut inputs = 0;
        for entry in fs::read_dir(corpus().join(name)).expect("each target has a corpus") {
            let path = entry.expect("readable").path();
            // The test harness shows this if the target panics.
            println!("{}", path.display());
            target(&fs::read(path).expect("readable"));
            inputs += 1;
        }
        assert!(inputs > 0, "the corpus of {name} is empty");
    }
}

#[test]
fn every_corpus_has_a_target() {
    for entry in fs::read_dir(corpus()).expect("readable") {
        let name = entry.expect("readable").file_name();
        assert!(TARGETS.iter().any(|(target, _)| name == *target), "{}", name.display());
    }
}

fn corpus() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}
