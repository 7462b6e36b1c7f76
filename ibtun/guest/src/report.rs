// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A scenario's report to the host, in the Test Anything Protocol: a line for each claim, and the number
//! of claims at the end.

use std::fmt::Display;
use std::process::ExitCode;

use anyhow::Result;

/// A scenario's report, written to standard output as it grows.
#[derive(Debug, Default)]
pub struct Report {
    claims: u32,
    failures: u32,
}

impl Report {
    /// Reports that `claim` holds if `proof` is `Ok`. Returns the value of the proof.
    pub fn claim<T>(&mut self, claim: &str, proof: Result<T>) -> Option<T> {
        self.claims += 1;
        match proof {
            Ok(proof) => {
                println!("ok {} - {claim}", self.claims);
                Some(proof)
            }
            Err(error) => {
                self.failures += 1;
                println!("not ok {} - {claim}", self.claims);
                Self::note(format!("{error:#}"));
                None
            }
        }
    }

    /// Reports that `claim` cannot be tried here, and why. The host counts and names it.
    pub fn skip(&mut self, claim: &str, why: &str) {
        self.claims += 1;
        println!("ok {} - {claim} # SKIP {why}", self.claims);
    }

    /// Prints a note that is no claim.
    pub fn note(note: impl Display) {
        for line in note.to_string().lines() {
            println!("# {line}");
        }
    }

    /// Prints a measured figure. The host prints it again when all scenarios have run.
    pub fn figure(figure: impl Display) {
        println!("# figure: {figure}");
    }

    /// Tells the host how many claims there were. The status is whether all hold.
    pub fn end(self) -> ExitCode {
        println!("1..{}", self.claims);
        if self.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
