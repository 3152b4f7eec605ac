//! The id in a message that is too long to be read: its sender gets an error and does not wait for ever.

use rmcp::model::RequestId;
use serde::Deserialize;

pub(super) const KEPT: usize = 1024;
/// How messages begin whose id is not their last key.
const BEGINNINGS: [&[u8]; 2] = [br#"{"jsonrpc":"2.0","id":"#, br#"{"id":"#];
const KEY: &[u8] = br#""id":"#;

#[derive(Deserialize)]
struct OnlyId {
    id: RequestId,
}

/// The SDKs write it at the beginning of a message, or as its last key.
pub(super) fn find_id(head: &[u8], tail: &[u8]) -> Option<RequestId> {
    id_at_beginning(head).or_else(|| id_at_end(tail))
}

fn id_at_beginning(head: &[u8]) -> Option<RequestId> {
    let rest = BEGINNINGS.iter().find_map(|beginning| head.strip_prefix(*beginning))?;
    serde_json::Deserializer::from_slice(rest).into_iter().next()?.ok()
}

/// The rest from the last `"id":` on is a whole object only if that is a key of the message itself.
fn id_at_end(tail: &[u8]) -> Option<RequestId> {
    let at = tail.windows(KEY.len()).rposition(|window| window == KEY)?;
    let object = [b"{", &tail[at..]].concat();
    serde_json::from_slice::<OnlyId>(&object).ok().map(|found| found.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_of_a_long_message_is_first_or_last() {
        let check = |head: &str, tail: &str, expected: Option<RequestId>| {
            assert_eq!(find_id(head.as_bytes(), tail.as_bytes()), expected, "{head} … {tail}");
        };
        let number = |id| Some(RequestId::Number(id));
        check(r#"{"jsonrpc":"2.0","id":7,"method":"too"#, "xxx", number(7));
        check(r#"{"id":7,"jsonrpc":"2.0","method":"too"#, "xxx", number(7));
        check(r#"{"jsonrpc":"2.0","id":"a","method":"too"#, "xxx", Some(RequestId::String("a".into())));
        check(r#"{"method":"tools/call","params":{"#, r#"xx"}},"jsonrpc":"2.0","id":8}"#, number(8));
        check(r#"{"method":"tools/call","params":{"#, r#"xx"}},"id":8,"jsonrpc":"2.0"}"#, number(8));
        check(r#"{"method":"tools/call","params":{"#, r#"xx","id":8}}}"#, None);
        check(r#"{"method":"tools/call","params":{"#, r#"xx \"id\":8}"#, None);
        check("xxxx", "xxxx", None);
    }
}
