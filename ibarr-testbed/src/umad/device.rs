// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A model of `/dev/infiniband/umadN`: drivers/infiniband/core/user_mad.c, and the part of mad.c that its
//! users see. It has no I/O and no clock.
//!
//! **The stand-in is no kinder than the kernel.** It accepts nothing that the kernel refuses, gives an
//! answer only to the agent that asked, owns the upper half of a transaction id, and returns 24 bytes of
//! an unanswered MAD. It sends nothing twice, whatever `retries` says, and never blocks a reader: it
//! returns `EAGAIN`.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ibarr_common::Instant;
use ibarr_common::ib::Lid;
use ibarr_common::wire::mad::{self, Class, Header, Method, Tid};
use ibarr_common::wire::umad::{Form, HeaderWire, Register2Wire, RegisterWire};
use nix::errno::Errno;
use nix::poll::PollFlags;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The device of a port, and its open files.
#[derive(Debug)]
pub struct Device {
    abilities: Abilities,
    files: BTreeMap<FileId, OpenFile>,
    next_file: u64,
    next_agent: u16,
    /// MADs that wait for an answer, by their whole transaction id.
    waiting: BTreeMap<Tid, Waiting>,
    transmits: VecDeque<Sent>,
    is_gone: bool,
}

/// Differences between kernels.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Abilities {
    /// The kernel has REGISTER_AGENT2, since Linux 3.18.
    pub register_agent_2: bool,
    /// The kernel has ENABLE_PKEY, since Linux 2.6.24. Without both, headers have 56 bytes.
    pub enable_pkey: bool,
    /// The kernel reports that the device is gone, since Linux 5.12: reads and writes fail with `EIO`, and
    /// poll(2) reports it. Otherwise reads never end, and writes fail with `EINVAL`.
    pub tells_of_loss: bool,
}

impl Default for Abilities {
    fn default() -> Self {
        Self { register_agent_2: true, enable_pkey: true, tells_of_loss: true }
    }
}

/// An open file.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct FileId(pub u64);

/// A MAD that leaves the port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Sent {
    /// The destination LID.
    pub to: Lid,
    /// The destination queue pair.
    pub qpn: u32,
    /// The service level.
    pub sl: u8,
    /// The partition, as an index into the port's table.
    pub pkey_index: u16,
    /// The bytes of the MAD.
    pub mad: [u8; mad::LEN],
}

#[derive(Debug)]
struct OpenFile {
    form: Form,
    is_used: bool,
    /// The class of each agent, by its number, which is the upper half of its transaction ids.
    agents: BTreeMap<u32, u16>,
    /// The agent that receives reports of the SA, if any.
    takes_reports: Option<u32>,
    received: VecDeque<Vec<u8>>,
    /// The device has vanished since the file was opened.
    is_dead: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    file: FileId,
    agent: u32,
    class: Class,
    until: Instant,
    /// The header that is returned if there is no answer.
    header: [u8; MAD_HEADER],
}

/// Maximum of agents of a file.
const MAX_AGENTS: u32 = 32;
/// Bytes of the common MAD header.
const MAD_HEADER: usize = 24;
/// Minimum of bytes of a write.
const RMPP_HEADER: usize = 36;

/// Request numbers of include/uapi/rdma/ib_user_mad.h.
pub(super) mod request {
    pub(in crate::umad) const REGISTER_AGENT: u32 = 0xc01c_1b01;
    pub(in crate::umad) const UNREGISTER_AGENT: u32 = 0x4004_1b02;
    pub(in crate::umad) const ENABLE_PKEY: u32 = 0x1b03;
    pub(in crate::umad) const REGISTER_AGENT_2: u32 = 0xc028_1b04;
}

impl Device {
    /// A device without open files.
    pub fn new(abilities: Abilities) -> Self {
        Self {
            abilities,
            files: BTreeMap::new(),
            next_file: 0,
            next_agent: 0,
            waiting: BTreeMap::new(),
            transmits: VecDeque::new(),
            is_gone: false,
        }
    }

