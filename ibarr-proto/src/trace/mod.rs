// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What happens to each request, for `ibarr trace`.
//!
//! The cores report requests and their ends, the driver reports what goes over the wire. Requests for the
//! same thing share one search, so their events form one *chain*, which ends with the last answer, or with
//! the nudge after it. While the trace is off, each report is one comparison.

mod types;

pub use types::{Caller, Event, Filter, Id, Outcome, PeerReply, Step, Subject, Tie};
