// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! How programs of user space get to a fabric without a kernel: ibsim's protocol (its
//! `include/ibsim.h`), which `libumad2sim.so` speaks. Datagrams between Unix sockets with abstract names,
//! numbers in the machine's byte order but for those marked.
//!
//! A client binds [`client_name`] and sends [`Control`]s from a socket of any name to [`CONTROL`]; the
//! answer to [`CONNECT`] says its number, and MADs pass between its socket and [`server_name`] as
//! [`Datagram`]s. The upper 16 bits of the transaction of a request are overwritten with that number.

use ibarr_common::ib::Lid;
use ibarr_common::wire::mad;
use zerocopy::network_endian::{U32 as Be32, U64 as Be64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// In every [`Control`].
pub const MAGIC: u32 = 0xdead_beef;

/// The answer: it was refused.
pub const ERROR: u32 = 0;
/// Whoever sends it is a client from now on; [`ClientInfo`] both ways.
pub const CONNECT: u32 = 1;
/// And no longer.
pub const DISCONNECT: u32 = 2;
/// Who made the channel adapter.
pub const GET_VENDOR: u32 = 4;
/// NodeInfo.
pub const GET_NODEINFO: u32 = 7;
/// PortInfo of the port in the first byte; 0 is the client's.
pub const GET_PORTINFO: u32 = 8;
/// Whether it is a subnet manager.
pub const SET_ISSM: u32 = 9;
/// The first block of the table of P_Keys.
pub const GET_PKEYS: u32 = 10;

/// The simulator's socket for [`Control`]s.
pub const CONTROL: &str = "ctl";

/// The abstract name of `end` of the simulator `name`. The NUL behind belongs to it.
pub fn abstract_name(name: &str, end: &str) -> String {
    format!("{name}:{end}\0")
}

/// The client's end for MADs, by the number it has given itself.
pub fn client_name(id: u32) -> String {
    format!("in{id}")
}

/// The simulator's end, by the number it has given the client.
pub fn server_name(id: u32) -> String {
    format!("out{id}")
}

/// `struct sim_ctl`.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Control {
    /// [`MAGIC`].
    pub magic: u32,
    /// The client, by the number that the simulator has given it.
    pub client: u32,
    /// What is wanted; [`ERROR`] in the answer if it is refused.
    pub kind: u32,
    /// Bytes of the data that count.
    pub len: u32,
    /// What the kind says.
    pub data: [u8; 64],
}

/// `struct sim_client_info`.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct ClientInfo {
    /// The client's number for itself; in the answer the simulator's.
    pub id: u32,
    /// Not used.
    pub qp: u32,
    /// Whether it is a subnet manager.
    pub is_manager: u32,
    /// The node it is on, and a NUL.
    pub node: [u8; 32],
}

/// `struct sim_request`: a MAD either way.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Datagram {
    /// Where to: big-endian, in the first two bytes.
    pub dlid: [u8; 4],
    /// Where from.
    pub slid: [u8; 4],
    /// To which queue pair.
    pub dqp: Be32,
    /// From which.
    pub sqp: Be32,
    /// An errno, if it comes back.
    pub status: Be32,
    /// 0.
    pub padding: u32,
    /// Bytes of the MAD.
    pub length: Be64,
    /// The MAD.
    pub mad: [u8; mad::LEN],
}

/// What stands in the field for a LID.
pub fn lid([high, low, ..]: [u8; 4]) -> Option<Lid> {
    Lid::new(u16::from_be_bytes([high, low]))
}

/// The field for a LID.
pub fn lid_field(lid: Option<Lid>) -> [u8; 4] {
    let [high, low] = lid.map_or(0, Lid::get).to_be_bytes();
    [high, low, 0, 0]
}

const _: () = {
    assert!(size_of::<Control>() == 80);
    assert!(size_of::<ClientInfo>() == 44);
    assert!(size_of::<Datagram>() == 288);
};
