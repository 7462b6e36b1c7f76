// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! MADs, and what a umad device gives, are written as they were read.

use ibarr_common::wire::mad::{self, Header};
use ibarr_common::wire::path_record::Fields;
use ibarr_common::wire::sa::{Answer, Request, Response, other_records};
use ibarr_common::wire::umad::{HEADER_LEN, Received};

/// The codecs of MADs write each accepted MAD as one that they read as the same. No MAD is both a question
/// and an answer. The bytes of a umad device are a MAD to their end, or a header.
///
/// # Panics
/// The claim does not hold for `bytes`.
pub fn mad_codec(bytes: &[u8]) {
    check(bytes);
    match Received::parse(bytes) {
        Ok(Received::Mad { mad, .. }) => {
            assert_eq!(mad, &bytes[HEADER_LEN..]);
            check(mad);
        }
        Ok(Received::Unanswered { agent, tid }) => {
            let received = Received::Unanswered { agent, tid };
            let again = received.emit(&bytes[HEADER_LEN..]);
            assert_eq!(Received::parse(again.as_ref()), Ok(received));
        }
        Err(mad::Error::Truncated) => assert!(bytes.len() < HEADER_LEN + 24),
        Err(error) => assert_eq!(error, mad::Error::BaseVersion),
    }
}

fn check(mad: &[u8]) {
    let (request, response) = (Request::parse(mad), Response::parse(mad));
    assert!(request.is_err() || response.is_err());
    assert!(Header::parse(mad).is_ok() || request.is_err() && response.is_err());
    if let Ok(request) = request {
        assert_eq!(Request::parse(request.emit().as_ref()), Ok(request));
    }
    if let Ok(response) = response {
        assert_eq!(Response::parse(response.emit().as_ref()), Ok(response));
        if let Answer::Path(record) = response.answer {
            assert_eq!(record.octets(), mad[56..120]);
            assert!(other_records(mad).count() <= mad.len() / record.octets().len());
            let fields = Fields::parse(&record).expect("checked when it was read");
            assert_eq!(Fields::parse(&fields.emit()), Ok(fields));
        }
    }
}
