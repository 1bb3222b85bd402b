#!/usr/bin/env python3
"""Writes a manual page from what the programs say of themselves, or from the library's headers.

usage: man.py PAGE ADTOPKD ADTOPKCTL ADTOPK-PERF [ADTOPK-EXPORTER]
   or: man.py adtopk-digits.1|adtopk-text.1|adtopk-transformer.1 PROGRAM
PAGE is one of adtopkctl.1, adtopk-perf.1, adtopk-exporter.1, libadtopk.3, adtopkd.8, adtopk-device.8,
adtopkd.json.5 and adtopk-policy.5; it goes to standard output. options.md has the variables.
"""
import datetime
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
    "adtopk-transformer.1": ("trains a transformer of characters through adtopk", "User Commands"),
    "libadtopk.3": ("the interface of trainers to the adtopk daemon", "Library Functions"),
    "adtopkd.8": ("the adtopk daemon of a node", "System Administration"),
    "adtopk-device.8": ("device worker of the adtopk daemon", "System Administration"),
    "adtopkd.json.5": ("configuration file of adtopkd", "File Formats"),
    "adtopk-policy.5": ("what adtopk sends of each tensor, and how", "File Formats"),
}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADERS = ("client/include/adtopk/adtopk.h", "client/include/adtopk/options.h", "client/include/adtopk/memory.h",
           "client/include/adtopk/stream.h", "client/include/adtopk/members.h", "client/include/adtopk/checkpoint.h",
           "proto/include/adtopk/status.h")
VARIABLES = "deploy/options.md"
EXAMPLE = "client/examples/minimal.c"
RELEASES = "deploy/debian/changelog"
WIDTH = 78  # of running text
CODE = 71   # of other text, which man indents by 7 columns
SOCKET = "/run/adtopk/trainers/adtopkd.sock"
CONTROL = "/run/adtopk/control/adtopkd.sock"
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


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


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


def breaks(line):
    """(place, rank) of each space at which a line of code may be broken; the least rank is best."""
    depth, quoted, comment = 0, False, False
    for at, char in enumerate(line):
        if char == " " and not quoted and not comment:
            good = line[at - 1] in ",;" or line.startswith(("|| ", "&& ", "/*"), at + 1)
            yield at, depth if good else 99
        quoted ^= char == '"' and not comment
        comment = not line.startswith("*/", at - 1) if comment else line.startswith("/*", at)
        depth += 0 if quoted or comment else (char in "([{") - (char in ")]}")


def fold(line, room):
    """A line of code or of a list with two columns as lines of at most `room` characters, where words end."""
    columns = re.match(r" *\S(?:.*?\S)??  +(?=\S)", line)
    column = columns.end() if columns else len(line) - len(line.lstrip()) + 4
    while len(line) > room:
        found = [(rank, -at) for at, rank in breaks(line) if column < at <= room]
        if not found:
            break
        at = -min(found)[1]
        yield line[:at].rstrip()
        line = " " * column + line[at:].lstrip()
    yield line


def folded(text, room):
    return "\n".join(part for line in text.splitlines() for part in fold(line, room))


def unfilled(text, room=CODE):
    return f".nf\n{plain(folded(text, room))}\n.fi\n"


def literal(text):
    return f".PP\n{unfilled(textwrap.dedent(text).strip())}"


def explained(text):
    """Help on a command: what JOB is, paragraphs, and indented lines as they are."""
    for part in re.findall(r"(?:^  .*\n?)+|^JOB: .*\n?|(?:^(?!  |JOB: ).*\n?)+", text, re.MULTILINE):
        yield literal(part) if part.startswith("  ") else paragraph(" ".join(part.split()))


def paragraph(text):
    return f".PP\n{plain(text)}\n"


def section(name, *parts):
    return f".SH {name}\n" + "".join(parts)


def wrapped(line):
    """A line of running text as several. None of them begins like a command."""
    parts = textwrap.wrap(line, WIDTH, break_long_words=False, break_on_hyphens=False)
    return [parts[0], *(f"\\&{part}" if part[0] in ".'" else part for part in parts[1:])]


