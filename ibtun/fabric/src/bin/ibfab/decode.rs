// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What a packet says to verbs: its opcode, queue pair, PSN and extended headers, in words
//! (IBA vol. 1, 9.2 to 9.4), or its management datagram.

use std::fmt;

use ibarr_common::ib::Lid;
use ibarr_common::wire::mad;
use ibarr_fabric::wire::packet::{BthWire, Packet};
use serde::Serialize;
use zerocopy::FromBytes as _;

/// A packet in words. Fields that it does not have are left out.
#[derive(Debug, Serialize)]
pub(crate) struct Decoded {
    slid: Option<u16>,
    dlid: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    gids: Option<Gids>,
    opcode: String,
    pub(crate) qp: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source_qp: Option<u32>,
    psn: u32,
    ack_request: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reth: Option<Reth>,
    #[serde(skip_serializing_if = "Option::is_none")]
    atomic: Option<Atomic>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aeth: Option<Aeth>,
    /// The value before an atomic operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    original: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    immediate: Option<u32>,
    /// The R_Key that is made invalid.
    #[serde(skip_serializing_if = "Option::is_none")]
    invalidate: Option<u32>,
    /// Length in bytes.
    payload: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    mad: Option<Mad>,
}

#[derive(Debug, Serialize)]
struct Gids {
    source: std::net::Ipv6Addr,
    destination: std::net::Ipv6Addr,
}

#[derive(Debug, Serialize)]
struct Reth {
    address: u64,
    rkey: u32,
    length: u32,
}

#[derive(Debug, Serialize)]
struct Atomic {
    address: u64,
    rkey: u32,
    swap_or_add: u64,
    compare: u64,
}

#[derive(Debug, Serialize)]
struct Aeth {
    code: Code,
    msn: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Code {
    /// With the credit count, encoded.
    Ack {
        credits: u8,
    },
    /// With the timer, encoded.
    RnrNak {
        timer: u8,
    },
    Nak {
        reason: &'static str,
    },
    Reserved {
        syndrome: u8,
    },
}

#[derive(Debug, Serialize)]
struct Mad {
    class: String,
    method: String,
    attribute: String,
    modifier: u32,
    tid: u64,
    status: u16,
}

impl Decoded {
    /// `None` if the bytes are no packet of InfiniBand's transport.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let packet = Packet::parse(bytes).ok()?;
        let bth_at = 8 + packet.grh.map_or(0, |_| 40);
        let (bth, _) = BthWire::read_from_prefix(bytes.get(bth_at..)?).ok()?;
        let mut rest = Words(bytes.get(bth_at + size_of::<BthWire>()..packet.payload_at())?);
        let [high, middle, low] = bth.psn;
        let mut this = Self {
            slid: packet.slid.map(Lid::get),
            dlid: packet.dlid.get(),
            gids: packet
                .grh
                .map(|grh| Gids { source: grh.sgid.into(), destination: grh.dgid.into() }),
            opcode: opcode(packet.opcode),
            qp: packet.destination.get(),
            source_qp: packet.source.map(ibarr_common::ib::Qpn::get),
            psn: u32::from_be_bytes([0, high, middle, low]),
            ack_request: bth.acknowledge & 0x80 != 0,
            reth: None,
            atomic: None,
            aeth: None,
            original: None,
            immediate: None,
            invalidate: None,
            payload: packet.payload.len(),
            mad: None,
        };
        this.read_extension(packet.opcode, &mut rest);
        if packet.source.is_some() && packet.destination.get() <= 1 {
            this.mad = Mad::parse(packet.payload);
        }
        Some(this)
    }

