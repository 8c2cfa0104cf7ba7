"""`larder options`, `larder serve --help`, docs/reference/options.md: one
table."""
import pathlib
import re

DOCS = pathlib.Path(__file__).parents[2] / "docs"
USAGE = 2


def test_manual_is_the_table(larder):
    """What the program prints stands in the manual, to the letter."""
    tables = larder("options", "--markdown").stdout.decode("utf-8")
    page = (DOCS / "reference/options.md").read_text(encoding="utf-8")
    assert tables.count("\n| `") > 40 and "`[tenant NAME]`" in tables
    assert tables in page, "put the output of `larder options --markdown` there"
    assert page.count("\n| `") == tables.count("\n| `")


def test_json_and_table_agree(larder):
    options = larder.json("options")
    lines = larder("options").out.splitlines()[1:]
    assert [o["name"] for o in options] == [line.split()[0] for line in lines]
    for option in options:
        assert option["kind"] in ("SIZE", "UINT", "ENUM", "TEXT")
        assert set(option["where"]) <= {"embed", "unix", "tcp", "serve",
                                        "connector"}
        assert option["where"] and option["text"]
        assert bool(option["words"]) == (option["kind"] == "ENUM")
        if option["kind"] == "ENUM":
            assert option["default"] in option["words"]
        if option["reload"]:
            assert "serve" in option["where"]


def test_serve_only(larder):
    everything = larder.json("options")
    serve = larder.json("options", "--serve")
    assert serve == [o for o in everything if "serve" in o["where"]]
    assert 25 < len(serve) < len(everything)
    text = larder("options", "--serve").out
    assert "\nworkers " not in text and "[tenant NAME]" in text


def test_markdown_stands_alone(larder):
    for other in ("--json", "--serve"):
        assert "stands alone" in larder("options", "--markdown", other,
                                        code=USAGE).err


def test_serve_help_fits_a_screen(larder):
    text = larder("serve", "--help").out
    lines = text.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    options = {o["name"]: o for o in larder.json("options", "--serve")}
    assert f"`larder options --serve` lists all {len(options)}." in text
    for name, value in re.findall(r"^  --(\w+) .*?(?:\(([^()]*)\))?$", text,
                                  re.M):
        if name not in ("dir", "takeover"):
            assert value == options[name]["default"]
