// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A few of the many worlds that `cargo xtask test sim` runs, and a check that the simulation finds
//! planted bugs.

use std::thread;

use ibarr_sim::{Bug, Plan, full_trace, run, run_all};

#[test]
fn every_claim_holds_in_every_world() {
    let runs = run_all(0..12, Plan::default(), None);
    println!("{}", runs.counts);
    if let Some(failure) = runs.failure {
        panic!("{failure}");
    }
    assert_eq!(runs.seeds, 12);
    // A world without binding calls proves nothing.
    assert!(runs.counts.binding > 1_000 && runs.counts.faults > 1_000, "{:?}", runs.counts);
}

/// Number of seeds within which each bug must be found.
const SEEDS: u64 = 16;

#[test]
fn each_planted_bug_is_found_and_reported_with_seed_and_trace() {
    for bug in Bug::ALL {
        let runs = run_all(0..SEEDS, Plan::default(), Some(bug));
        let failure = runs.failure.unwrap_or_else(|| panic!("{bug} is not found"));
        println!("{bug}: {} worlds, {}", runs.seeds, failure.claim);
        let claims: &[_] = match bug {
            Bug::LostWake | Bug::SilentStart => &["resolved"],
            Bug::DoubleAnswer => &["times, answered"],
            Bug::StaleAfterChange => &["which is no longer true", "but no peer has said so"],
            Bug::StaleMap | Bug::LateMap => &["may answer from an old map"],
            Bug::EndlessLease => &["which is no longer true", "health says lease-ending"],
            Bug::UnboundedTable => &["sockets"],
            // Of a request for an address, or for a path.
            Bug::MissedDeadline => &["late", "gets no answer"],
            Bug::StalePath => &["that has expired"],
            Bug::StaleLid => &["from before the port has changed"],
            Bug::DoubleQuery => &["twice at once"],
            Bug::LateDrain => &["before the previous one is handled"],
            Bug::ForgottenDrain => &["a turn ends before"],
            Bug::EndlessRead => &["messages of the kernel"],
            Bug::ForgottenReply => &["of ACM are connected and wait"],
            Bug::PatientAcm => &["of ACM gets", "of ACM that wait"],
            Bug::ForgottenRecovery => {
                &["says sa-silent, which is not", "says sa-busy, which is not"]
            }
            Bug::UnseenSilence => &["health does not say sa-"],
            Bug::SilentMemory | Bug::OldMemory => &["but a peer said"],
            Bug::EarlySilence => &["is silent about its own address"],
            Bug::NoShares => &["questions of a user in a second"],
        };
        let told = failure.to_string();
        assert!(claims.iter().any(|claim| failure.claim.contains(claim)), "{bug}: {told}");
        assert!(told.contains(&format!("seed {}", failure.seed)), "{told}");
        assert!(failure.trace.len() > 5, "{told}");
    }
}

#[test]
fn same_seed_gives_the_same_bytes_and_times_on_every_thread() {
    let plan = Plan { nodes: 12, ..Plan::default() };
    let hash = |seed| run(seed, plan, None).unwrap_or_else(|failure| panic!("{failure}")).hash;
    let alone = [7, 8].map(hash);
    let together: Vec<_> = thread::scope(|scope| {
        let threads = [7, 8, 7, 8].map(|seed| scope.spawn(move || hash(seed)));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, [alone, alone].concat());
    assert_ne!(alone[0], alone[1]);
    assert_eq!(full_trace(7, plan, None), full_trace(7, plan, None));
}
