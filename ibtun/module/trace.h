/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Trace events: what consumers call, and what becomes of it. Each is printed as
 * words of the form name=value, which `ibfab trace --calls` reads.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM ibtun

#if !defined(IBTUN_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define IBTUN_TRACE_H

#include <linux/tracepoint.h>
#include <rdma/ib_verbs.h>

/*
 * A call of struct ib_device_ops. A queue pair is known by its number, memory by
 * its L_Key, an address handle by its LID, a queue by a number of its own.
 */
TRACE_EVENT(ibtun_call,
	    TP_PROTO(int unit, const char *call, const char *kind, u32 object, const char *name,
		     u64 value, long result),
	    TP_ARGS(unit, call, kind, object, name, value, result),
	    TP_STRUCT__entry(__field(int, unit)
			     __array(char, call, 16)
			     __array(char, kind, 8)
			     __field(u32, object)
			     __array(char, name, 8)
			     __field(u64, value)
			     __field(long, result)),
	    TP_fast_assign(__entry->unit = unit;
			   strscpy(__entry->call, call, sizeof(__entry->call));
			   strscpy(__entry->kind, kind, sizeof(__entry->kind));
			   __entry->object = object;
			   strscpy(__entry->name, name, sizeof(__entry->name));
			   __entry->value = value;
			   __entry->result = result;),
	    TP_printk("device=ibtun%d call=%s %s=%u %s=%llu result=%ld", __entry->unit,
		      __entry->call, __entry->kind, __entry->object, __entry->name,
		      __entry->value, __entry->result)
);

/* Before IBTUN_BEHAVIOUR_FIELDS changes it. */
TRACE_EVENT(ibtun_completion,
	    TP_PROTO(int unit, const struct ib_wc *wc),
	    TP_ARGS(unit, wc),
	    TP_STRUCT__entry(__field(int, unit)
			     __field(u32, qpn)
			     __field(u64, id)
			     __field(u32, status)
			     __field(u32, opcode)
			     __field(u32, length)),
	    TP_fast_assign(__entry->unit = unit;
			   __entry->qpn = wc->qp->qp_num;
			   __entry->id = wc->wr_id;
			   __entry->status = wc->status;
			   __entry->opcode = wc->opcode;
			   __entry->length = wc->byte_len;),
	    TP_printk("device=ibtun%d qp=%u wr_id=%llu status=%u opcode=%u length=%u",
		      __entry->unit, __entry->qpn, __entry->id, __entry->status, __entry->opcode,
		      __entry->length)
);

/* A requester sends again from the PSN on. */
TRACE_EVENT(ibtun_retry,
	    TP_PROTO(int unit, u32 qpn, u32 psn, const char *reason),
	    TP_ARGS(unit, qpn, psn, reason),
	    TP_STRUCT__entry(__field(int, unit)
			     __field(u32, qpn)
			     __field(u32, psn)
			     __array(char, reason, 16)),
	    TP_fast_assign(__entry->unit = unit;
			   __entry->qpn = qpn;
			   __entry->psn = psn;
			   strscpy(__entry->reason, reason, sizeof(__entry->reason));),
	    TP_printk("device=ibtun%d qp=%u psn=%u reason=%s", __entry->unit, __entry->qpn,
		      __entry->psn, __entry->reason)
);

/* An asynchronous event, of enum ib_event_type. Of a queue the number is 0. */
TRACE_EVENT(ibtun_event,
	    TP_PROTO(int unit, u32 event, const char *kind, u32 number),
	    TP_ARGS(unit, event, kind, number),
	    TP_STRUCT__entry(__field(int, unit)
			     __field(u32, event)
			     __array(char, kind, 8)
			     __field(u32, number)),
	    TP_fast_assign(__entry->unit = unit;
			   __entry->event = event;
			   strscpy(__entry->kind, kind, sizeof(__entry->kind));
			   __entry->number = number;),
	    TP_printk("device=ibtun%d number=%u %s=%u", __entry->unit, __entry->event,
		      __entry->kind, __entry->number)
);

#endif /* IBTUN_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
