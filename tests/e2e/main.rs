//! End-to-end tests: the program as a user runs it, real sandboxes, and the kernel's view of them. `support/mod.rs`
//! explains how to write one. Run them with `tests/run`, or one with `cargo test --test e2e NAME`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails, also within its helpers")]

mod agents;
mod artifacts;
mod backends;
mod canary;
mod checkpoints;
mod crash;
mod crowd;
mod egress;
mod escape;
mod events;
mod exits;
mod git;
mod handback;
mod health;
mod hiding;
mod hold;
mod hosted;
mod images;
mod job_limits;
mod jobs;
mod keep;
mod keep_memory;
mod keep_root;
mod keep_size;
mod library;
mod limits;
mod live;
mod manage;
mod mcp;
mod mounts;
mod names;
mod own_sandboxes;
mod pages;
mod records;
mod refusals;
mod remains;
mod result;
mod root_inside;
mod root_inside_debian;
mod root_inside_tools;
mod secrets;
mod streams;
mod submounts;
mod support;
mod terminal;
mod uncounted;
mod volumes;
mod worker;
mod workspace;
