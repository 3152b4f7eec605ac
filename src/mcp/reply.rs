//! The result of a tool: text for a model, and the same as structured content.

use super::exec::Finished;
use crate::error::Error;
use crate::sandbox::{Outcome, Row};
use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock};
use serde_json::{Value, json};

/// Facts and the sandbox's output are separate blocks, so that output cannot pose as facts.
#[derive(Debug)]
pub(super) struct Reply {
    blocks: Vec<String>,
    structured: Value,
    is_error: bool,
}

impl Reply {
    pub(super) fn new(text: impl Into<String>, structured: Value) -> Reply {
        Reply { blocks: vec![text.into()], structured, is_error: false }
    }

    /// The text is the sandbox's.
    #[must_use]
    pub(super) fn with_block(mut self, text: String) -> Reply {
        self.blocks.push(text);
        self
    }

    /// `remedy` returns how a person allows a refused host.
    pub(super) fn of_process(finished: &Finished, remedy: impl Fn(&Row) -> String) -> Reply {
        let [output, error] = &finished.streams;
        let seconds = (finished.elapsed.as_secs_f64() * 1000.0).round() / 1000.0;
        let mut lines = vec![match finished.status {
            Some(status) => format!("outcome: {}, exit status {status}, {seconds} s", finished.outcome.word()),
            None => format!("outcome: {}, {seconds} s", finished.outcome.word()),
        }];
        lines.extend(finished.evidence.iter().map(|words| format!("evidence: {words}")));
        lines.extend(finished.refused.iter().map(|row| refused_line(row, &remedy)));
        let mut structured = json!({
            "outcome": finished.outcome.word(),
            "seconds": seconds,
            "stdout": output.text(),
            "stderr": error.text(),
        });
        let mut put = |name: &str, value: Value| structured[name] = value;
        if let Some(status) = finished.status {
            put("exit_status", status.into());
        }
        if let Outcome::Signaled { signal } = finished.outcome {
            put("signal", signal.into());
        }
        for (name, stream) in [("stdout_left_out", output), ("stderr_left_out", error)] {
            if stream.left_out() > 0 {
                put(name, stream.left_out().into());
            }
        }
        if !finished.evidence.is_empty() {
            put("evidence", json!(finished.evidence));
        }
        if !finished.refused.is_empty() {
            put("refused_hosts", refused_json(&finished.refused, &remedy));
        }
        let mut reply = Reply::new(lines.join("\n"), structured);
        for (name, stream) in [("stdout", output), ("stderr", error)] {
            let text = stream.text();
            if !text.is_empty() {
                reply = reply.with_block(format!("{name}:\n{text}"));
            }
        }
        reply
    }

    #[must_use]
    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Reply {
        self.structured[name] = value.into();
        self
    }
}

pub(super) fn refused_line(row: &Row, remedy: impl Fn(&Row) -> String) -> String {
    format!("refused: {}{}; {}", target(row), row.times(), remedy(row))
}

pub(super) fn refused_json(rows: &[Row], remedy: impl Fn(&Row) -> String) -> Value {
    let row = |row: &Row| {
        json!({
            "host": row.host, "port": row.port, "count": row.count.max(1), "reason": row.rule, "remedy": remedy(row),
        })
    };
    rows.iter().map(row).collect()
}

/// How a person allows a refused host: for the sandbox `id` if it still runs, and for the next ones. The sandbox has
/// chosen the name, so only a plain host is in a command.
pub(super) fn remedy(row: &Row, id: Option<&str>) -> String {
    let is_plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte));
    let is_host = !row.host.starts_with('-') && is_plain(&row.host);
    let can_be_allowed = row.rule.starts_with("no rule ") || row.rule.contains(" does not allow port ");
    if !can_be_allowed || !is_host {
        return row.rule.escape_debug().to_string();
    }
    let target = target(row);
    let of_sandbox = id.map(|id| format!("`brig task allow {id} {target}` for this sandbox, ")).unwrap_or_default();
    format!("a person can allow it: {of_sandbox}`brig mcp --allow {target}` for all")
}

fn target(row: &Row) -> String {
    let host = row.host.escape_debug();
    row.port.map_or_else(|| host.to_string(), |port| format!("{host}:{port}"))
}

impl From<Error> for Reply {
    fn from(error: Error) -> Reply {
        let hint = error.advice().map(|hint| format!(" ({hint})")).unwrap_or_default();
        let line = format!("error: {error}{hint}").replace(['\n', '\r'], " ");
        let structured = json!({
            "error": { "code": error.kind().code(), "message": error.to_string(), "hint": error.advice() },
        });
        Reply { is_error: true, ..Reply::new(line, structured) }
    }
}

impl From<Reply> for CallToolResponse {
    fn from(reply: Reply) -> CallToolResponse {
        let content = reply.blocks.into_iter().map(ContentBlock::text).collect();
        let mut result = match reply.is_error {
            true => CallToolResult::error(content),
            false => CallToolResult::success(content),
        };
        result.structured_content = Some(reply.structured);
        result.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_names_the_host_unless_the_name_could_be_more_than_that() {
        let check = |host: &str, rule: &str, id: Option<&str>, expected: &str| {
            let row = Row { host: host.into(), port: Some(443), rule: rule.into(), ..Row::default() };
            assert_eq!(remedy(&row, id), expected);
        };
        let none = "no rule allows it";
        check("a.test", none, None, "a person can allow it: `brig mcp --allow a.test:443` for all");
        let both = "a person can allow it: `brig task allow k3 a.test:443` for this sandbox, `brig mcp --allow a.test:443` for all";
        check("a.test", none, Some("k3"), both);
        check("a.test", "`a.test` does not allow port 443", Some("k3"), both);
        check("a.test;reboot", none, None, none);
        check("--network=host", none, None, none);
        check("a.test", "it leads to a private address", Some("k3"), "it leads to a private address");
    }
}
