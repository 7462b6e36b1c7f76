// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Gives an IPoIB interface another GID, as steps that a machine carries out, and that lead back if one fails.
//!
//! The kernel changes the hardware address of an interface only while it is down (`ipoib_set_mac`), changes those of
//! its children with it, and forgets addresses and routes of each of them then.

use std::fmt;
use std::io;

use ibarr_common::ib::IpoibHwAddr;
use thiserror::Error;

use crate::transport::rtnetlink::ipoib::{Entry, Ipoib};

/// What the steps need of the kernel.
pub(super) trait Machine {
    fn set_up(&mut self, link: &Ipoib, up: bool) -> io::Result<()>;
    fn set_address(&mut self, link: &Ipoib, address: IpoibHwAddr) -> io::Result<()>;
    fn has_carrier(&mut self, link: &Ipoib) -> io::Result<bool>;
    /// Makes it again, if it is not there.
    fn remember(&mut self, entry: &Entry) -> io::Result<()>;
    /// Lets a moment pass.
    fn pause(&mut self);
    /// Whether the user wants the command to end, since the last call.
    fn take_interrupt(&mut self) -> bool;
    /// Tells the user what is done now.
    fn say(&mut self, step: &dyn fmt::Display);
}

/// A change of an interface.
pub(super) struct Change {
    /// The interface, then its children, as they are now.
    pub(super) links: Vec<Ipoib>,
    /// What the kernel forgets of them.
    pub(super) entries: Vec<Entry>,
    /// The new hardware address of the first.
    pub(super) address: IpoibHwAddr,
    /// How often to look for a carrier, and to make an entry, before it is given up.
    pub(super) pauses: u32,
}

