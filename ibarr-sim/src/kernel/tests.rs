// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Tests of each rule of the kernel, with recorded or constructed bytes.

use ibarr_common::wire::ls::PortId;
use ibarr_proto::local_service::{self, LocalService};

use super::*;

const START: Instant = Instant::from_nanos(1_000_000_000);
const TIMEOUT: Duration = Duration::from_secs(2);
/// The time after which a request can be answered.
const WINDOW: Duration = Duration::from_micros(30);
const GID: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 0, 0x14];
const NEIGHBOUR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

/// Recorded with Linux 6.1; sequence number 12.
const REQUEST: &str = "1c000000 02100100 0c000000 00000000 02000000 08000920 0a020001";
const ANSWER: &str =
    "24000000 02100000 0c000000 ad030000 14000400 fe80000000000000 0002c90300000014";
/// Sequence number 1.
const PATH_REQUEST: &str = "
    98000000 00100100 01000000 00000000
    696274756e300000 0000000000000000 0000000000000000 0000000000000000
    0000000000000000 0000000000000000 0000000000000000 0000000000000000
    01000000 0c000320 061c060100000000
    14000420 fe8000000000000000 02c90300000014 14000520 fe8000000000000000 02c90300000011
    06000720 ffff0000 06000820 00000000";
const PATH_ANSWER: &str = "
    5c000000 00100000 01000000 ad030000 4c000100 2b000000 00000000
    00000000 00000000 fe800000 00000000 0002c903 00000014 fe800000 00000000 0002c903 00000011
    00040001 00000000 0080ffff 00008587 92000000 00000000";

#[test]
fn requests_equal_recorded_ones() {
    let mut kernel = kernel();
    kernel.ask();
    assert_eq!(kernel.sent(), [unhex(REQUEST)]);
    kernel.ask_path(PathUse::All);
    assert_eq!(kernel.sent(), [unhex(PATH_REQUEST)]);
}

/// `ib_nl_process_ip_rsep`, `netevent_callback`, `process_one_req`
#[test]
fn only_a_neighbour_change_makes_the_caller_see_an_answer() {
    let mut kernel = kernel();
    kernel.ask();
    kernel.receive(WINDOW, ANSWER);
    assert_eq!(kernel.events(), []);
    kernel.neighbour(WINDOW * 2);
    let resolved = IpOutcome::Resolved { gid: GID, by: Wake::Neighbour(NEIGHBOUR) };
    assert_eq!(kernel.events(), [Event::Ip(Seq(12), resolved)]);
    // Only the first request: it was not sent again.
    assert_eq!(kernel.sent(), [unhex(REQUEST)]);
    assert_eq!(kernel.0.poll_timeout(), None);
}

/// `queue_req`, `set_timeout`
#[test]
fn without_a_neighbour_change_the_answer_waits_for_the_time_out() {
    let mut kernel = kernel();
    kernel.ask();
    kernel.receive(WINDOW, ANSWER);
    assert_eq!(kernel.0.poll_timeout(), Some(START + TIMEOUT));
    kernel.pass(TIMEOUT);
    let resolved = IpOutcome::Resolved { gid: GID, by: Wake::TimeOut };
    assert_eq!(kernel.events(), [Event::Ip(Seq(12), resolved)]);
    assert_eq!(kernel.sent().len(), 1);
}

/// `rdma_resolve_ip`: `addr_resolve` sends, then `queue_req` queues.
#[test]
fn answers_and_neighbour_changes_before_queueing_are_lost() {
    let mut kernel = kernel();
    kernel.ask();
    kernel.receive(Duration::ZERO, ANSWER);
    assert_eq!(kernel.events(), [Event::AnswerLost(Seq(12))]);
    kernel.neighbour(WINDOW / 2);
    assert_eq!(kernel.sent().len(), 1);
    // The next neighbour repairs this: the request is sent and answered again.
    kernel.neighbour(WINDOW);
    assert_eq!(kernel.sent(), [unhex(REQUEST)]);
    kernel.receive(WINDOW * 2, ANSWER);
    kernel.neighbour(WINDOW * 2);
    assert!(matches!(kernel.events()[..], [Event::Ip(_, IpOutcome::Resolved { .. })]));
}

/// `process_one_req` overwrites `status` with -ENODATA, then `set_timeout(req, req->timeout)` moves
/// the work that `netevent_callback` has queued.
#[test]
fn answers_and_neighbour_changes_during_a_resend_are_lost() {
    let mut kernel = kernel();
    kernel.ask();
    kernel.neighbour(WINDOW);
    kernel.receive(WINDOW, ANSWER);
    assert_eq!(kernel.events(), [Event::AnswerLost(Seq(12))]);
    kernel.neighbour(WINDOW);
    assert_eq!(kernel.sent(), [unhex(REQUEST), unhex(REQUEST)]);
    kernel.pass(WINDOW * 2);
    assert_eq!((kernel.events(), kernel.sent()), (vec![], vec![]));
    assert_eq!(kernel.0.poll_timeout(), Some(START + TIMEOUT));
}

