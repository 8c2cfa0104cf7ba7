"""The dashboard in a real browser, against a daemon under load. What it looks
like is left in the build folder, or where $LARDER_SCREENSHOT says."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import urllib.error
import urllib.request
from array import array

import pytest

import browser as chromium
from capi import OK, Node
from daemon import Daemon, free_port, secret_file, until
from engine import Load

DESKTOP = (1280, 1480)
PHONE = (320, 640)
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    binary = chromium.find()
    if binary is None:
        pytest.skip("NOT TESTED: there is no chromium (scripts/install-deps "
                    "test)")
    made = chromium.Browser(binary, tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def daemon(binary, tmp_path_factory):
    """Two tenants besides the default one; one of them is held small. Three
    tiers."""
    tier = f"dir:{tmp_path_factory.mktemp('tier')}"
    subprocess.run([binary, "tier", "create", tier], check=True)
    made = Daemon(binary, tmp_path_factory.mktemp("node"), dirs=1,
                  admin="127.0.0.1:0", ssd="192M", dram="64M", shared=tier,
                  shared_max="256M",
                  config="[tenant acme]\nuids = any\ndram = 16M\n"
                         "[tenant research]\nuids = any\n")
    yield made.start()
    made.end()


@pytest.fixture(scope="module")
def load(daemon, binary):
    engines = Load(os.environ.get("LARDER_BUILD")
                   or str(pathlib.Path(binary).parents[1]))
    engines.start(daemon.url(), "llama-3", size=1 << 17)
    engines.start(daemon.url(tenant="acme"), "qwen-2", "acme", size=1 << 17)
    engines.start(daemon.url(tenant="research"), "mistral", "research",
                  pause_s=0.05)
    try:
        yield engines
        assert all(count > 0 for count in engines.stop())
    finally:
        engines.kill()


def leave(browser):
    """The last test's page, which would complain that its daemon is gone."""
    browser.call("Page.navigate", url="about:blank")
    browser.wait("location.href === 'about:blank'")


@pytest.fixture
def page(browser, daemon, load):
    """The dashboard, live, with a few rows of history."""
    del load
    browser.size(*DESKTOP)
    browser.colours("light")
    leave(browser)
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(daemon.admin + "/")
    browser.wait("document.getElementById('live').textContent === 'live'")
    browser.wait("document.querySelectorAll('#c-hits path').length > 2")
    yield browser
    # Whatever a test did, nobody else was asked and nothing went wrong.
    assert not browser.complaints
    assert {url for url in browser.requests if not url.startswith("data:")
            and not url.startswith(daemon.admin + "/")} == set()
    assert any("/status.json" in url for url in browser.requests)


def text(page, selector):
    return page.run(f"document.querySelector({json.dumps(selector)})"
                    ".textContent")


def shows(page, selector, word):
    """Waits until the page shows this there."""
    until(lambda: word in text(page, selector),
          text=lambda: f"{word} is not in {text(page, selector)}")


def test_live(page, daemon):
    """What it shows is what the daemon counts, and it goes on by itself."""
    # Long enough that the picture shows a life.
    until(lambda: len(json.loads(daemon.http("/status.json"))["rows"])
          >= int(os.environ.get("LARDER_SCREENSHOT_ROWS", "2")), 3600)
    for name in ("default", "acme", "research"):
        shows(page, "#t-tenants", name)
    shows(page, "#t-disks", str(daemon.dirs[0]))
    for word in ("lease", "commit", "disk read"):
        shows(page, "#t-ops", word)
    shows(page, "#t-troubles", "absent")
    assert re.match(r"[\d.]+\s(us|\u00b5s|ms|s)",
                    text(page, "#t-slow tbody tr"))
    page.wait("document.querySelectorAll('#t-spaces tbody tr').length === 3")

    def rate_is_shown():
        kpis = page.run("[...document.querySelectorAll('.kpi')].map(k => ["
                        "k.querySelector('dt').textContent,"
                        "k.querySelector('.big').textContent])")
        assert all(any(c.isdigit() for c in value) for _, value in kpis), kpis
        assert kpis[0][0] == "Hit rate"
        hit_rate = float(kpis[0][1].rstrip("% \u00a0"))
        m = daemon.metrics()
        return abs(hit_rate / 100
                   - m.sum("larder_asked_chunks_total", outcome="found")
                   / m.sum("larder_asked_chunks_total")) < 0.2

    until(rate_is_shown)  # that of the last minute, and that of all time
    page.wait("!document.getElementById('t-shared').hidden")
    assert "dir:" in text(page, "#t-shared")
    before = text(page, "#t-ops")
    page.wait(f"document.querySelector('#t-ops').textContent !== "
              f"{json.dumps(before)}")
    where = os.environ.get("LARDER_SCREENSHOT") or os.path.join(
        os.environ.get("LARDER_BUILD", "/tmp"), "dashboard.png")
    page.size(DESKTOP[0], page.run("document.documentElement.scrollHeight"))
    page.wait("document.getElementById('live').textContent === 'live'")
    page.screenshot(where)
    assert os.path.getsize(where) > 20000


