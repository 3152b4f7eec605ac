//! The network of a task: unmodified clients, real servers, and every known way around the rules.

mod account;
mod attacks;
mod broker;
mod broker_attacks;
mod broker_cuts;
mod broker_floods;
mod broker_image;
mod broker_oauth;
mod broker_paths;
mod browsers;
mod bypasses;
mod clients;
mod http2;
mod lost;
mod open;
mod pasta;
mod patience;
mod running;
mod servers;
pub mod world;

use crate::support::Run;
use serde_json::Value;

/// The lines of the account for a host.
#[track_caller]
pub fn rows(run: &Run, host: &str) -> Vec<Value> {
    let receipt = run.receipt();
    let rows = receipt["egress"]["rows"].as_array().unwrap_or_else(|| panic!("no account: {run:#?}"));
    rows.iter().filter(|row| row["host"] == host).cloned().collect()
}

/// Why a host was refused.
#[track_caller]
pub fn refusals(run: &Run, host: &str) -> String {
    let denied = rows(run, host).into_iter().filter(|row| row["allowed"] == false);
    denied.map(|row| row["rule"].as_str().unwrap().to_owned()).collect::<Vec<_>>().join("; ")
}