/// `netevent_callback`
#[test]
fn each_neighbour_change_resends_every_pending_request_with_its_number() {
    let mut kernel = kernel();
    for _ in 0..3 {
        kernel.ask();
    }
    let first = kernel.sent();
    assert_eq!(first.iter().map(|bytes| bytes[8]).collect::<Vec<_>>(), [12, 13, 14]);
    kernel.receive(WINDOW, &ANSWER.replace("0c000000", "0d000000"));
    kernel.neighbour(WINDOW);
    assert_eq!(kernel.sent(), [first[0].clone(), first[2].clone()]);
    kernel.neighbour(WINDOW * 2);
    assert_eq!(kernel.sent(), [first[0].clone(), first[2].clone()]);
    assert!(matches!(kernel.events()[..], [Event::Ip(Seq(13), _)]));
}

/// `process_one_req` calls `addr_resolve` before it checks the time.
#[test]
fn request_is_resent_at_its_time_out_and_the_answer_ignored() {
    let mut kernel = kernel();
    kernel.ask();
    kernel.pass(TIMEOUT);
    assert_eq!(kernel.sent(), [unhex(REQUEST), unhex(REQUEST)]);
    kernel.receive(TIMEOUT, ANSWER);
    assert_eq!(kernel.events(), [Event::AnswerLost(Seq(12))]);
    kernel.pass(TIMEOUT + WINDOW);
    assert_eq!(kernel.events(), [Event::Ip(Seq(12), IpOutcome::TimedOut)]);
    kernel.receive(TIMEOUT + WINDOW, ANSWER);
    assert_eq!(kernel.events(), [Event::AnswerLost(Seq(12))]);
    assert_eq!(kernel.0.poll_timeout(), None);
}

/// `ib_nl_is_good_ip_resp`; measured with Linux 6.1.192 and 6.12.111
#[test]
fn malformed_answer_to_an_address_request_is_ignored() {
    let mut kernel = kernel();
    kernel.ask();
    for odd in [
        // No attribute, the error flag, the mandatory bit, a GID too short and one too long.
        "10000000 02100000 0c000000 ad030000",
        "24000000 02100001 0c000000 ad030000 14000400 fe80000000000000 0002c90300000014",
        "24000000 02100000 0c000000 ad030000 14000420 fe80000000000000 0002c90300000014",
        "1c000000 02100000 0c000000 ad030000 0c000400 fe80000000000000",
        "28000000 02100000 0c000000 ad030000 18000400 fe80000000000000 0002c90300000014 00000000",
        // Shorter than its stated length, as an attribute and as a message.
        "20000000 02100000 0c000000 ad030000 14000400 fe80000000000000 0002c903",
        "24000000 02100000 0c000000 ad030000 14000400 fe80000000000000 0002c903",
    ] {
        kernel.receive(WINDOW, odd);
    }
    kernel.neighbour(WINDOW);
    assert_eq!(kernel.events(), []);
    assert_eq!(kernel.sent(), [unhex(REQUEST), unhex(REQUEST)]);
    // Of several GIDs the kernel takes the last, behind unknown attributes.
    kernel.receive(
        WINDOW * 2,
        "40000000 02100000 0c000000 ad030000 08000b00 00000000
         14000400 00000000000000000000000000000000 14000400 fe800000000000000002c90300000014",
    );
    kernel.neighbour(WINDOW * 2);
    assert!(matches!(kernel.events()[..], [Event::Ip(_, IpOutcome::Resolved { gid: GID, .. })]));
}

/// `ib_nl_handle_ip_res_resp`, `ib_nl_handle_resolve_resp`, `netlink_ack`
#[test]
fn answer_with_the_request_flag_is_refused() {
    let mut kernel = kernel();
    kernel.ask();
    kernel.ask_path(PathUse::All);
    kernel.sent();
    kernel.receive(WINDOW, &ANSWER.replace("02100000", "02100100"));
    let refusal = "38000000 02000000 0c000000 ad030000 ffffffff
        24000000 02100100 0c000000 ad030000 14000400 fe80000000000000 0002c90300000014";
    assert_eq!(kernel.sent(), [unhex(refusal)]);
    kernel.receive(WINDOW, "10000000 00100101 01000000 ad030000");
    let refusal = "24000000 02000000 01000000 ad030000 ffffffff
        10000000 00100101 01000000 ad030000";
    assert_eq!(kernel.sent(), [unhex(refusal)]);
    assert_eq!(kernel.events(), []);
}