def tidy(text):
    """The page without paragraphs that begin right after a head, and with short lines. A line behind .TP
    is a head, and stays whole."""
    lines, filled = [""], True
    for line in re.sub(r"^(\.S[HS] .*\n)\.PP\n", r"\1", text, flags=re.MULTILINE).splitlines():
        filled = line != ".nf" and (filled or line == ".fi")
        flows = filled and len(line) > WIDTH and line[0] != "." and lines[-1] != ".TP"
        lines += wrapped(line) if flows else [line]
    return "\n".join(lines[1:]) + "\n"


def released():
    """The day of the newest release in the changelog of the packages."""
    day = re.search(r"^ -- .*  \w+, (.*\d{4}) ", read(RELEASES), re.MULTILINE)[1]
    return datetime.datetime.strptime(day, "%d %b %Y").strftime("%Y-%m-%d")


def page(name, *sections):
    title, number = name.rsplit(".", 1)
    about, manual = PAGES[name]
    others = " ,\n".join(f".BR {plain(other.rsplit('.', 1)[0])} ({other[-1]})"
                         for other in sorted(PAGES, key=lambda one: (one[-1], one)) if other != name)
    others = others.replace(") ,", "),")
    return tidy(f'.TH "{plain(title.upper())}" "{number}" "{released()}" "adtopk" "{manual}"\n.nh\n.ad l\n'
                + section("NAME", f"{plain(title)} \\- {about}\n") + "".join(sections)
                + section('"SEE ALSO"', f"{others}\n",
                          paragraph("operators.md, policy.md and options.md in share/doc/adtopk")))


def environment(reader, *more):
    """The section on the variables that a program reads: of those in options.md, and more."""
    rows = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \| (.*) \|$", read(VARIABLES).partition("\n## Variables\n")[2],
                      re.MULTILINE)
    found = [item(", ".join(map(bold, re.findall(r"`(\w+)`", names))), meaning.replace("`", ""))
             for names, readers, meaning in rows if re.search(rf"\b{reader}(?![\w-])", readers)]
    return section("ENVIRONMENT", *found, *more)


def files(*known):
    return section("FILES", *(item(path, meaning) for path, meaning in known))


def signals(*known):
    return section("SIGNALS", *(item(bold(name), meaning) for name, meaning in known))


def examples(*known):
    """Command lines, and what each does."""
    return section("EXAMPLES", *(item(bold(line), meaning) for line, meaning in known))


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
            + "".join(part for text in more for part in explained(text)) + option_items(flags, common))


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
                environment("adtopkctl"),
                files((CONTROL, "the control socket of the daemon"),
                      ("/etc/adtopk/node0.key", "a key pair that keygen made, for example")),
                signals(("SIGINT, SIGTERM", "end the command. A change that was requested stays requested; top "
                         "leaves the terminal as it was"),
                        ("SIGTSTP, SIGCONT, SIGWINCH", "top pauses, goes on, takes the new size")),
                section('"EXIT STATUS"', *exit_statuses(status)),
                examples(("adtopkctl status", "shows the daemon, its peers, and what each job waits for"),
                         ("adtopkctl stats digits --interval 1", "shows rates of a job, once per second"),
                         ("adtopkctl policy set digits density=0.02", "changes the policy of a job on all nodes"),
                         ("adtopkctl verify", "checks that no gradient was lost or counted twice"),
                         ("adtopkctl --json status | jq .jobs", "passes a document to another program")))