    /// open(2).
    ///
    /// # Errors
    /// `ENXIO` while the device is gone.
    pub fn open(&mut self) -> Result<FileId, Errno> {
        if self.is_gone {
            return Err(Errno::ENXIO);
        }
        self.next_file += 1;
        let id = FileId(self.next_file);
        let file = OpenFile {
            form: Form::WithoutPKey,
            is_used: false,
            agents: BTreeMap::new(),
            takes_reports: None,
            received: VecDeque::new(),
            is_dead: false,
        };
        self.files.insert(id, file);
        Ok(id)
    }

    /// close(2).
    pub fn close(&mut self, file: FileId) {
        self.files.remove(&file);
        self.waiting.retain(|_, waiting| waiting.file != file);
    }

    /// ioctl(2). Returns the new content of `argument`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn ioctl(&mut self, file: FileId, request: u32, argument: &[u8]) -> Result<Vec<u8>, Errno> {
        let Abilities { register_agent_2, enable_pkey, .. } = self.abilities;
        let are_taken = self.files.values().any(|file| file.takes_reports.is_some());
        let high = self.next_agent.wrapping_add(1);
        let file = self.files.get_mut(&file).ok_or(Errno::EBADF)?;
        match request {
            request::REGISTER_AGENT => {
                let mut wire =
                    RegisterWire::read_from_bytes(argument).map_err(|_| Errno::EFAULT)?;
                let takes_reports = wants_reports(&wire.method_mask, are_taken)?;
                wire.agent = file.register(wire.qpn.into(), high, takes_reports)?;
                file.is_used = true;
                self.next_agent = high;
                Ok(wire.as_bytes().to_vec())
            }
            request::REGISTER_AGENT_2 if register_agent_2 => {
                let mut wire =
                    Register2Wire::read_from_bytes(argument).map_err(|_| Errno::EFAULT)?;
                if wire.flags > 1 {
                    return Err(Errno::EINVAL);
                }
                let takes_reports = wants_reports(&wire.method_mask, are_taken)?;
                wire.agent = file.register(wire.qpn, high, takes_reports)?;
                if !file.is_used {
                    (file.is_used, file.form) = (true, Form::WithPKey);
                }
                self.next_agent = high;
                Ok(wire.as_bytes().to_vec())
            }
            request::UNREGISTER_AGENT => {
                let id = argument.try_into().map(u32::from_ne_bytes).map_err(|_| Errno::EFAULT)?;
                let high = file.agents.remove(&id).ok_or(Errno::EINVAL)?;
                file.takes_reports.take_if(|agent| *agent == id);
                self.waiting.retain(|tid, _| tid.get() >> 32 != u64::from(high));
                Ok(Vec::new())
            }
            request::ENABLE_PKEY if enable_pkey => {
                if file.is_used {
                    return Err(Errno::EINVAL);
                }
                file.form = Form::WithPKey;
                Ok(Vec::new())
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    /// write(2). Returns the number of accepted bytes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn write(&mut self, now: Instant, file: FileId, bytes: &[u8]) -> Result<usize, Errno> {
        let is_lost = if self.abilities.tells_of_loss { Errno::EIO } else { Errno::EINVAL };
        let id = file;
        let file = self.files.get(&id).ok_or(Errno::EBADF)?;
        if bytes.len() < file.form.header_len() + RMPP_HEADER {
            return Err(Errno::EINVAL);
        }
        let (header, octets) = bytes.split_at(file.form.header_len());
        let mut whole = [0; size_of::<HeaderWire>()];
        whole.iter_mut().zip(header).for_each(|(to, from)| *to = *from);
        let header = HeaderWire::read_from_bytes(&whole).map_err(|_| Errno::EINVAL)?;
        let agent = header.agent.get();
        if agent >= MAX_AGENTS {
            return Err(Errno::EINVAL);
        }
        let high = file.agents.get(&agent).filter(|_| !file.is_dead).ok_or(is_lost)?;
        let to = Lid::new(header.lid.get()).ok_or(Errno::EINVAL)?;
        if octets.len() > mad::LEN {
            return Err(Errno::EINVAL);
        }
        let mut mad = [0; mad::LEN];
        mad.iter_mut().zip(octets).for_each(|(to, from)| *to = *from);
        let (parsed, _) = Header::parse(&mad).map_err(|_| Errno::EINVAL)?;
        if !parsed.method.is_response() {
            let tid = u64::from(*high) << 32 | u64::from(parsed.tid.transaction().0);
            mad.iter_mut().skip(8).zip(tid.to_be_bytes()).for_each(|(to, from)| *to = from);
            let tid = Tid::new(tid);
            if self.waiting.contains_key(&tid) {
                return Err(Errno::EINVAL);
            }
            let times = header.retries.get().saturating_add(1);
            let time = Duration::from_millis(header.timeout_ms.get().into()) * times;
            // Without a time-out the kernel does not match an answer.
            if time > Duration::ZERO {
                let mut header = [0; MAD_HEADER];
                header.iter_mut().zip(mad).for_each(|(to, from)| *to = from);
                let until = now + time;
                let waiting = Waiting { file: id, agent, class: parsed.class, until, header };
                self.waiting.insert(tid, waiting);
            }
        }
        let (qpn, sl) = (header.qpn.get(), header.sl);
        let pkey_index = header.pkey.index.get();
        self.transmits.push_back(Sent { to, qpn, sl, pkey_index, mad });
        Ok(bytes.len())
    }

    /// read(2) into a buffer of `size` bytes.
    ///
    /// # Errors
    /// `EAGAIN` if there is nothing to read; otherwise the kernel's error.
    pub fn read(&mut self, file: FileId, size: usize) -> Result<Vec<u8>, Errno> {
        let tells_of_loss = self.abilities.tells_of_loss;
        let file = self.files.get_mut(&file).ok_or(Errno::EBADF)?;
        if size < file.form.header_len() {
            return Err(Errno::EINVAL);
        }
        if file.is_dead && tells_of_loss {
            return Err(Errno::EIO);
        }
        let next = file.received.front().ok_or(Errno::EAGAIN)?;
        if next.len() > size {
            return Err(Errno::EINVAL);
        }
        file.received.pop_front().ok_or(Errno::EAGAIN)
    }

    /// poll(2).
    pub fn poll(&self, file: FileId) -> PollFlags {
        match self.files.get(&file) {
            None => PollFlags::POLLNVAL,
            Some(file) if file.is_dead && self.abilities.tells_of_loss => PollFlags::POLLERR,
            Some(file) if file.received.is_empty() => WRITABLE,
            Some(_) => WRITABLE | PollFlags::POLLIN | PollFlags::POLLRDNORM,
        }
    }

    /// The port receives a MAD. It is dropped if it is neither an answer to a sent MAD nor a report for an
    /// agent.
    pub fn receive(&mut self, from: Lid, mad: &[u8]) {
        let Ok((header, _)) = Header::parse(mad) else { return };
        if !header.method.is_response() {
            if (header.class, header.method) == (Class::SUBNET_ADM, Method::REPORT) {
                self.report(from, mad);
            }
            return;
        }
        let Some(waiting) = self.waiting.get(&header.tid).filter(|it| it.class == header.class)
        else {
            return;
        };
        let Waiting { file, agent, .. } = *waiting;
        self.waiting.remove(&header.tid);
        let Some(file) = self.files.get_mut(&file).filter(|file| !file.is_dead) else { return };
        let mut octets = [0; mad::LEN];
        octets.iter_mut().zip(mad).for_each(|(to, from)| *to = *from);
        let message = message(file.form, agent, 0, Some(from), &octets);
        file.received.push_back(message);
    }

    fn report(&mut self, from: Lid, mad: &[u8]) {
        let live = self.files.values_mut().filter(|file| !file.is_dead);
        for file in live {
            if let Some(agent) = file.takes_reports {
                let mut octets = [0; mad::LEN];
                octets.iter_mut().zip(mad).for_each(|(to, from)| *to = *from);
                file.received.push_back(message(file.form, agent, 0, Some(from), &octets));
            }
        }
    }

    /// Returns MADs whose time-out is over.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_over = |waiting: &Waiting| waiting.until <= now;
        let over: Vec<_> =
            self.waiting.iter().filter(|(_, it)| is_over(it)).map(|(tid, _)| *tid).collect();
        for tid in over {
            let Some(Waiting { file, agent, header, .. }) = self.waiting.remove(&tid) else {
                continue;
            };
            if let Some(file) = self.files.get_mut(&file).filter(|file| !file.is_dead) {
                let message = message(file.form, agent, ETIMEDOUT, None, &header);
                file.received.push_back(message);
            }
        }
    }

