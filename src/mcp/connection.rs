//! The client's end: one JSON document a line on standard input and output, with bounds on what a client can pile up.
//!
//! A message of more than [`MAX_MESSAGE`] bytes is dropped and answered with an error, and so is an unreadable one. With
//! [`MAX_REQUESTS`] requests without a written reply the server reads no further message: a client that does not read
//! its replies stops itself.

use super::LAST_CALLS;
use super::running::Calls;
use crate::host::is_off;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
};
use rmcp::service::RoleServer;
use rmcp::transport::Transport;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};
use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWriteExt, BufReader, Stdout};
use tokio::sync::{Notify, mpsc};

/// Bytes of a message: a file of six megabytes in base64, with room.
const MAX_MESSAGE: usize = 8 << 20;
const MAX_REQUESTS: usize = 64;

pub(super) struct Connection {
    received: mpsc::Receiver<ClientJsonRpcMessage>,
    replies: Arc<Replies>,
}

#[derive(Default)]
struct Pending {
    /// Requests without a reply.
    open: HashSet<RequestId>,
    /// Messages that the client has not taken yet. A cancellation does not remove them.
    writing: usize,
}

struct Replies {
    pending: Mutex<Pending>,
    has_room: Notify,
    out: tokio::sync::Mutex<Stdout>,
    /// Notified when the client takes no more replies.
    end: Arc<Notify>,
}

impl Connection {
    /// Notifies `end` when the client takes no more; cancels `calls` soon after it sends no more.
    pub(super) fn open(end: Arc<Notify>, calls: Arc<Calls>) -> Connection {
        let (sender, received) = mpsc::channel(1);
        let (pending, has_room) = (Mutex::default(), Notify::new());
        let replies = Arc::new(Replies { pending, has_room, out: tokio::sync::Mutex::new(tokio::io::stdout()), end });
        let of_reader = Arc::clone(&replies);
        tokio::spawn(async move {
            let mut lines = Lines::new(BufReader::new(tokio::io::stdin()));
            read(&mut lines, &sender, &of_reader).await;
            drop(sender);
            tokio::time::sleep(LAST_CALLS).await;
            calls.cancel_all();
        });
        Connection { received, replies }
    }
}

impl Transport<RoleServer> for Connection {
    type Error = io::Error;

    fn send(&mut self, message: ServerJsonRpcMessage) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let replies = Arc::clone(&self.replies);
        // Before the future runs: a cancellation in between would remove the request, and the reply would not count.
        replies.begin_reply(&message);
        async move { replies.send(&message).await }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        self.received.recv().await
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn read(
    lines: &mut Lines<impl AsyncBufRead + Unpin>,
    sender: &mpsc::Sender<ClientJsonRpcMessage>,
    replies: &Replies,
) {
    loop {
        replies.wait_for_room().await;
        let done = match lines.next().await {
            None => return,
            Some(Line::Whole(bytes)) => receive_line(&bytes, sender, replies).await,
            Some(Line::TooLong(id)) => {
                let words = format!("a message has at most {MAX_MESSAGE} bytes: send a large file in pieces");
                replies.refuse(id, ErrorData::invalid_request(words, None)).await.is_ok()
            }
        };
        if !done {
            return;
        }
    }
}

/// Returns `false` at the end of the session. A line of revision 2025-03-26 may be an array of messages.
async fn receive_line(bytes: &[u8], sender: &mpsc::Sender<ClientJsonRpcMessage>, replies: &Replies) -> bool {
    if bytes.trim_ascii_start().first() != Some(&b'[') {
        return receive_message(bytes, sender, replies).await;
    }
    let refused = match serde_json::from_slice::<Vec<&RawValue>>(bytes) {
        Ok(messages) if (1..=MAX_REQUESTS).contains(&messages.len()) => {
            for message in messages {
                replies.wait_for_room().await;
                if !receive_message(message.get().as_bytes(), sender, replies).await {
                    return false;
                }
            }
            return true;
        }
        Ok(_) => ErrorData::invalid_request(format!("an array has 1 to {MAX_REQUESTS} messages"), None),
        Err(cause) => ErrorData::parse_error(cause.to_string(), None),
    };
    replies.refuse(None, refused).await.is_ok()
}

/// Returns `false` at the end of the session.
async fn receive_message(bytes: &[u8], sender: &mpsc::Sender<ClientJsonRpcMessage>, replies: &Replies) -> bool {
    let message = match serde_json::from_slice(bytes) {
        Ok(message) => message,
        Err(_) => {
            return match why_unreadable(bytes) {
                Some((id, error)) => replies.refuse(id, error).await.is_ok(),
                None => true,
            };
        }
    };
    let refused = match &message {
        JsonRpcMessage::Request(request) if !replies.begin(&request.id) => Some(request.id.clone()),
        JsonRpcMessage::Notification(notification) => {
            replies.note_cancelled(&notification.notification);
            None
        }
        _ => None,
    };
    match refused {
        Some(id) => {
            let error = ErrorData::invalid_request("a request with this id has no reply yet", None);
            replies.refuse(Some(id), error).await.is_ok()
        }
        None => sender.send(message).await.is_ok(),
    }
}

/// The error for a message that cannot be read; `None` for a reply, whose sender waits for nothing.
fn why_unreadable(bytes: &[u8]) -> Option<(Option<RequestId>, ErrorData)> {
    let message: Json = match serde_json::from_slice(bytes) {
        Ok(message) => message,
        Err(cause) => {
            return Some((find_id(bytes, bytes.trim_ascii()), ErrorData::parse_error(cause.to_string(), None)));
        }
    };
    if message.get("method").is_none() && (message.get("result").is_some() || message.get("error").is_some()) {
        return None;
    }
    let id = message.get("id").and_then(|id| serde_json::from_value(id.clone()).ok());
    Some((id, ErrorData::invalid_request("it is not a message of JSON-RPC 2.0", None)))
}

impl Replies {
    fn pending(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_room(&self) -> bool {
        let pending = self.pending();
        pending.open.len() + pending.writing < MAX_REQUESTS || is_off("mcp-requests")
    }

    async fn wait_for_room(&self) {
        while !self.has_room() {
            self.has_room.notified().await;
        }
    }

    /// `false` if a request with this id waits already.
    fn begin(&self, id: &RequestId) -> bool {
        self.pending().open.insert(id.clone())
    }

    fn begin_reply(&self, message: &ServerJsonRpcMessage) {
        let mut pending = self.pending();
        pending.writing += 1;
        let id = match message {
            JsonRpcMessage::Response(response) => Some(&response.id),
            JsonRpcMessage::Error(error) => error.id.as_ref(),
            _ => None,
        };
        id.map(|id| pending.open.remove(id));
    }

    /// A cancelled request gets no reply.
    fn note_cancelled(&self, notification: &ClientNotification) {
        if let ClientNotification::CancelledNotification(cancelled) = notification
            && let Some(id) = &cancelled.params.request_id
        {
            self.pending().open.remove(id);
            self.has_room.notify_one();
        }
    }

    /// Writes an error outside of rmcp. Without an id it is null, as JSON-RPC wants.
    async fn refuse(&self, id: Option<RequestId>, error: ErrorData) -> io::Result<()> {
        self.write(&json!({ "jsonrpc": "2.0", "id": id, "error": error })).await
    }

    async fn send(&self, message: &ServerJsonRpcMessage) -> io::Result<()> {
        let written = self.write(message).await;
        self.pending().writing -= 1;
        self.has_room.notify_one();
        written
    }

    async fn write(&self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        let mut out = self.out.lock().await;
        let written = match out.write_all(&line).await {
            Ok(()) => out.flush().await,
            Err(cause) => Err(cause),
        };
        if written.is_err() {
            self.end.notify_one();
        }
        written
    }
}

#[derive(Debug, PartialEq)]
enum Line {
    /// A line without its end.
    Whole(Vec<u8>),
    /// The message's id, if found.
    TooLong(Option<RequestId>),
}

struct Lines<Input> {
    input: Input,
    longest: usize,
}

impl<Input: AsyncBufRead + Unpin> Lines<Input> {
    fn new(input: Input) -> Lines<Input> {
        Lines { input, longest: if is_off("mcp-message") { usize::MAX } else { MAX_MESSAGE } }
    }

