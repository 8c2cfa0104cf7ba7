"""The example engine: what `make run` shows is its table and nothing else."""
import pathlib
import subprocess
import time

from daemon import until


def test_nothing_is_said_beside_the_table(binary, larder, tmp_path):
    """A host with a shared tier: the demo gives it a secret, as it should be
    done, so that no warning comes between the rows."""
    tier = tmp_path / "tier"
    tier.mkdir()
    larder("tier", "create", f"dir:{tier}")
    secret = tmp_path / "tier.secret"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    secret.chmod(0o600)
    said = tmp_path / "said"
    with open(said, "wb") as out:
        engine = subprocess.Popen(
            [pathlib.Path(binary).parent / "engine", "run", tmp_path / "one",
             tmp_path / "out", "--shared", tier], stdout=out, stderr=out,
            stdin=subprocess.DEVNULL)
    try:
        # What there is to say is said when the space is opened; computing the
        # prompt, which comes then, is of no interest here.
        until(lambda: (tmp_path / "one/larder.super").exists()
              or engine.poll() is not None)
        time.sleep(2)
        assert engine.poll() in (None, 0), said.read_text()
        assert said.read_text() == ""
    finally:
        engine.kill()
        engine.wait()
