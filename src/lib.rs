//! brig: a minimal, daemonless container runtime for untrusted coding agents.
//!
//! The floors, and that imports only go down, are in `docs/architecture.md`; a test reads them from one table.

#![deny(unsafe_code)]

pub mod error;
mod files;
mod mounts;
mod ns;
mod spec;
mod sys;
