"""Lists that a page of the manual writes by hand are those of the source."""
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = [path for folder in ("src", "include") for path in
           sorted((ROOT / folder).rglob("*.[ch]"))]


def source(name):
    return (ROOT / name).read_text()


def page(name):
    return (ROOT / "docs" / name).read_text()


def rows(name, macro):
    """The arguments of each X(...) of a table in a header."""
    table = re.search(rf"#define {macro}\(X\)((?:.*\\\n)*.*)", source(name))
    found = re.findall(r"\bX\(((?:[^()\"]|\"[^\"]*\")*)\)", table.group(1))
    assert found, macro
    return [[cell.strip(' \\\n"') for cell in row.split(",")] for row in found]


def section(text, head):
    """What stands below a heading, up to the next one."""
    return re.split(r"^#+ ", text.split(f"{head}\n", 1)[1], flags=re.M)[0]


def first_cells(text):
    """The words set as code in the first cells of tables."""
    return [word for cell in re.findall(r"^\| ([^|]*)\|", text, re.M)
            for word in re.findall(r"`([\w.*-]+)`", cell)]


def test_threads():
    """Each name that a thread is given."""
    named = {name.split("%")[0].rstrip("-") for path in SOURCES
             for name in re.findall(
                 r"(?:start|_thread|snprintf)\([^;{]*?\"(larder-[\w%-]+)\"",
                 path.read_text())}
    assert len(named) > 20
    text = section(page("concepts/threads.md"), "## Threads")
    assert named == {word for word in re.findall(r"`(larder-[\w-]+)`", text)}


def test_locks():
    """Each lock that is a field with a name of its own."""
    named = {name for path in SOURCES for name in re.findall(
        r"pthread_mutex_t (\w+_lock);", path.read_text())
        if path.is_relative_to(ROOT / "src/server")
        or path.is_relative_to(ROOT / "src/client")
        or path.is_relative_to(ROOT / "src/net")}
    text = section(page("concepts/threads.md"),
                   "## Locks, in the order in which they are taken") + \
        section(page("concepts/transports.md"), "## Locks")
    assert len(named) > 10
    assert {name for name in named if name not in text} == set()


def values_of(label, *metrics):
    """The values that metrics.md has of a label."""
    for names, values in re.findall(
            rf"^\| (`larder_[^|]*) \| `{label}` \| ([^|]*) \|$",
            page("reference/metrics.md"), re.M):
        if set(metrics) <= set(re.findall(r"`(\w+)`", names)):
            return set(re.findall(r"`(\w+)`", values))
    raise AssertionError((label, metrics))


def test_values_of_labels():
    """Also those that no test brings about."""
    server = "src/server/metrics.h"
    for macro, label, metric in (
            ("LDR_TRANSPORT_MAP", "transport", "larder_sessions"),
            ("LDR_AUTH_FAIL_MAP", "reason", "larder_auth_failures_total"),
            ("LDR_REFUSAL_MAP", "reason", "larder_refused_connections_total"),
            ("LDR_OUTCOME_MAP", "status", "larder_tenant_requests_total")):
        assert values_of(label, metric) == {
            row[1] for row in rows(server, macro)}, metric
    operations = rows("src/wire/wire.h", "LDR_OPCODE_MAP")
    clients = [row[3] for row in operations if int(row[1]) < 72]
    assert len(clients) < len(operations)  # members' are not counted
    assert values_of("op", "larder_requests_total") == {*clients, "unknown"}
    statuses = [row[0] for row in rows("include/larder/larder.h",
                                       "LARDER_STATUS_MAP")]
    assert values_of("status", "larder_errors_total") == {
        name[9:].lower() for name in statuses if "_E_" in name}
    assert values_of("status", "larder_slowest_request_seconds") == {
        re.sub("LARDER_(E_)?", "", name).lower() for name in statuses}
    assert values_of("cause", "larder_misses_total") == {
        row[0][13:].lower() for row in rows("include/larder/larder.h",
                                            "LARDER_CAUSE_MAP")} - {"none"}
    assert values_of("tier", "larder_loads_total") == {
        row[1] for row in rows("include/larder/larder.h", "LARDER_TIER_MAP")}


def test_transports():
    """Rows of the table of transports, and bits of the hello."""
    text = page("concepts/transports.md")
    known = re.findall(r"ldr_transport_ops_t ldr_transport_(\w+);", "".join(
        source(f"src/net/{name}.h") for name in ("transport", "ring")))
    assert len(known) > 2
    for name in known:
        assert re.search(rf"rows? .*\b{name}\b",
                         text), name
    bits = re.findall(r"#define LDR_FEATURE_(\w+)", source("src/wire/wire.h"))
    assert first_cells(section(text, "## Frames").split("Large batches")[0]
                       ) == bits


def test_what_sighup_changes():
    reload = {row[0] for row in rows("src/base/options.h", "LDR_OPTION_MAP")
              if "RELOAD" in row[2]} - {"mode"}  # which has one value
    assert len(reload) > 5
    for name, sentence in (("guide/daemon.md", r"^\| SIGHUP .*$"),
                           ("guide/operate.md", r"(?s)Tenants with.*?at once")):
        listed = re.search(sentence, page(name), re.M).group()
        assert set(re.findall(r"`(\w+)`", listed)) == reload, name


def test_variables():
    """Variables of the environment that the program and the library read."""
    said_elsewhere = {
        "HOME", "NOTIFY_SOCKET", "JOURNAL_STREAM"}  # as everybody uses them
    read = {name for path in SOURCES for name in re.findall(
        r"getenv\(\"(\w+)\"\)", path.read_text())} - said_elsewhere
    text = section(page("reference/options.md"),
                   "## Variables of the environment")
    assert len(read) > 8
    for name in read:
        assert f"`{name}`" in text or (
            name.startswith("AWS_") and "`AWS_*`" in text), name


def test_paths_in_the_manual():
    """Files that pages name, several in braces."""
    def each(name):
        braces = re.search(r"\{([^{}]*)\}", name)
        if not braces:
            return [name]
        return [one for word in braces.group(1).split(",") for one in
                each(name[:braces.start()] + word + name[braces.end():])]

    named = {(path.name, one) for path in (ROOT / "docs").rglob("*.md")
             for word in re.findall(
                 r"`((?:src|tests|python|scripts|deploy|examples|include|bench)"
                 r"/[\w./{},*-]+)`", path.read_text()) if "NAME" not in word
             for one in each(word)}
    assert len(named) > 80
    assert [at for at in sorted(named) if not list(ROOT.glob(at[1]))] == []


def test_findings_and_checks():
    """What fsck can find, and what doctor looks at."""
    text = page("reference/cli.md")
    findings = {row[1]: row[2] for row in rows("src/store/fsck.h",
                                               "LDR_FSCK_MAP")}
    listed = dict(re.findall(r"^\| ([\w-]+)(?:, [\w-]+)? \| (\w*)",
                             section(text, "## fsck"), re.M))
    assert len(findings) > 20
    for name, damage in findings.items():
        assert name in section(text, "## fsck"), name
        if listed.get(name):
            assert listed[name] == ("damage" if damage == "true" else "note")
    checks = set(re.findall(r"\{\"(\w+)\", +ldr_doctor_\w+\}",
                            source("src/cli/cmd_doctor.c"))) - {"cluster"}
    found = {name for cell in re.findall(r"^\| ([\w, ]+) \|", section(
        text, "## doctor"), re.M) for name in cell.split(", ")}
    assert checks <= found, checks - found
