"""Write the owner of the project, and the address for reports of vulnerabilities, into the files that name them.

python scripts/owner.py ascend-tools security@ascend-tools.example

Run by hand once, by those who take the project over. The files are `FILES` below; tests/project/test_owner.py fails
where another file names the owner, and holds `change`.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FACTS = ROOT / "project.toml"
FILES = (
    "project.toml", "pyproject.toml", "SECURITY.md", ".github/ISSUE_TEMPLATE/bug.yml",
    ".github/ISSUE_TEMPLATE/config.yml",
)  # fmt: skip


def facts() -> dict[str, str]:
    """The owner and the address as they are now."""
    found: dict[str, str] = tomllib.loads(FACTS.read_text(encoding="utf-8"))
    return found


def change(text: str, now: dict[str, str], owner: str, contact: str) -> str:
    """A file's text with another owner and address."""
    text = text.replace(now["contact"], contact)
    text = text.replace(f"github.com/{now['owner']}/toprope", f"github.com/{owner}/toprope")
    return text.replace(f'owner = "{now["owner"]}"', f'owner = "{owner}"')


def main() -> int:
    """Write what the command line says."""
    if len(sys.argv) != 3:
        sys.stderr.write(__doc__ or "")
        return 2
    now = facts()
    for name in FILES:
        path = ROOT / name
        path.write_text(change(path.read_text(encoding="utf-8"), now, *sys.argv[1:]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
