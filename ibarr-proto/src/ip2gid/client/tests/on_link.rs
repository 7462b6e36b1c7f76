// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Targets on the link that do not answer queries.

use std::num::NonZeroUsize;

use super::*;
use crate::ip2gid::client::tests::rig::Rig;

/// A client whose targets are all next door.
fn rig() -> Rig {
    let mut rig = Rig::new(Settings::default());
    rig.answer_routes = false;
    rig
}

fn next_door(n: u16) -> Route {
    Route { next_hop: question(n).target(), ..via(254) }
}

/// A user asks for a target next door, which is sent a query.
fn ask(rig: &mut Rig, n: u16) -> RequestId {
    let id = rig.ask_as_user(question(n));
    rig.route(n, Some(next_door(n)));
    id
}

fn met(rig: &mut Rig, n: u16, gid: Option<Gid>) {
    rig.input(Input::Neighbour { question: question(n), gid });
}

#[test]
fn silent_target_next_door_is_answered_from_the_neighbour_entry() {
    let mut rig = rig();
    let begun = rig.now;
    let id = ask(&mut rig, 5);
    rig.run(ms(150));
    assert_eq!((rig.sent.len(), rig.neighbours_asked.len()), (3, 0), "a peer is preferred");
    rig.run(ms(60));
    let (at, asked, route) = rig.neighbours_asked[0];
    assert_eq!((asked, route), (question(5), next_door(5)));
    assert!(at.since(begun) < ms(200), "{}", at.since(begun).as_millis());
    // The kernel is still resolving it: the next resend asks again.
    met(&mut rig, 5, None);
    assert_eq!(rig.answers, BTreeMap::new());
    rig.run(ms(400));
    assert_eq!(rig.neighbours_asked.len(), 2);
    met(&mut rig, 5, Some(gid(5)));
    assert_eq!(rig.found(id), Some((gid(5), Source::Neighbour)));
    assert_eq!((rig.client.load().flights, rig.count(Counter::Neighbours)), (0, 1));
    // A look-up that has ended late changes nothing.
    met(&mut rig, 5, Some(gid(6)));
    assert_eq!(rig.client.lookup_neighbour(rig.now, question(5)).unwrap().gid, Some(gid(5)));
}

#[test]
fn peer_next_door_that_answers_is_no_reason_for_a_look_up() {
    let mut rig = rig();
    let id = ask(&mut rig, 5);
    rig.run(ms(150));
    rig.reply(0, Some(gid(5)));
    rig.run(secs(3));
    assert_eq!(rig.found(id), Some((gid(5), Source::Peer)));
    assert_eq!(rig.neighbours_asked, []);
}

#[test]
fn refusal_next_door_ends_in_the_neighbour_entry_or_as_a_refusal() {
    let mut rig = rig();
    let known = ask(&mut rig, 5);
    rig.refuse(0);
    assert_eq!((rig.neighbours_asked.len(), rig.answers.len()), (1, 0));
    met(&mut rig, 5, Some(gid(5)));
    assert_eq!(rig.found(known), Some((gid(5), Source::Neighbour)));
    let unknown = ask(&mut rig, 6);
    rig.refuse(1);
    met(&mut rig, 6, None);
    assert_eq!(rig.answers[&unknown], (rig.now, Outcome::Refused));
    assert_eq!(rig.client.load().flights, 0);
}

#[test]
fn refused_target_next_door_has_the_gid_of_its_entry_else_its_last_word() {
    let mut rig = rig();
    ask(&mut rig, 5);
    rig.reply(0, Some(gid(5)));
    for (entry, found) in
        [(Some(gid(6)), (gid(6), Source::Neighbour)), (None, (gid(5), Source::Cache))]
    {
        rig.run(secs(1));
        let user = ask(&mut rig, 5);
        rig.refuse(rig.sent.len() - 1);
        assert_eq!(rig.found(user), None);
        met(&mut rig, 5, entry);
        assert_eq!(rig.found(user), Some(found));
    }
}