def adtopk_perf(programs):
    usage, about, listed, flags, more = run(programs.perf, "--help").strip().split("\n\n")
    lists, statuses = more.split("\n")
    return page("adtopk-perf.1", section("SYNOPSIS", plain(usage.removeprefix("usage: ")) + "\n"),
                section("DESCRIPTION", plain(about) + "\n"),
                section("BENCHMARKS", *(item(bold(name), meaning) for name, meaning in
                                        re.findall(r"^ +([a-z]+) +(.*)", listed, re.MULTILINE))),
                section("OPTIONS", plain(lists) + "\n", option_items("\n" + flags)),
                environment("adtopk-perf"),
                files((SOCKET, "where cluster finds the daemon"), (CONTROL, "where it asks the daemon"),
                      ("libexec/adtopk", "below the prefix: other programs to compare with (--peers)")),
                signals(("SIGINT, SIGTERM, SIGHUP", "end the benchmark and all processes that it started")),
                section('"EXIT STATUS"', *(item(number, meaning) for number, meaning in
                                           re.findall(r"(\d) ([^,.]+)", statuses))),
                examples(("adtopk-perf select --size 100M", "measures one benchmark with one size"),
                         ("srun --nodes 2 --ntasks-per-node 4 adtopk-perf cluster --max 1G",
                          "measures two nodes with four ranks each"),
                         ("torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint node0:29500 --no_python adtopk-perf cluster --json",
                          "measures one rank per node, and prints a document; run it on both nodes")))


def adtopk_exporter(programs):
    usage, about, flags, status = run(programs.exporter, "--help").strip().split("\n\n")
    metrics = run(programs.exporter, "--metrics")
    return page("adtopk-exporter.1", section("SYNOPSIS", plain(usage.removeprefix("usage: ")) + "\n"),
                section("DESCRIPTION", plain(about) + "\n"),
                section("OPTIONS", option_items(flags)),
                section("METRICS", *(item(bold(name), meaning + (f" Labels: {labels}." if labels else ""))
                                     for name, labels, meaning in
                                     re.findall(r"^\| `(\w+)` \| (.*?) ?\| (.*) \|$", metrics, re.MULTILINE))),
                section("ENVIRONMENT", item(bold("LISTEN_PID, LISTEN_FDS"),
                                            "systemd passes a socket that listens already: adtopk-exporter.socket")),
                files((CONTROL, "the control socket of the daemon, which it only reads"),
                      ("share/adtopk/adtopk.rules.yml", "below the prefix: alerts for Prometheus")),
                signals(("SIGTERM, SIGINT", "end the exporter")),
                section('"EXIT STATUS"', *(item(number, meaning) for number, meaning in
                                           re.findall(r"(\d) ([^,.]+)", status))),
                examples(("adtopk-exporter --listen 10.0.0.1:9477", "answers a Prometheus on another machine"),
                         ("curl http://127.0.0.1:9477/metrics", "prints the metrics")))


def example(name, program):
    """The page of an example trainer."""
    usage, about, flags = run(program, "--help").strip().split("\n\n")
    trainer = name.rsplit(".", 1)[0]
    data, known = (("digits.csv", ("share/adtopk/digits.csv.gz", "below the prefix: its data"))
                   if trainer == "adtopk-digits" else ("book.txt", ("book.txt", "its data: any text, for example")))
    return page(name, section("SYNOPSIS", plain(usage.removeprefix("usage: ")) + "\n"),
                section("DESCRIPTION", plain(about) + "\n"),
                section("OPTIONS", option_items(flags)),
                environment("trainers"),
                files(known, (SOCKET, "where it finds the daemon")),
                signals(("SIGINT, SIGTERM", "end this rank, and with it the job of all ranks")),
                section('"EXIT STATUS"', item("0", "it trained"), item("1", "it could not train"),
                        item("2", "wrong use")),
                examples(*([("gunzip -c /usr/share/adtopk/digits.csv.gz >digits.csv", "unpacks the data")]
                           if trainer == "adtopk-digits" else []),
                         (f"{trainer} --data {data} --local", "trains alone, without a daemon"),
                         (f"mpirun -n 4 {trainer} --data {data}", "trains four ranks through the daemons of their nodes")))


