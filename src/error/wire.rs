//! An error on its way through a socket: the whole chain travels (words, errno, kind, hint), so that a failure in the
//! container's init reads the same as one in the parent.

use super::{Error, Kind};

/// The bytes of an error, for a message to the parent.
pub(crate) fn to_bytes(error: &Error) -> Vec<u8> {
    serde_json::to_vec(error).unwrap_or_default()
}

/// The error that `bytes` hold. A torn or foreign message is an error as well, never a panic.
pub(crate) fn from_bytes(bytes: &[u8]) -> Error {
    serde_json::from_slice(bytes)
        .unwrap_or_else(|_| Error::new(Kind::Lost, format!("a torn error message of {} bytes arrived", bytes.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_survives_the_wire_whole() {
        let error = Error::os(Kind::Mount, rustix::io::Errno::PERM)
            .doing("mount `proc`")
            .doing("start `web-1`")
            .hint("do this");
        let back = from_bytes(&to_bytes(&error));
        assert_eq!(back.to_string(), error.to_string());
        assert_eq!((back.kind(), back.errno(), back.advice()), (error.kind(), error.errno(), error.advice()));
    }

    #[test]
    fn a_torn_message_is_an_error() {
        assert_eq!(from_bytes(b"{\"kind\":").kind(), Kind::Lost);
    }
}
