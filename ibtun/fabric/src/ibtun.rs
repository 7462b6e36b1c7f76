// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The interface of `/dev/ibtun`, an HCA whose wire is a file descriptor: layouts and numbers of
//! `ibtun/module/include/uapi/rdma/ibtun.h`, which documents them. Tests here compare both. The system
//! calls are made elsewhere.
//!
//! GUIDs and GID prefixes are bytes, big-endian. All else is in the machine's byte order.

#![expect(missing_docs, reason = "the header documents the fields")]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `IBTUN_VERSION`.
pub const VERSION: u8 = 1;
/// `IBTUN_MAX_PORTS`.
pub const MAX_PORTS: usize = 32;
/// `IBTUN_MAX_PKEYS`.
pub const MAX_PKEYS: usize = 128;
/// `IBTUN_MAX_GUIDS`.
pub const MAX_GUIDS: usize = 32;
/// `IBTUN_MAX_COUNTERS`.
pub const MAX_COUNTERS: usize = 32;
/// `IBTUN_MAX_PACKET`.
pub const MAX_PACKET: usize = 8 + 40 + 12 + 16 + 4 + 4096;
/// `IBTUN_MAX_RECORD`.
pub const MAX_RECORD: usize = size_of::<Record>() + MAX_PACKET;

/// `IBTUN_PACKET`.
pub const PACKET: u8 = 1;
/// `IBTUN_CAPABILITIES`.
pub const CAPABILITIES: u8 = 2;

/// `IBTUN_EVENT_CLIENT_REREGISTER`.
pub const EVENT_CLIENT_REREGISTER: u8 = 1;

/// `IBTUN_MAX_FAULTS`.
pub const MAX_FAULTS: u32 = 1_000_000;
/// `IBTUN_MAX_DELAY`: in microseconds.
pub const MAX_DELAY: u32 = 10_000_000;

/// `enum ibtun_fault_kind`: what breaks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum FaultKind {
    QueuePair = 1,
    SendCq = 2,
    ReceiveCq = 3,
    Srq = 4,
    Drop = 5,
    Duplicate = 6,
    Corrupt = 7,
    DelayAcks = 8,
}

/// `enum ibtun_behaviours`: what few HCAs do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Behaviour {
    Fields = 1,
    Numbers = 2,
    SrqOrder = 4,
}

/// `struct ibtun_record`: the header of every record.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Record {
    pub version: u8,
    pub kind: u8,
    pub port: u8,
    pub reserved: u8,
    /// Length of the record in bytes, with this header.
    pub length: u32,
    pub time: u64,
}

/// `struct ibtun_create`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(C)]
pub struct Create {
    pub version: u32,
    pub ports: u8,
    pub mtu: u8,
    pub pkeys: u16,
    pub guids: u16,
    pub reserved: u16,
    pub queue: u32,
    pub node_guid: [u8; 8],
    pub system_image_guid: [u8; 8],
    pub port_guid: [[u8; 8]; MAX_PORTS],
    pub node_desc: [u8; 64],
    pub name: [u8; 64],
}

/// `struct ibtun_port`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(C)]
pub struct Port {
    pub port: u8,
    pub state: u8,
    pub phys_state: u8,
    pub mtu: u8,
    pub lmc: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub width: u8,
    pub speed: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub reserved: u16,
    pub cap_mask: u32,
    pub reserved2: u32,
    pub gid_prefix: [u8; 8],
}

/// `struct ibtun_pkeys`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PKeys {
    pub port: u8,
    pub reserved: u8,
    pub count: u16,
    pub reserved2: u32,
    pub pkey: [u16; MAX_PKEYS],
}

/// `struct ibtun_guids`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Guids {
    pub port: u8,
    pub reserved: u8,
    pub count: u16,
    pub reserved2: u32,
    pub guid: [[u8; 8]; MAX_GUIDS],
}

/// `struct ibtun_event`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Event {
    pub port: u8,
    pub event: u8,
    pub reserved: u16,
    pub reserved2: u32,
}

/// `struct ibtun_stats`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Stats {
    pub port: u8,
    pub reserved: [u8; 7],
    pub counter: [u64; MAX_COUNTERS],
}

/// `struct ibtun_fault`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(C)]
pub struct Fault {
    pub qpn: u32,
    /// A [`FaultKind`].
    pub kind: u8,
    pub reserved: [u8; 3],
    pub count: u32,
    pub delay: u32,
}

/// `struct ibtun_behaviour`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(C)]
pub struct Behaviours {
    /// A sum of [`Behaviour`]s.
    pub on: u32,
    pub reserved: u32,
}

/// Numbers for ioctl(2): `IBTUN_CREATE` and others. Each reads or writes a value of the type that
/// its name says.
pub mod ioctl {
    use super::{Behaviours, Create, Event, Fault, Guids, PKeys, Port, Stats};

