//! The `brig` command: words in, words out. Everything it does is a call to the library.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
