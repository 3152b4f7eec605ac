//! A server of the Model Context Protocol on standard input and output: sandboxes as tools of a model.
//!
//! The model chooses commands, files, a command's variables, and a time limit below the policy's. None of its words is
//! in a command line of `brig task run`, which has only the operator's flags.
//!
//! Only this module uses tokio, on one thread, with a thread for each running call.

mod arguments;
mod calls;
mod connection;
mod exec;
mod files;
mod reply;
mod running;
mod sandboxes;
mod server;
mod tools;

use crate::error::{Context, Error, Kind, Result};
use crate::task::{Definition, GivenFlags, Store, ValueKind, settings};
use connection::Connection;
use rmcp::serve_server;
use rmcp::service::ServerInitializeError;
use running::{Calls, MAX_CALLS, MAX_STOPS};
use sandboxes::Sandboxes;
use server::Server;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// How long calls may run after the client closed its end. Clients send SIGTERM two seconds after that.
const LAST_CALLS: Duration = Duration::from_millis(1500);

/// What the operator decides: no tool can change it.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Where the tasks are kept.
    pub store: Store,
    /// The flags of `brig task run` for every sandbox.
    pub flags: GivenFlags,
    /// The same flags and their profile, read and checked.
    pub definition: Definition,
    /// Sandboxes at a time.
    pub max_sandboxes: usize,
    /// Bytes of each stream of a result.
    pub max_output: usize,
    /// The longest time of one command.
    pub timeout: Duration,
}

impl Policy {
    fn words(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<OsString> {
        let mut words = Vec::new();
        for (flag, values) in self.flags.iter().filter(|(flag, _)| is_wanted(flag)) {
            let kind = settings().iter().find(|setting| setting.flag == *flag).map(|setting| setting.kind);
            if matches!(kind, Some(ValueKind::Switch(_))) {
                words.push(OsString::from(flag));
                continue;
            }
            words.extend(values.iter().map(|value| {
                let mut word = OsString::from(flag);
                word.push("=");
                word.push(value);
                word
            }));
        }
        words
    }
}

/// Serves one client until it closes its end or a signal comes, and ends all its sandboxes.
pub fn serve(policy: Policy) -> Result<()> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    // Two further threads read standard input and write standard output.
    let runtime = builder.enable_all().max_blocking_threads(MAX_CALLS + MAX_STOPS + 4).build();
    let runtime = runtime.failing(Kind::Internal, || "start the server")?;
    let sandboxes = Arc::new(Sandboxes::new(policy));
    let calls = Arc::new(Calls::default());
    let served = runtime.block_on(serve_client(&sandboxes, &calls));
    calls.cancel_all();
    sandboxes.end_all();
    // A thread may wait in read(2) for input that never comes.
    runtime.shutdown_background();
    served
}

async fn serve_client(sandboxes: &Arc<Sandboxes>, calls: &Arc<Calls>) -> Result<()> {
    let end = Arc::new(Notify::new());
    end_on_signals(&end)?;
    let connection = Connection::open(Arc::clone(&end), Arc::clone(calls));
    let server = Server::new(Arc::clone(sandboxes), Arc::clone(calls));
    let service = tokio::select! {
        () = end.notified() => return Ok(()),
        service = serve_server(server, connection) => service,
    };
    let service = match service {
        Ok(service) => service,
        // The client has gone.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(cause) => {
            return Err(Error::new(Kind::Usage, cause.to_string())
                .doing("begin a session with the client")
                .hint("start it from an MCP client: see docs/howto/mcp.md"));
        }
    };
    tokio::select! {
        () = end.notified() => {}
        _ = service.waiting() => {}
    }
    Ok(())
}

/// SIGTERM, SIGINT and SIGHUP end the server in order: its sandboxes first.
fn end_on_signals(end: &Arc<Notify>) -> Result<()> {
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        let mut signals = signal(kind).failing(Kind::Internal, || "receive signals")?;
        let end = Arc::clone(end);
        tokio::spawn(async move {
            signals.recv().await;
            end.notify_one();
        });
    }
    Ok(())
}
