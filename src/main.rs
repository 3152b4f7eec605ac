//! The `brig` command: words in, words out. Everything it does is a call to the library.

mod cli;

/// A start is short and allocates little: see the type's own words.
#[global_allocator]
static HEAP: brig::StartHeap = brig::StartHeap;

fn main() -> std::process::ExitCode {
    cli::main()
}