/// `ib_nl_handle_ip_res_resp` before 5.6, which returned `skb->len`
#[test]
fn old_kernel_follows_each_accepted_answer_by_a_positive_error() {
    let mut kernel = Rig(Kernel::new(Config { confirms: true, ..config() }));
    kernel.0.handle_input(START, Input::Listener(true));
    kernel.ask();
    kernel.sent();
    kernel.receive(WINDOW, ANSWER);
    let confirmation = "38000000 02000000 0c000000 ad030000 24000000
        24000000 02100000 0c000000 ad030000 14000400 fe80000000000000 0002c90300000014";
    assert_eq!(kernel.sent(), [unhex(confirmation)]);
    kernel.neighbour(WINDOW * 2);
    assert!(matches!(kernel.events()[..], [Event::Ip(Seq(12), IpOutcome::Resolved { .. })]));
}

/// `rdma_nl_rcv_msg`
#[test]
fn unknown_operation_is_refused_and_netlink_control_messages_are_not() {
    let mut kernel = kernel();
    kernel
        .receive(WINDOW, "10000000 03100000 01000000 ad030000 10000000 02000000 01000000 ad030000");
    let refusal = "24000000 02000000 01000000 ad030000 eaffffff
        10000000 03100000 01000000 ad030000";
    assert_eq!(kernel.sent(), [unhex(refusal)]);
}

/// `ib_nl_fetch_ha`, `send_mad`
#[test]
fn without_a_listener_addresses_fail_and_paths_go_to_the_sa() {
    let mut kernel = kernel();
    kernel.ask();
    kernel.sent();
    kernel.0.handle_input(START + WINDOW, Input::Listener(false));
    assert_eq!(kernel.0.resolve_ip(START + WINDOW, request(), TIMEOUT), Err(NoListener));
    assert_eq!(kernel.0.resolve_path(START + WINDOW, path_request(PathUse::All)), None);
    // `process_one_req`: a pending request fails when it cannot be sent again.
    kernel.neighbour(WINDOW);
    assert_eq!(kernel.events(), [Event::Ip(Seq(12), IpOutcome::NoListener)]);
    assert!(kernel.sent().is_empty());
    // The failed address request had a number, the path request had none.
    kernel.0.handle_input(START + WINDOW, Input::Listener(true));
    assert_eq!(kernel.0.resolve_ip(START + WINDOW, request(), TIMEOUT), Ok(Seq(14)));
    assert_eq!(kernel.0.resolve_path(START, path_request(PathUse::All)), Some(Seq(1)));
}

/// `ib_nl_addr_request_seq` and `ib_nl_sa_request_seq`
/// `rdma_nl_rcv_msg`, `rdma_nl_chk_listeners`: a listener whose answers are refused.
#[test]
fn callers_wait_in_vain_for_a_listener_that_is_refused() {
    for (errno, verdict) in [(1, "ffffffff"), (22, "eaffffff")] {
        let mut kernel = Rig(Kernel::new(Config { refuses: Some(errno), ..config() }));
        kernel.0.handle_input(START, Input::Listener(true));
        kernel.ask();
        kernel.receive(WINDOW, ANSWER);
        let [_, said] = &kernel.sent()[..] else { panic!("no error message") };
        assert_eq!(said[16..20], unhex(verdict));
        kernel.pass(TIMEOUT);
        kernel.pass(TIMEOUT + WINDOW);
        assert_eq!(kernel.events(), [Event::Ip(Seq(12), IpOutcome::TimedOut)]);
    }
}

/// The core joins and leaves the group as its outputs say.
#[test]
fn refused_daemon_leaves_the_group_and_blocks_no_caller() {
    for (refuses, confirms) in [(None, false), (None, true), (Some(1), false), (Some(22), false)] {
        let mut kernel = Rig(Kernel::new(Config { confirms, refuses, ..config() }));
        let mut core = LocalService::new(local_service::Config::default());
        let opened = local_service::Input::Opened { port_id: PortId(180), is_member: false };
        core.handle_input(START, opened);
        let mut refused_with = None;
        while let Some(transmit) = core.poll_transmit() {
            match transmit {
                local_service::Transmit::Message(message) => {
                    kernel.hear_bytes(Duration::ZERO, message.as_ref());
                }
                local_service::Transmit::Join => {
                    kernel.0.handle_input(START, Input::Listener(true));
                }
                local_service::Transmit::Leave(errno) => refused_with = Some(-errno),
                local_service::Transmit::Open | local_service::Transmit::Nudge(_) => {}
            }
            for bytes in kernel.sent() {
                let (sender, bytes) = (local_service::Sender::Kernel, &bytes[..]);
                let datagram = local_service::Input::Datagram { sender, bytes, cut: false };
                core.handle_input(START, datagram);
            }
            core.handle_input(START, local_service::Input::Drained);
        }
        assert_eq!(refused_with, refuses);
        let asked = kernel.0.resolve_ip(START, request(), TIMEOUT);
        assert_eq!(asked.is_err(), refuses.is_some(), "{asked:?}");
    }
}

