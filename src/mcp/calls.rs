//! The functions that serve the tools.

use super::arguments::Arguments;
use super::exec::{self, ExecContext, Finished, evidence_of, refused_rows};
use super::files;
use super::reply::{Reply, refused_json, refused_line, remedy};
use super::running::Cancel;
use super::sandboxes::{Sandbox, Sandboxes};
use crate::error::{Error, Kind, Result};
use crate::sandbox::NetworkMode;
use crate::task::{Execution, Receipt};
use serde_json::{Value as Json, json};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

pub(super) struct Call<'call> {
    pub sandboxes: &'call Sandboxes,
    pub cancel: &'call Cancel,
}

impl Call<'_> {
    fn sandbox(&self, arguments: &Arguments) -> Result<Arc<Sandbox>> {
        self.sandboxes.find(arguments.required("sandbox"))
    }

    /// Ends a sandbox that the client will never know.
    fn check_wanted(&self, sandbox: &Sandbox) -> Result<()> {
        if self.cancel.is_set() {
            self.sandboxes.stop(sandbox)?;
        }
        self.cancel.check()
    }

    fn path(&self, sandbox: &Sandbox, path: &str) -> Result<PathBuf> {
        Ok(self.sandboxes.workspace(&sandbox.id())?.join(path))
    }

    fn execute(&self, sandbox: &Sandbox, arguments: &Arguments) -> Result<Finished> {
        let policy = self.sandboxes.policy();
        let live = self.sandboxes.reach(sandbox)?;
        let id = sandbox.id();
        let timeout = arguments.seconds("timeout")?.map_or(policy.timeout, |asked| asked.min(policy.timeout));
        let directory = self.path(sandbox, arguments.text("directory").unwrap_or_default())?;
        let execution = Execution {
            command: command(arguments),
            environment: variables(arguments)?,
            directory: Some(directory),
            timeout: Some(timeout),
            ..Execution::default()
        };
        let options = &policy.definition.sandbox;
        let context = ExecContext {
            store: self.sandboxes.store(),
            id: &id,
            live: &live,
            exit_codes: &options.exit_codes,
            has_gateway: options.network.mode == NetworkMode::Egress,
        };
        exec::run(&context, execution, arguments.text("stdin"), policy.max_output, self.cancel)
    }
}

fn command(arguments: &Arguments) -> Vec<OsString> {
    let command = arguments.required("command");
    match arguments.texts("args") {
        Some(args) => std::iter::once(command.into()).chain(args.into_iter().map(OsString::from)).collect(),
        None => ["sh", "-c", command].map(OsString::from).to_vec(),
    }
}

fn variables(arguments: &Arguments) -> Result<Vec<(OsString, OsString)>> {
    let variable = |(name, value): (String, String)| {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(Error::new(Kind::Usage, format!("`{}` is not a variable", name.escape_debug()))
                .hint("give names without `=` in `env`"));
        }
        Ok((name.into(), value.into()))
    };
    arguments.table("env").into_iter().map(variable).collect()
}

pub(super) fn run(call: &Call<'_>, arguments: &Arguments) -> Result<Reply> {
    let sandbox = call.sandboxes.start(false, call.cancel)?;
    let finished = run_in(call, &sandbox, arguments);
    let receipt = call.sandboxes.stop(&sandbox)?;
    let mut finished = finished?;
    // The account at the end is complete.
    finished.refused = receipt.refused_hosts();
    Ok(Reply::of_process(&finished, |row| remedy(row, None)).with("task", receipt.id))
}

fn run_in(call: &Call<'_>, sandbox: &Sandbox, arguments: &Arguments) -> Result<Finished> {
    call.cancel.check()?;
    let files = arguments.table("files");
    if !files.is_empty() {
        let live = call.sandboxes.reach(sandbox)?;
        for (path, content) in files {
            call.cancel.check()?;
            live.write_file(&call.path(sandbox, &path)?, 0o644, &mut content.as_bytes())?;
        }
    }
    call.execute(sandbox, arguments)
}

fn started(call: &Call<'_>, sandbox: &Sandbox) -> Result<Reply> {
    call.check_wanted(sandbox)?;
    let id = sandbox.id();
    let workspace = call.sandboxes.workspace(&id)?.display().to_string();
    let text = format!("sandbox {}: its workspace is {workspace}; for a person it is the task {id}", sandbox.name);
    Ok(Reply::new(text, json!({ "sandbox": sandbox.name, "task": id, "workspace": workspace })))
}

pub(super) fn sandbox_start(call: &Call<'_>, _: &Arguments) -> Result<Reply> {
    let sandbox = call.sandboxes.start(true, call.cancel)?;
    started(call, &sandbox)
}

pub(super) fn exec(call: &Call<'_>, arguments: &Arguments) -> Result<Reply> {
    let sandbox = call.sandbox(arguments)?;
    let finished = call.execute(&sandbox, arguments)?;
    let id = sandbox.id();
    Ok(Reply::of_process(&finished, |row| remedy(row, Some(&id))).with("sandbox", sandbox.name.as_str()))
}

