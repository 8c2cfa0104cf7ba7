"""Tests with real vLLM: scripts/run-vllm-tests runs them.

A test that takes `version` is run for each of --vllm (default: the newest).
`core` marks what `make test` runs. Fixtures that start engines are of module
scope: starting is the slow part. What is measured is printed at the end, and
never asserted."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import rig

_figures = []
_times = {}


def pytest_addoption(parser):
    parser.addoption("--vllm", action="append", metavar="VERSION",
                     help="vLLM to test; may be repeated")


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "core: part of `make test`, with the newest vLLM")
    config.addinivalue_line(
        "markers", "versions(*names): run with these versions only")


def pytest_generate_tests(metafunc):
    if "version" in metafunc.fixturenames:
        wanted = metafunc.config.getoption("--vllm") or rig.VERSIONS[:1]
        metafunc.parametrize("version", wanted, indirect=True,
                             scope="session")


def pytest_collection_modifyitems(config, items):
    """Cells that vLLM itself cannot run are no tests."""
    def runs(item):
        return all(item.callspec.params["version"] in mark.args
                   for mark in item.iter_markers("versions"))

    dropped = [item for item in items if not runs(item)]
    if dropped:
        items[:] = [item for item in items if runs(item)]
        config.hook.pytest_deselected(items=dropped)


@pytest.fixture(scope="session")
def version(request):
    return request.param


@pytest.fixture(scope="session")
def figure():
    """figure(text): a line for the end of the run."""
    return _figures.append


def pytest_runtest_logreport(report):
    _times[report.nodeid] = _times.get(report.nodeid, 0) + report.duration


def pytest_terminal_summary(terminalreporter):
    if _figures:
        terminalreporter.section("figures")
        for line in _figures:
            terminalreporter.write_line(line)
    by_file = {}
    for name, seconds in _times.items():
        file = pathlib.Path(name.split("::")[0]).name
        by_file[file] = by_file.get(file, 0) + seconds
    terminalreporter.section("seconds by file")
    for file, seconds in sorted(by_file.items()):
        terminalreporter.write_line(f"{seconds:6.0f}  {file}")
