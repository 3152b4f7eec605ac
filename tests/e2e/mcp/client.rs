//! A small MCP client: one JSON document a line over the pipes of `brig mcp`.

use crate::support::{Lab, Task};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Longer than any call of these tests.
const LONGEST: Duration = Duration::from_secs(60);

/// A session. Its drop closes the client's end and waits for the server.
pub struct Client {
    child: Child,
    input: Option<ChildStdin>,
    replies: Receiver<Value>,
    last: u64,
    is_paused: Arc<AtomicBool>,
}

/// The result of a call.
#[derive(Debug)]
pub struct Done(pub Value);

impl Client {
    /// Starts `brig mcp` with these flags, and a session of the newest revision with a handshake.
    #[track_caller]
    pub fn new(lab: &Lab, flags: &[&str]) -> Client {
        Client::of(server(lab, flags))
    }

    /// The same with a command of the server.
    #[track_caller]
    pub fn of(task: Task<'_>) -> Client {
        let mut client = Client::start(task);
        client.initialize("2025-11-25");
        client
    }

    /// Starts the server without a session.
    #[track_caller]
    pub fn start(task: Task<'_>) -> Client {
        let mut command = task.command();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, replies) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        let is_paused = Arc::new(AtomicBool::new(false));
        let of_reader = Arc::clone(&is_paused);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                while of_reader.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                // Standard output has nothing but the protocol.
                let reply = serde_json::from_str(&line).unwrap_or_else(|_| json!({ "not JSON": line }));
                if sender.send(reply).is_err() {
                    return;
                }
            }
        });
        Client { input: child.stdin.take(), child, replies, last: 0, is_paused }
    }

    /// The handshake; returns its result.
    #[track_caller]
    pub fn initialize(&mut self, version: &str) -> Value {
        let client = json!({ "name": "test", "version": "1" });
        let params = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": client });
        let reply = self.ask("initialize", params);
        self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        reply["result"].clone()
    }

    /// Writes one line.
    #[track_caller]
    pub fn write(&mut self, line: &[u8]) {
        let input = self.input.as_mut().unwrap();
        input.write_all(line).and_then(|()| input.write_all(b"\n")).and_then(|()| input.flush()).unwrap();
    }

    #[track_caller]
    pub fn send(&mut self, message: &Value) {
        self.write(message.to_string().as_bytes());
    }

    /// Sends a request and returns its id.
    #[track_caller]
    pub fn request(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        let id = self.last;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    /// The next message of the server.
    #[track_caller]
    pub fn receive(&mut self) -> Value {
        self.replies.recv_timeout(LONGEST).unwrap_or_else(|_| panic!("the server does not reply"))
    }

    /// Sends a request and returns its reply; drops replies to others.
    #[track_caller]
    pub fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params);
        loop {
            let reply = self.receive();
            if reply["id"] == id {
                return reply;
            }
        }
    }

    /// Begins a call of a tool and returns its id.
    #[track_caller]
    pub fn begin(&mut self, tool: &str, arguments: Value) -> u64 {
        self.request("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    /// Calls a tool.
    #[track_caller]
    pub fn call(&mut self, tool: &str, arguments: Value) -> Done {
        let reply = self.ask("tools/call", json!({ "name": tool, "arguments": arguments }));
        assert!(reply["result"].is_object(), "no result: {reply:#}");
        Done(reply["result"].clone())
    }

    /// Starts a sandbox and returns its name.
    #[track_caller]
    pub fn sandbox(&mut self) -> String {
        let started = self.call("sandbox_start", json!({}));
        started.succeeded()["sandbox"].as_str().unwrap().to_owned()
    }

    /// Runs a command in a sandbox.
    #[track_caller]
    pub fn exec(&mut self, sandbox: &str, command: &str) -> Done {
        self.call("exec", json!({ "sandbox": sandbox, "command": command }))
    }

    /// Leaves replies in the pipe.
    pub fn pause_reading(&self) {
        self.is_paused.store(true, Ordering::SeqCst);
    }

    pub fn go_on_reading(&self) {
        self.is_paused.store(false, Ordering::SeqCst);
    }

    /// The client's end, for a thread that writes to it.
    pub fn take_input(&mut self) -> ChildStdin {
        self.input.take().unwrap()
    }

    pub fn return_input(&mut self, input: ChildStdin) {
        self.input = Some(input);
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    /// Closes the client's end.
    pub fn close(&mut self) {
        self.input = None;
    }

    /// Waits for the server's end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + LONGEST;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "the server has not ended");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close();
        if std::thread::panicking() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// `brig mcp` with these flags on the lab's store.
pub fn server<'lab>(lab: &'lab Lab, flags: &[&str]) -> Task<'lab> {
    let store = format!("--store={}", lab.store().display());
    lab.command(["mcp", store.as_str()].iter().chain(flags))
}

impl Done {
    /// The structured content of a call without an error.
    #[track_caller]
    pub fn succeeded(&self) -> &Value {
        assert_eq!(self.0["isError"], false, "{self:#?}");
        &self.0["structuredContent"]
    }

    /// The structured content of a process that ended so.
    #[track_caller]
    pub fn ended_as(&self, outcome: &str) -> &Value {
        let content = self.succeeded();
        assert_eq!(content["outcome"], outcome, "{self:#?}");
        assert!(self.text().contains(&format!("outcome: {outcome}")), "{self:#?}");
        content
    }

    /// Asserts one clear line about an error.
    #[track_caller]
    pub fn refused(&self, words: &str) {
        assert_eq!(self.0["isError"], true, "{self:#?}");
        let text = self.text();
        assert!(text.starts_with("error: ") && text.contains(words) && text.lines().count() == 1, "{self:#?}");
    }

    /// The text of all blocks.
    pub fn text(&self) -> String {
        let blocks = self.0["content"].as_array().into_iter().flatten();
        blocks.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
    }
}