pub(super) fn read_file(call: &Call<'_>, arguments: &Arguments) -> Result<Reply> {
    let sandbox = call.sandbox(arguments)?;
    let live = call.sandboxes.reach(&sandbox)?;
    let path = call.path(&sandbox, arguments.required("path"))?;
    let offset = arguments.number("offset").unwrap_or(0);
    let limit = call.sandboxes.policy().max_output;
    let most = arguments.number("max_bytes").map_or(limit, |asked| limit.min(asked.max(1) as usize));
    let part = files::read(&live, &path, offset, most)?;
    let next = offset + part.length as u64;
    let more = if part.has_more { format!("; it goes on at offset {next}") } else { String::new() };
    let encoding = if part.is_base64 { "base64" } else { "utf-8" };
    let facts = format!("{} bytes from offset {offset} as {encoding}{more}", part.length);
    let mut structured = json!({ "content": part.content, "encoding": encoding, "offset": offset });
    if part.has_more {
        structured["next_offset"] = next.into();
    }
    Ok(Reply::new(facts, structured).with_block(part.content))
}

pub(super) fn write_file(call: &Call<'_>, arguments: &Arguments) -> Result<Reply> {
    let sandbox = call.sandbox(arguments)?;
    let live = call.sandboxes.reach(&sandbox)?;
    let path = call.path(&sandbox, arguments.required("path"))?;
    let bytes = files::decode(arguments.required("content"), arguments.text("encoding"))?;
    let mode = if arguments.is_on("executable") { 0o755 } else { 0o644 };
    live.write_file(&path, mode, &mut bytes.as_slice())?;
    let path = path.display().to_string();
    Ok(Reply::new(format!("{} bytes are in {path}", bytes.len()), json!({ "path": path, "bytes": bytes.len() })))
}

pub(super) fn list_files(call: &Call<'_>, arguments: &Arguments) -> Result<Reply> {
    let sandbox = call.sandbox(arguments)?;
    let live = call.sandboxes.reach(&sandbox)?;
    let path = call.path(&sandbox, arguments.text("path").unwrap_or_default())?;
    let (entries, count) = live.list_first(&path, files::MAX_ENTRIES)?;
    let hiding = live.hiding()?;
    let rows: Vec<_> = entries
        .into_iter()
        .map(|entry| json!({ "name": hiding.text(&entry.name), "kind": entry.kind, "size": entry.size }))
        .collect();
    // The sandbox has chosen the names: as JSON no name looks like two.
    let lines: Vec<_> = rows.iter().map(Json::to_string).collect();
    let left_out = count - rows.len();
    let rest = if left_out > 0 { format!(", {left_out} of them are left out") } else { String::new() };
    let structured = json!({ "entries": rows, "left_out": left_out });
    Ok(Reply::new(format!("{count} entries{rest}"), structured).with_block(lines.join("\n")))
}

pub(super) fn sandbox_stop(call: &Call<'_>, arguments: &Arguments) -> Result<Reply> {
    let sandbox = call.sandbox(arguments)?;
    let receipt = call.sandboxes.stop(&sandbox)?;
    let id = &receipt.id;
    let mut lines = vec![format!("{} has ended: {}", sandbox.name, receipt.outcome.word())];
    let evidence = evidence_of(&receipt);
    lines.extend(evidence.iter().map(|words| format!("evidence: {words}")));
    let mut structured = json!({ "outcome": receipt.outcome.word(), "task": id, "evidence": evidence });
    if let Some(changes) = &receipt.changes {
        let (added, modified, deleted) = (changes.added, changes.modified, changes.deleted);
        lines.push(format!("changes: {added} added, {modified} modified, {deleted} deleted"));
        lines.push(format!("for a person: `brig task diff {id}` shows them, `brig task apply {id}` applies them"));
        structured["changes"] = json!({ "added": added, "modified": modified, "deleted": deleted });
        structured["for_a_person"] = json!([format!("brig task diff {id}"), format!("brig task apply {id}")]);
    }
    let refused = receipt.refused_hosts();
    lines.extend(refused.iter().map(|row| refused_line(row, |row| remedy(row, None))));
    structured["refused_hosts"] = refused_json(&refused, |row| remedy(row, None));
    Ok(Reply::new(lines.join("\n"), structured))
}

pub(super) fn checkpoint(call: &Call<'_>, arguments: &Arguments) -> Result<Reply> {
    let sandbox = call.sandbox(arguments)?;
    let made = call.sandboxes.checkpoint(&sandbox, arguments.text("name"))?;
    let text = format!("checkpoint {} of {}: {} bytes", made.name, sandbox.name, made.bytes);
    Ok(Reply::new(text, json!({ "checkpoint": made.name, "sandbox": sandbox.name, "bytes": made.bytes })))
}

pub(super) fn rollback(call: &Call<'_>, arguments: &Arguments) -> Result<Reply> {
    let sandbox = call.sandbox(arguments)?;
    let checkpoint = arguments.required("checkpoint");
    let id = call.sandboxes.rollback(&sandbox, checkpoint, call.cancel)?;
    let text =
        format!("{} has the files of {checkpoint}, and no processes; for a person it is the task {id}", sandbox.name);
    Ok(Reply::new(text, json!({ "sandbox": sandbox.name, "checkpoint": checkpoint, "task": id })))
}

pub(super) fn fork(call: &Call<'_>, arguments: &Arguments) -> Result<Reply> {
    let sandbox = call.sandbox(arguments)?;
    let fork = call.sandboxes.fork(&sandbox, arguments.text("checkpoint"), call.cancel)?;
    started(call, &fork)
}

impl Receipt {
    pub(super) fn refused_hosts(&self) -> Vec<crate::sandbox::Row> {
        refused_rows(self.egress.iter().flat_map(|ledger| ledger.rows.iter().cloned()))
    }
}
