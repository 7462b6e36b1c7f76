// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What is kept of an interface that goes down.

use ibarr_common::ib::{Guid, IpoibHwAddr};
use ibarr_proto::local_view::LinkType;

use super::super::ipoib::{Entry, Ipoib, entry, interface};
use super::super::message::frames;
use super::kernel::{Attr, Message, index};

const OWN: &str = "80:00:02:08:fe:c0:00:00:00:00:00:01:00:02:c9:03:00:00:00:01";
const ALIAS: &str = "80:00:02:08:fe:c0:00:00:00:00:00:01:00:00:00:00:00:00:00:05";

// Of include/uapi/linux/rtnetlink.h.
const NEWLINK: u16 = 16;
const NEWADDR: u16 = 20;
const NEWROUTE: u16 = 24;
const NEWNEIGH: u16 = 28;
const NEWNEXTHOP: u16 = 104;

fn octets(address: &str) -> [u8; 20] {
    address.parse::<IpoibHwAddr>().unwrap().octets()
}

/// Interface 4, on an alias.
fn ib0() -> Ipoib {
    Ipoib {
        ifindex: index(4),
        name: "ib0".to_owned(),
        address: ALIAS.parse().unwrap(),
        permanent: Some(Guid::new(0x0002_c903_0000_0001)),
        is_up: true,
        has_carrier: true,
        parent: None,
    }
}

/// The outcome for a message, as a name or the number of an error.
fn kept(message: &Message) -> Option<Result<Entry, i32>> {
    let bytes = message.bytes();
    let frame = frames(&bytes).next().unwrap().unwrap();
    let kept = entry(&frame, &[ib0()]).unwrap();
    kept.map(|kept| kept.map_err(|errno| errno as i32))
}

fn name(message: &Message) -> Option<String> {
    kept(message).map(|kept| kept.unwrap().name)
}

/// `struct rtmsg`, to 10.2.0.0/24 in table 77, or fd02::/16.
fn route(family: u8, protocol: u8, flags: u32) -> Message {
    let (bits, to) = if family == 2 { (24, vec![10, 2, 0, 0]) } else { (16, vec![0xfd; 16]) };
    let header = [family, bits, 0, 0, 77, protocol, 0, 1];
    let body = [&header[..], &flags.to_ne_bytes()].concat();
    Message::new(NEWROUTE, &body).with(Attr::new(1, &to)).with(Attr::u32(15, 77))
}

fn by(ifindex: u32) -> Attr {
    Attr::u32(4, ifindex)
}

#[test]
fn interface_has_its_permanent_guid_carrier_and_parent() {
    let message = Message::link(NEWLINK, 4, LinkType::INFINIBAND.get(), 0x1_1043)
        .with(Attr::text(3, "ib0"))
        .with(Attr::new(1, &octets(ALIAS)))
        .with(Attr::new(54, &octets(OWN)));
    let of = |message: &Message| {
        let bytes = message.bytes();
        interface(&frames(&bytes).next().unwrap().unwrap()).unwrap()
    };
    assert_eq!(of(&message), Some(ib0()));
    let child = message.clone().with(Attr::u32(5, 2));
    assert_eq!(of(&child).unwrap().parent, Some(index(2)));
    assert_eq!(of(&child.with(Attr::u32(37, 0))).unwrap().parent, None, "elsewhere");
    let ethernet = Message::link(NEWLINK, 4, 1, 0).with(Attr::text(3, "eth0"));
    assert_eq!(of(&ethernet), None);
}

#[test]
fn addresses_that_the_kernel_keeps_or_makes_are_left_out() {
    let of = |ip: &str, ifindex| {
        let ip: std::net::Ipv6Addr = ip.parse().unwrap();
        let message = Message::address(NEWADDR, 10, 64, 0x80, ifindex);
        name(&message.with(Attr::new(1, &ip.octets())))
    };
    assert_eq!(of("fd00::1", 4).unwrap(), "the address fd00::1 of ib0");
    assert_eq!(of("fd00::1", 5), None, "of another interface");
    assert_eq!(of("fe80::200:0:0:5", 4), None, "made of the GID");
    assert_eq!(of("fe80::1", 4).unwrap(), "the address fe80::1 of ib0");
    let v4 = Message::address(NEWADDR, 2, 24, 0x80, 4).with(Attr::new(2, &[10, 1, 0, 1]));
    assert_eq!(name(&v4), None);
}

#[test]
fn only_permanent_neighbours_are_kept() {
    let of = |state: u16| {
        let body = [&[2, 0, 0, 0, 4, 0, 0, 0][..], &state.to_ne_bytes(), &[0, 1]].concat();
        name(&Message::new(NEWNEIGH, &body)).is_some()
    };
    assert_eq!([0x80, 0x40, 0x02].map(of), [true, false, false]);
}

#[test]
fn routes_of_each_table_are_kept_but_the_kernels() {
    assert_eq!(name(&route(2, 4, 0).with(by(4))).unwrap(), "the route to 10.2.0.0/24 in table 77");
    assert_eq!(name(&route(2, 4, 0).with(by(5))), None, "by another interface");
    for protocol in [1, 2, 9] {
        assert_eq!(name(&route(2, protocol, 0).with(by(4))), None);
    }
    assert_eq!(name(&route(10, 4, 0x200).with(by(4))), None, "cloned");
}

#[test]
fn route_is_kept_as_the_kernel_takes_it() {
    // Link down, and on-link.
    let payload = |message: &Message| kept(message).unwrap().unwrap().payload;
    let (dead, on_link) = (route(2, 4, 0x14).with(by(4)), route(2, 4, 4).with(by(4)));
    assert_eq!(payload(&dead), payload(&on_link));
    let several = |flags| {
        let hop = |ifindex: u8| [8, 0, flags, 0, ifindex, 0, 0, 0];
        route(2, 4, 0).with(Attr::new(9, &[hop(5), hop(4)].concat()))
    };
    assert_eq!(payload(&several(0x11)), payload(&several(0)));
    // Of the time that is left, which is in hundredths of a second, the kernel takes seconds.
    let info = |expires: u32| Attr::new(12, &[[0; 4], [0; 4], expires.to_ne_bytes()].concat());
    let expires = route(10, 4, 0).with(by(4)).with(info(250));
    let taken = expires.clone().with(Attr::u32(23, 3)).bytes();
    assert_eq!(payload(&expires), taken[16..]);
    let for_ever = route(10, 4, 0).with(by(4)).with(info(0));
    assert_eq!(payload(&for_ever), for_ever.bytes()[16..]);
}

#[test]
fn nexthop_objects_and_interrupted_dumps_are_refused() {
    let nexthop = |ifindex| Message::new(NEWNEXTHOP, &[0; 8]).with(Attr::u32(5, ifindex));
    assert_eq!(kept(&nexthop(4)), Some(Err(libc::EOPNOTSUPP)));
    assert_eq!(kept(&nexthop(5)), None);
    assert_eq!(kept(&nexthop(5).interrupted()), Some(Err(libc::EAGAIN)));
}
