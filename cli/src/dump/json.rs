//! A dump for programs.

use super::Dump;
use super::look::{EngineThread, Locked, LockedRun, Process};
use super::page::{self, PageSeen};
use super::verdict::verdict;
use pagetide::dump::board::{ParkedFault, RequestShown};
use pagetide::dump::reading::Counts;
use pagetide::group::Field;
use serde_json::{Value, json};

/// Returns all that a dump shows. Ages are milliseconds, addresses hexadecimal texts.
pub(crate) fn json(dump: &Dump) -> Value {
    json!({
        "pid": dump.pid,
        "command": dump.command,
        "cap_bytes": dump.cap_pages.saturating_mul(4096),
        "free_bytes": dump.free_pages.saturating_mul(4096),
        "inquiry": dump.inquiry,
        "verdict": verdict(dump),
        "processes": dump.processes.iter().map(|one| process(one, dump.now)).collect::<Vec<_>>(),
    })
}

fn age_ms(now: u64, since: u64) -> u64 {
    now.saturating_sub(since) / 1_000_000
}

fn address(page: pagetide_swap::PageIndex) -> String {
    format!("{:#x}", page.0.wrapping_mul(4096))
}

fn fault(fault: &ParkedFault, now: u64) -> Value {
    json!({
        "page": address(fault.page),
        "write": fault.write,
        "waits_for": fault.why.text(),
        "age_ms": age_ms(now, fault.since),
        "parked_ms": age_ms(now, fault.parked),
    })
}

fn request(request: &RequestShown, now: u64) -> Value {
    json!({
        "kind": request.purpose.text(),
        "page": address(request.first),
        "pages": request.pages,
        "block": request.block,
        "age_ms": age_ms(now, request.since),
        "demand": request.demand.map(|(page, since)| json!({
            "page": address(page),
            "age_ms": age_ms(now, since),
        })),
    })
}

fn thread(thread: &EngineThread, now: u64) -> Value {
    json!({
        "name": thread.name,
        "tid": thread.task.as_ref().map(|task| task.tid),
        "activity": thread.shown.map(|shown| shown.activity.text()),
        "idle": thread.shown.map(|shown| shown.activity.is_idle()),
        "what": thread.shown.map(|shown| shown.what),
        "age_ms": thread.shown.map(|shown| age_ms(now, shown.since)),
        "state": thread.task.as_ref().map(|task| task.state.to_string()),
        "wchan": thread.task.as_ref().map(|task| task.wchan.clone()),
    })
}

fn counts(counts: &Counts, now: u64) -> Value {
    json!({
        "free_pages": counts.free,
        "low_pages": counts.low,
        "high_pages": counts.high,
        "frames": counts.frames,
        "stalled": counts.stalled,
        "requests": counts.requests,
        "writes": counts.writes,
        "faults_held_back": counts.held,
        "device_failed": counts.device_failed,
        "device_off": counts.device_off,
        "refused_pages": counts.refused,
        "take_out_of": counts.taking.map(|cluster| address(cluster.page(0))),
        "calls": counts.calls,
        "working": counts.working,
        "completing": counts.completing,
        "fork": counts.fork.map(|fork| json!({
            "tid": fork.tid,
            "age_ms": age_ms(now, fork.since),
            "frozen": fork.frozen,
            "serving": fork.serving,
        })),
        "slots": counts.slots,
        "slots_used": counts.used.len(),
        "slots_queued": counts.used.iter().filter(|slot| slot.queued).count(),
        "slots_late": counts.used.iter().filter(|slot| slot.late).count(),
    })
}

fn locked_run(run: &LockedRun) -> Value {
    json!({
        "page": address(run.first),
        "pages": run.pages,
        "state": page::state(run.word),
        "flags": page::flags(run.word),
    })
}

fn locked(locked: &Locked) -> Value {
    json!({
        "pages": locked.pages,
        "writeback": locked.writeback,
        "complete": locked.complete,
        "latches_held": locked.held.iter().map(|&page| address(page)).collect::<Vec<_>>(),
        "runs": locked.runs.iter().map(locked_run).collect::<Vec<_>>(),
    })
}

fn process(one: &Process, now: u64) -> Value {
    let bytes = |field| one.slot.get(field).saturating_mul(4096);
    json!({
        "pid": one.pid,
        "name": one.name,
        "state": one.state.map(|state| state.to_string()),
        "armed": one.armed,
        "resting": one.slot.is_resting(),
        "threads_in_faults": one.faulting,
        "threads": one.threads.iter().map(|shown| thread(shown, now)).collect::<Vec<_>>(),
        "faults": one.parked.iter().map(|parked| fault(parked, now)).collect::<Vec<_>>(),
        "faults_not_shown": one.parked_more,
        "requests": one.requests.iter().map(|shown| request(shown, now)).collect::<Vec<_>>(),
        "granted_bytes": one.slot.granted().saturating_mul(4096),
        "asked_bytes": bytes(Field::Asked),
        "resident_bytes": bytes(Field::Resident),
        "frames_bytes": bytes(Field::Frames),
        "pool_bytes": bytes(Field::Pool),
        "unmanaged_bytes": bytes(Field::Unmanaged),
        "swapped_bytes": bytes(Field::Swapped),
        "disk_bytes": bytes(Field::Disk),
        "probation_bytes": bytes(Field::Cached),
        "inquiry_answered": one.slot.get(Field::Answered),
        "counts": one.counts.as_ref().map(|seen| counts(seen, now)),
        "locked": one.locked.as_ref().map(locked),
        "page": one.page.as_ref().map(|seen| match seen {
            Ok(seen) => page_seen(seen, now),
            Err(error) => json!({ "error": error }),
        }),
        "missing": one.missing,
    })
}

fn page_seen(seen: &PageSeen, now: u64) -> Value {
    json!({
        "page": address(seen.page),
        "state": seen.state(),
        "flags": page::flags(seen.word),
        "word": format!("{:#018x}", seen.word.0),
        "torn": seen.torn,
        "mapped": seen.mapped,
        "stays": seen.stays(),
        "mapping": seen.mapping.as_ref().map(|mapping| json!({
            "start": format!("{:#x}", mapping.range.0),
            "end": format!("{:#x}", mapping.range.1),
            "access": mapping.access,
            "name": mapping.name,
            "flags": mapping.flags,
        })),
        "cluster": {
            "latch_held": seen.held,
            "latch_wanted": seen.parked,
            "queued": seen.history.queued,
            "pooled": seen.history.pooled,
            "workingset": seen.history.workingset,
            "heat": seen.history.heat,
            "taken": seen.history.taken,
        },
        "slot": seen.slot.map(|slot| json!({
            "number": slot.number,
            "references": slot.references,
            "queued": slot.queued,
            "late": slot.late,
        })),
        "faults": seen.faults.iter().map(|parked| fault(parked, now)).collect::<Vec<_>>(),
        "requests": seen.requests.iter().map(|shown| request(shown, now)).collect::<Vec<_>>(),
    })
}
