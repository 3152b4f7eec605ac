//! A container's terminal without a foreground: the receiver of `--console-socket`.

use crate::sockets::accept_descriptor;
use std::io::Read;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A socket, and the output of the received terminal.
pub struct Console {
    reader: JoinHandle<Vec<u8>>,
    is_over: Arc<AtomicBool>,
}

impl Console {
    /// Listens at `console` in this directory.
    pub fn listen(directory: &Path) -> Console {
        let listener = UnixListener::bind(directory.join("console")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            loop {
                if let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(false).unwrap();
                    // A runtime that fails may connect and send nothing.
                    let Some(terminal) = accept_descriptor(&stream).1 else { return text };
                    let mut terminal = std::fs::File::from(terminal);
                    let mut bytes = [0; 4096];
                    // EIO: no process has the other side open.
                    while let Ok(length @ 1..) = terminal.read(&mut bytes) {
                        text.extend(&bytes[..length]);
                    }
                    return text;
                }
                if over.load(Ordering::Relaxed) {
                    return text;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Console { reader, is_over }
    }

    /// The output, after the container has ended.
    pub fn text(self) -> Vec<u8> {
        self.is_over.store(true, Ordering::Relaxed);
        self.reader.join().unwrap()
    }
}
