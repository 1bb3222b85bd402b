"""Chromium without a window: opens pages, says what is wrong with them to look at, and takes pictures.

It speaks the DevTools protocol with the browser over two pipes: JSON that ends with a NUL.
"""
import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

from cluster import die_with_parent

CHROMIUM = shutil.which("chromium")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
         "--no-first-run", "--disable-background-networking", "--disable-extensions",
         "--force-color-profile=srgb", "--remote-debugging-pipe"]
# Runs the browser with its ends of the pipes where it wants them: it reads 3 and writes 4.
PIPES = "import os, sys; os.dup2(20, 3); os.dup2(21, 4); os.execv(sys.argv[1], sys.argv[1:])"

KEYS = {"Tab": {"windowsVirtualKeyCode": 9}, "Enter": {"windowsVirtualKeyCode": 13, "text": "\r"}}

# Lists what a viewer would stumble over. Contrast is that of WCAG 2, of the text and what is behind it.
FAULTS = r"""
(() => {
  const faults = [], texts = [];
  const canvas = document.createElementNS("http://www.w3.org/1999/xhtml", "canvas").getContext("2d", {willReadFrequently: true});
  const rgba = colour => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = rgba(getComputedStyle(element).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18, 255] : [255, 255, 255, 255];
  };
  const luminance = colour => colour.slice(0, 3).map(part => part / 255)
    .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width)
    faults.push(`scrolls sideways: ${document.documentElement.scrollWidth} of ${width} pixels`);
  for (const element of document.querySelectorAll("*"))
    if (/auto|scroll/.test(getComputedStyle(element).overflowX) && element.scrollWidth > element.clientWidth + 1)
      faults.push(`a part scrolls sideways: ${element.textContent.trim().slice(0, 40)}`);
  const walker = document.createTreeWalker(document.body || document.documentElement, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const parent = node.parentElement, words = node.data.trim().slice(0, 40);
    const style = getComputedStyle(parent);
    if (!words || style.visibility === "hidden" || /^(SCRIPT|STYLE|TITLE|TEMPLATE)$/i.test(parent.tagName)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const boxes = [...range.getClientRects()].filter(box => box.width > 0 && box.height > 0);
    if (boxes.length === 0) continue;
    const svg = parent instanceof SVGElement;
    const ratio = contrast(rgba(svg ? style.fill : style.color), behind(parent));
    if (ratio < 4.5) faults.push(`contrast ${ratio.toFixed(2)}: ${words}`);
    let holder = parent;
    while (holder && getComputedStyle(holder).overflowX === "visible") holder = holder.parentElement;
    for (const box of boxes) {
      const scrolls = holder && /auto|scroll/.test(getComputedStyle(holder).overflowX);
      const limit = holder && !scrolls ? holder.getBoundingClientRect() : {left: 0, right: width};
      if (!scrolls && (box.left < limit.left - 1 || box.right > limit.right + 1)) faults.push(`cut: ${words}`);
      texts.push({words, box, parent});
    }
  }
  texts.sort((a, b) => a.box.top - b.box.top);
  texts.forEach((one, i) => {
    for (let j = i + 1; j < texts.length && texts[j].box.top < one.box.bottom - 2; j++) {
      const other = texts[j], across = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
      const down = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
      const lines = Math.min(one.box.height, other.box.height);
      if (across > 1 && down > lines / 3) faults.push(`overlap: ${one.words} | ${other.words}`);
    }
  });
  return {faults: [...new Set(faults)], texts: texts.length};
})()
"""


class Browser:
    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="adtopk-browser-", dir="/tmp")
        read, self.orders = os.pipe()
        self.answers, write = os.pipe()
        os.dup2(read, 20)
        os.dup2(write, 21)
        for fd in (read, write):
            os.close(fd)
        self.process = subprocess.Popen(
            ["python3", "-c", PIPES, CHROMIUM, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"],
            pass_fds=[20, 21], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent)
        for fd in (20, 21):
            os.close(fd)
        self.number, self.rest, self.session = 0, b"", None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable")

    def ask(self, method, **parameters):
        """The result of a command; an error of it is an AssertionError."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.orders, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                piece = os.read(self.answers, 1 << 20)
                assert piece, "the browser has ended"
                self.rest += piece
            answer, _, self.rest = self.rest.partition(b"\0")
            answer = json.loads(answer)
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def run(self, script):
        """What a script in the page returns."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key):
        """A key of KEYS goes down and up."""
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, **KEYS[key])

    def open(self, address, width, dark=False, ready="document.readyState === 'complete'", seconds=30):
        """Shows a page as wide as that, and waits until `ready` holds in it."""
        self.ask("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=300, deviceScaleFactor=1, mobile=False)
        self.ask("Page.navigate", url=address)
        deadline = time.monotonic() + seconds
        while not self.run(f"location.href !== 'about:blank' && Boolean({ready})"):
            assert time.monotonic() < deadline, f"{address} does not get ready"
            time.sleep(0.05)

    def faults(self):
        """What is wrong with the page; AssertionError if it has no text."""
        found = self.run(FAULTS)
        assert found["texts"] > 0, "the page has no text"
        return found["faults"]

    def picture(self, path, height=None):
        """Writes the page as PNG: all of it, or its first `height` pixels."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], height or 1e9), "scale": 1}
        data = self.ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        self.process.kill()
        self.process.wait()
        for fd in (self.orders, self.answers):
            os.close(fd)
        shutil.rmtree(self.profile, ignore_errors=True)
