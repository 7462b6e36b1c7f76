// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The reasons why a machine does its work late: troubles, restarts of its daemon, and its own speed.

use std::collections::VecDeque;
use std::time::Duration;

use ibarr_common::Instant;

use crate::dice::{Dice, us};

/// A trouble of a machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Trouble {
    /// Nothing on the machine runs; its clock continues.
    Suspended,
    /// The daemon gets no processor time.
    Stalled,
    /// The socket to the daemon holds few datagrams.
    Squeezed,
    /// The socket to the kernel accepts no datagrams.
    Clogged,
    NudgesFail,
    NoSockets,
    /// The events of rtnetlink get lost. The daemon notices, so this delays nothing else.
    RtnetlinkLoses,
}

/// The ends of the troubles; in the past if there is none.
#[derive(Debug)]
pub(super) struct Troubles {
    until: [Instant; Trouble::RtnetlinkLoses as usize + 1],
    /// The end of anything that may delay or lose messages of this machine.
    any: Instant,
    /// When the daemon last resumed after a pause, and the sum of its pauses since then and in the
    /// minute before: its answers may be older by that much.
    slept: (Instant, Duration),
    restart: Option<Restart>,
}

/// The last replacement of the daemon.
#[derive(Debug)]
struct Restart {
    at: Instant,
    /// The next daemon has inherited the socket to the kernel.
    keeps_socket: bool,
    /// The end of other troubles.
    others_end: Instant,
    /// The end of this trouble, if there is no other.
    until: Instant,
    /// A neighbour changed while no daemon was listening, so the kernel gave up.
    woken: bool,
}

impl Troubles {
    /// No troubles, and none before for a long time.
    pub(super) fn none(now: Instant) -> Self {
        let until = [Instant::BOOT; Trouble::RtnetlinkLoses as usize + 1];
        Self { until, any: now, slept: (Instant::BOOT, Duration::ZERO), restart: None }
    }

    pub(super) fn begin(&mut self, now: Instant, trouble: Trouble, time: Duration) {
        self.until[trouble as usize] = now + time;
        if trouble != Trouble::RtnetlinkLoses {
            self.disturb(now + time);
        }
        if let Trouble::Suspended | Trouble::Stalled = trouble {
            let (until, slept) = self.slept;
            let is_recent = until + Duration::from_mins(1) >= now;
            let lately = if is_recent { slept } else { Duration::ZERO };
            self.slept = (until.max(now + time), lately + time);
        }
    }

    /// Messages may be late until `until`, for a reason that no other function records.
    pub(super) fn disturb(&mut self, until: Instant) {
        self.any = self.any.max(until);
    }

    /// The daemon has ended, and the next one works at `until`. Other troubles end at `others_end`.
    pub(super) fn restart(
        &mut self,
        now: Instant,
        keeps_socket: bool,
        others_end: Instant,
        until: Instant,
    ) {
        self.restart = Some(Restart { at: now, keeps_socket, others_end, until, woken: false });
    }

    /// A neighbour changes while no daemon runs.
    pub(super) fn neighbour_changes(&mut self) {
        if let Some(restart) = &mut self.restart {
            restart.woken |= !restart.keeps_socket;
        }
    }

    pub(super) fn has(&self, now: Instant, trouble: Trouble) -> bool {
        self.until(trouble) > now
    }

    pub(super) fn until(&self, trouble: Trouble) -> Instant {
        self.until[trouble as usize]
    }

    /// The end of all troubles that may delay or lose messages.
    pub(super) fn end(&self) -> Instant {
        self.any
    }

    /// How long the daemon did not run, if it resumed after `since`.
    pub(super) fn slept_since(&self, since: Instant) -> Duration {
        let (until, slept) = self.slept;
        if until >= since { slept } else { Duration::ZERO }
    }

    pub(super) fn was_restarted(&self) -> bool {
        self.restart.is_some()
    }

    pub(super) fn was_restarted_since(&self, since: Instant) -> bool {
        self.restart.as_ref().is_some_and(|restart| restart.at >= since)
    }

    /// How long a request of the kernel, asked at `asked_at`, waited for the next daemon, if the
    /// restart was the only trouble after `since` and the kernel did not give up.
    pub(super) fn waited(&self, asked_at: Instant, since: Instant) -> Option<Duration> {
        let restart = self.restart.as_ref()?;
        let is_alone = restart.until == self.any && restart.others_end <= since;
        (is_alone && asked_at <= restart.at && !restart.woken)
            .then(|| restart.until.since(asked_at))
    }
}

/// The speed of a machine.
#[derive(Debug)]
pub(super) struct Pace {
    /// The time from the arrival of an input until the daemon sees it.
    turn: Duration,
    /// The daemon preempts the kernel during a request, so that an immediate answer is always lost.
    is_eager: bool,
    /// One turn in so many takes a hundred times as long.
    hiccup: usize,
    /// The recent long turns: start and duration.
    hiccups: VecDeque<(Instant, Duration)>,
}

impl Pace {
    pub(super) fn new(dice: &mut Dice) -> Self {
        Self {
            is_eager: dice.once_in(10),
            turn: dice.within(us(40)..us(100)),
            hiccup: *dice.pick(&[50, 500]),
            hiccups: VecDeque::new(),
        }
    }

    pub(super) fn turn(&self) -> Duration {
        self.turn
    }

    pub(super) fn is_eager(&self) -> bool {
        self.is_eager
    }

    /// Draws the time until the next turn.
    pub(super) fn draw(&mut self, now: Instant, dice: &mut Dice) -> Duration {
        let after = dice.within(self.turn / 2..self.turn * 2);
        if !dice.once_in(self.hiccup) {
            return after;
        }
        self.hiccups.push_back((now, after * 100));
        if self.hiccups.len() > 32 {
            self.hiccups.pop_front();
        }
        after * 100
    }

    /// The sum of the long turns that began after `since`.
    pub(super) fn hiccups_since(&self, since: Instant) -> Duration {
        self.hiccups.iter().filter(|(at, _)| *at >= since).map(|(_, time)| *time).sum()
    }
}
