//! Which devices a container may use: v1's `devices` controller, or a BPF program of our own on v2.

mod rules;

pub(crate) use rules::Rule;