    /// Skips empty lines; `None` at the end of input or after an error. An unfinished last line is dropped.
    async fn next(&mut self) -> Option<Line> {
        let (mut line, mut tail) = (Vec::new(), Vec::new());
        loop {
            let available = self.input.fill_buf().await.ok()?;
            if available.is_empty() {
                return None;
            }
            let end = available.iter().position(|&byte| byte == b'\n');
            let piece = &available[..end.unwrap_or(available.len())];
            let is_too_long = !tail.is_empty() || line.len() + piece.len() > self.longest;
            if is_too_long {
                // The beginning and the end are enough to find the id.
                if tail.is_empty() {
                    tail.extend_from_slice(&line[line.len().saturating_sub(KEPT)..]);
                    line.truncate(KEPT);
                    line.shrink_to_fit();
                }
                tail.extend_from_slice(&piece[piece.len().saturating_sub(KEPT)..]);
                tail.drain(..tail.len().saturating_sub(KEPT));
            } else {
                line.extend_from_slice(piece);
            }
            let consumed = piece.len() + usize::from(end.is_some());
            self.input.consume(consumed);
            match end {
                None => {}
                Some(_) if is_too_long => return Some(Line::TooLong(find_id(&line, tail.trim_ascii()))),
                Some(_) if line.trim_ascii().is_empty() => line.clear(),
                Some(_) => return Some(Line::Whole(line)),
            }
        }
    }
}

/// Of the beginning and the end of a message that is too long to be read.
const KEPT: usize = 1024;
/// How messages begin whose id is not their last key.
const BEGINNINGS: [&[u8]; 2] = [br#"{"jsonrpc":"2.0","id":"#, br#"{"id":"#];
const KEY: &[u8] = br#""id":"#;

#[derive(Deserialize)]
struct OnlyId {
    id: RequestId,
}

/// The id of a message that is too long: its sender gets an error and does not wait for ever. The SDKs write it at the beginning of a message, or as its last key.
fn find_id(head: &[u8], tail: &[u8]) -> Option<RequestId> {
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
    fn a_line_is_whole_or_too_long_however_the_input_is_cut() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let long = format!(r#"{{"x":"{}","id":5}}"#, "y".repeat(100));
        let text = format!("\n{{\"a\":1}}\r\n \n{long}\nlast\n{long}");
        for cut in 1..text.len() {
            let input = BufReader::with_capacity(cut, text.as_bytes());
            let mut lines = Lines { input, longest: 50 };
            let found: Vec<_> = runtime.block_on(async {
                let mut found = Vec::new();
                while let Some(line) = lines.next().await {
                    found.push(line);
                }
                found
            });
            let whole = |text: &str| Line::Whole(text.into());
            let expected = [whole("{\"a\":1}\r"), Line::TooLong(Some(RequestId::Number(5))), whole("last")];
            assert_eq!(found, expected, "pieces of {cut}");
        }
    }

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
