"""A terminal as tests see one: runs a program in it, presses keys, and says what is on the screen.
It understands what adtopkctl sends: the cursor's home and places, clearing, colours, two screens.
"""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
import unicodedata

from cluster import PATIENCE

TOKEN = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])|(.)", re.DOTALL)


def width(character):
    """Columns of a character."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class Screen:
    def __init__(self, command, columns=80, rows=24, environment=None):
        self.columns, self.rows = columns, rows
        self.cells = {}
        self.row = self.column = 0
        self.other = False  # another screen than the user's is shown
        self.cursor = True
        self.unknown = []  # what no terminal should get
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.execvpe(command[0], command, {**os.environ, **(environment or {})})
        self.resize(columns, rows)

    def resize(self, columns, rows):
        self.columns, self.rows = columns, rows
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.kill(self.process, signal.SIGWINCH)

    def press(self, keys):
        os.write(self.terminal, keys.encode())

    def flags(self):
        return termios.tcgetattr(self.terminal)[3]

    def read(self, seconds):
        """Takes what comes within this time; false at the program's end."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not select.select([self.terminal], [], [], 0.05)[0]:
                continue
            try:
                data = os.read(self.terminal, 1 << 16)
            except OSError:
                return False
            if not data:
                return False
            self.take(data.decode(errors="replace"))
        return True

    def take(self, text):
        for match in TOKEN.finditer(text):
            private, numbers, command, character = match.groups()
            if command:
                self.control(private, numbers, command)
            elif character == "\r":
                self.column = 0
            elif character == "\n":
                self.row += 1
            elif ord(character) < 32 or character == "\x7f":
                self.unknown.append(character)
            else:
                for column in range(self.column, self.column + width(character)):
                    self.cells.pop((self.row, column), None)
                self.cells[self.row, self.column] = character
                self.column += width(character)

    def control(self, private, numbers, command):
        numbers = [int(number or 0) for number in numbers.split(";")]
        if private and numbers == [1049]:
            self.other = command == "h"
            self.cells = {}
        elif private and numbers == [25]:
            self.cursor = command == "h"
        elif command == "H":
            self.row = max(numbers[0], 1) - 1
            self.column = (numbers[1] if len(numbers) > 1 else 1) - 1
        elif command in "KJ":
            # Behind a full line the cursor stands on its last character.
            begin = min(self.column, self.columns - 1)
            below = (lambda row: row > self.row) if command == "J" else (lambda row: False)
            self.cells = {place: cell for place, cell in self.cells.items()
                          if not (numbers[0] == 2 or below(place[0]) or
                                  (place[0] == self.row and place[1] >= begin))}
        elif command != "m":
            self.unknown.append(command)

    def lines(self):
        """The text of the screen. Fails if something lies beyond it."""
        beyond = [place for place, cell in self.cells.items()
                  if place[0] >= self.rows or place[1] + width(cell) > self.columns]
        assert not beyond, (beyond, self.cells)
        return ["".join(self.cells.get((row, column), " ") for column in range(self.columns)
                        if (row, column) in self.cells or
                        width(self.cells.get((row, column - 1), " ")) < 2).rstrip()
                for row in range(self.rows)]

    def text(self):
        return "\n".join(self.lines())

    def wait_for(self, pattern):
        """Until the screen has this text; returns it."""
        return self.wait(lambda: re.search(pattern, self.text()) and self.text(), f"no {pattern!r} on the screen")

    def wait(self, condition, what):
        """Reads until it holds; returns what it is then."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            alive, found = self.read(0.1), condition()
            if found:
                return found
            assert alive, f"the program ended: {self.cells}"
        raise AssertionError(f"{what}: {self.cells}")

    def end(self, seconds=10):
        """Waits for the program's end; returns its exit status."""
        while self.read(0.1) and seconds > 0:
            seconds -= 0.1
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    def close(self):
        try:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self.terminal)
