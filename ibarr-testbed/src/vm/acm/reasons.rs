// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Why replies of `ibarr` differ from those of ibacm.

use std::fmt;

/// A field that differs, in the reply to one request.
#[derive(Debug)]
pub(super) struct Difference {
    pub(super) what: String,
    pub(super) field: String,
    pub(super) theirs: String,
    pub(super) ours: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, field, theirs, ours, .. } = self;
        write!(f, "{what}: {field}: ibacm {theirs}, ibarr {ours}")
    }
}

/// A reason, and which differences it explains.
pub(super) struct Reason {
    pub(super) why: &'static str,
    explains: fn(&Difference) -> bool,
}

/// Statuses of the protocol.
const OK: &str = "status 00";
const NO_DATA: &str = "status 03";
const TIMED_OUT: &str = "status 06";
const SOURCE: &str = "status 07";
const SOURCE_TYPE: &str = "status 08";
const DESTINATION: &str = "status 09";
const DESTINATION_TYPE: &str = "status 0a";
/// `ENETUNREACH` of the kernel.
const NO_ROUTE: &str = "status 65";

/// All reasons; the first one that explains a difference counts.
pub(super) const REASONS: [Reason; 19] = [
    Reason {
        why: "ibacm sets bit 7 of the opcode where it refuses without a search; ibarr in no reply about paths. \
              No client reads it",
        explains: |it| it.field == "opcode" && it.is("81", "01"),
    },
    Reason {
        why: "ibacm repeats the number of an endpoint that it does not have",
        explains: |it| it.field == "data" && it.what.starts_with("counters of"),
    },
    Reason {
        why: "to itself, ibacm gives MTU, rate and life time without the selector that says `exactly`",
        explains: |it| {
            let is_one = ["mtu", "rate", "life"].iter().any(|name| it.field.ends_with(name));
            let [theirs, ours] = [&it.theirs, &it.ours].map(|hex| u8::from_str_radix(hex, 16).ok());
            is_one && theirs.is_some() && theirs.map(|theirs| theirs | 0x80) == ours
        },
    },
    Reason {
        why: "to itself, ibarr gives the least MTU of a port, 2048, because sysfs does not say which it has",
        explains: |it| {
            it.field.ends_with("mtu") && it.ours == "84" && ["05", "85"].contains(&&*it.theirs)
        },
    },
    Reason {
        why: "ibarr remembers no answer about a LID: a LID may get another port",
        explains: |it| {
            it.what.contains("LID") && it.what.ends_with("from memory") && it.is(OK, NO_DATA)
        },
    },
    Reason {
        why: "an address may have moved: ibarr remembers its GID for a second",
        explains: |it| {
            // A name is one of an address.
            let is_address =
                ["10.", "fd00:", "node"].iter().any(|begin| it.what.starts_with(begin));
            is_address && it.what.ends_with("from memory") && it.is(OK, NO_DATA)
        },
    },
    Reason {
        why: "a source that no node has: ibacm knows only names of its file, ibarr has not asked the resolver yet",
        explains: |it| it.what.ends_with("from nowhere, from memory") && it.is(SOURCE, NO_DATA),
    },
    Reason {
        why: "without a route, ibacm's status is an error number of the kernel",
        explains: |it| it.is(NO_ROUTE, DESTINATION),
    },
    Reason {
        why: "without a route, ibarr refuses; ibacm asks all nodes and waits",
        explains: |it| {
            let targets = ["192.0.2.1 from", "wrong: the address 0.0.0.0"];
            targets.iter().any(|it_is| it.what.starts_with(it_is)) && it.is(TIMED_OUT, DESTINATION)
        },
    },
    Reason {
        why: "a path without a source may start at any port of this machine: ibacm takes its first, ibarr the first \
              whose SA it can ask",
        explains: |it| {
            let is_of_source = ["sgid", "slid", "life"].iter().any(|name| it.field.ends_with(name));
            let is_an_end = it.what.starts_with("the GID of") || it.what.starts_with("the LID of");
            is_an_end && !it.what.contains(", from a") && is_of_source
        },
    },
    Reason {
        why: "ibacm ignores a record that is neither source nor destination; ibarr refuses it",
        explains: |it| it.what == "wrong: a source without its flag" && it.is(OK, DESTINATION_TYPE),
    },
    Reason {
        why: "both refuse two sources or two destinations; ibacm blames the address, ibarr the record",
        explains: |it| {
            it.what.starts_with("wrong:")
                && (it.is(SOURCE, SOURCE_TYPE)
                    || it.is(DESTINATION, DESTINATION_TYPE)
                    || it.is(DESTINATION, SOURCE_TYPE))
        },
    },
    Reason {
        why: "ibacm takes what one recv(2) returns for a message; ibarr waits for as many bytes as the header says, \
              and closes the connection if no request is so long",
        explains: |it| {
            let lengths = [
                "a shorter length",
                "no record",
                "half a header",
                "half a record",
                "a longer length",
            ];
            let is_length =
                lengths.iter().any(|length| it.what.starts_with(&format!("wrong: {length}")));
            is_length && it.field == "outcome"
        },
    },
    Reason {
        why: "a name without a source: ibacm refuses the type, ibarr chooses the source",
        explains: |it| it.what.contains(" from anywhere") && it.theirs == DESTINATION_TYPE,
    },
    Reason {
        why: "a name that no node has: ibacm asks all nodes, ibarr the system's resolver",
        explains: |it| it.what.starts_with("nowhere from") && it.ours.starts_with("status"),
    },
    Reason {
        why: "ibarr knows no counters of a name",
        explains: |it| it.what == "counters of node1" && it.is(OK, SOURCE),
    },
    Reason {
        why: "endpoints are numbered over all ports by ibarr, and at each port by ibacm",
        explains: |it| {
            it.what.starts_with("endpoint") || it.what.starts_with("counters of endpoint")
        },
    },
    Reason {
        why: "after an answer of the SA itself, ibacm repeats the flags of the request",
        explains: |it| it.what.ends_with("by the SA") && it.field.ends_with("flags"),
    },
    Reason {
        why: "a path that the SA refuses: ibacm repeats the record behind the status, ibarr sends the status alone",
        explains: |it| it.what.ends_with("by the SA") && (it.ours == "-" || it.field == "length"),
    },
];

impl Difference {
    fn is(&self, theirs: &str, ours: &str) -> bool {
        self.theirs == theirs && self.ours == ours
    }
}

/// Why it differs, if that is known.
pub(super) fn of(difference: &Difference) -> Option<&'static str> {
    REASONS.iter().find(|reason| (reason.explains)(difference)).map(|reason| reason.why)
}
