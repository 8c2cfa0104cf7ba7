"""Metrics of a daemon under load, and everything that is built on them: docs,
Grafana, alerts, `larder top`."""
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import time

import pytest

import capi
from daemon import Daemon, free_port, secret_file, until
from engine import Load

ROOT = pathlib.Path(__file__).parents[2]
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
NAME = re.compile(r"(?<!vllm:)\b(?:larder|process)_[a-z_]+\b")


@pytest.fixture(scope="module")
def promtool():
    places = [shutil.which("promtool"), ROOT / "build/tools/promtool"]
    found = next((str(p) for p in places if p and os.path.exists(p)), None)
    if found is None:
        pytest.skip("NOT TESTED: there is no promtool (scripts/install-deps "
                    "test)")
    return found


@pytest.fixture(scope="module")
def loaded(binary, tmp_path_factory):
    """A daemon that engines of two tenants have used, and use."""
    tier = tmp_path_factory.mktemp("tier")
    capi.make_tier(tier)
    cluster = {
        "cluster": f"static:a=127.0.0.1:{free_port()},"
                   f"b=127.0.0.1:{free_port()}",
        "cluster_secret": secret_file(tmp_path_factory.mktemp("c") / "secret")}
    other = Daemon(binary, tmp_path_factory.mktemp("other"), member_name="b",
                   **cluster).start()
    daemon = Daemon(binary, tmp_path_factory.mktemp("node"),
                    admin="127.0.0.1:0", query="on", dirs=1, ssd="96M",
                    dram="32M",
                    shared=f"dir:{tier}", member_name="a", **cluster,
                    config="[tenant acme]\nuids = any\ndram = 8M\n").start()
    load = Load(os.environ.get("LARDER_BUILD")
                or str(pathlib.Path(binary).parents[1]))
    load.start(daemon.url())
    load.start(daemon.url(tenant="acme"), model="other", tenant="acme")
    try:
        until(lambda: daemon.value("larder_loads_total", tier="ssd") > 0
              and daemon.value("larder_loads_total", tenant="acme") > 50
              and daemon.value("larder_misses_total") > 0,
              text="the engines do not get on")
        yield daemon
        assert all(count > 0 for count in load.stop())
    finally:
        load.kill()
        daemon.end()
        other.end()


def parse(text):
    """{name: (type, help, label names)}, as they are shown."""
    out = {}
    for line in text.splitlines():
        head = re.match(r"# (HELP|TYPE) (\S+) (.*)", line)
        if head:
            kind, name, rest = head.groups()
            out.setdefault(name, {})[kind] = rest
            continue
        name, labels = re.match(r"([a-z_]+)(?:\{(.*)\})? ", line).groups()
        base = name
        if name not in out:
            base = re.sub(r"_(bucket|sum|count)$", "", name)
        names = re.findall(r'([a-z]+)="', labels or "")
        out[base]["labels"] = [n for n in names if n != "le"]
    return {name: (m["TYPE"], m["HELP"], m["labels"])
            for name, m in out.items()}


def test_promtool(loaded, promtool):
    text = loaded.http("/metrics")
    done = subprocess.run([promtool, "check", "metrics"], input=text,
                          text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=300)
    assert done.returncode == 0 and not done.stdout.strip(), done.stdout


def test_manual_is_the_table(larder):
    """What the program prints stands in the manual, to the letter."""
    tables = larder("stat", "--markdown").out.rstrip().split("\n\n")
    page = (ROOT / "docs/reference/metrics.md").read_text()
    assert [t.count("\n") > 30 for t in tables] == [True, True]
    for table in tables:
        assert f"\n\n{table}\n\n" in page, (
            "put the output of `larder stat --markdown` there")
    for other in ("--json", "--prometheus"):
        larder("stat", "--markdown", other, code=2)