    /// Reads and writes [`Create`].
    pub const CREATE: u32 = number(READ | WRITE, 0x00, size_of::<Create>());
    pub const SET_PORT: u32 = number(WRITE, 0x01, size_of::<Port>());
    /// Reads and writes [`Port`].
    pub const GET_PORT: u32 = number(READ | WRITE, 0x02, size_of::<Port>());
    pub const SET_PKEYS: u32 = number(WRITE, 0x03, size_of::<PKeys>());
    pub const SET_GUIDS: u32 = number(WRITE, 0x04, size_of::<Guids>());
    pub const EVENT: u32 = number(WRITE, 0x05, size_of::<Event>());
    /// Reads and writes [`Stats`].
    pub const GET_STATS: u32 = number(READ | WRITE, 0x06, size_of::<Stats>());

    pub const FAULT: u32 = number(WRITE, 0x07, size_of::<Fault>());
    pub const SET_BEHAVIOUR: u32 = number(WRITE, 0x08, size_of::<Behaviours>());

    /// `IBTUN_IOC_MAGIC`.
    pub(super) const MAGIC: u32 = 0xb7;
    /// The kernel reads (`_IOC_WRITE` of include/uapi/asm-generic/ioctl.h).
    pub(super) const WRITE: u32 = 1;
    /// The kernel writes.
    pub(super) const READ: u32 = 2;