    /// The time at which [`Device::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.values().map(|waiting| waiting.until).min()
    }

    /// The next MAD that leaves the port.
    pub fn poll_transmit(&mut self) -> Option<Sent> {
        self.transmits.pop_front()
    }

    /// Makes the device vanish, or come back. Open files stay dead.
    pub fn set_gone(&mut self, is_gone: bool) {
        self.is_gone = is_gone;
        if is_gone {
            self.waiting.clear();
            for file in self.files.values_mut() {
                file.is_dead = true;
            }
        }
    }

    /// Makes all open files read `bytes`, which no kernel would give.
    pub fn forge(&mut self, bytes: &[u8]) {
        for file in self.files.values_mut() {
            file.received.push_back(bytes.to_vec());
        }
    }

    /// Number of open files.
    pub fn open_files(&self) -> usize {
        self.files.values().filter(|file| !file.is_dead).count()
    }

    /// The form of the headers of each open file.
    pub fn forms(&self) -> impl Iterator<Item = Form> {
        self.files.values().filter(|file| !file.is_dead).map(|file| file.form)
    }
}

impl OpenFile {
    fn register(&mut self, qpn: u32, high: u16, takes_reports: bool) -> Result<u32, Errno> {
        if self.is_dead {
            return Err(Errno::EPIPE);
        }
        if qpn > 1 {
            return Err(Errno::EINVAL);
        }
        let id = (0..MAX_AGENTS).find(|id| !self.agents.contains_key(id)).ok_or(Errno::ENOMEM)?;
        self.agents.insert(id, high);
        if takes_reports {
            self.takes_reports = Some(id);
        }
        Ok(id)
    }
}

