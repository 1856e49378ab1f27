"""Documentation as something to run: the blocks of a page, its files, its commands and what they print.

    python tests/docs_pages.py docs/reference/command-line.md      puts what the commands print now below each of them

A block ```python title="net.py"``` (or toml, text) is a file. Other python blocks run in their order in one namespace.
In a console block a line "$ command" is run; what follows, up to the next one, is what it prints ("..." stands for any
lines), compared with the numbers left out. A command with nothing below it has only to succeed.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def files_of(text):
    return {title: body for _, title, body in _BLOCK.findall(text) if title}


def code_of(text):
    return [body for kind, title, body in _BLOCK.findall(text) if kind == "python" and not title]


def commands_of(text):
    """Pairs of a command and the lines shown below it."""
    found = []
    for kind, _, body in _BLOCK.findall(text):
        if kind == "console":
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                found.append((command, shown.splitlines()))
    return found


def output_of(command, folder):
    verb, *arguments = shlex.split(command)
    assert verb == "normscope", command
    env = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "normscope", *arguments],
        cwd=folder, env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, f"{command}\n{ran.stderr}"
    return [line.rstrip() for line in ran.stdout.splitlines()]


def agrees(shown, printed):
    """Line by line with numbers left out; "..." stands for any lines."""
    pattern = "\n".join(r"(?:.*\n)*.*" if line == "..." else re.escape(_bare(line)) for line in shown)
    return re.fullmatch(pattern, "\n".join(map(_bare, printed))) is not None


def _bare(line):
    """Without numbers, and without the widths that numbers give to columns."""
    line = re.sub(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?", "#", " ".join(line.split()))
    return re.sub(r"([─━])\1+", r"\1", line)


def _filled(text, folder):
    """The page with what its commands print; those that show nothing, or only a part, stay as they are."""
    for name, body in files_of(text).items():
        (Path(folder) / name).write_text(body)
    for command, shown in commands_of(text):
        printed = output_of(command, folder)
        if "..." not in shown:
            old = "\n".join([f"$ {command}", *shown]) + "\n"
            text = text.replace(old, "\n".join([f"$ {command}", *printed]) + "\n")
    return text


if __name__ == "__main__":
    for place in map(Path, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as away:
            place.write_text(_filled(place.read_text(), away))
