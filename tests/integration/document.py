"""The commands of a document, and whether what they print looks like what the document shows.

A block is a stretch of lines that are fenced, or indented by four spaces behind an empty line. In a
block that begins with "$ " the lines without that are what the command above them prints, and the
block may contain empty lines. In any other block every line is a command, unless the test knows the
block as something else, such as a file or lines of a log.
"""
import re
from typing import NamedTuple

NUMBER = r"-?\d[\d.,]*(?:e[+-]?\d+)?%?(?: ?(?:[kMGT]?B(?:/s)?|[num]?s|min|h|days|[kMG])(?!\w))?"
# What is left out, a name in quotes, a key, a number with its unit, the dash for no number.
CHANGES = re.compile(rf"(?P<left_out>\.\.\.)|(?P<name>'[^']*')|(?P<key>(?<!\S)\S{{40}}(?!\S))|"
                     rf"(?P<number>(?<![\w.]){NUMBER}|(?<!\S)-(?!\S))")
MAY_BE = {"left_out": ".*?", "name": r"'[^']*'", "key": r"\S{40}", "number": f"(?:{NUMBER}|-)"}


class Command(NamedTuple):
    text: str    # as the document has it
    line: int    # where
    shown: list  # lines that the document shows as its output

    @property
    def key(self):
        """The command without the remark behind it."""
        return re.sub(r"\s+# .*", "", self.text)


class Block(NamedTuple):
    line: int
    lines: list

    @property
    def has_output(self):
        return self.lines[:1] and self.lines[0].startswith("$ ")

    @property
    def text(self):
        return "\n".join(self.lines) + "\n"

    def commands(self):
        found = []
        for number, line in enumerate(self.lines, self.line):
            if not self.has_output:
                found.append(Command(line, number, []))
            elif line.startswith("$ "):
                found.append(Command(line[2:], number, []))
            elif line:
                found[-1].shown.append(line)
        return found


def blocks(text):
    """All blocks of a document, in its order, without indentation and fences."""
    found, block, fenced, before = [], None, False, ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
            block = None
        elif fenced or line.startswith("    ") and (block or not before):
            if block is None:
                block = Block(number, [])
                found.append(block)
            block.lines.append(line if fenced else line[4:])
        elif line or not (block and block.has_output):
            block = None
        else:
            block.lines.append("")
        before = line
    return found


def pattern(line):
    """A regular expression for what looks like this line."""
    parts, end = [], 0
    for change in CHANGES.finditer(line):
        parts += [re.escape(line[end:change.start()]), MAY_BE[change.lastgroup]]
        end = change.end()
    parts.append(re.escape(line[end:]))
    return re.sub(r"(?:\\ )+", r"\\s+", "".join(parts))


def missing(shown, printed):
    """The first line that the document shows and the command did not print in this order, or None.

    Numbers, names in quotes, keys and the breaks of lines may differ, "..." is anything, and the
    command may print more."""
    place = 0
    for line in map(str.strip, shown):
        found = re.compile(pattern(line)).search(printed, place)
        if found is None:
            return line
        place = found.end()
    return None