#[derive(Clone, Copy)]
pub(super) enum Step<'a> {
    Down(&'a Ipoib),
    Address(&'a Ipoib, IpoibHwAddr),
    Up(&'a Ipoib),
    Carrier(&'a Ipoib),
    Remember(&'a [Entry]),
}

impl fmt::Display for Step<'_> {
    /// As a command, or as a comment where there is none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down(link) => write!(f, "ip link set {} down", link.name),
            Self::Address(link, address) => {
                write!(f, "ip link set {} address {address}", link.name)
            }
            Self::Up(link) => write!(f, "ip link set {} up", link.name),
            Self::Carrier(link) => write!(f, "# wait for the carrier of {}", link.name),
            Self::Remember(entries) => {
                let names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
                write!(f, "# make again: {}", names.join(", "))
            }
        }
    }
}

/// Why an interface has not got its new GID.
#[derive(Debug, Error)]
pub(super) enum ChangeError {
    #[error("{step}: {why}; nothing was changed")]
    NotBegun { step: String, why: Why },
    #[error("{step}: {why}; {name} has its old GID again, with its addresses and routes")]
    Undone { name: String, step: String, why: Why },
    #[error("{step}: {why}; that was undone, but {}", .left.join(", "))]
    NotUndone { step: String, why: Why, left: Vec<String> },
}

/// Why a step failed.
#[derive(Debug, Error)]
pub(super) enum Why {
    #[error("{0}")]
    Kernel(#[from] io::Error),
    #[error("{0} cannot be made again: {1}")]
    NotRemembered(String, io::Error),
    #[error("it has none")]
    NoCarrier,
    #[error("interrupted")]
    Interrupted,
}

impl Change {
    /// Children go down first, and come up last.
    pub(super) fn steps(&self) -> Vec<Step<'_>> {
        self.steps_to(self.address, true)
    }

    /// On the way back the interface need not have a carrier that it did not have.
    fn steps_to(&self, address: IpoibHwAddr, is_new: bool) -> Vec<Step<'_>> {
        let Some((one, children)) = self.links.split_first() else { return Vec::new() };
        let up = |link: &&Ipoib| link.is_up;
        let mut steps: Vec<_> = self.links.iter().rev().filter(up).map(Step::Down).collect();
        steps.push(Step::Address(one, address));
        steps.extend(children.iter().map(|child| Step::Address(child, child.address)));
        steps.extend(self.links.iter().filter(up).map(Step::Up));
        if one.is_up {
            // The kernel has set all children up with their parent (`ipoib_open`).
            steps.extend(children.iter().filter(|child| !child.is_up).map(Step::Down));
        }
        let awaited = self.links.iter().filter(up).enumerate();
        let awaited = awaited.filter(|(n, link)| link.has_carrier || *n == 0 && is_new);
        steps.extend(awaited.map(|(_, link)| Step::Carrier(link)));
        if !self.entries.is_empty() {
            steps.push(Step::Remember(&self.entries));
        }
        steps
    }

    /// Carries out the steps. If one fails, or the user interrupts, carries out those to the old GID.
    pub(super) fn run(&self, machine: &mut impl Machine) -> Result<(), ChangeError> {
        for (n, step) in self.steps().into_iter().enumerate() {
            machine.say(&step);
            let Err(why) = self.carry_out(machine, step, true) else { continue };
            let step = step.to_string();
            return Err(match n {
                0 => ChangeError::NotBegun { step, why },
                _ => self.undo(machine, step, why),
            });
        }
        Ok(())
    }

    /// One step that fails does not keep the others from being made.
    fn undo(&self, machine: &mut impl Machine, failed: String, why: Why) -> ChangeError {
        let mut left = Vec::new();
        for step in self.links.first().map_or(Vec::new(), |one| self.steps_to(one.address, false)) {
            machine.say(&step);
            if let Err(why) = self.carry_out(machine, step, false) {
                left.push(format!("{step}: {why}"));
            }
        }
        match self.links.first() {
            Some(one) if left.is_empty() => {
                ChangeError::Undone { name: one.name.clone(), step: failed, why }
            }
            _ => ChangeError::NotUndone { step: failed, why, left },
        }
    }

    fn carry_out(
        &self,
        machine: &mut impl Machine,
        step: Step<'_>,
        may_end: bool,
    ) -> Result<(), Why> {
        if may_end && machine.take_interrupt() {
            return Err(Why::Interrupted);
        }
        match step {
            Step::Down(link) => Ok(machine.set_up(link, false)?),
            Step::Address(link, address) => Ok(machine.set_address(link, address)?),
            Step::Up(link) => Ok(machine.set_up(link, true)?),
            Step::Carrier(link) => self.repeat(machine, may_end, |machine| {
                if machine.has_carrier(link)? { Ok(()) } else { Err(Why::NoCarrier) }
            }),
            // The kernel takes a route only after that to its gateway, and an address as its source only after the
            // detection of duplicates.
            Step::Remember(entries) => {
                let mut left: Vec<_> = entries.iter().collect();
                self.repeat(machine, may_end, |machine| {
                    let mut last = None;
                    left.retain(|entry| {
                        machine.remember(entry).map_err(|e| last = Some(e)).is_err()
                    });
                    let names: Vec<_> = left.iter().map(|entry| entry.name.as_str()).collect();
                    last.map_or(Ok(()), |error| Err(Why::NotRemembered(names.join(", "), error)))
                })
            }
        }
    }

    fn repeat<M: Machine>(
        &self,
        machine: &mut M,
        may_end: bool,
        mut attempt: impl FnMut(&mut M) -> Result<(), Why>,
    ) -> Result<(), Why> {
        let mut outcome = attempt(machine);
        for _ in 0..self.pauses {
            if outcome.is_ok() {
                break;
            }
            if may_end && machine.take_interrupt() {
                return Err(Why::Interrupted);
            }
            machine.pause();
            outcome = attempt(machine);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ibarr_common::IfIndex;

    use super::*;

    const OWN: &str = "80:00:02:08:fe:c0:00:00:00:00:00:01:00:02:c9:03:00:00:00:01";
    const ALIAS: &str = "80:00:02:08:fe:c0:00:00:00:00:00:01:00:00:00:00:00:00:00:05";

    /// An interface of the stand-in kernel.
    #[derive(Clone, Debug, Eq, PartialEq)]
    struct State {
        address: IpoibHwAddr,
        is_up: bool,
        has_entry: bool,
    }

    /// Behaves as IPoIB does: what is done to a parent is done to its children.
    struct Fake {
        links: Vec<State>,
        /// Hardware addresses without a carrier.
        dead: Vec<IpoibHwAddr>,
        calls: usize,
        /// The calls that fail.
        fails: BTreeSet<usize>,
        /// The question for an interrupt that is answered with yes, counted down.
        interrupt: Option<usize>,
        said: Vec<String>,
    }

    impl Fake {
        fn of(change: &Change) -> Self {
            let state = |link: &Ipoib| State {
                address: link.address,
                is_up: link.is_up,
                has_entry: link.is_up,
            };
            let links = change.links.iter().map(state).collect();
            let (dead, fails, said) = (Vec::new(), BTreeSet::new(), Vec::new());
            Self { links, dead, calls: 0, fails, interrupt: None, said }
        }

        fn call(&mut self) -> io::Result<()> {
            self.calls += 1;
            if self.fails.contains(&self.calls) { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
        }

        fn family(&mut self, link: &Ipoib) -> &mut [State] {
            let n = usize::try_from(link.ifindex.get() - 1).unwrap();
            if n == 0 { &mut self.links } else { &mut self.links[n..=n] }
        }
    }

    impl Machine for Fake {
        fn set_up(&mut self, link: &Ipoib, up: bool) -> io::Result<()> {
            self.call()?;
            for state in self.family(link) {
                state.has_entry &= up;
                state.is_up = up;
            }
            Ok(())
        }

        fn set_address(&mut self, link: &Ipoib, address: IpoibHwAddr) -> io::Result<()> {
            self.call()?;
            let family = self.family(link);
            assert!(!family[0].is_up, "the kernel refuses: EBUSY");
            for state in family {
                state.address = address;
            }
            Ok(())
        }

        fn has_carrier(&mut self, link: &Ipoib) -> io::Result<bool> {
            self.call()?;
            let address = self.family(link)[0].address;
            Ok(!self.dead.contains(&address))
        }

        fn remember(&mut self, entry: &Entry) -> io::Result<()> {
            self.call()?;
            let n: usize = entry.name.parse().unwrap();
            self.links[n].has_entry = true;
            Ok(())
        }

        fn pause(&mut self) {}

        fn take_interrupt(&mut self) -> bool {
            let now = self.interrupt == Some(0);
            self.interrupt = self.interrupt.and_then(|left| left.checked_sub(1));
            now
        }

        fn say(&mut self, step: &dyn fmt::Display) {
            self.said.push(step.to_string());
        }
    }

    fn link(ifindex: u32, is_up: bool) -> Ipoib {
        Ipoib {
            ifindex: IfIndex::new(ifindex).unwrap(),
            name: format!("ib{}", ifindex - 1),
            address: OWN.parse().unwrap(),
            permanent: None,
            is_up,
            has_carrier: is_up,
            parent: IfIndex::new(ifindex - 1),
        }
    }

    /// An interface with two children, one of them up.
    fn change() -> Change {
        let entry = |n: &str| Entry::named(n);
        Change {
            links: vec![link(1, true), link(2, true), link(3, false)],
            entries: vec![entry("0"), entry("1")],
            address: ALIAS.parse().unwrap(),
            pauses: 3,
        }
    }

    #[test]
    fn interface_alone_gets_the_new_address() {
        let change = change();
        let mut fake = Fake::of(&change);
        let mut wanted = fake.links.clone();
        wanted[0].address = change.address;
        change.run(&mut fake).unwrap();
        assert_eq!(fake.links, wanted);
        assert_eq!(
            fake.said,
            [
                "ip link set ib1 down",
                "ip link set ib0 down",
                &format!("ip link set ib0 address {ALIAS}"),
                &format!("ip link set ib1 address {OWN}"),
                &format!("ip link set ib2 address {OWN}"),
                "ip link set ib0 up",
                "ip link set ib1 up",
                "ip link set ib2 down",
                "# wait for the carrier of ib0",
                "# wait for the carrier of ib1",
                "# make again: 0, 1",
            ]
        );
    }

    #[test]
    fn each_single_step_that_fails_is_undone() {
        let change = change();
        let mut whole = Fake::of(&change);
        let before = whole.links.clone();
        change.run(&mut whole).unwrap();
        let after = whole.links.clone();
        for failing in 1..=whole.calls {
            let mut fake = Fake::of(&change);
            fake.fails.insert(failing);
            let outcome = change.run(&mut fake);
            // What is tried again succeeds at the second attempt.
            let wanted = if outcome.is_ok() { &after } else { &before };
            assert_eq!(fake.links, *wanted, "call {failing}: {outcome:?}");
            assert_eq!(outcome.is_ok(), failing > 8, "call {failing}: {outcome:?}");
        }
    }

    #[test]
    fn interrupt_before_any_step_is_undone() {
        let change = change();
        let (before, steps) = (Fake::of(&change).links, change.steps().len());
        for interrupt in 0..steps {
            let mut fake = Fake::of(&change);
            fake.interrupt = Some(interrupt);
            let error = change.run(&mut fake).unwrap_err();
            assert!(error.to_string().contains("interrupted"), "{error}");
            assert_eq!(fake.links, before, "interrupt {interrupt}");
        }
    }

    #[test]
    fn gid_without_a_carrier_is_given_up() {
        let change = change();
        let mut fake = Fake::of(&change);
        let before = fake.links.clone();
        fake.dead.push(change.address);
        let error = change.run(&mut fake).unwrap_err();
        assert_eq!(
            error.to_string(),
            "# wait for the carrier of ib0: it has none; ib0 has its old GID again, with its addresses and routes"
        );
        assert_eq!(fake.links, before);
    }

    #[test]
    fn interface_that_is_down_stays_down() {
        let change = Change { links: vec![link(1, false)], entries: Vec::new(), ..change() };
        let mut fake = Fake::of(&change);
        change.run(&mut fake).unwrap();
        assert_eq!(fake.said, [format!("ip link set ib0 address {ALIAS}")]);
    }

    #[test]
    fn what_cannot_be_undone_is_named() {
        let change = change();
        let mut fake = Fake::of(&change);
        // The new address, then the second entry in each attempt to make it again.
        fake.fails.insert(3);
        fake.fails.extend(14..30);
        let error = change.run(&mut fake).unwrap_err();
        assert!(
            matches!(&error, ChangeError::NotUndone { left, .. } if !left.is_empty()),
            "{error}"
        );
        assert!(
            error.to_string().contains("# make again: 0, 1: 0, 1 cannot be made again"),
            "{error}"
        );
    }
}
