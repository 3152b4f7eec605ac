//! The `brig` command: words in, words out. Everything it does is a call to the library.

mod cli;
#[path = "sys/memory.rs"]
#[allow(unsafe_code, reason = "a part of sys that is the program's and not the library's")]
mod memory;

/// A start is short and allocates little: see the type's own words.
#[global_allocator]
static HEAP: brig::StartHeap = brig::StartHeap;

fn main() -> std::process::ExitCode {
    cli::main()
}
