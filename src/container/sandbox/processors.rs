//! As many processors as the quota is worth: programs that count them start no more threads than can run. A program may
//! ask for others; the quota is the limit.

use crate::spec::resources::Cpu;
use rustix::thread::{CpuSet, sched_getaffinity};

/// `None` allows all that we may use.
pub(super) fn of(cpu: &Cpu) -> Option<Vec<u64>> {
    let quota = u64::try_from(cpu.quota?).ok()?;
    let wanted = usize::try_from(quota.div_ceil(cpu.period.filter(|&period| period > 0)?)).ok()?;
    let allowed = sched_getaffinity(None).ok()?;
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&number| allowed.is_set(number)).collect();
    // By our pid: consecutive sandboxes start on different processors.
    mask(&allowed, wanted, std::process::id() as usize)
}

fn mask(allowed: &[usize], wanted: usize, turn: usize) -> Option<Vec<u64>> {
    if wanted == 0 || wanted >= allowed.len() {
        return None;
    }
    let mut bits = vec![0; CpuSet::MAX_CPU / 64];
    let first = turn.wrapping_mul(wanted) % allowed.len();
    allowed.iter().cycle().skip(first).take(wanted).for_each(|number| bits[number / 64] |= 1 << (number % 64));
    Some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_gets_as_many_processors_as_its_quota_and_the_next_one_others() {
        let numbers = |allowed: &[usize], wanted, turn| {
            let bits = mask(allowed, wanted, turn)?;
            Some((0..CpuSet::MAX_CPU).filter(|at| bits[at / 64] >> (at % 64) & 1 == 1).collect::<Vec<_>>())
        };
        let check = |allowed: &[usize], wanted, turn, expected: Option<&[usize]>| {
            assert_eq!(numbers(allowed, wanted, turn).as_deref(), expected);
        };
        check(&[0, 1], 2, 7, None);
        check(&[0, 1], 3, 7, None);
        check(&[0, 1], 1, 7, Some(&[1]));
        check(&[0, 1], 1, 8, Some(&[0]));
        check(&[0, 2, 4, 70], 2, 0, Some(&[0, 2]));
        check(&[0, 2, 4, 70], 2, 1, Some(&[4, 70]));
        check(&[0, 2, 4, 70], 3, 1, Some(&[0, 2, 70]));
    }
}