#[test]
fn operations_share_sequence_numbers_with_gaps() {
    let mut kernel = Rig(Kernel::new(Config { path_seq: 11, ..config() }));
    kernel.0.handle_input(START, Input::Listener(true));
    assert_eq!(kernel.ask(), Seq(12));
    assert_eq!(kernel.ask_path(PathUse::All), Seq(12));
    kernel.0.count_ip();
    assert_eq!(kernel.ask(), Seq(14));
    // The answer to one is no answer to the other.
    kernel.receive(WINDOW, "10000000 00100001 0c000000 ad030000");
    kernel.neighbour(WINDOW);
    let asks_sa = PathOutcome::AsksSa(Reason::Told);
    assert_eq!(kernel.events(), [Event::Path(Seq(12), asks_sa)]);
}

/// `ib_nl_is_good_resolve_resp`, `ib_nl_process_good_resolve_rsp`
#[test]
fn path_request_ends_according_to_its_answer() {
    use PathOutcome::{AsksSa, Failed, Resolved};
    let record = unhex(PATH_ANSWER)[16..].to_vec();
    let with_flags = |flags: &[u8]| {
        let records = flags.iter().flat_map(|&flags| {
            let mut record = record.clone();
            record[4] = flags;
            record
        });
        records.collect::<Vec<_>>()
    };
    let mut too_long = record.clone();
    too_long[0] += 4;
    too_long.extend([0; 4]);
    let mut mandatory = record.clone();
    mandatory[3] = 0x20;
    for (path_use, flags, attributes, outcome) in [
        (PathUse::All, 0, record.clone(), Resolved(vec![0x2b])),
        (PathUse::Gmp, 0, record.clone(), Resolved(vec![0x2b])),
        (PathUse::All, 0, with_flags(&[0x2b, 0x12, 0x0a, 0x02]), Resolved(vec![0x2b, 0x12, 0x0a])),
        (PathUse::Unidirectional, 0, with_flags(&[0x12, 0x0a]), Resolved(vec![0x0a])),
        (PathUse::Gmp, 0, with_flags(&[0x0a]), Failed),
        (PathUse::All, 0, with_flags(&[0x01]), Failed),
        // Well-formed and without a usable path: none, an unknown one, half of one.
        (PathUse::All, 0, Vec::new(), Failed),
        (PathUse::All, 0, mandatory, Failed),
        (PathUse::All, 0, record[..40].to_vec(), Failed),
        // A path that is too long, a time-out that is too short.
        (PathUse::All, 0, too_long, AsksSa(Reason::Unreadable)),
        (PathUse::All, 0, unhex("06000200 00000000"), AsksSa(Reason::Unreadable)),
        (PathUse::All, 1, record.clone(), AsksSa(Reason::Told)),
    ] {
        let mut kernel = kernel();
        let seq = kernel.ask_path(path_use);
        let mut answer = unhex(PATH_ANSWER)[..16].to_vec();
        answer[0] = u8::try_from(16 + attributes.len()).unwrap_or(u8::MAX);
        answer[7] = flags;
        answer.extend(attributes);
        let length = u32::try_from(answer.len()).unwrap();
        answer[..4].copy_from_slice(&length.to_ne_bytes());
        // No answer is too early, and a second one is ignored.
        kernel.hear_bytes(Duration::ZERO, &answer);
        kernel.hear_bytes(Duration::ZERO, &answer);
        assert_eq!(kernel.events(), [Event::Path(seq, outcome)], "{answer:02x?}");
        assert_eq!(kernel.0.poll_timeout(), None);
    }
}

