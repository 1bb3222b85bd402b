#!/usr/bin/env python3
"""Writes a page as it is installed, for people who have the programs and not the sources.

usage: pages.py SOURCE | --list

Links between installed pages stay, and pictures go. A link to the library's headers becomes the name of its manual
page, and a link to another file of the sources becomes that file's name. --list prints each page and
the name under which it is installed.
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGES = {**{f"deploy/{name}.md": f"{name}.md" for name in (
    "operators", "recover", "troubleshoot", "glossary", "options", "policy", "learning", "containers", "gpu", "limits",
    "wire", "SECURITY", "CHANGELOG")},
         "client/README.md": "client.md", "client/python/README.md": "python.md",
         "client/python/guide.md": "python-guide.md", "client/exporter/README.md": "exporter.md",
         "daemon/admin/README.md": "documents.md", "daemon/transport/README.md": "transport.md",
         "daemon/remote/README.md": "remote.md"}
HEADERS = ("client/include/", "proto/include/")
LINK = re.compile(r"\[([^\]]*)\]\(([^)#:\s]*)(#[^)\s]*)?\)")

PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]*\)\n\n", re.MULTILINE)


def installed(source, text):
    """The text of the page `source`, with the links that hold where it is installed."""
    def link(found):
        words, target, section = found[1], found[2], found[3] or ""
        if not target:
            return found[0]
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        if path in PAGES:
            return f"[{PAGES[path] if words == os.path.basename(target) else words}]({PAGES[path]}{section})"
        if path.startswith(HEADERS):
            return f"{words} (`man libadtopk`)"
        name = f"`{path}` of the sources"
        return name if words.strip("`") in path else f"{words} ({name})"

    return LINK.sub(link, PICTURE.sub("", text))


def main():
    if sys.argv[1:] == ["--list"]:
        print("\n".join(f"{source} {name}" for source, name in PAGES.items()))
    elif len(sys.argv) == 2 and sys.argv[1] in PAGES:
        with open(os.path.join(ROOT, sys.argv[1]), encoding="utf-8") as page:
            sys.stdout.write(installed(sys.argv[1], page.read()))
    else:
        sys.exit(__doc__.strip())


if __name__ == "__main__":
    main()