    /// `_IOC`.
    pub(super) const fn number(direction: u32, number: u32, size: usize) -> u32 {
        assert!(size < 1 << 14, "a size of 14 bits");
        #[expect(clippy::cast_possible_truncation, reason = "14 bits")]
        let size = size as u32;
        direction << 30 | size << 16 | MAGIC << 8 | number
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::mem::offset_of;

    use super::*;

    const HEADER: &str = include_str!("../../module/include/uapi/rdma/ibtun.h");

    /// The C header without comments.
    fn code() -> String {
        let mut code = String::new();
        let mut rest = HEADER;
        while let Some((before, comment)) = rest.split_once("/*") {
            code.push_str(before);
            rest = comment.split_once("*/").unwrap().1;
        }
        code + rest
    }

    /// The values of `#define`s and enumerations, if they are single numbers.
    fn constants() -> BTreeMap<String, usize> {
        let parse = |text: &str| match text.strip_prefix("0x") {
            Some(digits) => usize::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        let code = code();
        let defines = code.lines().filter_map(|line| {
            let (name, value) =
                line.strip_prefix("#define")?.trim().split_once(char::is_whitespace)?;
            Some((name.to_owned(), parse(value.trim())?))
        });
        let enumerators = code.lines().filter_map(|line| {
            let (name, value) = line.trim().strip_suffix(',')?.split_once(" = ")?;
            Some((name.to_owned(), parse(value)?))
        });
        defines.chain(enumerators).collect()
    }

    /// Name, offset and length of every field of a structure, and the length of the structure, as a
    /// C compiler lays them out.
    fn layout(name: &str) -> (Vec<(String, usize, usize)>, usize) {
        let (code, constants) = (code(), constants());
        let body =
            code.split_once(&format!("struct {name} {{")).unwrap().1.split_once('}').unwrap().0;
        let (mut fields, mut end, mut alignment) = (Vec::new(), 0_usize, 1);
        for field in body.split(';').map(str::trim).filter(|field| !field.is_empty()) {
            let (kind, name) = field.split_once(char::is_whitespace).unwrap();
            let size = match kind {
                "__u8" | "char" => 1,
                "__u16" => 2,
                "__u32" => 4,
                "__u64" | "__be64" => 8,
                _ => panic!("{field}"),
            };
            let (name, count) = match name.trim().split_once('[') {
                None => (name.trim(), 1),
                Some((name, count)) => {
                    let count = count.trim_end_matches(']');
                    (name, count.parse().unwrap_or_else(|_| constants[count]))
                }
            };
            alignment = alignment.max(size);
            let offset = end.next_multiple_of(size);
            end = offset + size * count;
            fields.push((name.to_owned(), offset, size * count));
        }
        (fields, end.next_multiple_of(alignment))
    }

    macro_rules! is_laid_out_as {
        ($header:literal, $type:ident, $($field:ident $(as $name:literal)?),*) => {{
            fn length<T>(_: impl Fn(&$type) -> &T) -> usize {
                size_of::<T>()
            }
            let fields = vec![$((
                [stringify!($field) $(, $name)?].last().unwrap().to_string(),
                offset_of!($type, $field),
                length(|all| &all.$field),
            )),*];
            assert_eq!((fields, size_of::<$type>()), layout($header), $header);
        }};
    }

    #[test]
    fn layouts_equal_the_c_header() {
        is_laid_out_as!("ibtun_record", Record, version, kind as "type", port, reserved, length, time);
        is_laid_out_as!(
            "ibtun_create",
            Create,
            version,
            ports,
            mtu,
            pkeys,
            guids,
            reserved,
            queue,
            node_guid,
            system_image_guid,
            port_guid,
            node_desc,
            name
        );
        is_laid_out_as!(
            "ibtun_port",
            Port,
            port,
            state,
            phys_state,
            mtu,
            lmc,
            sm_sl,
            subnet_timeout,
            width,
            speed,
            lid,
            sm_lid,
            reserved,
            cap_mask,
            reserved2,
            gid_prefix
        );
        is_laid_out_as!("ibtun_pkeys", PKeys, port, reserved, count, reserved2, pkey);
        is_laid_out_as!("ibtun_guids", Guids, port, reserved, count, reserved2, guid);
        is_laid_out_as!("ibtun_event", Event, port, event, reserved, reserved2);
        is_laid_out_as!("ibtun_stats", Stats, port, reserved, counter);
        is_laid_out_as!("ibtun_fault", Fault, qpn, kind, reserved, count, delay);
        is_laid_out_as!("ibtun_behaviour", Behaviours, on, reserved);
    }

    #[test]
    fn constants_equal_the_c_header() {
        let constants = constants();
        for (name, value) in [
            ("IBTUN_VERSION", VERSION.into()),
            ("IBTUN_MAX_PORTS", MAX_PORTS),
            ("IBTUN_MAX_PKEYS", MAX_PKEYS),
            ("IBTUN_MAX_GUIDS", MAX_GUIDS),
            ("IBTUN_MAX_COUNTERS", MAX_COUNTERS),
            ("IBTUN_PACKET", PACKET.into()),
            ("IBTUN_CAPABILITIES", CAPABILITIES.into()),
            ("IBTUN_EVENT_CLIENT_REREGISTER", EVENT_CLIENT_REREGISTER.into()),
            ("IBTUN_MAX_FAULTS", usize::try_from(MAX_FAULTS).unwrap()),
            ("IBTUN_MAX_DELAY", usize::try_from(MAX_DELAY).unwrap()),
            ("IBTUN_FAULT_QP", FaultKind::QueuePair as usize),
            ("IBTUN_FAULT_SEND_CQ", FaultKind::SendCq as usize),
            ("IBTUN_FAULT_RECV_CQ", FaultKind::ReceiveCq as usize),
            ("IBTUN_FAULT_SRQ", FaultKind::Srq as usize),
            ("IBTUN_FAULT_DROP", FaultKind::Drop as usize),
            ("IBTUN_FAULT_DUPLICATE", FaultKind::Duplicate as usize),
            ("IBTUN_FAULT_CORRUPT", FaultKind::Corrupt as usize),
            ("IBTUN_FAULT_DELAY_ACKS", FaultKind::DelayAcks as usize),
            ("IBTUN_BEHAVIOUR_FIELDS", Behaviour::Fields as usize),
            ("IBTUN_BEHAVIOUR_NUMBERS", Behaviour::Numbers as usize),
            ("IBTUN_BEHAVIOUR_SRQ_ORDER", Behaviour::SrqOrder as usize),
            ("IBTUN_IOC_MAGIC", usize::try_from(ioctl::MAGIC).unwrap()),
        ] {
            assert_eq!(constants.get(name), Some(&value), "{name}");
        }
        assert!(HEADER.contains("IBTUN_MAX_PACKET\t(8 + 40 + 12 + 16 + 4 + 4096)"));
    }

    #[test]
    fn ioctl_numbers_equal_the_c_header() {
        let requests = [
            ("IBTUN_CREATE", ioctl::CREATE),
            ("IBTUN_SET_PORT", ioctl::SET_PORT),
            ("IBTUN_GET_PORT", ioctl::GET_PORT),
            ("IBTUN_SET_PKEYS", ioctl::SET_PKEYS),
            ("IBTUN_SET_GUIDS", ioctl::SET_GUIDS),
            ("IBTUN_EVENT", ioctl::EVENT),
            ("IBTUN_GET_STATS", ioctl::GET_STATS),
            ("IBTUN_FAULT", ioctl::FAULT),
            ("IBTUN_SET_BEHAVIOUR", ioctl::SET_BEHAVIOUR),
        ];
        let code = code();
        let defined: Vec<_> = code
            .lines()
            .filter_map(|line| {
                let (name, value) = line.strip_prefix("#define")?.trim().split_once("\t_IO")?;
                let (letters, arguments) = value.strip_suffix(')')?.split_once('(')?;
                let [magic, number, argument] = arguments.split(", ").collect::<Vec<_>>()[..]
                else {
                    panic!("{line}")
                };
                assert_eq!(magic, "IBTUN_IOC_MAGIC", "{line}");
                let number = u32::from_str_radix(number.strip_prefix("0x")?, 16).unwrap();
                let (_, size) = layout(argument.strip_prefix("struct ")?);
                let direction = match letters {
                    "W" => ioctl::WRITE,
                    "WR" => ioctl::READ | ioctl::WRITE,
                    _ => panic!("{line}"),
                };
                Some((name.trim(), ioctl::number(direction, number, size)))
            })
            .collect();
        assert_eq!(defined, requests);
        // As printed by `strace -e raw=ioctl`.
        assert_eq!(ioctl::CREATE, 0xc1a0_b700);
    }
}
