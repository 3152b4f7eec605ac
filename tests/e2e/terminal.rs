//! A command with a terminal: its own, inside; ours only carries the bytes.

use crate::support::{Lab, eventually, program_under_test};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

/// brig on a terminal of the test's, as a user at a keyboard has it.
pub struct Keyboard {
    master: File,
    /// Keeps the terminal while brig has let go of it.
    slave: File,
    brig: Child,
    screen: Arc<Mutex<Vec<u8>>>,
}

impl Keyboard {
    fn run(lab: &Lab, arguments: &[&str], script: &str) -> Keyboard {
        Keyboard::start(lab.task().plain().args(arguments).command_for(["sh", "-c", script]))
    }

    pub fn start(inner: Command) -> Keyboard {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = std::ffi::OsString::from_vec(ptsname(&master, Vec::new()).unwrap().into_bytes());
        let slave = File::options().read(true).write(true).open(name).unwrap();
        size(&master, 40, 100);
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(inner.get_program()).args(inner.get_args());
        command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let copy = || slave.try_clone().unwrap();
        let brig = command.stdin(copy()).stdout(copy()).stderr(copy()).spawn().unwrap();
        let master = File::from(master);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (kept, mut reader) = (Arc::clone(&screen), master.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                kept.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Keyboard { master, slave, brig, screen }
    }

    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    #[track_caller]
    pub fn wait_for(&self, words: &str) {
        eventually(&format!("`{words}` on the screen: {}", self.screen()), || self.screen().contains(words));
    }

    pub fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    pub fn status(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("brig ends", || {
            status = self.brig.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }
}

fn size(terminal: impl std::os::fd::AsFd, rows: u16, columns: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

#[test]
fn the_command_leads_a_session_on_a_terminal_of_its_own() {
    let lab = Lab::new();
    let script =
        "tty; stty size; set -- $(cat /proc/$$/stat); echo own=$(($6 == $$)) foreground=$(($8 == $$)); ls /dev/pts";
    let mut keyboard = Keyboard::run(&lab, &[], script);
    assert_eq!(keyboard.status(), Some(0), "{}", keyboard.screen());
    keyboard.wait_for("succeeded");
    let screen = keyboard.screen();
    assert!(screen.starts_with("/dev/pts/0\r\n40 100\r\nown=1 foreground=1\r\n0  ptmx\r\n"), "{screen}");
}

#[test]
fn ctrl_c_goes_to_the_command_inside_and_not_to_brig() {
    let lab = Lab::new();
    let script = "trap 'echo caught; exit 42' INT; echo ready; while :; do sleep 0.05; done";
    let mut keyboard = Keyboard::run(&lab, &[], script);
    keyboard.wait_for("ready");
    keyboard.press("\x03");
    assert_eq!(keyboard.status(), Some(42), "{}", keyboard.screen());
    keyboard.wait_for("caught");
    keyboard.wait_for("failed");
}

#[test]
fn what_is_typed_is_read_inside_and_echoed_once() {
    let lab = Lab::new();
    let mut keyboard = Keyboard::run(&lab, &[], "echo ready; read line; echo \"<$line>\"");
    keyboard.wait_for("ready");
    keyboard.press("words\r");
    assert_eq!(keyboard.status(), Some(0), "{}", keyboard.screen());
    keyboard.wait_for("<words>\r\n");
    assert_eq!(keyboard.screen().matches("words\r\n").count(), 1, "the echo: {}", keyboard.screen());
}

#[test]
fn a_new_size_of_our_terminal_is_the_new_size_inside() {
    let lab = Lab::new();
    let script = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut keyboard = Keyboard::run(&lab, &[], script);
    keyboard.wait_for("ready");
    size(&keyboard.master, 12, 34);
    assert_eq!(keyboard.status(), Some(0), "{}", keyboard.screen());
    keyboard.wait_for("12 34");
}

#[test]
fn our_terminal_is_raw_meanwhile_and_afterwards_as_it_was() {
    let lab = Lab::new();
    let mut keyboard = Keyboard::run(&lab, &[], "echo ready; read line; stty raw -echo; exit 5");
    keyboard.wait_for("ready");
    let modes = |keyboard: &Keyboard| tcgetattr(&keyboard.slave).unwrap().local_modes;
    assert!(!modes(&keyboard).intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG));
    keyboard.press("\r");
    assert_eq!(keyboard.status(), Some(5), "{}", keyboard.screen());
    assert!(modes(&keyboard).contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG));
}

#[test]
fn a_terminal_that_goes_away_cancels_the_task() {
    let lab = Lab::new();
    let keyboard = Keyboard::run(&lab, &["--grace", "200ms"], "trap '' HUP; echo ready; sleep 300");
    keyboard.wait_for("ready");
    // The session's leader gets SIGHUP.
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(keyboard.brig.id() as i32).unwrap(),
        rustix::process::Signal::HUP,
    )
    .unwrap();
    let mut keyboard = keyboard;
    assert_eq!(keyboard.status(), Some(130), "{}", keyboard.screen());
}

#[test]
fn with_no_tty_what_goes_to_our_terminal_is_escaped() {
    let lab = Lab::new();
    let mut keyboard = Keyboard::run(&lab, &["--no-tty"], "printf 'a\\033[2Jb\\n'; [ -t 1 ] || echo no terminal");
    assert_eq!(keyboard.status(), Some(0), "{}", keyboard.screen());
    keyboard.wait_for("no terminal");
    keyboard.wait_for("a^[[2Jb");
    assert!(!keyboard.screen().contains('\x1b'), "{:?}", keyboard.screen());
}

#[test]
fn a_patch_on_a_terminal_shows_what_could_deceive_and_a_piped_one_is_exact() {
    let lab = Lab::new();
    let folder = lab.file("work/file", "one\n").parent().unwrap().to_owned();
    let script = r#"printf 'evil()\r# good\n\342\200\256rtl\342\200\213 \342\201\246x\342\201\251\n' >>file
        touch "$(printf 'a\342\200\256b')"; mkfifo "$(printf 'f\342\200\213')""#;
    lab.task().args(["--dir".as_ref(), folder.as_os_str()]).sh(script).ended_as("succeeded", 0);
    let id = lab.ids().remove(0);
    let shown = |arguments: &[&str]| {
        let mut command = Command::new(program_under_test());
        command.arg("task").args(arguments).arg(&id).env("BRIG_STORE", lab.store());
        let mut keyboard = Keyboard::start(command);
        assert_eq!(keyboard.status(), Some(0), "{arguments:?}: {}", keyboard.screen());
        keyboard.wait_for("file");
        keyboard.screen()
    };
    let patch = shown(&["diff"]);
    assert!(patch.contains("+evil()^M# good"), "{patch:?}");
    assert!(patch.contains("+\\u{202e}rtl\\u{200b} \\u{2066}x\\u{2069}"), "{patch:?}");
    for arguments in [&["diff"][..], &["diff", "--stat"], &["diff", "--stat", "--json"], &["apply", "--dry-run"]] {
        let text = shown(arguments);
        assert!(!text.contains(['\u{202e}', '\u{200b}', '\u{2066}', '\u{2069}']), "{arguments:?}: {text:?}");
    }
    let piped = lab.brig(["task", "diff", &id]).succeeded().stdout.clone();
    assert!(piped.contains("+evil()\r# good\n+\u{202e}rtl\u{200b} \u{2066}x\u{2069}\n"), "{piped:?}");
}
