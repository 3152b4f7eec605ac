//! End-to-end tests of the OCI runtime: real bundles, real containers, and the kernel's view of them. `support` has the
//! bundle and the commands; run all with `cargo test --test oci`, or one by its name.
//!
//! Attacks are in `attacks`, each shown to succeed on the weakened build. `docker` starts a Docker daemon on a private
//! socket.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails, also within its helpers"
)]

mod attacks;
mod beside;
mod capped_view;
mod checkpoint;
mod checkpoint_engines;
mod checkpoint_refusals;
mod config;
mod cri;
mod daemons;
mod differential;
mod docker;
mod document;
mod each_call;
mod engine_networks;
mod engine_setup;
mod engines;
mod entrants;
mod fields;
mod hooks;
mod hostile;
mod intruders;
mod kubernetes;
mod leftovers;
mod lifecycle;
mod limits;
mod mounts;
mod podman;
mod protections;
mod rootless;
mod rootless_docker;
mod rootless_podman;
mod runc_parity;
mod secrets;
mod sockets;
mod support;
mod systemd;
mod waiting;
mod words;