/// Whether an agent with this mask receives reports. Only one agent of a port can (`method_in_use` of
/// mad.c).
fn wants_reports(mask: &[u32; 4], are_taken: bool) -> Result<bool, Errno> {
    match *mask != RegisterWire::SA_CLIENT.method_mask {
        true if are_taken => Err(Errno::EINVAL),
        wants => Ok(wants),
    }
}

/// The bytes of one read.
fn message(form: Form, agent: u32, status: u32, from: Option<Lid>, mad: &[u8]) -> Vec<u8> {
    let mut header = HeaderWire::new_zeroed();
    header.agent = agent.into();
    header.status = status.into();
    header.qpn = 1.into();
    header.lid = from.map_or(0, Lid::get).into();
    let len = form.header_len() + mad.len();
    header.length = u32::try_from(len).unwrap_or(u32::MAX).into();
    let header = header.as_bytes().iter().take(form.header_len());
    header.chain(mad).copied().collect()
}

/// A write is always possible.
const WRITABLE: PollFlags = PollFlags::POLLOUT.union(PollFlags::POLLWRNORM);
const ETIMEDOUT: u32 = 110;

#[cfg(test)]
mod tests {
    use ibarr_common::ib::Sl;
    use ibarr_common::wire::inform::Report;
    use ibarr_common::wire::mad::Transaction;
    use ibarr_common::wire::sa::{Question, Request};
    use ibarr_common::wire::umad::{AgentId, PKeyIndex, Received, Send};

    use super::*;

    fn message(form: Form, transaction: u32) -> Vec<u8> {
        let question = Question::ClassPortInfo;
        let mad = Request { tid: Transaction(transaction).into(), question }.emit();
        let send = Send {
            agent: AgentId(0),
            to: Lid::new(1).unwrap(),
            sl: Sl::default(),
            pkey_index: PKeyIndex(0),
            timeout: Some(Duration::from_millis(100)),
            mad,
        };
        send.emit(form).as_ref().to_vec()
    }

