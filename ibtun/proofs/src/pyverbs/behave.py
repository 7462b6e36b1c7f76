# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

"""Small programs: for each behaviour and warning one that is right, and one that relies on what the specification does not
say.

Arguments: the device and the programs, such as `fields-wrong`. Prints whether each gets what it expects.
"""

import sys

from pyverbs.addr import AHAttr
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.enums import IBV_ACCESS_LOCAL_WRITE, IBV_QPS_ERR, IBV_QPS_RESET, IBV_QPT_RC, IBV_WC_RECV, IBV_WC_SEND, IBV_WR_SEND
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

DEVICE, PROGRAMS = sys.argv[1], sys.argv[2:]
PORT = 1
# No queue pair has this number.
NOBODY = 0xFFFFF0
MESSAGES = 4
SIZE = 8

context = Context(name=DEVICE)
pd = PD(context)
mr = MR(pd, 2 * MESSAGES * SIZE, IBV_ACCESS_LOCAL_WRITE)


def queue_pair(cq, srq=None):
    cap = QPCap(max_send_wr=MESSAGES, max_recv_wr=MESSAGES)
    return QP(pd, QPInitAttr(qp_type=IBV_QPT_RC, scq=cq, rcq=cq, srq=srq, cap=cap, sq_sig_all=1), QPAttr(port_num=PORT))


def place(number):
    return SGE(mr.buf + SIZE * number, SIZE, mr.lkey)


def send(qp, number):
    qp.post_send(SendWR(MESSAGES + number, opcode=IBV_WR_SEND, num_sge=1, sg=[place(MESSAGES + number)]))


def completions(cq, count):
    found = []
    while len(found) < count:
        found.extend(cq.poll(count - len(found))[1])
    return found


def fields(right):
    """Takes its buffers back when the queue pair has failed: receives have the first ones. The wrong one tells them apart
    by the opcode."""
    cq = CQ(context, 2 * MESSAGES)
    qp = queue_pair(cq)
    for number in range(MESSAGES):
        qp.post_recv(RecvWR(number, 1, [place(number)]))
    qp.modify(QPAttr(qp_state=IBV_QPS_ERR), 1)
    for number in range(MESSAGES):
        send(qp, number)
    flushed = completions(cq, 2 * MESSAGES)
    assert all(wc.status == 5 and wc.qp_num == qp.qp_num for wc in flushed), flushed
    received = [wc for wc in flushed if (wc.wr_id < MESSAGES if right else wc.opcode == IBV_WC_RECV)]
    sent = [wc for wc in flushed if (wc.wr_id >= MESSAGES if right else wc.opcode == IBV_WC_SEND)]
    return len(received) == len(sent) == MESSAGES


def numbers(right):
    """Keeps what it knows of each connection by its number. The wrong one does not forget it."""
    cq = CQ(context, 1)
    known = set()
    for _ in range(MESSAGES):
        qp = queue_pair(cq)
        number = qp.qp_num
        if number in known:
            return False
        known.add(number)
        qp.close()
        if right:
            known.remove(number)
    return True


def connect(qp, peer, psn=0, timeout=14):
    attr = QPAttr(port_num=PORT)
    attr.dest_qp_num = peer
    attr.sq_psn = psn
    attr.path_mtu = 3
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
    attr.min_rnr_timer = 12
    attr.timeout = timeout
    attr.retry_cnt = attr.rnr_retry = 7
    attr.ah_attr = AHAttr(dlid=context.query_port(PORT).lid, port_num=PORT)
    qp.to_rts(attr)


def srq_order(right):
    """Looks for each message where its receive has put it. The wrong one takes the receives to be used in order."""
    sends, receives = CQ(context, MESSAGES), CQ(context, MESSAGES)
    srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=MESSAGES)))
    for number in range(MESSAGES):
        srq.post_recv(RecvWR(number, 1, [place(number)]))
    sender, receiver = queue_pair(sends), queue_pair(receives, srq)
    connect(receiver, sender.qp_num)
    connect(sender, receiver.qp_num)
    texts = [f"message{number}"[:SIZE] for number in range(MESSAGES)]
    texts = [text[:-1] + str(number) for number, text in enumerate(texts)]
    for number, text in enumerate(texts):
        mr.write(text, SIZE, SIZE * (MESSAGES + number))
        send(sender, number)
    seen = []
    for index, wc in enumerate(completions(receives, MESSAGES)):
        assert wc.status == 0, wc
        seen.append(mr.read(SIZE, SIZE * (wc.wr_id if right else index)).decode())
    return seen == texts


def psn(right):
    """Begins with a random PSN. The wrong one takes 32 bits."""
    qp = queue_pair(CQ(context, 1))
    connect(qp, qp.qp_num, 0xABCDEF if right else 0xABCDEF01)
    return True


def reset(right):
    """Gives up a connection that nobody answers. The wrong one leaves the request in the queue."""
    cq = CQ(context, 1)
    qp = queue_pair(cq)
    connect(qp, NOBODY)
    send(qp, 0)
    if right:
        qp.modify(QPAttr(qp_state=IBV_QPS_ERR), 1)
        completions(cq, 1)
    qp.modify(QPAttr(qp_state=IBV_QPS_RESET), 1)
    return True


def timeout(right):
    """Sends to a queue pair that may not answer. The wrong one waits for ever."""
    qp = queue_pair(CQ(context, 1))
    connect(qp, NOBODY, timeout=14 if right else 0)
    return True


def run(program, right):
    try:
        return program(right)
    except PyverbsRDMAError:
        return False


programs = {"fields": fields, "numbers": numbers, "srq-order": srq_order, "psn": psn, "reset": reset, "time-out": timeout}
for program in PROGRAMS:
    name, kind = program.rsplit("-", 1)
    print(program, "works" if run(programs[name], kind == "right") else "is broken")
