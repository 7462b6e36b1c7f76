// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The protocol by which user-space programs use a fabric without a kernel: that of ibsim (its
//! `include/ibsim.h`), which `libumad2sim.so` speaks. Datagrams pass between Unix sockets with
//! abstract names; numbers are in host byte order, except the marked ones.
//!
//! A client binds [`client_name`], and sends [`Control`]s from any socket to [`CONTROL`]. The
//! answer to [`CONNECT`] has the client's number. MADs then pass between its socket and
//! [`server_name`] as [`Datagram`]s. The upper 16 bits of a request's transaction id are
//! overwritten with that number.

use ibarr_common::ib::Lid;
use ibarr_common::wire::mad;
use zerocopy::network_endian::{U32 as Be32, U64 as Be64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Magic number of every [`Control`].
pub const MAGIC: u32 = 0xdead_beef;

/// Kind of an answer: the request was refused.
pub const ERROR: u32 = 0;
/// Kind of a request that connects its sender; [`ClientInfo`] in both directions.
pub const CONNECT: u32 = 1;
/// Kind of a request that disconnects its sender.
pub const DISCONNECT: u32 = 2;
/// Kind of a request for the vendor of the channel adapter.
pub const GET_VENDOR: u32 = 4;
/// Kind of a request for NodeInfo.
pub const GET_NODEINFO: u32 = 7;
/// Kind of a request for PortInfo, of the port in the first byte; 0 means the client's port.
pub const GET_PORTINFO: u32 = 8;
/// Kind of a request that sets or clears the IsSM bit.
pub const SET_ISSM: u32 = 9;
/// Kind of a request for the first block of the P_Key table.
pub const GET_PKEYS: u32 = 10;

/// The simulator's socket for [`Control`]s.
pub const CONTROL: &str = "ctl";

/// The abstract name of `end` of the simulator `name`. The NUL at its end is part of it.
pub fn abstract_name(name: &str, end: &str) -> String {
    format!("{name}:{end}\0")
}

/// The client's socket for MADs, by the number that the client has chosen.
pub fn client_name(id: u32) -> String {
    format!("in{id}")
}

/// The simulator's socket for MADs, by the number that it has given the client.
pub fn server_name(id: u32) -> String {
    format!("out{id}")
}

/// `struct sim_ctl`.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Control {
    /// Always [`MAGIC`].
    pub magic: u32,
    /// The client's number, from the simulator.
    pub client: u32,
    /// Kind of the request; [`ERROR`] in the answer to a refused one.
    pub kind: u32,
    /// Length of the used data in bytes.
    pub len: u32,
    /// Contents, by kind.
    pub data: [u8; 64],
}

/// `struct sim_client_info`.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct ClientInfo {
    /// In the request, the number that the client has chosen; in the answer, the simulator's.
    pub id: u32,
    /// Not used.
    pub qp: u32,
    /// Whether it is a subnet manager.
    pub is_manager: u32,
    /// Name of its node, with a NUL.
    pub node: [u8; 32],
}

/// `struct sim_request`: a MAD either way.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct Datagram {
    /// Destination LID: big-endian, in the first two bytes.
    pub dlid: [u8; 4],
    /// Source LID, in the same form.
    pub slid: [u8; 4],
    pub dqp: Be32,
    pub sqp: Be32,
    /// An errno, if the request could not be delivered.
    pub status: Be32,
    /// Always 0.
    pub padding: u32,
    /// Length of the MAD in bytes.
    pub length: Be64,
    pub mad: [u8; mad::LEN],
}

/// The LID in a LID field, if it is valid.
pub fn lid([high, low, ..]: [u8; 4]) -> Option<Lid> {
    Lid::new(u16::from_be_bytes([high, low]))
}

/// The LID field for a LID.
pub fn lid_field(lid: Option<Lid>) -> [u8; 4] {
    let [high, low] = lid.map_or(0, Lid::get).to_be_bytes();
    [high, low, 0, 0]
}

const _: () = {
    assert!(size_of::<Control>() == 80);
    assert!(size_of::<ClientInfo>() == 44);
    assert!(size_of::<Datagram>() == 288);
};