    /// Reads the headers between BTH and payload.
    fn read_extension(&mut self, opcode: u8, rest: &mut Words<'_>) {
        let operation = opcode & OPERATION;
        if opcode & SERVICE == UD {
            // The DETH: Q_Key and source.
            rest.u64();
        } else if matches!(operation, WRITE_FIRST | WRITE_ONLY | WRITE_ONLY_IMMEDIATE | READ) {
            self.reth = rest
                .u64()
                .zip(rest.u32())
                .zip(rest.u32())
                .map(|((address, rkey), length)| Reth { address, rkey, length });
        } else if matches!(operation, COMPARE_SWAP | FETCH_ADD) {
            self.atomic = rest.u64().zip(rest.u32()).zip(rest.u64()).zip(rest.u64()).map(
                |(((address, rkey), swap_or_add), compare)| Atomic {
                    address,
                    rkey,
                    swap_or_add,
                    compare,
                },
            );
        } else if matches!(operation, READ_FIRST | READ_LAST | READ_ONLY | ACK | ATOMIC_ACK) {
            self.aeth = rest.u32().map(Aeth::new);
            self.original = if operation == ATOMIC_ACK { rest.u64() } else { None };
        } else if matches!(operation, SEND_LAST_INVALIDATE | SEND_ONLY_INVALIDATE) {
            self.invalidate = rest.u32();
        }
        if NAMES.get(usize::from(operation)).is_some_and(|name| name.ends_with("Immediate")) {
            self.immediate = rest.u32();
        }
    }
}

impl fmt::Display for Decoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.slid {
            Some(slid) => write!(f, "LID {slid}")?,
            None => write!(f, "LID -")?,
        }
        write!(f, "→{} {} QP ", self.dlid, self.opcode)?;
        if let Some(source) = self.source_qp {
            write!(f, "{source}→")?;
        }
        write!(f, "{} PSN {}", self.qp, self.psn)?;
        if self.ack_request {
            write!(f, ", acknowledge requested")?;
        }
        if let Some(Reth { address, rkey, length }) = self.reth {
            write!(f, ", address 0x{address:x} R_Key 0x{rkey:x} length {length}")?;
        }
        if let Some(Atomic { address, rkey, swap_or_add, compare }) = self.atomic {
            write!(f, ", address 0x{address:x} R_Key 0x{rkey:x} value 0x{swap_or_add:x}")?;
            if self.opcode.ends_with("CmpSwap") {
                write!(f, " compare 0x{compare:x}")?;
            }
        }
        if let Some(Aeth { code, msn }) = &self.aeth {
            match code {
                Code::Ack { .. } => write!(f, ", ACK")?,
                Code::RnrNak { timer } => write!(f, ", RNR NAK timer {timer}")?,
                Code::Nak { reason } => write!(f, ", NAK {reason}")?,
                Code::Reserved { syndrome } => write!(f, ", syndrome 0x{syndrome:02x}")?,
            }
            write!(f, " MSN {msn}")?;
        }
        if let Some(original) = self.original {
            write!(f, ", original 0x{original:x}")?;
        }
        if let Some(immediate) = self.immediate {
            write!(f, ", immediate 0x{immediate:x}")?;
        }
        if let Some(rkey) = self.invalidate {
            write!(f, ", invalidates R_Key 0x{rkey:x}")?;
        }
        match &self.mad {
            Some(mad) => write!(f, ", {mad}"),
            None => write!(f, ", {} bytes", self.payload),
        }
    }
}

impl Aeth {
    fn new(word: u32) -> Self {
        let [syndrome, high, middle, low] = word.to_be_bytes();
        let value = syndrome & 0x1f;
        let code = match (syndrome >> 5, value) {
            (0, credits) => Code::Ack { credits },
            (1, timer) => Code::RnrNak { timer },
            (3, 0) => Code::Nak { reason: "PSN sequence error" },
            (3, 1) => Code::Nak { reason: "invalid request" },
            (3, 2) => Code::Nak { reason: "remote access error" },
            (3, 3) => Code::Nak { reason: "remote operational error" },
            (3, 4) => Code::Nak { reason: "invalid RD request" },
            _ => Code::Reserved { syndrome },
        };
        Self { code, msn: u32::from_be_bytes([0, high, middle, low]) }
    }
}

impl Mad {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (header, _) = mad::Header::parse(bytes).ok()?;
        let class = header.class.get();
        Some(Self {
            class: named(CLASSES, class.into()),
            method: named(METHODS, header.method.get().into()),
            attribute: named(attributes(class), header.attribute.get()),
            modifier: header.modifier,
            tid: header.tid.get(),
            status: header.status.get(),
        })
    }
}

