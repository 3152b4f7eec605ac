//! brig: a minimal, daemonless container runtime for untrusted coding agents.
//!
//! Imports only go down the floors of `docs/architecture.md`: a test checks them.

#![deny(unsafe_code)]

mod cgroup;
pub mod container;
pub mod doctor;
mod egress;
pub mod engine;
pub mod error;
mod files;
mod hooks;
mod host;
pub mod image;
mod landlock;
pub mod mcp;
mod mounts;
mod net;
mod ns;
mod process;
mod resctrl;
pub mod sandbox;
mod seccomp;
mod spec;
mod start;
mod sys;
mod systemd;
pub mod task;
pub mod worker;

#[doc(hidden)] // a library does not choose its caller's allocator
pub use start::heap::StartHeap;
pub use task::{Options, Output, Sandbox, Task};
