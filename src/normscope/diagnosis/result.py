"""The result of `diagnose`: findings, and what was looked at."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.diagnosis.finding import SEVERITIES, Evidence, Finding
from normscope.diagnosis.sarif import sarif_log
from normscope.results import plain, write_json
from normscope.results.reporting import Reportable

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
COLUMNS = ["rule", "name", "severity", "layers", "text", "evidence", "cost", "unit", "fix"]


@dataclass(frozen=True)
class Diagnosis(Reportable):
    """The findings about one training, and a record of the look.

    Attributes:
        findings: errors first, then warnings, then notes; within each, the costliest first.
        looked_at: sentences on what was looked at.
        rules: ids of the rules that judged.
        skipped: ids of rules that could not judge, with the reason.
        notes: what is unusual about the data or the look.
        passes: cost of the look in training steps; a forward pass on a batch counts as a third.
        seconds: duration of the look.
        settings: of the training.
        environment: versions and device.
        measured: by id of a rule, the largest number that it judged by and its limit, where the look has one number
            for all layers; also of rules that found nothing.
    """

    findings: tuple[Finding, ...]
    looked_at: tuple[str, ...]
    rules: tuple[str, ...]
    skipped: dict[str, str]
    notes: tuple[str, ...]
    passes: float
    seconds: float
    settings: dict[str, Any]
    environment: dict[str, str | int]
    measured: dict[str, Evidence] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there is no error and no warning."""
        return not self.at_least("warning")

    def at_least(self, severity: str) -> tuple[Finding, ...]:
        """The findings of this severity and of graver ones."""
        return tuple(f for f in self.findings if SEVERITIES.index(f.severity) <= SEVERITIES.index(severity))

    def frame(self) -> "pd.DataFrame":
        """A table with one row for each finding: rule, layers, text, evidence, cost and fix."""
        import pandas as pd

        rows = [
            {
                "rule": each.rule,
                "name": each.name,
                "severity": each.severity,
                "layers": ", ".join(each.layers),
                "text": each.text,
                "evidence": each.evidence.value,
                "cost": each.cost.value,
                "unit": each.cost.unit,
                "fix": each.fix,
            }
            for each in self.findings
        ]
        return pd.DataFrame(rows, columns=COLUMNS)

    def plain(self) -> dict[str, Any]:
        """The result as plain JSON."""
        return {"kind": "diagnosis", "schema": SCHEMA, "ok": self.ok} | plain(asdict(self))

    def save(self, path: str | Path) -> None:
        """Write the result as plain JSON, with inf and nan as strings."""
        write_json(path, self.plain())

    def sarif(self, path: str | Path, file: str = "") -> Path:
        """Write the findings as SARIF 2.1.0, which code hosts show beside the code. Returns the path.

        Args:
            path: the file to write, in an existing folder.
            file: the source file that the findings belong to, such as the one that holds `setup`.

        Raises:
            ValueError: the path is a folder, or its folder does not exist.
        """
        path = Path(path)
        if path.is_dir() or not path.parent.is_dir():
            raise ValueError(f"SARIF is one file in an existing folder; got {path}. Name a file such as run.sarif.")
        write_json(path, sarif_log(self.findings, file))
        return path

    def _sections(self) -> Sequence[Any]:
        from normscope.report.sections.diagnosis import diagnosis_section

        return [diagnosis_section("Diagnosis", asdict(self))]

    def __str__(self) -> str:
        lines = [self._headline()]
        for each in self.findings:
            lines += ["", str(each)]
            lines += [f"  layers:   {', '.join(each.layers)}"] if each.layers else []
            fix = each.fix.replace("\n", "\n            ")
            lines += [f"  evidence: {each.evidence}", f"  cost:     {each.cost}", f"  fix:      {fix}"]
        lines += ["", *(f"Looked at: {each}" for each in self.looked_at)]
        found = {each.rule for each in self.findings}
        lines += [f"Passed: {rule}, {seen}." for rule, seen in sorted(self.measured.items()) if rule not in found]
        if self.skipped:
            reasons = dict.fromkeys(self.skipped.values())
            for reason in reasons:
                lines.append(f"Not judged: {', '.join(k for k, v in self.skipped.items() if v == reason)} ({reason}).")
        return "\n".join(lines + [f"- {note}" for note in self.notes])

    def _headline(self) -> str:
        counts = [(sum(f.severity == severity for f in self.findings), severity) for severity in SEVERITIES]
        said = ", ".join(f"{count} {severity}{'s' * (count > 1)}" for count, severity in counts if count)
        return f"{said or 'No findings'} by {len(self.rules)} rule{'s' * (len(self.rules) != 1)}."
