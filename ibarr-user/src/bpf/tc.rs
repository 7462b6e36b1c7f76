// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! tc operations that aya lacks: reading the filters of an interface, and removing its clsact
//! qdisc.

use std::io::Cursor;

use ibarr_common::IfIndex;
use neli::FromBytesWithInput;
use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Rtm, Tca};
use neli::rtnl::{Tcmsg, TcmsgBuilder};
use neli::types::RtBuffer;

use crate::transport::rtnetlink::message::{self, ALL_SET, Malformed, attribute, nested, rtattr};
use crate::transport::rtnetlink::{Error, ask};

/// The ingress filter with this priority and handle.
pub(super) fn filter_at(
    ifindex: IfIndex,
    priority: u16,
    handle: u32,
) -> Result<Option<Filter>, Error> {
    let filters = filters(ifindex, INGRESS)?;
    Ok(filters.into_iter().find(|f| (f.priority, f.handle) == (priority, handle)))
}

/// Whether the clsact qdisc has any filter, at ingress or egress.
pub(super) fn has_filters(ifindex: IfIndex) -> Result<bool, Error> {
    Ok(!filters(ifindex, INGRESS)?.is_empty() || !filters(ifindex, EGRESS)?.is_empty())
}

/// Removes the clsact qdisc with all its filters. A missing qdisc is no error.
pub(super) fn remove_clsact(ifindex: IfIndex) -> Result<(), Error> {
    let kind = rtattr(Tca::Kind, c"clsact".to_bytes_with_nul());
    let message = tcmsg(ifindex, CLSACT_HANDLE, CLSACT_PARENT)
        .rtattrs(RtBuffer::from_iter([kind]))
        .build()
        .expect(ALL_SET);
    match ask(&message::request(Rtm::Delqdisc, NlmF::ACK, 0, message), |_| Ok(None::<()>)) {
        Err(Error::Refused(error))
            if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) =>
        {
            Ok(())
        }
        result => result.map(drop),
    }
}

pub(super) struct Filter {
    priority: u16,
    handle: u32,
    /// Empty if it is not a BPF filter.
    pub(super) name: String,
    /// Id of its program.
    pub(super) program: Option<u32>,
}

fn filters(ifindex: IfIndex, parent: u32) -> Result<Vec<Filter>, Error> {
    let message = tcmsg(ifindex, 0, parent).build().expect(ALL_SET);
    ask(&message::request(Rtm::Gettfilter, NlmF::DUMP, 0, message), |frame| {
        let (payload, len) = (frame.payload, frame.payload.len());
        let message = Tcmsg::from_bytes_with_input(&mut Cursor::new(payload), len)
            .map_err(|_| Malformed::Attributes)?;
        // The dump also lists chains of filters, which have no handle.
        if *message.tcm_handle() == 0 {
            return Ok(None);
        }
        let options = attribute(message.rtattrs(), Tca::Options).unwrap_or_default();
        let options = nested::<u16>(options)?;
        let name = attribute(&options, TCA_BPF_NAME).unwrap_or_default();
        let name = name.strip_suffix(b"\0").unwrap_or(name);
        let program = attribute(&options, TCA_BPF_ID);
        Ok(Some(Filter {
            // The priority is in the upper half, the protocol in the lower.
            priority: u16::try_from(*message.tcm_info() >> 16).unwrap_or_default(),
            handle: *message.tcm_handle(),
            name: String::from_utf8_lossy(name).into_owned(),
            program: program.and_then(|id| id.try_into().ok()).map(u32::from_ne_bytes),
        }))
    })
}

fn tcmsg(ifindex: IfIndex, handle: u32, parent: u32) -> TcmsgBuilder {
    TcmsgBuilder::default()
        .tcm_family(0)
        .tcm_ifindex(ifindex.get().cast_signed())
        .tcm_handle(handle)
        .tcm_parent(parent)
        .tcm_info(0)
}

/// `TC_H_CLSACT`, which is also the handle of the qdisc's major part
/// (include/uapi/linux/pkt_sched.h).
const CLSACT_PARENT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)`.
const INGRESS: u32 = 0xffff_fff2;
/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS)`.
const EGRESS: u32 = 0xffff_fff3;
/// Of include/uapi/linux/pkt_cls.h.
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_ID: u16 = 11;