    fn opened(abilities: Abilities) -> (Device, FileId) {
        let mut device = Device::new(abilities);
        let file = device.open().unwrap();
        let argument = Register2Wire::SA_CLIENT.as_bytes().to_vec();
        device.ioctl(file, request::REGISTER_AGENT_2, &argument).unwrap();
        (device, file)
    }

    /// The answer of a peer.
    fn answer(sent: &Sent) -> [u8; mad::LEN] {
        let mut mad = sent.mad;
        mad[3] = 0x81;
        mad
    }

    const START: Instant = Instant::from_nanos(1_000_000_000);

    #[test]
    fn answer_goes_only_to_the_agent_that_asked() {
        let (mut device, file) = opened(Abilities::default());
        let other = device.open().unwrap();
        let argument = Register2Wire::SA_CLIENT.as_bytes().to_vec();
        device.ioctl(other, request::REGISTER_AGENT_2, &argument).unwrap();
        assert_eq!(device.write(START, file, &message(Form::WithPKey, 7)), Ok(320));
        let sent = device.poll_transmit().unwrap();
        assert_eq!((sent.to.get(), sent.qpn), (1, 1));
        assert_eq!(sent.mad[8..16], [0, 0, 0, 1, 0, 0, 0, 7]);
        // No repetition, no other transaction, no other class and no request is delivered.
        let right = answer(&sent);
        for (at, value) in [(15, 8), (11, 2), (1, 4), (3, 1)] {
            let mut wrong = right;
            wrong[at] = value;
            device.receive(sent.to, &wrong);
            assert!(!device.poll(file).contains(PollFlags::POLLIN));
        }
        device.receive(sent.to, &right);
        device.receive(sent.to, &right);
        assert!(device.poll(file).contains(PollFlags::POLLIN));
        assert_eq!(device.read(file, 319), Err(Errno::EINVAL));
        let read = device.read(file, 320).unwrap();
        let mad = Received::parse(Form::WithPKey, &read).unwrap();
        assert_eq!(mad, Received::Mad { agent: AgentId(0), from: Some(sent.to), mad: &right });
        assert_eq!(device.read(file, 320), Err(Errno::EAGAIN));
        assert_eq!(device.read(other, 320), Err(Errno::EAGAIN));
    }

    #[test]
    fn unanswered_mad_comes_back_without_its_data() {
        for abilities in [
            Abilities::default(),
            Abilities { register_agent_2: false, ..Abilities::default() },
            Abilities { register_agent_2: false, enable_pkey: false, tells_of_loss: false },
        ] {
            let mut device = Device::new(abilities);
            let file = device.open().unwrap();
            let argument = Register2Wire::SA_CLIENT.as_bytes().to_vec();
            let registered = device.ioctl(file, request::REGISTER_AGENT_2, &argument);
            assert_eq!(registered.is_ok(), abilities.register_agent_2);
            if registered.is_err() {
                let enabled = device.ioctl(file, request::ENABLE_PKEY, &[]);
                assert_eq!(enabled.is_ok(), abilities.enable_pkey);
                let argument = RegisterWire::SA_CLIENT.as_bytes().to_vec();
                device.ioctl(file, request::REGISTER_AGENT, &argument).unwrap();
            }
            let form = device.forms().next().unwrap();
            assert_eq!(form == Form::WithPKey, abilities.enable_pkey);
            device.write(START, file, &message(form, 7)).unwrap();
            assert_eq!(device.poll_timeout(), Some(START + Duration::from_millis(100)));
            device.handle_timeout(START + Duration::from_millis(99));
            assert_eq!(device.read(file, 320), Err(Errno::EAGAIN));
            device.handle_timeout(START + Duration::from_millis(100));
            let read = device.read(file, 320).unwrap();
            assert_eq!(read.len(), form.header_len() + 24);
            let tid = Tid::new(1 << 32 | 7);
            let unanswered = Received::Unanswered { agent: AgentId(0), tid };
            assert_eq!(Received::parse(form, &read), Ok(unanswered));
            assert_eq!(device.poll_timeout(), None);
        }
    }