def test_history_outlives_the_page(page, daemon):
    """The daemon keeps it: a page opened anew shows what was before."""
    def oldest():
        page.wait("document.querySelectorAll('#c-hits path').length > 2")
        page.run("document.querySelector('#c-hits .plot').focus()")
        page.key("Home", number=36)
        return text(page, "#c-hits .note")

    before = oldest()
    assert before.startswith("at ")
    page.open(daemon.admin + "/")
    assert oldest() == before


@pytest.mark.parametrize("width", [320, 375, 768, 1280])
def test_no_overflow(page, width):
    page.size(width, PHONE[1], width < 700)
    page.wait(f"document.querySelector('.plot').clientWidth < {width}")
    page.wait("document.querySelector('#t-tenants tbody tr')")
    assert page.run("document.documentElement.scrollWidth") <= width
    outside = page.run(
        "[...document.querySelectorAll('body *')].filter(e => {"
        "  const box = e.getBoundingClientRect();"
        "  return box.width && box.right > innerWidth + 0.5 &&"
        "      !e.closest('.scroll') && !e.closest('svg');"
        "}).map(e => e.tagName + '.' + e.className + ' ' + e.textContent)")
    assert outside == []
    # Text is as large as one can read it.
    small = page.run(
        "[...document.querySelectorAll('td, th, dd, dt, p, text')]"
        ".filter(e => e.getClientRects().length &&"
        " parseFloat(getComputedStyle(e).fontSize) < 11).length")
    assert small == 0


CONTRAST = """(() => {
    const lum = c => {
        const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map(v => {
            v /= 255;
            return v <= 0.03928 ? v / 12.92 :
                Math.pow((v + 0.055) / 1.055, 2.4);
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = e => {
        for (; e; e = e.parentElement) {
            const c = getComputedStyle(e).backgroundColor;
            if (!c.startsWith('rgba') || c.endsWith(', 1)')) return c;
        }
        return 'rgb(255,255,255)';
    };
    const bad = [];
    for (const e of document.querySelectorAll('body *')) {
        const own = [...e.childNodes].some(
            n => n.nodeType === 3 && n.textContent.trim());
        if (!own || !e.getClientRects().length ||
            e.closest('script, style, .skip')) continue;
        const style = getComputedStyle(e);
        const ink = e instanceof SVGElement ? style.fill : style.color;
        const a = lum(ink), b = lum(behind(e));
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) bad.push([e.tagName, e.textContent, ratio]);
    }
    return bad;
})()"""


