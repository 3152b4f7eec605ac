"""Numbers and how they are kept: a case gives tables, a table has rows, a row has a name and its values."""
import statistics
from dataclasses import asdict, dataclass, field

from lab import Failed, say


@dataclass
class Table:
    """`base` names the row that ratios refer to; `floor` the one that shows what the kernel alone costs."""

    title: str
    text: str = ""
    unit: str = "ms"
    rows: list = field(default_factory=list)
    base: str = "brig"
    floor: str = "floor"
    more: list = field(default_factory=list)  # further columns: [key, label, digits]
    plot: str = "bars"  # or "lines" over the number in the row's `at`, or "" for none
    left_out: list = field(default_factory=list)
    only_plot: bool = False  # not as rows: other tables have them

    def add(self, name, samples, **values):
        """A row from samples in the table's unit."""
        samples = sorted(samples)
        self.rows.append({
            "name": name, "least": samples[0], "median": statistics.median(samples),
            "p99": samples[min(len(samples) - 1, len(samples) * 99 // 100)], **values})
        say(f"  {self.title}: {name}: {self.rows[-1]['median']:.2f} {self.unit}")

    def record(self):
        """The table as plain data, with each row's ratios of medians."""
        medians = {row["name"]: row["median"] for row in self.rows}
        for row in [] if self.only_plot else self.rows:
            for key, name in (("to_base", self.base), ("to_floor", self.floor)):
                if medians.get(name):
                    row[key] = row["median"] / medians[name]
        idle = {row["name"]: row["idle_median"] for row in self.rows if "idle_median" in row}
        for row in self.rows:
            if "idle_median" in row and idle.get(self.base):
                row["idle_to_base"] = row["idle_median"] / idle[self.base]
        return asdict(self)


@dataclass
class Subject:
    """A command to be timed. `mounts` is the mount namespace it runs in. A name that begins with `-` is run in its turn and not timed."""

    name: str
    words: list
    mounts: str = ""


def interleave(lab, table, rounds, pause_ms, subjects):
    """Times the subjects in turn and adds a row for each. Who fails is left out by name, with its last words."""
    words = []
    for subject in subjects:
        words += [":::"] if words else []
        words += [f"{subject.name}@{subject.mounts}" if subject.mounts else subject.name, *subject.words]
    out, err, _ = lab.call(lab.program("interleave"), str(rounds), str(pause_ms), *words, timeout=900)
    for line in out.splitlines():
        name, median, slow, least = line.split("\t")
        table.rows.append({"name": name, "least": int(least) / 1e3, "median": int(median) / 1e3, "p99": int(slow) / 1e3})
    # Some peers say a whole page when they fail: the first line has the name and the reason.
    starts = tuple(f"{subject.name}: " for subject in subjects)
    for line in [line for line in err.strip().splitlines() if line.startswith(starts)][:6]:
        table.left_out.append(line.replace(lab.work, "…").replace(lab.tag, "…").replace(lab.brig, "brig")[:300])
        say(f"{table.title}: left out: {line}")
    return table


def with_idle(hot, idle):
    """Both tables as one: the second one's numbers are further columns of the first one's rows."""
    found = {row["name"]: row for row in idle.rows}
    for row in hot.rows:
        if other := found.get(row["name"]):
            row.update({f"idle_{key}": other[key] for key in ("least", "median", "p99")})
    hot.more = [["idle_least", "idle: least", 2], ["idle_median", "median", 2], ["idle_p99", "p99", 2], ["idle_to_base", f"x {hot.base}", 2]]
    hot.left_out += [line for line in idle.left_out if line not in hot.left_out]
    return hot


def attempt(lab, table, name, action):
    """Does `action`, and leaves `name` out of the table with a reason where it fails."""
    try:
        return action()
    except (Failed, OSError, ValueError) as error:
        reason = str(error).replace(lab.work, "…").replace(lab.brig, "brig")
        table.left_out.append(f"{name}: {reason[:300]}")
        say(f"{table.title}: left out: {name}: {reason}")
        return None