#[test]
fn neighbour_entry_is_used_for_less_than_fresh_for_without_another_look() {
    let mut rig = rig();
    ask(&mut rig, 5);
    rig.refuse(0);
    met(&mut rig, 5, Some(gid(5)));
    rig.run(ms(999));
    let id = rig.ask_as_user(question(5));
    rig.route(5, Some(next_door(5)));
    assert_eq!((rig.found(id), rig.sent.len()), (Some((gid(5), Source::Cache)), 2), "asked behind");
    rig.run(ms(1));
    let id = rig.ask_as_user(question(5));
    rig.refuse(1);
    met(&mut rig, 5, Some(gid(6)));
    assert_eq!(rig.found(id), Some((gid(6), Source::Neighbour)));
}

#[test]
fn neighbour_entry_answers_no_request_of_the_kernel() {
    let mut rig = rig();
    let kernel = rig.ask_for(question(5), secs(30));
    rig.route(5, Some(next_door(5)));
    rig.run(secs(2));
    let user = rig.ask_as_user(question(5));
    let asked = rig.neighbours_asked.len();
    assert_eq!(rig.neighbours_asked.last().map(|&(at, ..)| at), Some(rig.now), "at once");
    met(&mut rig, 5, Some(gid(5)));
    assert_eq!(rig.found(user), Some((gid(5), Source::Neighbour)));
    assert_eq!((rig.answers.get(&kernel), rig.client.load().waiters), (None, 1));
    assert_eq!(rig.client.lookup(rig.now, question(5)), None);
    let again = rig.ask_for(question(5), secs(1));
    assert_eq!(rig.answers.get(&again), None);
    assert!(asked > 1, "{asked}");
    rig.reply(0, Some(gid(7)));
    assert_eq!(rig.found(kernel), Some((gid(7), Source::Peer)));
    // The peer's own answer is preferred from now on.
    let later = rig.ask_as_user(question(5));
    assert_eq!(rig.found(later), Some((gid(7), Source::Cache)));
}

#[test]
fn target_behind_a_gateway_is_not_looked_for_next_door() {
    let mut rig = Rig::new(Settings::default());
    let id = rig.ask_as_user(question(5));
    rig.run(secs(2));
    rig.refuse(0);
    assert_eq!(rig.answers[&id], (rig.now, Outcome::Refused));
    assert_eq!(rig.neighbours_asked, []);
}

#[test]
fn neighbour_is_remembered_until_it_expires_is_flushed_or_leaves_its_subnet() {
    let mut rig = rig();
    let ttl = Settings::default().cache_ttl;
    let meet = |rig: &mut Rig| {
        ask(rig, 5);
        rig.refuse(rig.sent.len() - 1);
        met(rig, 5, Some(gid(5)));
    };
    let remembers = |rig: &mut Rig| rig.client.lookup_neighbour(rig.now, question(5)).is_some();
    meet(&mut rig);
    let sent = rig.sent.len();
    let id = rig.ask_as_user(question(5));
    assert_eq!((rig.found(id), rig.sent.len()), (Some((gid(5), Source::Cache)), sent));
    rig.run(ttl.saturating_sub(ms(1)));
    assert!(remembers(&mut rig));
    rig.run(ms(1));
    assert!(!remembers(&mut rig));
    meet(&mut rig);
    assert_eq!(rig.client.flush(), 1);
    assert!(!remembers(&mut rig));
    meet(&mut rig);
    let (before, after) = (gid(5).subnet_prefix(), SubnetPrefix::new(7));
    rig.renumber(before, after);
    assert!(!remembers(&mut rig));
}

#[test]
fn full_table_of_neighbours_drops_the_one_that_expires_first() {
    let max_cached = NonZeroUsize::new(2).unwrap();
    let mut rig = Rig::new(Settings { max_cached, ..Settings::default() });
    rig.answer_routes = false;
    for n in 1..=4 {
        ask(&mut rig, n);
        rig.refuse(rig.sent.len() - 1);
        met(&mut rig, n, Some(gid(n)));
        rig.run(ms(1));
    }
    let known = [1, 2, 3, 4].map(|n| rig.client.lookup_neighbour(rig.now, question(n)).is_some());
    assert_eq!(known, [false, false, true, true]);
}
