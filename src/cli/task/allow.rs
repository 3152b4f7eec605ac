//! `brig task allow` and `deny`: egress rules that come and go while a task runs.

use brig::error::Result;
use brig::sandbox::Rule;
use brig::task::Store;
use clap::Args;
use std::process::ExitCode;

/// Let a running task reach what a rule covers
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task allow k3f api.example.com:443
  brig task allow k3f '*.debian.org'
  brig task allow k3f @npm

The task must run with --network egress. Up to 8 ports that no rule had before can be added; more are named under `egress.faults` of the receipt.")]
pub(super) struct AllowArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// A rule as in --allow of `brig task run`
    rule: String,
}

/// Refuse a running task what a rule covers, and cut what is open
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig task deny k3f api.example.com:443")]
pub(super) struct DenyArguments {
    /// The task's name, its id or the beginning of that, or @ for the newest task
    id: String,
    /// A rule as in --allow of `brig task run`
    rule: String,
}

pub(super) fn allow(store: &Store, arguments: &AllowArguments) -> Result<ExitCode> {
    change(store, &arguments.id, &arguments.rule, true)
}

pub(super) fn deny(store: &Store, arguments: &DenyArguments) -> Result<ExitCode> {
    change(store, &arguments.id, &arguments.rule, false)
}

fn change(store: &Store, id: &str, rule: &str, allow: bool) -> Result<ExitCode> {
    let task = store.reach(&store.find(id)?)?;
    Rule::parse_all(rule)?.iter().try_for_each(|rule| task.reach(rule, allow))?;
    Ok(ExitCode::SUCCESS)
}
