"""Documentation as something to run: the blocks of a page, its files, its commands and what they print.

    python tests/docs_pages.py docs/reference/command-line.md      puts the output of code and commands below each

A block ```python title="net.py"``` (or toml, text) is a file. Other python blocks run in their order in one namespace;
a text block right below one shows what it prints, lines broken at will, numbers compared within `TOLERANCE`.
In a console block a line "$ command" is run; what follows, up to the next one, is what it prints, compared with the
numbers left out. A command with nothing below it has only to succeed. In both, "..." stands for any lines.
"""

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from textwrap import wrap

WIDTH = 120
ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Relative, for numbers that a page shows: kernels of another processor round otherwise, and trainings amplify that.
TOLERANCE = 0.05
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OUTPUT = re.compile(r"\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def files_of(text):
    return {title: body for _, title, body in _BLOCK.findall(text) if title}


def code_of(text):
    return [body for kind, title, body in _BLOCK.findall(text) if kind == "python" and not title]


def shown_below(text):
    """For each block of `code_of` the lines of the text block right below it, or None."""
    found = []
    for match in _BLOCK.finditer(text):
        if match[1] == "python" and not match[2]:
            below = _OUTPUT.match(text, match.end())
            found.append(below[1].splitlines() if below else None)
    return found


def printed_by(block, name, namespace):
    """The lines that a block prints when it runs in `namespace`."""
    caught = io.StringIO()
    with redirect_stdout(caught):
        exec(compile(block, name, "exec"), namespace)
    return [line.rstrip() for line in caught.getvalue().splitlines()]


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


def agrees_in_numbers(shown, printed):
    """The same words, wherever lines break, and numbers within TOLERANCE or one of the last digit shown."""
    pattern = ""
    for line in shown:
        if line == "...":
            pattern += r"(?:.*\s)?"
            continue
        place = 0
        for number in _NUMBER.finditer(line):
            pattern += _spaced(line[place : number.start()]) + f"({_NUMBER.pattern})"
            place = number.end()
        pattern += _spaced(line[place:] + " ")
    pattern = re.sub(r"(?:\\s\+)+", r"\\s+", pattern)
    found = re.fullmatch(pattern, "".join(f"{line}\n" for line in printed), flags=re.DOTALL)
    if found is None:
        return False
    numbers = _NUMBER.findall("\n".join(shown))
    return all(_close(one, other) for one, other in zip(numbers, found.groups(), strict=True))


def _spaced(words):
    """A pattern for these words with any blanks between them."""
    return r"\s+".join(map(re.escape, re.split(r"\s+", words)))


def _close(shown, printed):
    return abs(_value(shown) - _value(printed)) <= TOLERANCE * abs(_value(printed)) + 1.01 * _last_digit(shown)


def _value(number):
    return float(number.replace(",", ""))


def _last_digit(number):
    """One unit in the last digit of a number that is not an integer: 0.01 for 2.34, 0 for 12."""
    digits, _, power = number.partition("e")
    _, point, decimals = digits.partition(".")
    return 10.0 ** (int(power or 0) - len(decimals)) if point or power else 0.0


def _bare(line):
    """Without numbers, the unit of a time (ms or s), and the widths that numbers give to columns."""
    line = re.sub(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?", "#", " ".join(line.split()))
    line = re.sub(r"# ms\b", "# s", line)
    return re.sub(r"([─━])\1+", r"\1", line)


def put_files(text, folder):
    for name, body in files_of(text).items():
        (Path(folder) / name).write_text(body)


def _filled(text, folder):
    """The page with the present output of its code and commands; where less than all is shown, the page stays."""
    put_files(text, folder)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    namespace = {"__name__": "page"}
    for block, shown in zip(code_of(text), shown_below(text), strict=True):
        printed = printed_by(block, "page", namespace)
        if shown is not None and "..." not in shown:
            printed = [
                part
                for line in printed
                for part in wrap(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False) or [""]
            ]
            old, new = ("\n".join([f"{block}```\n\n```text", *lines, "```"]) for lines in (shown, printed))
            text = text.replace(old, new)
    for command, shown in commands_of(text):
        printed = output_of(command, folder)
        if "..." not in shown:
            old = "\n".join([f"$ {command}", *shown]) + "\n"
            text = text.replace(old, "\n".join([f"$ {command}", *printed]) + "\n")
    return text


if __name__ == "__main__":
    for place in [Path(name).resolve() for name in sys.argv[1:]]:
        with tempfile.TemporaryDirectory() as away:
            place.write_text(_filled(place.read_text(), away))