    #[test]
    fn writes_that_the_kernel_refuses_are_refused() {
        let (mut device, file) = opened(Abilities::default());
        let good = message(Form::WithPKey, 7);
        assert_eq!(device.write(START, file, &good[..99]), Err(Errno::EINVAL));
        assert_eq!(device.write(START, file, &[&good[..], &[0]].concat()), Err(Errno::EINVAL));
        for agent in [1, 32] {
            let mut bad = good.clone();
            bad[..4].copy_from_slice(&u32::to_ne_bytes(agent));
            assert!(device.write(START, file, &bad).is_err());
        }
        device.write(START, file, &good).unwrap();
        assert_eq!(device.write(START, file, &good), Err(Errno::EINVAL), "a transaction twice");
        let late = device.ioctl(file, request::ENABLE_PKEY, &[]);
        assert_eq!(late, Err(Errno::EINVAL));
        assert_eq!(device.ioctl(file, 0x1b05, &[]), Err(Errno::ENOTTY));
    }

    #[test]
    fn report_goes_to_the_one_agent_that_takes_reports() {
        let (mut device, file) = opened(Abilities::default());
        let report = Report::of_link(Tid::new(0x0305_0000_0000_0001), Lid::new(2).unwrap());
        let from = Lid::new(1).unwrap();
        device.receive(from, report.emit().as_ref());
        assert_eq!(device.read(file, 320), Err(Errno::EAGAIN), "no agent receives it");

        let argument = Register2Wire::SA_REPORTS.as_bytes().to_vec();
        let agent = device.ioctl(file, request::REGISTER_AGENT_2, &argument).unwrap();
        assert_eq!(agent[..4], 1_u32.to_ne_bytes());
        let other = device.open().unwrap();
        let old = RegisterWire::SA_REPORTS.as_bytes().to_vec();
        let twice = [
            device.ioctl(other, request::REGISTER_AGENT_2, &argument),
            device.ioctl(other, request::REGISTER_AGENT, &old),
        ];
        assert_eq!(twice, [Err(Errno::EINVAL), Err(Errno::EINVAL)]);
        device.receive(from, report.emit().as_ref());
        assert_eq!(device.read(other, 320), Err(Errno::EAGAIN));
        let bytes = device.read(file, 320).unwrap();
        let Ok(Received::Mad { agent, from, mad }) = Received::parse(Form::WithPKey, &bytes) else {
            panic!("{bytes:02x?}")
        };
        assert_eq!((agent, from), (AgentId(1), Lid::new(1)));
        // The transaction id is the SA's, also in our answer, to which no further answer comes.
        let mad = Report::parse(mad).unwrap().emit_answer();
        let (to, sl, pkey_index) = (from.unwrap(), Sl::default(), PKeyIndex(0));
        let send = Send { agent, to, sl, pkey_index, timeout: None, mad };
        assert_eq!(device.write(START, file, send.emit(Form::WithPKey).as_ref()), Ok(320));
        assert_eq!(device.poll_transmit().unwrap().mad, *report.emit_answer().octets());
        assert_eq!(device.poll_timeout(), None);

        let agent = 1_u32.to_ne_bytes();
        device.ioctl(file, request::UNREGISTER_AGENT, &agent).unwrap();
        assert!(device.ioctl(other, request::REGISTER_AGENT, &old).is_ok());
    }

    #[test]
    fn only_new_kernels_report_that_the_device_is_gone() {
        for tells_of_loss in [true, false] {
            let (mut device, file) = opened(Abilities { tells_of_loss, ..Abilities::default() });
            device.set_gone(true);
            assert_eq!(device.open(), Err(Errno::ENXIO));
            let [read, written] = if tells_of_loss {
                [Errno::EIO, Errno::EIO]
            } else {
                [Errno::EAGAIN, Errno::EINVAL]
            };
            assert_eq!(device.read(file, 320), Err(read));
            assert_eq!(device.write(START, file, &message(Form::WithPKey, 1)), Err(written));
            assert_eq!(device.poll(file).contains(PollFlags::POLLERR), tells_of_loss);
            device.set_gone(false);
            assert_eq!(device.open_files(), 0, "a dead file stays dead");
            assert!(device.open().is_ok());
            assert_eq!(device.open_files(), 1);
        }
    }
}
