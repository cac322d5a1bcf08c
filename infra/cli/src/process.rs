//! What a process costs, as Linux accounts it. `None` on other systems.

use std::time::Duration;

/// User and system time of this process so far.
pub fn cpu_time() -> Option<Duration> {
    cpu_time_of(std::process::id())
}

/// User and system time of a process so far.
pub fn cpu_time_of(process: u32) -> Option<Duration> {
    /// Linux reports in hundredths of a second on every architecture (`USER_HZ`).
    const TICK_MS: u64 = 10;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program's name may hold spaces; what follows the last parenthesis does not.
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * TICK_MS))
}

/// Resident memory of this process now and at its peak, in bytes.
pub fn memory() -> Option<(u64, u64)> {
    memory_of(std::process::id())
}

/// Resident memory of a process now and at its peak, in bytes.
pub fn memory_of(process: u32) -> Option<(u64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find(|l| l.starts_with(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
    };
    Some((field("VmRSS:")?, field("VmHWM:")?))
}
