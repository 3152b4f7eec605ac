//! End-to-end tests: the program as a user has it, real sandboxes, and what the kernel says about them. How one is written is
//! in `support/mod.rs`; run them with `tests/run`, or one with `cargo test --test e2e NAME`.

mod exits;
mod limits;
mod streams;
mod support;
