//! `brig mcp`: sandboxes for an MCP client, on standard input and output.

use super::task::flags::{MCP, SettingFlags};
use brig::error::Result;
use brig::mcp::Policy;
use brig::task::{Definition, open_store};
use clap::Args;
use rustix::termios::isatty;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Serve sandboxes to a model over the Model Context Protocol, on standard input and output
#[derive(Args)]
#[command(after_help = "\
Examples:
  claude mcp add brig -- brig mcp --dir . --allow @npm       for Claude Code, in a project's folder
  codex mcp add brig -- brig mcp --profile ~/agent.toml      for Codex
  brig mcp --image python:3.13 --memory 2G --timeout 2m      an MCP client starts this
  sudo brig mcp --keep --dir .                               as root, with checkpoint, rollback and fork

The tools are run, sandbox_start, exec, read_file, write_file, list_files, sandbox_stop, checkpoint, rollback and fork. The other flags are
those of `brig task run`, for every sandbox; no tool changes them. All sandboxes end with the client. With --keep they can be copied by checkpoint,
and what is kept is discarded when they end. Standard output has the protocol alone (docs/howto/mcp.md).")]
pub(super) struct Arguments {
    /// Where tasks are kept [env: BRIG_STORE] [default: /var/lib/brig as root, else ~/.local/share/brig]
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Sandboxes at a time
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    max_sandboxes: u32,
    /// Bytes of each stream in a result: the beginning and the end of a longer one
    #[arg(long, value_name = "SIZE", default_value = "32K", value_parser = parse_output)]
    max_output: usize,
    /// How long one command may run; a call may ask for less
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_time)]
    timeout: Duration,
    #[command(flatten)]
    flags: SettingFlags<MCP>,
}

/// A result has to fit into a model's context, and into the server's memory for each call.
fn parse_output(text: &str) -> std::result::Result<usize, String> {
    let size = brig::sandbox::parse_size(text).ok().and_then(|size| usize::try_from(size).ok());
    size.filter(|size| (256..=1 << 20).contains(size)).ok_or_else(|| "use a size from 256 to 1M".to_owned())
}

fn parse_time(text: &str) -> std::result::Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|cause| cause.to_string())?;
    if time.is_zero() { Err("use a time above 0, such as 2m".to_owned()) } else { Ok(time) }
}

pub(super) fn main(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { store, max_sandboxes, max_output, timeout, flags } = arguments;
    let store = open_store(store)?;
    let mut definition = Definition::new(vec!["true".into()]);
    if let Some(path) = flags.get("--profile").and_then(|words| words.last()) {
        brig::task::read_profile(Path::new(path), &mut definition)?;
    }
    brig::task::set_flags(&flags.0, &mut definition)?;
    // A wrong policy is refused here, and not at the first call. An image is fetched by the first sandbox.
    if definition.image.is_none() {
        brig::task::explain(&store, &definition)?;
    }
    if isatty(rustix::stdio::stdin()) {
        tell!("brig: an MCP client starts this program: see docs/howto/mcp.md. Ctrl-D ends it");
    }
    let max_sandboxes = max_sandboxes as usize;
    brig::mcp::serve(Policy { store, flags: flags.0, definition, max_sandboxes, max_output, timeout })?;
    Ok(ExitCode::SUCCESS)
}
