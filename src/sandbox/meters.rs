//! Meters without a notification, read at intervals: processor time, processes, disk.

use super::limits::{LimitName, Limits};
use super::network::NetworkMode;
use super::outcome::{LimitHit, Stopped};
use super::report::{Sample, seconds};
use super::supervise::{DISK_SAMPLE, Findings, SAMPLE, State, Watch};
use crate::egress::Ledger;
use crate::error::{Context, Kind, Result};
use rustix::fs::StatVfs;
use std::time::{Duration, Instant};

/// The fastest growth of a file system, in bytes and files a second, sets the interval of checks.
const FASTEST_BYTES: u64 = 4 << 30;
const FASTEST_FILES: u64 = 1_000_000;
/// A scratch file system with less room is full: one block less than any further file needs.
const FULL_BYTES: u64 = 8 * 4096;

const QUEUE_SAMPLE: Duration = Duration::from_millis(10);
/// System time between counts of record locks: a lock takes more than half a microsecond.
const LOCK_SECONDS: f64 = 0.25;

/// Whether the processor time has grown since a meter's last look, or nothing counts it. If not, no process has changed
/// anything. The meters of 400 idle sandboxes took 40 % of two processors.
pub(super) fn has_run(last: &mut Option<u64>, now: Option<u64>) -> bool {
    now.is_none() || std::mem::replace(last, now) != now
}