def test_colours(page):
    """Light and dark differ, and both can be read (4.5:1)."""
    seen = {}
    for scheme in ("light", "dark"):
        page.colours(scheme)
        page.wait(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
        seen[scheme] = page.run(
            "[document.body, document.querySelector('.card'),"
            " document.querySelector('.line')].map(e => {"
            " const s = getComputedStyle(e);"
            " return [s.backgroundColor, s.color, s.stroke]; })")
        assert page.run(CONTRAST) == [], scheme
    for light, dark in zip(seen["light"], seen["dark"]):
        assert light[0] != dark[0] or light[2] != dark[2]
    assert seen["light"][0] != seen["dark"][0]


def test_keyboard(page):
    """Tab reaches everything that can be used, in order, visibly; charts and
    tables answer to keys."""
    want = page.run(
        "[...document.querySelectorAll('a[href], button, input, [tabindex]')]"
        ".filter(e => e.tabIndex >= 0 && e.getClientRects().length &&"
        " (e.type !== 'radio' || e.checked)).length")
    seen, order = [], []
    for _ in range(want + 3):
        page.key("Tab", number=9)
        at = page.run(
            "(() => { const e = document.activeElement;"
            " if (e === document.body) return null;"
            " const s = getComputedStyle(e);"
            " const all = [...document.querySelectorAll('*')];"
            " return {name: e.className + '|' + (e.getAttribute('aria-label')"
            " || e.textContent || e.value).slice(0, 40) + '|' + e.tagName,"
            " at: all.indexOf(e), outline: s.outlineStyle + s.outlineWidth,"
            " label: e.getAttribute('aria-label')}; })()")
        if at is None:
            break
        assert not at["outline"].startswith("none"), at
        seen.append(at["name"])
        order.append(at["at"])
    assert "Skip to the figures" in seen[0]
    assert order == sorted(order)
    assert len(set(order)) >= want, (want, seen)
    assert sum(name.startswith("plot|") for name in seen) == 4
    assert sum(name.startswith("scroll|") for name in seen) >= 6
    for link in ("/metrics", "/status.json", "/config"):
        assert any(f"|{link}|A" in name for name in seen), seen

    # A chart tells what was, by key.
    page.run("document.querySelector('#c-bytes .plot').focus()")
    last = page.run("document.querySelector('#c-bytes .note').textContent")
    assert last.startswith("last: ")
    page.key("ArrowLeft", number=37)
    page.key("ArrowLeft", number=37)
    assert page.run("document.querySelector('#c-bytes .note').textContent"
                    ).startswith("at ")
    assert "loads from dram" in page.run(
        "document.querySelector('#c-bytes .plot').getAttribute('aria-label')")
    page.key("Escape", number=27)
    assert page.run("document.querySelector('#c-bytes .note').textContent"
                    ).startswith("last: ")

    # A table is sorted by key, stays so, and keeps the focus.
    page.run("[...document.querySelectorAll('#t-tenants th button')]"
             ".find(b => b.textContent === 'dram').focus()")
    page.key("Enter", number=13)
    page.key(" ", "Space", 32)
    sort = page.wait("document.querySelector('#t-tenants th[aria-sort]')"
                     "?.getAttribute('aria-sort')")
    assert sort in ("ascending", "descending")
    since = text(page, "#t-ops")
    page.wait("document.querySelector('#t-ops').textContent !== "
              + json.dumps(since))
    assert page.run("document.activeElement.textContent") == "dram"


def test_range(page):
    """What was chosen is remembered."""
    page.run("document.querySelector('#range input[value=\"3600\"]').click()")
    page.open(page.run("location.href"))
    page.wait("document.getElementById('live').textContent === 'live'")
    assert page.run("document.querySelector('#range input:checked').value"
                    ) == "3600"
    page.run("document.querySelector('#range input[value=\"900\"]').click()")


def test_modes(page, daemon, larder):
    larder("pause", daemon.socket)
    page.wait("document.getElementById('mode').textContent === 'paused'")
    page.wait("!document.getElementById('notready').hidden")
    assert "larder resume" in text(page, "#notready")
    larder("resume", daemon.socket)
    page.wait("document.getElementById('mode').textContent === 'on'")
    page.wait("document.getElementById('notready').hidden")


def test_stopped(page, daemon):
    """A daemon that hangs is said to be gone, and that it came back."""
    daemon.signal(signal.SIGSTOP)
    try:
        page.wait("!document.getElementById('gone').hidden")
        assert text(page, "#live") == "gone"
        assert "does not answer since" in text(page, "#gone")
        assert page.run("document.title") == "(gone) larder"
        assert page.run("document.body.classList.contains('stale')")
    finally:
        daemon.signal(signal.SIGCONT)
    page.wait("document.getElementById('live').textContent === 'live'")
    assert page.run("document.getElementById('gone').hidden")


def test_restarted(browser, serve):
    """One that ends, and another that begins at the same address."""
    first = serve(admin="127.0.0.1:0", name="same")
    port = first.admin.rsplit(":", 1)[1]
    browser.open(first.admin + "/")
    browser.wait("document.getElementById('live').textContent === 'live'")
    first.stop()
    browser.wait("document.getElementById('live').textContent === 'gone'")
    first.given["admin"] = f"127.0.0.1:{port}"
    first.start()
    browser.wait("document.getElementById('live').textContent === 'live'")
    assert browser.run("document.getElementById('gone').hidden")


def test_shared_tier_off(browser, serve, tmp_path, larder):
    """The reason is on the page, in `larder top` and in the metrics, and goes
    when the tier comes."""
    folder = tmp_path / "mount"
    folder.mkdir()
    daemon = serve(admin="127.0.0.1:0", shared=f"dir:{folder}", retry_ms=100)
    browser.open(daemon.admin + "/")
    browser.wait("document.querySelector('#t-shared tbody td .badtext')")
    shown = text(browser, "#t-shared .badtext")
    assert shown.startswith("off: ") and "larder.tier" in shown
    reason = shown.removeprefix("off: ")
    m = daemon.metrics()
    assert m.sum("larder_shared_reason", reason=reason) == 1
    assert m.sum("larder_shared_on") == 0
    top = larder("top", daemon.url(), "--once", "--interval", "1").out
    assert "OFF" in top and reason in top
    larder("tier", "create", f"dir:{folder}")
    browser.wait("document.querySelector('#t-shared tbody td span')"
                 ".textContent === 'on'")
    assert daemon.metrics().sum("larder_shared_reason") == 0


def test_members(browser, serve, tmp_path):
    """A cluster: who owns what, what was exchanged with whom, and why one is
    off; on a desktop and on a phone."""
    ports = [free_port() for _ in range(3)]
    options = {"cluster": "static:" + ",".join(
        f"kv{i}=127.0.0.1:{port}/rack{i}" for i, port in enumerate(ports)),
        "cluster_secret": secret_file(tmp_path / "secret")}
    daemon = serve(name="kv0", member_name="kv0", admin="127.0.0.1:0",
                   **options)
    serve(name="kv1", member_name="kv1", **options)
    until(lambda: daemon.value("larder_peer_well") == 1)
    with Node(daemon.url()) as node:
        for i in range(16):
            assert node.put(f"k{i}", b"x" * 100000) == OK
    until(lambda: daemon.value("larder_peer_bytes_total",
                               direction="send") > 0)
    leave(browser)
    browser.complaints.clear()
    for width in (DESKTOP[0], 400):
        browser.size(width, 900)
        browser.open(daemon.admin + "/")
        browser.wait("document.getElementById('live').textContent === 'live'")
        shows(browser, "#t-members", "this node")
        shows(browser, "#t-members", "off: ")
        shows(browser, "#t-members", "cannot connect")
        rows = browser.run("[...document.querySelectorAll("
                           "'#t-members tbody tr')].map(r => r.textContent)")
        assert len(rows) == 3 and "well" in rows[1]
        assert [row[:3] for row in rows] == ["kv0", "kv1", "kv2"]
        shows(browser, "#c-hits .legend", "from members")
        assert "%" in rows[0] and re.search(r"[1-9]", rows[1])
        assert browser.run("document.documentElement.scrollWidth") <= width
        picture = tmp_path / f"members-{width}.png"
        browser.run("document.getElementById('t-members').scrollIntoView()")
        browser.screenshot(str(picture))
    assert not browser.complaints


def test_homes(browser, serve, larder, tmp_path):
    """What the owner knows of another member's disk."""
    ports = [free_port() for _ in range(2)]
    options = {"cluster": "static:" + ",".join(
        f"kv{i}=127.0.0.1:{port}" for i, port in enumerate(ports)),
        "cluster_secret": secret_file(tmp_path / "secret"), "dirs": 1,
        "cluster_ramp_s": 0}
    daemon = serve(name="kv0", member_name="kv0", admin="127.0.0.1:0",
                   **options)
    writer = serve(name="kv1", member_name="kv1", home="writer", **options)
    until(lambda: daemon.value("larder_peer_well") == 1)
    with Node(writer.url()) as node:
        for i in range(16):
            assert node.put(f"k{i}", b"x" * 100000) == OK
    until(lambda: daemon.value("larder_peer_homes") > 0)
    assert re.search(r"knows of +\d+ chunks? on others' disks",
                     larder("top", daemon.url(), "--once").out)
    leave(browser)
    browser.complaints.clear()
    for width in (DESKTOP[0], 400):
        browser.size(width, 900)
        browser.open(daemon.admin + "/")
        shows(browser, "#t-members", " on others' disks")
        assert browser.run("document.documentElement.scrollWidth") <= width
    assert not browser.complaints


def test_hand_offs(page, daemon, larder, monkeypatch):
    """A table that is there once there were some, also in `larder top`."""
    monkeypatch.setenv("LARDER_LIBRARY",
                       os.environ["LARDER_BUILD"] + "/lib/liblarder.so")
    monkeypatch.syspath_prepend(str(ROOT / "python"))
    from larder_kv import _lib

    assert page.run("document.getElementById('t-handoffs').hidden")
    with contextlib.ExitStack() as stack:
        node, rules = _lib.Node(daemon.url()), _lib.Layout(
            256, [_lib.Group(_lib.RULE_ALL, 16, 0)])
        space, keys = node.space(b"handed", 1, 256), _lib.Keys()
        for one in (node, rules, space):
            stack.callback(one.close)
        space.chain(array("I", range(3 * 256)), keys)
        token = os.urandom(16)
        space.promise(rules, keys.data(0, 3), 3, token, 20000)
        for what in (_lib.HANDOFF_FAILED, _lib.HANDOFF_OVER,
                     _lib.HANDOFF_RENEW):
            space.handoff(token, what, 20000)

    def cells():
        return page.run("[...document.querySelectorAll('#t-handoffs tbody tr')]"
                        ".map(r => [...r.children].map(c => c.textContent))")
    until(lambda: cells() == [
        ["default", "1", "0", "3", "0", "0\u00a0B", "0", "1"]], text=cells)
    said = larder("top", daemon.url(), "--once", "--interval", "1").out
    assert re.search(r"^HAND-OFFS +PROMISED.*\n +0/s +0 +0/s +3 +0 +0B$", said,
                     re.M), said
    # Where loads come from: every tier that gave one, in 80 columns.
    assert re.search(r"^loads .* loaded [\d.]+%:.*  dram [\d.]+%", said, re.M)


def test_hostile_names(browser, serve, tmp_path):
    """What tenants are called, and where disks are, is text and stays so."""
    hurt = "<img src=x onerror=alert(1)>"
    folder = tmp_path / hurt.replace("/", "")
    folder.mkdir()
    daemon = serve(admin="127.0.0.1:0", flags=("--dir", folder))
    leave(browser)
    browser.wait("location.href === 'about:blank'")
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(daemon.admin + "/")
    browser.wait("document.querySelector('#t-disks tbody tr')")
    assert hurt in text(browser, "#t-disks")
    assert browser.run("document.images.length") == 0
    assert not browser.complaints
    assert all(url.startswith((daemon.admin, "data:"))
               for url in browser.requests)


def test_policy(browser, daemon):
    """Nothing but the page's own script runs, and it reaches nobody else."""
    browser.open(daemon.admin + "/")
    browser.wait("document.getElementById('live').textContent === 'live'")
    assert browser.run(
        "new Promise(done => { const s = document.createElement('script');"
        " s.textContent = 'window.hurt = 1'; document.body.append(s);"
        " setTimeout(() => done(window.hurt === undefined), 100); })")
    assert browser.run(
        "fetch('http://127.0.0.1:1/').then(() => false, () => true)")
    browser.complaints.clear()  # that were about these


def test_other_sites(daemon):
    """A site that points its name here gets nothing to read."""
    request = urllib.request.Request(daemon.admin + "/status.json",
                                     headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.code == 421
    assert b"tenants" not in refused.value.read()
    config = json.loads(daemon.http("/config"))
    assert any(o["name"] == "dram" and o["source"] == "--dram"
               for o in config["options"])
    until(lambda: daemon.http("/readyz") == "ready\n")
