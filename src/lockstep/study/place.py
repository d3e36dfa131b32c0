"""The folder of a study: what lies where.

study.yaml                          the study, every default filled in
tuning/<contestant>.<trial>/        run folders of the sweep
runs/<contestant>.seed-<data>/      run folders of the comparison
results.json, measured.json         what the report is made from
added.txt                           what was added to the study after its first results
report.html, summary.md, figures/   the report
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.config.files import dump_yaml, load_study, read_yaml
from lockstep.config.study import StudySpec
from lockstep.durable import sha256, whole_file
from lockstep.errors import UserError
from lockstep.training.context import absolute
from lockstep.training.run_folder import MAY_CHANGE, flatten

RESULTS, MEASURED, CHANGES = "results.json", "measured.json", "added.txt"
MAY_GROW = ("baseline", "contestants", "evaluate", "measurements", "seeds", "side_by_side", "varies")
"""What may be changed in a study that has begun; the runs that exist are guarded one by one."""


@dataclass(frozen=True)
class StudyPlace:
    """A study's folder."""

    folder: Path

    @property
    def spec_file(self) -> Path:
        return self.folder / "study.yaml"

    @property
    def is_study(self) -> bool:
        return self.spec_file.is_file()

    def run(self, contestant: str, data_seed: int) -> Path:
        return self.folder / "runs" / f"{contestant}.seed-{data_seed}"

    def trial(self, contestant: str, number: int) -> Path:
        return self.folder / "tuning" / f"{contestant}.{number}"

    @property
    def digest(self) -> str:
        """The sha256 of study.yaml."""
        return sha256(self.spec_file)

    def read(self) -> StudySpec:
        if not self.is_study:
            raise UserError(f"{self.folder}: no study.yaml; name the folder that `lockstep compare` filled")
        return load_study(self.spec_file)

    def store(self, study: StudySpec) -> None:
        """Write study.yaml, or check that the one already there describes the same study."""
        resolved = self._resolved(study)
        if self.is_study:
            self._refuse_loss(study)
            self._note_growth(study)
            stored, asked = flatten(read_yaml(self.spec_file)), flatten(json.loads(json.dumps(resolved)))
            free = (*MAY_GROW, *MAY_CHANGE)
            for key in sorted(stored.keys() | asked.keys()):
                if stored.get(key) != asked.get(key) and not any(f"{key}.".startswith(f"{name}.") for name in free):
                    raise UserError(
                        f"{self.folder} holds a study with {key} = {stored.get(key)}, but {asked.get(key)} is asked"
                        " for; use another --output-dir, or the old value"
                    )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.folder}: cannot be used as a study folder: {error.strerror}") from None
        whole_file(self.spec_file, dump_yaml(resolved))

    def _refuse_loss(self, study: StudySpec) -> None:
        """Whoever has begun to compete is not left out afterwards."""
        before = self.read()
        gone = [name for name in before.contestants if name not in study.contestants]
        gone += [f"seed {seed}" for seed in before.seeds.data if seed not in study.seeds.data]
        if gone and any((self.folder / "runs").glob("*/checkpoint-*")):
            raise UserError(
                f"{self.folder} holds a study with {', '.join(gone)}; contestants and seeds may be added, but not left"
                " out; use another --output-dir"
            )

    def _note_growth(self, study: StudySpec) -> None:
        """What is added once results are known is exploration, and the report says so."""
        if not (self.folder / RESULTS).exists():
            return
        before = self.read()
        added = [f"contestant {name}" for name in study.contestants if name not in before.contestants]
        added += [f"seed {seed}" for seed in study.seeds.data if seed not in before.seeds.data]
        named = before.evaluate.model_dump()
        added += [f"test {name}" for name in study.evaluate.model_dump() if name not in named]
        if added:
            whole_file(self.folder / CHANGES, "".join(f"{one}\n" for one in (*self._added(), *added)))

    def _added(self) -> list[str]:
        path = self.folder / CHANGES
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def changes(self) -> list[str]:
        """In words, what was added to the study after its first results."""
        added = self._added()
        return [f"added after the first results, and so exploratory: {', '.join(added)}"] if added else []

    def _resolved(self, study: StudySpec) -> dict[str, Any]:
        """A study folder must be of use from any working directory."""
        resolved = study.model_dump(mode="json")
        # What is not named is not tested by, and what is not said is as trained on: a default is neither.
        resolved["evaluate"] = study.evaluate.model_dump(mode="json", exclude_unset=True)
        for name, section in study.contestants.items():
            given = section.model_dump(mode="json", exclude_unset=True)
            resolved["contestants"][name] = given
        for key in ("training_corpus", "source_corpus"):
            resolved["data"][key] = absolute(resolved["data"][key])
        return resolved


def seed_of(folder: Path) -> int:
    """The data seed that a run's folder is named by."""
    found = re.fullmatch(r".*\.seed-(\d+)", folder.name)
    if found is None:
        raise UserError(f"{folder}: not named as a run of a study is")
    return int(found[1])
