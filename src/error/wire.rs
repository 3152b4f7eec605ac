//! Errors between processes. The whole chain crosses, so an error of init reads like one of its parent.

use super::{Error, Kind};

pub(crate) fn to_bytes(error: &Error) -> Vec<u8> {
    serde_json::to_vec(error).unwrap_or_default()
}

/// A torn or foreign message becomes an error too, never a panic.
pub(crate) fn from_bytes(bytes: &[u8]) -> Error {
    serde_json::from_slice(bytes)
        .unwrap_or_else(|_| Error::new(Kind::Lost, format!("a torn error message of {} bytes arrived", bytes.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_chain_survives_the_wire() {
        let error = Error::os(Kind::Mount, rustix::io::Errno::PERM)
            .doing("mount `proc`")
            .doing("start `web-1`")
            .hint("do this");
        let back = from_bytes(&to_bytes(&error));
        assert_eq!(back.to_string(), error.to_string());
        assert_eq!((back.kind(), back.errno(), back.advice()), (error.kind(), error.errno(), error.advice()));
    }

    #[test]
    fn torn_message_is_an_error() {
        assert_eq!(from_bytes(b"{\"kind\":").kind(), Kind::Lost);
    }
}
