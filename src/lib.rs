//! brig: a minimal, daemonless container runtime for untrusted coding agents.
//!
//! The floors, and that imports only go down, are in `docs/architecture.md`; a test reads them from one table.

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

#[doc(hidden)] // for the program alone: a library does not choose its caller's allocator
pub use start::heap::StartHeap;
pub use task::{Options, Output, Sandbox, Task};
