//! How a test says that it does not run here.

/// Writes `SKIP test: why` to descriptor 2 itself: the test harness keeps what the macros print. `tests/run` compares these lines with tests/skips.txt.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let line = format!("SKIP {}: {why}\n", thread.name().unwrap_or("a test"));
    // A closed standard error is read by nothing.
    let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
}
