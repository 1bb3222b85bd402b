"""deploy/pages.py: installed pages link to installed pages only."""
import importlib.util
import os
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SPEC = importlib.util.spec_from_file_location("pages", os.path.join(ROOT, "deploy/pages.py"))
pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pages)


class Installed(unittest.TestCase):
    def test_every_page(self):
        self.assertEqual(len(set(pages.PAGES.values())), len(pages.PAGES))
        for source in pages.PAGES:
            with open(os.path.join(ROOT, source), encoding="utf-8") as page:
                text = pages.installed(source, page.read())
            self.assertNotIn("](../", text)
            for found in pages.LINK.finditer(text):
                self.assertIn(found[2], {"", *pages.PAGES.values()}, f"{source}: {found[0]}")

    def test_links(self):
        for text, made in (("[here](#there)", "[here](#there)"),
                           ("[words](policy.md#keys)", "[words](policy.md#keys)"),
                           ("[README.md](../client/README.md#calls)", "[client.md](client.md#calls)"),
                           ("[`a()`](../client/include/adtopk/adtopk.h)", "`a()` (`man libadtopk`)"),
                           ("[part](README.md#systemd)", "part (`deploy/README.md` of the sources)"),
                           ("[deploy](README.md#systemd)", "`deploy/README.md` of the sources"),
                           ("[site](https://semver.org)", "[site](https://semver.org)")):
            self.assertEqual(pages.installed("deploy/operators.md", text), made)

    def test_pictures_stay_with_the_sources(self):
        self.assertEqual(pages.installed("deploy/operators.md", "Here:\n\n![a page](page.png)\n\nThere.\n"),
                         "Here:\n\nThere.\n")


if __name__ == "__main__":
    unittest.main()
