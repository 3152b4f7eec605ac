//! The `brig` command: parses input, prints output. Everything it does is a call to the library.

mod cli;

/// Serves the many small allocations of a start without system calls.
#[global_allocator]
static HEAP: brig::StartHeap = brig::StartHeap;

fn main() -> std::process::ExitCode {
    cli::main()
}
