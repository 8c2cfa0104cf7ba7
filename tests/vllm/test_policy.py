"""kv_load_failure_policy=fail, which is also vLLM's default: a request whose
load fails is computed, and a warning says that; with the operator's word that
it shall stay, the request ends with an error. Others go on either way."""
import pytest
import rig

IDS = rig.prompt("policy", 1300)


@pytest.mark.parametrize("kept", [False, True])
def test_fail(version, tmp_path, kept):
    with rig.node(tmp_path) as node:
        given = dict(rig.transfer(node.url()), kv_load_failure_policy="fail")
        with rig.engine(version, "dense", kv_transfer_config=given, env={
                "VLLM_LARDER_KEEP_POLICY": "1" if kept else ""}) as engine:
            cold = engine.ask_one(IDS)
            word = "is kept" if kept else "is taken for recompute"
            [said] = [line for line in engine.larder_lines()
                      if "kv_load_failure_policy=fail" in line]
            assert word in said and "WARNING" in said
            rig.check_same(rig.hit(engine, IDS, 1280), cold)
            rig.fresh(engine)
            engine.ask("inside", "failing_loads")
            [answer] = engine.generate([IDS])
            assert any("failed after" in line
                       for line in engine.larder_lines())
            if kept:
                assert answer["error"] == "error", answer
            else:
                rig.check_same(answer, cold)
            rig.check_same(engine.ask_one(IDS, kv_transfer_params={
                "larder": {"skip_load": True}}), cold)