/// `ib_nl_request_timeout`, `ib_nl_handle_set_timeout`
#[test]
fn kernel_asks_the_sa_after_the_time_out_set_by_the_daemon() {
    let mut kernel = kernel();
    kernel.ask_path(PathUse::All);
    assert_eq!(kernel.0.poll_timeout(), Some(START + Duration::from_secs(2)));
    let told = |millis: u32| {
        let mut bytes = unhex("18000000 01100100 00000000 ad030000 08000200 00000000");
        bytes[20..].copy_from_slice(&millis.to_ne_bytes());
        bytes
    };
    for (millis, set) in [(500, 500), (1, 100), (u32::MAX, 200_000), (300, 300)] {
        kernel.hear_bytes(Duration::ZERO, &told(millis));
        assert_eq!(kernel.0.path_timeout(), Duration::from_millis(set));
        // Pending requests get the new time-out, too.
        assert_eq!(kernel.0.poll_timeout(), Some(START + Duration::from_millis(set)));
    }
    // Neighbours do not affect path requests.
    kernel.neighbour(Duration::from_millis(299));
    assert_eq!(kernel.events(), []);
    kernel.pass(Duration::from_millis(300));
    let asks_sa = PathOutcome::AsksSa(Reason::Silence);
    assert_eq!(kernel.events(), [Event::Path(Seq(1), asks_sa)]);
    kernel.sent();
    // A message without the request flag is refused; a message that asks for an acknowledgement
    // gets one.
    kernel.receive(Duration::ZERO, "18000000 01100000 00000000 ad030000 08000200 64000000");
    assert_eq!(kernel.sent()[0][16..20], unhex("ffffffff"));
    kernel.receive(Duration::ZERO, "18000000 01100500 00000000 ad030000 08000200 64000000");
    assert_eq!(
        kernel.sent(),
        [unhex("24000000 02000001 00000000 ad030000 00000000 18000000 01100500 00000000 ad030000")]
    );
    assert_eq!(kernel.0.path_timeout(), Duration::from_millis(100));
}

/// `ib_nl_make_request`, `ib_nl_ip_send_msg`
#[test]
fn kernel_checks_delivery_of_path_requests_only() {
    let mut kernel = kernel();
    kernel.ask();
    let transmit = kernel.0.poll_transmit().unwrap();
    kernel.0.not_delivered(&transmit);
    kernel.ask_path(PathUse::All);
    let transmit = kernel.0.poll_transmit().unwrap();
    kernel.0.not_delivered(&transmit);
    let asks_sa = PathOutcome::AsksSa(Reason::NoListener);
    assert_eq!(kernel.events(), [Event::Path(Seq(1), asks_sa)]);
    kernel.pass(WINDOW);
    assert_eq!(kernel.0.poll_timeout(), Some(START + TIMEOUT));
}

struct Rig(Kernel);

/// A kernel with a listener; its next address request has number 12.
fn kernel() -> Rig {
    let mut kernel = Kernel::new(config());
    kernel.handle_input(START, Input::Listener(true));
    Rig(kernel)
}

fn config() -> Config {
    Config { window: WINDOW, ip_seq: 11, path_seq: 0, confirms: false, refuses: None }
}

impl Rig {
    fn ask(&mut self) -> Seq {
        self.0.resolve_ip(START, request(), TIMEOUT).unwrap()
    }

    fn ask_path(&mut self, path_use: PathUse) -> Seq {
        self.0.resolve_path(START, path_request(path_use)).unwrap()
    }

    fn receive(&mut self, at: Duration, hex: &str) {
        self.hear_bytes(at, &unhex(hex));
    }

    fn hear_bytes(&mut self, at: Duration, bytes: &[u8]) {
        self.0.handle_input(START + at, Input::Datagram(bytes));
    }

    fn neighbour(&mut self, at: Duration) {
        self.0.handle_input(START + at, Input::Neighbour(NEIGHBOUR));
    }

    fn pass(&mut self, at: Duration) {
        self.0.handle_timeout(START + at);
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.0.poll_transmit()).map(|transmit| transmit.bytes).collect()
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.0.poll_event()).collect()
    }
}

fn request() -> ResolveIp {
    parsed(REQUEST, |request| match request {
        Request::ResolveIp(request) => Some(request),
        Request::ResolvePath(_) => None,
    })
}

fn path_request(path_use: PathUse) -> ResolvePath {
    parsed(PATH_REQUEST, |request| match request {
        Request::ResolvePath(request) => Some(ResolvePath { path_use, ..request }),
        Request::ResolveIp(_) => None,
    })
}

fn parsed<T>(hex: &str, pick: impl Fn(Request) -> Option<T>) -> T {
    let bytes = unhex(hex);
    let message = ibarr_common::wire::ls::messages(&bytes).next().unwrap().unwrap();
    pick(Request::parse(&message).unwrap()).unwrap()
}

fn unhex(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex.chars().filter(|c| !c.is_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&String::from_iter(pair), 16).unwrap()).collect()
}
