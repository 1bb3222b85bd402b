"""tests/check/words finds each planted fault of style, and nothing in text that is as it should be."""
import importlib.machinery
import importlib.util
import os
import sys
import unittest

sys.dont_write_bytecode = True
WORDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "words")
LOADER = importlib.machinery.SourceFileLoader("words", WORDS)
words = importlib.util.module_from_spec(importlib.util.spec_from_loader("words", LOADER))
LOADER.exec_module(words)

GOOD = '''/*
 * A file's comment. It has two sentences, with "a /* in a string */".
 */
struct one {
    int size;     /* bytes per step, at most 512 */
    int count;    /**< Entries that a step may send. */
    char *name;   // a name, as the step has it
};
static const char *text = "/* ... no comment */";
'''
BAD = [
    ("/* ... and so on */\n", 1, '"..."'),
    ("int a; /**< ... of a */\n", 1, '"..."'),
    ("int a; /* of the first, */\nint b; /* and of the second */\n", 2, "continues"),
    ("\n/* It sends 8 bytes a step. */\n", 2, '"8 bytes a step"'),
    ("/* It takes\n * 5 ms a\n * round. */\n", 1, '"5 ms a round"'),
    ("/* bytes a node */\n", 1, '"bytes a node"'),
    ("// 2 a second\n", 1, '"2 a second"'),
]
PAGE = """# A head

A paragraph with `code. Still code` and
a [link. No end](here.md) in one sentence. A second one.

    a command. Not a sentence
    another one

    and one more
    in a second block

- An item
  that goes on.
- Another one. With two sentences.

| one | two \\| three |
| --- | --- |

```
fenced. Not counted
```
"""
HELP = """usage: program [OPTION]...

Does something. And more.

  --first WORD     takes a word
                   and says so. Twice.
  --second         a flag
"""


def long_sentence(count):
    return " ".join(["Word", *["word"] * (count - 1)]) + "."


class Words(unittest.TestCase):
    def test_good_comments(self):
        found = list(words.comments(GOOD))
        self.assertEqual(len(found), 4)
        self.assertEqual(list(words.bad_comments(found)), [])

    def test_bad_comments(self):
        for source, line, told in BAD:
            found = list(words.bad_comments(words.comments(source)))
            self.assertEqual([at for at, _ in found], [line], source)
            self.assertIn(told, found[0][1])

    def test_no_false_per(self):
        for text in ("with AVX-512 a step of the pass", "in version 2, a node sends",
                     "512 bytes, a rank has them", "after 3 a few", "it sends bytes and a step ends"):
            self.assertEqual(list(words.says_a(words.Text(1, text))), [], text)

    def test_units_of_a_page(self):
        self.assertEqual([one.text for one in words.units(PAGE)][:4],
                         ["A paragraph with `code. Still code` and\n"
                          "a [link. No end](here.md) in one sentence. A second one.",
                          "An item\nthat goes on.", "Another one. With two sentences.", "one"])

    def test_bad_page(self):
        self.assertEqual(list(words.bad_page(PAGE)), [])
        bad = f"# Head\n\n- One item\n- It sends 8 bytes a step.\n- Another:\n\n{long_sentence(36)}\n"
        found = list(words.bad_page(bad))
        self.assertEqual([line for line, _ in found], [3, 4, 7])
        for (_, problem), told in zip(found, ("full stop", "per", "36 words")):
            self.assertIn(told, problem)
        self.assertEqual(list(words.bad_page(f"- (It ends.)\n- `Here.`\n\n{long_sentence(35)}\n")), [])

    def test_phrases(self):
        for text, told in (("Its rank is that of one of those that wait.", "those that"),
                           ("It does not go with `dense`.", "go with"), ("What is left stays.", "What"),
                           ("Here. What it takes is kept.", "What"), ("Values travel there.", "travel")):
            found = list(words.bad_page(text + "\n", users=True))
            self.assertEqual(len(found), 1, text)
            self.assertIn(told, found[0][1])
            self.assertEqual(list(words.bad_page(text + "\n")), [])
        good = "It says what to do. What lives here: a thing. What is it?\n"
        self.assertEqual(list(words.bad_page(good, users=True)), [])

    def test_python(self):
        source = f'"""{long_sentence(36)}"""\n# One, and\n# two.\nx = "# none"  # ... goes on\n'
        found = list(words.python_comments(source))
        self.assertEqual([(one.line, one.text) for one in found[1:]], [(2, "One, and\ntwo."), (4, "... goes on")])
        self.assertEqual([line for line, _ in words.bad_comments(found)], [1, 4])

    def test_sentences(self):
        self.assertEqual(list(words.sentences("One `a. B` two. [Three. x](y.md) e.g. 4. Five")),
                         ["One Code two.", "Three. x e.g 4.", "Five"])
        self.assertEqual(words.length("one - two = 3"), 3)

    def test_limits(self):
        count = words.Count()
        count.add("here", long_sentence(35) + " " + long_sentence(26) + " " + long_sentence(25))
        self.assertEqual((count.all, count.aim, count.long), (3, 2, 0))
        self.assertEqual(list(words.too_long(words.Text(1, long_sentence(35)))), [])
        self.assertEqual(len(list(words.too_long(words.Text(1, long_sentence(36))))), 1)

    def test_help(self):
        self.assertEqual(list(words.help_units(HELP)),
                         ["usage: program [OPTION]...", "Does something. And more.",
                          "takes a word and says so. Twice.", "a flag"])


if __name__ == "__main__":
    unittest.main()