def test_docs(loaded):
    """docs/reference/metrics.md has every metric, as it is, and no other."""
    rows = re.findall(r"^\| `((?:larder|process)_\w+)` \| (\w+) \| (.*?)\| "
                      r"(.*) \|$",
                      (ROOT / "docs/reference/metrics.md").read_text(), re.M)
    written = {name: (kind, text, re.findall(r"`(\w+)`", labels))
               for name, kind, labels, text in rows}
    assert len(written) == len(rows) > 50
    assert written == parse(loaded.http("/metrics"))


FREE = {"tenant", "space", "label", "path", "version", "build", "le",
        "url", "cluster", "member", "view", "address", "zone"}  # anything
TEXT = (("larder_shared_reason", "reason"),
        ("larder_peer_reason", "reason"),
        ("larder_cluster_trouble", "reason"))  # a sentence


def test_docs_label_values(loaded):
    """The page has every value of every label that the daemon shows."""
    rows = re.findall(r"^\| (`larder_[^|]*) \| `(\w+)` \| ([^|]*) \|$",
                      (ROOT / "docs/reference/metrics.md").read_text(), re.M)
    written = {}
    for metrics, label, values in rows:
        for name in re.findall(r"`(\w+)`", metrics):
            assert (name, label) not in written, (name, label)
            written[name, label] = set(re.findall(r"`(\w+)`", values))
    shown = {}
    for line in loaded.http("/metrics").splitlines():
        found = re.match(r"([a-z_]+)\{(.*)\} ", line)
        if found:
            name = re.sub(r"_(bucket|sum|count)$", "", found.group(1))
            for label, value in re.findall(r'(\w+)="(.*?)"', found.group(2)):
                if label not in FREE and (name, label) not in TEXT:
                    shown.setdefault((name, label), set()).add(value)
    assert set(shown) == set(written), set(shown) ^ set(written)
    for at, values in shown.items():
        assert values <= written[at], (at, values - written[at])


def test_consistent(loaded):
    """What is shown twice agrees, and the figures are those of the load."""
    m = loaded.metrics()
    assert (m.sum("larder_sessions", transport="shm")
            == m.sum("larder_tenant_sessions") >= 3)
    assert m.sum("larder_requests_total", op="lease", status="ok") > 0
    assert (m.sum("larder_request_seconds_count", op="lease")
            >= m.sum("larder_requests_total", op="lease", status="ok"))
    assert m.sum("larder_disk_seconds_count", operation="write") > 0
    assert m.sum("larder_disk_seconds_count", operation="read") > 0
    assert m.sum("larder_write_amplification_ratio") >= 1
    assert 0 < m.sum("larder_tenant_dram_bytes", tenant="acme") <= 8 << 20
    assert m.sum("larder_evicted_bytes_total", tenant="acme") > 0
    assert m.sum("larder_mode", mode="on") == 1
    counts = [(float(re.search(r'le="(.*?)"', key).group(1)), value)
              for key, value in m.items()
              if key.startswith('larder_request_seconds_bucket{op="lease"')]
    assert counts == sorted(counts) and counts[-1][0] == float("inf")
    assert [c for _, c in counts] == sorted(c for _, c in counts)


# ---- what others read them with ----

def shown_names(text):
    names = set()
    for name, (kind, _, _) in parse(text).items():
        names.add(name)
        if kind == "histogram":
            names |= {f"{name}_{x}" for x in ("bucket", "sum", "count")}
    return names


def grafana():
    """(panel, expression) of all of them."""
    board = json.loads((ROOT / "deploy/grafana/larder.json").read_text())
    out = [(panel["title"], target["expr"]) for panel in board["panels"]
           for target in panel.get("targets", [])]
    out += [(v["name"], v["definition"]) for v in board["templating"]["list"]
            if v["type"] == "query"]
    return out + [(a["name"], a["expr"]) for a in board["annotations"]["list"]]