impl fmt::Display for Mad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { class, method, attribute, modifier, tid, status } = self;
        write!(f, "{class} {method}({attribute})")?;
        if *modifier != 0 {
            write!(f, " modifier 0x{modifier:x}")?;
        }
        write!(f, " tid 0x{tid:x}")?;
        if *status != 0 {
            write!(f, " status 0x{status:x}")?;
        }
        Ok(())
    }
}

/// Big-endian numbers, one after another.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*bytes))
    }

    fn u64(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*bytes))
    }
}

fn opcode(opcode: u8) -> String {
    let service = match opcode & SERVICE {
        0x00 => "RC",
        0x20 => "UC",
        0x40 => "RD",
        UD => "UD",
        _ => return format!("opcode 0x{opcode:02x}"),
    };
    match NAMES.get(usize::from(opcode & OPERATION)) {
        Some(name) => format!("{service} {name}"),
        None => format!("opcode 0x{opcode:02x}"),
    }
}

const SERVICE: u8 = 0xe0;
const OPERATION: u8 = 0x1f;
const UD: u8 = 0x60;

const WRITE_FIRST: u8 = 0x06;
const WRITE_ONLY: u8 = 0x0a;
const WRITE_ONLY_IMMEDIATE: u8 = 0x0b;
const READ: u8 = 0x0c;
const READ_FIRST: u8 = 0x0d;
const READ_LAST: u8 = 0x0f;
const READ_ONLY: u8 = 0x10;
const ACK: u8 = 0x11;
const ATOMIC_ACK: u8 = 0x12;
const COMPARE_SWAP: u8 = 0x13;
const FETCH_ADD: u8 = 0x14;
const SEND_LAST_INVALIDATE: u8 = 0x16;
const SEND_ONLY_INVALIDATE: u8 = 0x17;

/// Operations by number (IBA vol. 1, table 38).
const NAMES: [&str; 24] = [
    "SEND First",
    "SEND Middle",
    "SEND Last",
    "SEND Last with Immediate",
    "SEND Only",
    "SEND Only with Immediate",
    "RDMA WRITE First",
    "RDMA WRITE Middle",
    "RDMA WRITE Last",
    "RDMA WRITE Last with Immediate",
    "RDMA WRITE Only",
    "RDMA WRITE Only with Immediate",
    "RDMA READ Request",
    "RDMA READ Response First",
    "RDMA READ Response Middle",
    "RDMA READ Response Last",
    "RDMA READ Response Only",
    "Acknowledge",
    "ATOMIC Acknowledge",
    "CmpSwap",
    "FetchAdd",
    "operation 0x15",
    "SEND Last with Invalidate",
    "SEND Only with Invalidate",
];

const CLASSES: &[(u16, &str)] = &[
    (0x01, "Subn"),
    (0x03, "SubnAdm"),
    (0x04, "PerfMgt"),
    (0x06, "DevMgt"),
    (0x07, "ComMgt"),
    (0x81, "SubnDirected"),
];

const METHODS: &[(u16, &str)] = &[
    (0x01, "Get"),
    (0x02, "Set"),
    (0x03, "Send"),
    (0x05, "Trap"),
    (0x06, "Report"),
    (0x07, "TrapRepress"),
    (0x12, "GetTable"),
    (0x14, "GetMulti"),
    (0x15, "Delete"),
    (0x81, "GetResp"),
    (0x86, "ReportResp"),
    (0x92, "GetTableResp"),
    (0x94, "GetMultiResp"),
    (0x95, "DeleteResp"),
];

const SUBNET: &[(u16, &str)] = &[
    (0x02, "Notice"),
    (0x10, "NodeDescription"),
    (0x11, "NodeInfo"),
    (0x12, "SwitchInfo"),
    (0x14, "GUIDInfo"),
    (0x15, "PortInfo"),
    (0x16, "P_KeyTable"),
    (0x17, "SLtoVLMappingTable"),
    (0x18, "VLArbitrationTable"),
    (0x19, "LinearForwardingTable"),
    (0x1b, "MulticastForwardingTable"),
    (0x20, "SMInfo"),
];

