"""Resolve all extras together and write what was found to constraints.txt (`make constraints`).

pip does the resolving (`pip install --dry-run --report`): nothing is installed. The versions found here are the ones
that the makefile installs; a plain `pip install quantail` is free to take newer ones.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TORCH = "2.13.0"  # chosen by hand: everything measured in docs/benchmarks.md ran on it

HEADER = """\
# Every version that all extras together resolve to; `make` installs with these. Regenerate with `make constraints`.
# Accelerator libraries are not listed: torch itself pins those it needs.
"""


def main() -> None:
    """Resolve, write, say what changed."""
    target = ROOT / "constraints.txt"
    before = target.read_text(encoding="utf-8").splitlines() if target.exists() else []
    pins = pinned(resolve())
    target.write_text(HEADER + "".join(f"{pin}\n" for pin in pins), encoding="utf-8")
    changed = sorted(set(pins) - set(before))
    print(f"{len(pins)} versions pinned in constraints.txt, {len(changed)} of them new: {', '.join(changed) or 'none'}")


def resolve() -> dict[str, str]:
    """Name -> version of the package with all its extras, as pip would install it into an empty environment."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    everything = f".[{','.join(project['optional-dependencies'])}]"
    command = [sys.executable, "-m", "pip", "install", "-qq", "--dry-run", "--ignore-installed", "--report", "-"]
    answer = subprocess.run([*command, everything, f"torch=={TORCH}"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    packages = [item["metadata"] for item in json.loads(answer.stdout)["install"]]
    return {item["name"]: item["version"] for item in packages if item["name"] != project["name"]}


def pinned(versions: dict[str, str]) -> list[str]:
    """Sorted lines `name==version`; without the local part, which names a build (cpu, cu128) and not a version."""
    canonical = {re.sub(r"[-_.]+", "-", name).lower(): version.partition("+")[0] for name, version in versions.items()}
    skip = re.compile(r"nvidia-|cuda-|triton$")
    return sorted(f"{name}=={version}" for name, version in canonical.items() if not skip.match(name))


if __name__ == "__main__":
    main()