def adtopkd(programs):
    usage, about, flags, settings, more, status = run(programs.daemon, "--help").strip().split("\n\n")
    return page("adtopkd.8", section("SYNOPSIS", plain(usage.removeprefix("usage: ")) + "\n"),
                section("DESCRIPTION", plain(about) + "\n"),
                section("OPTIONS", option_items(flags)),
                section("SETTINGS", paragraph(more), option_items(settings)),
                environment("adtopkd", item(bold("ADTOPK_LOG_LEVEL"),
                                            "and so on: each setting is a variable, as SETTINGS says")),
                files(("/etc/adtopk/adtopkd.json", "the configuration: adtopkd.json(5)"),
                      (SOCKET, "where trainers connect"), (CONTROL, "where adtopkctl connects"),
                      ("/var/lib/adtopk/traces", "traces of jobs that failed or were stuck, if the folder exists")),
                signals(("SIGHUP", "reads the configuration again. If it has an error, the old one stays, and the "
                         "log says why"),
                        ("SIGTERM, SIGINT", "end the daemon, after the steps that are under way. With store_folder, or "
                         "where systemd keeps stores, jobs wait for the next daemon")),
                section('"EXIT STATUS"', *(item(number, meaning) for number, meaning in
                                           re.findall(r"(\d) ([^,;.]+)", status.removeprefix("Exit status:").replace(
                                               "\n", " ").partition(";")[0])),
                        paragraph("--check-config ends with 1 if the configuration has an error.")),
                examples(("adtopkd --check-config", "says all that is wrong in the configuration"),
                         ("adtopkd --node 0 --socket /tmp/a.sock --control-socket /tmp/a.control",
                          "serves one node without peers, for a try"),
                         ("systemctl reload adtopkd", "checks the file, and lets the daemon read it again")))


def adtopk_device(_):
    return page("adtopk-device.8", section("SYNOPSIS", plain("adtopk-device --serve|--probe UUID") + "\n"),
                section("DESCRIPTION", paragraph(
                    "adtopkd starts one such process per GPU and owner of jobs if its setting engine is cuda. The "
                    "process has the context of the GPU, runs kernels on residuals, and calls NCCL. If it ends, "
                    "adtopkd starts another one. No one else needs to start it.")),
                section("OPTIONS", item(f"{bold('--serve')} {italic('UUID')}",
                                        "take orders of the daemon, for the GPU with this UUID"),
                        item(f"{bold('--probe')} {italic('UUID')}",
                             "try that GPU, and print what is wrong with it. Otherwise print three lines: the "
                             "kernels that are missing, the version of NCCL, and why NCCL cannot be used")),
                environment("adtopk-device"),
                files(("libexec/adtopk/adtopk-device", "below the prefix: this program"),
                      ("/dev/nvidiactl, /dev/nvidia0, /dev/nvidia-uvm", "the devices that it opens")),
                signals(("SIGKILL", "ends it, and comes by itself when the daemon ends. No residual is lost if the "
                         "GPU's memory outlives the process")),
                section('"EXIT STATUS"', item("0", "the daemon ended it, or the GPU can be used"),
                        item("1", "the GPU or its driver failed"), item("2", "wrong usage")),
                examples(("/usr/libexec/adtopk/adtopk-device --probe GPU-01234567-89ab-cdef-0123-456789abcdef",
                          "tries a GPU, by a UUID of nvidia-smi -L")))


# ------------------------------------------------------------------ file formats

FORMS = {  # settings that are no plain value in the file, and what the flag's help does not say
    "peers": ('an array of objects such as {"node": 1, "endpoint": "tcp://10.0.0.2:7400", "key": "KEY"}, or, while '
              "a key is being replaced, with an array of two as key; without endpoint, a node that takes this "
              "one as its seed", "the other nodes"),
    "seeds": ("an array of objects as in peers, each with its endpoint",
              "nodes that this one asks who the others are, and whose word it takes for that"),
    "trainers": ('an array of objects such as {"key": "KEY", "owner": "alice"}',
                 "public keys of trainers on other machines, and the users that they belong to"),
    "policy": ("an object, as in adtopk-policy(5)", "the policy of jobs that bring none")}


def form(setting):
    """What kind of JSON value a setting has."""
    if "minimum" in setting:
        return f"a number from {setting['minimum']} to {setting['maximum']}"
    if "choices" in setting:
        return "one of " + ", ".join(f'"{choice}"' for choice in setting["choices"])
    return "true or false" if isinstance(setting["value"], bool) else "a text"


