//! The `brig` command: parses input, calls the library, prints output.

mod cli;

/// Serves the small allocations of a start without system calls.
#[global_allocator]
static HEAP: brig::StartHeap = brig::StartHeap;

fn main() -> std::process::ExitCode {
    cli::main()
}
