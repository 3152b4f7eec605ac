//! The client's end: one JSON document a line on standard input and output, with bounds on what a client can pile up.
//!
//! A message of more than [`MAX_MESSAGE`] bytes is dropped and answered with an error. With [`MAX_REQUESTS`] requests
//! without a written reply the server reads no further line: a client that does not read its replies stops itself.

use super::LAST_CALLS;
use super::running::Calls;
use crate::host::is_off;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
};
use rmcp::service::RoleServer;
use rmcp::transport::Transport;
use serde::Deserialize;
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

struct Replies {
    open: Mutex<HashSet<RequestId>>,
    has_room: Notify,
    out: tokio::sync::Mutex<Stdout>,
    /// Notified when the client takes no more replies.
    end: Arc<Notify>,
}

impl Connection {
    /// Notifies `end` when the client takes no more; cancels `calls` soon after it sends no more.
    pub(super) fn open(end: Arc<Notify>, calls: Arc<Calls>) -> Connection {
        let (sender, received) = mpsc::channel(1);
        let (open, has_room, out) = (Mutex::default(), Notify::new(), tokio::sync::Mutex::new(tokio::io::stdout()));
        let replies = Arc::new(Replies { open, has_room, out, end });
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
        let message = match lines.next().await {
            None => return,
            Some(Line::Whole(bytes)) => match serde_json::from_slice(&bytes) {
                Ok(message) => message,
                // No reply can be matched to it, and a client could answer an error with more noise.
                Err(_) => continue,
            },
            Some(Line::TooLong(id)) => {
                let words = format!("a message has at most {MAX_MESSAGE} bytes: send a large file in pieces");
                if replies.refuse(id, words).await.is_err() {
                    return;
                }
                continue;
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
        let done = match refused {
            Some(id) => replies.refuse(Some(id), "a request with this id has no reply yet".to_owned()).await.is_ok(),
            None => sender.send(message).await.is_ok(),
        };
        if !done {
            return;
        }
    }
}

impl Replies {
    fn open(&self) -> std::sync::MutexGuard<'_, HashSet<RequestId>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn wait_for_room(&self) {
        while self.open().len() >= MAX_REQUESTS && !is_off("mcp-requests") {
            self.has_room.notified().await;
        }
    }

    /// `false` if a request with this id waits already.
    fn begin(&self, id: &RequestId) -> bool {
        self.open().insert(id.clone())
    }

    fn finish(&self, id: &RequestId) {
        if self.open().remove(id) {
            self.has_room.notify_one();
        }
    }

    /// A cancelled request gets no reply.
    fn note_cancelled(&self, notification: &ClientNotification) {
        if let ClientNotification::CancelledNotification(cancelled) = notification
            && let Some(id) = &cancelled.params.request_id
        {
            self.finish(id);
        }
    }

    /// Writes an error outside of rmcp.
    async fn refuse(&self, id: Option<RequestId>, words: String) -> io::Result<()> {
        self.write(&ServerJsonRpcMessage::error(ErrorData::invalid_request(words, None), id)).await
    }

    async fn send(&self, message: &ServerJsonRpcMessage) -> io::Result<()> {
        let written = self.write(message).await;
        match message {
            JsonRpcMessage::Response(response) => self.finish(&response.id),
            JsonRpcMessage::Error(error) => error.id.iter().for_each(|id| self.finish(id)),
            _ => {}
        }
        written
    }

    async fn write(&self, message: &ServerJsonRpcMessage) -> io::Result<()> {
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