def key_of_the_file(key, setting, meaning):
    kind, said = FORMS.get(key, (form(setting), re.sub(r" \([^()]*\)$", "", meaning)))
    value = json.dumps(setting["value"])
    default = "" if value in ('""', "null", "[]", "{}") else f" (default {value})"
    live = "; may change while the daemon runs" if setting["live"] else ""
    return item(bold(key), f"{said}; {kind}{default}{live}")


def adtopkd_json(programs):
    daemon = programs.daemon
    with tempfile.NamedTemporaryFile("w", suffix=".json") as nothing:  # not this machine's file
        nothing.write("{}")
        nothing.flush()
        known = json.loads(run(daemon, "--config", nothing.name, "--print-config"))["settings"]
    items = []
    for _, flag, _, meaning in options(run(daemon, "--help")):
        setting = known.pop(flag[2:].replace("-", "_"), None)
        if setting is not None:
            items.append(key_of_the_file(flag[2:].replace("-", "_"), setting, meaning))
    if known:
        raise ValueError(f"adtopkd --help lacks {', '.join(known)}")
    example = ('{\n    "node": 0,\n    "listen": "tcp://10.0.0.1:7400",\n'
               '    "key_file": "/etc/adtopk/node0.key",\n    "peers": [{"node": 1, '
               '"endpoint": "tcp://10.0.0.2:7400", "key": "KEY"}]\n}')
    return page("adtopkd.json.5", section("DESCRIPTION", paragraph(
        "One JSON object, /etc/adtopk/adtopkd.json unless --config or $ADTOPK_CONFIG names another "
        "file. A key that is unknown or given twice, a wrong type and a number out of range are "
        "errors. adtopkd --check-config reads it, adtopkd --print-config shows what is in force and "
        "why.")), section("KEYS", *items), environment("adtopkd", item(bold("ADTOPK_LOG_LEVEL"),
            "and so on: a variable wins over the key of its name")),
        files(("/etc/adtopk/adtopkd.json", "the file"), ("/etc/adtopk/node0.key", "the key_file, for example")),
        section("EXAMPLES", literal(example)))


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
        "characters, ? for one.")), section("EXAMPLES", literal(example)),
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
            made.append(f"{begin}\n{unfilled(textwrap.dedent(block), CODE - (7 if begin == '.IP' else 0))}")
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
    lines = re.sub(r"\(\s+", "(", re.sub(r";\s*(?=\S)", ";\n", re.sub(r"\s+", " ", declaration)))
    return f'.SS "{plain(names)}"\n{literal(lines)}{prose(comment)}'


def libadtopk(_):
    about, types, functions = [], [], []
    for header in HEADERS:
        text = read(header)
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
        *about, section("TYPES", *types), section("FUNCTIONS", *functions), environment("trainers"),
        files((SOCKET, "the daemon's socket, if ADTOPK_ADDRESS names no other")),
        section("SIGNALS", paragraph("The library installs no handlers and raises no SIGPIPE. It resumes calls that a "
                                     "signal interrupts, unless options.interruptible is set.")),
        section("EXAMPLES", literal(read(EXAMPLE))))


def main():
    makers = {"adtopkctl.1": adtopkctl, "adtopk-perf.1": adtopk_perf,
              "adtopk-exporter.1": adtopk_exporter, "libadtopk.3": libadtopk, "adtopkd.8": adtopkd,
              "adtopk-device.8": adtopk_device, "adtopkd.json.5": adtopkd_json, "adtopk-policy.5": adtopk_policy}
    if len(sys.argv) == 3 and sys.argv[1] in (
            "adtopk-digits.1", "adtopk-text.1", "adtopk-transformer.1"):
        sys.stdout.write(example(*sys.argv[1:]))
        return
    if len(sys.argv) not in (5, 6) or sys.argv[1] not in makers:
        sys.exit(__doc__.strip())
    sys.stdout.write(makers[sys.argv[1]](Programs(*sys.argv[2:])))


if __name__ == "__main__":
    main()
