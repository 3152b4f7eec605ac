//! The processes of a running task, as the host's /proc shows them.

use super::live::Live;
use crate::error::Result;
use serde::Serialize;

/// One process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskProcess {
    /// Id on the host.
    pub pid: i32,
    /// Id in the sandbox.
    pub inside: Option<i32>,
    /// State letter (proc_pid_stat(5)).
    pub state: String,
    /// Seconds of processor time.
    pub cpu_seconds: f64,
    /// Bytes of memory in use.
    pub memory_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// The command line, or the name in brackets.
    pub command: String,
}

impl Live {
    /// Leaves out a process that ends meanwhile.
    pub fn processes(&self) -> Result<Vec<TaskProcess>> {
        let mut found: Vec<_> = self.process_ids()?.into_iter().filter_map(read_process).collect();
        found.sort_by_key(|process| process.inside);
        Ok(found)
    }
}

fn read_process(pid: i32) -> Option<TaskProcess> {
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).ok();
    let stat = String::from_utf8_lossy(&read("stat")?).into_owned();
    let status = String::from_utf8_lossy(&read("status")?).into_owned();
    let line = read("cmdline").unwrap_or_default();
    parse(pid, &stat, &status, &line)
}

/// A name may contain anything: fields of proc_pid_stat(5) are counted from its last bracket.
fn parse(pid: i32, stat: &str, status: &str, line: &[u8]) -> Option<TaskProcess> {
    const TICKS: f64 = 100.0; // USER_HZ, always 100 on Linux
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
    let of = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let memory = of("VmRSS:").and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    let words: Vec<_> = line.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
    let command = words.join(" ").trim_end().to_owned();
    Some(TaskProcess {
        pid,
        inside: of("NSpid:").and_then(|text| text.split_whitespace().last()?.parse().ok()),
        state: (*fields.first()?).to_owned(),
        cpu_seconds: (number(11)? + number(12)?) as f64 / TICKS,
        memory_bytes: memory.unwrap_or(0) << 10,
        threads: number(17)?,
        command: if command.is_empty() { format!("[{name}]") } else { command },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_blanks_is_one_field() {
        let rest = "S 1 2 2 0 -1 0 1 0 0 0 150 50 0 0 20 0 3 0 9 9 9";
        let parsed = parse(7, &format!("7 (a) b ( c)) {rest}"), "VmRSS:\t  8 kB\nNSpid:\t7\t2\n", b"").unwrap();
        assert_eq!((parsed.state.as_str(), parsed.threads, parsed.inside), ("S", 3, Some(2)));
        assert_eq!((parsed.cpu_seconds, parsed.memory_bytes), (2.0, 8192));
        assert_eq!(parsed.command, "[a) b ( c)]");
        assert_eq!(parse(7, &format!("7 (x) {rest}"), "", b"sh\0-c\0").unwrap().command, "sh -c");
        assert_eq!(parse(7, "torn", "", b""), None);
    }
}