impl Watch<'_> {
    /// The processor-time limit cannot be reached earlier.
    pub(super) fn processor_time_left(&self, state: &State) -> Duration {
        let left = self.limits.cpu_time.saturating_sub(Duration::from_nanos(state.cpu_ns));
        left.div_f64(self.limits.cpus.max(1.0)).max(Duration::from_millis(5))
    }

    pub(super) fn sample(&mut self, state: &mut State, seen: &mut Findings) -> Result<()> {
        self.running.tidy();
        if let Some(usage) = self.running.usage()? {
            let in_seconds = |nanoseconds: Option<u64>| nanoseconds.map(|value| value as f64 / 1e9);
            state.cpu_ns = usage.cpu_total_ns.unwrap_or(0);
            let report = &mut seen.usage;
            report.cpu_user_seconds = in_seconds(usage.cpu_user_ns);
            report.cpu_system_seconds = in_seconds(usage.cpu_system_ns);
            report.memory_peak_bytes = usage.memory_peak.or(usage.memory_current).max(report.memory_peak_bytes);
            report.pids_peak = usage.pids_peak.or(usage.pids_current).max(report.pids_peak);
            report.io_read_bytes = usage.read_bytes;
            report.io_written_bytes = usage.written_bytes;
        }
        self.look_at_disk(state, seen)
    }

    pub(super) fn measure(&self, state: &State) -> Result<Sample> {
        let used = self.running.usage()?.unwrap_or_default();
        let mut sample = Sample {
            wall_seconds: seconds(state.started.elapsed()),
            paused: state.paused.is_some(),
            cpu_seconds: used.cpu_total_ns.map(|value| value as f64 / 1e9),
            memory_bytes: used.memory_current,
            memory_limit: self.limits.memory,
            pids: used.pids_current,
            pids_limit: self.limits.pids,
            io_read_bytes: used.read_bytes,
            io_written_bytes: used.written_bytes,
            output_bytes: self.streams.count,
            disk_limit: self.disk_bytes,
            ..Sample::default()
        };
        let ledger = self.running.gateway().map(|gateway| gateway.ledger());
        let counted = ledger.map(Ledger::bytes).into_iter().chain(self.running.device_bytes());
        (sample.network_sent_bytes, sample.network_received_bytes) =
            counted.reduce(|one, other| (one.0 + other.0, one.1 + other.1)).unzip();
        sample.network_connections = ledger.map(Ledger::connections);
        if let Some(room) = self.room()? {
            sample.disk_bytes = Some((room.f_blocks - room.f_bfree) * room.f_frsize);
            sample.inodes = Some(room.f_files - room.f_ffree);
        }
        Ok(sample)
    }

    fn room(&self) -> Result<Option<StatVfs>> {
        let scratch = self.running.scratch();
        scratch.map(rustix::fs::fstatvfs).transpose().failing(Kind::Disk, || "read the room on the scratch file system")
    }

    /// The kernel does not count refused writes, so one cheap call must see a full disk before the sandbox frees room
    /// again.
    pub(super) fn look_at_disk(&self, state: &mut State, seen: &mut Findings) -> Result<()> {
        state.disk_seen = Instant::now();
        state.next_disk = state.disk_seen + SAMPLE;
        let Some(room) = self.room()? else { return Ok(()) };
        let free = room.f_bavail * room.f_frsize;
        let until_full =
            (free.saturating_mul(1000) / FASTEST_BYTES).min(room.f_ffree.saturating_mul(1000) / FASTEST_FILES);
        state.next_disk = state.disk_seen + Duration::from_millis(until_full).clamp(DISK_SAMPLE, SAMPLE);
        let used = (room.f_blocks - room.f_bfree) * room.f_frsize;
        seen.usage.disk_peak_bytes = Some(used).max(seen.usage.disk_peak_bytes);
        seen.usage.inodes_peak = Some(room.f_files - room.f_ffree).max(seen.usage.inodes_peak);
        let mut note = |limit, full: bool, evidence: String| {
            if full && !seen.hits.iter().any(|hit| hit.limit == limit) {
                seen.hits.push(LimitHit { limit, evidence });
            }
        };
        note(LimitName::Disk, free < FULL_BYTES, format!("{free} of {} bytes free", self.disk_bytes));
        note(LimitName::Inodes, room.f_ffree == 0, format!("0 of {} inodes free", room.f_files));
        Ok(())
    }

    /// The interval is short enough to see a full socket.
    pub(super) fn queue_sample(&self) -> Duration {
        let until_full = (self.limits.memory / Limits::UNCOUNTED).saturating_mul(1000) / FASTEST_BYTES;
        Duration::from_millis(until_full).clamp(QUEUE_SAMPLE, SAMPLE)
    }

    /// No cgroup counts what waits in netlink sockets. The kernel reads the sockets of all network namespaces for that.
    pub(super) fn look_at_queues(&mut self, run: Option<u64>, state: &mut State, seen: &mut Findings) -> Result<()> {
        state.next_queues = Instant::now() + self.queue_sample();
        // A network to the outside also fills them with notices of the kernel.
        let is_closed = matches!(self.network, NetworkMode::None | NetworkMode::Egress);
        if !state.is_ready || is_closed && !has_run(&mut state.run_at_queues, run) {
            return Ok(());
        }
        let most = self.limits.memory / Limits::UNCOUNTED;
        let bytes = state.queues.bytes(self.running, most, self.network == NetworkMode::Host)?;
        if bytes > most {
            self.end_for_memory(format!("{bytes} bytes wait in netlink sockets, which no group counts"), seen)?;
        }
        Ok(())
    }

    /// No cgroup counts record locks. Many locks take system time.
    pub(super) fn look_at_locks(&mut self, state: &mut State, seen: &mut Findings) -> Result<()> {
        let seconds = seen.usage.cpu_system_seconds.unwrap_or(0.0);
        if seconds < state.lock_seconds + LOCK_SECONDS {
            return Ok(());
        }
        state.lock_seconds = seconds;
        if let Some(total) = self.running.too_many_locks()? {
            let evidence = format!("it has most of {total} record locks of the machine, which no group counts");
            self.end_for_memory(evidence, seen)?;
        }
        Ok(())
    }

    fn end_for_memory(&mut self, evidence: String, seen: &mut Findings) -> Result<()> {
        if seen.stopped.is_some() {
            return Ok(());
        }
        seen.hits.push(LimitHit { limit: LimitName::Memory, evidence });
        self.kill(Stopped::Memory, seen)
    }
}