def test_names_exist(loaded):
    """No panel, alert or page asks for a metric that is not there (`top` names
    those of the table); and what there is can be seen in Grafana."""
    shown = shown_names(loaded.http("/metrics"))
    asked = {f"grafana: {title}": expr for title, expr in grafana()}
    for path in (ALERTS, ROOT / "tests/e2e/alerts_test.yml"):
        asked[path.name] = path.read_text()
    asked["runbook"] = (ROOT / "docs/guide/runbook.md").read_text()
    for where, text in asked.items():
        unknown = {n for n in NAME.findall(text)} - shown
        assert not unknown, f"{where}: {unknown}"
    seen = {n for _, expr in grafana() for n in NAME.findall(expr)}
    rows = {re.sub(r"_(bucket|sum|count)$", "", n) for n in seen} | seen
    assert set(parse(loaded.http("/metrics"))) <= rows


def test_names_of_engines_exist():
    """What panels ask of vLLM is what the connector tells it."""
    docs = (ROOT / "docs/reference/vllm-metrics.md").read_text()
    known = dict(re.findall(r"^\| `vllm:(larder_\w+)` \| (\w+)", docs, re.M))
    asked = {name for _, expr in grafana()
             for name in re.findall(r"vllm:(larder_\w+)", expr)}
    assert asked
    for name in asked:
        base = re.sub(r"_(total|bucket)$", "", name)
        assert known[base] == {"_total": "counter", "_bucket": "histogram"}[
            name[len(base):]], name


def test_labels_exist(loaded):
    """The labels that expressions ask for are those of the metric."""
    metrics = parse(loaded.http("/metrics"))
    for where, expr in grafana() + [("alerts", ALERTS.read_text())]:
        for name, inside in re.findall(
                r"((?:larder|process)_[a-z_]+)\{([^}]*)\}", expr):
            base = name if name in metrics else re.sub(
                r"_(bucket|sum|count)$", "", name)
            labels = set(re.findall(r"([a-z_]+)\s*=", inside))
            assert labels <= set(metrics[base][2]) | {"instance", "job"}, (
                where, name)


def test_grafana_expressions(promtool, tmp_path):
    """Prometheus understands every expression."""
    rules = []
    for i, (_, expr) in enumerate(grafana()):
        if expr.startswith("label_values("):
            continue
        expr = re.sub(r"\$__rate_interval", "5m", expr)
        expr = re.sub(r"\$(instance|tenant)", ".*", expr)
        rules.append({"record": f"x:y{i}", "expr": expr})
    path = tmp_path / "rules.yml"  # JSON is YAML
    path.write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", path], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=300)
    assert done.returncode == 0, done.stdout
    assert f"{len(rules)} rules found" in done.stdout