const ADMINISTRATION: &[(u16, &str)] = &[
    (0x01, "ClassPortInfo"),
    (0x02, "Notice"),
    (0x03, "InformInfo"),
    (0x11, "NodeRecord"),
    (0x12, "PortInfoRecord"),
    (0x31, "ServiceRecord"),
    (0x35, "PathRecord"),
    (0x38, "MCMemberRecord"),
    (0x3a, "MultiPathRecord"),
    (0xf3, "InformInfoRecord"),
];

const PERFORMANCE: &[(u16, &str)] =
    &[(0x01, "ClassPortInfo"), (0x12, "PortCounters"), (0x1d, "PortCountersExtended")];

const CONNECTION: &[(u16, &str)] = &[
    (0x01, "ClassPortInfo"),
    (0x10, "REQ"),
    (0x11, "MRA"),
    (0x12, "REJ"),
    (0x13, "REP"),
    (0x14, "RTU"),
    (0x15, "DREQ"),
    (0x16, "DREP"),
    (0x17, "SIDR_REQ"),
    (0x18, "SIDR_REP"),
    (0x19, "LAP"),
    (0x1a, "APR"),
];

fn attributes(class: u8) -> &'static [(u16, &'static str)] {
    match class {
        0x01 | 0x81 => SUBNET,
        0x03 => ADMINISTRATION,
        0x04 => PERFORMANCE,
        0x07 => CONNECTION,
        _ => &[],
    }
}

