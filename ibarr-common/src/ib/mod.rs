// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Values of the InfiniBand specification: [`Gid`], [`Guid`], [`SubnetPrefix`], [`IpoibHwAddr`],
//! [`Lid`], [`Qpn`], [`DeviceName`], [`PortNum`], [`PKey`], [`ServiceId`], [`QosClass`],
//! [`PathRecord`], and the fields of a path record: [`Sl`], [`FlowLabel`], [`Mtu`], [`Rate`],
//! [`PacketLifeTime`].

mod device;
mod gid;
mod ipoib;
mod lid;
mod path;

pub use device::{DeviceName, ParseDeviceNameError, PortNum};
pub use gid::{Gid, Guid, ParseGidError, SubnetPrefix};
pub use ipoib::{IpoibHwAddr, ParseIpoibHwAddrError, Qpn};
pub use lid::Lid;
pub use path::{
    FlowLabel, Mtu, PKey, PacketLifeTime, ParsePKeyError, PathRecord, QosClass, Rate, ServiceId, Sl,
};

crate::serde_as_text!(Gid, IpoibHwAddr, PKey);
crate::serde_as_number! {
    Lid, u16: Lid::new, Lid::get;
    Sl, u8: Sl::new, Sl::get;
    FlowLabel, u32: |label| Some(FlowLabel::from_low_bits(label)), FlowLabel::get;
}