def test_grafana_layout():
    """Panels have numbers of their own and do not overlap."""
    panels = json.loads(
        (ROOT / "deploy/grafana/larder.json").read_text())["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


# ---- alerts ----

def alerts():
    """[(name, its text)]"""
    parts = re.split(r"^ +- alert: ", ALERTS.read_text(), flags=re.M)[1:]
    return [(part.split("\n")[0].strip(), part) for part in parts]


def test_alerts(promtool):
    for what in (["check", "rules", ALERTS],
                 ["test", "rules", ROOT / "tests/e2e/alerts_test.yml"]):
        done = subprocess.run([promtool, *what], text=True,
                              stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=300)
        assert done.returncode == 0, done.stdout


def test_runbook():
    """Each alert says what is wrong and where to read on; its section is
    there, says something, and is nobody else's; each is tested."""
    runbook = (ROOT / "docs/guide/runbook.md").read_text()
    sections = re.split(r"^### ", runbook, flags=re.M)[1:]
    titles = [section.split("\n")[0] for section in sections]
    tested = (ROOT / "tests/e2e/alerts_test.yml").read_text()
    names = [name for name, _ in alerts()]
    assert sorted(titles) == sorted(names) and len(set(names)) == len(names)
    for section in sections:
        assert len(section.split("\n## ")[0].split()) > 15, section
    for name, text in alerts():
        assert re.search(r"^ +summary: \"\{\{ \$labels.instance \}\}: .+\"$",
                         text, re.M), name
        assert re.search(r"^ +description: \".+\.\"$", text, re.M), name
        assert f'runbook_url: "docs/guide/runbook.md#{name.lower()}"' in text
        assert f'alertname="{name}"' in tested, f"{name} is not tested"
    for anchor in re.findall(r"\]\(#(\w+)\)", runbook):
        assert anchor in {t.lower() for t in titles}


# ---- larder top ----

def test_top_once(larder, loaded):
    text = larder("top", loaded.url(), "--once", "--interval", "1").out
    lines = text.splitlines()
    assert loaded.socket in lines[0]
    assert "mode on" in lines[1]
    hit_rate = re.search(r"hit rate +([\d.]+)%", text)
    assert hit_rate and 0 < float(hit_rate.group(1)) <= 100
    assert re.search(r"^lease +[\d.]+k?/s( +[\d.]+(us|ms|s)){4}", text, re.M)
    for name in ("default", "acme"):
        assert re.search(rf"^{name} +[\d.]+%", text, re.M), text
    assert re.search(rf"^on .*{re.escape(str(loaded.dirs[0]))}", text, re.M)
    assert re.search(r"^miss +absent", text, re.M)
    assert re.search(r"^[0-9a-f]{8} +the label of \w+ +(default|acme) +[\d.]+%"
                     r"( +[\d.]+\w?){3}", text, re.M), text
    slowest = text.partition("SLOWEST")[2]
    assert re.search(r"^\w+ +[\d.]+(us|ms|s) +shm +(default|acme) +"
                     r"([0-9a-f]{8} +)?ok", slowest, re.M), text


def test_top_refuses(larder, tmp_path):
    larder("top", f"unix:{tmp_path}/nobody", code=3)
    larder("top", "a", "b", code=2)
    larder("top", f"unix:{tmp_path}/nobody", "--interval", "0", code=2)


class Terminal:
    """`larder top` in a terminal of this size."""

    def __init__(self, command, rows, columns):
        self.master, slave = pty.openpty()
        self.size(rows, columns)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave,
                                        stderr=slave, start_new_session=True)
        self.text = ""

    def size(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ,
                    struct.pack("HHHH", rows, columns, 0, 0))

    def _more(self, end):
        assert time.monotonic() < end, self.text[-3000:]
        if select.select([self.master], [], [], 0.1)[0]:
            self.text += os.read(self.master, 65536).decode()

    def read(self, until_text, seconds=120):
        end = time.monotonic() + seconds
        while until_text not in self.text:
            self._more(end)

    def screen(self, seconds=120):
        """The lines of one that was drawn from now on, to its end."""
        end, before = time.monotonic() + seconds, self.text.count("\033[H")
        while self.text.count("\033[H") < before + 3:
            self._more(end)
        last = re.sub(r"\033\[[0-9;?]*[A-GI-Za-z]", "",
                      self.text.split("\033[H")[-2])
        return last.split("\r\n")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.mark.parametrize("end", ["q", "SIGINT", "SIGTERM", "gone"])
def test_top_terminal(binary, loaded, end):
    terminal = Terminal([binary, "top", loaded.url(), "--interval", "1"],
                        24, 80)
    try:
        terminal.read("\033[?1049h")
        terminal.read("lease")
        if end == "q":
            lines = terminal.screen()
            assert any(line.startswith("TENANT") for line in lines)
            assert len(lines) <= 24 and max(map(len, lines)) <= 80, lines
            terminal.size(10, 50)
            os.kill(terminal.process.pid, signal.SIGWINCH)
            lines = terminal.screen()
            assert len(lines) <= 10 and max(map(len, lines)) <= 50, lines
        if end == "gone":
            loaded.signal(signal.SIGSTOP)
            terminal.read("GONE")
            loaded.signal(signal.SIGCONT)
            os.write(terminal.master, b"q")
        elif end == "q":
            os.write(terminal.master, b"q")
        else:
            os.kill(terminal.process.pid, getattr(signal, end))
        terminal.read("\033[?1049l")
        assert terminal.process.wait(120) == 0
        # The terminal is as it was.
        assert "\033[?25h" in terminal.text
        assert termios.tcgetattr(terminal.slave) == terminal.before
    finally:
        loaded.signal(signal.SIGCONT)
        terminal.close()
