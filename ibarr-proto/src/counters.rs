// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Counters with a fixed set of names.
//!
//! The counters of a core are an enumeration made by [`counters!`](crate::counters!), so that
//! `status`, the metrics and their documentation can list every name, even if its count is zero.

use alloc::boxed::Box;
use alloc::string::ToString as _;
use alloc::vec;
use core::fmt;

/// A fixed set of counters, made by [`counters!`](crate::counters!).
pub trait Counter: Copy + Eq + fmt::Display + 'static {
    /// Every counter, in the order of listings.
    const ALL: &'static [Self];

    /// The position in [`Self::ALL`].
    fn index(self) -> usize;

    /// What it counts, for people: its doc lines.
    fn describe(self) -> &'static str;

    /// Whether it counts what went wrong, was dropped, or was left to others.
    fn is_error(self) -> bool;
}

/// One count for each `C`, initially zero, saturating.
#[derive(Clone, Eq, PartialEq)]
pub struct Counters<C> {
    counts: Box<[u64]>,
    of: core::marker::PhantomData<C>,
}

impl<C: Counter> Counters<C> {
    /// The count of `counter`.
    pub fn get(&self, counter: C) -> u64 {
        self.counts.get(counter.index()).copied().unwrap_or(0)
    }

    /// Every counter with its count, in the order of [`Counter::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (C, u64)> + '_ {
        C::ALL.iter().map(|&counter| (counter, self.get(counter)))
    }

    /// Adds 1.
    pub fn count(&mut self, counter: C) {
        self.add(counter, 1);
    }

    /// Undoes a [`count`](Self::count).
    pub fn take_back(&mut self, counter: C) {
        if let Some(count) = self.counts.get_mut(counter.index()) {
            *count = count.saturating_sub(1);
        }
    }

    /// Adds `n`.
    pub fn add(&mut self, counter: C, n: u64) {
        if let Some(count) = self.counts.get_mut(counter.index()) {
            *count = count.saturating_add(n);
        }
    }
}

impl<C: Counter> Default for Counters<C> {
    fn default() -> Self {
        Self { counts: vec![0; C::ALL.len()].into(), of: core::marker::PhantomData }
    }
}

impl<C: Counter> fmt::Debug for Counters<C> {
    /// Prints only the counters above zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = self.iter().filter(|&(_, count)| count > 0);
        f.debug_map()
            .entries(counted.map(|(counter, count)| (format_args!("{counter}").to_string(), count)))
            .finish()
    }
}

/// Makes an enumeration of counters: a [`Counter`] whose names are lower-case words joined by
/// hyphens, each with doc lines that [`Counter::describe`] repeats. A name stands in `error`, or in
/// `normal` if a daemon that works counts there, too. A counter without either does not compile:
///
/// ```
/// ibarr_proto::counters! {
///     /// Of a shop.
///     pub enum Counter {
///         /// Customers.
///         Customers = normal("customers"),
///         /// Thefts.
///         Thefts = error("thefts"),
///     }
/// }
/// ```
/// ```compile_fail
/// ibarr_proto::counters! {
///     /// Of a shop.
///     pub enum Counter {
///         /// Customers.
///         Customers = normal("customers"),
///         /// Thefts.
///         Thefts = "thefts",
///     }
/// }
/// ```
#[macro_export]
macro_rules! counters {
    (@is_error normal) => {
        false
    };
    (@is_error error) => {
        true
    };
    (
        $(#[$of_enum:meta])*
        pub enum $name:ident {
            $($(#[doc = $doc:literal])+ $variant:ident = $kind:ident($text:literal),)+
        }
    ) => {
        ::ibarr_common::words! {
            $(#[$of_enum])*
            $name { $($(#[doc = $doc])+ $variant = $text,)+ }
        }

        impl $crate::counters::Counter for $name {
            const ALL: &'static [Self] = &Self::ALL;

            fn index(self) -> usize {
                self as usize
            }

            fn describe(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($($doc),+).trim_ascii_start(),)+
                }
            }

            fn is_error(self) -> bool {
                match self {
                    $(Self::$variant => $crate::counters!(@is_error $kind),)+
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    counters! {
        pub enum Fruit {
            /// Apples, whatever
            /// their colour.
            Apple = normal("apple"),
            /// Pears.
            Pear = error("ripe-pear"),
        }
    }

    #[test]
    fn each_name_has_its_own_count() {
        let mut counters = Counters::default();
        counters.count(Fruit::Pear);
        counters.add(Fruit::Pear, 2);
        assert_eq!(counters.get(Fruit::Apple), 0);
        assert_eq!(counters.iter().collect::<Vec<_>>(), [(Fruit::Apple, 0), (Fruit::Pear, 3)]);
        assert_eq!(format!("{counters:?}"), r#"{"ripe-pear": 3}"#);
    }

    #[test]
    fn description_is_the_doc_text_on_one_line() {
        assert_eq!(Fruit::Apple.describe(), "Apples, whatever their colour.");
        assert_eq!(Fruit::Pear.describe(), "Pears.");
    }

    #[test]
    fn counter_says_whether_it_counts_errors() {
        assert_eq!(
            Fruit::ALL.iter().map(|fruit| fruit.is_error()).collect::<Vec<_>>(),
            [false, true]
        );
    }

    #[test]
    fn counter_saturates() {
        let mut counters = Counters::default();
        counters.add(Fruit::Apple, u64::MAX);
        counters.count(Fruit::Apple);
        assert_eq!(counters.get(Fruit::Apple), u64::MAX);
    }
}
