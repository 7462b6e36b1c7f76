// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Clients of ACM at the daemon's socket, with the kernel and the SA that `paths` plays.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;

use ibarr_common::IfIndex;
use ibarr_common::ib::{PKey, PathRecord};
use ibarr_common::wire::acm::{
    Address, Ask, MAX_REQUEST_LEN, Of, Reply, Request, Resolve, Status, Tid,
};
use ibarr_common::wire::ls::{self, ResolveIp, Seq, messages};
use ibarr_common::wire::path_record::{Fields, PathRecordWire};
use nix::net::if_::if_nametoindex;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};

use crate::kernel::{Kernel, command_here, pair};
use crate::paths::{FOREIGN, LOCAL, Port, UNKNOWN, ask, await_capabilities, gid, request, start};
use crate::peers::Peers;
use crate::sockets::in_namespace;
use crate::support::{Daemon, PATIENCE, TempDir, json};

/// A connection to the daemon.
pub(crate) struct Client<S = UnixStream>(pub(crate) S);

impl Client {
    pub(crate) fn connect(dir: &TempDir) -> Self {
        let stream = UnixStream::connect(dir.path("acm.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }
}

impl<S: Read + Write> Client<S> {
    pub(crate) fn send(&mut self, ask: Ask) {
        let mut out = [0; MAX_REQUEST_LEN];
        self.0.write_all(Request { tid: Tid([5; 8]), ask }.emit(&mut out)).unwrap();
    }

    /// Flags and DLID of each path of the reply, or its status. The reply is one write.
    pub(crate) fn told(&mut self) -> Result<Vec<(u32, u16)>, Status> {
        let mut bytes = [0; 1024];
        let len = self.0.read(&mut bytes).unwrap();
        match Reply::parse(&bytes[..len]).unwrap() {
            (Tid([5, ..]), Reply::Paths(paths, None)) => Ok(paths
                .as_slice()
                .iter()
                .map(|path| (path.flags.bits(), PathRecordWire::from(path.record).dlid.get()))
                .collect()),
            (Tid([5, ..]), Reply::Refused(status)) => Err(status),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn ask(&mut self, ask: Ask) -> Result<Vec<(u32, u16)>, Status> {
        self.send(ask);
        self.told()
    }

    pub(crate) fn is_closed(&mut self) -> bool {
        // Bytes that were not read are a reset.
        let read = self.0.read(&mut [0; 16]);
        read.map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |len| len == 0)
    }
}

/// A question for the path from the only port to a GID.
pub(crate) fn to(dgid: &str) -> Resolve {
    let known =
        PathRecordWire { dgid: gid(dgid).octets(), ..PathRecord::from_octets([0; 64]).into() };
    Resolve::along(known.into())
}

pub(crate) fn serving(dir: &TempDir) -> String {
    format!("[acm]\nserve = \"tools\"\nsocket = \"{}\"\n", dir.path("acm.sock").display())
}

pub(crate) fn counter(daemon: &Daemon, name: &str) -> u64 {
    let counters = json(&daemon.ask(&["counters", "--json"]))["counters"].clone();
    counters[name].as_u64().unwrap_or_else(|| panic!("{name} in {counters}"))
}

#[test]
fn kernel_and_clients_of_acm_share_what_the_sa_has_said() {
    let dir = TempDir::new("acm-shared");
    let port = Port::new(&dir);
    let (daemon, kernel) = start(&dir, &serving(&dir));
    await_capabilities(&daemon);
    let mut client = Client::connect(&dir);
    assert_eq!(ask(&kernel, 1, request(LOCAL, 1)), Some(vec![(0x2b, 1, 8)]));
    let asked = port.asked();
    assert_eq!(client.ask(Ask::Resolve(to(LOCAL))), Ok(vec![(0x2b, 1)]));
    assert_eq!(port.asked(), asked, "the kernel has asked for it");
    // The records for a floating LID are contiguous.
    let foreign = Ok(vec![(0x2b, 4), (0x12, 1), (0x0a, 0x22)]);
    assert_eq!(client.ask(Ask::Resolve(to(FOREIGN))), foreign);
    let asked = port.asked();
    assert!(ask(&kernel, 2, request(FOREIGN, 1)).is_some());
    assert_eq!(port.asked(), asked, "a client of ACM has asked for it");
    assert_eq!(client.ask(Ask::Resolve(to(UNKNOWN))), Err(Status::NoData));
    assert_eq!(counter(&daemon, "acm.requests"), 3);
    assert_eq!((counter(&daemon, "acm.path-from-memory"), counter(&daemon, "acm.no-data")), (1, 1));
}

#[test]
fn kernel_and_client_of_acm_at_once_cost_one_question() {
    let dir = TempDir::new("acm-single");
    let port = Port::new(&dir);
    let (daemon, kernel) = start(&dir, &serving(&dir));
    await_capabilities(&daemon);
    let mut client = Client::connect(&dir);
    for (seq, dgid, is_kernel_first) in [(1, LOCAL, true), (2, FOREIGN, false)] {
        let count = |name| counter(&daemon, name);
        let until = |name: &str, before: u64| {
            daemon.until(|daemon| (counter(daemon, name) == before + 1).then_some(()));
        };
        let [queries, joined] = ["sa.queries", "paths.joined"].map(count);
        let silent = port.hold();
        for is_kernel in [is_kernel_first, !is_kernel_first] {
            if is_kernel {
                let request = ls::Request::ResolvePath(request(dgid, 1));
                kernel.send_bytes(request.emit(Seq(seq)).as_ref());
            } else {
                client.send(Ask::Resolve(to(dgid)));
            }
            if is_kernel == is_kernel_first {
                until("sa.queries", queries);
            } else {
                until("paths.joined", joined);
            }
        }
        drop(silent);
        assert!(client.told().is_ok_and(|paths| !paths.is_empty()));
        let told = kernel.receive();
        let told = messages(&told).next().unwrap().unwrap();
        assert!(matches!(ls::Answer::parse(&told), Ok(ls::Answer::Paths(_))), "{told:?}");
        assert_eq!(told.seq(), Seq(seq));
        assert_eq!(count("sa.queries"), queries + 1, "{dgid}");
    }
}

#[test]
fn kernel_and_client_of_acm_at_once_cost_a_query_each() {
    if !in_namespace("acm::kernel_and_client_of_acm_at_once_cost_a_query_each") {
        return;
    }
    let (dir, peers) = (TempDir::new("acm-single-query"), Peers::new());
    let _sa = Port::new(&dir);
    // This host has the GID of the stand-in's port at its end of the link.
    let source = "[[static-gid]]\nip = \"10.9.0.1\"\ngid = \"fec0:0:1:1::10:9\"\n";
    let config = format!("{}{}{source}", peers.config_for_kernel(), serving(&dir));
    let (kernel, inherited): (Kernel, OwnedFd) = pair();
    let daemon = Daemon::spawn(command_here(&dir, inherited), &dir, &config);
    kernel.expect("18000000 01100500 00000000", "08000200 b80b0000");
    await_capabilities(&daemon);
    let mut client = Client::connect(&dir);
    let ifindex = IfIndex::new(if_nametoindex("near").unwrap()).unwrap();
    for (seq, target, is_kernel_first) in [(1, "10.8.0.2", true), (2, "10.8.0.3", false)] {
        let count = |name: &str| counter(&daemon, &format!("ip2gid.client.{name}"));
        let queries = count("queries");
        let ip = target.parse().unwrap();
        for is_kernel in [is_kernel_first, !is_kernel_first] {
            if is_kernel {
                let request = ls::Request::ResolveIp(ResolveIp { ifindex, target: ip });
                kernel.send_bytes(request.emit(Seq(seq)).as_ref());
            } else {
                client.send(Ask::Resolve(Resolve::to(
                    Some(Address::Ip("10.9.0.1".parse().unwrap())),
                    Address::Ip(ip),
                )));
            }
            // The kernel names the interface of its route, and the client does not.
            let sent = if is_kernel == is_kernel_first { 1 } else { 2 };
            daemon.until(|_| (count("queries") == queries + sent).then_some(()));
        }
        // The peer has been silent until now.
        peers.set(target, Some(LOCAL));
        assert_eq!(client.told(), Ok(vec![(0x2b, 1)]));
        let told = kernel.receive();
        let told = messages(&told).next().unwrap().unwrap();
        assert!(matches!(ls::Answer::parse(&told), Ok(ls::Answer::Gid(_))), "{told:?}");
        assert_eq!((told.seq(), count("queries")), (Seq(seq), queries + 2), "{target}");
    }
}

#[test]
fn what_is_remembered_costs_a_user_no_share() {
    let dir = TempDir::new("acm-many");
    let port = Port::new(&dir);
    let (daemon, _kernel) = start(&dir, &serving(&dir));
    await_capabilities(&daemon);
    let mut client = Client::connect(&dir);
    assert_eq!(client.ask(Ask::Resolve(to(LOCAL).from_memory())), Err(Status::NoData));
    daemon.until(|daemon| (counter(daemon, "acm.path-from-sa") == 1).then_some(()));
    let asked = port.asked();
    for _ in 0..2_000 {
        let remembered = client.ask(Ask::Resolve(to(LOCAL).from_memory()));
        assert_eq!(remembered, Ok(vec![(0x2b, 1)]));
    }
    assert_eq!(port.asked(), asked);
    assert_eq!(counter(&daemon, "users.acm-paths.requests"), 1);
}

#[test]
fn client_that_sends_byte_by_byte_is_answered_and_one_that_sends_nonsense_is_closed() {
    let dir = TempDir::new("acm-odd");
    let _port = Port::new(&dir);
    let (daemon, _kernel) = start(&dir, &serving(&dir));
    let mut slow = Client::connect(&dir);
    let mut half = Client::connect(&dir);
    let mut out = [0; MAX_REQUEST_LEN];
    let message = Request { tid: Tid([5; 8]), ask: Ask::Resolve(to(LOCAL)) }.emit(&mut out);
    for (at, byte) in message.iter().enumerate() {
        slow.0.write_all(&[*byte]).unwrap();
        // Meanwhile the daemon reads what is there. All of it has to come within 2 s.
        if at % 30 == 0 {
            daemon.ask(&["log-level"]);
        }
    }
    assert_eq!(slow.told(), Ok(vec![(0x2b, 1)]));
    half.0.write_all(&message[..20]).unwrap();
    half.0.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(half.is_closed());
    for nonsense in [&[7; 16][..], &[1, 1, 0, 0, 0, 0, 15, 0], &[1, 9, 0, 0, 0, 0, 16, 0]] {
        let mut client = Client::connect(&dir);
        client.0.write_all(nonsense).unwrap();
        assert!(client.is_closed());
    }
    // A request of the right length without a destination is refused, and the connection stays.
    let mut wrong = message.to_vec();
    wrong[20] = 9;
    slow.0.write_all(&wrong).unwrap();
    assert_eq!(slow.told(), Err(Status::DestinationType));
    assert_eq!(slow.ask(Ask::Endpoint { index: 9, port: 1 }), Err(Status::Invalid));
    assert_eq!(slow.ask(Ask::Counters(Of::Index(9))), Err(Status::SourceAddress));
    assert_eq!(counter(&daemon, "acm.illegal"), 4);
}

#[test]
fn socket_is_there_only_while_the_configuration_wants_it_and_for_librdmacm_only_if_full() {
    let dir = TempDir::new("acm-serve");
    let (socket, link) = (dir.path("acm.sock"), dir.path("ibacm.sock"));
    let reload = |daemon: &Daemon, serve: &str| {
        let socket = socket.display();
        let config =
            format!("responder = \"user\"\n[acm]\nserve = {serve:?}\nsocket = \"{socket}\"\n");
        dir.write("ibarr.toml", &config);
        assert!(daemon.ask(&["reload"]).status.success());
    };
    let _port = Port::new(&dir);
    let (mut daemon, _kernel) = start(&dir, "");
    assert!(!socket.exists());
    // An ibacm that died has left it, and librdmacm would ask there.
    fs::write(dir.path("ibacm.port"), "1\n").unwrap();
    reload(&daemon, "full");
    assert!(!dir.path("ibacm.port").exists());
    assert_eq!(fs::read_link(&link).unwrap(), socket);
    assert_eq!(fs::metadata(&link).unwrap().mode() & 0o777, 0o666);
    assert_eq!(Client::connect(&dir).ask(Ask::Resolve(to(LOCAL))), Ok(vec![(0x2b, 1)]));
    reload(&daemon, "tools");
    assert!(!link.exists());
    assert!(Client::connect(&dir).ask(Ask::Resolve(to(LOCAL))).is_ok());
    reload(&daemon, "off");
    assert!(!socket.exists());
    // What cannot be made is explained.
    fs::write(&socket, "").unwrap();
    reload(&daemon, "tools");
    let status = json(&daemon.ask(&["status", "--json"]))["status"].clone();
    assert!(status["warnings"].to_string().contains("a file that is not a socket"), "{status}");
    fs::remove_file(&socket).unwrap();
    reload(&daemon, "full");
    assert!(socket.exists() && link.exists());
    assert_eq!(daemon.end(Signal::SIGTERM), Some(0));
    assert!(!socket.exists() && link.symlink_metadata().is_err());
}

#[test]
fn holder_of_the_socket_with_a_full_queue_delays_neither_start_nor_reload() {
    let dir = TempDir::new("acm-holder");
    let path = UnixAddr::new(&dir.path("acm.sock")).unwrap();
    let holder =
        socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(holder.as_raw_fd(), &path).unwrap();
    listen(&holder, Backlog::new(0).unwrap()).unwrap();
    let _first = Client::connect(&dir);
    // A further connect(2) would wait as long as the holder accepts none.
    let daemon = Daemon::start(&dir, &serving(&dir));
    for _ in 0..2 {
        assert!(daemon.ask(&["reload"]).status.success());
        let status = json(&daemon.ask(&["status", "--json"]))["status"].clone();
        assert!(status["warnings"].to_string().contains("ibacm must not run"), "{status}");
    }
    drop(holder);
    assert!(daemon.ask(&["reload"]).status.success());
    assert!(Client::connect(&dir).ask(Ask::Counters(Of::Index(9))).is_err());
}

#[test]
fn record_of_a_reply_is_the_one_of_the_sa() {
    let dir = TempDir::new("acm-record");
    let _port = Port::new(&dir);
    let (_daemon, _kernel) = start(&dir, &serving(&dir));
    let mut client = Client::connect(&dir);
    client.send(Ask::Resolve(to(LOCAL)));
    let mut bytes = [0; 1024];
    let len = client.0.read(&mut bytes).unwrap();
    let Ok((_, Reply::Paths(paths, None))) = Reply::parse(&bytes[..len]) else { panic!() };
    let fields = Fields::parse(&paths.as_slice()[0].record).unwrap();
    assert_eq!((fields.dgid, fields.sgid), (gid(LOCAL), gid("fec0:0:1:1::10:9")));
}

#[test]
fn endpoint_and_its_counters_are_those_of_the_port() {
    let dir = TempDir::new("acm-endpoint");
    let _port = Port::new(&dir);
    let (_daemon, _kernel) = start(&dir, &serving(&dir));
    let mut client = Client::connect(&dir);
    assert_eq!(client.ask(Ask::Resolve(to(LOCAL))), Ok(vec![(0x2b, 1)]));
    let mut reply = |ask| {
        client.send(ask);
        let mut bytes = [0; 1024];
        let len = client.0.read(&mut bytes).unwrap();
        bytes[..len].to_vec()
    };
    let bytes = reply(Ask::Endpoint { index: 1, port: 1 });
    let Ok((_, Reply::Endpoint(endpoint, _))) = Reply::parse(&bytes) else { panic!("{bytes:?}") };
    assert_eq!((endpoint.port, endpoint.ports, endpoint.provider.as_str()), (1, 1, "ibarr"));
    assert_eq!((endpoint.device.get(), endpoint.pkey), (0x0010_0009, PKey::DEFAULT));
    for of in [Of::Service, Of::Index(1)] {
        let bytes = reply(Ask::Counters(of));
        let Ok((_, Reply::Counters(seven))) = Reply::parse(&bytes) else { panic!("{bytes:?}") };
        assert_eq!((seven.resolved.get(), seven.route_queries.get()), (1, 1), "{of:?}");
    }
}
