// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Sans-IO state machines of the ibarr daemon. [`node`] connects them; [`turn`] defines in which
//! order a loop reads, drives them and writes.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod acm;
pub mod counters;
pub mod durations;
mod fault;
pub mod hash;
pub mod health;
pub mod ip2gid;
pub mod local_service;
pub mod local_view;
pub mod node;
pub mod paths;
pub mod places;
pub mod request;
pub mod requests;
pub mod responder;
pub mod retry;
pub mod sa;
pub mod shares;
pub mod timer;
pub mod trace;
pub mod turn;

pub use self::fault::Fault;