/// The name of a number, or the number.
fn named(names: &[(u16, &str)], number: u16) -> String {
    let known = names.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| format!("0x{number:02x}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A packet from its hexadecimal digits, with zeros behind them up to its length.
    fn decoded(digits: &str, zeros: usize) -> String {
        let digits: Vec<_> = digits.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
        let mut bytes: Vec<_> = digits.chunks(2).map(|pair| byte(pair).unwrap()).collect();
        bytes.resize(bytes.len() + zeros, 0);
        Decoded::parse(&bytes).unwrap().to_string()
    }

    /// Packets of rping, rstream, perftest and the kernel's connection manager, from captures of a
    /// guest with Linux 6.1; the MADs without their ends.
    #[test]
    fn recorded_packets_are_told_in_words() {
        for (digits, zeros, told) in [
            (
                "00020003000a00010c40ffff0000001d009fbb93000055d38d1850a000080900000003e8",
                0,
                "LID 1→3 RC RDMA READ Request QP 29 PSN 10468243, \
                 address 0x55d38d1850a0 R_Key 0x80900 length 1000, 0 bytes",
            ),
            (
                "00020001000d00031440ffff0000001f001c2c77000055933aeb6000000e0f00\
                 00000000000000010000000000000000",
                0,
                "LID 3→1 RC FetchAdd QP 31 PSN 1846391, \
                 address 0x55933aeb6000 R_Key 0xe0f00 value 0x1, 0 bytes",
            ),
            (
                "00020003000900011240ffff00000027001c2c7700000001e0e22e4a595da6ae",
                0,
                "LID 1→3 RC ATOMIC Acknowledge QP 39 PSN 1846391, ACK MSN 1, \
                 original 0xe0e22e4a595da6ae, 0 bytes",
            ),
            (
                "00020001000f00030b40ffff0000001780324b6100007efdf400301000090a00\
                 000000108000018000404733bd7f0000000c0b0000000800",
                0,
                "LID 3→1 RC RDMA WRITE Only with Immediate QP 23 PSN 3296097, \
                 acknowledge requested, address 0x7efdf4003010 R_Key 0x90a00 length 16, \
                 immediate 0x80000180, 16 bytes",
            ),
            (
                "00030003001100016000000000141b01fe800000000000000000000000100007\
                 fe8000000000000000000000001000011140ffff0000001100e3244f11000000",
                0,
                "LID 1→3 RC Acknowledge QP 17 PSN 14885967, ACK MSN 0, 0 bytes",
            ),
            (
                "00020001004800036440ffff00000001000000098001000000000001\
                 010702030000000000000010afe658c00010000000000000",
                232,
                "LID 3→1 UD SEND Only QP 1→1 PSN 9, ComMgt Send(REQ) tid 0x10afe658c0",
            ),
            (
                "00020003004800016440ffff000000010000003a8001000000000001\
                 01030281000000000000000b96c0f3a00035000000000000",
                232,
                "LID 1→3 UD SEND Only QP 1→1 PSN 58, \
                 SubnAdm GetResp(PathRecord) tid 0xb96c0f3a0",
            ),
        ] {
            assert_eq!(decoded(digits, zeros), told);
        }
    }

    #[test]
    fn acknowledges_say_what_they_refuse() {
        let head = "0002 0003 0007 0005 1140 ffff 0000 0012 0000 0102";
        for (aeth, says) in [
            ("1f000007", "ACK MSN 7"),
            ("2c000007", "RNR NAK timer 12 MSN 7"),
            ("60000007", "NAK PSN sequence error MSN 7"),
            ("62000007", "NAK remote access error MSN 7"),
            ("7f000007", "syndrome 0x7f MSN 7"),
        ] {
            let whole = format!("LID 5→3 RC Acknowledge QP 18 PSN 258, {says}, 0 bytes");
            assert_eq!(decoded(&format!("{head}{aeth}"), 0), whole);
        }
    }

    #[test]
    fn atomics_immediates_and_invalidations_are_told() {
        let packet = |words: &str, opcode: &str, rest: &str, zeros| {
            decoded(
                &format!("0002 0003 {words} 0005 {opcode}40 ffff 0000 0012 0000 0001 {rest}"),
                zeros,
            )
        };
        let start = "LID 5→3 RC";
        assert_eq!(
            packet("000d", "13", "0000000000001000 00000007 0000000000000002 0000000000000001", 0),
            format!(
                "{start} CmpSwap QP 18 PSN 1, \
                 address 0x1000 R_Key 0x7 value 0x2 compare 0x1, 0 bytes"
            )
        );
        assert_eq!(
            packet("0009", "12", "1f000001 0000000000000009", 0),
            format!("{start} ATOMIC Acknowledge QP 18 PSN 1, ACK MSN 1, original 0x9, 0 bytes")
        );
        assert_eq!(
            packet("000b", "0b", "0000000000001000 00000007 00000000 deadbeef", 0),
            format!(
                "{start} RDMA WRITE Only with Immediate QP 18 PSN 1, \
                 address 0x1000 R_Key 0x7 length 0, immediate 0xdeadbeef, 0 bytes"
            )
        );
        assert_eq!(
            packet("0008", "17", "00000007", 4),
            format!(
                "{start} SEND Only with Invalidate QP 18 PSN 1, invalidates R_Key 0x7, 4 bytes"
            )
        );
    }

    #[test]
    fn json_leaves_out_what_is_not_there() {
        let bytes = [0, 2, 0, 3, 0, 6, 0, 5, 4, 0x40, 255, 255, 0, 0, 0, 18, 0, 0, 0, 1];
        let decoded = Decoded::parse(&bytes).unwrap();
        assert_eq!(
            serde_json::to_string(&decoded).unwrap(),
            r#"{"slid":5,"dlid":3,"opcode":"RC SEND Only","qp":18,"psn":1,"ack_request":false,"payload":0}"#
        );
    }

    proptest! {
        /// Half of them have a right length and a right version, so that they are read further.
        #[test]
        fn any_bytes_are_told_or_refused(mut bytes: Vec<u8>, is_whole: bool) {
            if is_whole && bytes.len() >= 8 {
                bytes.truncate(bytes.len() / 4 * 4);
                let words = u16::try_from(bytes.len() / 4 + 1).unwrap().to_be_bytes();
                bytes[0] &= 0xf0;
                bytes[1] = bytes[1] & 0xf0 | 2;
                bytes[4..6].copy_from_slice(&words);
            }
            if let Some(decoded) = Decoded::parse(&bytes) {
                prop_assert!(decoded.to_string().contains("PSN"));
                serde_json::to_string(&decoded).unwrap();
            }
        }
    }
}
