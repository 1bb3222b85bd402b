#!/usr/bin/env python3
"""Writes a manual page from what the programs say of themselves, or from the library's headers.

usage: man.py PAGE ADTOPKD ADTOPKCTL ADTOPK-PERF [ADTOPK-EXPORTER]
   or: man.py adtopk-digits.1|adtopk-text.1 PROGRAM
PAGE is one of adtopkctl.1, adtopk-perf.1, adtopk-exporter.1, libadtopk.3, adtopkd.8, adtopkd.json.5
and adtopk-policy.5; it goes to standard output.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from typing import NamedTuple

PAGES = {  # what it is about, and the section's name
    "adtopkctl.1": ("reads and changes the adtopk daemon of this node", "User Commands"),
    "adtopk-perf.1": ("measures the parts of adtopk on this machine", "User Commands"),
    "adtopk-exporter.1": ("shows the adtopk daemon of this node over HTTP", "User Commands"),
    "adtopk-digits.1": ("trains a small network on hand-written digits through adtopk", "User Commands"),
    "adtopk-text.1": ("trains a model of characters through adtopk", "User Commands"),
    "libadtopk.3": ("the interface of trainers to the adtopk daemon", "Library Functions"),
    "adtopkd.8": ("the adtopk daemon of a node", "System Administration"),
    "adtopkd.json.5": ("configuration file of adtopkd", "File Formats"),
    "adtopk-policy.5": ("what adtopk sends of each tensor, and how", "File Formats"),
}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADERS = ("client/include/adtopk/adtopk.h", "client/include/adtopk/memory.h",
           "client/include/adtopk/stream.h", "client/include/adtopk/members.h", "proto/include/adtopk/status.h")
OPTION = re.compile(r"([* ]) (--[a-z-]+)(?: ([A-Z:]+))? +(.*)")


class Programs(NamedTuple):
    daemon: str
    ctl: str
    perf: str
    exporter: str = ""


def run(program, *arguments):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("ADTOPK_")}
    return subprocess.run([program, *arguments], env=environment, check=True,
                          stdout=subprocess.PIPE, text=True).stdout


# ------------------------------------------------------------------ roff

def plain(text):
    """Text that roff takes as it is, wherever a line of it begins."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("^", "\\(ha")
    return re.sub(r"^\.", r"\\&.", text.replace("~", "\\(ti").replace("`", "\\(ga"),
                  flags=re.MULTILINE)


def bold(text):
    return f"\\fB{plain(text)}\\fR"


def italic(text):
    return f"\\fI{plain(text)}\\fR"


def item(head, text):
    return f".TP\n{head}\n{plain(text)}\n"


def literal(text):
    return f".PP\n.nf\n{plain(text.strip())}\n.fi\n"


def paragraph(text):
    return f".PP\n{plain(text)}\n"


def section(name, *parts):
    return f".SH {name}\n" + "".join(parts)


def page(name, *sections):
    title, number = name.rsplit(".", 1)
    about, manual = PAGES[name]
    others = ", ".join(f"{bold(other.rsplit('.', 1)[0])}({other[-1]})"
                       for other in PAGES if other != name)
    return (f'.TH "{plain(title.upper())}" "{number}" "" "adtopk" "{manual}"\n.nh\n.ad l\n'
            + section("NAME", f"{plain(title)} \\- {about}\n") + "".join(sections)
            + section('"SEE ALSO"', f"{others}\n",
                      paragraph("operators.md, policy.md and options.md in the documents of adtopk")))


# ------------------------------------------------------------------ what --help says

def options(text):
    """(marked, flag, argument, meaning) of each option in a help text."""
    found = []
    for line in text.splitlines():
        match = OPTION.fullmatch(line)
        if match:
            found.append([match[1] == "*", match[2], match[3], match[4]])
        elif found and re.match(" {10,}[^ ]", line):  # the line before goes on
            found[-1][3] += " " + line.strip()
    return found


def option_items(text, without=""):
    """Those that are not in the other help text as well."""
    known = [flag for _, flag, _, _ in options(without)]
    return "".join(item(bold(flag) + (f" {italic(argument)}" if argument else ""), meaning)
                   for _, flag, argument, meaning in options(text) if flag not in known)


def command(ctl, name, common):
    """A command's part: what it does, what its arguments are, and the options of its own."""
    usage, does, *more = run(ctl, *name.split(), "--help").strip().split("\n\n")
    flags = more.pop()
    arguments = re.sub(r"^usage: adtopkctl \[OPTION\]\.\.\. ", "", usage)
    return (f'.SS "{plain(arguments)}"\n' + plain(does.strip()) + "\n"
            + "".join(map(literal, more)) + option_items(flags, common))


def exit_statuses(text):
    """An item for each "  N  meaning", which may go on in further lines."""
    for number, meaning in re.findall(r"^  (\d)  (.*(?:\n {5}.*)*)", text, re.MULTILINE):
        yield item(number, " ".join(meaning.split()))


def adtopkctl(programs):
    ctl = programs.ctl
    usage, about, listed, flags, more, status = run(ctl, "--help").strip().split("\n\n")
    names = re.findall(r"^  ([a-z]+(?: [a-z]+)?)  ", listed, re.MULTILINE)
    return page("adtopkctl.1", section("SYNOPSIS", plain(usage.removeprefix("usage: ")) + "\n"),
                section("DESCRIPTION", plain(about) + "\n"),
                section("OPTIONS", plain("Each command takes those that concern it, and may have "
                                         "more.") + "\n", option_items(flags)),
                section("COMMANDS", *(command(ctl, name, flags) for name in names)),
                section('"EXIT STATUS"', *exit_statuses(status)))


def adtopk_perf(programs):
    usage, about, listed, flags, more = run(programs.perf, "--help").strip().split("\n\n")
    lists, statuses = more.split("\n")
    return page("adtopk-perf.1", section("SYNOPSIS", plain(usage.removeprefix("usage: ")) + "\n"),
                section("DESCRIPTION", plain(about) + "\n"),
                section("BENCHMARKS", *(item(bold(name), meaning) for name, meaning in
                                        re.findall(r"^ +([a-z]+) +(.*)", listed, re.MULTILINE))),
                section("OPTIONS", plain(lists) + "\n", option_items("\n" + flags)),
                section("EXAMPLES", item(bold("adtopk-perf select --size 100M"),
                                         "measures one benchmark with one size"),
                        item(bold("srun --nodes 2 --ntasks-per-node 4 adtopk-perf cluster --max 1G"),
                             "measures two nodes with four ranks each"),
                        item(bold("torchrun --nnodes 2 --no_python adtopk-perf cluster --json"),
                             "does so with one rank each, and prints a document")),
                section('"EXIT STATUS"', *(item(number, meaning) for number, meaning in
                                           re.findall(r"(\d) ([^,.]+)", statuses))))


def adtopk_exporter(programs):
    usage, about, flags, status = run(programs.exporter, "--help").strip().split("\n\n")
    metrics = run(programs.exporter, "--metrics")
    return page("adtopk-exporter.1", section("SYNOPSIS", plain(usage.removeprefix("usage: ")) + "\n"),
                section("DESCRIPTION", plain(about) + "\n"),
                section("OPTIONS", option_items(flags)),
                section("METRICS", *(item(bold(name), meaning + (f" Labels: {labels}." if labels else ""))
                                     for name, labels, meaning in
                                     re.findall(r"^\| `(\w+)` \| (.*?) ?\| (.*) \|$", metrics, re.MULTILINE))),
                section('"EXIT STATUS"', *(item(number, meaning) for number, meaning in
                                           re.findall(r"(\d) ([^,.]+)", status))))


def example(name, program):
    """The page of an example trainer."""
    usage, about, flags = run(program, "--help").strip().split("\n\n")
    data = ("Its data is in share/adtopk/digits.csv.gz, below the prefix of the installation."
            if name == "adtopk-digits.1" else "Its data is any text file.")
    return page(name, section("SYNOPSIS", plain(usage.removeprefix("Usage: ")) + "\n"),
                section("DESCRIPTION", plain(about) + "\n", paragraph(data)),
                section("OPTIONS", option_items(flags)))


def adtopkd(programs):
    usage, about, flags, settings, more, status = run(programs.daemon, "--help").strip().split("\n\n")
    return page("adtopkd.8", section("SYNOPSIS", plain(usage.removeprefix("usage: ")) + "\n"),
                section("DESCRIPTION", plain(about) + "\n"),
                section("OPTIONS", option_items(flags)),
                section("SETTINGS", paragraph(more), option_items(settings)),
                section("SIGNALS", item("SIGHUP", "reads the configuration again"),
                        item("SIGTERM, SIGINT", "ends the daemon, after the steps that are under way")),
                section("FILES", item("/etc/adtopk/adtopkd.json", "the configuration"),
                        item("/run/adtopk/trainers/adtopkd.sock", "where trainers connect"),
                        item("/run/adtopk/control/adtopkd.sock", "where adtopkctl connects")),
                section('"EXIT STATUS"', paragraph(status.removeprefix("Exit status: "))))


# ------------------------------------------------------------------ file formats

def bounds(setting, argument):
    return (f"{argument} from {setting['minimum']} to {setting['maximum']}: "
            if "minimum" in setting else "")


def adtopkd_json(programs):
    daemon = programs.daemon
    with tempfile.NamedTemporaryFile("w", suffix=".json") as nothing:  # not this machine's file
        nothing.write("{}")
        nothing.flush()
        known = json.loads(run(daemon, "--config", nothing.name, "--print-config"))["settings"]
    items = []
    for _, flag, argument, meaning in options(run(daemon, "--help")):
        setting = known.pop(flag[2:].replace("-", "_"), None)
        if setting is not None:
            live = "; may change while the daemon runs" if setting["live"] else ""
            items.append(item(bold(flag[2:].replace("-", "_")),
                              bounds(setting, argument) + meaning + live))
    if known:
        raise ValueError(f"adtopkd --help lacks {', '.join(known)}")
    example = ('{\n    "node": 0,\n    "listen": "tcp://10.0.0.1:7400",\n'
               '    "key_file": "/etc/adtopk/node0.key",\n    "peers": [{"node": 1, '
               '"endpoint": "tcp://10.0.0.2:7400", "key": "KEY"}]\n}')
    return page("adtopkd.json.5", section("DESCRIPTION", paragraph(
        "One JSON object, /etc/adtopk/adtopkd.json unless --config or $ADTOPK_CONFIG names another "
        "file. A key that is unknown or given twice, a wrong type and a number out of range are "
        "errors. adtopkd --check-config reads it, adtopkd --print-config shows what is in force and "
        "why.")), section("KEYS", *items), section("EXAMPLE", literal(example)))


def key_items(keys):
    return "".join(item(bold(key["name"]), f"{key['help']}: {key['values']} "
                        f"(default {key['default'] or 'empty'})"
                        + ("; may stand in a rule" if key["in_rules"] else "")) for key in keys)


def adtopk_policy(programs):
    ctl = programs.ctl
    keys = json.loads(run(ctl, "policy", "keys", "--json"))["keys"]
    sparsifiers = json.loads(run(ctl, "sparsifiers", "--json"))["sparsifiers"]
    example = ('{ "density": 0.01, "rules": [\n    {"match": "*.bias", "sparsifier": "dense"},\n'
               '    {"match": "embed*", "density": 0.001} ] }')
    return page("adtopk-policy.5", section("DESCRIPTION", paragraph(
        "One JSON object. A trainer brings it, or takes the daemon's default; adtopkctl policy set "
        "changes it while training runs, adtopkctl policy check reads it. Of rules, at most 32, the "
        "last one whose match fits a tensor's name wins, for the keys that it sets: * stands for any "
        "characters, ? for one.")), section("EXAMPLE", literal(example)),
        section("KEYS", key_items(keys)),
        section("SPARSIFIERS", *(item(bold(one["name"]), one["help"]) for one in sparsifiers)))


# ------------------------------------------------------------------ the library

def uncommented(comment):
    """The text of a comment, without the stars at the edge."""
    return re.sub(r"^\s*\* ?", "", comment, flags=re.MULTILINE)


def flowing(text):
    """Running text, in which *stars* mark what is stressed."""
    return re.sub(r"\*([A-Za-z][A-Za-z ]*)\*", r"\\fI\1\\fR", plain(" ".join(text.split())))


def prose(comment, begin=".PP"):
    """A comment as paragraphs, lists and examples. begin: what begins a paragraph."""
    made = []
    text = re.sub(r"\n(Errors: )", r"\n\n\1", uncommented(comment).strip("\n"))
    for block in re.split(r"\n\s*\n", text):
        if block.startswith("    "):
            made.append(f"{begin}\n.nf\n{plain(textwrap.dedent(block))}\n.fi\n")
        elif block.lstrip().startswith("- "):
            points = re.split(r"^- ", block.lstrip(), flags=re.MULTILINE)[1:]
            made.append(".RS\n" if begin == ".IP" else "")
            made += [f".IP \\(bu 2\n{flowing(point)}\n" for point in points]
            made.append(".RE\n" if begin == ".IP" else "")
        elif block.strip():
            made.append(f"{begin}\n{flowing(block)}\n")
    return "".join(made)


def header_sections(comment, first):
    """The parts of a header's first comment. first: each gets a section, else they share one."""
    _, *parts = re.split(r"^ \* ## (.*)\n", comment, flags=re.MULTILINE)
    for number, (name, text) in enumerate(zip(parts[::2], parts[1::2])):
        yield (f'.SH "{plain(name.upper())}"\n' if first or number == 0 else
               f'.SS "{plain(name)}"\n') + prose(text)


def members(declaration):
    """The commented members of a structure or enumeration: (declarations, comment) each."""
    for comment, names in re.findall(r"/\*\*(.*?)\*/\n(.*?)(?=\n *(?:/\*\*|\};))", declaration,
                                     re.DOTALL):
        yield " ".join(names.split()).rstrip(","), comment


def declared_type(comment, declaration):
    name = re.match(r"(?:typedef )?((?:struct|enum) \w+)", declaration)[1]
    fields = list(members(declaration))
    head = "" if fields else literal(declaration)
    return f'.SS "{plain(name)}"\n{head}{prose(comment)}' + "".join(
        f".TP\n{bold(names)}\n" + prose(text, ".IP").removeprefix(".IP\n") for names, text in fields)


def declared_functions(comment, declaration):
    names = ", ".join(re.findall(r"(\w+)\(", declaration))
    return f'.SS "{plain(names)}"\n{literal(declaration)}{prose(comment)}'


def libadtopk(_):
    about, types, functions = [], [], []
    for header in HEADERS:
        with open(os.path.join(ROOT, header), encoding="utf-8") as file:
            text = file.read()
        about += header_sections(text[:text.index("*/")], header == HEADERS[0])
        for comment, declaration in re.findall(r"^/\*\*(.*?)\*/\n(.*?;)\n(?=\n)", text,
                                               re.MULTILINE | re.DOTALL):
            if re.match(r"(typedef |struct \w+ \{|enum \w+ \{)", declaration):
                types.append(declared_type(comment, declaration))
            else:
                functions.append(declared_functions(comment, declaration))
        enumeration = re.search(r"^enum adtopk_status \{.*?^\};", text, re.MULTILINE | re.DOTALL)
        if enumeration:
            types.append(declared_type("What functions return.", enumeration[0]))
    return page("libadtopk.3", section("SYNOPSIS", literal(
        "#include <adtopk/adtopk.h>\n\ncc trainer.c $(pkg-config --cflags --libs adtopk-client)")),
        *about, section("TYPES", *types), section("FUNCTIONS", *functions))


def main():
    makers = {"adtopkctl.1": adtopkctl, "adtopk-perf.1": adtopk_perf,
              "adtopk-exporter.1": adtopk_exporter, "libadtopk.3": libadtopk, "adtopkd.8": adtopkd,
              "adtopkd.json.5": adtopkd_json, "adtopk-policy.5": adtopk_policy}
    if len(sys.argv) == 3 and sys.argv[1] in ("adtopk-digits.1", "adtopk-text.1"):
        sys.stdout.write(example(*sys.argv[1:]))
        return
    if len(sys.argv) not in (5, 6) or sys.argv[1] not in makers:
        sys.exit(__doc__.strip())
    sys.stdout.write(makers[sys.argv[1]](Programs(*sys.argv[2:])))


if __name__ == "__main__":
    main()
