// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! How the kernel parses received messages (`rdma_nl_rcv_skb` in drivers/infiniband/core/netlink.c,
//! `__nla_validate_parse` in lib/nlattr.c), and how it refuses them.

/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// `NLM_F_REQUEST`.
const FLAG_REQUEST: u16 = 0x0001;
/// `NLM_F_ACK`.
const FLAG_ACK: u16 = 0x0004;
/// `NLM_F_CAPPED`.
const FLAG_CAPPED: u16 = 0x0100;
/// `RDMA_NL_LS_F_ERR`.
const FLAG_ERROR: u16 = 0x0100;
/// `NLMSG_ERROR`.
const TYPE_ERROR: u16 = 2;
/// `NLMSG_MIN_TYPE`: lower types are netlink's control messages.
const TYPE_MIN: u16 = 0x10;
/// `LS_NLA_TYPE_MAX` - 1: higher types are skipped.
const MAX_TYPE: u16 = 10;

/// A message in a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    flags: u16,
    pub(crate) seq: u32,
    port_id: u32,
    bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// Takes the next message off `rest`; a message shorter than its stated length silently ends
    /// the datagram.
    pub(crate) fn take(rest: &mut &'a [u8]) -> Option<Self> {
        let bytes = core::mem::take(rest);
        let header = bytes.first_chunk::<HEADER>()?;
        let length = usize::try_from(word(header, 0)).ok().filter(|&length| length >= HEADER)?;
        *rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Self {
            kind: half(header, 4),
            flags: half(header, 6),
            seq: word(header, 8),
            port_id: word(header, 12),
            bytes: bytes.get(..length)?,
        })
    }

    pub(crate) fn is_request(&self) -> bool {
        self.flags & FLAG_REQUEST != 0
    }

    /// Whether the error flag is set, which means that there is no answer.
    pub(crate) fn has_error(&self) -> bool {
        self.flags & FLAG_ERROR != 0
    }

    /// Whether this is a control message of netlink itself.
    pub(crate) fn is_control(&self) -> bool {
        self.kind < TYPE_MIN
    }

    /// Attributes with their whole `nla_type`. An attribute that does not fit silently ends them.
    pub(crate) fn attributes(&self) -> impl Iterator<Item = (u16, &'a [u8])> + use<'a> {
        let mut rest = self.bytes.get(HEADER..).unwrap_or_default();
        std::iter::from_fn(move || {
            let header = rest.first_chunk::<4>()?;
            let length = usize::from(half(header, 0));
            let attribute = (half(header, 2), rest.get(4..length)?);
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            Some(attribute)
        })
    }

    /// `nla_parse_deprecated`: the last attribute of type `wanted`, unless `policy` refuses the
    /// length of any attribute. Unknown types are skipped, and so are attributes with the mandatory
    /// bit, which is part of the type here.
    pub(crate) fn parse(
        &self,
        wanted: u16,
        policy: impl Fn(u16, usize) -> bool,
    ) -> Result<Option<&'a [u8]>, Refused> {
        let mut found = None;
        for (kind, value) in self.attributes() {
            // NLA_TYPE_MASK
            let kind = kind & 0x3fff;
            if !(1..=MAX_TYPE).contains(&kind) {
                continue;
            }
            if !policy(kind, value.len()) {
                return Err(Refused);
            }
            if kind == wanted {
                found = Some(value);
            }
        }
        Ok(found)
    }

    /// The length as handlers of old kernels returned it.
    pub(crate) fn len(&self) -> i32 {
        i32::try_from(self.bytes.len()).unwrap_or(i32::MAX)
    }

    /// The error message to the sender (`netlink_ack`), if there was an error or the sender wants
    /// an acknowledgement.
    pub(crate) fn verdict(&self, errno: i32) -> Option<Vec<u8>> {
        let (flags, quoted) = match errno {
            0 if self.flags & FLAG_ACK == 0 => return None,
            0 => (FLAG_CAPPED, self.bytes.get(..HEADER)?),
            _ => (0, self.bytes),
        };
        let length = u32::try_from(HEADER + 4 + quoted.len()).ok()?;
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(TYPE_ERROR.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(self.seq.to_ne_bytes());
        bytes.extend(self.port_id.to_ne_bytes());
        bytes.extend((-errno).to_ne_bytes());
        bytes.extend(quoted);
        Some(bytes)
    }
}

/// The kernel refuses the length of an attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused;

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    word.copied().map(u32::from_ne_bytes).unwrap_or_default()
}

fn half(bytes: &[u8], at: usize) -> u16 {
    let half = bytes.get(at..).and_then(|rest| rest.first_chunk::<2>());
    half.copied().map(u16::from_ne_bytes).unwrap_or_default()
}
