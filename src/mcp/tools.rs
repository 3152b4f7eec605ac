//! The table of tools. Schemas and checks of arguments are made from it.

use super::arguments::{Arguments, Parameter, Value, optional, required, schema};
use super::calls::{self, Call};
use super::reply::Reply;
use super::running::{MAX_CALLS, MAX_STOPS};
use crate::error::Result;
use rmcp::model::Tool as Described;
use serde_json::{Map, Value as Json, json};

pub(super) struct Tool {
    name: &'static str,
    description: &'static str,
    is_reader: bool,
    parameters: &'static [Parameter],
    serve: fn(&Call<'_>, &Arguments) -> Result<Reply>,
}

impl Tool {
    /// With so many running calls it is refused.
    pub(super) fn max_calls(&self) -> usize {
        if self.name == "sandbox_stop" { MAX_CALLS + MAX_STOPS } else { MAX_CALLS }
    }
}

const SANDBOX: Parameter = required("sandbox", "The sandbox, as sandbox_start has named it");
const COMMAND: Parameter = required("command", "A command line for `sh -c`; with `args` a program");
const ARGS: Parameter =
    optional("args", Value::Texts, "The arguments of the program `command`, which starts without a shell");
const STDIN: Parameter = optional("stdin", Value::Text, "The command's standard input [default: none]");
const DIRECTORY: Parameter =
    optional("directory", Value::Text, "The working directory, meant from the workspace [default: the workspace]");
const ENV: Parameter = optional("env", Value::Table, "Variables of the command");
const TIMEOUT: Parameter =
    optional("timeout", Value::Number, "Seconds after which the command is killed; the operator's limit is the most");
const PATH: Parameter = required("path", "The path in the sandbox; a relative one is meant from the workspace");

const TOOLS: &[Tool] = &[
    Tool {
        name: "run",
        description: "Run one command in a fresh sandbox, which ends with it. Returns its outcome, exit status and output.",
        is_reader: false,
        parameters: &[
            COMMAND,
            ARGS,
            optional("files", Value::Table, "Files to write before: paths with their content as text"),
            STDIN,
            DIRECTORY,
            ENV,
            TIMEOUT,
        ],
        serve: calls::run,
    },
    Tool {
        name: "sandbox_start",
        description: "Start a sandbox to work in with several calls. Returns its name. It ends with sandbox_stop, with this \
                      session, or at a time limit of the operator.",
        is_reader: false,
        parameters: &[],
        serve: calls::sandbox_start,
    },
    Tool {
        name: "exec",
        description: "Run a command in a sandbox. Returns its outcome, exit status and output.",
        is_reader: false,
        parameters: &[SANDBOX, COMMAND, ARGS, STDIN, DIRECTORY, ENV, TIMEOUT],
        serve: calls::exec,
    },
    Tool {
        name: "read_file",
        description: "Read a file of a sandbox, or a part of it. Data that is not text is returned as base64.",
        is_reader: true,
        parameters: &[
            SANDBOX,
            PATH,
            optional("offset", Value::Number, "The first byte [default: 0]"),
            optional("max_bytes", Value::Number, "Bytes to read; the operator's limit is the most"),
        ],
        serve: calls::read_file,
    },
    Tool {
        name: "write_file",
        description: "Write a file in a sandbox; its folder must exist. An existing file is replaced.",
        is_reader: false,
        parameters: &[
            SANDBOX,
            PATH,
            required("content", "The content"),
            optional("encoding", Value::Text, "utf-8 or base64 [default: utf-8]"),
            optional("executable", Value::Switch, "Whether a new file is a program"),
        ],
        serve: calls::write_file,
    },
    Tool {
        name: "list_files",
        description: "List the entries of a folder of a sandbox, with their types and sizes.",
        is_reader: true,
        parameters: &[SANDBOX, optional("path", Value::Text, "The folder [default: the workspace]")],
        serve: calls::list_files,
    },
    Tool {
        name: "sandbox_stop",
        description: "End a sandbox. Returns how it ended, and how a person gets its changes.",
        is_reader: false,
        parameters: &[SANDBOX],
        serve: calls::sandbox_stop,
    },
    Tool {
        name: "checkpoint",
        description: "Copy the files of a sandbox as they are now, to return to with rollback or to start from with fork. \
                      Processes are not copied.",
        is_reader: false,
        parameters: &[SANDBOX, optional("name", Value::Text, "The name of the checkpoint [default: a free one]")],
        serve: calls::checkpoint,
    },
    Tool {
        name: "rollback",
        description: "End the processes of a sandbox, and go on with the files of a checkpoint under the same name.",
        is_reader: false,
        parameters: &[SANDBOX, required("checkpoint", "The name of the checkpoint")],
        serve: calls::rollback,
    },
    Tool {
        name: "fork",
        description: "Start another sandbox with the files of a checkpoint. Returns its name.",
        is_reader: false,
        parameters: &[
            SANDBOX,
            optional("checkpoint", Value::Text, "The name of the checkpoint [default: the files as they are now]"),
        ],
        serve: calls::fork,
    },
];

pub(super) fn find(name: &str) -> Option<&'static Tool> {
    TOOLS.iter().find(|tool| tool.name == name)
}

pub(super) fn list() -> Vec<Described> {
    let describe = |tool: &Tool| {
        let described = json!({
            "name": tool.name,
            "description": tool.description,
            "inputSchema": schema(tool.parameters),
            "annotations": { "readOnlyHint": tool.is_reader, "openWorldHint": false },
        });
        serde_json::from_value(described).ok()
    };
    TOOLS.iter().filter_map(describe).collect()
}

pub(super) fn call(tool: &Tool, call: &Call<'_>, given: Map<String, Json>) -> Result<Reply> {
    (tool.serve)(call, &Arguments::check(tool.name, tool.parameters, given)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_described_and_none_has_a_parameter_of_the_policy() {
        let described = list();
        assert_eq!(described.len(), TOOLS.len());
        let words =
            ["run", "sandbox_start", "exec", "read_file", "write_file", "list_files", "sandbox_stop", "checkpoint"];
        for name in words.into_iter().chain(["rollback", "fork"]) {
            assert!(described.iter().any(|tool| tool.name == name), "{name}");
        }
        let flags: Vec<_> =
            crate::task::settings().iter().map(|setting| setting.flag.trim_start_matches("--")).collect();
        for parameter in TOOLS.iter().flat_map(|tool| tool.parameters) {
            // A command's variables are the model's; `--env` adds the operator's. A name is that of a checkpoint.
            let is_of_policy = flags.contains(&parameter.name) && !["env", "name"].contains(&parameter.name);
            assert!(!is_of_policy, "{}", parameter.name);
        }
    }
}
