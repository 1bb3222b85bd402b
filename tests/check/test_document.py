"""tests/integration/document.py: which commands it finds, and which output looks like the shown one."""
import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.realpath(os.path.join(os.path.dirname(__file__), "../integration")))
from document import blocks, missing  # noqa: E402

TEXT = """# A head
Words
    that go on.

    first command   # a remark
    second

    { "a": "file" }

Words:

    $ look
    node 0: up

      indented 1.5 MB

    $ look again; echo $?
    5

- an item
  goes on

```
fenced

text
```
"""


class Document(unittest.TestCase):
    def test_blocks(self):
        self.assertEqual([(block.line, block.lines[0]) for block in blocks(TEXT)],
                         [(5, "first command   # a remark"), (8, '{ "a": "file" }'), (12, "$ look"),
                          (24, "fenced")])
        self.assertEqual(blocks(TEXT)[3].text, "fenced\n\ntext\n")

    def test_commands(self):
        plain, _, shown, _ = blocks(TEXT)
        self.assertEqual([(one.key, one.line, one.shown) for one in plain.commands()],
                         [("first command", 5, []), ("second", 6, [])])
        self.assertEqual([(one.key, one.line, one.shown) for one in shown.commands()],
                         [("look", 12, ["node 0: up", "  indented 1.5 MB"]),
                          ("look again; echo $?", 17, ["5"])])

    def test_alike(self):
        key = "^xjEOdCYM<=zG.*CHAZ&+S(LCq8%OHdbOI5HOA2$"
        for shown, printed in (("node 0: up 4 s", "before\nnode 12: up 1.5 s\nafter"),
                               ("up 11 s, 2 sessions", "up 1 min, 3 sessions"),
                               ("a  2.51 ms    -", "a - 7"), ("push 'conv1' of", "push 'x' of"),
                               ("key " + key, "key " + key[::-1]), ("at ...: 3", "at /etc/a.json:3: 4"),
                               ("long line", "long\n    line"), ("65.9   740 kB/s", "1 2 B/s")):
            self.assertIsNone(missing([shown], printed), shown)

    def test_not_alike(self):
        for shown, printed in (("node 0: up", "node 0: down"), ("f32 bits", "f16 bits"),
                               ("at 4 s", "at once"), ("'name' of", "name of"), ("a - b", "a x b")):
            self.assertEqual(missing([shown], printed), shown)
        self.assertEqual(missing(["first", "second"], "second\nfirst"), "second")


if __name__ == "__main__":
    unittest.main()
