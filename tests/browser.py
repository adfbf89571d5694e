#!/usr/bin/python3
"""Opens pages of runs in a browser, in light and in dark: nothing on the console, no request to anywhere, readable.

    tests/browser.py target/debug/pagetide            # needs chromium, chromium-driver, python3-selenium (Debian)
    tests/browser.py target/debug/pagetide --keep DIR # leaves pages and pictures there

Two pages: of a run that swaps, and of one of an hour, made of the statistics of the first. Checked are

- messages on the console, and what the browser asks for (by its own log of requests): the page itself, and nothing else;
- contrast of each text with what lies behind it: 4.5 at least (WCAG 2.1, AA);
- that nothing is wider than a narrow or a wide window, each chart is drawn and has words for who does not see it;
- that it prints, and that the page of an hour has no more than 1 MB.
"""

import argparse
import base64
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

REPO = Path(__file__).resolve().parent.parent
CAP, NEEDED_MIB = "64M", 160
HOUR_SECONDS = 3600
PAGE_BYTES_MAX = 1 << 20
CONTRAST_MIN = 4.5
WIDTHS = (420, 1280)
JOB = f"""
import random
pages = [bytearray(random.randbytes(1024) * 4) for _ in range({NEEDED_MIB} * 256)]
for _ in range(60000):
    pages[int(random.betavariate(1, 4) * len(pages))][7] += 1 & 0
"""

# What stands in the page, by the eyes of who reads it.
LOOK = """
const parse = colour => colour.match(/[\\d.]+/g).map(Number);
const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, nth) => sum + v * [0.2126, 0.7152, 0.0722][nth], 0);
const behind = node => {
    for (let at = node; at; at = at.parentElement) {
        const colour = parse(getComputedStyle(at).backgroundColor);
        if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
};
const own = node => [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
const poor = [];
for (const node of document.querySelectorAll('body *')) {
    if (!own(node) || node.closest('style')) continue;
    const style = getComputedStyle(node);
    const [one, other] = [luminance(parse(node.namespaceURI.endsWith('svg') ? style.fill : style.color)), luminance(behind(node))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < CONTRAST) poor.push([node.textContent.slice(0, 40), contrast]);
}
const charts = [...document.querySelectorAll('figure [role=img]')];
return {
    poor,
    background: getComputedStyle(document.body).backgroundColor,
    wide: document.documentElement.scrollWidth > window.innerWidth,
    charts: charts.length,
    silent: charts.filter(chart => !chart.getAttribute('aria-label')).length,
    flat: charts.filter(chart => chart.querySelector('svg').getBoundingClientRect().height < 50).length,
    headings: [...document.querySelectorAll('h1, h2')].map(node => node.textContent),
};
""".replace("CONTRAST", str(CONTRAST_MIN))

failures = []


def check(holds, what):
    print(f"{'ok  ' if holds else 'WRONG'} {what}")
    if not holds:
        failures.append(what)


def run_and_report(pagetide, folder):
    """A run that swaps, its page, and its statistics."""
    page, series = folder / "run.html", folder / "run.jsonl"
    command = [pagetide, "run", "-m", CAP, "--report", page, "--stats", series, "--stats-interval", "200ms", "--", sys.executable, "-c", JOB]
    subprocess.run(command, check=True)
    return page, [json.loads(line) for line in series.read_text().splitlines()]


def hour(pagetide, folder, looks):
    """The page of a run of an hour, a look a second: the looks of a short one over and over."""
    series, last = folder / "hour.jsonl", looks[-1]
    with series.open("w") as lines:
        for second in range(HOUR_SECONDS + 1):
            turn, nth = divmod(second, len(looks) - 1)
            look = {**looks[nth], "elapsed_s": second}
            look["stalled_s"] += turn * last["stalled_s"]
            look["counters"] = {name: count + turn * last["counters"][name] for name, count in look["counters"].items()}
            if second == HOUR_SECONDS:
                look = {**last, **{name: look[name] for name in ("elapsed_s", "stalled_s", "counters")}}
            lines.write(json.dumps(look) + "\n")
    subprocess.run([pagetide, "report", series], check=True)
    return series.with_suffix(".html")


def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


def requests(driver):
    """What the page has asked for."""
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            yield message["params"]["request"]["url"]


def look_at(driver, page, keep):
    size = page.stat().st_size
    check(size <= PAGE_BYTES_MAX, f"{page.name}: {size} bytes, at most {PAGE_BYTES_MAX}")
    backgrounds = set()
    for scheme in ("light", "dark"):
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        for width in WIDTHS:
            what = f"{page.name}, {scheme}, {width} pixels"
            driver.set_window_size(width, 1000)
            driver.get(page.as_uri())
            found = driver.execute_script(LOOK)
            messages = [entry["message"] for entry in driver.get_log("browser")]
            asked = sorted({url[:80] for url in requests(driver) if url != page.as_uri() and url != "data:,"})
            check(not messages, f"{what}: console {messages}")
            check(not asked, f"{what}: asks for {asked}")
            check(not found["poor"], f"{what}: contrast below {CONTRAST_MIN}: {found['poor'][:5]}")
            check(not found["wide"], f"{what}: as wide as the window")
            check(found["charts"] == 4 and not found["silent"] and not found["flat"], f"{what}: {found['charts']} charts, drawn and told")
            check("Memory over time" in found["headings"] and "With more memory" in found["headings"], f"{what}: headings")
            backgrounds.add((scheme, found["background"]))
            if keep:
                height = driver.execute_script("return document.documentElement.scrollHeight")
                driver.set_window_size(width, min(height + 150, 6000))
                driver.save_screenshot(str(keep / f"{page.stem}-{scheme}-{width}.png"))
    check(len({colour for _, colour in backgrounds}) == 2, f"{page.name}: light and dark differ: {sorted(backgrounds)}")
    pdf = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", {})["data"])
    check(pdf.startswith(b"%PDF") and len(pdf) > 10_000, f"{page.name}: prints, {len(pdf)} bytes")
    if keep:
        (keep / f"{page.stem}.pdf").write_bytes(pdf)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pagetide", type=Path)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave pages and pictures there")
    options = parser.parse_args()
    pagetide = options.pagetide.resolve()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pagetide-browser-") as temporary:
        folder = options.keep.resolve() if options.keep else Path(temporary)
        page, looks = run_and_report(pagetide, folder)
        pages = [page, hour(pagetide, folder, looks)]
        driver = browser()
        try:
            for page in pages:
                look_at(driver, page, options.keep)
        finally:
            driver.quit()
    sys.exit(f"browser.py: {len(failures)} of them wrong" if failures else 0)


if __name__ == "__main__":
    main()
